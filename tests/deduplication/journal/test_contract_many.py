"""What every journal promises of several items at once (deduplication/journal/base.py)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis

from deduplication.claims import Gate, Kind, Name
from deduplication.errors import DeduplicationError, NoRoom, StoreUnavailable
from deduplication.journal.base import Claim, Claimed, Duplicate, Ending, InFlight, Settlement, Settling
from deduplication.journal.entry import DeliveryStatus, Entry, State
from tests.deduplication.journal.test_contract import GROUP, Desk, a_claim
from tests.support.journals import JournalBench, open_journal
from tests.support.redis_server import RedisServer


@pytest.fixture
def desk(bench: JournalBench) -> Desk:
    return Desk(bench)


@pytest.fixture(params=["sqlite", "redis", "failover"])
def narrow(request: pytest.FixtureRequest, tmp_path: Path, redis_server: RedisServer) -> Iterator[Desk]:
    """Room for one payload of a kilobyte, and no second one."""
    with open_journal(request.param, tmp_path, redis_server, redis_bytes=1500, disk_bytes=1500) as bench:
        yield Desk(bench)


def an_id(value: str) -> Name:
    return Name(Kind.EMAIL_ID, "2026-11-16", value)


def some_claims(count: int) -> list[Claim]:
    return [a_claim(an_id(f"id{number}")) for number in range(count)]


def entries_of(verdicts: list[Any]) -> list[Entry]:
    assert all(isinstance(each, Claimed) for each in verdicts), verdicts
    return [each.entry for each in verdicts]


def settling(claim: Claim, entry: Entry, status: DeliveryStatus, payload: bytes | None = None) -> Settling:
    ended = replace(entry.deliveries[0], status=status, tries=1, next_try_ms=1 if status.is_open else None)
    return Settling(claim, entry, Settlement(Ending.DONE, "told", (ended,), payload=payload))


def test_each_of_several_gets_its_own_verdict(desk: Desk) -> None:
    done = desk.deliver(an_id("done"))
    desk.deliver(an_id("of the group"), shared=(GROUP,))
    desk.claim(an_id("held"))
    claims = [
        a_claim(an_id("new")),
        a_claim(an_id("done")),
        a_claim(an_id("held")),
        a_claim(an_id("grouped"), shared=(GROUP,)),
        a_claim(an_id("new too")),
    ]
    new, repeat, held, stopped, last = desk.journal.claim_many(claims)
    assert isinstance(new, Claimed) and new.is_first and new.entry.owner == claims[0].owner
    assert isinstance(repeat, Duplicate) and repeat.entry is None and repeat.stop.original == done.id
    assert isinstance(held, InFlight) and held.gate is Gate.IDENTITY
    assert isinstance(stopped, Duplicate) and stopped.entry and stopped.stop.name == GROUP
    assert isinstance(last, Claimed)
    assert desk.read(done.id).repeats == 1
    assert last.entry.fence > new.entry.fence


def test_the_same_owners_asking_again_get_the_same_answers(desk: Desk) -> None:
    desk.deliver(an_id("done"))
    claims = [*some_claims(3), a_claim(an_id("done"))]
    first, second = desk.journal.claim_many(claims), desk.journal.claim_many(claims)
    assert [each.id for each in entries_of(second[:3])] == [each.id for each in entries_of(first[:3])]
    assert isinstance(second[3], Duplicate) and second[3].stop == getattr(first[3], "stop", None)
    (found,) = desk.journal.look([an_id("done")])
    assert found.entries[0].repeats == 1, "a lost reply is counted once"


def test_of_two_with_one_name_the_second_hears_of_the_first(desk: Desk) -> None:
    first, second = desk.journal.claim_many([a_claim(an_id("a")), a_claim(an_id("a"))])
    assert isinstance(first, Claimed)
    assert isinstance(second, InFlight)


def test_each_of_several_is_settled_as_it_ended(desk: Desk) -> None:
    claims = some_claims(4)
    delivered, waiting, dead, lost = zip(claims, entries_of(desk.journal.claim_many(claims)), strict=True)
    desk.pass_ms(2 * lost[0].lease_ms)
    _, taken_over = desk.claim(an_id("id3"))
    assert isinstance(taken_over, Claimed)
    answers = desk.journal.settle_many(
        [
            settling(*delivered, DeliveryStatus.DELIVERED),
            settling(*waiting, DeliveryStatus.WAITING, b"payload"),
            settling(*lost, DeliveryStatus.DEAD, b"payload"),
            settling(*dead, DeliveryStatus.DEAD, b"payload"),
        ]
    )
    assert answers == [True, True, False, True]
    states = [desk.read(claim.entry).deliveries[0].status for claim in claims]
    assert states == [
        DeliveryStatus.DELIVERED,
        DeliveryStatus.WAITING,
        DeliveryStatus.DEAD,
        DeliveryStatus.DELIVERING,
    ]
    assert [desk.journal.payload(claim.entry) for claim in claims] == [None, b"payload", b"payload", None]
    assert desk.journal.due({"crm": 10}, 60_000) == [(claims[1].entry, "crm")]


def test_settled_again_by_the_same_owners_the_answers_are_the_same(desk: Desk) -> None:
    claims = some_claims(3)
    entries = entries_of(desk.journal.claim_many(claims))
    ends = [settling(*each, DeliveryStatus.DELIVERED) for each in zip(claims, entries, strict=True)]
    assert desk.journal.settle_many(ends) == desk.journal.settle_many(ends) == [True] * 3
    assert [desk.read(claim.entry).state for claim in claims] == [State.DONE] * 3


def test_what_there_is_no_room_for_is_refused_alone(narrow: Desk) -> None:
    claims = some_claims(4)
    entries = entries_of(narrow.journal.claim_many(claims))
    waiting, too_much, delivered, dead = zip(claims, entries, strict=True)
    answers = narrow.journal.settle_many(
        [
            settling(*waiting, DeliveryStatus.WAITING, b"x" * 1024),
            settling(*too_much, DeliveryStatus.WAITING, b"x" * 1024),
            settling(*delivered, DeliveryStatus.DELIVERED),
            settling(*dead, DeliveryStatus.DEAD, b"x" * 1024),
        ]
    )
    assert isinstance(answers[1], NoRoom)
    assert [answers[0], *answers[2:]] == [True] * 3
    assert [narrow.read(claim.entry).state for claim in claims] == [State.DONE, State.PENDING, State.DONE, State.DONE]
    assert narrow.read(claims[3].entry).payload_bytes == 0, "it is seen, without its payload"


def test_nothing_is_nothing(desk: Desk) -> None:
    assert desk.journal.claim_many([]) == desk.journal.settle_many([]) == []


@pytest.mark.parametrize("kind", ["redis", "failover"])
def test_what_redis_refuses_of_one_item_is_that_items_error(
    kind: str, tmp_path: Path, redis_server: RedisServer
) -> None:
    with open_journal(kind, tmp_path, redis_server) as bench:
        with redis.Redis(port=redis_server.port, db=1 if kind == "failover" else 0) as client:
            client.lpush("processed_ids:2026-11-17", "not a set")
        claims = [a_claim(an_id("a")), a_claim(Name(Kind.EMAIL_ID, "2026-11-17", "b")), a_claim(an_id("c"))]
        first, second, third = bench.journal.claim_many(claims)
        assert isinstance(first, Claimed) and isinstance(third, Claimed)
        assert isinstance(second, DeduplicationError) and not isinstance(second, StoreUnavailable)
        assert "WRONGTYPE" in str(second)
