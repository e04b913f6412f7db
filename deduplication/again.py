"""What operators can ask for: send an email again, release a skipped one, mark names or forget them."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

from msgspec.structs import replace

from deduplication.journal.coordinator import Coordinator
from deduplication.journal.entry import OPEN, Delivery, DeliveryStatus, Entry, encode, without_local_fields
from deduplication.journal.registry import Commit
from deduplication.journal.rules import same_items
from deduplication.journal.sqlite import Step
from deduplication.names import Name

log = logging.getLogger(__name__)


class Refusal(StrEnum):
    """Why an entry is not replayed or released."""

    UNKNOWN = "unknown"
    ALREADY_DELIVERED = "already_delivered"
    ALREADY_RELEASED = "already_released"
    NOT_SUPPRESSED = "not_suppressed"
    UNDER_WAY = "under_way"
    NO_PAYLOAD = "no_payload"


def replay(
    coordinator: Coordinator,
    entry_id: str,
    destination: str | None,
    force: bool = False,
    webhook_id: str = "",
    *,
    dry_run: bool = False,
) -> Refusal | None:
    """Queues an entry for sending again: to one destination or, without one, to all where it was skipped.

    If another machine has its payload, that machine is asked to send it (rule 11). Returns None, or why the entry is
    not sent. A new ``webhook_id`` makes the receiver treat it as another email.
    """
    registry = coordinator.registry
    with coordinator.journal.reading() as step:
        entry, payload = step.read(entry_id), step.payload(entry_id)
    delivery = entry.delivery_to(destination) if entry and destination else None
    if registry and entry and delivery and delivery.status is DeliveryStatus.WAITING:
        is_due = dry_run or make_due(coordinator, entry, delivery.destination, renews=True)
        return None if is_due else Refusal.UNDER_WAY
    if registry and delivery and payload is None:  # Redis has payloads of dead letters that other machines stored
        payload = registry.ask(lambda client, prefix: client.get(f"{prefix}payload:{delivery.webhook_id}"))
    with coordinator.journal.step() as step:
        entry = step.read(entry_id)
        if entry is None:
            return Refusal.UNKNOWN
        if destination is None:
            after = _release_skipped(step, entry, force)
        else:
            after = _replay_one(step, entry, destination, force, webhook_id)
        if isinstance(after, Refusal):
            return after
        if payload is not None and not dry_run:
            step.put(after, entry)
    is_ours = registry is None or entry.machine == coordinator.journal.machine
    if payload is None and (is_ours or entry.is_evicted):
        return Refusal.NO_PAYLOAD
    if dry_run:
        return None
    if registry and payload is None:
        action = [entry_id, destination, force, webhook_id]
        registry.announce(["Q", coordinator.journal.machine, secrets.token_hex(8), entry.machine, action])
    else:
        coordinator.publish(entry_id, payload)
    return None


def release(coordinator: Coordinator, entry_id: str, *, force: bool = False, dry_run: bool = False) -> Refusal | None:
    return replay(coordinator, entry_id, None, force, dry_run=dry_run)


def execute(coordinator: Coordinator, action: list[Any]) -> None:
    """Replays an entry at the request of another machine."""
    refusal = replay(coordinator, *action)
    log.info("entry %s: another machine asked to send it again: %s", action[0], refusal or "queued")


def _replay_one(step: Step, entry: Entry, destination: str, force: bool, webhook_id: str) -> Entry | Refusal:
    """Ignores known names, but does not repeat a delivery without ``force`` (rule 30)."""
    delivery = entry.delivery_to(destination)
    if delivery is None:
        return Refusal.UNKNOWN
    if delivery.status is DeliveryStatus.WAITING and not force:
        after = replace(delivery, next_try_ms=step.now_ms, tries=0)
    elif delivery.status in OPEN:
        return Refusal.UNDER_WAY
    elif delivery.status in (DeliveryStatus.DELIVERED, DeliveryStatus.SKIPPED) and not force:
        return Refusal.ALREADY_DELIVERED
    else:
        after = _renew(delivery, step.now_ms)
    return entry.with_delivery(replace(after, webhook_id=webhook_id or after.webhook_id))


def _release_skipped(step: Step, entry: Entry, force: bool) -> Entry | Refusal:
    """Works once for each entry, and neither checks nor takes shared names (rule 30)."""
    skipped = [delivery for delivery in entry.deliveries if delivery.status is DeliveryStatus.SKIPPED]
    if not skipped:
        return Refusal.NOT_SUPPRESSED if entry.released_ms is None else Refusal.ALREADY_RELEASED
    same = same_items(entry.own, entry.fingerprint, step.known(entry.own, entry.fingerprint))
    others = [delivery for other in same if other.id != entry.id for delivery in other.deliveries]
    delivered = {delivery.destination for delivery in others if delivery.status is DeliveryStatus.DELIVERED}
    released = [delivery for delivery in skipped if force or delivery.destination not in delivered]
    if not released:
        return Refusal.ALREADY_DELIVERED
    for delivery in released:
        entry = entry.with_delivery(replace(_renew(delivery, step.now_ms), content=None))
    return replace(entry, released_ms=step.now_ms, shared=())


def _renew(delivery: Delivery, now_ms: int) -> Delivery:
    renewed = replace(delivery, status=DeliveryStatus.WAITING, generation=delivery.generation + 1, tries=0)
    return replace(renewed, next_try_ms=now_ms, ended_ms=None, reason=None, waits_for=None)


def reopen(coordinator: Coordinator, entry_id: str, destination: str) -> bool:
    """Forgets that one destination received an entry: the next copy of the email is sent there. Returns False while the
    entry is open."""
    with coordinator.journal.step() as step:
        entry = step.read(entry_id)
        delivery = entry.delivery_to(destination) if entry else None
        if entry is None or delivery is None or entry.is_open:
            return False
        returned = replace(delivery, status=DeliveryStatus.RETURNED, generation=delivery.generation + 1)
        after = entry.with_delivery(replace(returned, ended_ms=None, content=None))
        step.put(after, entry)
    coordinator.publish(entry_id)
    return True


def mark(coordinator: Coordinator, names: Sequence[Name]) -> None:
    """Marks at most 1,000 names as done on the whole fleet, without an entry. Names that are done already do not
    change."""
    now_ms, registry = coordinator.journal.clock.now_ms(), coordinator.registry
    ends = [(name.label, None if name.kept_ms is None else now_ms + name.kept_ms) for name in names]
    if registry:
        registry.announce(["M", coordinator.journal.machine, ends], names)
    with coordinator.journal.step() as step:
        for label, until_ms in ends:
            step.put_foreign_mark(label, until_ms)


def forget(coordinator: Coordinator, names: Mapping[str, Name]) -> tuple[int, frozenset[str]]:
    """Forgets names on the whole fleet (rule 21); ``names`` is keyed by their references. Returns the number of this
    reset, and the references that were kept because a delivery is still open."""
    registry, kept = coordinator.registry, frozenset[str]()
    if registry:
        number, kept = registry.reset(names)
    else:
        number = coordinator.journal.clock.now_ms() * 1000
    with coordinator.journal.step() as step:
        if registry is None:
            kept = frozenset(label for label in names if open_entries(step, label))
        for label in names:
            if label not in kept:
                step.reset(label, number)
    return number, kept


def open_entries(step: Step, label: str) -> list[str]:
    """Entries under a name with a delivery that is in progress or waits."""
    rows = step.query(
        "SELECT DISTINCT e.id FROM names n JOIN deliveries d ON d.seq = n.seq JOIN entries e ON e.seq = n.seq WHERE"
        " n.reference = ? AND (d.status = 'waiting' OR (d.status = 'claimed' AND d.lease_until_ms > ?))",
        (label, step.steady_ms),
    )
    return [id_ for (id_,) in rows]


def make_due(coordinator: Coordinator, entry: Entry, destination: str, *, renews: bool = False) -> bool:
    """Makes a stored delivery the next one to be handed out; ``renews`` also resets its count of attempts. False if a
    process is sending it, or if it is no longer stored."""
    registry, delivery = coordinator.registry, entry.delivery_to(destination)
    if delivery is None:
        return False
    if registry is None:
        with coordinator.journal.step() as step:
            return step.make_due(entry.id, destination)
    key = f"delivery:{delivery.webhook_id}"

    def compose(commit: Commit) -> bool:
        is_free = commit.ask("owner", key)
        if is_free and renews:
            now_ms = coordinator.journal.clock.now_ms()
            renewed = entry.with_delivery(replace(delivery, tries=0, next_try_ms=now_ms))
            commit.write("HSET", key, "data", encode(without_local_fields(renewed)))
        if is_free:
            commit.write("ZADD", f"due:{destination}", 0, delivery.webhook_id)
        return is_free

    return registry.agree(compose)[0]
