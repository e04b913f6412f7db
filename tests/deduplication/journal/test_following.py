"""Following a journal: everything that comes or is taken up is told, and little else is read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from deduplication.claims import Kind, Name
from deduplication.journal.base import Claim, Claimed, Ending, Journal, Settlement, Wanted
from deduplication.journal.entry import Delivery, DeliveryStatus
from deduplication.journal.following import Heard
from deduplication.journal.redis import RedisJournal
from tests.support.journals import FakeClock, JournalBench, open_journal
from tests.support.redis_server import RedisServer

HOUR_MS = 3_600_000
LOCK = Name(Kind.LOCK, "crm", "a lock")


def put(journal: Journal, name: str, status: DeliveryStatus = DeliveryStatus.DELIVERED) -> None:
    own = (Name(Kind.EMAIL_ID, "2026-11-16", f"of {name}"),)
    claim = Claim(name, f"owner of {name}", own, destinations=(Wanted("crm", "msg"),))
    verdict = journal.claim(claim)
    assert isinstance(verdict, Claimed)
    ended = Delivery("crm", "msg", status, next_try_ms=1 if status.is_open else None)
    assert journal.settle(claim, verdict.entry, Settlement(Ending.DONE, "told", (ended,), payload=b"payload"))


class Listener:
    def __init__(self, journal: Journal, limit: int = 100) -> None:
        self.journal, self.limit, self.places = journal, limit, ""

    def step(self) -> list[str]:
        news = self.journal.news(self.places, self.limit)
        self.places = news.places
        self.is_through = news.is_all
        return [entry.id for entry in news.entries]

    def hear(self) -> list[str]:
        heard = []
        for _ in range(50):
            heard += self.step()
            if self.is_through:
                return heard
        raise AssertionError("there is no end to it")


def test_what_came_before_and_what_comes_is_told(bench: JournalBench) -> None:
    for name in ("a", "b"):
        put(bench.journal, name)
        bench.advance(HOUR_MS)
    listener = Listener(bench.journal)
    assert set(listener.hear()) == {"a", "b"}
    put(bench.journal, "c")
    assert listener.hear() == ["c"]
    bench.advance(5_000)
    listener.hear()
    assert listener.hear() == [], "what is old is told once"
    bench.journal.claim(Claim("lock", "me", (LOCK,)))
    assert listener.hear() == [], "a lock is no email"


@pytest.mark.parametrize("limit", [1, 2, 3, 7])
def test_a_page_at_a_time_nothing_is_left_out_and_the_newest_come_first(bench: JournalBench, limit: int) -> None:
    names = [f"e{number}" for number in range(9)]
    for name in names:
        put(bench.journal, name)
        bench.advance(HOUR_MS // 4)
    listener = Listener(bench.journal, limit)
    first = listener.step()
    assert first[-limit:][0] in names[-limit:]
    assert set(first) | set(listener.hear()) == set(names)


def test_what_comes_while_the_older_ones_are_told_is_told_first(bench: JournalBench) -> None:
    for number in range(6):
        put(bench.journal, f"old{number}")
        bench.advance(4_000)
    listener = Listener(bench.journal, limit=2)
    listener.step()
    put(bench.journal, "new")
    assert "new" in listener.step()
    assert {f"old{number}" for number in range(3)} <= set(listener.hear())


def test_what_is_taken_up_again_is_told(bench: JournalBench) -> None:
    put(bench.journal, "dead", DeliveryStatus.DEAD)
    put(bench.journal, "other", DeliveryStatus.DEAD)
    listener = Listener(bench.journal)
    listener.hear()
    bench.advance(10_000)
    listener.hear()
    bench.journal.replay("dead", "crm")
    assert set(listener.hear()) == {"dead"}
    bench.advance(10_000)
    bench.journal.forget([Name(Kind.EMAIL_ID, "2026-11-16", "of other")])
    assert "other" in listener.hear()


def test_several_are_read_at_once(bench: JournalBench) -> None:
    for name in ("a", "b"):
        put(bench.journal, name)
    assert {id_: entry.id for id_, entry in bench.journal.read_all(["b", "nobody", "a"]).items()} == {
        "a": "a",
        "b": "b",
    }
    assert bench.journal.read_all([]) == {}


def test_all_who_share_a_journal_have_one_key(bench: JournalBench) -> None:
    assert bench.journal.shared_key(b"mine") == b"mine"
    assert bench.another.shared_key(b"of another") == b"mine"
    assert bench.journal.shared_key(b"later") == b"mine"


@pytest.mark.real_redis
def test_a_redis_that_lost_its_memory_is_told_the_key_again(redis_server: RedisServer, tmp_path: Path) -> None:
    with open_journal("failover", tmp_path, redis_server) as bench:
        bench.journal.shared_key(b"mine")
        redis_server.client.flushall()
        assert bench.journal.shared_key(b"another") == b"mine"


@pytest.mark.real_redis
def test_what_a_machine_tells_late_is_heard_too(redis_server: RedisServer, tmp_path: Path) -> None:
    with open_journal("redis", tmp_path, redis_server) as bench:
        journal = bench.journal
        assert isinstance(journal, RedisJournal)
        put(journal, "now")
        put(journal, "then")
        bench.advance(3 * HOUR_MS)
        listener = Listener(journal)
        assert set(listener.hear()) == {"now", "then"}
        told = replace(journal.read_all(["then"])["then"], id="late", own=(Name(Kind.POST, "", "late"),))
        journal.merge([(told, None)], FakeClock().clock, seen=0)
        assert listener.hear() == [], "hours that are over are looked at once a minute"
        bench.advance(60_000)
        assert listener.hear() == ["late"]


def test_of_a_list_only_what_was_added_is_read() -> None:
    heard = Heard(0)
    assert heard.take({5: 10, 4: 3}, 8) == [(5, 2, 10)]
    assert heard.take({5: 12, 4: 3}, 8) == [(5, 10, 12), (5, 0, 2), (4, 0, 3)]
    assert heard.take({5: 12, 4: 3}, 8) == []
    assert heard.take({5: 12, 4: 4}, 8) == [(4, 3, 4)]
    assert heard.take({5: 1, 4: 4}, 8) == [(5, 0, 1)], "another list than the one that was heard"
    heard.begin_anew_if("closed once")
    assert heard.take({5: 1, 4: 4}, 8) == [(5, 0, 1), (4, 0, 4)]
    assert Heard.read(heard.written, 0) == heard
