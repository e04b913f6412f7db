"""Redis over a local store: Redis decides while it is there, the local store when it is not.

Three rules keep an email from being decided twice on one machine, whichever worker is on which side:

1. What Redis grants is claimed locally too before it counts; what was decided here alone can object.
2. What was decided here alone is merged into Redis before this process asks Redis again.
3. A Redis that lost its memory decides nothing until the servers have told it what they know.
"""

from __future__ import annotations

import logging
import random
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TypeVar

from deduplication.claims import Claim, Claimed, Duplicate, Gate, InFlight, Kind, Name, Verdict
from deduplication.errors import ConnectionDropped, DeduplicationError, StoreMisconfigured, StoreUnavailable
from deduplication.journal.failover import OnFailure
from deduplication.stores.base import Pattern, Record, Store
from deduplication.stores.local import LocalStore
from deduplication.stores.redis import Facts, Memory, RedisLostMemory, RedisRestoring, RedisStore

log = logging.getLogger(__name__)

T = TypeVar("T")

TICK_S = 1.0
HOLD_MS = 3000  # three ticks: every server that lives has noticed by then
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0
MIRROR_PAUSE_S = 1.0
SWITCH_TIMEOUT_S = 1.0
MERGE_BATCH = 200
CANARY = Name(Kind.LOCK, "canary", "probe", kept_ms=60_000)


class Mode(StrEnum):
    REDIS = "redis"
    LOCAL = "local"
    MERGING = "merging"


@dataclass
class Numbers:
    """What happened since the process started."""

    redis_errors: Counter[str] = field(default_factory=Counter)
    lost_replies: int = 0
    local_decisions: int = 0
    local_seconds: float = 0.0
    names_merged: int = 0
    memory_losses: int = 0
    mirror_failures: int = 0


@dataclass(frozen=True)
class Situation:
    mode: Mode
    since: float
    waiting: int | None
    numbers: Numbers


