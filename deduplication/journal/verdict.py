"""The rules about an item, pure: what is known goes in, what follows comes out. lua/ says the same for Redis.

The numbers in brackets are the rules of docs/architecture.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass, replace
from enum import StrEnum

from deduplication.claims import Gate, Kind, Name
from deduplication.fingerprint import Fingerprint, agree, conflicts, filled
from deduplication.journal.base import MOST_BEGINS, Claim, Ending, InFlight, Settlement, Wanted
from deduplication.journal.entry import Delivery, DeliveryStatus, Entry, State, Stop

CONTENT_ASKED_AGAIN_MS = 5_000


@dataclass(frozen=True)
class Ref:
    """An entry that has or holds a name, and when that one came."""

    entry: str
    seen_ms: int


@dataclass(frozen=True)
class NameRecord:
    """``is_marked``: done, as an operator sees it and other programs write it. Several refs only where texts differ."""

    is_marked: bool = False
    refs: tuple[Ref, ...] = ()


@dataclass(frozen=True)
class Known:
    """Everything a verdict may depend on: the names asked for, the entries they refer to, and the time.

    ``steady_ms`` is for leases: the same as ``now_ms`` on Redis, a clock that cannot be set on this machine.
    """

    names: Mapping[Name, NameRecord]
    entries: Mapping[str, Entry]
    now_ms: int
    steady_ms: int

    def under(self, name: Name) -> list[Entry]:
        return [self.entries[ref.entry] for ref in self.names[name].refs if ref.entry in self.entries]


@dataclass(frozen=True)
class Repeat:
    """Of an entry that is done, met under this name."""

    of: Entry
    name: Name


@dataclass(frozen=True)
class Told:
    """The same owner asks about what it has settled: the answer it got."""

    entry: Entry


@dataclass(frozen=True)
class Take:
    """The item is the owner's: as the entry it joins, or as a new one."""

    joined: Entry | None = None
    stop: Stop | None = None
    left_out: tuple[Name, ...] = ()
    deliveries: tuple[Delivery, ...] = ()


Judgement = Repeat | Told | InFlight | Take


def judge(claim: Claim, known: Known) -> Judgement:
    """Identity first, then the gates of the shared names, in their order."""
    under = {entry.id: entry for name in claim.own for entry in known.under(name)}
    mine = next((entry for entry in under.values() if entry.owner == claim.owner), None)
    if mine and mine.state is State.DONE:
        return Told(mine)
    candidates = [each for each in under.values() if each is mine or _may_be_same(claim, known, each)]
    settled = [each for each in candidates if _is_settled_for(claim, each)]
    if settled:
        best = _nearest(claim, known, settled)
        return Repeat(best, _name_of(claim, known, best))
    held = [each for each in candidates if each.is_held(known.steady_ms) and each is not mine]
    if held:
        last = max(held, key=lambda each: each.lease_until_ms)
        name = _name_of(claim, known, last)
        return InFlight(name.gate, name.label, last.lease_until_ms - known.steady_ms)
    joined = mine or (_nearest(claim, known, candidates) if candidates else None)
    deliveries = _deliveries(claim, joined, candidates)
    if joined is None:
        mark = next((name for name in claim.own if _stops_by_its_mark(name, known)), None)
        if mark:
            return Take(stop=Stop(mark), deliveries=_all_skipped(deliveries))
    return _at_shared_gates(claim, known, joined, deliveries)


def _may_be_same(claim: Claim, known: Known, entry: Entry) -> bool:
    """No part that both know differs; where only an undated id speaks for it, they must agree in all (4)."""
    ours, theirs = Fingerprint.parse(claim.fingerprint), Fingerprint.parse(entry.fingerprint)
    met_at = [name for name in claim.own if any(ref.entry == entry.id for ref in known.names[name].refs)]
    return agree(ours, theirs) if all(name.needs_agreement for name in met_at) else not conflicts(ours, theirs)


def _is_settled_for(claim: Claim, entry: Entry) -> bool:
    """What was only printed counts as free once there is a real destination (17)."""
    return entry.state is State.DONE and (claim.is_trial or not entry.is_trial)


