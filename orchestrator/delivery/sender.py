"""One attempt at a destination, for an email that has just come and for a stored delivery alike, and what follows."""

import logging
import random
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future, as_completed
from concurrent.futures import TimeoutError as NotThrough
from contextvars import copy_context
from functools import partial

from msgspec.structs import replace

from deduplication.errors import StoreUnavailable, try_to
from deduplication.journal.coordinator import Claimed, Coordinator, Lent
from deduplication.journal.entry import Attempt, Delivery, DeliveryStatus, Entry
from deduplication.values import frozen
from orchestrator.delivery.guard import ANSWERED_GONE, BY_410, Blocker, Guard
from orchestrator.delivery.webhook import GONE, Destination, Payload, PostResult, Webhook, stored_event
from orchestrator.metrics.meter import DELIVERIES, DELIVERY_S, Meter

log = logging.getLogger(__name__)

ASK_AGAIN_MS = 30_000  # where it is disabled or not configured
UNKNOWN_FOR_MS = 3_600_000
QUICK_TRIES = 2
QUICK_PAUSE_S = 0.2
SHORTEST_TRY_S = 0.5
EARLY_MS = 1_000  # before its next try: as a probe, or because the destination works again
GRACE_S = 1.0  # an attempt ends by itself when its budget does; this is for its way back
RATE_PATIENCE_S = 10.0  # a thread of the retrier belongs to its destination, so it may wait for the rate
# Of Standard Webhooks, with another 5 s in front: after a request, which makes two attempts, comes the second delay.
RETRY_DELAYS_S = (5, 5, 300, 1800, 7200, 5 * 3600, 10 * 3600, 14 * 3600, 20 * 3600, 24 * 3600)
MOST_RETRY_AFTER_S = 3600
MOST_AGE_MS = 76 * 3_600_000
TOO_OLD = "waited 76 h"
ATTEMPTS_KEPT = 20
JITTER = 0.1  # of the delay, and only added: never earlier than the destination asked for


