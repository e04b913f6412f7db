"""The rules about an item, pure: what is known goes in, what follows comes out. lua/ says the same for Redis.

The numbers in brackets are the rules of docs/architecture-old.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from deduplication.claims import Gate, Kind, Name
from deduplication.fingerprint import Fingerprint, agree, conflicts, filled
from deduplication.journal.base import (
    MOST_BEGINS,
    Claim,
    Ending,
    Found,
    InFlight,
    Released,
    Replayed,
    Settlement,
    Wanted,
)
from deduplication.journal.entry import Delivery, DeliveryStatus, Entry, State, Stop, changed

CONTENT_ASKED_AGAIN_MS = 5_000
MOST_REFS = 64  # entries under one name of their own: a further one takes the place of the oldest

DECIDED_HERE = "local"  # About.store


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


def known_of(found: Iterable[Found], steady_ms: int, now_ms: int) -> Known:
    """What ``look`` found, to be judged without claiming anything."""
    looked = list(found)
    names = {
        each.name: NameRecord(each.is_marked, tuple(Ref(entry.id, entry.created_ms) for entry in each.entries))
        for each in looked
    }
    return Known(names, {entry.id: entry for each in looked for entry in each.entries}, now_ms, steady_ms)


@dataclass(frozen=True)
class Repeat:
    """Of an entry that is done, met under this name."""

    of: Entry
    name: Name


@dataclass(frozen=True)
class Refused:
    """Another item (None: it is no longer known) was accepted with the proof that this one comes with."""

    name: Name
    of: Entry | None


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


Judgement = Repeat | Refused | Told | InFlight | Take


def judge(claim: Claim, known: Known) -> Judgement:
    """Identity first, then the gates of the shared names, in their order."""
    under = {entry.id: entry for name in claim.own for entry in known.under(name)}
    mine = next((entry for entry in under.values() if entry.owner == claim.owner), None)
    if mine and mine.state is State.DONE:
        return Told(mine)
    candidates = [
        each for each in under.values() if each is mine or _may_be_same(claim.own, claim.fingerprint, known, each)
    ]
    settled = [each for each in candidates if _is_settled_for(claim, each)]
    if settled:
        best = _nearest(claim, known, settled)
        return Repeat(best, _name_of(claim, known, best))
    if refused := _proven_elsewhere(claim, known, candidates):
        return refused
    held = [each for each in candidates if each.is_held(known.steady_ms) and each is not mine]
    if held:
        last = max(held, key=lambda each: each.lease_until_ms)
        name = _name_of(claim, known, last)
        return InFlight(name.gate, name.label, last.lease_until_ms - known.steady_ms)
    joined = mine or (_nearest(claim, known, candidates) if candidates else None)
    deliveries = _deliveries(claim, joined, candidates)
    mark = _marked_before(claim, known, joined) if joined else _marked(claim, known)
    if mark:
        return Take(joined, Stop(mark), deliveries=_all_skipped(deliveries))
    return _at_shared_gates(claim, known, joined, deliveries)


def _proven_elsewhere(claim: Claim, known: Known, candidates: list[Entry]) -> Refused | InFlight | None:
    """A proof that does not cover what the item says is good for one item: once accepted, it proves no other."""
    for name in claim.own:
        if name.gate is Gate.PROOF:
            others = [each for each in known.under(name) if each not in candidates]
            accepted = next((each for each in others if each.state is State.DONE), None)
            if accepted or (known.names[name].is_marked and not known.under(name)):
                return Refused(name, accepted)
            held = next((each for each in others if each.is_held(known.steady_ms)), None)
            if held:
                return InFlight(name.gate, name.label, held.lease_until_ms - known.steady_ms)
    return None


def _may_be_same(own: tuple[Name, ...], fingerprint: str, known: Known, entry: Entry) -> bool:
    """No part that both know differs; where only an undated id speaks for it, they must agree in all (4)."""
    ours, theirs = Fingerprint.parse(fingerprint), Fingerprint.parse(entry.fingerprint)
    met_at = [name for name in own if any(ref.entry == entry.id for ref in known.names[name].refs)]
    return agree(ours, theirs) if all(name.needs_agreement for name in met_at) else not conflicts(ours, theirs)


def _is_settled_for(claim: Claim, entry: Entry) -> bool:
    """What was only printed counts as free once there is a real destination (17)."""
    return entry.state is State.DONE and (claim.is_trial or not entry.is_trial)


def _nearest(claim: Claim, known: Known, candidates: list[Entry]) -> Entry:
    """Most equal known parts, then the name that counts most, then the oldest (1)."""
    if len(candidates) == 1:
        return candidates[0]

    def distance(entry: Entry) -> tuple[int, int, int, str]:
        position = claim.own.index(_name_of(claim, known, entry))
        return -_equal_parts(entry.fingerprint, claim.fingerprint), position, entry.created_ms, entry.id

    return min(candidates, key=distance)


def _equal_parts(one: str, other: str) -> int:
    pairs = zip(Fingerprint.parse(one).parts, Fingerprint.parse(other).parts, strict=True)
    return sum(ours is not None and ours == theirs for ours, theirs in pairs)


def _name_of(claim: Claim, known: Known, entry: Entry) -> Name:
    return next(name for name in claim.own if any(ref.entry == entry.id for ref in known.names[name].refs))


def _marked(claim: Claim, known: Known) -> Name | None:
    """By another program, or before the entries that are known. An undated id never stops by its mark alone (4)."""
    names = (name for name in claim.own if not name.needs_agreement and not known.under(name))
    return next((name for name in names if known.names[name].is_marked), None)


def _marked_before(claim: Claim, known: Known, joined: Entry) -> Name | None:
    """What such a mark stopped, and nobody settled, is stopped by it again, until that is reset."""
    name = joined.stop.name if joined.stop else None
    if name not in joined.own or (name in claim.own and not known.names[name].is_marked):
        return None
    return name


def _deliveries(claim: Claim, joined: Entry | None, candidates: list[Entry]) -> tuple[Delivery, ...]:
    """The present route decides where it goes; what a candidate has delivered counts as delivered (1, 16)."""
    wanted = []
    for each in claim.destinations:
        before = joined.delivery_to(each.destination) if joined else None
        had = next(
            (d for entry in candidates if (d := entry.delivery_to(each.destination)) and _is_delivered(d, entry)), None
        )
        wanted.append(had or _wanted(each, before, _generation(claim, joined)))
    gone = [
        delivery
        for delivery in (joined.deliveries if joined else ())
        if _is_delivered(delivery, joined) and all(delivery.destination != each.destination for each in wanted)
    ]
    return (*wanted, *gone)


def _is_delivered(delivery: Delivery, entry: Entry | None) -> bool:
    return delivery.status is DeliveryStatus.DELIVERED and not (entry and entry.is_trial)


def _generation(claim: Claim, joined: Entry | None) -> int:
    """What was only printed begins anew when it is to be sent: that it was "delivered" is older news (12)."""
    if joined is None:
        return 0
    return joined.next_generation if joined.is_trial and not claim.is_trial else joined.generation


def _wanted(wanted: Wanted, before: Delivery | None, generation: int) -> Delivery:
    fresh = Delivery(wanted.destination, wanted.webhook_id, generation=generation, content=wanted.content)
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


def _met_at(name: Name, known: Known, own_entry: str | None, is_trial: bool) -> _Met | None:
    """A name that points to the item's own entry never stops it (3). The mark says done, the entry says held.

    What was only printed is in the way of what is only printed (12).
    """
    record = known.names[name]
    ref = record.refs[0] if record.refs else None
    if ref and ref.entry == own_entry:
        return None
    if record.is_marked:
        return _Met(name, ref)
    holder = known.entries.get(ref.entry) if ref else None
    if holder is None or (holder.is_trial and not is_trial):
        return None
    if standing(holder, name) is not Standing.HELD:  # its mark is over, and with it the name
        return None
    if holder.is_trial and holder.state is State.DONE:
        return _Met(name, ref)
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
        met = [found for name in names if (found := _met_at(name, known, own_entry, claim.is_trial))]
        settled = [each for each in met if not each.held_ms]
        if settled and len(settled) == len(names):  # of several media all must be known
            first = next((each for each in settled if not each.is_stored), settled[0])
            return Take(joined, first.stop(), deliveries=_all_skipped(deliveries))
        held = [each for each in met if each.held_ms]
        if held:
            return max(held, key=lambda each: each.held_ms).wait()
        left_out += tuple(each.name for each in settled)
    return _at_content_gates(claim, known, joined, deliveries, left_out)


def _at_content_gates(
    claim: Claim, known: Known, joined: Entry | None, deliveries: tuple[Delivery, ...], left_out: tuple[Name, ...]
) -> InFlight | Take:
    """A destination that had the same words is left out; one where they are on their way is asked again later (9)."""
    own_entry = joined.id if joined else None
    met = {
        each.destination: found
        for each in deliveries
        if each.status.is_open and each.content and (found := _met_at(each.content, known, own_entry, claim.is_trial))
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
    is_lock_of_another = entry.is_lock and entry.owner != claim.owner
    return changed(
        entry,
        created_ms=known.now_ms if is_lock_of_another else entry.created_ms,  # whoever takes it over has a new lock
        own=tuple(dict.fromkeys((*claim.own, *entry.own))),
        fingerprint=_filled(entry, claim),
        shared=shared,
        state=State.PENDING,
        owner=claim.owner,
        fence=fence,
        lease_until_ms=known.steady_ms + claim.lease_ms,
        about=replace(claim.about, store=DECIDED_HERE),
        deliveries=take.deliveries,
        stop=take.stop,
        is_trial=claim.is_trial and (joined is None or joined.is_trial),
        generation=_generation(claim, joined),
    )


def repeated(entry: Entry, claim: Claim, now_ms: int) -> Entry:
    if entry.repeated_by == claim.owner:
        return entry
    return changed(
        entry,
        fingerprint=_filled(entry, claim),
        repeats=entry.repeats + 1,
        repeated_ms=now_ms,
        repeated_by=claim.owner,
    )


def _filled(entry: Entry, claim: Claim) -> str:
    if entry.fingerprint == claim.fingerprint:
        return entry.fingerprint
    return str(filled(Fingerprint.parse(entry.fingerprint), Fingerprint.parse(claim.fingerprint)))


def settled(entry: Entry, settlement: Settlement, now_ms: int) -> Entry:
    for delivery in settlement.deliveries:
        entry = entry.with_delivery(delivery)
    left = [number for number in (entry.retries_left, settlement.retries_left) if number is not None]
    if settlement.ending is Ending.FREE:
        stop = entry.stop if entry.stop and entry.stop.name.is_own else None  # nothing else would tell of that mark
        return changed(
            entry, state=State.FREE, owner="", lease_until_ms=0, retries_left=min(left, default=None), stop=stop
        )
    return changed(
        entry,
        state=State.DONE,
        lease_until_ms=0,
        retries_left=min(left, default=None),
        answer=settlement.answer,
        settled_ms=now_ms,
    )


def is_settled_already(entry: Entry, claim: Claim, settlement: Settlement) -> bool:
    """The owner says it again, since it did not hear the answer."""
    return entry.owner == claim.owner and entry.state is State.DONE and settlement.ending is Ending.DONE


def with_facts(entry: Entry, settlement: Settlement) -> Entry:
    """From one that lost the entry: that it delivered is a fact, anything else would be a decision (8)."""
    for delivery in settlement.deliveries:
        if delivery.status is DeliveryStatus.DELIVERED:
            entry = entry.with_fact(delivery)
    return entry


def begun(
    entry: Entry, delivery: Delivery, known: Known, owner: str, server: str, lease_ms: int, fence: int
) -> Delivery:
    """What ``begin`` makes of a delivery that is due; it is the owner's only if it is delivering then."""
    met = _met_at(delivery.content, known, entry.id, entry.is_trial) if delivery.content else None
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
        server=server,
        fence=fence,
        begins=delivery.begins + 1,
        lease_until_ms=known.steady_ms + lease_ms,
        next_try_ms=known.now_ms + lease_ms,
    )


