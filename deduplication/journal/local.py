"""A journal on this machine: the rules of verdict.py, applied to rows. Memory and sqlite keep the rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
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
    Found,
    InFlight,
    Released,
    Replayed,
    Retention,
    Settlement,
    UnderWay,
    Verdict,
)
from deduplication.journal.clock import Clock
from deduplication.journal.entry import Delivery, DeliveryStatus, Entry, State, Stop
from deduplication.journal.verdict import (
    Known,
    NameRecord,
    Ref,
    Refused,
    Repeat,
    Standing,
    Take,
    Told,
    begun,
    found,
    freed,
    held_parts,
    is_finished_by,
    is_settled_already,
    judge,
    promoted,
    release_refusal,
    released,
    repeated,
    replay_refusal,
    replayed,
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

    @property
    def clock(self) -> Clock:
        return self._clock

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def lease_time_ms(self) -> int:
        return self._clock.steady_ms()

    # What a subclass keeps

    @abstractmethod
    def _transaction(self, *, durable: bool = False) -> AbstractContextManager[None]:
        """All inside is one atomic step for every thread and process; durable: it survives a power cut."""

    @abstractmethod
    def _names(self, names: Sequence[Name]) -> dict[Name, NameRecord]: ...

    @abstractmethod
    def _mark(self, marks: Sequence[tuple[Name, int | None]]) -> None:
        """Each until then; None: for ever. A mark that lasts longer stays as it is."""

    @abstractmethod
    def _refer(self, names: Sequence[Name], ref: Ref) -> None:
        """At a shared name in place of whoever had it before."""

    @abstractmethod
    def _unrefer(self, name: Name, entry: str) -> None: ...

    @abstractmethod
    def _drop_mark(self, name: Name) -> None: ...

    @abstractmethod
    def _put_entry(self, entry: Entry, before: Entry | None, until_ms: int | None) -> None: ...

    @abstractmethod
    def _drop_entry(self, entry: str) -> None: ...

    @abstractmethod
    def _put_payload(self, entry: str, payload: bytes | None, until_ms: int | None = None) -> None: ...

    @abstractmethod
    def _keep_payload(self, entry: str, until_ms: int | None) -> None:
        """None: for as long as the entry."""

    @abstractmethod
    def _followers(self, entry: str) -> list[Entry]:
        """The items stopped by this one that could still go out in its place, oldest first."""

    @abstractmethod
    def _due(self, destination: str, limit: int) -> list[Entry]: ...

    @abstractmethod
    def destinations(self) -> list[str]: ...

    @abstractmethod
    def _maybe_under_way(self) -> list[Entry]:
        """All locks, and every entry that may be held or have a delivery that was begun."""

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
                    stop = Stop(name, original.id, original.created_ms)
                    return Duplicate(stop, original.answer, original.fate)
                case Refused(name, other):
                    return Duplicate(Stop(name, other.id, other.created_ms) if other else Stop(name))
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
            stored = before = self._entry(entry.id)
            if before is None:  # forgotten meanwhile; what was delivered did happen all the same
                if not any(each.status is DeliveryStatus.DELIVERED for each in settlement.deliveries):
                    return False
                take = Take(deliveries=settlement.deliveries)
                before = taken(replace(claim, entry=entry.id), take, self._known(()), self._next_fence())
            elif before.owner != claim.owner or before.state is not State.PENDING:
                after = with_facts(before, settlement)
                self._save(after, before)
                self._end_if_over(after)
                return is_settled_already(before, claim, settlement)
            if before.stop and before.stop.follows and not self._may_follow(before.stop):
                self._save(settled(before, Settlement(Ending.FREE), now_ms), before)
                return False
            after = settled(before, settlement, now_ms)
            self._save(after, stored)
            is_kept = after.needs_payload or self._retention.delivered_payload_ms > 0
            if settlement.payload is not None and after.state is State.DONE and is_kept:
                self._put_payload(entry.id, settlement.payload, self._payload_until_ms(after))
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

    def begin(self, entry: str, destination: str, owner: str, lease_ms: int, server: str = "") -> Begun | None:
        with self._transaction():
            known = self._entry(entry)
            delivery = known.delivery_to(destination) if known else None
            if known is None or delivery is None or not known.has_open_deliveries or not delivery.status.is_open:
                return None
            if delivery.status is DeliveryStatus.DELIVERING and delivery.lease_until_ms > self._clock.steady_ms():
                return self._begun(known, delivery) if delivery.owner == owner else None
            names = [delivery.content] if delivery.content else []
            after = begun(known, delivery, self._known(names), owner, server, lease_ms, self._next_fence())
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
            ended = replace(delivery, owner="", lease_until_ms=0, begins=0, generation=before.generation)
            after = known.with_delivery(ended)
            self._save(after, known)
            self._end_if_over(after)
            return after

    def _end_if_over(self, entry: Entry) -> None:
        """The last open delivery has ended. Delivered somewhere, its followers stay skipped, whatever a replay brings;
        dead everywhere, the oldest of them goes out in its place (6)."""
        is_suppressed = entry.stop is not None and entry.released_ms is None
        if entry.state is not State.DONE or is_suppressed or entry.has_open_deliveries:
            return
        first: Entry | None = None
        for follower in self._followers(entry.id):
            if follower.stop is None:
                continue
            if entry.is_delivered_somewhere:
                after = replace(follower, stop=replace(follower.stop, follows=False))
            elif first is None:
                first = after = promoted(follower, self.now_ms())
            else:
                stop = replace(follower.stop, original=first.id, first_seen_ms=first.created_ms)
                after = replace(follower, stop=stop)
            self._save(after, follower)

    # What a person asks for

    def replay(self, entry: str, destination: str, *, force: bool = False, webhook_id: str | None = None) -> Replayed:
        with self._transaction(durable=True):
            before = self._entry(entry)
            delivery = before.delivery_to(destination) if before else None
            if before is None or delivery is None:
                return Replayed.UNKNOWN
            refusal = replay_refusal(before, delivery, force, self._clock.steady_ms())
            if refusal:
                return refusal
            if self.payload(entry) is None:
                return Replayed.NO_PAYLOAD
            self._save(replayed(before, delivery, self._known(before.shared), webhook_id), before)
            return Replayed.REPLAYED

    def release(self, entry: str, *, force: bool = False) -> Released:
        with self._transaction(durable=True):
            before = self._entry(entry)
            if before is None:
                return Released.UNKNOWN
            refusal = release_refusal(before, self._known(before.own), force)
            if refusal:
                return refusal
            if self.payload(entry) is None:
                return Released.NO_PAYLOAD
            self._save(released(before, self.now_ms()), before)
            return Released.RELEASED

    def reopen(self, entry: str, destination: str) -> bool:
        with self._transaction():
            before = self._entry(entry)
            dropped = before.delivery_to(destination) if before else None
            if before is None or dropped is None:
                return False
            if before.has_open_deliveries or before.is_held(self._clock.steady_ms()):
                return False
            left = tuple(each for each in before.deliveries if each is not dropped)
            after = replace(freed(before), deliveries=left, generation=before.next_generation)
            self._save(after, before)
            if dropped.content and self._is_referred(dropped.content, entry):
                self._drop_mark(dropped.content)
                self._unrefer(dropped.content, entry)
            return True

    def under_way(self) -> list[UnderWay]:
        with self._transaction():
            steady_ms = self._clock.steady_ms()
            ahead_ms = self.now_ms() - steady_ms
            return [
                UnderWay(entry, delivery, until_ms + ahead_ms)
                for entry in self._maybe_under_way()
                for delivery, until_ms in held_parts(entry, steady_ms)
            ]

    def drop_lapsed_locks(self) -> int:
        with self._transaction():
            steady_ms = self._clock.steady_ms()
            pending = [each for each in self._maybe_under_way() if each.is_lock and each.state is State.PENDING]
            lapsed = [each for each in pending if not each.is_held(steady_ms)]
            for entry in lapsed:
                for name in entry.names:
                    self._unrefer(name, entry.id)
                self._drop_entry(entry.id)
            return len(lapsed)

    # Looking and forgetting

    def read(self, entry: str) -> Entry | None:
        with self._transaction():
            return self._entry(entry)

    def look(self, names: Sequence[Name]) -> list[Found]:
        with self._transaction():
            known = self._known(names)
            return [found(name, known.names[name].is_marked, known.under(name)) for name in names]

    def forget(self, names: Sequence[Name]) -> Forgotten:
        with self._transaction():
            forgotten, kept = 0, []
            for name in dict.fromkeys(names):
                record = self._names((name,))[name]
                entries = [entry for ref in record.refs if (entry := self._entry(ref.entry))]
                staying = [entry for entry in entries if name.is_own and entry.has_open_deliveries]
                if staying:
                    kept += [entry.id for entry in staying]
                    continue
                to_join = {entry.id for entry in entries if name.is_own and entry.is_undelivered}
                for entry in entries:
                    if entry.id in to_join:
                        self._save(freed(entry), entry)
                    else:
                        self._save_without(entry, name)
                for ref in record.refs:
                    if ref.entry not in to_join:
                        self._unrefer(name, ref.entry)
                self._drop_mark(name)
                forgotten += record.is_marked or bool(entries)
            return Forgotten(forgotten, tuple(dict.fromkeys(kept)))

    def _save_without(self, entry: Entry, name: Name) -> None:
        """The entry itself stays to be seen; what it delivered or holds no longer counts under this name (13)."""
        own = tuple(each for each in entry.own if each != name)
        shared = tuple(each for each in entry.shared if each != name)
        deliveries = tuple(replace(each, content=None) if each.content == name else each for each in entry.deliveries)
        self._save(replace(entry, own=own, shared=shared, deliveries=deliveries), entry)

    # Rows

    def _is_referred(self, name: Name, entry: str) -> bool:
        return any(ref.entry == entry for ref in self._names((name,))[name].refs)

    def _is_of_another(self, name: Name, entry: str) -> bool:
        record = self._names((name,))[name]
        return record.is_marked or any(ref.entry != entry and self._entry(ref.entry) for ref in record.refs)

    def _known(self, names: Sequence[Name]) -> Known:
        records = self._names(names)
        ids = dict.fromkeys(ref.entry for record in records.values() for ref in record.refs)
        entries = {id_: entry for id_ in ids if (entry := self._entry(id_))}
        return Known(records, entries, self._clock.now_ms(), self._clock.steady_ms())

    def _save(self, entry: Entry, before: Entry | None = None) -> None:
        """The entry, and what its change means for its payload and each of its names."""
        self._put_entry(entry, before, self._until_ms(entry))
        if before and entry.needs_payload is not before.needs_payload:
            self._keep_payload(entry.id, self._payload_until_ms(entry))
        names, past = entry.names, before.names if before else ()
        referred, marked, now_ms = [], [], self.now_ms()
        for name in dict.fromkeys((*names, *past)):
            was = standing(before, name) if before and name in past else None
            now = standing(entry, name) if name in names else Standing.GIVEN_BACK
            if now is was:
                continue
            if entry.is_trial and not name.is_own and self._is_of_another(name, entry.id):
                continue  # what is only printed takes a name from nobody
            if now is Standing.GIVEN_BACK:
                if name.is_own or not self._names((name,))[name].is_marked:  # its mark keeps telling the original
                    self._unrefer(name, entry.id)
            elif was is None or was is Standing.GIVEN_BACK or not name.is_own:
                referred.append(name)
            if now is Standing.MARKED:
                marked.append((name, None if name.kept_ms is None else now_ms + name.kept_ms))
        if referred:
            self._refer(referred, Ref(entry.id, entry.created_ms))
        if marked:
            self._mark(marked)

    def _payload_until_ms(self, entry: Entry) -> int | None:
        return None if entry.needs_payload else self.now_ms() + self._retention.delivered_payload_ms

    def _until_ms(self, entry: Entry) -> int | None:
        """How long it is kept, an hour after its last change at least; None while something is to be delivered."""
        if entry.has_open_deliveries:
            return None
        if entry.is_lock and not entry.deliveries:
            return self.now_ms() + HOUR_MS
        is_dead = any(each.status is DeliveryStatus.DEAD for each in entry.deliveries)
        kept_ms = self._retention.dead_ms if is_dead else self._retention.entry_ms
        return max(self.now_ms() + HOUR_MS, (entry.settled_ms or entry.created_ms) + kept_ms)


def _answer(entry: Entry, left_out: tuple[str, ...], is_first: bool) -> Verdict:
    if entry.stop:
        return Duplicate(entry.stop, entry=entry)
    return Claimed(entry, left_out, is_first)