def _nearest(claim: Claim, known: Known, candidates: list[Entry]) -> Entry:
    """Most equal known parts, then the name that counts most, then the oldest (1)."""

    def distance(entry: Entry) -> tuple[int, int, int, str]:
        position = claim.own.index(_name_of(claim, known, entry))
        return -_equal_parts(entry.fingerprint, claim.fingerprint), position, entry.created_ms, entry.id

    return min(candidates, key=distance)


def _equal_parts(one: str, other: str) -> int:
    pairs = zip(astuple(Fingerprint.parse(one)), astuple(Fingerprint.parse(other)), strict=True)
    return sum(ours is not None and ours == theirs for ours, theirs in pairs)


def _name_of(claim: Claim, known: Known, entry: Entry) -> Name:
    return next(name for name in claim.own if any(ref.entry == entry.id for ref in known.names[name].refs))


def _stops_by_its_mark(name: Name, known: Known) -> bool:
    """Made by another program, or older than the entries. An undated id never stops by its mark alone (4)."""
    return known.names[name].is_marked and not known.under(name) and not name.needs_agreement


def _deliveries(claim: Claim, joined: Entry | None, candidates: list[Entry]) -> tuple[Delivery, ...]:
    """The present route decides where it goes; what a candidate has delivered counts as delivered (1, 16)."""
    wanted = []
    for each in claim.destinations:
        before = joined.delivery_to(each.destination) if joined else None
        had = next(
            (d for entry in candidates if (d := entry.delivery_to(each.destination)) and _is_delivered(d, entry)), None
        )
        wanted.append(had or _wanted(each, before))
    gone = [
        delivery
        for delivery in (joined.deliveries if joined else ())
        if _is_delivered(delivery, joined) and all(delivery.destination != each.destination for each in wanted)
    ]
    return (*wanted, *gone)


def _is_delivered(delivery: Delivery, entry: Entry | None) -> bool:
    return delivery.status is DeliveryStatus.DELIVERED and not (entry and entry.is_trial)


def _wanted(wanted: Wanted, before: Delivery | None) -> Delivery:
    fresh = Delivery(wanted.destination, wanted.webhook_id, content=wanted.content)
    if before is None:
        return fresh
    return replace(fresh, webhook_id=before.webhook_id, tries=before.tries, attempts=before.attempts)


# The gates of the names it shares with other items


@dataclass(frozen=True)
class _Met:
    """Another item at a shared name: done, under way (``held_ms`` left), or stored for a later try."""

    name: Name
    ref: Ref | None
    held_ms: int = 0
    is_stored: bool = False

    def stop(self) -> Stop:
        original, seen_ms = (self.ref.entry, self.ref.seen_ms) if self.ref else (None, None)
        return Stop(self.name, original, seen_ms, follows=self.is_stored)

    def wait(self) -> InFlight:
        return InFlight(self.name.gate, self.name.label, self.held_ms)


def _met_at(name: Name, known: Known, own_entry: str | None) -> _Met | None:
    """A name that points to the item's own entry never stops it (3). The mark says done, the entry says held."""
    record = known.names[name]
    ref = record.refs[0] if record.refs else None
    if ref and ref.entry == own_entry:
        return None
    if record.is_marked:
        return _Met(name, ref)
    holder = known.entries.get(ref.entry) if ref else None
    if holder is None:
        return None
    if holder.is_held(known.steady_ms):
        return _Met(name, ref, held_ms=holder.lease_until_ms - known.steady_ms)
    return _Met(name, ref, is_stored=True) if holder.has_open_deliveries else None


def _at_shared_gates(
    claim: Claim, known: Known, joined: Entry | None, deliveries: tuple[Delivery, ...]
) -> InFlight | Take:
    own_entry = joined.id if joined else None
    left_out: tuple[Name, ...] = ()
    for gate in (Gate.SUBJECT_GROUP, Gate.MEDIA):
        names = [name for name in claim.shared if name.gate is gate]
        met = [found for name in names if (found := _met_at(name, known, own_entry))]
        settled = [each for each in met if not each.held_ms]
        if settled and len(settled) == len(names):  # of several media all must be known
            first = next((each for each in settled if not each.is_stored), settled[0])
            return Take(joined, first.stop(), deliveries=_all_skipped(deliveries))
        held = [each for each in met if each.held_ms]
        if held:
            return max(held, key=lambda each: each.held_ms).wait()
        left_out += tuple(each.name for each in settled)
    return _at_content_gates(known, joined, deliveries, left_out)


