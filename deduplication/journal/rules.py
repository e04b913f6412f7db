"""The rules about items, as pure functions: they take what is known and return what follows from it.

They apply to the names in a journal and to those in Redis alike. Numbers refer to the rules of docs/architecture.md.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from deduplication.journal.entry import BY_SCRIPT, ENDED, OPEN, SETTLED, About, Delivery, DeliveryStatus, Entry, Stop
from deduplication.names import Fingerprint, Gate, Name, conflicts, differs_by_tag, filled, shortened
from deduplication.values import kept_property

MOST_REFERENCES = 64  # under one name
HELD = "~"  # prefix of the key of an email whose proof of origin is in use but not accepted yet (28)


class Wanted(Struct, frozen=True):
    """A destination for the item. ``content`` is the name of its words there, if that gate is on."""

    destination: str
    webhook_id: str = ""
    content: Name | None = None


class Claim(Struct, frozen=True, dict=True):
    """``entry`` is the id that the item's entry gets if it is a new one. ``own`` names are in order of precedence.

    ``proof`` is the provider's proof of origin, which is good for one email (28), and ``key`` identifies that email;
    both are digests. ``owner`` begins with the name of the machine and a dot.
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
        return (*self.shared, *(wanted.content for wanted in self.destinations if wanted.content))

    @kept_property
    def references(self) -> dict[str, Name]:
        """All names that a hold takes, by their references."""
        return references((*self.identity, *self.gates), self.fingerprint)


def identity(own: tuple[Name, ...], fingerprint: str) -> tuple[Name, ...]:
    """The names that identify an item. An undated id counts only if the text is known too (23)."""
    if Fingerprint.parse(fingerprint).text is not None:
        return own
    return tuple(name for name in own if not name.needs_agreement)


def references(names: Iterable[Name], fingerprint: str) -> dict[str, Name]:
    """Names by the text under which they refer to an entry. That of an undated id includes the fingerprint (23)."""
    return {f"{name.label}#{fingerprint}" if name.needs_agreement else name.label: name for name in names}


def name_of(reference: str) -> Name:
    name = Name.from_label(reference)
    return Name(name.kind, name.scope, name.value.partition("#")[0]) if name.needs_agreement else name


class NameState(Struct, frozen=True):
    """What is known of a name. ``ended`` are emails that marked it and whose entries are no longer kept: their id, time
    and a short fingerprint remain (25). ``is_foreign``: the mark may belong to an email that is unknown here."""

    is_marked: bool = False
    entries: tuple[Entry, ...] = ()
    ended: tuple[Entry, ...] = ()
    is_foreign: bool = False
    reset: int = 0


UNKNOWN_NAME = NameState()


class Known(Struct, frozen=True):
    """What a judgement is based on. ``names`` has the known names by their labels. The leases of the entries are
    counted by the clock of ``now_ms``.

    ``proven`` is the key of the email for which the proof was accepted, or is in use (with HELD in front).
    """

    names: Mapping[str, NameState] = {}
    now_ms: int = 0
    proven: str = ""

    def of(self, name: Name) -> NameState:
        return self.names.get(name.label, UNKNOWN_NAME)

    @property
    def reset(self) -> int:
        return max((state.reset for state in self.names.values()), default=0)


class Repeat(Struct, frozen=True):
    """The original covers all its destinations. If the original's entry has ended, ``of`` has only its id and time."""

    of: Entry
    name: Name


class Busy(Struct, frozen=True):
    """Another process is working on it; ask again after that time."""

    gate: Gate
    name: str
    retry_after_ms: int


class ProofUsed(Struct, frozen=True):
    """The proof of origin was accepted with another email, so it does not prove this one."""


class Take(Struct, frozen=True):
    """The item can be claimed: as the entry that it joins, or as a new one.

    ``deliveries`` are those still to be made. With a ``stop`` all of them are skipped; those that meet a held name
    wait for it. ``shared`` are the names to hold with it.
    """

    joined: Entry | None = None
    candidates: tuple[Entry, ...] = ()
    deliveries: tuple[Delivery, ...] = ()
    shared: tuple[Name, ...] = ()
    stop: Stop | None = None


Judgement = Repeat | Busy | ProofUsed | Take