def held_parts(entry: Entry, steady_ms: int) -> Iterator[tuple[Delivery | None, int]]:
    """What someone is at, and until when: a lock as a whole, or each delivery of a request or a worker."""
    under_way = [each for each in entry.deliveries if each.status is DeliveryStatus.DELIVERING]
    if entry.is_held(steady_ms):
        parts: list[Delivery | None] = [None] if entry.is_lock else [*under_way]
        yield from ((part, entry.lease_until_ms) for part in parts)
    elif entry.state is State.DONE:
        yield from ((each, each.lease_until_ms) for each in under_way if each.lease_until_ms > steady_ms)


def is_finished_by(entry: Entry, delivery: Delivery, owner: str) -> bool:
    """Who may decide about it: the worker that began it, or the request that holds the whole entry (8)."""
    holder = entry.owner if entry.state is State.PENDING else delivery.owner
    return holder == owner and delivery.status is DeliveryStatus.DELIVERING


def promoted(follower: Entry, now_ms: int) -> Entry:
    """It goes out in place of the one it repeats, and holds the name that had stopped it (6)."""
    held = (follower.stop.name,) if follower.stop and follower.stop.gate is not Gate.CONTENT else ()
    return replace(
        follower,
        shared=held,
        deliveries=tuple(_no_longer_skipped(each, now_ms) for each in follower.deliveries),
        released_ms=now_ms,
        generation=follower.next_generation,
    )


