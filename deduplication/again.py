"""What operators can ask for: send an email again, release a skipped one, mark names or forget them."""

import secrets
from collections.abc import Mapping, Sequence
from enum import StrEnum

from msgspec.structs import replace

from deduplication.journal.coordinator import Coordinator
from deduplication.journal.entry import Delivery, DeliveryStatus, Entry, encode, without_local_fields
from deduplication.journal.registry import Commit
from deduplication.journal.rules import same_items
from deduplication.journal.sqlite import Step
from deduplication.names import Name


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
    destination: str | None = None,
    force: bool = False,
    webhook_id: str = "",
    *,
    dry_run: bool = False,
) -> Refusal | None:
    """Queues an entry for sending again: to one destination or, without one, to all where it was skipped (a release).

    If another machine has its payload, that machine is asked to send it (rule 11). Returns None, or why the entry is
    not sent. A new ``webhook_id`` makes the receiver treat it as another email.
    """
    registry, journal = coordinator.registry, coordinator.journal
    with journal.reading() as step:
        entry, payload = step.read(entry_id), step.payload(entry_id)
    delivery = entry.delivery_to(destination) if entry and destination else None
    if registry and entry and delivery and delivery.status is DeliveryStatus.WAITING:
        is_due = dry_run or make_due(coordinator, entry, delivery, renews=True)
        return None if is_due else Refusal.UNDER_WAY
    if registry and delivery and payload is None:  # Redis has payloads of dead letters that other machines stored
        payload = registry.ask(lambda client, prefix: client.get(f"{prefix}payload:{delivery.webhook_id}"))
    with journal.step() as step:
        entry = step.read(entry_id)
        if entry is None:
            return Refusal.UNKNOWN
        after = _renew(step, entry, destination, force, webhook_id)
        if isinstance(after, Refusal):
            return after
        if payload is None and (registry is None or entry.machine == journal.machine or entry.is_evicted):
            return Refusal.NO_PAYLOAD
        if payload is not None and not dry_run:
            step.put(after, entry)
    if payload is not None and not dry_run:
        coordinator.publish(entry_id, payload)
    elif registry and not dry_run:
        action = [entry_id, destination, force, webhook_id]
        registry.announce(["Q", journal.machine, secrets.token_hex(8), entry.machine, action])
    return None


def _renew(step: Step, entry: Entry, destination: str | None, force: bool, webhook_id: str) -> Entry | Refusal:
    """The entry with deliveries to make again. Without ``force``, no destination gets the email twice. A release works
    once, and neither checks nor takes shared names (rule 30)."""
    is_release = destination is None
    skipped = entry.deliveries_with(DeliveryStatus.SKIPPED)
    chosen = skipped if is_release else [found for found in entry.deliveries if found.destination == destination]
    if not chosen and is_release:
        return Refusal.NOT_SUPPRESSED if entry.released_ms is None else Refusal.ALREADY_RELEASED
    if not chosen:
        return Refusal.UNKNOWN
    if any(taken.status is DeliveryStatus.CLAIMED or taken.lease_until_ms > step.steady_ms for taken in chosen):
        return Refusal.UNDER_WAY
    if not force:
        copies = (entry, *same_items(entry.own, entry.fingerprint, step.known(entry.own, entry.fingerprint)))
        had = [made.destination for copy in copies for made in copy.deliveries_with(DeliveryStatus.DELIVERED)]
        had += [delivery.destination for delivery in skipped if not is_release]
        chosen = [delivery for delivery in chosen if delivery.destination not in had]
    if not chosen:
        return Refusal.ALREADY_DELIVERED
    fresh = {"status": DeliveryStatus.WAITING, "tries": 0, "next_try_ms": step.now_ms}
    for delivery in chosen:
        waits_for = None if force or delivery.status is not DeliveryStatus.WAITING else delivery.waits_for
        ended = {"ended_ms": None, "reason": None, "waits_for": waits_for}
        renewed = replace(delivery, generation=delivery.generation + 1, **fresh, **ended)
        content = None if is_release else delivery.content
        entry = entry.with_delivery(replace(renewed, webhook_id=webhook_id or delivery.webhook_id, content=content))
    if not is_release:
        return entry
    return replace(entry, released_ms=step.now_ms, shared=entry.shared if entry.is_delivered_somewhere else ())


def reopen(coordinator: Coordinator, entry_id: str, destination: str) -> bool:
    """Forgets that one destination received an entry: the next copy of the email is sent there. Returns False while the
    entry is open."""
    with coordinator.journal.step() as step:
        entry = step.read(entry_id)
        delivery = entry.delivery_to(destination) if entry else None
        if entry is None or delivery is None or entry.is_open:
            return False
        changes = {"status": DeliveryStatus.RETURNED, "ended_ms": None, "content": None}
        after = entry.with_delivery(replace(delivery, generation=delivery.generation + 1, **changes))
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


def forget(coordinator: Coordinator, names: Mapping[str, Name], *, dry_run: bool = False) -> dict[str, list[str]]:
    """Forgets names on the whole fleet (rule 21); ``names`` is keyed by their references. Returns the references that
    are kept because a delivery is still open, each with the ids of such entries in this journal."""
    registry = coordinator.registry
    if registry and not dry_run:
        number, kept = registry.reset(names)
    under = "seq IN (SELECT seq FROM names WHERE reference = ?)"
    with coordinator.journal.step() as step:
        rows = {label: step.read_rows(under, (label,)) for label in names}
        busy = {label: [entry.id for _, entry in rows[label] if entry.is_busy(step.steady_ms)] for label in names}
        if registry is None or dry_run:
            number, kept = step.now_ms * 1000, frozenset(label for label in names if busy[label])
        for label in () if dry_run else names.keys() - kept:
            step.reset(label, number)
    return {label: busy[label] for label in kept}


def make_due(coordinator: Coordinator, entry: Entry, delivery: Delivery, *, renews: bool = False) -> bool:
    """Makes a stored delivery the next one to be handed out; ``renews``: Redis counts its attempts from the start.
    False if a process is sending it, or if it is no longer stored."""
    registry = coordinator.registry
    if registry is None:
        with coordinator.journal.step() as step:
            return step.make_due(entry.id, delivery.destination)
    renewed = entry.with_delivery(replace(delivery, tries=0, next_try_ms=coordinator.journal.clock.now_ms()))

    def compose(commit: Commit) -> bool:
        is_free = commit.ask("owner", f"delivery:{delivery.webhook_id}")
        if is_free and renews:
            commit.write("HSET", f"delivery:{delivery.webhook_id}", "data", encode(without_local_fields(renewed)))
        if is_free:
            commit.write("ZADD", f"due:{delivery.destination}", 0, delivery.webhook_id)
        return is_free

    return registry.agree(compose)[0]