def identify(claim: Claim, known: Known) -> Judgement:
    """Judges by the item's own names alone (23, 24)."""
    if known.proven.removeprefix(HELD) not in ("", claim.key):
        is_held = known.proven.startswith(HELD)
        return Busy(claim.own[0].gate, claim.own[0].label, 1_000) if is_held else ProofUsed()
    if not known.names:
        return Take(None, (), tuple(map(_new_delivery, claim.destinations)), claim.shared)
    candidates = same_items(claim.own, claim.fingerprint, known)
    missing: list[Wanted] = []
    for wanted in claim.destinations:
        # An item that a script published counts for every destination, and any destination counts for a script.
        at = {wanted.destination, BY_SCRIPT}
        made = (delivery for entry in candidates for delivery in entry.deliveries)
        deliveries = [one for one in made if wanted.destination == BY_SCRIPT or one.destination in at]
        if any(_covers(delivery) for delivery in deliveries):
            continue
        blocking = [delivery for delivery in deliveries if _blocks(delivery, claim.owner, known.now_ms)]
        if blocking:
            left_ms = max(delivery.lease_until_ms for delivery in blocking) - known.now_ms
            return Busy(claim.own[0].gate, claim.own[0].label, max(1, left_ms))
        missing.append(wanted)
    if not missing:
        nearest = _nearest(claim, candidates)
        name = next((name for name in claim.identity if nearest in known.of(name).entries), claim.own[0])
        if not conflicts(Fingerprint.parse(claim.fingerprint), Fingerprint.parse(nearest.fingerprint)):
            return Repeat(nearest, name)
        skipped = _skip([_new_delivery(wanted, None, claim.fingerprint) for wanted in claim.destinations])
        return Take(None, (), skipped, (), Stop(name, nearest.id, nearest.created_ms))
    joined = _nearest(claim, candidates) if candidates else None
    under = (entry for name in claim.identity for entry in (*known.of(name).entries, *known.of(name).ended))
    differs_by = claim.fingerprint if any(entry not in candidates for entry in under) else ""
    had_already = tuple(wanted.destination for wanted in claim.destinations if wanted not in missing)
    to_make = [replace(_new_delivery(wanted, joined, differs_by), had_already=had_already) for wanted in missing]
    if not candidates:
        mark = _find_mark(claim, known)
        if isinstance(mark, Repeat):
            return mark
        if mark:
            return Take(None, (), _skip(to_make), (), Stop(mark))
    return Take(joined, candidates, tuple(to_make), claim.shared)


def same_items(own: tuple[Name, ...], fingerprint: str, known: Known) -> tuple[Entry, ...]:
    """Entries of the same item: those under its own names whose fingerprint does not conflict (23), or conflicts only
    by a tag in front of the subject. The latter share the Message-ID, as email ids are made of the subject."""
    ours = Fingerprint.parse(fingerprint)
    under = {entry.id: entry for name in identity(own, fingerprint) for entry in known.of(name).entries}
    pairs = ((entry, Fingerprint.parse(entry.fingerprint)) for entry in under.values())
    return tuple(entry for entry, theirs in pairs if not conflicts(ours, theirs) or differs_by_tag(ours, theirs))


def ids_to_compare(entries: Sequence[Entry]) -> tuple[str, ...]:
    """Of the entries under one name, oldest first, those that Redis continues to compare: all claimed ones, then
    delivered ones before others, the newest first (23)."""
    ended = [entry for entry in entries if DeliveryStatus.CLAIMED not in entry.statuses]
    spare = sorted(ended, key=lambda entry: entry.is_delivered_somewhere)[:-MOST_REFERENCES]
    return tuple(entry.id for entry in entries if entry not in spare)


def _covers(delivery: Delivery) -> bool:
    return delivery.status in ENDED or (delivery.status is DeliveryStatus.WAITING and delivery.is_accepted)


def _blocks(delivery: Delivery, owner: str, now_ms: int) -> bool:
    """It is another owner's live claim, or stored here and not accepted by Redis yet (6)."""
    if delivery.status is DeliveryStatus.WAITING:
        return not delivery.is_accepted
    return delivery.is_live(now_ms) and delivery.owner != owner


def _nearest(claim: Claim, candidates: Sequence[Entry]) -> Entry:
    """The one with the same fingerprint, else one that does not conflict; of several, the oldest."""

    def distance(entry: Entry) -> tuple[bool, bool, int, str]:
        is_different = entry.fingerprint != claim.fingerprint
        is_in_conflict = conflicts(Fingerprint.parse(claim.fingerprint), Fingerprint.parse(entry.fingerprint))
        return is_different, is_in_conflict, entry.created_ms, entry.id

    return min(candidates, key=distance)


def _find_mark(claim: Claim, known: Known) -> Name | Repeat | None:
    """Marks outlive entries (25). The mark of an undated id alone never stops an email."""
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


