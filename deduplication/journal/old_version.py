"""What the version before the journal kept, and the entries that become of it: pure. upgrade.py reads and writes.

That version had a record for each name and fingerprint, and apart from them a record for each delivery. The record of
an item's first name lists the labels of all its others: that is the thread by which an item is put together again.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from deduplication.claims import WEEK_MS, Kind, Name
from deduplication.journal.entry import About, Attempt, Delivery, DeliveryStatus, Entry, State, Stop
from deduplication.journal.sqlite import Told

LONGEST_LEASE_MS = 60_000  # whoever held it is stopped by now: nobody waits for it longer than that
SHARED_KINDS = (Kind.SUBJECT_GROUP, Kind.MEDIA)
OWN_KINDS = (Kind.EMAIL_ID, Kind.POST)


@dataclass(frozen=True)
class Record:
    """Of one name and one fingerprint. ``by`` and ``original``: it was stopped by that name, of that item.

    ``is_told``: Redis knew it; always False where there was no Redis.
    """

    name: Name
    fingerprint: str
    state: State
    owner: str = ""
    item: str = ""
    fence: int = 0
    lease_until_ms: int = 0
    retries_left: int | None = None
    first_seen_ms: int = 0
    by: str | None = None
    original: str | None = None
    original_seen_ms: int | None = None
    siblings: tuple[str, ...] = ()
    expires_ms: int | None = None
    is_told: bool = False

    def is_over(self, now_ms: int) -> bool:
        return self.expires_ms is not None and self.expires_ms <= now_ms

    def named(self, now_ms: int) -> Name:
        """Its name, kept for what is left of its time."""
        if self.state is not State.DONE:
            return replace(self.name, kept_ms=None if self.name.kind is Kind.EMAIL_ID else WEEK_MS)
        return replace(self.name, kept_ms=None if self.expires_ms is None else max(1, self.expires_ms - now_ms))


@dataclass(frozen=True)
class Kept:
    """A record of a delivery. ``has_payload`` False and still open: it was given back to its provider."""

    id: str
    item: str
    delivery: Delivery
    created_ms: int
    has_payload: bool
    is_told: bool = False

    @property
    def last_ms(self) -> int:
        return max([self.created_ms, self.delivery.delivered_ms or 0, *(each.at_ms for each in self.delivery.attempts)])


@dataclass(frozen=True)
class TakenOver:
    """``entry`` with its lease counted from now; ``payload_of``: the delivery whose payload it has."""

    entry: Entry
    payload_of: str | None = None
    told: Told = Told.NO


class OldMemory(Protocol):
    def pages_of_firsts(self) -> Iterator[list[Record]]:
        """The records that list siblings; of those that are done and older than a week, only what may matter still."""
        ...

    def records(self, names: Iterable[Name]) -> dict[Name, list[Record]]:
        """All that still counts."""
        ...

    def kept(self, ids: Iterable[str]) -> dict[str, Kept]: ...
    def left_over(self, reached: set[str]) -> Iterator[Kept]:
        """Deliveries whose item has no names any more: it was reset while they waited."""
        ...


def read_kept(record: str, status: str, next_try_ms: int | None, *, has_payload: bool, is_told: bool = False) -> Kept:
    """Status and next try changed more often than the rest, so they are not taken from the record itself."""
    written: dict[str, Any] = json.loads(record)
    words = written.get("content_hash")
    content = Name(Kind.CONTENT, written["destination"], words, written["content_kept_ms"]) if words else None
    delivery = Delivery(
        destination=written["destination"],
        webhook_id=written["webhook_id"],
        status=DeliveryStatus(status),
        tries=written["tries"],
        next_try_ms=next_try_ms,
        delivered_ms=written["delivered_ms"],
        receiver_id=written["receiver_id"],
        reason=written["reason"],
        content=content,
        attempts=tuple(Attempt(**attempt) for attempt in written["attempts"]),
    )
    return Kept(written["id"], written["item"], delivery, written["created_ms"], has_payload, is_told)


def take_over(old: OldMemory, now_ms: int, *, is_trial: bool = False) -> Iterator[TakenOver]:
    """Every entry that the old records make. Those that were stopped come last, when their originals are known."""
    holders: dict[str, tuple[str, str]] = {}
    stopped: list[tuple[Record, TakenOver]] = []
    reached: set[str] = set()
    for page in old.pages_of_firsts():
        names = {name for first in page for name in _names_of(first)}
        records = old.records(names)
        kept = old.kept(name.value for name in names if name.kind is Kind.DELIVERY)
        reached.update(kept)
        for first in page:
            taken = _entry_of(first, records, kept, now_ms, is_trial)
            if first.by:
                stopped.append((first, taken))
            elif _is_worth_an_entry(taken.entry, now_ms):
                holders.update({name.label: (taken.entry.id, first.item) for name in _held(taken.entry)})
                yield taken
    for first, taken in stopped:
        if first.first_seen_ms > now_ms - WEEK_MS and first.by:
            entry_id, item = holders.get(first.by, ("", None))
            original = entry_id if item == first.original else first.original
            stop = Stop(Name.from_label(first.by), original, first.original_seen_ms)
            yield replace(taken, entry=replace(taken.entry, stop=stop, answer=f"skipped_{stop.gate}"))
    for each in old.left_over(reached):
        yield _entry_without_names(each, now_ms, is_trial)


def _names_of(first: Record) -> list[Name]:
    return [Name.from_label(label) for label in first.siblings]


def _held(entry: Entry) -> tuple[Name, ...]:
    had = DeliveryStatus.DELIVERED
    return (*entry.shared, *(each.content for each in entry.deliveries if each.content and each.status is had))


def _is_worth_an_entry(entry: Entry, now_ms: int) -> bool:
    """Older than a week, what was settled is known by its marks; a shared name goes on telling whose it is."""
    is_kept = any(each.status.is_open or each.status is DeliveryStatus.DEAD for each in entry.deliveries)
    is_young = entry.created_ms > now_ms - WEEK_MS
    return is_young or is_kept or entry.state is not State.DONE or bool(entry.shared)


def _entry_of(
    first: Record, records: Mapping[Name, Sequence[Record]], kept: Mapping[str, Kept], now_ms: int, is_trial: bool
) -> TakenOver:
    mine = [record for name in _names_of(first) for record in records.get(name, ()) if record.item == first.item]
    own = [each for each in mine if each.name.is_own and each.fingerprint == first.fingerprint]
    shared = [each for each in mine if each.name.kind in SHARED_KINDS and first.owner and each.owner == first.owner]
    ids = [name for name in _names_of(first) if name.kind is Kind.DELIVERY]
    known = [kept[name.value] for name in ids if name.value in kept]
    at_destinations = [each for name in ids if (each := _delivery_of(name, mine, kept, now_ms))]
    state, deliveries, payload_of = _as_it_stands(first, at_destinations, known, now_ms)
    lease_ms = min(LONGEST_LEASE_MS, first.lease_until_ms - now_ms) if state is State.PENDING else 0
    entry = Entry(
        id=_id_of(min(name.value for name in ids), is_trial=is_trial)
        if ids
        else _id_of(first.item, first.fingerprint, is_trial=is_trial),
        own=tuple(each.named(now_ms) for each in own),
        shared=tuple(each.named(now_ms) for each in shared),
        fingerprint=first.fingerprint,
        state=state,
        owner="" if state is State.FREE else first.owner,
        fence=first.fence,
        lease_until_ms=lease_ms,
        created_ms=first.first_seen_ms,
        about=About(item=first.item),
        deliveries=deliveries,
        retries_left=first.retries_left,
        answer=_answer(deliveries) if state is State.DONE else "",
        settled_ms=max([first.first_seen_ms, *(each.last_ms for each in known)]) if state is State.DONE else None,
        is_trial=is_trial,
    )
    return TakenOver(entry, payload_of, _told(own, known))


def _told(own: Sequence[Record], known: Sequence[Kept]) -> Told:
    """What Redis had to deliver is not delivered from here, but told it once more: it may have lost it since."""
    if any(each.is_told and each.delivery.status.is_open for each in known):
        return Told.HANDED_OVER
    if not (all(each.is_told for each in own) and all(each.is_told for each in known)):
        return Told.NO
    return Told.HANDED_OVER if known else Told.YES


def _delivery_of(name: Name, mine: Sequence[Record], kept: Mapping[str, Kept], now_ms: int) -> Delivery | None:
    """By its record; the name says that the destination has it, also where the record says less or is gone."""
    has_it = next((each for each in mine if each.name == name and each.state is State.DONE), None)
    known = kept[name.value].delivery if name.value in kept else None
    if known is None and has_it is None:
        return None
    delivery = known or Delivery(name.scope, webhook_id=name.value)
    if has_it and delivery.status.is_open:
        had = DeliveryStatus.DELIVERED
        delivery = replace(delivery, status=had, delivered_ms=has_it.first_seen_ms, next_try_ms=None)
    words = next((each for each in mine if each.name.kind is Kind.CONTENT and each.name.scope == name.scope), None)
    return replace(delivery, content=words.named(now_ms)) if words else delivery


def _as_it_stands(
    first: Record, deliveries: Sequence[Delivery], known: Sequence[Kept], now_ms: int
) -> tuple[State, tuple[Delivery, ...], str | None]:
    """State, deliveries, and whose payload. What is open here and has a payload was promised, so it is delivered from
    here, whatever the names say: a crash may lie between the two."""
    is_open = {each.destination for each in deliveries if each.status.is_open}
    with_payload = [each for each in known if each.has_payload]
    waiting = [each for each in with_payload if each.delivery.destination in is_open]
    payload_of = next((each.id for each in (*waiting, *with_payload)), None)
    state = State.FREE
    if waiting or first.state is State.DONE:
        state = State.DONE
    elif first.state is State.PENDING and first.lease_until_ms > now_ms:
        state = State.PENDING
    open_status = DeliveryStatus.WAITING
    if state is State.DONE and not waiting:  # given back, and settled without it: there is nothing to send
        open_status = DeliveryStatus.SKIPPED if first.by else DeliveryStatus.DEAD
    return state, tuple(_moved(each, open_status, now_ms if waiting else None) for each in deliveries), payload_of


def _moved(delivery: Delivery, to: DeliveryStatus, due_ms: int | None) -> Delivery:
    """An open delivery, in another status. It is due as before, if at all; what was never tried, at once: its time was
    only that of another announcement, and the messages of the old queue mean nothing any more."""
    if not delivery.status.is_open:
        return delivery
    is_scheduled = delivery.tries > 0 and delivery.status is DeliveryStatus.WAITING
    next_try_ms = due_ms and (is_scheduled and delivery.next_try_ms or due_ms)
    return replace(delivery, status=to, next_try_ms=next_try_ms)


def _entry_without_names(kept: Kept, now_ms: int, is_trial: bool) -> TakenOver:
    """Its names were reset, and it was still to be delivered or to be seen to by a person."""
    delivery = _moved(kept.delivery, DeliveryStatus.WAITING, now_ms)
    entry = Entry(
        id=_id_of(kept.id, is_trial=is_trial),
        own=(),
        shared=(),
        fingerprint="",
        state=State.DONE,
        owner="",
        fence=0,
        lease_until_ms=0,
        created_ms=kept.created_ms,
        about=About(item=kept.item),
        deliveries=(delivery,),
        answer=_answer((delivery,)),
        settled_ms=kept.last_ms,
        is_trial=is_trial,
    )
    return TakenOver(entry, kept.id if kept.has_payload else None)


def _answer(deliveries: Sequence[Delivery]) -> str:
    """What its provider was told."""
    statuses = {each.status for each in deliveries}
    if DeliveryStatus.DEAD in statuses:
        return "dead_lettered"
    if DeliveryStatus.DELIVERED in statuses or not deliveries:
        return "processed"
    return "queued" if any(each.is_open for each in statuses) else "skipped_content"


def _id_of(*parts: str, is_trial: bool) -> str:
    """Always the same one, so that two that take over the same item at once make one entry of it."""
    digest = hashlib.sha256(json.dumps([is_trial, *parts]).encode()).digest()
    return base64.urlsafe_b64encode(digest[:9]).decode()