def _no_longer_skipped(delivery: Delivery, now_ms: int) -> Delivery:
    """A generation of its own: a machine that knows it as skipped must not bring that back (10)."""
    if delivery.status is not DeliveryStatus.SKIPPED:
        return delivery
    return replace(_due_now(delivery, now_ms), generation=delivery.generation + 1, reason="released")


def _due_now(delivery: Delivery, now_ms: int) -> Delivery:
    """Its words are not taken, but asked for when it is begun: the destination may have them from another item."""
    asks = delivery.content is not None
    return replace(delivery, status=DeliveryStatus.WAITING, next_try_ms=now_ms, awaits_content=asks)


# What a person asks for


def replay_refusal(entry: Entry, delivery: Delivery, force: bool, steady_ms: int) -> Replayed | None:
    if delivery.status in (DeliveryStatus.DELIVERED, DeliveryStatus.SKIPPED) and not force:
        return Replayed.ALREADY_DELIVERED
    is_begun = delivery.status is DeliveryStatus.DELIVERING and delivery.lease_until_ms > steady_ms
    if entry.is_held(steady_ms) or (entry.state is State.DONE and is_begun):
        return Replayed.UNDER_WAY
    return None


def replayed(entry: Entry, delivery: Delivery, known: Known, force: bool, webhook_id: str | None) -> Entry:
    """To this destination once more, past its content gate, with the shared names that nobody else has now (21).

    What waits anyway is tried now, unless forced: by the schedule from its beginning, and behind the same gates.
    """
    if entry.has_open_delivery_to(delivery.destination) and not force:
        tried_now = replace(
            delivery,
            webhook_id=webhook_id or delivery.webhook_id,
            status=DeliveryStatus.WAITING,
            tries=0,
            next_try_ms=known.now_ms,
            owner="",
            lease_until_ms=0,
            reason="replayed",
            missing_ms=None,
        )
        return entry.with_delivery(tried_now)
    again = replace(
        delivery,
        webhook_id=webhook_id or delivery.webhook_id,
        status=DeliveryStatus.WAITING,
        generation=delivery.generation + 1,
        tries=0,
        begins=0,
        next_try_ms=known.now_ms,
        delivered_ms=None,
        owner="",
        lease_until_ms=0,
        receiver_id=None,
        reason="replayed",
        content=None,
        awaits_content=False,
        missing_ms=None,
    )
    shared = tuple(name for name in entry.shared if _met_at(name, known, entry.id, entry.is_trial) is None)
    after = _taken_up(replace(entry.with_delivery(again), shared=shared), entry.next_generation, known.now_ms)
    return after if delivery.status is not DeliveryStatus.SKIPPED else _let_go(after, known.now_ms)


