"""Publication locks: of all servers, one publishes at a time."""

import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, timedelta
from typing import Any, Literal
from unittest.mock import Mock

import pytest

from deduplication import locks as locks_module
from deduplication.errors import NoAnswer, StoreUnavailable
from deduplication.journal.coordinator import Coordinator
from deduplication.journal.registry import Registry
from deduplication.locks import LEASE_MS, PublicationLock, PublicationLocks
from tests.deduplication.conftest import ON_REDIS, Bench, Fleet3
from tests.deduplication.journal.world import Email, claimed, delivered, stored, take


def locks(coordinator: Coordinator, server_id: str = "server a") -> PublicationLocks:
    return PublicationLocks(coordinator, server_id)


def acquired(lock: PublicationLock | None) -> PublicationLock:
    assert lock is not None
    return lock


def test_a_lock_says_who_holds_it_since_when_and_until_when(bench: Bench) -> None:
    lock = acquired(locks(bench.one).acquire_lock("e1", "crm"))
    assert (lock.content_id, lock.platform, lock.server_id) == ("e1", "crm", "server a")
    assert lock.owner and lock.fence > 0 and lock.created.tzinfo is UTC
    assert lock.expires - lock.created == timedelta(milliseconds=LEASE_MS)
    (shown,) = locks(bench.other).active_locks()
    assert replace(shown, expires_ms=lock.expires_ms) == lock
    assert abs(shown.expires - lock.expires) < timedelta(seconds=1)


