"""One turn at a destination: may it be tried now, the POST itself, and the record that comes of it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from deduplication.content import WINDOW_MS
from orchestrator.delivery.guard import Guard
from orchestrator.delivery.record import Attempt, Delivery, DeliveryStatus
from orchestrator.delivery.schedule import Round, after, put_off
from orchestrator.delivery.webhook import DeliveryFailed, Destination, Receipt, Webhook
from orchestrator.item import Item

log = logging.getLogger(__name__)

ASK_AGAIN_WHILE_DISABLED_MS = 30_000
UNKNOWN_FOR_MS = 3_600_000
QUICK_TRIES = 2
QUICK_PAUSE_S = 0.2
SHORTEST_TRY_S = 0.5
RATE_PATIENCE_S = 10.0  # a worker's thread is its destination's own, so it may as well wait
MOST_AT_ONCE = 1_000_000


@dataclass(frozen=True)
class Place:
    """A destination with its policy. ``content_window_ms`` None: none for emails, 72 h for messages; 0: none at all."""

    destination: Destination
    content_window_ms: int | None = None
    max_attempts: int = 9
    is_enabled: bool = True


def content_window_ms(own_ms: int | None, item: Item, wanted: bool | None) -> int:
    """0: no content gate. ``own_ms`` is what the destination says, ``wanted`` what the route says."""
    if wanted is False:
        return 0
    if own_ms is not None:
        return own_ms
    return WINDOW_MS if wanted or item.is_message else 0


@dataclass(frozen=True)
class Budget:
    """The time a provider's request may wait; within it a failed POST is tried once more."""

    ends_at: float
    monotonic: Callable[[], float] = time.monotonic

    @property
    def left_s(self) -> float:
        return self.ends_at - self.monotonic()


@dataclass(frozen=True)
class Clock:
    """The time of day for records, the running time for latencies, and how to wait."""

    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


@dataclass(frozen=True)
class Courier:
    places: Mapping[str, Place]
    guard: Guard
    clock: Clock = Clock()

    def turn(self, delivery: Delivery, budget: Budget | None = None) -> Delivery:
        """The record after one turn; nothing is written anywhere. Without a budget: one POST, in its own time."""
        place = self.places.get(delivery.destination)
        now_ms = self.clock.now_ms()
        if place is None:
            return self._without_a_place(delivery, now_ms)
        if not place.is_enabled:
            reason = f"{delivery.destination}: disabled"
            return put_off(delivery, reason, now_ms + ASK_AGAIN_WHILE_DISABLED_MS)
        if budget and budget.left_s < SHORTEST_TRY_S:
            return put_off(delivery, "no time left for it", now_ms)
        wait_s = self._wait_s(delivery.destination, budget)
        if wait_s > 0:
            until_ms = self.clock.now_ms() + int(wait_s * 1000) + 1
            return put_off(delivery, self._why_wait(delivery.destination), until_ms)
        turn = self._round(delivery, place.destination, budget)
        return after(delivery, turn, place.max_attempts, self.clock.now_ms())

    def _without_a_place(self, delivery: Delivery, now_ms: int) -> Delivery:
        """Another process may know it already: files are not changed everywhere at the same moment."""
        reason = f"{delivery.destination}: no such destination in mailonce.toml"
        if now_ms - delivery.scheduled_ms < UNKNOWN_FOR_MS:
            return put_off(delivery, reason, now_ms + ASK_AGAIN_WHILE_DISABLED_MS)
        return replace(delivery, status=DeliveryStatus.DEAD, next_try_ms=None, reason=reason)

    def most_for(self, destination: str) -> int:
        """How many due deliveries are worth a turn now: all, one to see if it is well again, or none."""
        place = self.places.get(destination)
        if place is None:
            return MOST_AT_ONCE
        if not place.is_enabled:
            return 0
        return {"closed": MOST_AT_ONCE, "half-open": 1, "open": 0}[self.guard.state(destination)]

    def _wait_s(self, destination: str, budget: Budget | None) -> float:
        """How long until it may be sent to. Where only the rate is in the way, that is waited for, if not too long."""
        patience_s = budget.left_s - SHORTEST_TRY_S if budget else RATE_PATIENCE_S
        wait_s = self.guard.wait_s(destination)
        while 0 < wait_s < patience_s and self.guard.state(destination) == "closed":
            self.clock.sleep(wait_s)
            patience_s -= wait_s
            wait_s = self.guard.wait_s(destination)
        return wait_s

    def _why_wait(self, destination: str) -> str:
        is_well = self.guard.state(destination) == "closed"
        return f"{destination}: {'over its rate' if is_well else 'failed too often, given a pause'}"

    def _round(self, delivery: Delivery, destination: Destination, budget: Budget | None) -> Round:
        attempts: list[Attempt] = []
        while True:
            attempt, receipt, failure = self._post(delivery, destination, budget)
            attempts.append(attempt)
            self._tell_guard(delivery.destination, failure)
            again = failure and budget and _is_worth_a_quick_try(failure, budget, len(attempts))
            if not again or not self._may_go_again(delivery.destination, budget):
                return Round(tuple(attempts), receipt, failure)

    def _may_go_again(self, destination: str, budget: Budget | None) -> bool:
        self.clock.sleep(QUICK_PAUSE_S)
        return self._wait_s(destination, budget) == 0

    def _post(
        self, delivery: Delivery, destination: Destination, budget: Budget | None
    ) -> tuple[Attempt, Receipt | None, DeliveryFailed | None]:
        at_ms, started = self.clock.now_ms(), self.clock.monotonic()
        receipt, failure = None, None
        try:
            webhook = Webhook(delivery.webhook_id, delivery.payload or {})
            receipt = destination.deliver(webhook, budget.left_s if budget else None)
        except DeliveryFailed as error:
            failure = error
            log.warning("item %s: delivery %s failed: %s", delivery.item, delivery.id, error)
        latency_ms = int((self.clock.monotonic() - started) * 1000)
        code = failure.status_code if failure else receipt.status_code if receipt else None
        return Attempt(at_ms, latency_ms, code, str(failure) if failure else None), receipt, failure

    def _tell_guard(self, destination: str, failure: DeliveryFailed | None) -> None:
        """Only what says that the destination is unwell counts: a refusal of this very webhook does not."""
        if failure is None or (failure.status_code is not None and failure.status_code < 500):
            self.guard.succeeded(destination)
        else:
            self.guard.failed(destination)


def _is_worth_a_quick_try(failure: DeliveryFailed, budget: Budget, tried: int) -> bool:
    is_told_to_wait = failure.permanent or failure.retry_after_s
    return tried < QUICK_TRIES and not is_told_to_wait and budget.left_s > QUICK_PAUSE_S + SHORTEST_TRY_S