def release_refusal(entry: Entry, known: Known, force: bool) -> Released | None:
    if entry.is_held(known.steady_ms) or all(each.status is not DeliveryStatus.SKIPPED for each in entry.deliveries):
        return Released.NOT_SUPPRESSED if entry.released_ms is None else Released.ALREADY_RELEASED
    others = {other.id: other for name in entry.own for other in known.under(name) if other.id != entry.id}
    had_by = [
        other
        for other in others.values()
        if other.is_delivered_somewhere and _may_be_same(entry.own, entry.fingerprint, known, other)
    ]
    return Released.ALREADY_DELIVERED if had_by and not force else None


def released(entry: Entry, now_ms: int) -> Entry:
    """What was skipped goes out, past all gates; it holds no shared name that it does not hold already (22)."""
    deliveries = tuple(
        replace(_no_longer_skipped(each, now_ms), content=None, awaits_content=False)
        if each.status is DeliveryStatus.SKIPPED
        else each
        for each in entry.deliveries
    )
    shared = tuple(name for name in entry.shared if standing(entry, name) is not Standing.GIVEN_BACK)
    after = replace(entry, deliveries=deliveries, shared=shared)
    return _let_go(_taken_up(after, entry.next_generation, now_ms), now_ms)


def _taken_up(entry: Entry, generation: int, now_ms: int) -> Entry:
    """Done, whatever it was, and kept as one that was settled now. What a re-send left open is due too (24)."""
    deliveries = entry.deliveries
    if entry.state is not State.DONE:
        deliveries = tuple(_due_now(each, now_ms) if each.status.is_open else each for each in deliveries)
    return replace(
        entry, deliveries=deliveries, state=State.DONE, lease_until_ms=0, settled_ms=now_ms, generation=generation
    )


