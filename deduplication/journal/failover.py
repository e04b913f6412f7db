"""Redis over this machine's own journal: one side at a time, for all processes of the machine together.

While Redis is there, it decides; what it granted and what was delivered is appended to a spool, and drained into the
local journal behind the requests. When it is sure to be gone, the machine changes to its own side and decides alone;
when it is back, it is told first. docs/architecture-old.md has the rules, and what taught them.
"""

from __future__ import annotations

import base64
import json
import logging
import secrets
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import TypeVar

from deduplication.claims import Kind, Name, Pattern
from deduplication.errors import ConnectionDropped, DeduplicationError, NoRoom, StoreUnavailable
from deduplication.journal.base import (
    Begun,
    Claim,
    Claimed,
    Duplicate,
    Ending,
    Forgotten,
    Found,
    Recovered,
    Released,
    Replayed,
    Settlement,
    Settling,
    UnderWay,
    Verdict,
    answer_or_raise,
)
from deduplication.journal.codec import flat_delivery, flat_entry
from deduplication.journal.destination_state import DestinationState
from deduplication.journal.entry import Delivery, DeliveryStatus, Entry, State, changed
from deduplication.journal.following import News
from deduplication.journal.listing import ALL, Count, Listed, PayloadPlace, Position, Window
from deduplication.journal.redis import Announced, RedisBeingTold, RedisFacts, RedisJournal, RedisLostMemory
from deduplication.journal.side import MachineSide, Side, Standing
from deduplication.journal.spool import Note, Spool, SpoolFile
from deduplication.journal.sqlite import SqliteJournal
from deduplication.journal.storage import Storage
from deduplication.journal.verdict import settled
from deduplication.one_process import one_process

log = logging.getLogger(__name__)

T = TypeVar("T")
Again = TypeVar("Again", Replayed, Released)

TICK_S = 1.0
SILENT_TICKS = 4  # a canary that got no answer this often in a row: Redis is gone, not slow
REFUSED_TICKS = 2
RELIABLE_REPLY_MS = 2_000  # less than a Redis takes to restart: a later answer may come from another memory
HOLD_MS = 3_000
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0
TOLD_AT_ONCE = 200
MARKS_TOLD = "marks told to Redis"
CONFIRMED_WITHIN_MS = 5_000  # what was just delivered is about to be confirmed: no need to tell it
HEARD_UNTIL = "announced until, ms of Redis"
HEARD_AGAIN_MS = 600_000  # a Redis may be replaced by one whose clock is behind
DRAINED_WITHIN_MS = 3_000
COPIES_EVERY_MS, COPIES_AT_ONCE = 5_000, 200
PLENTY_BYTES = 256 << 20  # more than all processes of a machine store in the second until they look again
NO_ROOM_HERE = "this disk: no room for more payloads"


class OnFailure(StrEnum):
    """Who decides while Redis is away: this machine's journal, or nobody."""

    OPEN = "open"
    CLOSED = "closed"


@dataclass
class Numbers:
    """What happened since the process started."""

    redis_errors: Counter[str] = field(default_factory=Counter)
    lost_replies: int = 0
    late_replies: int = 0
    decided_alone: int = 0
    side_changes: int = 0
    told: int = 0
    memory_losses: int = 0


@dataclass(frozen=True)
class Untold:
    """Entries that Redis has yet to be told, and how much stands in the files behind the requests."""

    entries: int
    spool_bytes: int


@dataclass
class _Going:
    """A settlement on its way: what becomes of its entry, and what Redis has answered (None: no room, or not asked)."""

    settling: Settling
    after: Entry
    answer: bool | DeduplicationError | None = None

    @property
    def payload(self) -> bytes | None:
        return self.settling.settlement.payload


