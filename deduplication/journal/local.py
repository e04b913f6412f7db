"""A journal on this machine: the rules of verdict.py, applied to rows. Memory and sqlite keep the rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

from deduplication.claims import Name
from deduplication.journal.base import (
    Begun,
    Claim,
    Claimed,
    Duplicate,
    Ending,
    Forgotten,
    InFlight,
    Retention,
    Settlement,
    Verdict,
)
from deduplication.journal.clock import Clock
from deduplication.journal.entry import Delivery, DeliveryStatus, Entry, State, Stop
from deduplication.journal.verdict import (
    Known,
    NameRecord,
    Ref,
    Repeat,
    Standing,
    Take,
    Told,
    begun,
    is_finished_by,
    judge,
    released,
    repeated,
    settled,
    standing,
    taken,
    with_facts,
)

HOUR_MS = 3_600_000


class LocalJournal(ABC):
    """Subclasses keep rows and give a transaction; everything that follows from a step is here."""

    def __init__(self, clock: Clock, retention: Retention) -> None:
        self._clock = clock
        self._retention = retention

    def now_ms(self) -> int:
        return self._clock.now_ms()

    # What a subclass keeps

    @abstractmethod
    def _transaction(self, *, durable: bool = False) -> AbstractContextManager[None]:
        """All inside is one atomic step for every thread and process; durable: it survives a power cut."""

    @abstractmethod
    def _name(self, name: Name) -> NameRecord: ...

    @abstractmethod
    def _mark(self, name: Name, until_ms: int | None) -> None:
        """None: for ever. A mark that lasts longer stays as it is."""

    @abstractmethod
    def _refer(self, name: Name, ref: Ref, *, alone: bool) -> None:
        """``alone``: in place of whoever had the name before."""

    @abstractmethod
    def _unrefer(self, name: Name, entry: str) -> None: ...

    @abstractmethod
    def _drop_name(self, name: Name) -> None:
        """Mark and references."""

    @abstractmethod
    def _put_entry(self, entry: Entry, until_ms: int | None) -> None: ...

    @abstractmethod
    def _put_payload(self, entry: str, payload: bytes | None) -> None: ...

    @abstractmethod
    def _followers(self, entry: str) -> list[Entry]:
        """The items stopped by this one that could still go out in its place, oldest first."""

    @abstractmethod
    def _due(self, destination: str, limit: int) -> list[Entry]: ...

    @abstractmethod
    def _next_fence(self) -> int: ...

    @abstractmethod
    def _entry(self, entry: str) -> Entry | None: ...

    @abstractmethod
    def payload(self, entry: str) -> bytes | None: ...

    @abstractmethod
    def find(self) -> Iterator[Entry]: ...

    @abstractmethod
    def check(self) -> None: ...

    @abstractmethod
    def close(self) -> None: ...

    # Claiming and settling

    def claim(self, claim: Claim) -> Verdict:
        contents = [each.content for each in claim.destinations if each.content]
        with self._transaction():
            known = self._known((*claim.own, *claim.shared, *contents))
            match judge(claim, known):
                case InFlight() as waiting:
                    return waiting
                case Told(entry):
                    return _answer(entry, (), is_first=False)
                case Repeat(original, name):
                    self._save(repeated(original, claim, known.now_ms), original)
                    return Duplicate(Stop(name, original.id, original.created_ms), original.answer)
                case Take() as take:
                    fence = self._next_fence()
                    entry = taken(claim, take, known, fence)
                    self._save(entry, take.joined)
                    left_out = tuple(name.label for name in take.left_out)
                    return _answer(entry, left_out, is_first=take.joined is None)

    def before_sending(self, claimed: Claimed) -> Entry | None:
        return claimed.entry if claimed.entry.lease_until_ms > self._clock.steady_ms() else None

    def note_delivered(self, entry: Entry, delivery: Delivery) -> None:  # noqa: B027
        """Nothing stands between the POST and its settlement on this machine."""

    def settle(self, claim: Claim, entry: Entry, settlement: Settlement) -> bool:
        with self._transaction(durable=settlement.payload is not None):
            now_ms = self.now_ms()
            before = self._entry(entry.id)
            if before is None:  # forgotten meanwhile; what was delivered did happen all the same
                if not any(each.status is DeliveryStatus.DELIVERED for each in settlement.deliveries):
                    return False
                take = Take(deliveries=settlement.deliveries)
                before = taken(replace(claim, entry=entry.id), take, self._known(()), self._next_fence())
                self._save(before)
            elif before.owner != claim.owner or before.state is not State.PENDING:
                self._save(with_facts(before, settlement), before)
                return False
            if before.stop and before.stop.follows and not self._may_follow(before.stop):
                self._save(settled(before, Settlement(Ending.FREE), now_ms), before)
                return False
            after = settled(before, settlement, now_ms)
            self._save(after, before)
            if settlement.payload is not None:
                self._put_payload(entry.id, settlement.payload)
            return True

    def _may_follow(self, stop: Stop) -> bool:
        original = self._entry(stop.original) if stop.original else None
        return original is not None and (original.has_open_deliveries or original.is_delivered_somewhere)

    def renew(self, entry: str, owner: str, lease_ms: int, destination: str | None = None) -> bool:
        with self._transaction():
            known, until_ms = self._entry(entry), self._clock.steady_ms() + lease_ms
            if known is None:
                return False
            if destination is None:
                if known.owner != owner or known.state is not State.PENDING:
                    return False
                self._save(replace(known, lease_until_ms=until_ms), known)
                return True
            delivery = known.delivery_to(destination)
            if delivery is None or delivery.owner != owner or delivery.status is not DeliveryStatus.DELIVERING:
                return False
            next_try_ms = self.now_ms() + lease_ms
            self._save(known.with_delivery(replace(delivery, lease_until_ms=until_ms, next_try_ms=next_try_ms)), known)
            return True

    # Delivering what is stored

    def due(self, room: Mapping[str, int], hold_ms: int) -> list[tuple[str, str]]:
        with self._transaction():
            handed_out = []
            for destination, limit in room.items():
                for entry in self._due(destination, limit):
                    delivery = entry.delivery_to(destination)
                    if delivery:
                        self._save(entry.with_delivery(replace(delivery, next_try_ms=self.now_ms() + hold_ms)), entry)
                        handed_out.append((entry.id, destination))
            return handed_out

    def begin(self, entry: str, destination: str, owner: str, lease_ms: int) -> Begun | None:
        with self._transaction():
            known = self._entry(entry)
            delivery = known.delivery_to(destination) if known else None
            if known is None or delivery is None or not known.has_open_deliveries or not delivery.status.is_open:
                return None
            if delivery.status is DeliveryStatus.DELIVERING and delivery.lease_until_ms > self._clock.steady_ms():
                return self._begun(known, delivery) if delivery.owner == owner else None
            names = [delivery.content] if delivery.content else []
            after = begun(known, delivery, self._known(names), owner, lease_ms, self._next_fence())
            changed = known.with_delivery(after)
            self._save(changed, known)
            self._end_if_over(changed)
            return self._begun(changed, after) if after.owner == owner else None

    def _begun(self, entry: Entry, delivery: Delivery) -> Begun:
        return Begun(entry, delivery, self.payload(entry.id))

    def finish(self, entry: str, owner: str, delivery: Delivery) -> Entry | None:
        """The entry afterwards; None if there is none, or the owner had nothing to say any more."""
        with self._transaction(durable=delivery.status is not DeliveryStatus.DELIVERED):
            known = self._entry(entry)
            before = known.delivery_to(delivery.destination) if known else None
            if known is None or before is None:
                return None
            is_fact = delivery.status is DeliveryStatus.DELIVERED and before.status is not DeliveryStatus.DELIVERED
            if not is_fact and not is_finished_by(known, before, owner):
                return None
            after = known.with_delivery(replace(delivery, owner="", lease_until_ms=0, begins=0))
            self._save(after, known)
            self._end_if_over(after)
            return after

    def _end_if_over(self, entry: Entry) -> None:
        """The last open delivery has ended: dead everywhere, the oldest follower goes out in its place (6)."""
        is_suppressed = entry.stop is not None and entry.released_ms is None
        if entry.state is not State.DONE or is_suppressed or entry.has_open_deliveries or entry.is_delivered_somewhere:
            return
        followers = self._followers(entry.id)
        if not followers:
            return
        first, *others = followers
        self._save(released(first, self.now_ms()), first)
        for other in others:
            if other.stop:
                stop = replace(other.stop, original=first.id, first_seen_ms=first.created_ms)
                self._save(replace(other, stop=stop), other)

    # Looking and forgetting

    def read(self, entry: str) -> Entry | None:
        with self._transaction():
            return self._entry(entry)

    def forget(self, names: Sequence[Name]) -> Forgotten:
        with self._transaction():
            forgotten, kept = 0, []
            for name in dict.fromkeys(names):
                record = self._name(name)
                entries = [entry for ref in record.refs if (entry := self._entry(ref.entry))]
                staying = [entry for entry in entries if name.is_own and entry.has_open_deliveries]
                if staying:
                    kept += [entry.id for entry in staying]
                    continue
                for entry in entries:
                    self._save_without(entry, name)
                self._drop_name(name)
                forgotten += record.is_marked or bool(entries)
            return Forgotten(forgotten, tuple(dict.fromkeys(kept)))

    def _save_without(self, entry: Entry, name: Name) -> None:
        """The entry itself stays to be seen; what it delivered or holds no longer counts under this name (13)."""
        own = tuple(each for each in entry.own if each != name)
        shared = tuple(each for each in entry.shared if each != name)
        deliveries = tuple(replace(each, content=None) if each.content == name else each for each in entry.deliveries)
        self._save(replace(entry, own=own, shared=shared, deliveries=deliveries), entry)

    # Rows

    def _known(self, names: Iterable[Name]) -> Known:
        records = {name: self._name(name) for name in names}
        ids = dict.fromkeys(ref.entry for record in records.values() for ref in record.refs)
        entries = {id_: entry for id_ in ids if (entry := self._entry(id_))}
        return Known(records, entries, self._clock.now_ms(), self._clock.steady_ms())

    def _save(self, entry: Entry, before: Entry | None = None) -> None:
        """The entry, and what its change means for each of its names."""
        self._put_entry(entry, self._until_ms(entry))
        for name in dict.fromkeys((*entry.names, *(before.names if before else ()))):
            was = standing(before, name) if before and name in before.names else None
            now = standing(entry, name) if name in entry.names else Standing.GIVEN_BACK
            if now is was:
                continue
            if now is Standing.GIVEN_BACK:
                self._unrefer(name, entry.id)
            else:
                self._refer(name, Ref(entry.id, entry.created_ms), alone=not name.is_own)
            if now is Standing.MARKED:
                self._mark(name, None if name.kept_ms is None else self.now_ms() + name.kept_ms)

    def _until_ms(self, entry: Entry) -> int | None:
        """How long it is kept, an hour after its last change at least; None while something is to be delivered."""
        if entry.has_open_deliveries:
            return None
        if entry.is_lock:
            return self.now_ms() + HOUR_MS
        is_dead = any(each.status is DeliveryStatus.DEAD for each in entry.deliveries)
        kept_ms = self._retention.dead_ms if is_dead else self._retention.entry_ms
        return max(self.now_ms() + HOUR_MS, (entry.settled_ms or entry.created_ms) + kept_ms)


def _answer(entry: Entry, left_out: tuple[str, ...], is_first: bool) -> Verdict:
    if entry.stop:
        return Duplicate(entry.stop, entry=entry)
    return Claimed(entry, left_out, is_first)