@frozen
class Sender:
    """``pools``: threads for each destination, so that a slow one does not delay another."""

    coordinator: Coordinator
    destinations: Mapping[str, Destination]
    guard: Guard
    pools: Mapping[str, Executor]
    meter: Meter
    server: str = ""

    def close(self) -> None:
        for pool in self.pools.values():
            pool.shutdown()

    # An email that has just come: its provider's request waits

    def send(self, claimed: Claimed, webhook: Payload, ends_at: float, traceparent: str = "") -> tuple[Delivery, ...]:
        """To all destinations it was claimed for, at the same time. The caller settles what is returned.

        With several, each success is noted at once. An attempt that is not through when the request ends goes on, and
        notes its own success; meanwhile the delivery waits.
        """
        going = [each for each in claimed.plan if each.status is DeliveryStatus.CLAIMED]
        attempt = partial(self._attempt, entry=claimed.entry, payload=webhook, ends_at=ends_at, traceparent=traceparent)
        if len(going) == 1:
            return (attempt(going[0]),)
        futures = {self.pools[each.destination].submit(copy_context().run, attempt, each): each for each in going}
        sent: list[Delivery] = []
        errors: list[BaseException] = []
        try:
            for future in as_completed(futures, timeout=max(0.0, ends_at - time.monotonic()) + GRACE_S):
                if error := future.exception():
                    errors.append(error)
                    continue
                sent.append(future.result())
                is_last = len(sent) == len(going)
                if sent[-1].status is DeliveryStatus.DELIVERED and not is_last:
                    self._note(claimed, sent[-1])
        except NotThrough:
            done = {each.destination for each in sent}
            sent += [self._leave(claimed, *each) for each in futures.items() if each[1].destination not in done]
        if errors:
            raise errors[0]
        return tuple(sent)

    def _leave(self, claimed: Claimed, future: Future[Delivery], delivery: Delivery) -> Delivery:
        now_ms = self.coordinator.journal.clock.now_ms()
        if future.cancel():
            return put_off(delivery, "no time left for it", now_ms)
        log.warning("%s: %s is not through in time", delivery.webhook_id, delivery.destination)

        def note(ended: Future[Delivery]) -> None:
            if ended.exception() is None and ended.result().status is DeliveryStatus.DELIVERED:
                self._note(claimed, ended.result())

        future.add_done_callback(note)
        return put_off(delivery, "not through in time", now_ms + 30_000)

    def _note(self, claimed: Claimed, sent: Delivery) -> None:
        try:
            self.coordinator.settle(claimed, [sent])
        except StoreUnavailable as error:
            log.error("entry %s: delivered to %s, but not noted: %s", claimed.entry.id, sent.destination, error)

    # A stored delivery that this process has taken

    def send_stored(self, lent: Lent) -> Delivery:
        """One POST, in the destination's own time."""
        delivery = replace(lent.delivery, server=self.server)
        if lent.payload is None:
            return self.give_up(delivery, "its payload is no longer stored")
        payload, traceparent = stored_event(lent.payload, lent.entry, delivery)
        return self._attempt(delivery, lent.entry, payload, traceparent=traceparent)

    def limit_s(self, name: str) -> float:
        """How long one stored attempt may take, with its wait for the rate."""
        if name not in self.destinations:
            return 0.0
        config = self.destinations[name].config
        return config.connect_timeout_s + config.read_timeout_s + (RATE_PATIENCE_S if config.rate else 0.0)

    # One attempt

    def _attempt(
        self, delivery: Delivery, entry: Entry, payload: Payload, ends_at: float | None = None, traceparent: str = ""
    ) -> Delivery:
        """The delivery after one attempt; nothing is written.

        ``ends_at``: when the provider's request ends. Until then, a failed POST is tried once more, unless the
        destination asked for a pause or refused this webhook. Without it: one POST, in the destination's time.
        """
        name, now_ms = delivery.destination, self.coordinator.journal.clock.now_ms
        if blocker := self.guard.lasting_blocker(name):
            return self._hold_back(delivery, blocker)
        patience_s = ends_at - time.monotonic() - SHORTEST_TRY_S if ends_at else RATE_PATIENCE_S
        if patience_s < 0:
            return put_off(delivery, "no time left for it", now_ms())
        if wait_s := self.guard.wait_s(name, patience_s):
            reason = "over its rate" if self.guard.breaker(name) == "closed" else Blocker.BREAKER_OPEN
            return put_off(delivery, f"{name}: {reason}", now_ms() + int(wait_s * 1000) + 1)
        max_attempts = self.destinations[name].config.max_attempts
        is_early = (delivery.next_try_ms or 0) > now_ms() + EARLY_MS
        is_extra = ends_at is None and (is_early or self.guard.breaker(name) != "closed")
        webhook = Webhook(delivery.webhook_id, payload, traceparent)
        attempts: list[Attempt] = []
        at_once = min(QUICK_TRIES, max_attempts - delivery.tries)
        while True:
            # A receiver may fail for one email only, and however often: it counts once.
            counts = not (delivery.tries or attempts or is_extra)
            attempt, result = self._post(name, webhook, ends_at, entry=entry.id, counts=counts)
            attempts.append(attempt)
            is_answer = not result.error or result.is_about_this_webhook or result.retry_after_s
            if ends_at is None or is_answer or len(attempts) >= at_once:
                break
            if ends_at - time.monotonic() <= QUICK_PAUSE_S + SHORTEST_TRY_S:
                break
            time.sleep(QUICK_PAUSE_S)
            if self.guard.wait_s(name):
                break
        ended_ms = now_ms()
        # No time passes while it is paused; an email that its provider sends again, or that a person replays, is new.
        is_new = ends_at is not None or delivery.generation > 0
        waits_since_ms = ended_ms if is_new else max(entry.created_ms, self.guard.pause_of(name).since_ms)
        patience = Patience(max_attempts, waits_since_ms, is_extra=is_extra)
        tried = after(delivery, attempts, result, patience, ended_ms)
        for status in (*[DeliveryStatus.WAITING] * (len(attempts) - 1), tried.status):  # all but the last one failed
            self.meter.count((1, DELIVERIES, name, status))
        return tried

    def _hold_back(self, delivery: Delivery, blocker: Blocker) -> Delivery:
        now_ms, reason = self.coordinator.journal.clock.now_ms(), f"{delivery.destination}: {blocker}"
        if blocker is Blocker.NO_DESTINATION:
            # Another process may know it already: files do not change everywhere at the same moment.
            missing_ms = delivery.missing_ms or now_ms
            if now_ms - missing_ms >= UNKNOWN_FOR_MS:
                return self.give_up(delivery, reason)
            delivery = replace(delivery, missing_ms=missing_ms)
        return put_off(delivery, reason, now_ms if blocker is Blocker.PAUSED else now_ms + ASK_AGAIN_MS)

    def give_up(self, delivery: Delivery, reason: str) -> Delivery:
        """Makes it a dead letter without an attempt."""
        self.meter.count((1, DELIVERIES, delivery.destination, DeliveryStatus.DEAD))
        return replace(delivery, status=DeliveryStatus.DEAD, next_try_ms=None, reason=reason)

    def _post(
        self, name: str, webhook: Webhook, ends_at: float | None, *, entry: str, counts: bool
    ) -> tuple[Attempt, PostResult]:
        """One POST, logged in one line."""
        at_ms, started = self.coordinator.journal.clock.now_ms(), time.monotonic()
        result = self.destinations[name].deliver(webhook, ends_at - started if ends_at else None)
        took_s = time.monotonic() - started
        self.meter.count((took_s, DELIVERY_S, name))
        values = {
            "entry": entry,
            "destination": name,
            "webhook_id": webhook.webhook_id,
            "ms": int(took_s * 1000),
            "status_code": result.status_code,
            **({"error": result.error} if result.error else {}),
        }
        level, outcome = (logging.WARNING, "failed: %(error)s") if result.error else (logging.INFO, "delivered")
        log.log(level, f"entry %(entry)s: to %(destination)s as %(webhook_id)s in %(ms)d ms, {outcome}", values)
        if not result.error or result.is_about_this_webhook:  # the destination works
            self.guard.succeeded(name)
        else:
            self.guard.failed(name, counts=counts)
        if result.status_code == GONE:  # nothing more is sent there until an operator resumes it
            pause = partial(self.guard.set_paused, name, True, reason=ANSWERED_GONE, by=BY_410)
            try_to(pause, f"destination {name}")
        return Attempt(at_ms, int(took_s * 1000), result.status_code, result.error), result