def _new_delivery(wanted: Wanted, joined: Entry | None = None, differs_by: str = "") -> Delivery:
    """A retry continues the attempts of the delivery that was returned. ``differs_by`` is the item's fingerprint if
    another item has the same names: it then becomes part of the webhook-id (17)."""
    webhook_id = wanted.webhook_id
    if differs_by and webhook_id:
        webhook_id = f"msg_{hashlib.sha256(f'{webhook_id}.{differs_by}'.encode()).hexdigest()[:32]}"
    fresh = Delivery(wanted.destination, webhook_id, content=wanted.content)
    before = joined.delivery_to(wanted.destination) if joined else None
    if before is None:
        return fresh
    kept = {"generation": before.generation, "tries": before.tries, "attempts": before.attempts}
    return replace(fresh, webhook_id=before.webhook_id or webhook_id, **kept)


def _skip(deliveries: Iterable[Delivery]) -> tuple[Delivery, ...]:
    return tuple(replace(delivery, status=DeliveryStatus.SKIPPED) for delivery in deliveries)


# The gates of names that it shares with other items (26, 27)


def find_stop(name: Name, known: Known, same: Iterable[Entry]) -> Stop | None:
    """Whether another item has marked or holds a shared name. ``same`` are entries of the same email, which never stop
    it: a name that they hold or have marked is free."""
    state = known.of(name)
    ours = {entry.id for entry in same}
    if any(entry.id in ours and _has(entry, name) for entry in state.entries):
        return None
    others = [entry for entry in (*state.entries, *state.ended) if entry.id not in ours]
    if not state.is_marked:
        others = [entry for entry in others if holds(entry, name, known.now_ms)]
    if others:
        return Stop(name, others[0].id, others[0].created_ms, is_held=not state.is_marked)
    return Stop(name) if state.is_marked else None


def holds(entry: Entry, name: Name, now_ms: int = -1) -> bool:
    """A stored delivery holds without a lease, unless it waits for a name itself. A delivery that has ended, or whose
    lease has, holds nothing. A name of words concerns one destination only."""
    holding = (delivery for delivery in entry.deliveries if delivery.waits_for is None and delivery.is_busy(now_ms))
    return any(name.gate is not Gate.CONTENT or delivery.destination == name.scope for delivery in holding)


def _has(entry: Entry, name: Name, now_ms: int = -1) -> bool:
    return entry.is_delivered_somewhere or holds(entry, name, now_ms)


def _try_gate(gate: Gate, names: Iterable[Name], known: Known, same: Iterable[Entry]) -> tuple[Stop | None, list[Name]]:
    """What stops the item at one gate, and the names of it that are free. Marked media stop it only if all are."""
    asked = [name for name in names if name.gate is gate]
    stops = {name: stop for name in asked if (stop := find_stop(name, known, same))}
    free = [name for name in asked if name not in stops]
    held = next((stop for stop in stops.values() if stop.is_held), None)
    return held or (stops[asked[0]] if asked and not free else None), free


def find_stop_again(entry: Entry, destination: str, known: Known) -> Stop | None:
    """What stops a stored delivery that waited for a name (27)."""
    names = shared_names(entry, destination)
    gates = (Gate.SUBJECT_GROUP, Gate.MEDIA, Gate.CONTENT)
    stops = (_try_gate(gate, names, known, (entry,))[0] for gate in gates)
    return next(filter(None, stops), None)


def shared_names(entry: Entry, destination: str) -> tuple[Name, ...]:
    """The names that one of its deliveries shares with other items."""
    delivery = entry.delivery_to(destination)
    return (*entry.shared, *((delivery.content,) if delivery and delivery.content else ()))


def judge(claim: Claim, known: Known) -> Judgement:
    """Identity first, then the gates of the shared names, in their order."""
    take = identify(claim, known)
    if not isinstance(take, Take) or take.stop or not claim.gates:
        return take
    shared: list[Name] = []
    for gate in (Gate.SUBJECT_GROUP, Gate.MEDIA):
        stop, free = _try_gate(gate, claim.shared, known, take.candidates)
        if stop and not stop.is_held:
            return replace(take, deliveries=_skip(take.deliveries), shared=(), stop=stop)
        # An entry cannot wait for a name while another delivery of it holds or has marked its shared names.
        if stop and (claim.is_by_script or (take.joined and _has(take.joined, stop.name, known.now_ms))):
            return Busy(gate, stop.name.label, 1000)
        if stop:  # it keeps the names that it will ask for again, and holds none of them
            return replace(take, deliveries=tuple(_wait_for(stop.name, delivery) for delivery in take.deliveries))
        shared += free
    return _judge_content(replace(take, shared=tuple(shared)), known)


