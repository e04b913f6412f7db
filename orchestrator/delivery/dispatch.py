"""From an item to its destinations: content gate, earlier delivery, lock, a turn at the destination, record."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future, wait
from dataclasses import dataclass, replace

from deduplication.claims import WEEK_MS, Claim, Claimed, Duplicate, Gate, InFlight, Kind, Name
from deduplication.content import content_name
from deduplication.errors import DeduplicationError
from deduplication.locks import lock_name
from deduplication.stores.base import Store
from orchestrator.delivery.courier import Budget, Courier, content_window_ms
from orchestrator.delivery.ledger.base import Ledger
from orchestrator.delivery.record import Delivery, DeliveryStatus
from orchestrator.delivery.schedule import delivered, put_off
from orchestrator.delivery.webhook import webhook_id
from orchestrator.item import Item
from orchestrator.leases import LeaseKeeper
from orchestrator.routing import Route

log = logging.getLogger(__name__)

GRACE_S = 1.0  # a delivery ends by itself at the end of its budget; this is for settling it
STORE_AWAY_PAUSE_MS = 5000
AFTER_THE_LEASE_MS = 500
HELD_WHILE_DELIVERED_MS = 20_000  # a delivery whose process died is due again after this


@dataclass(frozen=True)
class Sent:
    """``is_safe``: the provider may forget it: delivered, skipped (``reason``), dead with its payload, or stored."""

    delivery: Delivery
    is_safe: bool
    reason: Duplicate | None = None
    retry_after_s: int | None = None


@dataclass(frozen=True)
class Dispatcher:
    """``pools``: threads for each destination of its own, so that a slow one never holds up another.

    ``has_workers``: what a request could not deliver is taken on by the workers, so that the provider may forget it.
    """

    store: Store
    leases: LeaseKeeper
    ledger: Ledger
    courier: Courier
    pools: Mapping[str, Executor]
    new_token: Callable[[], str]
    has_workers: bool = False
    keeps_delivered_payloads: bool = False

    def deliveries_of(self, item: Item, route: Route) -> list[Delivery]:
        return [self._delivery(item, name, route) for name in route.destinations_for(item)]

    def _delivery(self, item: Item, destination: str, route: Route) -> Delivery:
        now_ms = self.courier.clock.now_ms()
        window_ms = content_window_ms(self.courier.places[destination].content_window_ms, item, route.content)
        content = content_name(destination, item.text, window_ms)
        delivery_id = webhook_id(item.key, item.fingerprint, destination)
        return Delivery(
            id=delivery_id,
            item=item.id,
            destination=destination,
            webhook_id=delivery_id,
            status=DeliveryStatus.WAITING,
            created_ms=now_ms,
            scheduled_ms=now_ms,
            content_hash=content.value if content else "",
            content_kept_ms=window_ms if content else 0,
            payload=item.payload,
        )

    def with_history(self, delivery: Delivery) -> Delivery:
        """The provider sends it again: its tries go on from where they were, and what is dead stays so."""
        known = self._recorded(delivery.id)
        if known is None or known.status is DeliveryStatus.DELIVERED:
            return delivery
        if known.status is DeliveryStatus.DEAD:
            return known
        return replace(delivery, created_ms=known.created_ms, tries=known.tries, attempts=known.attempts)

    # A provider's request waits for it

    def turn(self, delivery: Delivery, claim: Claim, budget: Budget | None) -> Sent:
        """One turn under a claim that holds the destination's names; they are settled, and the record is kept."""
        if delivery.status is DeliveryStatus.DEAD:
            self.leases.release(claim, 0)
            return Sent(delivery, is_safe=True)
        try:
            with self.leases.holding(claim):
                tried = self.courier.turn(delivery, budget)
        except BaseException:
            self.leases.release(claim, None)
            raise
        if tried.status is DeliveryStatus.DELIVERED:
            log.info("item %s: delivered to %s as %s", tried.item, tried.destination, tried.webhook_id)
            self.leases.commit(claim)
            return self._recorded_for(tried, budget)
        sent = self._recorded_for(tried, budget)
        is_dead = tried.status is DeliveryStatus.DEAD and sent.is_safe
        self.leases.release(claim, 0 if is_dead else self.retries_left(tried))
        return sent

    def send_to_each(self, deliveries: Sequence[Delivery], budget: Budget) -> list[Sent]:
        """All at once, each under its own claim: one that has it, or fails, does not matter to the others.

        One that is not through in time goes on by itself, and settles itself.
        """
        futures = [self.pools[each.destination].submit(self._send, each, budget) for each in deliveries]
        wait(futures, timeout=max(0.0, budget.left_s) + GRACE_S)
        return [_result(future, delivery) for future, delivery in zip(futures, deliveries, strict=True)]

    def _send(self, delivery: Delivery, budget: Budget) -> Sent:
        if delivery.status is DeliveryStatus.DEAD:
            return Sent(delivery, is_safe=True)
        claim = self._claim(delivery)
        try:
            verdict = self.store.claim(claim)
        except DeduplicationError as error:
            return self._by_its_record(delivery, error)
        match verdict:
            case Duplicate():
                sent = self._had_it_already(delivery, verdict)
                if sent.reason:  # skipped; what is delivered has its record from its delivery
                    self._save(sent.delivery)
                return sent
            case InFlight():
                log.info("item %s: %s is held by %s", delivery.item, delivery.destination, self.holder(claim))
                return Sent(delivery, is_safe=False, retry_after_s=-(-verdict.retry_after_ms // 1000))
            case Claimed():
                return self.turn(delivery, claim, budget)

    def _had_it_already(self, delivery: Delivery, verdict: Duplicate) -> Sent:
        log.info("item %s: %s had it already (%s)", delivery.item, delivery.destination, verdict.gate)
        if verdict.gate is not Gate.CONTENT or verdict.original == delivery.item:  # its own words: it is delivered
            return Sent(delivered(delivery, self.courier.clock.now_ms()), is_safe=True)
        reason = f"repeats {verdict.name} of {verdict.original}"
        skipped = replace(delivery, status=DeliveryStatus.SKIPPED, next_try_ms=None, reason=reason, payload=None)
        return Sent(skipped, is_safe=True, reason=verdict)

    def _by_its_record(self, delivery: Delivery, error: DeduplicationError) -> Sent:
        """The names cannot be asked, so the record is: it may know that the destination has it."""
        log.error("item %s: %s cannot be claimed: %s", delivery.item, delivery.destination, error)
        known = self._recorded(delivery.id)
        if known and is_recorded_as_delivered(known, delivery.scheduled_ms):
            log.info("item %s: %s has it, by its record", delivery.item, delivery.destination)
            return Sent(known, is_safe=True)
        return Sent(delivery, is_safe=False)

    def are_recorded_as_delivered(self, deliveries: Sequence[Delivery]) -> bool:
        """The same for all of them, where not even the item's own names can be asked."""
        known = [(self._recorded(each.id), each.scheduled_ms) for each in deliveries]
        return all(record is not None and is_recorded_as_delivered(record, at_ms) for record, at_ms in known)

    # A queue, the schedule or an operator asks for it

    def deliver_or_leave(self, delivery_id: str) -> None:
        """For those who have nobody to tell: whatever goes wrong, the ledger brings the delivery back."""
        try:
            self.deliver_stored(delivery_id)
        except DeduplicationError as error:
            log.error("delivery %s is tried again later: %s", delivery_id, error)
        except Exception:
            log.exception("delivery %s is tried again later", delivery_id)

    def deliver_stored(self, delivery_id: str, hold_ms: int = HELD_WHILE_DELIVERED_MS) -> Delivery | None:
        """One turn for a recorded delivery. Its record afterwards; None where there was nothing to do."""
        delivery = self.ledger.begin(delivery_id, hold_ms)
        if delivery is None:
            return None
        if delivery.payload is None:  # given back to its provider, who sends it again: there is nothing to send here
            self._save(replace(delivery, status=DeliveryStatus.WAITING, next_try_ms=None))
            return None
        claim = self._claim(delivery)
        try:
            verdict = self.store.claim(claim)
        except DeduplicationError as error:
            return self._put_off(self._by_its_record(delivery, error).delivery, str(error), STORE_AWAY_PAUSE_MS)
        match verdict:
            case Duplicate():
                sent = self._had_it_already(delivery, verdict)
                self._save(self._without_payload(sent.delivery))
                return sent.delivery
            case InFlight(gate=Gate.CONTENT):
                return self._put_off(delivery, "the same content is on its way", verdict.retry_after_ms)
            case InFlight():
                log.info("delivery %s is under way elsewhere, held by %s", delivery.id, self.holder(claim))
                self.ledger.begin(delivery_id, verdict.retry_after_ms + AFTER_THE_LEASE_MS)  # its holder may be dead
                return None
            case Claimed():
                return self.turn(delivery, claim, budget=None).delivery

    def _put_off(self, delivery: Delivery, reason: str, wait_ms: int) -> Delivery:
        if not delivery.status.is_open:
            return delivery
        waiting = put_off(delivery, reason, self.courier.clock.now_ms() + wait_ms)
        self._save(waiting)
        return waiting

    # Names and records

    def names_at(self, delivery: Delivery) -> tuple[Name, ...]:
        """What must be held to send it: its content, its delivery record and the lock."""
        content = Name(Kind.CONTENT, delivery.destination, delivery.content_hash, delivery.content_kept_ms)
        lock = lock_name(delivery.item, delivery.destination)
        return (*([content] if delivery.content_hash else []), delivery_name(delivery), lock)

    def _claim(self, delivery: Delivery) -> Claim:
        return Claim(delivery.item, self.names_at(delivery), "", self.new_token(), self.leases.lease_ms)

    def holder(self, claim: Claim) -> str:
        """For the log; that it cannot be said is no reason to fail."""
        try:
            records = list(self.store.read([name for name in claim.names if name.kind is Kind.LOCK]))
        except DeduplicationError:
            return "another"
        return next((record.item or "another" for record in records), "another")

    def retries_left(self, delivery: Delivery) -> int:
        """At least one: what has none left is dead."""
        place = self.courier.places.get(delivery.destination)
        return max(1, place.max_attempts - delivery.tries) if place else 1

    def is_enabled(self, destination: str) -> bool:
        return self.courier.places[destination].is_enabled

    def _recorded_for(self, delivery: Delivery, budget: Budget | None) -> Sent:
        wait_s = self._seconds_until(delivery)
        is_back = budget is not None and self._is_given_back(delivery)
        kept = replace(delivery, next_try_ms=None, payload=None) if is_back else self._without_payload(delivery)
        is_kept = self._save(kept)
        is_settled = delivery.status in (DeliveryStatus.DELIVERED, DeliveryStatus.SKIPPED)
        return Sent(kept, is_settled or (is_kept and not is_back), retry_after_s=wait_s)

    def _is_given_back(self, delivery: Delivery) -> bool:
        """The provider keeps it and sends it again: the record needs no payload, and nobody here tries it again."""
        return delivery.status.is_open and not self.has_workers and self.is_enabled(delivery.destination)

    def _without_payload(self, delivery: Delivery) -> Delivery:
        is_done = delivery.status is DeliveryStatus.DELIVERED and not self.keeps_delivered_payloads
        return replace(delivery, payload=None) if is_done else delivery

    def _save(self, delivery: Delivery) -> bool:
        try:
            self.ledger.save(delivery)
        except DeduplicationError as error:
            log.error("delivery %s (%s) is not recorded: %s", delivery.id, delivery.status, error)
            return False
        return True

    def _recorded(self, delivery_id: str) -> Delivery | None:
        try:
            return self.ledger.get(delivery_id)
        except DeduplicationError as error:
            log.error("the record of delivery %s cannot be read: %s", delivery_id, error)
            return None

    def _seconds_until(self, delivery: Delivery) -> int | None:
        if delivery.next_try_ms is None:
            return None
        return max(1, -(-(delivery.next_try_ms - self.courier.clock.now_ms()) // 1000))


def delivery_name(delivery: Delivery) -> Name:
    return Name(Kind.DELIVERY, delivery.destination, delivery.id, WEEK_MS)


def is_recorded_as_delivered(known: Delivery, scheduled_ms: int) -> bool:
    """Any of: the record says so; it was delivered after it was scheduled; the receiver gave it an id."""
    is_later = known.delivered_ms is not None and known.delivered_ms >= scheduled_ms
    return known.status is DeliveryStatus.DELIVERED or is_later or known.receiver_id is not None


def _result(future: Future[Sent], delivery: Delivery) -> Sent:
    if future.done():
        return future.result()
    log.warning("item %s: %s is not through in time", delivery.item, delivery.destination)
    return Sent(delivery, is_safe=False)
