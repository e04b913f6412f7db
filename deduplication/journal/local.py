"""A journal on this machine: the rules of verdict.py, applied to rows. Memory and sqlite keep the rows."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from deduplication.claims import Name
from deduplication.errors import DeduplicationError, NoRoom
from deduplication.journal.base import (
    MOST_LOOKED_AT,
    Begun,
    Claim,
    Claimed,
    Duplicate,
    Ending,
    Forgotten,
    Found,
    InFlight,
    Recovered,
    Released,
    Replayed,
    Retention,
    Settlement,
    Settling,
    UnderWay,
    Verdict,
)
from deduplication.journal.clock import Clock
from deduplication.journal.destination_state import DestinationState
from deduplication.journal.entry import Delivery, DeliveryStatus, Entry, State, Stop
from deduplication.journal.following import News
from deduplication.journal.listing import Listed, Page, Position, go_through
from deduplication.journal.storage import Storage
from deduplication.journal.verdict import (
    MOST_REFS,
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

T = TypeVar("T")

HOUR_MS = 3_600_000


class LocalJournal(ABC):
    """Subclasses keep rows and give a transaction; everything that follows from a step is here."""

    def __init__(self, clock: Clock, retention: Retention) -> None:
        self._clock = clock
        self._retention = retention
        self.late_ms = 0  # how much older what comes may be than what is there already

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

    def _step(self, step: Callable[[], T], *, durable: bool = False) -> T:
        """One that every email takes. What it raises undoes it; it may be tried again then, with others or alone."""
        with self._transaction(durable=durable):
            return step()

    def _part(self) -> AbstractContextManager[None]:
        """Inside a transaction: one of several steps, which NoRoom undoes without the others."""
        return nullcontext()

    def _expect(self, count: int) -> None:  # noqa: B027
        """So many entries are about to be written in this transaction."""

    @abstractmethod
    def _look_up(self, names: Sequence[Name]) -> tuple[dict[Name, NameRecord], dict[str, Entry]]:
        """What is known of each name, and the entries that they refer to, as far as these are still there."""

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
    def _put_repeat(self, entry: Entry) -> None:
        """One more was counted, which changes neither its names nor how long it is kept."""

    @abstractmethod
    def _drop_entry(self, entry: str) -> None: ...

    @abstractmethod
    def _put_payload(self, entry: str, payload: bytes | None, until_ms: int | None = None) -> None: ...

    def _make_room(self, payload_bytes: int) -> bool:
        """For one more payload; False: it cannot be kept."""
        return True

    @abstractmethod
    def _keep_payload(self, entry: str, until_ms: int | None) -> None:
        """None: for as long as the entry."""

    @abstractmethod
    def _followers(self, entry: str) -> list[Entry]:
        """The items stopped by this one that could still go out in its place, oldest first."""

    @abstractmethod
    def _due(self, destination: str, limit: int) -> list[Entry]: ...

    @abstractmethod
    def _waiting(self, destination: str, from_ms: int, limit: int) -> list[Entry]:
        """Those whose next try there is at that time or later, first things first; only what may be handed out."""

    @abstractmethod
    def _states(self) -> dict[str, DestinationState]: ...

    @abstractmethod
    def _put_state(self, destination: str, state: DestinationState) -> None: ...

    @abstractmethod
    def _page(self, is_dead: bool, destination: str | None, after: Position | None, limit: int) -> Page:
        """Of what waits, by the next try, or of what is dead, the newest first."""

    def _is_handed_over(self, entry: str) -> bool:
        """Another journal has it, and alone hands out what waits of it."""
        return False

    @abstractmethod
    def destinations(self) -> list[str]: ...

    @abstractmethod
    def _maybe_under_way(self) -> list[Entry]:
        """All locks, and every entry that may be held or have a delivery that was begun."""

    @abstractmethod
    def _came(self, after: Position, before: Position, limit: int, *, newest_first: bool) -> list[Entry]:
        """Between the two, by when they came; locks too."""

    @abstractmethod
    def _note_taken_up(self, entry: str) -> None: ...

    @abstractmethod
    def _taken_up(self, after: Position, limit: int) -> list[Position]:
        """What was noted after that, in the order in which it was."""

    @abstractmethod
    def _next_fence(self) -> int: ...

    @abstractmethod
    def _entry(self, entry: str) -> Entry | None: ...

    @abstractmethod
    def payload(self, entry: str) -> bytes | None: ...

    @abstractmethod
    def storage(self) -> Storage: ...

    @abstractmethod
    def find(self) -> Iterator[Entry]: ...

    @abstractmethod
    def check(self) -> None: ...

    @abstractmethod
    def close(self) -> None: ...

    # Claiming and settling

    def claim(self, claim: Claim) -> Verdict:
        return self._step(lambda: self._claim(claim))

    def claim_many(self, claims: Sequence[Claim]) -> list[Verdict | DeduplicationError]:
        with self._transaction():
            self._expect(len(claims))
            return [self._claim(claim) for claim in claims]

    def _claim(self, claim: Claim) -> Verdict:
        contents = [each.content for each in claim.destinations if each.content]
        known = self._known((*claim.own, *claim.shared, *contents))
        match judge(claim, known):
            case InFlight() as waiting:
                return waiting
            case Told(entry):
                return _answer(entry, (), is_first=False)
            case Repeat(original, name):
                after = repeated(original, claim, known.now_ms)
                if after is not original:
                    self._put_repeat(after)
                stop = Stop(name, original.id, original.created_ms)
                return Duplicate(stop, original.answer, original.fate)
            case Refused(name, other):
                return Duplicate(Stop(name, other.id, other.created_ms) if other else Stop(name))
            case Take() as take:
                fence = self._next_fence()
                entry = taken(claim, take, known, fence)
                self._save(entry, take.joined)
                self._drop_oldest_refs(known, entry)
                left_out = tuple(name.label for name in take.left_out)
                return _answer(entry, left_out, is_first=take.joined is None)

    def _drop_oldest_refs(self, known: Known, entry: Entry) -> None:
        """Undated emails of one subject and sender share a name: each claim would look at all that ever came."""
        for name, record in known.names.items():
            if name.is_own and len(record.refs) >= MOST_REFS:
                others = sorted((ref for ref in record.refs if ref.entry != entry.id), key=lambda ref: ref.seen_ms)
                for ref in others[: len(others) + 1 - MOST_REFS]:
                    self._unrefer(name, ref.entry)

    def before_sending(self, claimed: Claimed) -> Entry | None:
        return claimed.entry if claimed.entry.lease_until_ms > self._clock.steady_ms() else None

    def note_delivered(self, entry: Entry, delivery: Delivery) -> None:  # noqa: B027
        """Nothing stands between the POST and its settlement on this machine."""

    def settle(self, claim: Claim, entry: Entry, settlement: Settlement) -> bool:
        return self._step(lambda: self._settle(claim, entry, settlement), durable=settlement.payload is not None)

    def settle_many(self, settlings: Sequence[Settling]) -> list[bool | DeduplicationError]:
        answers: list[bool | DeduplicationError] = []
        with self._transaction(durable=any(each.settlement.payload is not None for each in settlings)):
            self._expect(len(settlings))
            for each in settlings:
                try:
                    with self._part() if each.settlement.payload else nullcontext():
                        answers.append(self._settle(each.claim, each.entry, each.settlement))
                except NoRoom as error:
                    answers.append(error)
        return answers

    def _settle(self, claim: Claim, entry: Entry, settlement: Settlement) -> bool:
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
        is_kept = after.needs_payload or self._retention.delivered_payload_ms > 0
        if settlement.payload and after.state is State.DONE and is_kept:
            after = self._with_payload(after, settlement.payload)
        self._save(after, stored)
        return True

    def _with_payload(self, entry: Entry, payload: bytes) -> Entry:
        """What need not be sent goes without it where there is no room."""
        if self._make_room(len(payload)):
            self._put_payload(entry.id, payload, self._payload_until_ms(entry))
            return replace(entry, payload_bytes=len(payload), payload_machine="")
        if entry.is_to_be_sent:
            raise NoRoom("this disk: no room for more payloads")
        return entry

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

    def recover(self, destination: str, well_since_ms: int, from_ms: int, limit: int, hold_ms: int) -> Recovered:
        with self._transaction():
            now_ms = self.now_ms()
            from_ms = max(from_ms, now_ms + hold_ms + 1)
            found = [
                (entry, delivery, delivery.next_try_ms)
                for entry in self._waiting(destination, from_ms, MOST_LOOKED_AT)
                if (delivery := entry.delivery_to(destination))
            ]
            handed_out: list[str] = []
            for entry, delivery, next_try_ms in found:
                if len(handed_out) == limit:
                    return Recovered(tuple(handed_out), next_try_ms)
                if delivery.status is DeliveryStatus.WAITING and delivery.last_attempt_ms < well_since_ms:
                    self._save(entry.with_delivery(replace(delivery, next_try_ms=now_ms + hold_ms)), entry)
                    handed_out.append(entry.id)
            if len(found) < MOST_LOOKED_AT:
                return Recovered(tuple(handed_out), None)
            last_ms = found[-1][2] or 0  # so many at one moment: the rest of them keep their time
            return Recovered(tuple(handed_out), last_ms + 1 if last_ms == from_ms else last_ms)

    def expire(self, destination: str, before_ms: int, limit: int, reason: str) -> list[str]:
        with self._transaction(durable=True):
            expired = []
            for entry in self._waiting(destination, 0, limit):
                delivery = entry.delivery_to(destination)
                if delivery and delivery.status is DeliveryStatus.WAITING and entry.waits_since_ms < before_ms:
                    dead = replace(delivery, status=DeliveryStatus.DEAD, next_try_ms=None, reason=reason)
                    after = entry.with_delivery(dead)
                    self._save(after, entry)
                    self._end_if_over(after)
                    expired.append(entry.id)
            return expired

    def states(self) -> dict[str, DestinationState]:
        with self._transaction():
            return self._states()

    def put_states(self, states: Mapping[str, DestinationState]) -> dict[str, DestinationState]:
        with self._transaction(durable=True):
            known = self._states()
            for destination, told in states.items():
                before = known.get(destination)
                after = (before or DestinationState()).with_news(told)
                if after != before:
                    self._put_state(destination, after)
                    known[destination] = after
            return known

    def begin(self, entry: str, destination: str, owner: str, lease_ms: int, server: str = "") -> Begun | None:
        with self._transaction():
            known = self._entry(entry)
            delivery = known.delivery_to(destination) if known else None
            if known is None or delivery is None or not known.has_open_deliveries or not delivery.status.is_open:
                return None
            if self._is_handed_over(entry):
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
            after = self._save(known.with_delivery(ended), known)
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
            self._save(replayed(before, delivery, self._known(before.shared), force, webhook_id), before)
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
            self._drop_words(dropped, entry)
            return True

    def _drop_words(self, delivery: Delivery, entry: str) -> None:
        """At its destination they are as if it had never brought them."""
        if delivery.content and self._is_referred(delivery.content, entry):
            self._drop_mark(delivery.content)
            self._unrefer(delivery.content, entry)

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

    def read_all(self, entries: Sequence[str]) -> dict[str, Entry]:
        with self._transaction():
            return {id_: entry for id_ in entries if (entry := self._entry(id_))}

    def news(self, places: str, limit: int) -> News:
        with self._transaction():
            heard = _Heard.read(places, self.now_ms(), self.late_ms)
            came = self._came(heard.top, _END, limit, newest_first=False)
            older = self._came(_START, heard.bottom, limit - len(came), newest_first=True)
            again = self._taken_up(heard.taken_up, limit)
            known = {entry.id: entry for entry in (*came, *older)}
            known |= {each.entry: entry for each in again if (entry := self._entry(each.entry))}
            is_full = len(came) == limit
            if came:
                top = Position(came[-1].created_ms, came[-1].id)
                heard = replace(heard, top=top if is_full else max(heard.top, min(top, heard.late)))
            if older:
                heard = replace(heard, bottom=Position(older[-1].created_ms, older[-1].id))
            if again:  # more may come in the same millisecond
                is_page_full = len(again) == limit
                heard = replace(heard, taken_up=again[-1] if is_page_full else Position(again[-1].at_ms, ""))
        is_all = len(came) + len(older) < limit and len(again) < limit
        return News(tuple(each for each in known.values() if not each.is_lock), heard.written, is_all)

    def list_deliveries(
        self, status: DeliveryStatus, destination: str | None = None, after: Position | None = None
    ) -> Iterator[Listed]:
        return go_through(partial(self._page, status is DeliveryStatus.DEAD, destination), status, after)

    def look(self, names: Sequence[Name]) -> list[Found]:
        with self._transaction():
            known = self._known(names)
            return [found(name, known.names[name].is_marked, known.under(name)) for name in names]

    def forget(self, names: Sequence[Name]) -> Forgotten:
        with self._transaction():
            forgotten, kept = 0, []
            for name in dict.fromkeys(names):
                is_forgotten, staying = self._forget(name)
                forgotten += is_forgotten
                kept += staying
            return Forgotten(forgotten, tuple(dict.fromkeys(kept)))

    def _forget(self, name: Name, reset_ms: int | None = None) -> tuple[bool, list[str]]:
        """Whether it was known and is gone, and the entries that keep it. ``reset_ms``: what came later stays."""
        record = self._names((name,))[name]
        entries = [entry for ref in record.refs if (entry := self._entry(ref.entry))]
        staying = [entry.id for entry in entries if name.is_own and entry.has_open_deliveries]
        if staying:
            return False, staying
        later = {entry.id for entry in entries if reset_ms is not None and self._is_later(entry, reset_ms)}
        older = [entry for entry in entries if entry.id not in later]
        to_join = {entry.id for entry in older if name.is_own and entry.is_undelivered}
        for entry in older:
            if entry.id in to_join:
                self._save(freed(entry), entry)
            else:
                self._save_without(entry, name)
        for ref in record.refs:
            if ref.entry not in to_join | later:
                self._unrefer(name, ref.entry)
        if not later:
            self._drop_mark(name)
        return record.is_marked or bool(entries), []

    def _is_later(self, entry: Entry, reset_ms: int) -> bool:
        """It came, or was delivered, after that; or someone is at it now, who may have joined it after that.

        In the same millisecond it counts as before, as in a merge: rather sent twice than not at all.
        """
        moments = [entry.created_ms, *(each.delivered_ms or 0 for each in entry.deliveries)]
        return max(moments) > reset_ms or entry.is_held(self._clock.steady_ms())

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

    def _names(self, names: Sequence[Name]) -> dict[Name, NameRecord]:
        return self._look_up(names)[0]

    def _known(self, names: Sequence[Name]) -> Known:
        return Known(*self._look_up(names), self._clock.now_ms(), self._clock.steady_ms())

    def _save(self, entry: Entry, before: Entry | None = None) -> Entry:
        """The entry, and what its change means for its payload and each of its names. Returns it as it is kept."""
        if before and entry.needs_payload is not before.needs_payload:
            self._keep_payload(entry.id, self._payload_until_ms(entry))
        has_payload = entry.payload_bytes or entry.payload_machine
        if has_payload and not entry.needs_payload and self._retention.delivered_payload_ms == 0:
            entry = replace(entry, payload_bytes=0, payload_machine="")
        self._put_entry(entry, before, self._until_ms(entry))
        if before and entry.generation > before.generation:
            self._note_taken_up(entry.id)
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
        return entry

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


_START, _END = Position(0, ""), Position(1 << 62, "")


@dataclass(frozen=True)
class _Heard:
    """All between ``bottom`` and ``top`` was told, and all that was taken up until ``taken_up``. ``late``: what comes
    now may stand behind that."""

    top: Position
    bottom: Position
    taken_up: Position
    late: Position

    @classmethod
    def read(cls, places: str, now_ms: int, late_ms: int) -> _Heard:
        late = Position(now_ms - late_ms, "")
        if not places:
            return cls(late, late, late, late)
        top, bottom, taken_up = (Position(*each) for each in json.loads(places))
        is_set_back = max(top, taken_up).at_ms > now_ms
        return cls(late, bottom, late, late) if is_set_back else cls(top, bottom, taken_up, late)

    @property
    def written(self) -> str:
        return json.dumps([(each.at_ms, each.entry) for each in (self.top, self.bottom, self.taken_up)])


def dead_at(entry: Entry | None) -> set[str]:
    """Where an item is dead; what a script did under a lock is no item."""
    if entry is None or entry.is_lock:
        return set()
    return {each.destination for each in entry.deliveries if each.status is DeliveryStatus.DEAD}


def _answer(entry: Entry, left_out: tuple[str, ...], is_first: bool) -> Verdict:
    if entry.stop:
        return Duplicate(entry.stop, entry=entry)
    return Claimed(entry, left_out, is_first)