def _at_content_gates(
    known: Known, joined: Entry | None, deliveries: tuple[Delivery, ...], left_out: tuple[Name, ...]
) -> InFlight | Take:
    """A destination that had the same words is left out; one where they are on their way is asked again later (9)."""
    own_entry = joined.id if joined else None
    met = {
        each.destination: found
        for each in deliveries
        if each.status.is_open and each.content and (found := _met_at(each.content, known, own_entry))
    }
    is_anything_sent = any(
        each.destination not in met and (each.status.is_open or each.status is DeliveryStatus.DELIVERED)
        for each in deliveries
    )
    if met and not is_anything_sent:
        held = [each for each in met.values() if each.held_ms]
        if held:
            return max(held, key=lambda each: each.held_ms).wait()
        first = next((each for each in met.values() if not each.is_stored), next(iter(met.values())))
        return Take(joined, first.stop(), deliveries=_all_skipped(deliveries))
    judged = tuple(_at_content_gate(each, met.get(each.destination), known.now_ms) for each in deliveries)
    return Take(joined, None, left_out, judged)


def _at_content_gate(delivery: Delivery, met: _Met | None, now_ms: int) -> Delivery:
    if met is None:
        return delivery
    if met.held_ms or met.is_stored:
        reason = "the same content is on its way"
        next_try_ms = now_ms + (met.held_ms or CONTENT_ASKED_AGAIN_MS)
        return replace(
            delivery, status=DeliveryStatus.WAITING, next_try_ms=next_try_ms, reason=reason, awaits_content=True
        )
    original = met.ref.entry if met.ref else "another program"
    reason = f"repeats {met.name.label} of {original}"
    return replace(delivery, status=DeliveryStatus.SKIPPED, next_try_ms=None, reason=reason)


def _all_skipped(deliveries: tuple[Delivery, ...]) -> tuple[Delivery, ...]:
    """Kept with it, so that a release knows where it was to go."""
    return tuple(
        each if each.status is DeliveryStatus.DELIVERED else replace(each, status=DeliveryStatus.SKIPPED)
        for each in deliveries
    )


# What becomes of an entry


def taken(claim: Claim, take: Take, known: Known, fence: int) -> Entry:
    """The entry as the owner holds it. A repeat may fill in a part of the fingerprint, never change one (2)."""
    joined = take.joined
    shared = () if take.stop else tuple(name for name in claim.shared if name not in take.left_out)
    entry = joined or Entry(
        id=claim.entry,
        own=(),
        shared=(),
        fingerprint=claim.fingerprint,
        state=State.PENDING,
        owner=claim.owner,
        fence=fence,
        lease_until_ms=0,
        created_ms=known.now_ms,
    )
    return replace(
        entry,
        own=tuple(dict.fromkeys((*claim.own, *entry.own))),
        fingerprint=_filled(entry, claim),
        shared=shared,
        state=State.PENDING,
        owner=claim.owner,
        fence=fence,
        lease_until_ms=known.steady_ms + claim.lease_ms,
        about=claim.about,
        deliveries=take.deliveries,
        stop=take.stop,
        is_trial=claim.is_trial and (joined is None or joined.is_trial),
    )


def repeated(entry: Entry, claim: Claim, now_ms: int) -> Entry:
    if entry.repeated_by == claim.owner:
        return entry
    return replace(
        entry,
        fingerprint=_filled(entry, claim),
        repeats=entry.repeats + 1,
        repeated_ms=now_ms,
        repeated_by=claim.owner,
    )


def _filled(entry: Entry, claim: Claim) -> str:
    return str(filled(Fingerprint.parse(entry.fingerprint), Fingerprint.parse(claim.fingerprint)))