def _judge_content(take: Take, known: Known) -> Take:
    """Content concerns one destination only: the others are delivered."""
    judged: list[Delivery] = []
    stops: list[Stop] = []
    for delivery in take.deliveries:
        stop = find_stop(delivery.content, known, take.candidates) if delivery.content else None
        if stop is None:
            judged.append(delivery)
        elif stop.is_held:
            judged.append(_wait_for(stop.name, delivery))
        else:
            stops.append(stop)
            judged.append(replace(delivery, status=DeliveryStatus.SKIPPED, reason=stop.reason))
    if stops and len(stops) == len(judged):
        return replace(take, deliveries=tuple(judged), stop=stops[0], shared=())
    return replace(take, deliveries=tuple(judged))


def _wait_for(name: Name, delivery: Delivery) -> Delivery:
    reason = f"another email with the same {name.gate} is being delivered"
    return replace(delivery, status=DeliveryStatus.WAITING, waits_for=name, reason=reason)


# How an entry changes


def claim_entry(claim: Claim, take: Take, machine: str, now_ms: int, reset: int, lease_until_ms: int = 0) -> Entry:
    """The entry as its owner holds it. Nothing of it is settled yet, not even a delivery that will be skipped or will
    wait. In Redis, which counts the lease itself, ``lease_until_ms`` is 0.

    A repeat may fill in a part of the fingerprint, but never change one (23).
    """
    entry = take.joined or Entry(claim.entry, machine, (), now_ms, claim.fingerprint)
    fingerprint = entry.fingerprint
    if fingerprint != claim.fingerprint:
        fingerprint = str(filled(Fingerprint.parse(fingerprint), Fingerprint.parse(claim.fingerprint)))
    asked_ms = lease_until_ms - claim.lease_ms
    has_names = entry.is_delivered_somewhere or entry.is_busy(asked_ms)  # a lapsed claim may have had other names
    deliveries = entry.by_destination
    for delivery in take.deliveries:
        # A delivery that will be skipped for its words does not hold them, just as one that waits for a name.
        waits_for = delivery.content if delivery.status is DeliveryStatus.SKIPPED else delivery.waits_for
        held = {"status": DeliveryStatus.CLAIMED, "owner": claim.owner, "lease_until_ms": lease_until_ms}
        deliveries[delivery.destination] = replace(delivery, **held, waits_for=waits_for)
    return replace(
        entry,
        own=tuple(dict.fromkeys((*entry.own, *claim.own))),
        shared=tuple(dict.fromkeys((*(entry.shared if has_names else ()), *take.shared))),
        fingerprint=fingerprint,
        about=claim.about if not entry.about.item else entry.about,
        reset=max(entry.reset, reset),
        deliveries=tuple(deliveries.values()),
        stop=take.stop or entry.stop,
        proof=f"{claim.proof}={claim.key}" if claim.proof else entry.proof,
    )


def settle(entry: Entry, outcomes: Iterable[Delivery], owner: str, now_ms: int) -> Entry | None:
    """The entry with these outcomes; None if nothing of it may change.

    "Delivered" is a fact and is recorded even after the lease; all others are decisions of the present owner (5).
    """
    deliveries, is_changed = entry.by_destination, False
    for outcome in outcomes:
        before = deliveries.get(outcome.destination)
        is_fact = outcome.status is DeliveryStatus.DELIVERED
        is_owner = before is not None and before.owner == owner and before.status in OPEN
        was_delivered = before is not None and before.status is DeliveryStatus.DELIVERED
        is_known = was_delivered and before is not None and before.generation >= outcome.generation
        if is_known or not (is_fact or is_owner):
            continue
        is_changed = True
        deliveries[outcome.destination] = replace(
            outcome,
            generation=max(outcome.generation, before.generation if before else 0),
            ended_ms=outcome.ended_ms or (now_ms if outcome.status in ENDED else None),
            owner=owner if outcome.status is DeliveryStatus.RETURNED else "",  # to end this owner's hold in Redis
            lease_until_ms=0,
            is_accepted=outcome.is_accepted or outcome.status in ENDED,
        )
    if not is_changed:
        return None
    after = replace(entry, deliveries=tuple(deliveries.values()))
    # Shared names are kept while a delivery was made or is still to be made; otherwise they are free again (26).
    return replace(after, shared=()) if after.statuses.isdisjoint({*OPEN, DeliveryStatus.DELIVERED}) else after


