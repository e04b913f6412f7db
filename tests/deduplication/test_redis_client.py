"""Functions for scripts on Redis directly: they share keys with the service, and never suppress by guess."""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import redis
from msgspec.structs import replace

from deduplication.journal.coordinator import Claimed
from deduplication.journal.entry import DeliveryStatus, Stop, new_entry_id
from deduplication.journal.registry import RegistryOptions
from deduplication.journal.rules import Claim, Repeat, Wanted
from deduplication.names import Gate, Kind, Name
from deduplication.redis_client import (
    connect,
    is_email_id_processed,
    is_subject_group_processed,
    mark_email_id_processed,
    mark_subject_group_processed,
)
from deduplication.subject_group import group_name, month_of
from tests.deduplication.journal.world import Machine, Time
from tests.support.redis_server import RedisServer, free_port

log = logging.getLogger("script")
IDS_KEY = "processed_ids:2026-11-16"
EMAIL = Name(Kind.EMAIL_ID, "2026-11-16", "e1")


@pytest.fixture(params=["no client", "a client that fails"])
def no_redis(request: pytest.FixtureRequest) -> redis.Redis | None:
    return None if request.param == "no client" else connect(f"redis://127.0.0.1:{free_port()}/0")


@pytest.fixture
def real(redis_server: RedisServer) -> Iterator[redis.Redis]:
    client = connect(redis_server.url, timeout_s=5)
    yield client
    client.close()