# What follows: pure functions of Delivery


@frozen
class Patience:
    """How often a delivery is tried, and since when it waits: after 76 hours, a failed attempt is its last.

    ``is_extra``: an attempt before its next try, or at a destination whose circuit breaker is open. If it fails, it
    counts as no try, so that an outage uses up none.
    """

    max_attempts: int
    waits_since_ms: int
    is_extra: bool = False


def delay_ms(tries: int, retry_after_s: int | None, jitter: Callable[[], float] = random.random) -> int:
    """How long to wait after that many attempts; at least as long as the destination asked for, up to an hour."""
    own_s = RETRY_DELAYS_S[min(tries, len(RETRY_DELAYS_S)) - 1]
    wanted_s = max(own_s, min(retry_after_s or 0, MOST_RETRY_AFTER_S))
    return int(wanted_s * 1000 * (1 + JITTER * jitter()))


def after(delivery: Delivery, attempts: list[Attempt], result: PostResult, patience: Patience, now_ms: int) -> Delivery:
    """The delivery after these POSTs, the last of which had this result: delivered, dead, or waiting for the next."""
    is_extra = patience.is_extra and bool(result.error)
    tries = delivery.tries + (0 if is_extra else len(attempts))
    kept = (*delivery.attempts, *attempts)[-ATTEMPTS_KEPT:]
    tried = partial(replace, delivery, tries=tries, attempts=kept, next_try_ms=None, missing_ms=None)
    if not result.error:
        return tried(status=DeliveryStatus.DELIVERED, ended_ms=now_ms, receiver_id=result.receiver_id, reason=None)
    is_too_old = now_ms - patience.waits_since_ms >= MOST_AGE_MS
    is_last = tries >= patience.max_attempts and not is_extra
    if (is_last or is_too_old) and result.status_code != GONE:  # 410 pauses the destination instead
        why = f"tried {tries} time{'s' * (tries > 1)}" if is_last else TOO_OLD
        return tried(status=DeliveryStatus.DEAD, ended_ms=now_ms, reason=f"{result.error}; {why}")
    next_try_ms = now_ms + delay_ms(max(tries, 1), result.retry_after_s)
    if is_extra and (delivery.next_try_ms or 0) > now_ms and not result.retry_after_s:
        next_try_ms = delivery.next_try_ms or 0
    return tried(status=DeliveryStatus.WAITING, reason=result.error, next_try_ms=next_try_ms)


def put_off(delivery: Delivery, reason: str, until_ms: int) -> Delivery:
    """It waits; this does not count as an attempt."""
    return replace(delivery, status=DeliveryStatus.WAITING, reason=reason, next_try_ms=until_ms)
