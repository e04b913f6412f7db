"""What is counted, and under which keys: one verb for each thing that happens.

A key is a metric and its labels with a ``|`` between them. Labels are bounded: names of the configuration, else
``other``.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Collection, Mapping

from deduplication.journal.entry import DeliveryStatus

EMAILS = "emails"  # provider, status
STOPPED = "stopped"  # gate
GROUPS = "groups"
DELIVERIES = "deliveries"  # destination, outcome
REDIS_STEPS = "redis_steps"
REDIS_ERRORS = "redis_errors"  # class
REDIS_S = "redis_s"  # status
DECISION_S = "decision_s"  # of a histogram: bucket, or "sum"
REQUEST_S = "request_s"
DELIVERY_S = "delivery_s"  # destination, and bucket or "sum"

OTHER = "other"
REALTIME = "realtime"  # the gate that stops emails older than the service
DELIVERED, FAILED, DEAD, SKIPPED = "delivered", "failed", "dead", "skipped"
OUTCOMES = {
    DeliveryStatus.DELIVERED: DELIVERED,
    DeliveryStatus.WAITING: FAILED,
    DeliveryStatus.RETURNED: FAILED,
    DeliveryStatus.DEAD: DEAD,
    DeliveryStatus.SKIPPED: SKIPPED,
}
BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
BUCKETS = (*map(str, BUCKETS_S), "+Inf")  # each holds what the one before does not


class Meter:
    """Counts in memory: an email waits for no file. ``Counts.flush`` takes the counts to the journal."""

    def __init__(self, destinations: Collection[str] = ()) -> None:
        self._destinations = frozenset(destinations)
        self._providers: frozenset[str] = frozenset()
        self._lock = threading.Lock()
        self._counts: dict[str, float] = {}

    def know_providers(self, names: Collection[str]) -> None:
        """The configured providers, which the routes know."""
        self._providers = frozenset(names)

    def count_email(self, provider: str, status: str, gate: str | None = None) -> None:
        """``gate``: where it was stopped."""
        provider = provider if provider in self._providers else OTHER
        email = {f"{EMAILS}|{provider}|{status}": 1}
        self.add(email | {f"{STOPPED}|{gate}": 1} if gate else email)

    def count_group(self) -> None:
        """An email was the first of its subject group."""
        self.add({GROUPS: 1})

    def count_attempt(self, destination: str, status: DeliveryStatus, count: int = 1) -> None:
        """The status of the delivery after the attempt; skipped means that nothing was sent."""
        self.add({f"{DELIVERIES}|{self._known(destination)}|{OUTCOMES[status]}": count})

    def count_redis_step(self, error: str | None = None) -> None:
        self.add({REDIS_STEPS: 1, f"{REDIS_ERRORS}|{error}": 1} if error else {REDIS_STEPS: 1})

    def time_redis(self, status: str, seconds: float) -> None:
        """How long this process has seen Redis in that status."""
        self.add({f"{REDIS_S}|{status}": seconds})

    def time_decision(self, seconds: float) -> None:
        self._observe(DECISION_S, seconds)

    def time_request(self, seconds: float) -> None:
        self._observe(REQUEST_S, seconds)

    def time_delivery(self, destination: str, seconds: float) -> None:
        self._observe(f"{DELIVERY_S}|{self._known(destination)}", seconds)

    def add(self, counts: Mapping[str, float]) -> None:
        with self._lock:
            for key, value in counts.items():
                self._counts[key] = self._counts.get(key, 0) + value

    def take(self) -> dict[str, float]:
        """Everything counted since the last call."""
        with self._lock:
            taken, self._counts = self._counts, {}
        return taken

    def _observe(self, histogram: str, seconds: float) -> None:
        bucket = BUCKETS[bisect_left(BUCKETS_S, seconds)]
        self.add({f"{histogram}|{bucket}": 1, f"{histogram}|sum": seconds})

    def _known(self, destination: str) -> str:
        return destination if destination in self._destinations else OTHER