def settled(entry: Entry, settlement: Settlement, now_ms: int) -> Entry:
    for delivery in settlement.deliveries:
        entry = entry.with_delivery(delivery)
    left = [number for number in (entry.retries_left, settlement.retries_left) if number is not None]
    if settlement.ending is Ending.FREE:
        return replace(
            entry, state=State.FREE, owner="", lease_until_ms=0, retries_left=min(left, default=None), stop=None
        )
    return replace(
        entry,
        state=State.DONE,
        lease_until_ms=0,
        retries_left=min(left, default=None),
        answer=settlement.answer,
        settled_ms=now_ms,
    )


def with_facts(entry: Entry, settlement: Settlement) -> Entry:
    """From one that lost the entry: that it delivered is a fact, anything else would be a decision (8)."""
    for delivery in settlement.deliveries:
        if delivery.status is DeliveryStatus.DELIVERED:
            entry = entry.with_delivery(delivery)
    return entry


def begun(entry: Entry, delivery: Delivery, known: Known, owner: str, lease_ms: int, fence: int) -> Delivery:
    """What ``begin`` makes of a delivery that is due; it is the owner's only if it is delivering then."""
    met = _met_at(delivery.content, known, entry.id) if delivery.content else None
    if met:
        return _at_content_gate(delivery, met, known.now_ms)
    if delivery.begins >= MOST_BEGINS:
        reason = f"begun {delivery.begins} times and never finished"
        return replace(delivery, status=DeliveryStatus.DEAD, next_try_ms=None, owner="", reason=reason)
    return replace(
        delivery,
        status=DeliveryStatus.DELIVERING,
        awaits_content=False,
        owner=owner,
        fence=fence,
        begins=delivery.begins + 1,
        lease_until_ms=known.steady_ms + lease_ms,
        next_try_ms=known.now_ms + lease_ms,
    )


def is_finished_by(entry: Entry, delivery: Delivery, owner: str) -> bool:
    """Who may decide about it: the worker that began it, or the request that holds the whole entry (8)."""
    holder = entry.owner if entry.state is State.PENDING else delivery.owner
    return holder == owner and delivery.status is DeliveryStatus.DELIVERING


def released(follower: Entry, now_ms: int) -> Entry:
    """It goes out in place of the one it repeats, and holds the name that had stopped it (6)."""
    deliveries = tuple(
        replace(each, status=DeliveryStatus.WAITING, next_try_ms=now_ms, reason="released")
        if each.status is DeliveryStatus.SKIPPED
        else each
        for each in follower.deliveries
    )
    held = (follower.stop.name,) if follower.stop and follower.stop.gate is not Gate.CONTENT else ()
    return replace(follower, shared=held, deliveries=deliveries, released_ms=now_ms)


class Standing(StrEnum):
    """What an entry does to a name of its own at this moment."""

    MARKED = "marked"
    HELD = "held"
    GIVEN_BACK = "given back"


def standing(entry: Entry, name: Name) -> Standing:
    """Own names are done once the provider was told 2xx, shared ones at the first delivery; until then they are held
    by whoever is at it or waits for the next try (6)."""
    if name.is_own:
        return Standing.MARKED if entry.state is State.DONE and not entry.is_trial else Standing.HELD
    if not entry.deliveries:  # a script's own claim
        is_published = entry.is_delivered_somewhere and name.kind is not Kind.LOCK  # a lock that is over blocks nobody
        return Standing.MARKED if is_published else _held(entry.state is State.PENDING)
    carried = [each for each in entry.deliveries if name.gate is not Gate.CONTENT or each.content == name]
    if any(_is_delivered(each, entry) for each in carried):
        return Standing.MARKED
    waits_elsewhere = name.gate is Gate.CONTENT and any(each.awaits_content for each in carried)
    is_open = entry.state is not State.FREE and any(each.status.is_open for each in carried)
    return _held(is_open and not waits_elsewhere)


def _held(is_held: bool) -> Standing:
    return Standing.HELD if is_held else Standing.GIVEN_BACK
