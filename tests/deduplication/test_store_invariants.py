"""The invariants of claims, under any sequence of steps, over every store in lock-step.

Each step is done on all stores, whose answers must agree; a small model says what the answer may be.
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from deduplication.claims import PENDING_KEPT_MS, WEEK_MS, Claim, Claimed, Duplicate, InFlight, Kind, Name
from deduplication.stores.base import Pattern, Record
from tests.support.model import Mark, Model
from tests.support.redis_server import RedisServer
from tests.support.stores import STORES, Bench, open_bench

LEASE_MS = 60_000
OWN = [
    Name(Kind.EMAIL_ID, "2026-11-16", "e1"),
    Name(Kind.EMAIL_ID, "2026-11-16", "e2"),
    Name(Kind.EMAIL_ID, "undated", "e3"),
    Name(Kind.POST, "", "p", WEEK_MS),
]
SHARED = [Name(Kind.SUBJECT_GROUP, "2026-11", "lot_1", WEEK_MS), Name(Kind.MEDIA, "", "https://a.example/x", WEEK_MS)]
NAME_SETS = st.tuples(
    st.lists(st.sampled_from(OWN), min_size=1, max_size=3, unique=True),
    st.lists(st.sampled_from(SHARED), max_size=2, unique=True),
).map(lambda lists: tuple(lists[0] + lists[1]))
FINGERPRINTS = st.sampled_from(
    [
        "",
        "t1",  # as it was written before there were parts
        "t1.c1.n1.-.l1.-.-",
        "t1.c1.n2.-.-.-.-",  # the same files by other names
        "t1.c2.n1.-.l1.-.-",
        "t1.-.n1.s1.l1.-.-",
        "t1.-.n1.s2.-.-.-",
        "t1.c1.n1.-.l1.-.h1",
        "t1.c1.n1.-.l1.-.h2",
        "t2.0.0.0.0.-.-",
        "-.-.n1.s1.-.-.-",
        "-.c2.-.-.-.-.-",
    ]
)


class Invariants(RuleBasedStateMachine):
    redis_server: RedisServer

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        self.model = Model()
        self.claims: list[tuple[Claim, object]] = []
        self.owners = 0

    @initialize()
    def open_stores(self) -> None:
        self.redis_server.client.flushall()
        folder = Path(self.stack.enter_context(tempfile.TemporaryDirectory()))
        self.benches = [self.stack.enter_context(open_bench(kind, folder, self.redis_server)) for kind in STORES]

    def teardown(self) -> None:
        self.stack.close()

    def on_all(self, step: str, *arguments: Any) -> Any:
        answers = {
            bench.kind: self.comparable(getattr(bench.store, step)(*arguments), arguments[0]) for bench in self.benches
        }
        assert len(set(map(repr, answers.values()))) == 1, answers
        return answers["memory"]

    def comparable(self, answer: Any, claim: Any) -> Any:
        """Without what differs from store to store: milliseconds, and so which of several originals is older."""
        if isinstance(answer, Duplicate):
            met = self.model.met(claim, Name.from_label(answer.name))
            originals = sum(mark.done_until > self.model.now for mark in met)
            return Duplicate(answer.gate, answer.name, answer.original if originals == 1 else None, None)
        if isinstance(answer, Claimed):  # a store that was probed has given out numbers already
            return Claimed(0, answer.retries_left)
        return InFlight(answer.gate, answer.name, 0) if isinstance(answer, InFlight) else answer

    @rule(names=NAME_SETS, fingerprint=FINGERPRINTS)
    def claim(self, names: tuple[Name, ...], fingerprint: str) -> None:
        self.owners += 1
        item = next((n.value for n in names if n.kind is Kind.EMAIL_ID), "e1")
        claim = Claim(item, names, fingerprint, f"owner {self.owners}", LEASE_MS)
        expected = self.model.expected(claim)
        verdict = self.on_all("claim", claim)
        assert type(verdict) is expected
        assert self.on_all("claim", claim) == verdict, "same token, same answer"
        self.claims.append((claim, verdict))
        if isinstance(verdict, Claimed):
            self.model.reserve(claim)
        elif isinstance(verdict, Duplicate) and not Name.from_label(verdict.name).is_own:
            for name in claim.names:
                if name.is_own:
                    self.model.settle(claim, name)

    def note_fence(self, store: str, answer: Any, claim: Any) -> None:
        if isinstance(answer, Claimed):
            for name in claim.names:
                highest, owner = self.model.fences.get((store, name), (0, ""))
                assert answer.fence > highest or (answer.fence, claim.owner) == (highest, owner), "fences rise"
                self.model.fences[store, name] = (answer.fence, claim.owner)

    def some_claim(self, data: st.DataObject) -> Claim | None:
        won = [claim for claim, verdict in self.claims if isinstance(verdict, Claimed)]
        return data.draw(st.sampled_from(won)) if won else None

    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        claim = self.some_claim(data)
        if claim is None:
            return
        mine = [name for name in claim.names if self.model.may_settle(claim, name)]
        assert self.on_all("commit", claim) is (len(mine) == len(claim.names)), "a stale token changes nothing"
        for name in mine:
            self.model.settle(claim, name)

    @rule(data=st.data(), retries_left=st.sampled_from([None, 3, 1, 0]))
    def release(self, data: st.DataObject, retries_left: int | None) -> None:
        claim = self.some_claim(data)
        if claim is None:
            return
        mine = [name for name in claim.names if self.model.owns(claim, name)]
        before = self.retries()
        assert self.on_all("release", claim, retries_left) is (len(mine) == len(claim.names))
        after = self.retries()
        for name in mine:
            key = (name, claim.fingerprint_for(name))
            left, most = after.get(key), before[key]
            assert most is None or (left is not None and 0 <= left <= most), "retries never rise"
            if left == 0 and name.is_own:
                self.model.settle(claim, name)
            elif left is not None:
                self.model.marks[key] = Mark(owner="nobody", pending_until=self.model.now + PENDING_KEPT_MS)
            else:
                del self.model.marks[key]

    def retries(self) -> dict[tuple[Name, str], int | None]:
        return {(r.name, r.fingerprint): r.retries_left for r in self.benches[0].store.find(Pattern())}

    @rule(data=st.data())
    def renew(self, data: st.DataObject) -> None:
        claim = self.some_claim(data)
        if claim is None:
            return
        mine = [name for name in claim.names if self.model.owns(claim, name)]
        assert self.on_all("renew", claim) is (len(mine) == len(claim.names))
        for name in mine:
            mark = self.model.mark(claim, name)
            mark.lease_until, mark.pending_until = self.model.now + LEASE_MS, self.model.now + PENDING_KEPT_MS

    @rule(names=NAME_SETS)
    def forget(self, names: tuple[Name, ...]) -> None:
        self.on_all("forget", names)
        for key in [key for key in self.model.marks if key[0] in names]:
            del self.model.marks[key]

    @rule(ms=st.sampled_from([20_000, LEASE_MS, WEEK_MS]))
    def let_time_pass(self, ms: int) -> None:
        self.benches[0].advance(ms)
        for bench in self.benches[1:]:
            bench.advance(ms)
        self.model.now += ms

    @invariant()
    def the_stores_remember_the_same(self) -> None:
        known = [remembered(bench) for bench in getattr(self, "benches", [])]
        assert all(each == known[0] for each in known)


def remembered(bench: Bench) -> dict[tuple[Name, str], tuple[object, ...]]:
    return {(r.name, r.fingerprint): essence(r) for r in bench.store.find(Pattern())}


def essence(record: Record) -> tuple[object, ...]:
    return (record.state, record.owner, record.item, record.retries_left, record.gate, record.by, record.siblings)


def test_the_invariants_hold_under_any_sequence(redis_server: RedisServer) -> None:
    Invariants.redis_server = redis_server
    run_state_machine_as_test(
        Invariants,
        settings=settings(
            max_examples=60,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.explicit, Phase.reuse, Phase.generate],
        ),
    )
