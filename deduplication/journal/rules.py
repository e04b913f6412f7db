"""The rules about items, pure: what is known goes in, what follows from it comes out.

They hold for the names of a journal and for those in Redis alike. Numbers are the rules of docs/architecture.md.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from deduplication.journal.entry import (
    BY_SCRIPT,
    ENDED,
    OPEN,
    SETTLED,
    About,
    Delivery,
    DeliveryStatus,
    Entry,
    Stop,
)
from deduplication.names import Fingerprint, Gate, Name, conflicts, differs_by_tag, filled, shortened
from deduplication.values import kept_property

MOST_REFERENCES = 64  # under one name
HELD = "~"  # before the key of an email whose proof of origin is being used, and not accepted yet (28)


class Wanted(Struct, frozen=True):
    """A destination that the item is to go to. ``content``: the name of its words there, if that gate is on."""

    destination: str
    webhook_id: str = ""
    content: Name | None = None


class Claim(Struct, frozen=True, dict=True):
    """``entry`` is the id of the item's entry if it gets a new one; ``own`` names in the order in which they count.

    ``proof`` is the provider's proof of origin, good for one email (28); ``key`` says which one that is. Both are
    digests. ``owner`` begins with the name of the machine and a dot.
    """

    entry: str
    owner: str
    own: tuple[Name, ...]
    shared: tuple[Name, ...] = ()
    destinations: tuple[Wanted, ...] = (Wanted(BY_SCRIPT),)
    fingerprint: str = ""
    lease_ms: int = 25_000
    about: About = About()
    proof: str = ""
    key: str = ""

    @property
    def is_by_script(self) -> bool:
        return self.destinations[0].destination == BY_SCRIPT

    @kept_property
    def identity(self) -> tuple[Name, ...]:
        return identity(self.own, self.fingerprint)

    @kept_property
    def gates(self) -> tuple[Name, ...]:
        """The names that it shares with other items."""
        return (*self.shared, *(each.content for each in self.destinations if each.content))

    @kept_property
    def references(self) -> dict[str, Name]:
        """All names that a hold takes, by their references."""
        return references((*self.identity, *self.gates), self.fingerprint)


def identity(own: tuple[Name, ...], fingerprint: str) -> tuple[Name, ...]:
    """The names by which an item is recognised. An undated id needs a known text beside it (23)."""
    if Fingerprint.parse(fingerprint).text is not None:
        return own
    return tuple(name for name in own if not name.needs_agreement)


def references(names: Iterable[Name], fingerprint: str) -> dict[str, Name]:
    """By the text under which a name refers to an entry: that of an undated id includes the fingerprint (23)."""
    return {f"{each.label}#{fingerprint}" if each.needs_agreement else each.label: each for each in names}


def name_of(label: str) -> Name:
    """The name behind a reference."""
    name = Name.from_label(label)
    return Name(name.kind, name.scope, name.value.partition("#")[0]) if name.needs_agreement else name


class NameState(Struct, frozen=True):
    """What is known of a name. ``ended``: what is left of emails that marked it and whose entries have ended: id, time
    and a short fingerprint (25). ``is_foreign``: its mark may be of an email that nobody here knows."""

    is_marked: bool = False
    entries: tuple[Entry, ...] = ()
    ended: tuple[Entry, ...] = ()
    is_foreign: bool = False
    reset: int = 0


UNKNOWN_NAME = NameState()


class Known(Struct, frozen=True):
    """What a verdict depends on. ``names`` are those of which something is known, by their labels. ``now_ms`` is the
    clock by which the leases in the entries are counted.

    ``proven`` is the key of the email for which the proof was accepted; with HELD before it, is being used.
    """

    names: Mapping[str, NameState] = {}
    now_ms: int = 0
    proven: str = ""

    def of(self, name: Name) -> NameState:
        return self.names.get(name.label, UNKNOWN_NAME)

    @property
    def reset(self) -> int:
        return max((each.reset for each in self.names.values()), default=0)


class Repeat(Struct, frozen=True):
    """All its destinations are covered by the original. If its entry has ended, ``of`` has no more than id and time."""

    of: Entry
    name: Name


class Busy(Struct, frozen=True):
    """Another process works on it; ask again after that time."""

    gate: Gate
    name: str
    retry_after_ms: int


class ProofUsed(Struct, frozen=True):
    """The proof of origin was accepted with another email, and proves no second one."""


class Take(Struct, frozen=True):
    """The item can be claimed: as the entry it joins, or as a new one.

    ``deliveries`` are those still to be made; with a ``stop`` all of them are skipped, and those that meet a held
    name wait for it. ``shared`` are the names to hold with it.
    """

    joined: Entry | None = None
    candidates: tuple[Entry, ...] = ()
    deliveries: tuple[Delivery, ...] = ()
    shared: tuple[Name, ...] = ()
    stop: Stop | None = None


Judgement = Repeat | Busy | ProofUsed | Take


def identify(claim: Claim, known: Known) -> Judgement:
    """By its own names alone (23, 24)."""
    if known.proven.removeprefix(HELD) not in ("", claim.key):
        is_held = known.proven.startswith(HELD)
        return Busy(claim.own[0].gate, claim.own[0].label, 1_000) if is_held else ProofUsed()
    if not known.names:
        return Take(None, (), tuple(map(_delivery_for, claim.destinations)), claim.shared)
    candidates = same_items(claim.own, claim.fingerprint, known)
    missing: list[Wanted] = []
    for wanted in claim.destinations:
        made = [made for each in candidates for made in _made_for(wanted.destination, each)]
        if any(_covers(each) for each in made):
            continue
        blocking = [each for each in made if _blocks(each, claim.owner, known.now_ms)]
        if blocking:
            left_ms = max(each.lease_until_ms for each in blocking) - known.now_ms
            return Busy(claim.own[0].gate, claim.own[0].label, max(1, left_ms))
        missing.append(wanted)
    if not missing:
        nearest = _nearest(claim, candidates)
        name = _name_of(claim, known, nearest)
        if not conflicts(Fingerprint.parse(claim.fingerprint), Fingerprint.parse(nearest.fingerprint)):
            return Repeat(nearest, name)
        deliveries = tuple(_delivery_for(each, None, claim.fingerprint) for each in claim.destinations)
        return Take(None, (), _skipped(deliveries), (), Stop(name, nearest.id, nearest.created_ms))
    joined = _nearest(claim, candidates) if candidates else None
    under = (entry for name in claim.identity for entry in (*known.of(name).entries, *known.of(name).ended))
    differs_by = claim.fingerprint if any(entry not in candidates for entry in under) else ""
    had_already = tuple(each.destination for each in claim.destinations if each not in missing)
    deliveries = tuple(replace(_delivery_for(each, joined, differs_by), had_already=had_already) for each in missing)
    if not candidates:
        mark = _marked(claim, known)
        if isinstance(mark, Repeat):
            return mark
        if mark:
            return Take(None, (), _skipped(deliveries), (), Stop(mark))
    return Take(joined, candidates, deliveries, claim.shared)


def same_items(own: tuple[Name, ...], fingerprint: str, known: Known) -> tuple[Entry, ...]:
    """Entries of the same item: under its own names, with a fingerprint that does not conflict (23), or does so only
    because of a tag in front of the subject: then they share the Message-ID, as email ids are made of the subject."""
    ours = Fingerprint.parse(fingerprint)
    under = {entry.id: entry for name in identity(own, fingerprint) for entry in known.of(name).entries}
    found = ((each, Fingerprint.parse(each.fingerprint)) for each in under.values())
    return tuple(each for each, theirs in found if not conflicts(ours, theirs) or differs_by_tag(ours, theirs))


def compared(entries: Sequence[Entry]) -> tuple[str, ...]:
    """The ids of those under one name, oldest first, that Redis goes on comparing: all that are claimed, and of the
    others the newest, delivered ones before those that were not (23)."""
    ended = [entry for entry in entries if DeliveryStatus.CLAIMED not in {each.status for each in entry.deliveries}]
    spare = sorted(ended, key=lambda entry: entry.is_delivered_somewhere)[:-MOST_REFERENCES]
    return tuple(entry.id for entry in entries if entry not in spare)


def _made_for(destination: str, entry: Entry) -> list[Delivery]:
    """Deliveries to that destination. What a script has published counts for all of them, and each for a script."""
    wanted = (destination, BY_SCRIPT)
    return [each for each in entry.deliveries if destination == BY_SCRIPT or each.destination in wanted]


def _covers(delivery: Delivery) -> bool:
    return delivery.status in SETTLED and delivery.is_accepted


def _blocks(delivery: Delivery, owner: str, now_ms: int) -> bool:
    """A live claim of another, or one that is stored here and that Redis has not accepted yet (6)."""
    if delivery.status is DeliveryStatus.WAITING:
        return not delivery.is_accepted
    return delivery.is_live(now_ms) and delivery.owner != owner


def _nearest(claim: Claim, candidates: Sequence[Entry]) -> Entry:
    """The one with most equal known parts, then the oldest."""
    if len(candidates) == 1:
        return candidates[0]
    ours = Fingerprint.parse(claim.fingerprint)

    def distance(entry: Entry) -> tuple[int, int, str]:
        theirs = Fingerprint.parse(entry.fingerprint)
        equal = sum(one is not None and one == other for one, other in zip(ours, theirs, strict=True))
        return -equal, entry.created_ms, entry.id

    return min(candidates, key=distance)


def _name_of(claim: Claim, known: Known, entry: Entry) -> Name:
    under = (name for name in claim.identity if any(each.id == entry.id for each in known.of(name).entries))
    return next(under, claim.own[0])


def _marked(claim: Claim, known: Known) -> Name | Repeat | None:
    """The mark of a name outlives its entry (25). An undated id never stops by its mark alone."""
    ours = Fingerprint.parse(shortened(claim.fingerprint))
    foreign = None
    for name in claim.own:
        state = known.of(name)
        for ended in state.ended:
            if not name.needs_agreement and not conflicts(ours, Fingerprint.parse(ended.fingerprint)):
                return Repeat(ended, name)
        if state.is_foreign and not name.needs_agreement:
            foreign = foreign or name
    return foreign


def _delivery_for(wanted: Wanted, joined: Entry | None = None, differs_by: str = "") -> Delivery:
    """A retry goes on with the attempts of the one that was returned. ``differs_by``: its fingerprint, if another item
    has the same names; then its webhook-id is another one (17)."""
    webhook_id = wanted.webhook_id
    if differs_by and webhook_id:
        webhook_id = f"msg_{hashlib.sha256(f'{webhook_id}.{differs_by}'.encode()).hexdigest()[:32]}"
    fresh = Delivery(wanted.destination, webhook_id, content=wanted.content)
    before = joined.delivery_to(wanted.destination) if joined else None
    if before is None:
        return fresh
    kept = {"generation": before.generation, "tries": before.tries, "attempts": before.attempts}
    return replace(fresh, webhook_id=before.webhook_id or webhook_id, **kept)


def _skipped(deliveries: Iterable[Delivery]) -> tuple[Delivery, ...]:
    return tuple(replace(each, status=DeliveryStatus.SKIPPED) for each in deliveries)


# The gates of names that it shares with other items (26, 27)


class Met(Struct, frozen=True):
    """Another item at a shared name: it marked the name, or holds it (``is_held``)."""

    name: Name
    by: Entry | None
    is_held: bool = False

    @property
    def stop(self) -> Stop:
        return Stop(self.name, self.by.id, self.by.created_ms) if self.by else Stop(self.name)

    @property
    def reason(self) -> str:
        return f"repeats {self.name.label}{f' of {self.by.id}' if self.by else ''}"


def meet(name: Name, known: Known, same: Iterable[Entry]) -> Met | None:
    """Who is in the way at this name; the same email never is, once it holds or has marked it."""
    state = known.of(name)
    ours = {entry.id for entry in same}
    if any(each.id in ours and (each.is_delivered_somewhere or holds(each, name)) for each in state.entries):
        return None
    others = [each for each in (*state.entries, *state.ended) if each.id not in ours]
    if state.is_marked:
        return Met(name, others[0] if others else None)
    holder = next((each for each in others if holds(each, name, known.now_ms)), None)
    return Met(name, holder, is_held=True) if holder else None


def holds(entry: Entry, name: Name, now_ms: int = -1) -> bool:
    """A stored delivery holds without a lease; a delivery that ended, or whose lease did, holds nothing.

    One that waits for a name itself holds none.
    """
    deliveries = [each for each in entry.deliveries if name.gate is not Gate.CONTENT or each.destination == name.scope]
    held = (each for each in deliveries if each.waits_for is None)
    return any(each.status is DeliveryStatus.WAITING or each.is_live(now_ms) for each in held)


def meet_again(entry: Entry, destination: str, known: Known) -> Met | None:
    """Of a stored delivery that waits for a name: who is in the way now (27)."""
    asked = gates_of(entry, destination)
    for gate in (Gate.SUBJECT_GROUP, Gate.MEDIA, Gate.CONTENT):
        names = [name for name in asked if name.gate is gate]
        met = [found for name in names if (found := meet(name, known, (entry,)))]
        held = next((each for each in met if each.is_held), None)
        if held or (met and len(met) == len(names)):
            return held or met[0]
    return None


def gates_of(entry: Entry, destination: str) -> tuple[Name, ...]:
    """The names that one of its deliveries shares with other items."""
    delivery = entry.delivery_to(destination)
    return (*entry.shared, *((delivery.content,) if delivery and delivery.content else ()))


def judge(claim: Claim, known: Known) -> Judgement:
    """Identity first, then the gates of the shared names, in their order.

    Of several media all must be known for a stop; those that are known are left out of what it holds."""
    take = identify(claim, known)
    if not isinstance(take, Take) or take.stop or not claim.gates:
        return take
    shared: list[Name] = []
    for gate in (Gate.SUBJECT_GROUP, Gate.MEDIA):
        names = [name for name in claim.shared if name.gate is gate]
        met = [found for name in names if (found := meet(name, known, take.candidates))]
        marked = [each for each in met if not each.is_held]
        if marked and len(marked) == len(names):
            return replace(take, deliveries=_skipped(take.deliveries), shared=(), stop=marked[0].stop)
        held = next((each for each in met if each.is_held), None)
        if held and claim.is_by_script:
            return Busy(held.name.gate, held.name.label, 1000)
        if held:  # it keeps the names that it will ask for again, and holds none of them
            return replace(take, deliveries=tuple(_waiting(each, held.name) for each in take.deliveries))
        left_out = {each.name for each in marked}
        shared += [name for name in names if name not in left_out]
    return _pass_content_gates(replace(take, shared=tuple(shared)), known)


def _pass_content_gates(take: Take, known: Known) -> Take:
    """Content concerns one destination only: the others are delivered."""
    judged: list[Delivery] = []
    stops: list[Stop] = []
    for each in take.deliveries:
        met = meet(each.content, known, take.candidates) if each.content else None
        if met is None:
            judged.append(each)
        elif met.is_held:
            judged.append(_waiting(each, met.name))
        else:
            stops.append(met.stop)
            judged.append(replace(each, status=DeliveryStatus.SKIPPED, reason=met.reason))
    is_stopped = bool(stops) and len(stops) == len(judged)
    return replace(
        take,
        deliveries=tuple(judged),
        stop=stops[0] if is_stopped else None,
        shared=() if is_stopped else take.shared,
    )


def _waiting(delivery: Delivery, name: Name) -> Delivery:
    reason = f"another email with the same {name.gate} is being delivered"
    return replace(delivery, status=DeliveryStatus.WAITING, waits_for=name, reason=reason)


# How an entry changes


def taken(claim: Claim, take: Take, machine: str, now_ms: int, reset: int, lease_until_ms: int = 0) -> Entry:
    """The entry as its owner holds it: nothing of it is settled yet, also what is to be skipped or to wait. Redis alone
    knows when a lease ends there (0).

    A repeat may fill in a part of the fingerprint, never change one (23).
    """
    entry = take.joined or Entry(claim.entry, machine, (), now_ms, claim.fingerprint)
    fingerprint = entry.fingerprint
    if fingerprint != claim.fingerprint:
        fingerprint = str(filled(Fingerprint.parse(fingerprint), Fingerprint.parse(claim.fingerprint)))
    is_replaced = entry.shared and claim.is_by_script  # a crashed reservation, which may have had other links
    taken_now = {each.destination for each in take.deliveries}
    deliveries = [each for each in entry.deliveries if each.destination not in taken_now]
    for each in take.deliveries:
        # One that is to be skipped for its words holds them as little as one that waits for a name.
        waits_for = each.content if each.status is DeliveryStatus.SKIPPED else each.waits_for
        held = {"status": DeliveryStatus.CLAIMED, "owner": claim.owner, "lease_until_ms": lease_until_ms}
        deliveries.append(replace(each, **held, waits_for=waits_for))
    return replace(
        entry,
        own=tuple(dict.fromkeys((*entry.own, *claim.own))),
        shared=tuple(dict.fromkeys((*(() if is_replaced else entry.shared), *take.shared))),
        fingerprint=fingerprint,
        about=claim.about if not entry.about.item else entry.about,
        reset=max(entry.reset, reset),
        deliveries=tuple(deliveries),
        stop=take.stop or entry.stop,
        proof=f"{claim.proof}={claim.key}" if claim.proof else entry.proof,
    )


def settled(entry: Entry, outcomes: Iterable[Delivery], owner: str, now_ms: int) -> Entry | None:
    """The entry after its deliveries ended; None if it may not change.

    "Delivered" is a fact, and written even if the lease has ended; the rest are decisions of the present owner (5).
    """
    deliveries = {each.destination: each for each in entry.deliveries}
    is_changed = False
    for outcome in outcomes:
        before = deliveries.get(outcome.destination)
        is_fact = outcome.status is DeliveryStatus.DELIVERED
        is_owner = before is not None and before.owner == owner and before.status in OPEN
        is_known = (
            before is not None and before.status is DeliveryStatus.DELIVERED and before.generation >= outcome.generation
        )
        if is_known or not (is_fact or is_owner):
            continue
        is_changed = True
        deliveries[outcome.destination] = replace(
            outcome,
            generation=max(outcome.generation, before.generation if before else 0),
            ended_ms=outcome.ended_ms or (now_ms if outcome.status in ENDED else None),
            owner=owner if outcome.status is DeliveryStatus.RETURNED else "",  # whose hold in Redis it ends
            lease_until_ms=0,
        )
    if not is_changed:
        return None
    # Shared names stay while something of it was delivered or is still to be; otherwise they are free again (26).
    keeping = {*OPEN, DeliveryStatus.DELIVERED}
    is_kept = any(each.status in keeping for each in deliveries.values())
    return replace(entry, deliveries=tuple(deliveries.values()), shared=entry.shared if is_kept else ())


def marked_names(entry: Entry) -> tuple[Name, ...]:
    """Own names once its provider was answered with 2xx, shared names once it was delivered, words where they were."""
    words = (each.content for each in entry.deliveries if each.content and each.status is DeliveryStatus.DELIVERED)
    own = entry.own if any(each.status in SETTLED for each in entry.deliveries) else ()
    return (*own, *(entry.shared if entry.is_delivered_somewhere else ()), *words)


# What other machines publish


_RANKS = dict(zip(DeliveryStatus, (0, 0, 1, 2, 3, 2), strict=True))


def merged(ours: Entry | None, incoming: Entry, now_ms: int) -> Entry:
    """What is known of an entry after an event or a reference of another machine (10, 22).

    ``ours`` has the leases of this journal; a live claim here gives way to "delivered" alone. An older one never
    replaces a newer one, which is decided by the number of the reset and by the generation of each delivery.
    """
    if ours is None:
        return incoming
    if incoming.reset != ours.reset and not ours.is_open:
        return ours if incoming.reset < ours.reset else incoming
    deliveries = {each.destination: each for each in ours.deliveries}
    for each in incoming.deliveries:
        before = deliveries.get(each.destination)
        if before is None or _is_newer(each, before, now_ms):
            deliveries[each.destination] = each
    known, more = Fingerprint.parse(ours.fingerprint), Fingerprint.parse(incoming.fingerprint)
    return replace(
        ours,
        own=tuple(dict.fromkeys((*ours.own, *incoming.own))),
        shared=tuple(dict.fromkeys((*ours.shared, *incoming.shared))),
        fingerprint=str(filled(known, more)),
        about=ours.about if ours.about.item else incoming.about,
        reset=max(ours.reset, incoming.reset),
        deliveries=tuple(deliveries.values()),
        answer=ours.answer or incoming.answer,
        settled_ms=ours.settled_ms or incoming.settled_ms,
        stop=ours.stop or incoming.stop,
        released_ms=max(filter(None, (ours.released_ms, incoming.released_ms)), default=None),
        retries_left=fewest(ours.retries_left, incoming.retries_left),
        proof=incoming.proof or ours.proof,
        is_evicted=ours.is_evicted or incoming.is_evicted,
    )


def published(
    ours: Entry, present: Entry | None, others: Iterable[Entry], machine: str, now_ms: int
) -> tuple[Entry, Mapping[str, str]]:
    """What Redis is to keep of an entry, and the stored deliveries that it refuses, by destination (17): they are
    "held" by another request for now, or another entry "covers" them.

    ``present``: the same entry as Redis has it, ``others``: entries of the same email under other ids.

    A claim that this machine holds in Redis has ended if its journal says so. "Delivered" is taken from anyone; a
    delivery is stored for the first time only if no other process works on it or has settled it.
    """
    deliveries = {each.destination: each for each in present.deliveries} if present else {}
    refused = {}
    for each in ours.deliveries:
        if each.status is DeliveryStatus.CLAIMED:
            continue
        before = deliveries.get(each.destination)
        if before and before.status is DeliveryStatus.CLAIMED and before.owner.startswith(f"{machine}."):
            if each.status is DeliveryStatus.RETURNED and each.owner != before.owner:
                continue  # another request of this machine holds it by now
            before = None
        if each.status is DeliveryStatus.WAITING and not each.is_accepted:
            # One that waits under the same id is this one: two processes may publish it, and an answer may be lost.
            same = None if before and before.status is DeliveryStatus.WAITING else before
            made = [same, *(other.delivery_to(each.destination) for other in others)]
            covers, blocks = (any(map(asks, filter(None, made))) for asks in (_covers, lambda one: one.is_live(now_ms)))
            if covers or blocks:
                refused[each.destination] = "covers" if covers else "held"
                continue
        if before is None or _is_newer(each, before, now_ms):
            deliveries[each.destination] = each
    reset = max(ours.reset, present.reset) if present else ours.reset
    return replace(ours, deliveries=tuple(deliveries.values()), reset=reset), refused


def _is_newer(incoming: Delivery, ours: Delivery, now_ms: int) -> bool:
    if incoming.generation != ours.generation:
        return incoming.generation > ours.generation
    if ours.is_live(now_ms):
        return incoming.status is DeliveryStatus.DELIVERED
    if _RANKS[incoming.status] != _RANKS[ours.status]:
        return _RANKS[incoming.status] > _RANKS[ours.status]
    is_fuller = bool(incoming.webhook_id) and not ours.webhook_id  # a reference in Redis says less than an event
    return is_fuller or (incoming.status is DeliveryStatus.WAITING and incoming.tries >= ours.tries)


def fewest(*retries_left: int | None) -> int | None:
    return min((each for each in retries_left if each is not None), default=None)
