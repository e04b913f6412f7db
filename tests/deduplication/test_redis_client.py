"""The small door for scripts: it shares its keys with the service, and without Redis it never suppresses by guess."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import UTC
from zoneinfo import ZoneInfo

import fakeredis
import pytest
import redis

from deduplication.claims import Claim, Claimed, Duplicate, Gate, Kind, Name
from deduplication.redis_client import (
    connect,
    is_email_id_processed,
    is_subject_group_processed,
    mark_email_id_processed,
    mark_subject_group_processed,
)
from deduplication.stores.redis import RedisStore
from deduplication.stores.spelling import Speller
from deduplication.subject_group import group_name, month_of
from tests.support.redis_server import RedisServer, free_port

log = logging.getLogger("script")
IDS_KEY = "processed_ids:2026-11-16"
EMAIL = Name(Kind.EMAIL_ID, "2026-11-16", "e1")


@pytest.fixture
def client() -> Iterator[redis.Redis]:
    fake: redis.Redis = fakeredis.FakeRedis(server=fakeredis.FakeServer())
    yield fake
    fake.close()


@pytest.fixture
def broken() -> Iterator[redis.Redis]:
    """Nobody listens there."""
    nobody = connect(f"redis://127.0.0.1:{free_port()}/0")
    yield nobody
    nobody.close()


@pytest.fixture(params=["no client", "a client that fails"])
def no_redis(request: pytest.FixtureRequest) -> redis.Redis | None:
    client: redis.Redis | None = None if request.param == "no client" else request.getfixturevalue("broken")
    return client


@pytest.fixture
def real(redis_server: RedisServer) -> Iterator[redis.Redis]:
    client = connect(redis_server.url, timeout_s=5)
    yield client
    client.close()


def claim(owner: str, *names: Name) -> Claim:
    return Claim("e1", names, "f1", owner, lease_ms=60_000)


def deliver(store: RedisStore, *names: Name) -> None:
    assert isinstance(store.claim(claim("service", *names)), Claimed)
    assert store.commit(claim("service", *names))


def test_a_marked_email_id_is_processed_and_no_other(client: redis.Redis) -> None:
    assert not is_email_id_processed(client, "e1", log, IDS_KEY)
    assert mark_email_id_processed(client, "e1", log, IDS_KEY)
    assert is_email_id_processed(client, "e1", log, IDS_KEY)
    assert not is_email_id_processed(client, "e2", log, IDS_KEY)
    assert not is_email_id_processed(client, "e1", log, "processed_ids:2026-11-17")


def test_marking_twice_is_marking_once(client: redis.Redis) -> None:
    assert mark_email_id_processed(client, "e1", log, IDS_KEY)
    assert mark_email_id_processed(client, "e1", log, IDS_KEY)
    assert client.scard(IDS_KEY) == 1


def test_a_marked_group_is_processed_in_its_month_only(client: redis.Redis) -> None:
    month = month_of(UTC)
    assert not is_subject_group_processed(client, "lot_456", log)
    assert mark_subject_group_processed(client, "lot_456", log)
    assert is_subject_group_processed(client, "lot_456", log)
    assert client.smembers(f"subject_groups:{month}") == {f"{month}:lot_456".encode()}
    client.rename(f"subject_groups:{month}", "subject_groups:1999-12")
    assert not is_subject_group_processed(client, "lot_456", log)


@pytest.mark.parametrize("zone", ["Pacific/Kiritimati", "Pacific/Pago_Pago"])
def test_the_month_is_the_one_of_the_given_zone(client: redis.Redis, zone: str) -> None:
    tz = ZoneInfo(zone)
    mark_subject_group_processed(client, "lot_456", log, tz=tz)
    month = month_of(tz)
    assert client.sismember(f"subject_groups:{month}", f"{month}:lot_456")
    assert is_subject_group_processed(client, "lot_456", log, tz=tz)


def test_without_monthly_scope_a_group_is_processed_for_ever(client: redis.Redis) -> None:
    mark_subject_group_processed(client, "lot_456", log, enable_monthly_scope=False)
    assert client.smembers("subject_groups") == {b"lot_456"}
    assert client.ttl("subject_groups") == -1
    assert is_subject_group_processed(client, "lot_456", log, enable_monthly_scope=False)
    assert not is_subject_group_processed(client, "lot_456", log)


def test_a_group_may_stand_under_a_key_of_the_scripts_own(client: redis.Redis) -> None:
    mark_subject_group_processed(client, "lot_456", log, groups_key="mine", ttl_prefix="mine:ttl:", ttl_seconds=60)
    month = month_of(UTC)
    assert client.sismember("mine", f"{month}:lot_456")
    assert 0 < client.ttl(f"mine:ttl:{month}:lot_456") <= 60
    assert is_subject_group_processed(client, "lot_456", log, groups_key="mine")
    assert is_subject_group_processed(client, "lot_456", log, ttl_prefix="mine:ttl:", ttl_seconds=60)
    assert not is_subject_group_processed(client, "lot_456", log, ttl_seconds=60)


def test_with_a_ttl_its_key_decides_and_the_set_is_history(client: redis.Redis) -> None:
    month = month_of(UTC)
    mark_subject_group_processed(client, "lot_456", log, ttl_seconds=60)
    assert is_subject_group_processed(client, "lot_456", log, ttl_seconds=60)
    client.delete(f"ttl:subject_groups:{month}:lot_456")
    assert not is_subject_group_processed(client, "lot_456", log, ttl_seconds=60)
    assert client.sismember(f"subject_groups:{month}", f"{month}:lot_456")


def test_without_a_ttl_the_set_decides_and_never_expires(client: redis.Redis) -> None:
    mark_subject_group_processed(client, "lot_456", log)
    assert client.ttl(f"subject_groups:{month_of(UTC)}") == -1
    assert not client.keys("ttl:*")


def test_an_empty_id_is_never_processed_and_never_marked(client: redis.Redis) -> None:
    remembered: set[str] = set()
    assert not mark_email_id_processed(client, "", log, IDS_KEY, remembered)
    assert not mark_subject_group_processed(client, "", log, memory_set=remembered)
    assert not is_email_id_processed(client, "", log, IDS_KEY, {""})
    assert not is_subject_group_processed(client, "", log, memory_set={""})
    assert not client.keys("*")
    assert not remembered


def test_without_redis_the_memory_set_decides(no_redis: redis.Redis | None) -> None:
    remembered: set[str] = set()
    assert not is_email_id_processed(no_redis, "e1", log, IDS_KEY, remembered)
    assert mark_email_id_processed(no_redis, "e1", log, IDS_KEY, remembered)
    assert is_email_id_processed(no_redis, "e1", log, IDS_KEY, remembered)

    assert not is_subject_group_processed(no_redis, "lot_456", log, memory_set=remembered)
    assert mark_subject_group_processed(no_redis, "lot_456", log, memory_set=remembered, ttl_seconds=60)
    assert is_subject_group_processed(no_redis, "lot_456", log, memory_set=remembered)
    assert remembered == {"e1", f"{month_of(UTC)}:lot_456"}


def test_without_redis_and_without_a_memory_set_nothing_is_processed(no_redis: redis.Redis | None) -> None:
    assert not mark_email_id_processed(no_redis, "e1", log, IDS_KEY)
    assert not mark_subject_group_processed(no_redis, "lot_456", log)
    assert not is_email_id_processed(no_redis, "e1", log, IDS_KEY)
    assert not is_subject_group_processed(no_redis, "lot_456", log)


def test_every_answer_without_redis_leaves_a_line_in_the_log(
    no_redis: redis.Redis | None, caplog: pytest.LogCaptureFixture
) -> None:
    is_email_id_processed(no_redis, "e1", log, IDS_KEY)
    mark_email_id_processed(no_redis, "e1", log, IDS_KEY)
    is_subject_group_processed(no_redis, "lot_456", log)
    mark_subject_group_processed(no_redis, "lot_456", log)
    assert len(caplog.messages) == 4
    assert all(line.startswith("REDIS_DEDUP: ") for line in caplog.messages)
    assert all(record.levelno >= logging.WARNING for record in caplog.records)


def test_a_refusing_redis_is_logged_and_the_memory_set_decides(
    client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    client.set(IDS_KEY, "not a Set")
    assert is_email_id_processed(client, "e1", log, IDS_KEY, memory_set={"e1"})
    assert not is_email_id_processed(client, "e1", log, IDS_KEY)
    assert all(line.startswith("REDIS_DEDUP: ") for line in caplog.messages)
    assert len(caplog.messages) == 2


def test_while_redis_answers_the_memory_set_has_no_say_and_nothing_is_logged(
    client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    assert not is_email_id_processed(client, "e1", log, IDS_KEY, memory_set={"e1"})
    assert mark_email_id_processed(client, "e1", log, IDS_KEY)
    assert not caplog.messages


def test_a_script_sees_the_email_ids_of_the_service_once_they_are_done(real: redis.Redis) -> None:
    store = RedisStore(real)
    store.claim(claim("service", EMAIL))
    assert not is_email_id_processed(real, "e1", log, IDS_KEY), "only claimed so far"
    store.commit(claim("service", EMAIL))
    assert is_email_id_processed(real, "e1", log, IDS_KEY)


def test_the_service_sees_the_email_ids_of_a_script(real: redis.Redis) -> None:
    mark_email_id_processed(real, "e1", log, IDS_KEY)
    verdict = RedisStore(real).claim(claim("service", EMAIL))
    assert verdict == Duplicate(Gate.IDENTITY, EMAIL.label, original=None, first_seen_ms=None)


@pytest.mark.parametrize(
    ("fingerprint", "again"), [("", Claimed), ("-.-.n.s.-.i.-", Claimed), ("t.0.0.-.0.i.-", Duplicate)]
)
def test_an_undated_id_of_a_script_stops_nothing_and_hides_nothing_of_the_service(
    real: redis.Redis, fingerprint: str, again: type
) -> None:
    mark_email_id_processed(real, "e1", log, "processed_ids:undated")
    store, undated = RedisStore(real), Name(Kind.EMAIL_ID, "undated", "e1")
    first, second = (Claim("e1", (undated,), fingerprint, owner, lease_ms=60_000) for owner in ("first", "second"))
    assert isinstance(store.claim(first), Claimed)
    assert store.commit(first)
    assert type(store.claim(second)) is again


@pytest.mark.parametrize("ttl_seconds", [0, 60])
def test_a_script_sees_the_groups_of_the_service_once_they_are_done(real: redis.Redis, ttl_seconds: int) -> None:
    store = RedisStore(real, Speller(group_ttl=ttl_seconds > 0))
    names = (EMAIL, group_name("lot_456", month_of(UTC), ttl_seconds))
    store.claim(claim("service", *names))
    assert not is_subject_group_processed(real, "lot_456", log, ttl_seconds=ttl_seconds), "only claimed so far"
    store.commit(claim("service", *names))
    assert is_subject_group_processed(real, "lot_456", log, ttl_seconds=ttl_seconds)


@pytest.mark.parametrize("ttl_seconds", [0, 60])
def test_the_service_sees_the_groups_of_a_script(real: redis.Redis, ttl_seconds: int) -> None:
    mark_subject_group_processed(real, "lot_456", log, ttl_seconds=ttl_seconds)
    group = group_name("lot_456", month_of(UTC), ttl_seconds)
    verdict = RedisStore(real, Speller(group_ttl=ttl_seconds > 0)).claim(claim("service", EMAIL, group))
    assert isinstance(verdict, Duplicate)
    assert (verdict.gate, verdict.name) == (Gate.SUBJECT_GROUP, group.label)
    assert is_email_id_processed(real, "e1", log, IDS_KEY), "what was skipped is settled"


def test_when_the_ttl_key_is_gone_both_take_the_group_again_though_history_names_it(real: redis.Redis) -> None:
    store, month = RedisStore(real, Speller(group_ttl=True)), month_of(UTC)
    group = group_name("lot_456", month, ttl_seconds=60)
    deliver(store, EMAIL, group)
    real.delete(f"ttl:subject_groups:{month}:lot_456")
    assert real.sismember(f"subject_groups:{month}", f"{month}:lot_456")
    assert not is_subject_group_processed(real, "lot_456", log, ttl_seconds=60)
    other = Claim("e2", (Name(Kind.EMAIL_ID, "2026-11-16", "e2"), group), "f2", "service", lease_ms=60_000)
    assert isinstance(store.claim(other), Claimed)
