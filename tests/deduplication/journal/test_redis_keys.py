"""What other programs write into Redis is found as names, and what is not ours is left alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from deduplication.claims import Kind, Name, Pattern
from deduplication.errors import StoreUnavailable
from deduplication.journal.redis import RedisJournal
from deduplication.redis_client import connect
from tests.support.redis_server import RedisServer

pytestmark = pytest.mark.real_redis


@pytest.fixture
def client(redis_server: RedisServer) -> Iterator[redis.Redis]:
    client = connect(redis_server.url, timeout_s=10, decode_responses=False)
    yield client
    client.close()


@pytest.fixture(params=["", "mail[1]:"])
def prefix(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def journal(client: redis.Redis, prefix: str) -> RedisJournal:
    return RedisJournal(client, "m1", prefix)


def test_every_name_that_another_program_marked_is_found(
    journal: RedisJournal, client: redis.Redis, prefix: str
) -> None:
    client.sadd(f"{prefix}processed_ids:2026-11-16", "e1", "e2")
    client.sadd(f"{prefix}subject_groups:2026-11", "2026-11:lot_1")
    client.set(f"{prefix}ttl:subject_groups:2026-11:lot_2", "1")
    client.set(f"{prefix}post:https://a.example/1", "0")
    client.set(f"{prefix}post:t3_a", "pending")
    client.set(f"{prefix}post:t3_b", "3")
    client.set(f"{prefix}media:https://a.example/x", "1")
    client.set(f"{prefix}dedup:crm:abc", "1")
    assert {name.label for name in journal.names(Pattern())} == {
        "email_id:2026-11-16:e1",
        "email_id:2026-11-16:e2",
        "subject_group:2026-11:lot_1",
        "subject_group:2026-11:lot_2",
        "post::https://a.example/1",
        "post::t3_a",
        "post::t3_b",
        "media::https://a.example/x",
        "content:crm:abc",
    }
    assert [name.label for name in journal.names(Pattern(Kind.EMAIL_ID, value="e2"))] == ["email_id:2026-11-16:e2"]
    assert [name.label for name in journal.names(Pattern(Kind.SUBJECT_GROUP, "2026-11", "lot_1"))] == [
        "subject_group:2026-11:lot_1"
    ]


def test_a_key_that_only_looks_like_ours_is_no_name(journal: RedisJournal, client: redis.Redis, prefix: str) -> None:
    client.set(f"{prefix}processed_ids:2026-11-16", "a String")
    client.sadd(f"{prefix}post:p1", "a Set")
    client.set(f"{prefix}post:p2", "hello")
    client.set(f"{prefix}media:m1", "2")
    client.set(f"{prefix}dedup:nothing", "1")
    client.set(f"{prefix}dedup:crm:abc", b"\xff")
    client.sadd(f"{prefix}subject_groups:2026-11", "no colon", b"\xff\xff")
    client.set("elsewhere:post:p3", "0")
    assert list(journal.names(Pattern())) == []


def test_a_pattern_with_the_signs_of_a_glob_means_just_these(
    journal: RedisJournal, client: redis.Redis, prefix: str
) -> None:
    client.sadd(f"{prefix}processed_ids:[2]", "e1")
    client.sadd(f"{prefix}processed_ids:2", "e2")
    assert [name.value for name in journal.names(Pattern(Kind.EMAIL_ID, "[2]"))] == ["e1"]


def test_a_look_at_many_names_is_one_round_trip(journal: RedisJournal, client: redis.Redis, prefix: str) -> None:
    client.sadd(f"{prefix}processed_ids:2026-11-16", "e1")
    names = [Name(Kind.EMAIL_ID, "2026-11-16", f"e{number}") for number in range(300)]
    journal.look(names)
    client.config_resetstat()
    found = journal.look(names)
    stats = client.info("commandstats")
    assert stats["cmdstat_evalsha"]["calls"] == 1
    assert [each.name for each in found if each.is_marked] == [names[1]]


def test_a_redis_that_is_being_told_what_it_lost_answers_no_look(
    journal: RedisJournal, client: redis.Redis, prefix: str
) -> None:
    client.set(f"{prefix}closed_until", journal.now_ms() + 60_000)
    with pytest.raises(StoreUnavailable, match="lost its memory"):
        journal.look([Name(Kind.EMAIL_ID, "2026-11-16", "e1")])