def test_a_held_lock_is_refused_and_its_holder_logged(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    acquired(locks(bench.one).acquire_lock("e1", "crm"))
    assert locks(bench.other, "server b").acquire_lock("e1", "crm") is None
    assert "held by server a" in caplog.text


def test_destinations_and_items_are_independent(bench: Bench) -> None:
    mine = locks(bench.one)
    taken = {acquired(mine.acquire_lock(*each)).id for each in (("e1", "crm"), ("e1", "archive"), ("e2", "crm"))}
    assert len(taken) == 3
    assert {lock.id for lock in mine.active_locks()} == taken


@pytest.mark.parametrize("status", ["completed", "failed"])
def test_a_released_lock_is_free_and_fencing_numbers_rise(bench: Bench, status: Literal["completed", "failed"]) -> None:
    fences = []
    for _ in range(5):
        for coordinator in (bench.one, bench.other):
            lock = acquired(locks(coordinator).acquire_lock("e1", "crm"))
            fences.append(lock.fence)
            assert locks(coordinator).release_lock(lock, status)
            assert not locks(coordinator).release_lock(lock, status)
    assert locks(bench.other).active_locks() == []
    assert fences == sorted(set(fences)), "fencing numbers rise"


def test_nobody_releases_or_renews_the_lock_of_another(bench: Bench) -> None:
    stale = acquired(locks(bench.one).acquire_lock("e1", "crm"))
    bench.advance(LEASE_MS + 1)
    heir = acquired(locks(bench.other, "server b").acquire_lock("e1", "crm"))
    assert heir.created - stale.created >= timedelta(milliseconds=LEASE_MS) and heir.fence > stale.fence
    assert locks(bench.one).release_lock(stale, "completed") is False
    assert locks(bench.one).renew_lock(stale) is None
    (shown,) = locks(bench.one).active_locks()
    assert (shown.owner, shown.server_id, shown.fence) == (heir.owner, "server b", heir.fence)


def test_a_renewed_lock_lives_longer(bench: Bench) -> None:
    lock = acquired(locks(bench.one).acquire_lock("e1", "crm"))
    bench.advance(LEASE_MS - 10_000)
    renewed = acquired(locks(bench.one).renew_lock(lock))
    assert renewed.fence == lock.fence and renewed.expires > lock.expires
    bench.advance(LEASE_MS - 10_000)
    assert locks(bench.other).acquire_lock("e1", "crm") is None
    bench.advance(20_000)
    assert locks(bench.one).renew_lock(renewed) is None


def test_expired_locks_are_not_active_and_are_cleaned_up(bench: Bench) -> None:
    mine = locks(bench.one)
    mine.acquire_lock("e1", "crm")
    bench.advance(LEASE_MS - 1000)
    alive = acquired(mine.acquire_lock("e2", "crm"))
    bench.advance(2000)
    assert [lock.id for lock in mine.active_locks()] == [alive.id]
    assert [mine.cleanup_expired_locks() for _ in range(2)] == [1, 0]
    assert [lock.id for lock in mine.active_locks()] == [alive.id]
    bench.advance(LEASE_MS)
    mine.acquire_lock("e3", "crm")
    assert mine.cleanup_expired_locks() == 0, "taking a lock removes those that have ended"


def test_of_many_servers_at_once_one_gets_the_lock(bench: Bench) -> None:
    barrier = threading.Barrier(8)

    def try_it(number: int) -> bool:
        barrier.wait()
        coordinator = bench.one if number % 2 else bench.other
        return locks(coordinator, f"server {number}").acquire_lock("e1", "crm") is not None

    with ThreadPoolExecutor(8) as servers:
        assert sum(servers.map(try_it, range(8))) == 1


def test_deliveries_under_way_are_shown_and_what_only_waits_is_not(bench: Bench) -> None:
    first = claimed(bench.first, Email(destinations=("crm", "chat")))
    shown = locks(bench.one).active_locks()
    assert {(each.content_id, each.platform, each.owner) for each in shown} == {
        ("id-one", "crm", first.owner),
        ("id-one", "chat", first.owner),
    }
    assert {each.expires - each.created for each in shown} == {timedelta(seconds=25)}
    stored(bench.first, first)
    assert locks(bench.one).active_locks() == []
    (lent,) = take(bench.first)
    assert [(each.platform, each.owner) for each in locks(bench.one).active_locks()] == [("crm", lent.owner)]
    bench.advance(25_001)
    assert locks(bench.one).active_locks() == []
    assert locks(bench.one).cleanup_expired_locks() == 0, "a delivery is no lock"
    delivered(bench.first, claimed(bench.first, Email("two")))
    assert locks(bench.one).active_locks() == []


@ON_REDIS
def test_in_redis_a_lock_is_a_key_that_expires_with_its_lease(bench: Bench) -> None:
    client = bench.client
    lock = acquired(locks(bench.one).acquire_lock("e1", "crm"))
    assert "server a" in str(client.get("lock:crm:e1"))
    bench.advance(LEASE_MS // 2)
    locks(bench.one).renew_lock(lock)
    assert LEASE_MS // 2 < client.pttl("lock:crm:e1") <= LEASE_MS
    bench.advance(LEASE_MS + 1)
    assert locks(bench.one).active_locks() == [] and client.smembers("locks") == set()


def test_a_lock_acquired_without_redis_is_kept_afterwards(fleet: Fleet3, monkeypatch: pytest.MonkeyPatch) -> None:
    machines = fleet.add(), fleet.add()
    fleet.open()
    mine, others = (locks(machine.coordinator) for machine in machines)
    before = acquired(mine.acquire_lock("e1", "crm"))

    with monkeypatch.context() as outage:
        outage.setattr(Registry, "probe", Mock(side_effect=NoAnswer("Redis does not answer")))
        machines[0].tick()
        assert mine.acquire_lock("e1", "crm") is None, "the journal knows what Redis had granted"
        alone = acquired(mine.acquire_lock("e2", "crm"))
        assert alone.fence > before.fence
    machines[0].tick()
    for either in (mine, others):
        assert either.acquire_lock("e2", "crm") is None
    assert mine.release_lock(alone, "completed")
    assert acquired(others.acquire_lock("e2", "crm")).fence > alone.fence


def test_no_lock_is_granted_by_a_redis_that_is_back_before_it_has_those_of_the_outage(
    fleet: Fleet3, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = fleet.add()
    fleet.open()
    with monkeypatch.context() as outage:
        outage.setattr(Registry, "probe", Mock(side_effect=NoAnswer("Redis does not answer")))
        machine.tick()
        mine = acquired(locks(machine.coordinator).acquire_lock("e1", "crm"))
    put_back, others = locks_module.put_back, list[PublicationLock | None]()

    def first_try_another_thread(*arguments: Any) -> None:
        with suppress(StoreUnavailable):
            others.append(locks(machine.coordinator).acquire_lock("e1", "crm"))
        put_back(*arguments)

    monkeypatch.setattr(locks_module, "put_back", first_try_another_thread)
    machine.tick()
    assert others in ([], [None])
    assert locks(machine.coordinator).renew_lock(mine)


@ON_REDIS
def test_a_lock_that_redis_has_forgotten_is_released_here(bench: Bench) -> None:
    lock = acquired(locks(bench.one).acquire_lock("e1", "crm"))
    bench.client.delete("lock:crm:e1")
    assert not locks(bench.one).release_lock(lock, "completed")
    assert locks(bench.one).active_locks() == []


def test_a_redis_that_was_emptied_gets_the_locks_back(fleet: Fleet3) -> None:
    one, other = fleet.add(), fleet.add()
    fleet.open()
    lock = acquired(locks(one.coordinator).acquire_lock("e1", "crm"))
    fleet.redis.client.flushall()
    fleet.open()
    assert locks(other.coordinator).acquire_lock("e1", "crm") is None
    assert fleet.redis.client.pttl("lock:crm:e1") <= LEASE_MS
    assert locks(one.coordinator).release_lock(lock, "completed")
    heir = acquired(locks(other.coordinator).acquire_lock("e1", "crm"))
    assert heir.fence > lock.fence
