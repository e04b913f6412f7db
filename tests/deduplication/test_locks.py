"""Publication locks: of all servers, one publishes at a time."""

from __future__ import annotations

import itertools
import logging
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, timedelta
from pathlib import Path

import pytest

from deduplication.claims import Kind, Name
from deduplication.locks import LEASE_MS, PublicationLock, PublicationLocks, new_server_id
from deduplication.stores.base import Store
from deduplication.stores.sqlite import SqliteStore
from tests.support.redis_server import RedisServer
from tests.support.stores import Bench, FakeClock, open_bench

_tokens = map("token {}".format, itertools.count())


def locks(store: Store, server_id: str = "server a") -> PublicationLocks:
    return PublicationLocks(store, server_id, lambda: next(_tokens))


def acquired(lock: PublicationLock | None) -> PublicationLock:
    assert lock is not None
    return lock


def test_a_lock_says_who_holds_it_since_when_and_until_when(bench: Bench) -> None:
    lock = acquired(locks(bench.store).acquire_lock("e1", "crm"))
    assert (lock.content_id, lock.platform, lock.server_id) == ("e1", "crm", "server a")
    assert lock.owner
    assert lock.fence > 0
    assert lock.created.tzinfo is UTC
    assert abs(lock.expires - lock.created - timedelta(milliseconds=LEASE_MS)) < timedelta(seconds=1)
    assert locks(bench.another).active_locks() == [lock]


def test_a_lock_that_another_holds_is_refused_and_the_log_names_the_holder(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    acquired(locks(bench.store).acquire_lock("e1", "crm"))
    assert locks(bench.another, "server b").acquire_lock("e1", "crm") is None
    assert "held by server a" in caplog.text


def test_destinations_and_items_are_independent(bench: Bench) -> None:
    mine = locks(bench.store)
    taken = {acquired(mine.acquire_lock(*each)).id for each in (("e1", "crm"), ("e1", "archive"), ("e2", "crm"))}
    assert len(taken) == 3
    assert {lock.id for lock in mine.active_locks()} == taken


@pytest.mark.parametrize("status", ["completed", "failed"])
def test_a_released_lock_is_free_for_others(bench: Bench, status: str) -> None:
    lock = acquired(locks(bench.store).acquire_lock("e1", "crm"))
    assert locks(bench.store).release_lock(lock, status)  # type: ignore[arg-type]
    bench.advance(2)
    assert locks(bench.another).active_locks() == []
    again = acquired(locks(bench.another, "server b").acquire_lock("e1", "crm"))
    assert again.fence > lock.fence


@pytest.mark.parametrize("status", ["completed", "failed"])
def test_nobody_releases_the_lock_of_another(bench: Bench, status: str) -> None:
    stale = acquired(locks(bench.store).acquire_lock("e1", "crm"))
    bench.advance(LEASE_MS + 1)
    heir = acquired(locks(bench.another, "server b").acquire_lock("e1", "crm"))
    assert locks(bench.store).release_lock(stale, status) is False  # type: ignore[arg-type]
    assert locks(bench.store).renew_lock(stale) is None
    assert [lock.owner for lock in locks(bench.store).active_locks()] == [heir.owner]


def test_a_renewed_lock_lives_longer(bench: Bench) -> None:
    lock = acquired(locks(bench.store).acquire_lock("e1", "crm"))
    bench.advance(LEASE_MS - 10_000)
    renewed = acquired(locks(bench.store).renew_lock(lock))
    assert renewed.fence == lock.fence
    bench.advance(LEASE_MS - 10_000)
    assert locks(bench.another).acquire_lock("e1", "crm") is None


def test_expired_locks_are_not_active_and_are_cleaned_up(bench: Bench) -> None:
    mine = locks(bench.store)
    mine.acquire_lock("e1", "crm")
    bench.advance(LEASE_MS - 1000)
    alive = acquired(mine.acquire_lock("e2", "crm"))
    bench.advance(2000)
    assert [lock.id for lock in mine.active_locks()] == [alive.id]
    left_behind = 0 if "redis" in bench.kind else 1  # on Redis they expire by themselves
    assert mine.cleanup_expired_locks() == left_behind
    assert mine.cleanup_expired_locks() == 0
    assert {r.name for r in bench.store.read([Name(Kind.LOCK, "crm", "e1")])} == set()


def test_of_many_servers_at_once_one_gets_the_lock(bench: Bench) -> None:
    barrier = threading.Barrier(8)

    def try_it(number: int) -> bool:
        barrier.wait()
        store = bench.store if number % 2 else bench.another
        return locks(store, f"server {number}").acquire_lock("e1", "crm") is not None

    with ThreadPoolExecutor(8) as servers:
        assert sum(servers.map(try_it, range(8))) == 1


def test_server_ids_never_repeat() -> None:
    assert len({new_server_id() for _ in range(50)}) == 50


def test_sqlite_shows_every_lock_in_a_table_of_which_at_most_one_is_active(tmp_path: Path) -> None:
    clock = FakeClock()
    store = SqliteStore(tmp_path / "names.db", clock)
    mine = locks(store)
    for status in ("completed", "failed"):
        mine.release_lock(acquired(mine.acquire_lock("e1", "crm")), status)
        clock.advance(2)
    mine.acquire_lock("e1", "crm")
    clock.advance(LEASE_MS + 1)
    mine.acquire_lock("e1", "crm")
    store.close()
    database = sqlite3.connect(tmp_path / "names.db")
    rows = database.execute("SELECT status FROM publication_locks ORDER BY fence").fetchall()
    assert [status for (status,) in rows] == ["completed", "failed", "expired", "active"]
    with pytest.raises(sqlite3.IntegrityError):
        database.execute("INSERT INTO publication_locks SELECT * FROM publication_locks WHERE status = 'active'")
    database.close()


def test_on_redis_a_lock_is_a_key_that_expires_by_itself(redis_server: RedisServer, tmp_path: Path) -> None:
    with open_bench("redis", tmp_path, redis_server) as bench:
        locks(bench.store).acquire_lock("e1", "crm")
        assert redis_server.client.get("lock:crm:e1") == "held"
        assert 0 < redis_server.client.pttl("lock:crm:e1") <= LEASE_MS
        assert 0 < redis_server.client.pttl("claim:lock:crm:e1") <= LEASE_MS


def test_a_completed_lock_blocks_nobody_not_even_in_the_same_millisecond(bench: Bench) -> None:
    """Two emails may share an id and differ in their text: the second must not be taken for delivered."""
    tokens = iter(map(str, range(100)))
    locks = PublicationLocks(bench.store, "a server", lambda: next(tokens))
    for _ in range(20):
        lock = locks.acquire_lock("e1", "crm")
        assert lock is not None
        assert locks.release_lock(lock, "completed")
