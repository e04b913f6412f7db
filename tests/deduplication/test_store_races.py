"""Many at once on one name: exactly one winner, on every store that is shared."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from deduplication.claims import WEEK_MS, Claim, Claimed, Kind, Name
from deduplication.redis_client import connect
from deduplication.stores.base import Store
from deduplication.stores.memory import MAX_SETTLED, TRIM_TO, MemoryStore, Shelf
from deduplication.stores.redis import RedisStore
from deduplication.stores.sqlite import SqliteStore
from tests.support.redis_server import RedisServer

ROUNDS = 10


def open_store(address: str) -> Store:
    kind, _, place = address.partition("=")
    return SqliteStore(Path(place)) if kind == "sqlite" else RedisStore(connect(place, timeout_s=10))


@pytest.fixture(params=["sqlite", "redis"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite={tmp_path / 'names.db'}"
    server: RedisServer = request.getfixturevalue("redis_server")
    return f"redis={server.url}"


def contend(store: Store, owner: str, barrier: Callable[[], object]) -> int:
    """Claims the same names round by round; how many rounds this owner won."""
    won = 0
    for number in range(ROUNDS):
        names = (Name(Kind.EMAIL_ID, "2026-11-16", f"e{number}"), Name(Kind.SUBJECT_GROUP, "2026-11", f"g{number}"))
        barrier()
        won += isinstance(store.claim(Claim(f"e{number}", names, "f", owner, 60_000)), Claimed)
    return won


def contend_in_process(address: str, owner: str, barrier: threading.Barrier, wins: multiprocessing.Queue[int]) -> None:
    store = open_store(address)
    wins.put(contend(store, owner, barrier.wait))
    store.close()


def test_of_32_threads_one_wins(address: str) -> None:
    stores = [open_store(address) for _ in range(2)]
    barrier = threading.Barrier(32)
    with ThreadPoolExecutor(32) as pool:
        wins = [pool.submit(contend, stores[n % 2], f"thread {n}", barrier.wait) for n in range(32)]
        assert sum(each.result() for each in wins) == ROUNDS
    for store in stores:
        store.close()


def test_of_32_threads_on_memory_one_wins() -> None:
    shelf = Shelf()
    barrier = threading.Barrier(32)
    with ThreadPoolExecutor(32) as pool:
        wins = [pool.submit(contend, MemoryStore(shelf=shelf), f"thread {n}", barrier.wait) for n in range(32)]
        assert sum(each.result() for each in wins) == ROUNDS


def test_of_4_processes_that_start_at_once_one_wins(address: str) -> None:
    spawn = multiprocessing.get_context("spawn")
    barrier = spawn.Barrier(4)
    wins: multiprocessing.Queue[int] = spawn.Queue()
    processes = [
        spawn.Process(target=contend_in_process, args=(address, f"process {n}", barrier, wins)) for n in range(4)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * 4
    assert sum(wins.get(timeout=5) for _ in processes) == ROUNDS
    wins.close()


def test_an_expired_name_is_taken_over_by_exactly_one_of_many(address: str) -> None:
    stores = [open_store(address) for _ in range(2)]
    name = Name(Kind.POST, "", "crashed", WEEK_MS)
    stores[0].claim(Claim("e", (name,), "", "crashed owner", 1))
    barrier = threading.Barrier(16)

    def take_over(number: int) -> bool:
        barrier.wait()
        return isinstance(stores[number % 2].claim(Claim("e", (name,), "", f"heir {number}", 60_000)), Claimed)

    with ThreadPoolExecutor(16) as pool:
        assert sum(pool.map(take_over, range(16))) == 1
    for store in stores:
        store.close()


def test_memory_stays_within_its_bound_and_forgets_the_oldest_first() -> None:
    shelf = Shelf()
    store = MemoryStore(shelf=shelf)
    most = 0
    for number in range(MAX_SETTLED + 2):
        claim = Claim(f"e{number}", (Name(Kind.EMAIL_ID, "2026-11-16", f"e{number}"),), "f", "a", 60_000)
        store.claim(claim)
        store.commit(claim)
        most = max(most, len(shelf.fingerprints))
    assert most <= MAX_SETTLED + 1
    assert len(shelf.fingerprints) == TRIM_TO + 1
    newest, oldest = (Name(Kind.EMAIL_ID, "2026-11-16", f"e{n}") for n in (MAX_SETTLED + 1, 0))
    assert list(store.read([newest]))
    assert not list(store.read([oldest]))