class FailoverJournal:
    """The journal of a machine with Redis. ``start`` lets it follow Redis by itself; ``tick`` is one step of that."""

    def __init__(
        self,
        redis: RedisJournal,
        local: SqliteJournal,
        folder: Path,
        on_failure: OnFailure = OnFailure.OPEN,
        hold_ms: int = HOLD_MS,
        prepare_redis: Callable[[], object] = lambda: None,
    ) -> None:
        """``prepare_redis`` is called whenever this machine is about to go over to Redis, before it is relied on."""
        self._redis = redis
        self.local = local
        self._folder = folder
        self._spools = folder / "spool"
        self._on_failure = on_failure
        self._clock = local.clock  # its leases and those noted here are compared, so one clock measures both
        self._hold_ms = hold_ms
        self._prepare_redis = prepare_redis
        self._side = MachineSide(folder)
        self._spool = Spool(self._spools)
        self._note = Note(folder / "redis_number")
        redis.seen = self._note.read
        local.late_ms = DRAINED_WITHIN_MS
        self._id = secrets.token_hex(6)
        self._canary = Name(Kind.LOCK, "canary", self._id)
        self._redis_ahead_ms = 0
        self._silent, self._refused, self._pause_s, self._try_at_ms = 0, 0, FIRST_PAUSE_S, 0
        self._unanswered: set[str] = set()  # entries whose settlement Redis may not have got
        self._heard: set[Announced] = set()
        self._copies_at_ms, self._copies_after = 0, ""
        self._room_bytes = local.room_bytes()  # for payloads on this disk
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.numbers = Numbers()
        self.count_step: Callable[[str | None], None] = lambda _error: None  # what Redis was asked, and how it failed
        self.local.drain(self._spools)  # what a predecessor of this process left
        self.tick()

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="redis-follower", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        if self._thread:
            self._thread.join()
        self._spool.close()
        self._note.close()
        self._redis.close()
        self.local.close()

    @property
    def standing(self) -> Standing:
        return self._side.read()

    def untold(self) -> Untold:
        spool_bytes = 0
        for path in self._spools.glob("*.spool"):
            with suppress(FileNotFoundError):  # drained and removed meanwhile
                spool_bytes += path.stat().st_size
        return Untold(self.local.untold_count(), spool_bytes)

    def redis_facts(self) -> RedisFacts:
        return self._redis.facts()

    # The contract

    def claim(self, claim: Claim) -> Verdict:
        verdict = self.claim_many([claim])[0]
        if isinstance(verdict, DeduplicationError):
            raise verdict
        return verdict

    def claim_many(self, claims: Sequence[Claim]) -> list[Verdict | DeduplicationError]:
        with self._side.shared() as standing:
            if standing.side is Side.LOCAL:
                self._refuse_if_closed()
                self.numbers.decided_alone += len(claims)
                return self.local.claim_many(claims)
            sent_ms = self._clock.steady_ms()
            # The note as it is at each try
            verdicts = self._ask_for_each(lambda: self._redis.claim_many(claims, self._note.read()))
            granted = {  # with leases by a clock that cannot be set
                position: changed(verdict.entry, lease_until_ms=sent_ms + claim.lease_ms)
                for position, (claim, verdict) in enumerate(zip(claims, verdicts, strict=True))
                if isinstance(verdict, Claimed | Duplicate) and verdict.entry
            }
            if granted:
                self._note_granted(granted.values())
                if self._clock.steady_ms() - sent_ms > RELIABLE_REPLY_MS:
                    late = StoreUnavailable("redis: its answer came too late to be relied on")
                    self._give_back([(claims[position], entry) for position, entry in granted.items()])
                    return [late if position in granted else verdict for position, verdict in enumerate(verdicts)]
            return [_with_entry(verdict, granted.get(position)) for position, verdict in enumerate(verdicts)]

    def _note_granted(self, entries: Collection[Entry]) -> None:
        """In the spool and in the note before anything is sent: the other processes know, also if this one dies."""
        self._note.raise_to(max(entry.fence for entry in entries))
        self._spool.append("granted", *map(flat_entry, entries))

    def _give_back(self, late: Sequence[tuple[Claim, Entry]]) -> None:
        """Nobody is at these: the next try of their providers need not wait for the leases."""
        self.numbers.late_replies += len(late)
        with suppress(StoreUnavailable):
            self._redis.settle_many([Settling(claim, entry, Settlement(Ending.FREE)) for claim, entry in late])

    def before_sending(self, claimed: Claimed) -> Entry | None:
        """The last look before the POST: is the lease still ours, and did an earlier owner deliver without settling?"""
        entry = claimed.entry
        if not claimed.is_first:
            self.local.drain(self._spools)
            known = self.local.read(entry.id)
            for delivery in known.deliveries if known else ():
                if delivery.status is DeliveryStatus.DELIVERED:
                    entry = entry.with_delivery(delivery)
        return entry if entry.lease_until_ms > self._clock.steady_ms() else None

    def note_delivered(self, entry: Entry, delivery: Delivery) -> None:
        """Right after the POST, before anybody is asked, and without waiting for a change of side."""
        self._spool.append("delivered", [flat_entry(entry), flat_delivery(delivery)])

    def settle(self, claim: Claim, entry: Entry, settlement: Settlement) -> bool:
        return answer_or_raise(self.settle_many([Settling(claim, entry, settlement)])[0])

    def settle_many(self, settlings: Sequence[Settling]) -> list[bool | DeduplicationError]:
        """What waits is on this disk and on Redis before it counts; what was delivered is a fact in the spool."""
        with self._side.shared() as standing:
            if standing.side is Side.LOCAL:
                return self.local.settle_many(settlings)
            going = [_Going(each, _with_payload_bytes(each, self.local.now_ms())) for each in settlings]
            waiting = [each for each in going if each.after.has_open_deliveries]
            refused = self._keep_copies(waiting) if waiting else ()
            to_redis = [each for each in going if not each.after.is_suppressed and each.after.id not in refused]
            for each, answer in zip(to_redis, self._settle_if_room(to_redis), strict=True):
                each.answer = answer
            self._note.raise_to(self._redis.last_number)
            return [NoRoom(NO_ROOM_HERE) if each.after.id in refused else self._conclude(each) for each in going]

    def _keep_copies(self, waiting: Sequence[_Going]) -> set[str]:
        """Of what is about to be sent to Redis and told 200 for: they rest here until Redis has them, or lost them.

        Returns the entries that there is no room for, because of their payloads. As long as there is plenty, nobody is
        asked for it.
        """
        self._room_bytes -= sum(len(each.payload or b"") for each in waiting)  # until it is looked at again
        if self._room_bytes > PLENTY_BYTES:
            self._append_copies(waiting).sync()
            return set()
        kept: list[_Going] = []
        with self.local.counting_room(self._spools) as room_bytes:
            for each in waiting:
                if len(each.payload or b"") <= room_bytes:
                    room_bytes -= len(each.payload or b"")
                    kept.append(each)
            file = self._append_copies(kept) if kept else None
        if file:
            file.sync()
        return {each.after.id for each in waiting} - {each.after.id for each in kept}

    def _append_copies(self, copies: Sequence[_Going]) -> SpoolFile:
        lines = ([flat_entry(each.after), base64.b64encode(each.payload or b"").decode()] for each in copies)
        return self._spool.append("stored", *lines)

    def _settle_if_room(self, going: Sequence[_Going]) -> Sequence[bool | None | DeduplicationError]:
        settlings = [each.settling for each in going]
        try:
            return self._ask_for_each(lambda: self._redis.settle_many_if_room(settlings))
        except StoreUnavailable as error:
            return [error] * len(going)

    def _conclude(self, going: _Going) -> bool | DeduplicationError:
        """What is told of a settlement that Redis was asked for, and what this machine notes of it."""
        settling, answer, after = going.settling, going.answer, going.after
        try:
            if answer is None:
                answer, after = self._settle_with_payload_here(settling, after)
            is_settled = answer_or_raise(answer)
            if not is_settled:
                self._replace_copy(after.id)  # another has decided: what is kept here must not say otherwise
            elif settling.settlement.ending is Ending.DONE:
                if after is going.after and (after.has_open_deliveries or after.is_delivered_everywhere):
                    self._spool.confirm(after.id)  # all of it stands there already
                else:
                    self._spool.append("settled", flat_entry(after))
            return is_settled
        except DeduplicationError as error:
            if isinstance(error, NoRoom) or not isinstance(error, StoreUnavailable):
                return error
            if after.has_open_deliveries:
                self._unanswered.add(after.id)
                return error
            if not after.is_delivered_somewhere:
                return error
            if not after.deliveries:  # a script's: nothing else has noted yet that it was published
                self._spool.append("published", flat_entry(after))
            self._unanswered.add(after.id)
            log.warning("entry %s: delivered; Redis is told later: %s", after.id, error)
            return True

    def _settle_with_payload_here(self, settling: Settling, after: Entry) -> tuple[bool, Entry]:
        """Whether it is settled, and the entry with where its payload lies: on this disk alone.

        Here lies what Redis has no room for, and what is only kept to be released: of that Redis gets nothing.
        """
        claim, entry, settlement = settling.claim, settling.entry, settling.settlement
        kept = settlement.payload if after.needs_payload else None
        if kept and not after.has_open_deliveries:
            self.local.drain(self._spools)  # what is to be sent comes first, and some of it may still stand there
            if not self.local.keep_payload(entry.id, kept):
                if after.is_to_be_sent:
                    raise NoRoom("no room for more payloads, neither on Redis nor on this disk")
                kept = None
        bytes_here = len(kept or b"")
        here = replace(settlement, payload=None, deliveries=tuple(map(self._due_here_at_once, settlement.deliveries)))
        is_settled = self._ask(lambda: self._redis.settle_if_room(claim, entry, here, bytes_here))
        self._note.raise_to(self._redis.last_number)
        machine = self._redis.machine if kept else ""
        return bool(is_settled), replace(after, payload_bytes=bytes_here, payload_machine=machine)

    def _due_here_at_once(self, delivery: Delivery) -> Delivery:
        """What was only to be announced to workers: those elsewhere cannot deliver it."""
        is_announced = delivery.status is DeliveryStatus.WAITING and delivery.tries == 0 and delivery.reason is None
        return replace(delivery, next_try_ms=self.now_ms()) if is_announced else delivery

    def renew(self, entry: str, owner: str, lease_ms: int, destination: str | None = None) -> bool:
        return self._on_side(
            lambda: self._redis.renew(entry, owner, lease_ms, destination),
            lambda: self.local.renew(entry, owner, lease_ms, destination),
        )

    def due(self, room: Mapping[str, int], hold_ms: int) -> list[tuple[str, str]]:
        """What was sent to Redis is handed out by Redis alone: while it is away, the copies here rest."""
        return self._on_side(lambda: self._redis.due(room, hold_ms), lambda: self.local.due(room, hold_ms))

    def recover(self, destination: str, well_since_ms: int, from_ms: int, limit: int, hold_ms: int) -> Recovered:
        return self._on_side(
            lambda: self._redis.recover(destination, well_since_ms, from_ms, limit, hold_ms),
            lambda: self.local.recover(destination, well_since_ms, from_ms, limit, hold_ms),
        )

    def expire(self, destination: str, before_ms: int, limit: int, reason: str) -> list[str]:
        return self._on_side(
            lambda: self._redis.expire(destination, before_ms, limit, reason),
            lambda: self.local.expire(destination, before_ms, limit, reason),
        )

    def states(self) -> dict[str, DestinationState]:
        return self._on_side(self._redis.states, self.local.states)

    def put_states(self, states: Mapping[str, DestinationState]) -> dict[str, DestinationState]:
        """Here too, for the time when Redis is away, or has lost its memory."""

        def on_redis() -> dict[str, DestinationState]:
            known = self._redis.put_states(states)
            self.local.put_states(known)
            return known

        return self._on_side(on_redis, lambda: self.local.put_states(states))

    def memo(self, name: str) -> str | None:
        """Each side has its own: who keeps one says what they come to together."""
        return self._on_side(lambda: self._redis.memo(name), lambda: self.local.memo(name))

    def change_memo(self, name: str, before: str | None, memo: str) -> bool:
        return self._on_side(
            lambda: self._redis.change_memo(name, before, memo), lambda: self.local.change_memo(name, before, memo)
        )

    def _share_states(self) -> None:
        """What was decided alone is told, what others decided is heard; told twice it changes nothing."""
        ours = self.local.states()
        known = self._redis.put_states(ours)
        if known != ours:
            self.local.put_states(known)

    def due_here(self, room: Mapping[str, int], hold_ms: int) -> list[tuple[str, str]]:
        """What no other machine can deliver: for one whose workers are elsewhere."""
        return self._on_side(
            lambda: self._redis.due(room, hold_ms, only_here=True), lambda: self.local.due(room, hold_ms)
        )

    def begin(self, entry: str, destination: str, owner: str, lease_ms: int, server: str = "") -> Begun | None:
        """One that was begun before may have been delivered without Redis having heard of it: this machine knows."""

        def on_redis() -> Begun | None:
            until_ms, next_try_ms = self._clock.steady_ms() + lease_ms, self.local.now_ms() + lease_ms
            begun = self._redis.begin(entry, destination, owner, lease_ms, server)
            if begun and begun.entry.payload_machine:
                begun = replace(begun, payload=self._payload_here(entry))
            if begun:  # a Redis that loses its memory now must not hand it out to another
                held = replace(begun.delivery, lease_until_ms=until_ms, next_try_ms=next_try_ms)
                self._spool.append("settled", flat_entry(begun.entry.with_delivery(held)))
            return begun

        begun = self._on_side(on_redis, lambda: self.local.begin(entry, destination, owner, lease_ms, server))
        if begun is None or begun.delivery.begins <= 1:
            return begun
        self.local.drain(self._spools)
        known = self.local.read(entry)
        delivery = known.delivery_to(destination) if known else None
        is_known = delivery and delivery.generation == begun.delivery.generation
        if delivery is None or not is_known or delivery.status is not DeliveryStatus.DELIVERED:
            return begun
        self.finish(entry, owner, delivery)
        return None

    def finish(self, entry: str, owner: str, delivery: Delivery) -> Entry | None:
        def on_redis() -> Entry | None:
            after = self._redis.finish(entry, owner, delivery)
            if after and after.state is State.DONE and not after.has_open_deliveries:
                self._spool.append("settled", flat_entry(after))  # the copy here is over too
            return after

        return self._on_side(on_redis, lambda: self.local.finish(entry, owner, delivery))

    def replay(self, entry: str, destination: str, *, force: bool = False, webhook_id: str | None = None) -> Replayed:
        return self._send_again(
            entry,
            lambda payload: self._redis.replay(entry, destination, force=force, webhook_id=webhook_id, payload=payload),
            lambda: self.local.replay(entry, destination, force=force, webhook_id=webhook_id),
        )

    def release(self, entry: str, *, force: bool = False) -> Released:
        return self._send_again(
            entry,
            lambda payload: self._redis.release(entry, force=force, payload=payload),
            lambda: self.local.release(entry, force=force),
        )

    def _send_again(self, entry: str, on_redis: Callable[[bytes | None], Again], locally: Callable[[], Again]) -> Again:
        """The payload may lie on this machine alone; then Redis gets it along."""
        with self._side.shared() as standing:
            if standing.side is Side.LOCAL:
                if self.local.is_handed_over(entry):
                    raise StoreUnavailable("Redis is away: it has this entry, and hands it out alone")
                return locally()
            answer = self._ask(lambda: on_redis(None))
            if answer in (Replayed.NO_PAYLOAD, Released.NO_PAYLOAD):
                self.local.drain(self._spools)  # where it may stand, and that it is delivered and no longer kept
                if (payload := self.local.payload(entry)) is not None:
                    answer = self._ask(lambda: on_redis(payload))
            self._note.raise_to(self._redis.last_number)
            if answer in (Replayed.REPLAYED, Released.RELEASED):
                self._copy_from_redis(entry)
            return answer

    def _copy_from_redis(self, entry: str) -> None:
        """For a Redis that loses its memory."""
        try:
            after = self._redis.read(entry)
        except StoreUnavailable as error:
            log.warning("entry %s: no copy of it on this machine: %s", entry, error)
            return
        if after and after.state is State.DONE:
            self._spool.append("settled", flat_entry(_as_copy(after)))

    def _replace_copy(self, entry: str) -> None:
        known = self._redis.read(entry)
        if known:
            self.local.drain(self._spools)
            is_done = known.state is State.DONE
            self.local.replace_copy(known if is_done else replace(known, state=State.FREE, owner="", lease_until_ms=0))

    def reopen(self, entry: str, destination: str) -> bool:
        with self._side.shared() as standing:
            if standing.side is Side.LOCAL:
                return self.local.reopen(entry, destination)
            is_reopened = self._ask(lambda: self._redis.reopen(entry, destination))
            self._note.raise_to(self._redis.last_number)
            if is_reopened:
                self.local.drain(self._spools)  # first: a line of what was delivered before would bring it back
                self.local.reopen(entry, destination)
            return is_reopened

    def destinations(self) -> list[str]:
        return self._on_side(self._redis.destinations, self.local.destinations)

    def under_way(self) -> list[UnderWay]:
        return self._on_side(self._redis.under_way, self.local.under_way)

    def drop_lapsed_locks(self) -> int:
        return self._on_side(self._redis.drop_lapsed_locks, self.local.drop_lapsed_locks)

    def read(self, entry: str) -> Entry | None:
        return self._on_side(lambda: self._redis.read(entry), lambda: self.local.read(entry))

    def read_all(self, entries: Sequence[str]) -> dict[str, Entry]:
        return self._on_side(lambda: self._redis.read_all(entries), lambda: self.local.read_all(entries))

    def news(self, places: str, limit: int) -> News:
        """Of the side the machine is on; where it left off on the other is kept meanwhile."""
        heard = json.loads(places) if places else {}

        def of(side: Side, journal: RedisJournal | SqliteJournal) -> News:
            news = journal.news(heard.get(side, ""), limit)
            return replace(news, places=json.dumps({**heard, side: news.places}))

        return self._on_side(lambda: of(Side.REDIS, self._redis), lambda: of(Side.LOCAL, self.local))

    def shared_key(self, candidate: bytes) -> bytes:
        """That of Redis; here too, for the time when it is away, and to tell it again when it lost its memory."""
        ours = self.local.shared_key(candidate)
        try:
            key = self._on_side(lambda: self._redis.shared_key(ours), lambda: ours)
        except StoreUnavailable:
            return ours
        if key != ours:
            self.local.replace_shared_key(key)
        return key

    def payload(self, entry: str) -> bytes | None:
        """Redis has it, or the entry says that it lies on this disk."""

        def on_redis() -> bytes | None:
            kept = self._redis.payload(entry)
            if kept is None and (known := self._redis.read(entry)) and known.payload_machine == self._redis.machine:
                return self._payload_here(entry)
            return kept

        return self._on_side(on_redis, lambda: self.local.payload(entry))

    def _payload_here(self, entry: str) -> bytes | None:
        """It may still stand in a spool."""
        payload = self.local.payload(entry)
        if payload is None and self.local.drain(self._spools):
            payload = self.local.payload(entry)
        return payload

    def storage(self) -> Storage:
        here = self.local.storage()
        if self.standing.side is Side.LOCAL:
            return here
        there = self._redis.storage()
        return replace(
            here,
            redis_bytes=there.redis_bytes,
            redis_limit_bytes=there.redis_limit_bytes,
            redis_left_bytes=there.redis_left_bytes,
        )

    def locate_payloads(self, entries: Sequence[str]) -> dict[str, PayloadPlace]:
        def on_redis() -> dict[str, PayloadPlace]:
            found = self._redis.locate_payloads(entries)
            elsewhere = [each for each in entries if found[each] is PayloadPlace.GONE]
            if elsewhere:
                self.local.drain(self._spools)
            return found | self.local.locate_payloads(elsewhere)

        return self._on_side(on_redis, lambda: self.local.locate_payloads(entries))

    def find(self, window: Window = ALL) -> Iterator[Entry]:
        return self._redis.find(window) if self.standing.side is Side.REDIS else self.local.find(window)

    def list_deliveries(
        self, status: DeliveryStatus, destination: str | None = None, after: Position | None = None
    ) -> Iterator[Listed]:
        side = self._redis if self.standing.side is Side.REDIS else self.local
        return side.list_deliveries(status, destination, after)

    def count_deliveries(self) -> dict[str, Count]:
        return self._on_side(self._redis.count_deliveries, self.local.count_deliveries)

    def look(self, names: Sequence[Name]) -> list[Found]:
        return self._on_side(lambda: self._redis.look(names), lambda: self.local.look(names))

    def names(self, pattern: Pattern) -> Iterator[Name]:
        return self._redis.names(pattern) if self.standing.side is Side.REDIS else self.local.names(pattern)

    def forget(self, names: Sequence[Name]) -> Forgotten:
        """Must reach every machine, so it needs Redis."""
        with self._side.shared() as standing:
            if standing.side is Side.LOCAL:
                raise StoreUnavailable("Redis is away: a reset could not reach the other machines")
            forgotten = self._ask(lambda: self._redis.forget(names))
            self._note.raise_to(self._redis.last_number)
            self.local.drain(self._spools)  # first: a line of what was granted before would bring them back
            self.local.forget(names)
            return forgotten

    def now_ms(self) -> int:
        """As Redis has it, without asking each time: servers whose clocks differ share one schedule."""
        return self.local.now_ms() + self._redis_ahead_ms

    def lease_time_ms(self) -> int:
        return self.local.lease_time_ms() if self.standing.side is Side.LOCAL else self.now_ms()

    def check(self) -> None:
        if self.standing.side is Side.REDIS:
            self._ask(self._redis.check)
        else:
            self._refuse_if_closed()
            self.local.check()

    def _on_side(self, on_redis: Callable[[], T], locally: Callable[[], T]) -> T:
        with self._side.shared() as standing:
            if standing.side is Side.LOCAL:
                return locally()
            answer = self._ask(on_redis)
            self._note.raise_to(self._redis.last_number)
            return answer

    def _refuse_if_closed(self) -> None:
        if self._on_failure is OnFailure.CLOSED:
            raise StoreUnavailable("Redis is away, and ON_STORE_FAILURE=closed")

    def _ask(self, step: Callable[[], T]) -> T:
        """A dropped connection is tried once more: the same owner gets the same answer, so a lost reply is harmless."""
        try:
            try:
                answer = step()
            except ConnectionDropped:
                answer = step()
                self.numbers.lost_replies += 1
        except StoreUnavailable as error:
            self._count_error(error)
            raise
        self.count_step(None)
        return answer

    def _ask_for_each(self, step: Callable[[], list[T]]) -> list[T]:
        answers = self._ask(step)
        for answer in answers:
            if isinstance(answer, StoreUnavailable):
                self._count_error(answer)
        return answers

    def _count_error(self, error: StoreUnavailable) -> None:
        name = type(error.__cause__ or error).__name__
        self.numbers.redis_errors[name] += 1
        self.count_step(name)

    # Following Redis

    def _run(self) -> None:
        while not self._stop.wait(TICK_S):
            try:
                self.tick()
            except DeduplicationError as error:  # misconfigured, or the disk: say so and go on, someone may be at it
                log.error("following Redis failed: %s", error)

    def tick(self) -> None:
        """Looks after the side: leaves a Redis that is gone, returns to one that is back, tells it what it missed."""
        self._spool.flush()
        if self.standing.side is Side.REDIS:
            self._follow()
            return
        self._redis_ahead_ms = 0
        if self._clock.steady_ms() >= self._try_at_ms:
            self._return_if_back()

    def _follow(self) -> None:
        try:
            self._try_canary()
        except RedisLostMemory:
            self._restore()
        except RedisBeingTold:
            pass  # it is there, and will decide: a machine that left it now would repeat what the others have sent
        except StoreUnavailable as error:
            if self._is_gone(error):
                self._leave(error)
            return
        self._silent = self._refused = 0
        self._redis_ahead_ms = self._redis.now_ms() - self.local.now_ms()
        self._redis.look_at_memory()
        with one_process(self._folder / "chores.lock") as is_mine:
            if is_mine:
                # What Redis may not have got is told now: another machine takes it up once its lease is over.
                unanswered = set(self._unanswered)
                self.local.drain(self._spools)
                self._tell_untold(0 if unanswered else CONFIRMED_WITHIN_MS)
                self._unanswered -= unanswered
                self._share_states()
                self._hear_what_others_did()
                self._look_after_copies()
        self._room_bytes = self.local.room_bytes()

    def _hear_what_others_did(self) -> None:
        """Alone, this machine must not stop what was reset by way of another. Heard twice, it changes nothing."""
        heard_ms = int(self.local.memo(HEARD_UNTIL) or 0)
        resets, generations = self._redis.announced(heard_ms - HEARD_AGAIN_MS)
        self._follow_copies(self.local.told_copies(each.what.decode() for each in generations - self._heard))
        news = sorted(resets - self._heard, key=lambda each: each.at_ms)
        for start in range(0, len(news), TOLD_AT_ONCE):
            page = {Name.from_label(each.what.decode()): int(each.at_ms) for each in news[start : start + TOLD_AT_ONCE]}
            found = self.local.look(list(page))
            still_open = [entry.id for each in found for entry in each.entries if entry.has_open_deliveries]
            self._follow_copies(self.local.told_copies(still_open))
            heard_ms = max(heard_ms, *page.values())
            self.local.follow_resets(page, (HEARD_UNTIL, str(heard_ms)))
        self._heard = resets | generations

    def _look_after_copies(self) -> None:
        """What was stored here may have been finished by a worker elsewhere: its copy, and the payload, is over too."""
        now_ms = self._clock.steady_ms()
        if now_ms < self._copies_at_ms:
            return
        self._copies_at_ms = now_ms + COPIES_EVERY_MS
        page = self.local.open_copies(self._copies_after, COPIES_AT_ONCE)
        self._copies_after = max(page) if len(page) == COPIES_AT_ONCE else ""
        self._follow_copies(page)

    def _follow_copies(self, changes: Mapping[str, int]) -> None:
        """Redis knows all that these copies say, so what it says is later."""
        if changes:
            latest = self._redis.read_latest(list(changes), self._note.read())
            self.local.follow_copies(map(_as_copy, latest), changes)

    def _try_canary(self) -> None:
        """The real claim script: a PING answers under OOM and READONLY too."""
        canary = Claim(f"canary-{self._id}", secrets.token_urlsafe(9), (self._canary,), lease_ms=0)
        verdict = self._redis.claim(canary, self._note.read())
        if isinstance(verdict, Claimed):
            self._note.raise_to(verdict.entry.fence)

    def _is_gone(self, error: StoreUnavailable) -> bool:
        """Slow is not gone: what refuses says so at once, what is silent has to be so for several tries."""
        if isinstance(error, ConnectionDropped):
            self._refused += 1
        else:
            self._silent += 1
        return self._refused >= REFUSED_TICKS or self._silent >= SILENT_TICKS

    def _leave(self, error: StoreUnavailable) -> None:
        with self._side.alone() as standing:
            if standing.side is Side.LOCAL:
                return
            self.local.drain(self._spools)
            self._side.change_to(Side.LOCAL)
        self.numbers.side_changes += 1
        self._redis_ahead_ms = 0
        self._pause_s = FIRST_PAUSE_S
        self._try_at_ms = self._clock.steady_ms() + int(self._pause_s * 1000)
        alone = "emails are answered with retry-later" if self._on_failure is OnFailure.CLOSED else "it decides alone"
        log.error("Redis is gone; this machine is on its own side, %s: %s", alone, error)

    def _return_if_back(self) -> None:
        try:
            self._prepare_redis()
            self._tell_marks()
            self._try_canary()
            self._tell_untold()
            with self._side.alone() as standing:
                if standing.side is Side.REDIS:
                    return
                self._try_canary()
                self.local.drain(self._spools)
                self._tell_untold()
                self._share_states()
                self._redis_ahead_ms = self._redis.now_ms() - self.local.now_ms()
                self._side.change_to(Side.REDIS)
        except RedisLostMemory:
            self._restore()
        except StoreUnavailable as error:
            self._pause_s = min(LONGEST_PAUSE_S, self._pause_s * 2)
            self._try_at_ms = self._clock.steady_ms() + int(self._pause_s * 1000)
            log.warning("Redis is still away: %s", error)
        else:
            self.numbers.side_changes += 1
            self._silent = self._refused = 0
            log.info("Redis decides; %d entries told so far", self.numbers.told)

    def _tell_marks(self) -> None:
        """Once, by a machine that worked without a Redis before: what it knows by its marks alone."""
        if self.local.memo(MARKS_TOLD):
            return
        last = ""
        while names := self.local.marks_for_redis(last, TOLD_AT_ONCE):
            self._redis.mark(names)
            last = names[-1].label
        self.local.note(MARKS_TOLD, "yes")

    def _tell_untold(self, older_than_ms: int = 0) -> None:
        while batch := self.local.untold(TOLD_AT_ONCE, self.local.now_ms() - older_than_ms):
            changes = [change for change, _ in batch]
            self.local.hand_over(changes)
            self._merge([entry for _, entry in batch])
            self.local.mark_told(changes)

    def _restore(self) -> None:
        """Redis lost its memory: it stays closed until every machine that lives had time to tell what it knows."""
        with self._side.alone():
            if self._redis.number() >= self._note.read():
                return
            self.numbers.memory_losses += 1
            log.error("Redis has lost its memory; telling it what this machine knows")
            self.local.drain(self._spools)
            self._share_states()
            known = self.local.everything()
            while batch := list(islice(known, TOLD_AT_ONCE)):
                self._merge(batch, self._hold_ms)
            self._merge([], self._hold_ms)

    def _merge(self, entries: Sequence[Entry], hold_ms: int = 0) -> None:
        self._redis.merge(list(map(self._with_payload, entries)), self._clock, self._note.read(), hold_ms)
        self._note.raise_to(self._redis.last_number)
        self.numbers.told += len(entries)

    def _with_payload(self, entry: Entry) -> tuple[Entry, bytes | None]:
        """As it is told to Redis: with what is to be sent, as far as there is room for it. The rest stays here."""
        if entry.payload_machine not in ("", self._redis.machine):
            return entry, None
        bytes_here = self.local.payload_bytes(entry.id) if entry.needs_payload else 0
        told = replace(entry, payload_bytes=bytes_here, payload_machine=self._redis.machine if bytes_here else "")
        is_sent = bytes_here and entry.has_open_deliveries and self._redis.has_room_for(bytes_here)
        return told, self.local.payload(entry.id) if is_sent else None


def _with_entry(verdict: Verdict | DeduplicationError, entry: Entry | None) -> Verdict | DeduplicationError:
    match verdict:
        case Claimed() if entry:
            return Claimed(entry, verdict.left_out, verdict.is_first)
        case Duplicate() if entry:
            return replace(verdict, entry=entry)
    return verdict


def _with_payload_bytes(settling: Settling, now_ms: int) -> Entry:
    """The entry as its settlement leaves it."""
    after = settled(settling.entry, settling.settlement, now_ms)
    payload_bytes = len(settling.settlement.payload or b"")
    return after if payload_bytes == after.payload_bytes else changed(after, payload_bytes=payload_bytes)


def _as_copy(entry: Entry) -> Entry:
    """Leases on Redis are measured by another clock, and nobody delivers a copy."""
    deliveries = tuple(replace(each, owner="", lease_until_ms=0) for each in entry.deliveries)
    return replace(entry, lease_until_ms=0, deliveries=deliveries)
