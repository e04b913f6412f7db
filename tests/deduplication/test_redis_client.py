"""The small door for scripts: it shares its keys with the service, and without Redis it never suppresses by guess."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC
from itertools import count
from zoneinfo import ZoneInfo

import fakeredis
import pytest
import redis

from deduplication.claims import Gate, Kind, Name
from deduplication.journal.base import Claim, Claimed, Duplicate, Ending, Settlement, Wanted
from deduplication.journal.entry import DeliveryStatus, Entry
from deduplication.journal.redis import RedisJournal
from deduplication.redis_client import (
    connect,
    is_email_id_processed,
    is_subject_group_processed,
    mark_email_id_processed,
    mark_subject_group_processed,
)
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


OpenJournal = Callable[..., RedisJournal]


@pytest.fixture
def open_journal(redis_server: RedisServer) -> Iterator[OpenJournal]:
    """The service's journal on the Redis of ``real``."""
    with ExitStack() as stack:

        def open_one(*, group_ttl: bool = False) -> RedisJournal:
            client = connect(redis_server.url, timeout_s=5, decode_responses=False)
            journal = RedisJournal(client, "m1", group_ttl=group_ttl)
            stack.callback(journal.close)
            return journal

        yield open_one


_numbers = count(1)


def claim(*own: Name, shared: tuple[Name, ...] = (), fingerprint: str = "") -> Claim:
    number = next(_numbers)
    return Claim(f"entry{number}", f"owner{number}", own, shared, (Wanted("crm", "msg"),), fingerprint)


def settle(
    journal: RedisJournal, asked: Claim, entry: Entry, status: DeliveryStatus = DeliveryStatus.DELIVERED
) -> None:
    """Delivered, or whatever became of it; what was skipped stays so."""
    ended = tuple(
        replace(each, status=status, next_try_ms=1 if status.is_open else None)
        for each in entry.deliveries
        if each.status is DeliveryStatus.DELIVERING
    )
    assert journal.settle(asked, entry, Settlement(Ending.DONE, "processed", ended, payload=b"payload"))


def begin(journal: RedisJournal, asked: Claim) -> Entry:
    verdict = journal.claim(asked)
    assert isinstance(verdict, Claimed), verdict
    return verdict.entry


def deliver(journal: RedisJournal, asked: Claim) -> None:
    settle(journal, asked, begin(journal, asked))


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


def test_a_new_connection_sends_nothing_but_what_is_asked(redis_server: RedisServer, real: redis.Redis) -> None:
    """A Redis that was loading took two seconds for each of its four introductions, and the first claim ten."""

    def bytes_sent_by_get() -> int:
        before = redis_server.client.info("stats")["total_net_input_bytes"]
        real.get("anything")
        return int(redis_server.client.info("stats")["total_net_input_bytes"] - before)

    redis_server.client.ping()
    assert bytes_sent_by_get() == bytes_sent_by_get()


# Beside the service


def test_a_script_sees_the_email_ids_of_the_service_once_they_are_done(
    real: redis.Redis, open_journal: OpenJournal
) -> None:
    journal, asked = open_journal(), claim(EMAIL)
    entry = begin(journal, asked)
    assert not is_email_id_processed(real, "e1", log, IDS_KEY), "only claimed so far"
    settle(journal, asked, entry)
    assert is_email_id_processed(real, "e1", log, IDS_KEY)


def test_what_the_service_stored_for_a_later_try_is_done_for_scripts_too(
    real: redis.Redis, open_journal: OpenJournal
) -> None:
    journal, group = open_journal(), group_name("lot_456", month_of(UTC), ttl_seconds=0)
    asked = claim(EMAIL, shared=(group,))
    settle(journal, asked, begin(journal, asked), DeliveryStatus.WAITING)
    assert is_email_id_processed(real, "e1", log, IDS_KEY), "its provider was told so"
    assert not is_subject_group_processed(real, "lot_456", log), "nobody has got anything of this group yet"


def test_what_the_service_gave_back_is_not_processed(real: redis.Redis, open_journal: OpenJournal) -> None:
    journal, asked = open_journal(), claim(EMAIL)
    assert journal.settle(asked, begin(journal, asked), Settlement(Ending.FREE))
    assert not is_email_id_processed(real, "e1", log, IDS_KEY)