def without_name(entry: Entry, name: Name) -> Entry:
    """The entry after a reset of a shared name, which frees only that name (21)."""
    shared = tuple(other for other in entry.shared if other != name)
    deliveries = tuple(replace(made, content=None) if made.content == name else made for made in entry.deliveries)
    return replace(entry, shared=shared, deliveries=deliveries)


def names_to_mark(entry: Entry) -> tuple[Name, ...]:
    """Own names once its provider was answered with 2xx, shared names once it was delivered, and the names of its words
    at the destinations that received it."""
    received = entry.deliveries_with(DeliveryStatus.DELIVERED)
    own = entry.own if entry.statuses & SETTLED else ()
    shared = entry.shared if received else ()
    return (*own, *shared, *(delivery.content for delivery in received if delivery.content))


# What other machines publish


_RANKS = dict(zip(DeliveryStatus, (0, 0, 1, 2, 3, 2), strict=True))


def merge(ours: Entry | None, incoming: Entry, now_ms: int) -> Entry:
    """What is known of an entry after an event or a reference of another machine (10, 22).

    ``ours`` has the leases of this journal; only "delivered" replaces a live claim here. An older entry never replaces
    a newer one: the number of the reset and the generation of the delivery say which one is newer.
    """
    if ours is None:
        return incoming
    if incoming.reset != ours.reset and not ours.is_open:
        return ours if incoming.reset < ours.reset else incoming
    deliveries = ours.by_destination
    for delivery in incoming.deliveries:
        before = deliveries.get(delivery.destination)
        if before is None or _is_newer(delivery, before, now_ms):
            deliveries[delivery.destination] = delivery
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
        retries_left=min_retries(ours.retries_left, incoming.retries_left),
        proof=incoming.proof or ours.proof,
        is_evicted=ours.is_evicted or incoming.is_evicted,
    )


def merge_in_redis(
    ours: Entry, present: Entry | None, others: Iterable[Entry], machine: str, now_ms: int
) -> tuple[Entry, Mapping[str, str]]:
    """What Redis is to keep of an entry, and why it refuses stored deliveries, by destination (17): another request
    has them "held" for now, or another entry "covers" them.

    ``present`` is the same entry as Redis has it; ``others`` are entries of the same email under other ids. A claim
    that this machine holds in Redis has ended if its journal says so. "Delivered" is accepted from anyone; a delivery
    is stored for the first time only if no other process works on it or has settled it.
    """
    deliveries = present.by_destination if present else {}
    refused = {}
    for delivery in ours.deliveries:
        if delivery.status is DeliveryStatus.CLAIMED:
            continue
        before = deliveries.get(delivery.destination)
        if before and before.status is DeliveryStatus.CLAIMED and before.owner.startswith(f"{machine}."):
            if delivery.status is DeliveryStatus.RETURNED and delivery.owner != before.owner:
                continue  # by now, another request of this machine holds it
            before = None
        if delivery.status is DeliveryStatus.WAITING and not delivery.is_accepted:
            # Under the same id it is this delivery: two processes may publish it, and an answer may be lost.
            same = None if before and before.status is DeliveryStatus.WAITING else before
            rivals = [same, *(entry.delivery_to(delivery.destination) for entry in others)]
            covers = any(rival and _covers(rival) for rival in rivals)
            if covers or any(rival and rival.is_live(now_ms) for rival in rivals):
                refused[delivery.destination] = "covers" if covers else "held"
                continue
        if before is None or _is_newer(delivery, before, now_ms):
            deliveries[delivery.destination] = delivery
    if present:  # a later outcome may have been published before this one
        retries_left = min_retries(ours.retries_left, present.retries_left)
        ours = replace(ours, reset=max(ours.reset, present.reset), retries_left=retries_left)
    return replace(ours, deliveries=tuple(deliveries.values())), refused


def _is_newer(incoming: Delivery, ours: Delivery, now_ms: int) -> bool:
    if incoming.generation != ours.generation:
        return incoming.generation > ours.generation
    if ours.is_live(now_ms):
        return incoming.status is DeliveryStatus.DELIVERED
    if _RANKS[incoming.status] != _RANKS[ours.status]:
        return _RANKS[incoming.status] > _RANKS[ours.status]
    is_fuller = bool(incoming.webhook_id) and not ours.webhook_id  # a reference in Redis has fewer fields than an event
    return is_fuller or (incoming.status is DeliveryStatus.WAITING and incoming.tries >= ours.tries)


def min_retries(*retries_left: int | None) -> int | None:
    return min((count for count in retries_left if count is not None), default=None)
