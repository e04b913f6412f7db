"""What an operator asks for: send an email again, release one that was skipped, forget that a destination has it."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from deduplication.journal.coordinator import Coordinator
from deduplication.journal.entry import Delivery, DeliveryStatus, Entry, changed
from deduplication.journal.registry import Commit, Registry
from deduplication.journal.rules import same_items
from deduplication.journal.sqlite import Step

log = logging.getLogger(__name__)


class Refusal(StrEnum):
    """Why an entry is not replayed or released."""

    UNKNOWN = "unknown"
    ALREADY_DELIVERED = "already_delivered"
    ALREADY_RELEASED = "already_released"
    NOT_SUPPRESSED = "not_suppressed"
    UNDER_WAY = "under_way"
    NO_PAYLOAD = "no_payload"


def _replay(entry: Entry, destination: str, *, force: bool, now_ms: int) -> Entry | Refusal:
    """Send it to one of its destinations again. It passes identity, but not "this destination has it" (30)."""
    delivery = entry.delivery_to(destination)
    if delivery is None:
        return Refusal.UNKNOWN
    if delivery.status is DeliveryStatus.WAITING and not force:
        return entry.with_delivery(changed(delivery, next_try_ms=now_ms, tries=0))
    if delivery.status.is_open:
        return Refusal.UNDER_WAY
    if delivery.status in (DeliveryStatus.DELIVERED, DeliveryStatus.SKIPPED) and not force:
        return Refusal.ALREADY_DELIVERED
    return entry.with_delivery(_once_more(delivery, now_ms))


def _release(entry: Entry, same: Iterable[Entry], *, force: bool, now_ms: int) -> Entry | Refusal:
    """Send what was skipped, once; it asks for and takes no shared names (30). ``same``: entries of the same email."""
    delivered = {
        each.destination
        for other in same
        for each in other.deliveries
        if other.id != entry.id and each.status is DeliveryStatus.DELIVERED
    }
    skipped = [each for each in entry.deliveries if each.status is DeliveryStatus.SKIPPED]
    if entry.released_ms is not None and not skipped:
        return Refusal.ALREADY_RELEASED
    if not skipped:
        return Refusal.NOT_SUPPRESSED
    going = [each for each in skipped if force or each.destination not in delivered]
    if not going:
        return Refusal.ALREADY_DELIVERED
    for each in going:
        entry = entry.with_delivery(changed(_once_more(each, now_ms), content=None))
    return changed(entry, released_ms=now_ms, shared=())


def _once_more(delivery: Delivery, now_ms: int) -> Delivery:
    return changed(
        delivery,
        status=DeliveryStatus.WAITING,
        generation=delivery.generation + 1,
        tries=0,
        next_try_ms=now_ms,
        ended_ms=None,
        reason=None,
        waits_for=None,
    )


@dataclass(frozen=True)
class Again:
    """Send an entry once more: to one destination, or wherever it was skipped."""

    entry: str
    destination: str | None
    force: bool = False
    webhook_id: str = ""

    def decide(self, step: Step, entry: Entry) -> Entry | Refusal:
        if self.destination is None:
            same = same_items(entry.own, entry.fingerprint, step.known(entry.own, entry.fingerprint))
            return _release(entry, same, force=self.force, now_ms=step.now_ms)
        after = _replay(entry, self.destination, force=self.force, now_ms=step.now_ms)
        delivery = after.delivery_to(self.destination) if isinstance(after, Entry) and self.webhook_id else None
        if isinstance(after, Refusal) or delivery is None:
            return after
        return after.with_delivery(changed(delivery, webhook_id=self.webhook_id))


def replay(
    coordinator: Coordinator,
    entry_id: str,
    destination: str,
    *,
    force: bool = False,
    webhook_id: str = "",
    dry_run: bool = False,
) -> Refusal | None:
    """None: it waits to be sent, or the machine that has its payload was asked to send it (rule 11).
    ``webhook_id``: a new one, by which the receiver takes it for another email."""
    return _send_again(coordinator, Again(entry_id, destination, force, webhook_id), dry_run)


def release(coordinator: Coordinator, entry_id: str, *, force: bool = False, dry_run: bool = False) -> Refusal | None:
    return _send_again(coordinator, Again(entry_id, None, force), dry_run)


def _send_again(coordinator: Coordinator, again: Again, dry_run: bool = False) -> Refusal | None:
    registry, entry_id = coordinator.registry, again.entry
    with coordinator.journal.reading() as step:
        known, payload = step.read(entry_id), step.payload(entry_id)
    delivery = known.delivery_to(again.destination) if known and again.destination else None
    if registry and delivery and delivery.status is DeliveryStatus.WAITING:
        is_due = dry_run or coordinator.redis.ask(lambda: _make_due(registry, delivery))
        return None if is_due else Refusal.UNDER_WAY
    if registry and delivery and payload is None:  # Redis may have it, of a dead letter that another machine stored
        payload = coordinator.redis.ask(
            lambda: registry.ask(lambda c, prefix: c.get(f"{prefix}payload:{delivery.webhook_id}"))
        )
    with coordinator.journal.step() as step:
        entry = step.read(entry_id)
        after = again.decide(step, entry) if entry else Refusal.UNKNOWN
        if isinstance(after, Refusal) or entry is None:
            return after if isinstance(after, Refusal) else None
        if payload is not None and not dry_run:
            step.put(after, entry, is_news=registry is None)
    is_elsewhere = registry is not None and payload is None and entry.machine != coordinator.journal.machine
    if dry_run or (payload is None and not is_elsewhere):
        return Refusal.NO_PAYLOAD if payload is None and not is_elsewhere else None
    if registry and is_elsewhere:
        event = ["Q", coordinator.journal.machine, secrets.token_hex(8), entry.machine, list(again.__dict__.values())]
        coordinator.redis.ask(lambda: registry.announce(event))
    else:
        coordinator.publish(entry_id, payload)
    return None


def reopen(coordinator: Coordinator, entry_id: str, destination: str) -> bool:
    """Forgets that one destination received it: if it comes again, it is sent there. False while it is open."""
    with coordinator.journal.step() as step:
        entry = step.read(entry_id)
        delivery = entry.delivery_to(destination) if entry else None
        if entry is None or delivery is None or entry.is_open:
            return False
        again = {"status": DeliveryStatus.RETURNED, "generation": delivery.generation + 1}
        after = entry.with_delivery(changed(delivery, **again, ended_ms=None, content=None))
        step.put(after, entry, is_news=coordinator.registry is None)
    coordinator.publish(entry_id)
    return True


def execute(coordinator: Coordinator, action: list[Any]) -> None:
    """What another machine has asked this one for."""
    refusal = _send_again(coordinator, Again(*action))
    log.info("entry %s: another machine asked to send it again: %s", action[0], refusal or "it waits")


def _make_due(registry: Registry, delivery: Delivery) -> bool:
    """A stored delivery becomes due now. False if it is lent, or no longer stored."""

    def compose(commit: Commit) -> bool:
        is_free = commit.ask("owner", f"delivery:{delivery.webhook_id}")
        if is_free:
            commit.write("ZADD", f"due:{delivery.destination}", 0, delivery.webhook_id)
        return is_free

    return registry.agree(compose)[0]
