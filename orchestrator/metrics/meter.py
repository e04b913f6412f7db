"""What is counted, under which keys: one verb for each thing that happens.

A key is the metric and its labels with a ``|`` between them. Labels are bounded: names of the configuration, else
``other``.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection

from deduplication.journal.entry import DeliveryStatus
from orchestrator.metrics.tally import Tally

EMAILS = "emails"  # provider, status
STOPPED = "stopped"  # gate
GROUPS = "groups"
DELIVERIES = "deliveries"  # destination, outcome
REDIS_STEPS = "redis_steps"
REDIS_ERRORS = "redis_errors"  # class
SIDE_S = "side_s"  # side
DECISION_S = "decision_s"  # of a histogram: bucket, or "sum"
REQUEST_S = "request_s"
DELIVERY_S = "delivery_s"  # destination, and bucket or "sum"

OTHER = "other"
REALTIME = "realtime"  # the gate of what is older than the service
DELIVERED, FAILED, DEAD, SKIPPED = "delivered", "failed", "dead", "skipped"
OUTCOMES = {
    DeliveryStatus.DELIVERED: DELIVERED,
    DeliveryStatus.WAITING: FAILED,
    DeliveryStatus.DEAD: DEAD,
    DeliveryStatus.SKIPPED: SKIPPED,
}
BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
BUCKETS = (*map(str, BUCKETS_S), "+Inf")  # each holds what the one before does not


class Meter:
    def __init__(self, tally: Tally, destinations: Collection[str] = ()) -> None:
        self._tally = tally
        self._destinations = frozenset(destinations)
        self._providers: frozenset[str] = frozenset()

    def know_providers(self, names: Collection[str]) -> None:
        """Those that are open; the routes know."""
        self._providers = frozenset(names)

    def count_email(self, provider: str, status: str, gate: str | None = None) -> None:
        """``gate``: where it was stopped."""
        provider = provider if provider in self._providers else OTHER
        self._tally.add(f"{EMAILS}|{provider}|{status}")
        if gate:
            self._tally.add(f"{STOPPED}|{gate}")

    def count_group(self) -> None:
        """An email was the first of its subject group."""
        self._tally.add(GROUPS)

    def count_attempt(self, destination: str, status: DeliveryStatus, count: int = 1) -> None:
        """What became of a delivery by it; skipped: a gate left its destination out, and nothing was tried."""
        self._tally.add(f"{DELIVERIES}|{self._known(destination)}|{OUTCOMES[status]}", count)

    def count_redis_step(self, error: str | None = None) -> None:
        self._tally.add(REDIS_STEPS)
        if error:
            self._tally.add(f"{REDIS_ERRORS}|{error}")

    def count_side(self, side: str, seconds: float) -> None:
        self._tally.add(f"{SIDE_S}|{side}", seconds)

    def time_decision(self, seconds: float) -> None:
        self._observe(DECISION_S, seconds)

    def time_request(self, seconds: float) -> None:
        self._observe(REQUEST_S, seconds)

    def time_delivery(self, destination: str, seconds: float) -> None:
        self._observe(f"{DELIVERY_S}|{self._known(destination)}", seconds)

    def _observe(self, histogram: str, seconds: float) -> None:
        bucket = BUCKETS[bisect_left(BUCKETS_S, seconds)]
        self._tally.observe(f"{histogram}|{bucket}", f"{histogram}|sum", seconds)

    def _known(self, destination: str) -> str:
        return destination if destination in self._destinations else OTHER
