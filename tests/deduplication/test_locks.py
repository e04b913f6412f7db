"""Publication locks: of all servers, one publishes at a time."""

from __future__ import annotations

import itertools
import logging
import sqlite3
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, timedelta
from pathlib import Path

import pytest

from deduplication.claims import WEEK_MS, Kind, Name
from deduplication.journal.base import Claim, Claimed, Ending, Journal, Settlement, Wanted
from deduplication.journal.entry import About, DeliveryStatus, Entry
from deduplication.journal.sqlite import SqliteJournal
from deduplication.locks import LEASE_MS, PublicationLock, PublicationLocks, lock_name, new_server_id
from tests.support.journals import FakeClock, JournalBench, open_journal
from tests.support.redis_server import RedisServer

_tokens = map("token {}".format, itertools.count())


@pytest.fixture
def bench(journal_bench: JournalBench) -> JournalBench:
    return journal_bench


def locks(journal: Journal, server_id: str = "server a") -> PublicationLocks:
    return PublicationLocks(journal, server_id, lambda: next(_tokens))


def acquired(lock: PublicationLock | None) -> PublicationLock:
    assert lock is not None
    return lock


def test_a_lock_says_who_holds_it_since_when_and_until_when(bench: JournalBench) -> None:
    lock = acquired(locks(bench.journal).acquire_lock("e1", "crm"))
    assert (lock.content_id, lock.platform, lock.server_id) == ("e1", "crm", "server a")
    assert lock.owner
    assert lock.fence > 0
    assert lock.created.tzinfo is UTC
    assert abs(lock.expires - lock.created - timedelta(milliseconds=LEASE_MS)) < timedelta(seconds=1)
    (shown,) = locks(bench.another).active_locks()
    assert replace(shown, expires=lock.expires) == lock
    assert abs(shown.expires - lock.expires) < timedelta(seconds=1)


