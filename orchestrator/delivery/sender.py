"""One attempt at a destination and what follows from it, for an email that has just come and for a stored one alike."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future, wait
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial

from deduplication.errors import DeduplicationError
from deduplication.journal.base import Claim, Journal
from deduplication.journal.entry import Attempt, Delivery, DeliveryStatus, Entry
from orchestrator.delivery.destination_states import DestinationStates, shown_pause
from orchestrator.delivery.guard import Guard
from orchestrator.delivery.schedule import Patience, Round, after, put_off
from orchestrator.delivery.webhook import DeliveryFailed, Destination, Payload, Receipt, Webhook, stored_event
from orchestrator.leases import Held, LeaseKeeper
from orchestrator.metrics.meter import Meter
from orchestrator.metrics.tally import Tally

log = logging.getLogger(__name__)

ASK_AGAIN_WHILE_DISABLED_MS = 30_000
UNKNOWN_FOR_MS = 3_600_000
QUICK_TRIES = 2
QUICK_PAUSE_S = 0.2
SHORTEST_TRY_S = 0.5
GRACE_S = 1.0  # an attempt ends by itself at the end of its budget; this is for its way back
RATE_PATIENCE_S = 10.0  # a worker's thread is its destination's own, so it may as well wait
MOST_AT_ONCE = 1_000_000


class Hold(StrEnum):
    """Why nothing is sent to a destination, in the words that whoever looks at what waits for it reads."""

    NO_DESTINATION = "no such destination in mailonce.toml"
    DISABLED = "disabled"
    PAUSED = "paused"
    GIVEN_A_PAUSE = "failed too often, given a pause"


@dataclass(frozen=True)
class DestinationPolicy:
    """``content_window_ms`` None: no content gate for emails, 72 h for messages; 0: none at all."""

    destination: Destination
    content_window_ms: int | None = None
    max_attempts: int = 10
    is_enabled: bool = True


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
class Sender:
    """``pools``: threads for each destination of its own, so that a slow one never holds up another."""

    journal: Journal
    leases: LeaseKeeper
    policies: Mapping[str, DestinationPolicy]
    guard: Guard
    pools: Mapping[str, Executor]
    new_token: Callable[[], str]
    states: DestinationStates
    clock: Clock = Clock()
    server: str = ""
    meter: Meter = field(default_factory=lambda: Meter(Tally()))

    # An email that has just come: its provider's request waits

    def send(self, claim: Claim, entry: Entry, payload: Payload, budget: Budget) -> tuple[Delivery, ...]:
        """To all that are still to have it, at once: what became of each. The claim is settled by the caller.

        One of several is recorded as soon as it is delivered. What is not through in time goes on by itself, and is
        due again when it must have ended.
        """
        going = [each for each in entry.deliveries if each.status is DeliveryStatus.DELIVERING]
        with self.leases.holding(Held(entry.id, claim.owner)):
            if len(going) == 1:
                return (self._send(entry, going[0], payload, budget),)
            futures = [
                self.pools[each.destination].submit(
                    copy_context().run, self._send_one_of_several, claim, entry, each, payload, budget
                )
                for each in going
            ]
            wait(futures, timeout=max(0.0, budget.left_s) + GRACE_S)
            return tuple(self._result(*each) for each in zip(futures, going, strict=True))

    def _send_one_of_several(
        self, claim: Claim, entry: Entry, delivery: Delivery, payload: Payload, budget: Budget
    ) -> Delivery:
        sent = self._send(entry, delivery, payload, budget)
        if sent.status is DeliveryStatus.DELIVERED:
            try:
                self.journal.finish(entry.id, claim.owner, sent)
            except DeduplicationError as error:
                log.warning("entry %s: delivered to %s; recorded later: %s", entry.id, sent.destination, error)
        return sent

    def _send(self, entry: Entry, delivery: Delivery, payload: Payload, budget: Budget | None = None) -> Delivery:
        """One attempt. That it was delivered is noted before anything else is done."""
        sent = self.attempt(delivery, payload, budget, entry)
        if sent.status is DeliveryStatus.DELIVERED:
            try:
                self.journal.note_delivered(entry, sent)
            except DeduplicationError as error:
                log.error("entry %s: delivered to %s, but not noted: %s", entry.id, sent.destination, error)
        return sent

    def _result(self, future: Future[Delivery], delivery: Delivery) -> Delivery:
        if future.cancel():
            return put_off(delivery, "no time left for it", self.clock.now_ms())
        if future.done():
            return future.result()
        log.warning("%s: %s is not through in time", delivery.webhook_id, delivery.destination)
        return put_off(delivery, "not through in time", self.clock.now_ms() + self.leases.lease_ms)

    # A stored one: the queue, the schedule or an operator asks for it

    def deliver_or_leave(self, entry: str, destination: str) -> Delivery | None:
        """For those who have nobody to tell: whatever goes wrong, the journal brings the delivery back."""
        try:
            return self.deliver_stored(entry, destination)
        except DeduplicationError as error:
            log.error("entry %s: %s is tried again later: %s", entry, destination, error)
        except Exception:
            log.exception("entry %s: %s is tried again later", entry, destination)
        return None

    def deliver_stored(self, entry: str, destination: str) -> Delivery | None:
        """One attempt for a stored delivery: what became of it; None where there was nothing to do."""
        owner, asked_at = self.new_token(), self.clock.monotonic()
        begun = self.journal.begin(entry, destination, owner, self.leases.lease_ms, self.server)
        if begun is None:
            return None
        if (self.clock.monotonic() - asked_at) * 1000 >= self.leases.lease_ms:
            log.warning("entry %s: its lease ran out before it was sent to %s", entry, destination)
            return None
        held = Held(entry, owner, destination)
        if begun.payload is None:
            reason = "what was to be sent is no longer kept"
            sent = replace(begun.delivery, status=DeliveryStatus.DEAD, next_try_ms=None, reason=reason)
            self.meter.count_attempt(destination, sent.status)
        else:
            with self.leases.holding(held):
                payload = stored_event(begun.payload, begun.entry, begun.delivery)
                sent = self._send(begun.entry, begun.delivery, payload)
        self.leases.settle(held, partial(self.journal.finish, entry, owner, sent))
        return sent

    # One attempt

    def attempt(
        self, delivery: Delivery, payload: Payload, budget: Budget | None = None, entry: Entry | None = None
    ) -> Delivery:
        """The delivery after one attempt; it is written nowhere. Without a budget: one POST, in its own time."""
        name, now_ms = delivery.destination, self.clock.now_ms()
        hold = self.hold_at(name)
        if hold is Hold.NO_DESTINATION:
            return self._without_a_destination(delivery, now_ms)
        if hold:
            again_ms = now_ms + ASK_AGAIN_WHILE_DISABLED_MS if hold is Hold.DISABLED else now_ms
            return put_off(delivery, f"{name}: {hold}", again_ms)
        policy = self.policies[name]
        if budget and budget.left_s < SHORTEST_TRY_S:
            return put_off(delivery, "no time left for it", now_ms)
        wait_s = self._wait_s(name, budget)
        if wait_s > 0:
            reason = "over its rate" if self.guard.state(name) == "closed" else Hold.GIVEN_A_PAUSE
            return put_off(delivery, f"{name}: {reason}", self.clock.now_ms() + int(wait_s * 1000) + 1)
        posted = self._post_up_to_twice(delivery, policy.destination, payload, budget, entry.id if entry else "-")
        now_ms = self.clock.now_ms()
        resumed_ms = self.states.of(name).resumed_ms  # while it was paused, no time passed
        waits_since_ms = entry.waits_since_ms if entry and not budget else now_ms  # one that has come again is as new
        patience = Patience(policy.max_attempts, max(waits_since_ms, resumed_ms))
        tried = after(delivery, posted, patience, now_ms)
        self.meter.count_attempt(name, tried.status)
        return tried

    def hold_at(self, destination: str) -> Hold | None:
        """Why nothing is sent there, by mailonce.toml or because a person, or its own 410, has paused it: nobody is
        asked. What waits for one that is paused is due all the while, but nobody asks for it."""
        policy = self.policies.get(destination)
        if policy is None:
            return Hold.NO_DESTINATION
        if not policy.is_enabled:
            return Hold.DISABLED
        return Hold.PAUSED if self.states.of(destination).is_paused else None

    def why_held_back(self, destination: str) -> Hold | None:
        """Why nothing that is stored goes there now, its breaker included; None: it is well."""
        hold = self.hold_at(destination)
        return hold or (None if self.guard.state(destination) == "closed" else Hold.GIVEN_A_PAUSE)

    def _without_a_destination(self, delivery: Delivery, now_ms: int) -> Delivery:
        """Another process may know it already: files are not changed everywhere at the same moment."""
        reason = f"{delivery.destination}: {Hold.NO_DESTINATION}"
        missing_ms = delivery.missing_ms or now_ms
        if now_ms - missing_ms < UNKNOWN_FOR_MS:
            waiting = put_off(delivery, reason, now_ms + ASK_AGAIN_WHILE_DISABLED_MS)
            return replace(waiting, missing_ms=missing_ms)
        self.meter.count_attempt(delivery.destination, DeliveryStatus.DEAD)
        return replace(delivery, status=DeliveryStatus.DEAD, next_try_ms=None, reason=reason)

    def paused(self) -> dict[str, dict[str, str]]:
        found = {name: shown_pause(self.states.of(name)) for name in self.policies}
        return {name: pause for name, pause in found.items() if pause}

    def room_at(self, destination: str) -> int:
        """How many stored deliveries are worth an attempt now: all, one to see if it is well again, or none."""
        hold = self.hold_at(destination)
        if hold:
            return MOST_AT_ONCE if hold is Hold.NO_DESTINATION else 0  # without one, they are settled without a POST
        return {"closed": MOST_AT_ONCE, "half-open": 1, "open": 0}[self.guard.state(destination)]

    def is_down(self, destination: str) -> bool:
        """It is to be sent to, and its breaker says that this makes no sense for now."""
        return self.why_held_back(destination) is Hold.GIVEN_A_PAUSE

    def _wait_s(self, destination: str, budget: Budget | None) -> float:
        """How long until it may be sent to. Where only the rate is in the way, that is waited for, if not too long."""
        patience_s = budget.left_s - SHORTEST_TRY_S if budget else RATE_PATIENCE_S
        wait_s = self.guard.wait_s(destination)
        while 0 < wait_s < patience_s and self.guard.state(destination) == "closed":
            self.clock.sleep(wait_s)
            patience_s -= wait_s
            wait_s = self.guard.wait_s(destination)
        return wait_s

    def _post_up_to_twice(
        self, delivery: Delivery, destination: Destination, payload: Payload, budget: Budget | None, entry: str
    ) -> Round:
        """A request that still has time tries once more, unless it was told to wait or not to come back."""
        attempts: list[Attempt] = []
        while True:
            attempt, receipt, failure = self._post(delivery, destination, payload, budget)
            log_attempt(entry, delivery, attempt)
            attempts.append(attempt)
            posted = Round(tuple(attempts), receipt, failure)
            if failure is None or budget is None or failure.permanent or failure.is_gone or failure.retry_after_s:
                return posted
            if len(attempts) == QUICK_TRIES or budget.left_s <= QUICK_PAUSE_S + SHORTEST_TRY_S:
                return posted
            self.clock.sleep(QUICK_PAUSE_S)
            if self._wait_s(delivery.destination, budget) > 0:
                return posted

    def _post(
        self, delivery: Delivery, destination: Destination, payload: Payload, budget: Budget | None
    ) -> tuple[Attempt, Receipt | None, DeliveryFailed | None]:
        at_ms, started = self.clock.now_ms(), self.clock.monotonic()
        receipt, failure = None, None
        try:
            receipt = destination.deliver(Webhook(delivery.webhook_id, payload), budget.left_s if budget else None)
        except DeliveryFailed as error:
            failure = error
        took_s = self.clock.monotonic() - started
        self.meter.time_delivery(delivery.destination, took_s)
        code = failure.status_code if failure else receipt.status_code if receipt else None
        if failure is None or (code is not None and code < 500):  # a refusal of this webhook: it is well
            if self.guard.succeeded(delivery.destination):
                self.states.note_well(delivery.destination)
        else:
            self.guard.failed(delivery.destination)
        if failure and failure.is_gone:
            self.states.note_gone(delivery.destination)
        return Attempt(at_ms, int(took_s * 1000), code, str(failure) if failure else None), receipt, failure


def log_attempt(entry: str, delivery: Delivery, attempt: Attempt) -> None:
    """One line for each POST, in the request or behind it."""
    line = "entry %(entry)s: to %(destination)s as %(webhook_id)s in %(ms)d ms, "
    said: dict[str, object] = {
        "entry": entry,
        "destination": delivery.destination,
        "webhook_id": delivery.webhook_id,
        "ms": attempt.latency_ms,
        "status_code": attempt.status_code,
    }
    if attempt.error is None:
        log.info(line + "delivered", said)
    else:
        log.warning(line + "failed: %(error)s", said | {"error": attempt.error})
