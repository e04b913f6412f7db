"""Redis over this machine's own journal: one side at a time, for all processes of the machine together.

While Redis is there, it decides; what it granted and what was delivered is appended to a spool, and drained into the
local journal behind the requests. When it is sure to be gone, the machine changes to its own side and decides alone;
when it is back, it is told first. docs/architecture.md has the rules, and what taught them.
"""

from __future__ import annotations

import fcntl
import logging
import os
import secrets
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import TypeVar

from deduplication.claims import Kind, Name, Pattern
from deduplication.errors import ConnectionDropped, DeduplicationError, StoreUnavailable
from deduplication.journal.base import (
    Begun,
    Claim,
    Claimed,
    Duplicate,
    Ending,
    Forgotten,
    Found,
    Released,
    Replayed,
    Settlement,
    UnderWay,
    Verdict,
)
from deduplication.journal.codec import flat_delivery, flat_entry
from deduplication.journal.entry import Delivery, DeliveryStatus, Entry, State
from deduplication.journal.redis import RedisBeingTold, RedisFacts, RedisJournal, RedisLostMemory
from deduplication.journal.side import MachineSide, Side, Standing
from deduplication.journal.spool import Note, Spool
from deduplication.journal.sqlite import SqliteJournal
from deduplication.journal.verdict import settled

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
        self._id = secrets.token_hex(6)
        self._canary = Name(Kind.LOCK, "canary", self._id)
        self._redis_ahead_ms = 0
        self._silent, self._refused, self._pause_s, self._try_at_ms = 0, 0, FIRST_PAUSE_S, 0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.numbers = Numbers()
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
        spools = [path.stat().st_size for path in self._spools.glob("*.spool")]
        return Untold(self.local.untold_count(), sum(spools))

    def redis_facts(self) -> RedisFacts:
        return self._redis.facts()

    # The contract

    def claim(self, claim: Claim) -> Verdict:
        with self._side.shared() as standing:
            if standing.side is Side.LOCAL:
                self._refuse_if_closed()
                self.numbers.decided_alone += 1
                return self.local.claim(claim)
            sent_ms, seen = self._clock.steady_ms(), self._note.read()
            verdict = self._ask(lambda: self._redis.claim(claim, seen))
            return self._note_granted(claim, verdict, sent_ms)

    def _note_granted(self, claim: Claim, verdict: Verdict, sent_ms: int) -> Verdict:
        """In the spool and in the note before anything is sent: the other processes know, also if this one dies."""
        if not isinstance(verdict, Claimed | Duplicate) or verdict.entry is None:
            return verdict
        entry = replace(verdict.entry, lease_until_ms=sent_ms + claim.lease_ms)  # by a clock that cannot be set
        self._note.raise_to(entry.fence)
        self._spool.append("granted", flat_entry(entry))
        if self._clock.steady_ms() - sent_ms > RELIABLE_REPLY_MS:
            self.numbers.late_replies += 1
            with suppress(
                StoreUnavailable
            ):  # nobody is at it: the next try of its provider need not wait for the lease
                self._redis.settle(claim, entry, Settlement(Ending.FREE))
            raise StoreUnavailable("redis: its answer came too late to be relied on")
        return replace(verdict, entry=entry)

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
        """What waits is on this disk and on Redis before it counts; what was delivered is a fact in the spool."""
        after = settled(entry, settlement, self.local.now_ms())
        with self._side.shared() as standing:
            if standing.side is Side.LOCAL:
                return self.local.settle(claim, entry, settlement)
            if after.has_open_deliveries:
                self.local.keep_copy(after, settlement.payload)
            elif after.stop and not after.stop.follows:
                # What is only kept so that it can be released lies on this disk: Redis has little room.
                self.local.keep_payload(entry.id, settlement.payload)
                settlement = replace(settlement, payload=None)
            try:
                is_settled = self._ask(lambda: self._redis.settle(claim, entry, settlement))
            except StoreUnavailable as error:
                if after.has_open_deliveries or not after.is_delivered_somewhere:
                    raise
                if not after.deliveries:  # a script's: nothing else has noted yet that it was published
                    self._spool.append("published", flat_entry(after))
                log.warning("entry %s: delivered; Redis is told later: %s", entry.id, error)
                return True
            self._note.raise_to(self._redis.last_number)
            if not is_settled:
                self._replace_copy(entry.id)  # another has decided: what is kept here must not say otherwise
            elif settlement.ending is Ending.DONE:
                if after.deliveries and after.is_delivered_somewhere and not after.has_open_deliveries:
                    self._spool.confirm(entry.id)
                else:
                    self._spool.append("settled", flat_entry(after))
            return is_settled

    def renew(self, entry: str, owner: str, lease_ms: int, destination: str | None = None) -> bool:
        return self._on_side(
            lambda: self._redis.renew(entry, owner, lease_ms, destination),
            lambda: self.local.renew(entry, owner, lease_ms, destination),
        )

    def due(self, room: Mapping[str, int], hold_ms: int) -> list[tuple[str, str]]:
        """What was sent to Redis is handed out by Redis alone: while it is away, the copies here rest."""
        return self._on_side(lambda: self._redis.due(room, hold_ms), lambda: self.local.due(room, hold_ms))

    def begin(self, entry: str, destination: str, owner: str, lease_ms: int, server: str = "") -> Begun | None:
        """One that was begun before may have been delivered without Redis having heard of it: this machine knows."""
        begun = self._on_side(
            lambda: self._redis.begin(entry, destination, owner, lease_ms, server),
            lambda: self.local.begin(entry, destination, owner, lease_ms, server),
        )
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
            payload = self.local.payload(entry) if answer in (Replayed.NO_PAYLOAD, Released.NO_PAYLOAD) else None
            if payload is not None:
                answer = self._ask(lambda: on_redis(payload))
            self._note.raise_to(self._redis.last_number)
            if answer in (Replayed.REPLAYED, Released.RELEASED):
                self._copy_from_redis(entry)
            return answer

    def _copy_from_redis(self, entry: str) -> None:
        """For a Redis that loses its memory. Its leases are measured by another clock, and nobody delivers a copy."""
        try:
            after = self._redis.read(entry)
        except StoreUnavailable as error:
            log.warning("entry %s: no copy of it on this machine: %s", entry, error)
            return
        if after and after.state is State.DONE:
            deliveries = tuple(replace(each, owner="", lease_until_ms=0) for each in after.deliveries)
            self._spool.append("settled", flat_entry(replace(after, deliveries=deliveries)))

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

    def payload(self, entry: str) -> bytes | None:
        """Redis has what waits; what is only kept so that a person can send it may lie on this disk."""

        def on_redis() -> bytes | None:
            kept = self._redis.payload(entry)
            if kept is None and (known := self._redis.read(entry)) and known.needs_payload:
                return self.local.payload(entry)
            return kept

        return self._on_side(on_redis, lambda: self.local.payload(entry))

    def find(self) -> Iterator[Entry]:
        return self._redis.find() if self.standing.side is Side.REDIS else self.local.find()

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
                return step()
            except ConnectionDropped:
                answer = step()
                self.numbers.lost_replies += 1
                return answer
        except StoreUnavailable as error:
            self.numbers.redis_errors[type(error.__cause__ or error).__name__] += 1
            raise

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
        with self._one_of_machine() as is_mine:
            if is_mine:
                self.local.drain(self._spools)
                self._tell_untold(CONFIRMED_WITHIN_MS)

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
            known = self.local.everything()
            while batch := list(islice(known, TOLD_AT_ONCE)):
                self._merge(batch, self._hold_ms)
            self._merge([], self._hold_ms)

    def _merge(self, entries: Sequence[Entry], hold_ms: int = 0) -> None:
        told = [(each, self.local.payload(each.id) if each.has_open_deliveries else None) for each in entries]
        self._redis.merge(told, self._clock, self._note.read(), hold_ms)
        self._note.raise_to(self._redis.last_number)
        self.numbers.told += len(entries)

    @contextmanager
    def _one_of_machine(self) -> Iterator[bool]:
        """What one process of the machine does for all of them."""
        fd = os.open(self._folder / "chores.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
        finally:
            os.close(fd)
