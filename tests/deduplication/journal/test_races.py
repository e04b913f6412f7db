"""Many processes at once on one item: exactly one winner, on every journal that is shared."""

from __future__ import annotations

import multiprocessing
import threading
from pathlib import Path

import pytest

from deduplication.claims import Kind, Name
from deduplication.journal.base import Claim, Claimed, Ending, Journal, Settlement
from deduplication.journal.failover import FailoverJournal
from deduplication.journal.memory import MemoryJournal
from deduplication.journal.redis import RedisJournal
from deduplication.journal.sqlite import SqliteJournal
from deduplication.redis_client import connect
from tests.support.redis_server import RedisServer

ROUNDS = 20
GROUP = Name(Kind.SUBJECT_GROUP, "2026-11", "lot_1")


def an_id(value: str) -> Name:
    return Name(Kind.EMAIL_ID, "2026-11-16", value)


def open_journal(kind: str, folder: Path, address: str) -> Journal:
    if kind == "sqlite":
        return SqliteJournal(folder / "journal.db")
    on_redis = RedisJournal(connect(address, 30, decode_responses=False), machine=folder.name)
    if kind == "redis":
        return on_redis
    return FailoverJournal(on_redis, SqliteJournal(folder / "journal.db"), folder)


def contend(kind: str, folder: Path, address: str, name: str, barrier: threading.Barrier, wins: list[int]) -> None:
    """Claims the same items round by round; how many rounds this process won."""
    journal = open_journal(kind, folder, address)
    won = 0
    for number in range(ROUNDS):
        barrier.wait()
        claim = Claim(f"{name}-{number}", f"{name}-{number}", (an_id(f"e{number}"),), lease_ms=60_000)
        won += isinstance(journal.claim(claim), Claimed)
    wins.append(won)
    journal.close()


@pytest.mark.parametrize("kind", ["sqlite", "redis", "failover"])
def test_of_4_processes_that_start_at_once_one_wins(kind: str, tmp_path: Path, redis_server: RedisServer) -> None:
    spawn = multiprocessing.get_context("spawn")
    barrier = spawn.Barrier(4)
    with spawn.Manager() as manager:
        wins = manager.list()
        processes = [
            spawn.Process(target=contend, args=(kind, tmp_path, redis_server.url, f"p{n}", barrier, wins))
            for n in range(4)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join(90)
        assert [process.exitcode for process in processes] == [0] * 4
        assert sum(wins) == ROUNDS


def test_memory_stays_within_its_bound_and_forgets_the_oldest_first() -> None:
    journal = MemoryJournal(most_entries=10)
    for number in range(25):
        claim = Claim(f"entry{number}", f"owner{number}", (an_id(f"e{number}"),), (GROUP,) if number == 3 else ())
        verdict = journal.claim(claim)
        assert isinstance(verdict, Claimed)
        journal.settle(claim, verdict.entry, Settlement(Ending.DONE))
    assert len(list(journal.find())) == 10
    assert journal.read("entry14") is None and journal.read("entry15") is not None
    again = Claim("again", "again", (an_id("e3"),), (GROUP,))
    assert isinstance(journal.claim(again), Claimed), "what is forgotten is forgotten with all its names"