class Breaker:
    """Open while Redis is away. When to try again: after 1 s, then twice as long each time up to 30 s, and jitter."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._pause_s = FIRST_PAUSE_S
        self._next_try = 0.0

    def open(self) -> None:
        self._pause_s = FIRST_PAUSE_S
        self._schedule()

    def stay_open(self) -> None:
        self._pause_s = min(LONGEST_PAUSE_S, self._pause_s * 2)
        self._schedule()

    def is_due(self) -> bool:
        return self._monotonic() >= self._next_try

    def _schedule(self) -> None:
        jitter = random.uniform(0, 0.25)  # noqa: S311 - spreads load, guards nothing
        self._next_try = self._monotonic() + self._pause_s * (1 + jitter)


class FailoverStore:
    """The Store of a server with Redis. ``start`` lets it follow and return to Redis by itself."""

    def __init__(
        self,
        redis: RedisStore,
        local: LocalStore,
        on_failure: OnFailure = OnFailure.OPEN,
        monotonic: Callable[[], float] = time.monotonic,
        hold_ms: int = HOLD_MS,
    ) -> None:
        self._redis = redis
        self.local = local
        self._on_failure = on_failure
        self._monotonic = monotonic
        self._hold_ms = hold_ms
        self._breaker = Breaker(monotonic)
        self._memory = Memory(local.memo("memory"))
        self._switching = threading.RLock()
        self._restoring = threading.Lock()
        self._mirror_again_at = 0.0
        self._mode = Mode.LOCAL
        self._since = time.time()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.numbers = Numbers()
        self.probe()

    @property
    def mode(self) -> Mode:
        return self._mode

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="redis-follower", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        if self._thread:
            self._thread.join()
        self._redis.close()
        self.local.close()

    # The contract

    def claim(self, claim: Claim) -> Verdict:
        return self.move(claim, claim)

    def move(self, claim: Claim, to: Claim) -> Verdict:
        if self._mode is Mode.REDIS:
            asked_ms = self.local.now_ms()
            verdict = self._on_redis(lambda: self._move_on_redis(claim, to))
            if isinstance(verdict, Claimed):
                verdict = self._objection(to, verdict, asked_ms) or verdict
            if verdict is not None:
                self._follow_verdict(claim, to, verdict)
                return verdict
        return self._move_alone(claim, to)

    def commit(self, claim: Claim) -> bool:
        if self._mode is Mode.REDIS:
            try:
                committed = self._on_redis(lambda: self._redis.commit(claim))
            except StoreMisconfigured:  # loud, but what was delivered must not be forgotten over it
                self.local.commit(claim)
                raise
            if committed is not None:
                self._mirror(lambda: self.local.note_committed(claim))
                return committed
        return self.local.commit(claim)

    def release(self, claim: Claim, retries_left: int | None) -> bool:
        return self._on_both(
            lambda: self._redis.release(claim, retries_left), lambda: self.local.release(claim, retries_left)
        )

    def renew(self, claim: Claim) -> bool:
        return self._on_both(lambda: self._redis.renew(claim), lambda: self.local.renew(claim))

    def read(self, names: Iterable[Name]) -> Iterator[Record]:
        wanted = list(names)
        return self._looked_up(lambda store: store.read(wanted))

    def find(self, pattern: Pattern) -> Iterator[Record]:
        return self._looked_up(lambda store: store.find(pattern))

    def _looked_up(self, look_up: Callable[[Store], Iterator[Record]]) -> Iterator[Record]:
        if self._mode is Mode.REDIS:
            found = self._on_redis(lambda: list(look_up(self._redis)))
            if found is not None:
                return iter(found)
        return look_up(self.local)

    def forget(self, names: Iterable[Name]) -> int:
        """Must reach every server, so it needs Redis."""
        if self._mode is not Mode.REDIS:
            raise StoreUnavailable("Redis is away: a reset could not reach the other servers")
        wanted = list(names)
        forgotten = self._redis.forget(wanted)
        self.local.forget(wanted)
        return forgotten

    def drop_lapsed(self, kind: Kind) -> int:
        return self.local.drop_lapsed(kind)

    def now_ms(self) -> int:
        now_ms = self._on_redis(self._redis.now_ms) if self._mode is Mode.REDIS else None
        return self.local.now_ms() if now_ms is None else now_ms

    def check(self) -> None:
        """Can an email be taken safely?"""
        if self._mode is Mode.REDIS:
            self._redis.check()
        elif self._on_failure is OnFailure.CLOSED:
            raise StoreUnavailable("Redis is away, and ON_STORE_FAILURE=closed")
        else:
            self.local.check()

    def facts(self) -> Facts:
        return self._redis.facts()

    def situation(self) -> Situation:
        try:
            waiting = self.local.waiting_count()
        except DeduplicationError:
            waiting = None
        return Situation(self._mode, self._since, waiting, self.numbers)

    # Redis is there

    def _on_redis(self, step: Callable[[], T]) -> T | None:
        """What Redis answers, or None if it turned out to be away. A dropped connection is tried once more: the same
        owner gets the same answer, so a lost reply is harmless. A timeout is not, the request has waited enough."""
        try:
            return self._once_more_if_dropped(step)
        except RedisRestoring:
            raise
        except StoreUnavailable as error:
            self._leave_redis(error)
            return None

    def _once_more_if_dropped(self, step: Callable[[], T]) -> T:
        try:
            return step()
        except ConnectionDropped:
            answer = step()
            self.numbers.lost_replies += 1
            return answer

    def _move_on_redis(self, claim: Claim, to: Claim) -> Verdict:
        try:
            verdict = self._redis.move(claim, to, self._memory)
        except RedisLostMemory as error:
            self._restore()
            raise RedisRestoring("redis: it has lost its memory and is being restored") from error
        if isinstance(verdict, Claimed) and verdict.fence > self._memory.seen_fence:
            self._memory = Memory(self._memory.id, verdict.fence)
        return verdict

    def _objection(self, claim: Claim, granted: Claimed, asked_ms: int) -> Verdict | None:
        """The local store is told what Redis granted, and may object if this machine decided alone meanwhile."""
        held = claim.without(granted.left_out)
        objection = self._mirror(lambda: self.local.note_claimed(held, granted.fence, asked_ms))
        if objection is not None:
            self._on_redis(lambda: self._redis.release(held, None))
        return objection

    def _follow_verdict(self, claim: Claim, to: Claim, verdict: Verdict) -> None:
        if isinstance(verdict, InFlight):
            return
        if isinstance(verdict, Duplicate) and verdict.gate is not Gate.IDENTITY:
            self._mirror(lambda: self.local.note_skipped(to, verdict))
        dropped = claim.given_back_by(to)
        if dropped:
            self._mirror(lambda: self.local.release(replace(claim, names=dropped), None))

    def _mirror(self, step: Callable[[], T]) -> T | None:
        """A local store that fails must neither stop nor slow down what Redis has decided."""
        if self._monotonic() < self._mirror_again_at:
            return None
        try:
            return step()
        except DeduplicationError as error:
            self._mirror_again_at = self._monotonic() + MIRROR_PAUSE_S
            self.numbers.mirror_failures += 1
            log.error("what Redis decided is not known locally: %s", error)
            return None

    def _on_both(self, on_redis: Callable[[], bool], locally: Callable[[], bool]) -> bool:
        answer = self._on_redis(on_redis) if self._mode is Mode.REDIS else None
        if answer is None:
            return locally()
        self._mirror(locally)
        return answer

    # Redis is away

    def _leave_redis(self, error: StoreUnavailable) -> None:
        with self._switching:
            self.numbers.redis_errors[type(error.__cause__ or error).__name__] += 1
            if self._mode is Mode.REDIS:
                self._enter(Mode.LOCAL)
                self._breaker.open()
                log.error("Redis is away, %s: %s", self._consequence(), error)

    def _consequence(self) -> str:
        if self._on_failure is OnFailure.CLOSED:
            return "emails are answered with retry-later"
        return "the local store decides"

    def _move_alone(self, claim: Claim, to: Claim) -> Verdict:
        if self._on_failure is OnFailure.CLOSED:
            raise StoreUnavailable("Redis is away, and ON_STORE_FAILURE=closed")
        if not self._switching.acquire(timeout=SWITCH_TIMEOUT_S):
            raise StoreUnavailable("the local store is busy")
        try:
            if self._mode is not Mode.REDIS:
                started = self._monotonic()
                verdict = self.local.move(claim, to)
                self.numbers.local_decisions += 1
                self.numbers.local_seconds += self._monotonic() - started
                return verdict
        finally:
            self._switching.release()
        return self.move(claim, to)  # Redis came back while we waited

    # Redis comes back

    def _run(self) -> None:
        while not self._stop.wait(TICK_S):
            try:
                self.tick()
            except DeduplicationError as error:  # misconfigured: say so and go on, an operator may be at it
                log.error("following Redis failed: %s", error)

    def tick(self) -> None:
        """One step of the background thread."""
        if self._mode is Mode.REDIS:
            self._on_redis(self._follow)
        elif self._breaker.is_due():
            self.probe()

    def probe(self) -> None:
        """Try the real claim script, merge what was decided here alone, and only then let Redis decide again."""
        try:
            if self._memory.id is None:
                self._remember(self._redis.adopt(self._memory, secrets.token_hex(8), self._hold_ms))
            canary = Claim("canary", (CANARY,), "", secrets.token_urlsafe(16), lease_ms=1)
            self._redis.claim(canary, self._memory)
            self._redis.release(canary, None)
            self._enter(Mode.MERGING)
            self._merge_waiting()
            with self._switching:
                self._merge_waiting()  # the few that came in since; nobody decides alone meanwhile
                self._enter(Mode.REDIS)
            log.info("Redis decides; %d names merged so far", self.numbers.names_merged)
        except RedisLostMemory:
            self._restore()
        except RedisRestoring:
            self._breaker.open()
        except StoreUnavailable as error:
            self.numbers.redis_errors[type(error.__cause__ or error).__name__] += 1
            self._enter(Mode.LOCAL)
            self._breaker.stay_open()
            log.warning("Redis is still away, %s: %s", self._consequence(), error)

    def _follow(self) -> bool:
        """Has Redis lost its memory, was something reset elsewhere, is something left over to merge?"""
        news = self._redis.news(self.local.memo("resets") or "0")
        if news.memory_id != self._memory.id:
            self._restore()
        for names, fence in news.resets:
            self.local.forget_mirrored(names, up_to_fence=fence)
        if news.resets:
            self.local.set_memo("resets", news.cursor)
        self._merge_waiting()
        return True

    def _merge_waiting(self) -> None:
        while batch := self.local.waiting(MERGE_BATCH):
            self._redis.merge(batch, self.local.now_ms())
            self.local.mark_merged(batch)
            self.numbers.names_merged += len(batch)

    def _restore(self) -> None:
        """Redis lost its memory: tell it everything this server knows. It stays closed until all had time to."""
        if not self._restoring.acquire(blocking=False):
            return
        try:
            memory_id = self._redis.adopt(self._memory, secrets.token_hex(8), self._hold_ms)
            if memory_id == self._memory.id:
                return
            self.numbers.memory_losses += 1
            log.error("Redis has lost its memory; telling it what this server knows")
            told = sum(self._redis.merge(b, self.local.now_ms(), hold_ms=self._hold_ms) for b in self.local.known())
            self.numbers.names_merged += told
            self._remember(memory_id)
            log.warning("Redis was told %d names", told)
        finally:
            self._restoring.release()

    def _remember(self, memory_id: str) -> None:
        self._memory = Memory(memory_id, self._memory.seen_fence)
        self.local.set_memo("memory", memory_id)

    def _enter(self, mode: Mode) -> None:
        if mode is not self._mode:
            self._mode = mode
            self._since = time.time()