@pytest.fixture
def service(redis_server: RedisServer) -> Iterator[Callable[..., Machine]]:
    """The service on the Redis of ``real``."""
    with ExitStack() as stack:

        def start(*, group_ttl: bool = False) -> Machine:
            options = RegistryOptions(group_ttl=group_ttl, hold_ms=0)
            machine = Machine(redis_server.url, Time(now_ms=time.time_ns() // 1_000_000), options=options)
            stack.callback(machine.close)
            machine.tick()
            return machine

        yield start


def claim(machine: Machine, *own: Name, shared: tuple[Name, ...] = (), fingerprint: str = "") -> Any:
    owner, wanted = machine.coordinator.new_owner(), (Wanted("crm", f"msg_{own[0].value}"),)
    return machine.coordinator.claim(Claim(new_entry_id(), owner, own, shared, wanted, fingerprint))


def settle(machine: Machine, found: Any, status: DeliveryStatus = DeliveryStatus.DELIVERED) -> None:
    """With this status, except for deliveries that were skipped."""
    assert isinstance(found, Claimed)
    ends = [replace(each, status=status) if each in found.to_send else each for each in found.plan]
    machine.coordinator.settle(found, ends, "processed", b"payload")
    machine.tick()


def test_a_marked_email_id_is_processed_and_no_other(real: redis.Redis, caplog: pytest.LogCaptureFixture) -> None:
    assert not is_email_id_processed(real, "e1", log, IDS_KEY, memory_set={"e1"}), "Redis decides while it answers"
    assert mark_email_id_processed(real, "e1", log, IDS_KEY)
    assert is_email_id_processed(real, "e1", log, IDS_KEY)
    assert not is_email_id_processed(real, "e2", log, IDS_KEY)
    assert not is_email_id_processed(real, "e1", log, "processed_ids:2026-11-17")
    assert not caplog.messages


OWN_KEYS = {"groups_key": "mine", "ttl_prefix": "mine:ttl:", "ttl_seconds": 60}


@pytest.mark.parametrize(
    ("options", "key", "member", "ttl_key"),
    [
        ({}, "subject_groups:{month}", "{month}:lot_456", "ttl:subject_groups:{month}:lot_456"),
        ({"enable_monthly_scope": False}, "subject_groups", "lot_456", "ttl:subject_groups:lot_456"),
        (OWN_KEYS, "mine", "{month}:lot_456", "mine:ttl:{month}:lot_456"),
    ],
)
def test_a_group_is_marked_under_its_keys(real: redis.Redis, options: Any, key: str, member: str, ttl_key: str) -> None:
    month = month_of(UTC)
    key, ttl_key = key.format(month=month), ttl_key.format(month=month)
    assert not is_subject_group_processed(real, "lot_456", log, **options)
    assert mark_subject_group_processed(real, "lot_456", log, **options)
    assert is_subject_group_processed(real, "lot_456", log, **options)
    assert (real.smembers(key), real.ttl(key)) == ({member.format(month=month)}, -1)
    assert (0 < real.ttl(ttl_key) <= 60) is ("ttl_seconds" in options), "with a TTL, that key decides"
    real.rename(ttl_key if "ttl_seconds" in options else key, "subject_groups:1999-12")
    assert not is_subject_group_processed(real, "lot_456", log, **options)
    assert not is_subject_group_processed(real, "lot_456", log)


@pytest.mark.parametrize("empty", ["", None])
def test_an_empty_id_is_never_processed_and_never_marked(real: redis.Redis, empty: Any) -> None:
    remembered: set[str] = set()
    assert not mark_email_id_processed(real, empty, log, IDS_KEY, remembered)
    assert not mark_subject_group_processed(real, empty, log, memory_set=remembered)
    assert not is_email_id_processed(real, empty, log, IDS_KEY, {empty})
    assert not is_subject_group_processed(real, empty, log, memory_set={empty})
    assert not real.keys("*processed*") and not real.keys("*groups*")
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


def test_without_memory_nothing_is_processed(no_redis: redis.Redis | None, caplog: pytest.LogCaptureFixture) -> None:
    assert not mark_email_id_processed(no_redis, "e1", log, IDS_KEY)
    assert not mark_subject_group_processed(no_redis, "lot_456", log)
    assert not is_email_id_processed(no_redis, "e1", log, IDS_KEY)
    assert not is_subject_group_processed(no_redis, "lot_456", log)
    assert len(caplog.messages) == 4
    assert all(line.startswith("REDIS_DEDUP: ") for line in caplog.messages)
    assert all(record.levelno >= logging.WARNING for record in caplog.records)


def test_a_new_connection_sends_nothing_but_what_is_asked(redis_server: RedisServer, real: redis.Redis) -> None:
    """A Redis that was loading took two seconds for each of its four introductions, and the first claim ten."""

    def bytes_sent_by_get() -> int:
        before = redis_server.client.info("stats")["total_net_input_bytes"]
        real.get("anything")
        return int(redis_server.client.info("stats")["total_net_input_bytes"] - before)

    redis_server.client.ping()
    assert bytes_sent_by_get() == bytes_sent_by_get()


def test_a_connection_that_redis_has_closed_or_that_has_an_old_answer_is_made_anew(real: redis.Redis) -> None:
    with connect(f"redis://127.0.0.1:{real.connection_pool.connection_kwargs['port']}") as client:
        client.set("name", "value")
        real.client_kill_filter(_type="normal", skipme=True)
        assert client.get("name") == "value"
        connection = client.connection_pool.get_connection()
        connection.send_command("PING")
        while not connection.can_read():
            pass
        client.connection_pool.release(connection)
        assert client.get("name") == "value", "and not PONG"


# Beside the service

Service = Callable[..., Machine]


def test_a_script_sees_the_email_ids_of_the_service_once_they_are_done(real: redis.Redis, service: Service) -> None:
    machine, group = service(), group_name("lot_456", month_of(UTC), ttl_seconds=0)
    found = claim(machine, EMAIL, shared=(group,))
    assert not is_email_id_processed(real, "e1", log, IDS_KEY), "only claimed so far"
    settle(machine, found, DeliveryStatus.RETURNED)
    assert not is_email_id_processed(real, "e1", log, IDS_KEY), "its provider was asked to retry"
    settle(machine, claim(machine, EMAIL, shared=(group,)), DeliveryStatus.WAITING)
    assert is_email_id_processed(real, "e1", log, IDS_KEY), "its provider got a 200"
    assert not is_subject_group_processed(real, "lot_456", log), "nothing of this group was delivered yet"


def test_the_service_sees_the_email_ids_of_a_script(real: redis.Redis, service: Service) -> None:
    mark_email_id_processed(real, "e1", log, IDS_KEY)
    found = claim(service(), EMAIL)
    assert isinstance(found, Claimed) and not found.to_send, "it gets an entry of its own, to be released from"
    assert found.entry.stop == Stop(EMAIL) and found.entry.stop.gate is Gate.IDENTITY


@pytest.mark.parametrize(("fingerprint", "again"), [("", Claimed), ("..n.s..i", Claimed), ("t.0.0..0.i", Repeat)])
def test_undated_ids_of_scripts_stop_nothing(
    real: redis.Redis, service: Service, fingerprint: str, again: type
) -> None:
    mark_email_id_processed(real, "e1", log, "processed_ids:undated")
    machine, undated = service(), Name(Kind.EMAIL_ID, "undated", "e1")
    settle(machine, claim(machine, undated, fingerprint=fingerprint))
    assert type(claim(machine, undated, fingerprint=fingerprint)) is again


@pytest.mark.parametrize("ttl_seconds", [0, 60])
@pytest.mark.parametrize("zone", ["UTC", "Pacific/Kiritimati", "Pacific/Pago_Pago"])
def test_a_script_sees_groups_of_the_service(real: redis.Redis, service: Service, zone: str, ttl_seconds: int) -> None:
    tz, machine = ZoneInfo(zone), service(group_ttl=ttl_seconds > 0)
    month = month_of(tz)
    found = claim(machine, EMAIL, shared=(group_name("lot_456", month, ttl_seconds),))
    assert not is_subject_group_processed(real, "lot_456", log, ttl_seconds=ttl_seconds, tz=tz), "only claimed so far"
    settle(machine, found)
    assert is_subject_group_processed(real, "lot_456", log, ttl_seconds=ttl_seconds, tz=tz)
    assert real.sismember(f"subject_groups:{month}", f"{month}:lot_456"), "the Set is history at least"


@pytest.mark.parametrize("ttl_seconds", [0, 60])
def test_the_service_sees_the_groups_of_a_script(real: redis.Redis, service: Service, ttl_seconds: int) -> None:
    mark_subject_group_processed(real, "lot_456", log, ttl_seconds=ttl_seconds)
    group, machine = group_name("lot_456", month_of(UTC), ttl_seconds), service(group_ttl=ttl_seconds > 0)
    found = claim(machine, EMAIL, shared=(group,))
    assert isinstance(found, Claimed) and found.entry.stop == Stop(group)
    settle(machine, found)
    assert is_email_id_processed(real, "e1", log, IDS_KEY), "what was skipped is settled"
    other = group_name("lot_456", "1999-12", ttl_seconds)
    assert claim(machine, Name(Kind.EMAIL_ID, "2026-11-16", "e2"), shared=(other,)).to_send, "of another month"


def test_a_group_whose_ttl_ended_is_free_for_script_and_service(real: redis.Redis, service: Service) -> None:
    machine, month = service(group_ttl=True), month_of(UTC)
    group = group_name("lot_456", month, ttl_seconds=60)
    settle(machine, claim(machine, EMAIL, shared=(group,)))
    assert 0 < real.ttl(f"ttl:subject_groups:{month}:lot_456") <= 60
    real.delete(f"ttl:subject_groups:{month}:lot_456")
    assert real.sismember(f"subject_groups:{month}", f"{month}:lot_456")
    assert not is_subject_group_processed(real, "lot_456", log, ttl_seconds=60)
    assert claim(machine, Name(Kind.EMAIL_ID, "2026-11-16", "e2"), shared=(group,)).to_send
