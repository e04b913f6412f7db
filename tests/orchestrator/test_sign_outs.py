"""Who signed out stays so on every server, whatever becomes of Redis."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from deduplication.errors import StoreUnavailable
from deduplication.journal.failover import FailoverJournal
from deduplication.journal.memory import MemoryJournal
from deduplication.journal.side import Side
from orchestrator import sign_outs
from orchestrator.build import build_journal
from orchestrator.config.settings import load_settings
from orchestrator.sign_outs import KEPT_S, MEMO, SIGNED_IN_FOR, SignOuts
from tests.support.redis_server import RedisServer
from tests.support.server import PATIENT_MS


def test_a_session_that_ended_is_listed_for_as_long_as_its_cookie_would_count() -> None:
    now_s = 1_000_000.0
    journal = MemoryJournal()
    ours, others = SignOuts(journal, lambda: now_s), SignOuts(journal, lambda: now_s)
    ours.end("first")
    assert others.has_ended("first") and not others.has_ended("second")
    now_s += SIGNED_IN_FOR.total_seconds()
    assert others.has_ended("first")
    now_s += KEPT_S
    assert not others.has_ended("first")
    ours.end("second")
    assert "first" not in (journal.memo(MEMO) or ""), "the list does not grow for ever"


def test_the_list_has_an_end_and_the_last_ones_are_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sign_outs, "MOST_LISTED", 3)
    now_s = 1_000_000.0
    ours = SignOuts(MemoryJournal(), lambda: now_s)
    for number in range(5):
        now_s += 1
        ours.end(str(number))
    assert [number for number in range(5) if ours.has_ended(str(number))] == [2, 3, 4]


@pytest.fixture
def own_redis() -> Iterator[RedisServer]:
    redis = RedisServer("--appendonly", "yes", "--appendfsync", "always").start()
    yield redis
    redis.stop()


@pytest.fixture
def machines(tmp_path: Path, own_redis: RedisServer) -> Iterator[list[FailoverJournal]]:
    journals = []
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        settings = load_settings(data_dir=tmp_path / name, redis_url=own_redis.url, redis_timeout_ms=PATIENT_MS)
        journal = build_journal(settings)
        assert isinstance(journal, FailoverJournal) and journal.standing.side is Side.REDIS
        journals.append(journal)
    yield journals
    for journal in journals:
        journal.close()


@pytest.mark.real_redis
def test_a_redis_that_lost_its_memory_is_told_by_whoever_asks(
    machines: list[FailoverJournal], own_redis: RedisServer, eventually: Callable[[Callable[[], bool]], None]
) -> None:
    one, other = map(SignOuts, machines)
    one.end("ended")
    assert other.has_ended("ended")
    own_redis.client.flushall()
    assert other.has_ended("ended"), "it has heard of it before"

    def is_told() -> bool:
        machines[1].tick()
        assert other.has_ended("ended")
        with suppress(StoreUnavailable):  # it is being told the rest
            return machines[1].memo(MEMO) is not None
        return False

    eventually(is_told)


@pytest.mark.real_redis
def test_what_redis_could_not_be_told_it_is_told_later(machines: list[FailoverJournal], own_redis: RedisServer) -> None:
    one, other = map(SignOuts, machines)
    own_redis.kill()
    one.end("ended")
    assert one.has_ended("ended"), "on this machine it holds at once"
    assert SignOuts(machines[0]).has_ended("ended"), "in its other processes too"
    assert not other.has_ended("ended")
    own_redis.start()
    one.tell()
    assert other.has_ended("ended")