def test_the_service_sees_the_email_ids_of_a_script(real: redis.Redis, open_journal: OpenJournal) -> None:
    mark_email_id_processed(real, "e1", log, IDS_KEY)
    verdict = open_journal().claim(claim(EMAIL))
    assert isinstance(verdict, Duplicate) and verdict.entry, "it gets an entry of its own, to be released from"
    assert (verdict.stop.gate, verdict.stop.name) == (Gate.IDENTITY, EMAIL)
    assert (verdict.stop.original, verdict.stop.first_seen_ms) == (None, None)


@pytest.mark.parametrize(
    ("fingerprint", "again"), [("", Claimed), ("-.-.n.s.-.i.-", Claimed), ("t.0.0.-.0.i.-", Duplicate)]
)
def test_an_undated_id_of_a_script_stops_nothing_and_hides_nothing_of_the_service(
    real: redis.Redis, open_journal: OpenJournal, fingerprint: str, again: type
) -> None:
    mark_email_id_processed(real, "e1", log, "processed_ids:undated")
    journal, undated = open_journal(), Name(Kind.EMAIL_ID, "undated", "e1")
    deliver(journal, claim(undated, fingerprint=fingerprint))
    assert type(journal.claim(claim(undated, fingerprint=fingerprint))) is again


@pytest.mark.parametrize("ttl_seconds", [0, 60])
def test_a_script_sees_the_groups_of_the_service_once_they_are_done(
    real: redis.Redis, open_journal: OpenJournal, ttl_seconds: int
) -> None:
    journal = open_journal(group_ttl=ttl_seconds > 0)
    asked = claim(EMAIL, shared=(group_name("lot_456", month_of(UTC), ttl_seconds),))
    entry = begin(journal, asked)
    assert not is_subject_group_processed(real, "lot_456", log, ttl_seconds=ttl_seconds), "only claimed so far"
    settle(journal, asked, entry)
    assert is_subject_group_processed(real, "lot_456", log, ttl_seconds=ttl_seconds)
    month = month_of(UTC)
    assert real.sismember(f"subject_groups:{month}", f"{month}:lot_456"), "the Set is history at least"


@pytest.mark.parametrize("ttl_seconds", [0, 60])
def test_the_service_sees_the_groups_of_a_script(
    real: redis.Redis, open_journal: OpenJournal, ttl_seconds: int
) -> None:
    mark_subject_group_processed(real, "lot_456", log, ttl_seconds=ttl_seconds)
    group = group_name("lot_456", month_of(UTC), ttl_seconds)
    journal, asked = open_journal(group_ttl=ttl_seconds > 0), claim(EMAIL, shared=(group,))
    verdict = journal.claim(asked)
    assert isinstance(verdict, Duplicate) and verdict.entry
    assert verdict.stop.name == group
    settle(journal, asked, verdict.entry)
    assert is_email_id_processed(real, "e1", log, IDS_KEY), "what was skipped is settled"


@pytest.mark.parametrize("zone", ["Pacific/Kiritimati", "Pacific/Pago_Pago"])
def test_scripts_and_the_service_share_the_month_of_their_zone(
    real: redis.Redis, open_journal: OpenJournal, zone: str
) -> None:
    tz = ZoneInfo(zone)
    deliver(open_journal(), claim(EMAIL, shared=(group_name("lot_456", month_of(tz), ttl_seconds=0),)))
    assert is_subject_group_processed(real, "lot_456", log, tz=tz)
    assert not real.keys("ttl:*")


def test_a_group_of_another_month_stops_nothing(real: redis.Redis, open_journal: OpenJournal) -> None:
    mark_subject_group_processed(real, "lot_456", log)
    other = group_name("lot_456", "1999-12", ttl_seconds=0)
    assert isinstance(open_journal().claim(claim(EMAIL, shared=(other,))), Claimed)


def test_when_the_ttl_key_is_gone_both_take_the_group_again_though_history_names_it(
    real: redis.Redis, open_journal: OpenJournal
) -> None:
    journal, month = open_journal(group_ttl=True), month_of(UTC)
    group = group_name("lot_456", month, ttl_seconds=60)
    deliver(journal, claim(EMAIL, shared=(group,)))
    assert 0 < real.ttl(f"ttl:subject_groups:{month}:lot_456") <= 60
    real.delete(f"ttl:subject_groups:{month}:lot_456")
    assert real.sismember(f"subject_groups:{month}", f"{month}:lot_456")
    assert not is_subject_group_processed(real, "lot_456", log, ttl_seconds=60)
    other = claim(Name(Kind.EMAIL_ID, "2026-11-16", "e2"), shared=(group,))
    assert isinstance(journal.claim(other), Claimed)