def test_a_lock_that_another_holds_is_refused_and_the_log_names_the_holder(
    bench: JournalBench, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    acquired(locks(bench.journal).acquire_lock("e1", "crm"))
    assert locks(bench.another, "server b").acquire_lock("e1", "crm") is None
    assert "held by server a" in caplog.text


def test_destinations_and_items_are_independent(bench: JournalBench) -> None:
    mine = locks(bench.journal)
    taken = {acquired(mine.acquire_lock(*each)).id for each in (("e1", "crm"), ("e1", "archive"), ("e2", "crm"))}
    assert len(taken) == 3
    assert {lock.id for lock in mine.active_locks()} == taken


@pytest.mark.parametrize("status", ["completed", "failed"])
def test_a_released_lock_is_free_for_others(bench: JournalBench, status: str) -> None:
    lock = acquired(locks(bench.journal).acquire_lock("e1", "crm"))
    assert locks(bench.journal).release_lock(lock, status)  # type: ignore[arg-type]
    bench.advance(2)
    assert locks(bench.another).active_locks() == []
    again = acquired(locks(bench.another, "server b").acquire_lock("e1", "crm"))
    assert again.fence > lock.fence


@pytest.mark.parametrize("status", ["completed", "failed"])
def test_nobody_releases_the_lock_of_another(bench: JournalBench, status: str) -> None:
    stale = acquired(locks(bench.journal).acquire_lock("e1", "crm"))
    bench.advance(LEASE_MS + 1)
    heir = acquired(locks(bench.another, "server b").acquire_lock("e1", "crm"))
    assert locks(bench.journal).release_lock(stale, status) is False  # type: ignore[arg-type]
    assert locks(bench.journal).renew_lock(stale) is None
    assert [lock.owner for lock in locks(bench.journal).active_locks()] == [heir.owner]


def test_a_renewed_lock_lives_longer(bench: JournalBench) -> None:
    lock = acquired(locks(bench.journal).acquire_lock("e1", "crm"))
    bench.advance(LEASE_MS - 10_000)
    renewed = acquired(locks(bench.journal).renew_lock(lock))
    assert renewed.fence == lock.fence
    bench.advance(LEASE_MS - 10_000)
    assert locks(bench.another).acquire_lock("e1", "crm") is None


def test_expired_locks_are_not_active_and_are_cleaned_up(bench: JournalBench) -> None:
    mine = locks(bench.journal)
    mine.acquire_lock("e1", "crm")
    bench.advance(LEASE_MS - 1000)
    alive = acquired(mine.acquire_lock("e2", "crm"))
    bench.advance(2000)
    assert [lock.id for lock in mine.active_locks()] == [alive.id]
    left_behind = 0 if bench.kind in ("redis", "failover") else 1  # on Redis they expire by themselves
    assert mine.cleanup_expired_locks() == left_behind
    assert mine.cleanup_expired_locks() == 0
    assert [lock.id for lock in mine.active_locks()] == [alive.id]


def test_of_many_servers_at_once_one_gets_the_lock(bench: JournalBench) -> None:
    barrier = threading.Barrier(8)

    def try_it(number: int) -> bool:
        barrier.wait()
        journal = bench.journal if number % 2 else bench.another
        return locks(journal, f"server {number}").acquire_lock("e1", "crm") is not None

    with ThreadPoolExecutor(8) as servers:
        assert sum(servers.map(try_it, range(8))) == 1


def test_server_ids_never_repeat() -> None:
    assert len({new_server_id() for _ in range(50)}) == 50


def test_a_lock_that_was_taken_over_is_held_since_then(bench: JournalBench) -> None:
    crashed = acquired(locks(bench.journal).acquire_lock("e1", "crm"))
    bench.advance(LEASE_MS + 1)
    heir = acquired(locks(bench.another, "server b").acquire_lock("e1", "crm"))
    assert heir.created - crashed.created >= timedelta(milliseconds=LEASE_MS)
    (shown,) = locks(bench.journal).active_locks()
    assert (shown.server_id, shown.created, shown.fence) == ("server b", heir.created, heir.fence)


# Deliveries of the service


def an_email(journal: Journal, *destinations: str) -> tuple[Claim, Entry]:
    wanted = tuple(Wanted(each, f"msg_{each}") for each in destinations)
    about = About(item="e1", server="server a")
    token = next(_tokens)
    own = (Name(Kind.EMAIL_ID, "2026-11-16", "e1"),)
    claim = Claim(token.replace(" ", ""), token, own, (), wanted, lease_ms=60_000, about=about)
    verdict = journal.claim(claim)
    assert isinstance(verdict, Claimed)
    return claim, verdict.entry


def settle_as(journal: Journal, claim: Claim, entry: Entry, status: DeliveryStatus) -> None:
    next_try_ms = 1 if status.is_open else None
    ended = tuple(replace(each, status=status, next_try_ms=next_try_ms) for each in entry.deliveries)
    assert journal.settle(claim, entry, Settlement(Ending.DONE, "told", ended, payload=b"email"))


def test_the_deliveries_of_a_request_are_shown_with_the_server_that_is_at_them(bench: JournalBench) -> None:
    claim, entry = an_email(bench.journal, "crm", "slack")
    shown = locks(bench.another).active_locks()
    assert {(each.content_id, each.platform, each.server_id) for each in shown} == {
        ("e1", "crm", "server a"),
        ("e1", "slack", "server a"),
    }
    assert {each.owner for each in shown} == {claim.owner}
    for each in shown:
        assert abs(each.expires - each.created - timedelta(minutes=1)) < timedelta(seconds=5)
    settle_as(bench.journal, claim, entry, DeliveryStatus.DELIVERED)
    assert locks(bench.another).active_locks() == []


def test_a_request_that_crashed_holds_nothing_any_more(bench: JournalBench) -> None:
    an_email(bench.journal, "crm")
    bench.advance(60_001)
    assert locks(bench.journal).active_locks() == []
    assert locks(bench.journal).cleanup_expired_locks() == 0, "it is no lock: its provider sends it again"
    an_email(bench.journal, "crm")


def test_a_delivery_that_a_worker_began_is_shown_with_the_server_of_the_worker(bench: JournalBench) -> None:
    claim, entry = an_email(bench.journal, "crm", "slack")
    settle_as(bench.journal, claim, entry, DeliveryStatus.WAITING)
    assert locks(bench.journal).active_locks() == [], "what only waits is held by nobody"
    bench.advance(5 * 3_600_000)
    begun = bench.journal.begin(entry.id, "crm", "its token", 60_000, "server w")
    assert begun and begun.delivery.server == "server w"
    (shown,) = locks(bench.another).active_locks()
    assert (shown.content_id, shown.platform, shown.server_id) == ("e1", "crm", "server w")
    assert (shown.owner, shown.fence) == ("its token", begun.delivery.fence)
    bench.advance(60_001)
    assert locks(bench.another).active_locks() == []


# In a file, and on Redis


def test_sqlite_shows_locks_and_deliveries_to_whoever_looks_into_the_file(tmp_path: Path) -> None:
    clock = FakeClock()
    clock.ms = int(time.time() * 1000) - 2 * LEASE_MS
    journal = SqliteJournal(tmp_path / "journal.db", clock.clock)
    mine = locks(journal)
    for status in ("completed", "failed"):
        mine.release_lock(acquired(mine.acquire_lock("e1", "crm")), status)
    mine.acquire_lock("e2", "crm")
    clock.advance(2 * LEASE_MS)
    mine.acquire_lock("e1", "crm")
    claim, entry = an_email(journal, "slack")
    database = sqlite3.connect(tmp_path / "journal.db")
    columns = "content_id, platform, server_id, status"

    def shown() -> list[tuple[str, ...]]:
        return database.execute(f"SELECT {columns} FROM publication_locks ORDER BY fence").fetchall()  # noqa: S608

    assert shown() == [
        ("e1", "crm", "server a", "completed"),
        ("e1", "crm", "server a", "failed"),
        ("e2", "crm", "server a", "expired"),
        ("e1", "crm", "server a", "active"),
        ("e1", "slack", "server a", "active"),
    ]
    created_ms, expires_ms = database.execute(
        "SELECT created_ms, expires_ms FROM publication_locks WHERE status = 'active' AND platform = 'crm'"
    ).fetchone()
    assert (created_ms, expires_ms) == (clock.ms, clock.ms + LEASE_MS)
    settle_as(journal, claim, entry, DeliveryStatus.WAITING)
    assert len(shown()) == 4, "what waits is held by nobody"
    begun = journal.begin(entry.id, "slack", "its token", LEASE_MS, "server w")
    assert begun
    assert shown()[-1] == ("e1", "slack", "server w", "active")
    journal.finish(entry.id, "its token", replace(begun.delivery, status=DeliveryStatus.DELIVERED))
    assert shown()[-1] == ("e1", "slack", "server w", "completed")
    with pytest.raises(sqlite3.OperationalError, match="it is a view"):
        database.execute("DELETE FROM publication_locks")
    database.close()
    journal.close()


def test_in_the_file_too_leases_are_shown_by_the_time_of_day(tmp_path: Path) -> None:
    """They are measured by another clock, which begins anew with the machine."""
    journal = SqliteJournal(tmp_path / "journal.db")
    lock = acquired(locks(journal).acquire_lock("e1", "crm"))
    database = sqlite3.connect(tmp_path / "journal.db")
    status, expires_ms = database.execute("SELECT status, expires_ms FROM publication_locks").fetchone()
    assert status == "active"
    assert abs(expires_ms / 1000 - lock.expires.timestamp()) < 5
    database.close()
    journal.close()


def test_on_redis_a_lock_is_a_key_that_expires_by_itself(redis_server: RedisServer, tmp_path: Path) -> None:
    with open_journal("redis", tmp_path, redis_server) as bench:
        lock = acquired(locks(bench.journal).acquire_lock("e1", "crm"))
        assert redis_server.client.get("lock:crm:e1") == "held"
        assert 0 < redis_server.client.pttl("lock:crm:e1") <= LEASE_MS
        bench.advance(LEASE_MS // 2)
        locks(bench.journal).renew_lock(lock)
        assert LEASE_MS // 2 < redis_server.client.pttl("lock:crm:e1") <= LEASE_MS
        bench.advance(WEEK_MS)
        assert redis_server.client.zcard("locks") <= 1
        locks(bench.journal).release_lock(acquired(locks(bench.journal).acquire_lock("e2", "crm")), "completed")
        assert redis_server.client.exists("locks", "lock:crm:e1", "lock:crm:e2") == 0


def test_a_lock_that_is_over_is_no_name_any_more(bench: JournalBench) -> None:
    lock = acquired(locks(bench.journal).acquire_lock("e1", "crm"))
    locks(bench.journal).release_lock(lock, "completed")
    (found,) = bench.journal.look([lock_name("e1", "crm")])
    assert (found.is_marked, found.entries) == (False, ())


def test_a_completed_lock_blocks_nobody_not_even_in_the_same_millisecond(bench: JournalBench) -> None:
    """Two emails may share an id and differ in their text: the second must not be taken for delivered."""
    tokens = iter(map(str, range(100)))
    locks = PublicationLocks(bench.journal, "a server", lambda: next(tokens))
    for _ in range(20):
        lock = locks.acquire_lock("e1", "crm")
        assert lock is not None
        assert locks.release_lock(lock, "completed")
