"""Merging is idempotent and commutative, and loses no done name."""

from __future__ import annotations

import fakeredis
from hypothesis import given, settings
from hypothesis import strategies as st

from deduplication.claims import WEEK_MS, Claim, Kind, Name
from deduplication.stores.base import Pattern, Record, State
from deduplication.stores.memory import MemoryStore, Shelf
from deduplication.stores.redis import RedisStore
from tests.support.stores import FakeClock

NAMES = [
    Name(Kind.EMAIL_ID, "2026-11-16", "e1"),
    Name(Kind.EMAIL_ID, "undated", "e2"),
    Name(Kind.POST, "", "p1", WEEK_MS),
    Name(Kind.SUBJECT_GROUP, "2026-11", "lot_1", WEEK_MS),
    Name(Kind.MEDIA, "", "https://a.example/x", WEEK_MS),
]
STEPS = st.lists(
    st.tuples(
        st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True),
        st.sampled_from(["", "t1.c1.n1.-.-.-.-", "t1.c2.n1.-.-.-.-", "t1.-.n1.-.-.-.-"]),
        st.booleans(),
    ),
    max_size=6,
)
Known = set[tuple[Name, str, State, str]]


def decided_alone(server: str, steps: list[tuple[list[Name], str, bool]]) -> MemoryStore:
    store = MemoryStore(FakeClock(), Shelf())
    for number, (names, fingerprint, commits) in enumerate(steps):
        claim = Claim("e1", tuple(names), fingerprint, f"{server} {number}", 60_000 if server == "first" else 90_000)
        store.claim(claim)
        if commits:
            store.commit(claim)
    return store


def merged(*servers: MemoryStore) -> Known:
    redis = RedisStore(fakeredis.FakeRedis(decode_responses=True))
    for server in servers:
        redis.merge(server.waiting(1000), server.now_ms())
    return known(redis.find(Pattern()))


def known(records: object) -> Known:
    assert hasattr(records, "__iter__")
    found: list[Record] = list(records)
    return {(r.name, r.fingerprint, r.state, "" if r.state is State.DONE else r.owner) for r in found}


@settings(max_examples=60, deadline=None)
@given(STEPS, STEPS)
def test_the_order_and_the_number_of_merges_do_not_matter(
    first: list[tuple[list[Name], str, bool]], second: list[tuple[list[Name], str, bool]]
) -> None:
    one, two = decided_alone("first", first), decided_alone("second", second)
    once = merged(one, two)
    assert merged(two, one) == once
    assert merged(one, two, one, two) == once


@settings(max_examples=60, deadline=None)
@given(STEPS, STEPS)
def test_no_done_name_is_lost(
    first: list[tuple[list[Name], str, bool]], second: list[tuple[list[Name], str, bool]]
) -> None:
    servers = decided_alone("first", first), decided_alone("second", second)
    redis = RedisStore(fakeredis.FakeRedis(decode_responses=True))
    done = {(r.name, r.fingerprint) for server in servers for r in server.waiting(1000) if r.state is State.DONE}
    for server in servers:
        redis.merge(server.waiting(1000), server.now_ms())
    assert done <= {(r.name, r.fingerprint) for r in redis.find(Pattern()) if r.state is State.DONE}


def test_an_undated_id_marked_by_another_program_does_not_keep_out_what_is_merged() -> None:
    client = fakeredis.FakeRedis(decode_responses=True)
    client.sadd("processed_ids:undated", "e2")
    undated = Name(Kind.EMAIL_ID, "undated", "e2")
    server = decided_alone("first", [([undated], "t1.c1.n1.-.-.-.-", True)])
    RedisStore(client).merge(server.waiting(1000), server.now_ms())
    assert known(RedisStore(client).find(Pattern())) == {(undated, "t1.c1.n1.-.-.-.-", State.DONE, "")}
