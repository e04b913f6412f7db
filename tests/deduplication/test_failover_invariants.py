"""One machine, two workers, a Redis that goes, comes and forgets at any step: still one owner, nothing undone."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import fakeredis
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from deduplication.claims import WEEK_MS, Claim, Claimed, Duplicate, InFlight, Kind, Name
from deduplication.stores.failover import FailoverStore, Mode
from deduplication.stores.redis import RedisRestoring, RedisStore
from deduplication.stores.sqlite import SqliteStore
from tests.support.model import Model
from tests.support.stores import FakeClock, age

LEASE_MS = 60_000
OWN = [*(Name(Kind.EMAIL_ID, "2026-11-16", each) for each in ("e1", "e2")), Name(Kind.POST, "", "p", WEEK_MS)]
SHARED = [Name(Kind.SUBJECT_GROUP, "2026-11", "lot_1", WEEK_MS)]
NAME_SETS = st.tuples(
    st.lists(st.sampled_from(OWN), min_size=1, max_size=2, unique=True), st.lists(st.sampled_from(SHARED), max_size=1)
).map(lambda lists: tuple(lists[0] + lists[1]))
WORKERS = st.sampled_from([0, 1])


class Failover(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        self.model = Model()
        self.won: list[Claim] = []
        self.owners = 0
        self.server = fakeredis.FakeServer()
        self.clock = FakeClock()
        self.seconds = 0.0
        self.unheard: dict[Name, int] = {}  # settled while Redis was away: until when it may take the name for held
        self.flushes = 0
        self.reserved_at_flush: dict[tuple[Name, str], int] = {}
        self.delivered_late: set[Name] = set()  # by an owner who had been replaced, which Redis may have forgotten

    @initialize()
    def start_two_workers(self) -> None:
        folder = Path(self.stack.enter_context(tempfile.TemporaryDirectory()))
        self.workers = [self.start_worker(folder) for _ in range(2)]

    def start_worker(self, folder: Path) -> FailoverStore:
        redis = RedisStore(fakeredis.FakeRedis(server=self.server, decode_responses=True))
        store = FailoverStore(redis, SqliteStore(folder / "local.db", self.clock), monotonic=self.monotonic, hold_ms=0)
        self.stack.callback(store.close)
        return store

    def monotonic(self) -> float:
        return self.seconds

    def teardown(self) -> None:
        self.stack.close()

    @rule(
        worker=WORKERS,
        names=NAME_SETS,
        fingerprint=st.sampled_from(["", "t1.c1.n1.-.-.-.-", "t1.c2.n1.-.-.-.-", "-.c2.-.-.-.-.-"]),
    )
    def claim(self, worker: int, names: tuple[Name, ...], fingerprint: str) -> None:
        self.owners += 1
        claim = Claim(names[0].value, names, fingerprint, f"owner {self.owners}", LEASE_MS)
        expected = self.model.expected(claim)
        try:
            verdict = self.workers[worker].claim(claim)
        except RedisRestoring:
            return
        allowed = {expected} | self.also_allowed(claim)
        assert type(verdict) in allowed, (verdict, [each.situation() for each in self.workers])
        if isinstance(verdict, Claimed):
            self.won.append(claim)
            self.reserve(claim)
        elif isinstance(verdict, Duplicate) and not Name.from_label(verdict.name).is_own:
            for name in claim.names:
                if name.is_own:
                    self.model.settle(claim, name)

    def also_allowed(self, claim: Claim) -> set[type]:
        """What is wrong in neither way: to wait for what Redis has not heard is settled, and what was delivered late
        is delivered."""
        waits = any(self.unheard.get(name, 0) > self.model.now for name in claim.names)
        is_delivered = not self.delivered_late.isdisjoint(claim.names)
        return ({InFlight} if waits else set()) | ({Duplicate} if is_delivered else set())

    def reserve(self, claim: Claim) -> None:
        self.model.reserve(claim)
        for name in claim.names:
            self.reserved_at_flush[name, claim.fingerprint_for(name)] = self.flushes

    def may_be_forgotten(self, claim: Claim, name: Name) -> bool:
        """Redis was emptied since the name was last reserved, or it was given back and not everybody heard of it."""
        last_flush = self.reserved_at_flush[name, claim.fingerprint_for(name)]
        return last_flush < self.flushes or self.model.mark(claim, name).owner == "nobody"

    def note_unheard(self, worker: int, names: Iterable[Name]) -> None:
        if self.workers[worker].situation().mode is not Mode.REDIS:
            self.unheard |= dict.fromkeys(names, self.model.now + LEASE_MS)

    @rule(worker=WORKERS, data=st.data())
    def repeat_a_claim(self, worker: int, data: st.DataObject) -> None:
        """A reply that was lost: the same owner must never read "duplicate" or "in flight" for what it holds."""
        held = [c for c in self.won if all(self.is_held(c, name) for name in c.names)]
        if held:
            claim = data.draw(st.sampled_from(held))
            try:
                verdict = self.workers[worker].claim(claim)
            except RedisRestoring:
                return
            assert type(verdict) in {Claimed} | self.also_allowed(claim)
            if isinstance(verdict, Claimed):
                self.reserve(claim)

    def is_held(self, claim: Claim, name: Name) -> bool:
        """And nobody whose lease was over has delivered it all the same, under a fingerprint that may be this one."""
        is_leased = self.model.mark(claim, name).lease_until > self.model.now
        return self.model.owns(claim, name) and is_leased and not self.model.is_done(claim, name)

    @rule(worker=WORKERS, data=st.data())
    def commit(self, worker: int, data: st.DataObject) -> None:
        if not self.won:
            return
        claim = data.draw(st.sampled_from(self.won))
        mine = [name for name in claim.names if self.model.may_settle(claim, name)]
        self.workers[worker].commit(claim)
        for name in claim.names:
            if name in mine:
                self.model.settle(claim, name)
            elif self.may_be_forgotten(claim, name):
                self.delivered_late.add(name)
        self.note_unheard(worker, claim.names)

    @rule(worker=WORKERS, data=st.data())
    def release(self, worker: int, data: st.DataObject) -> None:
        held = [c for c in self.won if all(self.model.owns(c, name) for name in c.names)]
        if not held:
            return
        claim = data.draw(st.sampled_from(held))
        self.workers[worker].release(claim, retries_left=3)
        self.won.remove(claim)
        self.note_unheard(worker, claim.names)
        for name in claim.names:
            mark = self.model.mark(claim, name)
            mark.owner, mark.lease_until = "nobody", 0
            if not name.is_own and self.workers[worker].situation().mode is Mode.REDIS:
                mark.pending_until = 0  # nothing is remembered of it: who delivered late may still settle it

    @rule(worker=WORKERS)
    def tick(self, worker: int) -> None:
        self.seconds += 60
        self.workers[worker].tick()

    @rule()
    def redis_goes(self) -> None:
        self.server.connected = False

    @rule()
    def redis_comes(self) -> None:
        self.server.connected = True

    @rule()
    def redis_forgets_everything(self) -> None:
        self.flushes += 1
        with self.operator() as client:
            client.flushall()

    @contextmanager
    def operator(self) -> Iterator[fakeredis.FakeRedis]:
        """A line of one's own to Redis, whatever the workers see."""
        connected, self.server.connected = self.server.connected, True
        yield fakeredis.FakeRedis(server=self.server, decode_responses=True)
        self.server.connected = connected

    @rule(ms=st.sampled_from([20_000, LEASE_MS]))
    def let_time_pass(self, ms: int) -> None:
        self.clock.advance(ms)
        self.model.now += ms
        with self.operator() as client:
            age(client, ms)

    @rule()
    def in_the_end_redis_decides_again_and_knows_everything(self) -> None:
        self.server.connected = True
        for _ in range(4):
            self.tick(0)
            self.tick(1)
        assert {each.situation().mode for each in self.workers} == {Mode.REDIS}
        assert {each.situation().waiting for each in self.workers} == {0}
        for (name, fingerprint), mark in self.model.marks.items():
            if mark.done_until > self.model.now:
                self.owners += 1
                asking = Claim("asking", (name,), fingerprint, f"asking {self.owners}", LEASE_MS)
                redis = RedisStore(fakeredis.FakeRedis(server=self.server, decode_responses=True))
                assert isinstance(redis.claim(asking), Duplicate | InFlight)


def test_one_machine_stays_right_whatever_redis_does() -> None:
    run_state_machine_as_test(
        Failover,
        settings=settings(
            max_examples=100,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.explicit, Phase.reuse, Phase.generate],
        ),
    )