def _let_go(entry: Entry, now_ms: int) -> Entry:
    """It was stopped, and follows nobody any more."""
    stop = replace(entry.stop, follows=False) if entry.stop else None
    return replace(entry, stop=stop, released_ms=now_ms)


def freed(entry: Entry) -> Entry:
    """A re-send joins it; the generation keeps a machine that was away from making it done again (11)."""
    if entry.state is State.FREE:
        return replace(entry, stop=None)
    return replace(
        entry,
        state=State.FREE,
        owner="",
        lease_until_ms=0,
        stop=None,
        released_ms=None,
        generation=entry.next_generation,
    )


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
    if name.kind is Kind.LOCK:  # one that is over blocks nobody
        return _held(entry.state is State.PENDING)
    if not entry.deliveries:  # a script's own claim
        return Standing.MARKED if entry.is_delivered_somewhere else _held(entry.state is State.PENDING)
    carried = [each for each in entry.deliveries if name.gate is not Gate.CONTENT or each.content == name]
    if any(each.status is DeliveryStatus.DELIVERED for each in carried):
        return Standing.HELD if entry.is_trial else Standing.MARKED
    waits_elsewhere = name.gate is Gate.CONTENT and any(each.awaits_content for each in carried)
    is_open = entry.state is not State.FREE and any(each.status.is_open for each in carried)
    return _held(is_open and not waits_elsewhere)


def found(name: Name, is_marked: bool, entries: Iterable[Entry]) -> Found:
    """A shared name's mark may be over, or taken away, before the entry is: then only one that holds it counts."""
    is_past = not is_marked and not name.is_own
    under = (each for each in entries if name in each.names)
    return Found(name, is_marked, tuple(each for each in under if not is_past or standing(each, name) is Standing.HELD))


def _held(is_held: bool) -> Standing:
    return Standing.HELD if is_held else Standing.GIVEN_BACK
