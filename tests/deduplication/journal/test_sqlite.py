"""What the journal in a file promises beyond the contract: when it waits for the disk, and what its processes share."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from deduplication.claims import Kind, Name
from deduplication.errors import StoreUnavailable
from deduplication.journal.base import Claim, Claimed, Ending, Settlement, Wanted
from deduplication.journal.entry import DeliveryStatus, Entry, State
from deduplication.journal.side import MachineSide, Side
from deduplication.journal.sqlite import SqliteJournal
from tests.support.journals import FakeClock

DAY_MS = 24 * 3_600_000
NORMAL, FULL = 1, 2


@pytest.fixture
def time() -> FakeClock:
    return FakeClock()


@pytest.fixture
def journal(tmp_path: Path, time: FakeClock) -> Iterator[SqliteJournal]:
    journal = SqliteJournal(tmp_path / "journal.db", time.clock, busy_timeout_s=0.05)
    yield journal
    journal.close()


def a_claim(number: int) -> Claim:
    own = (Name(Kind.EMAIL_ID, "2026-11-16", f"e{number}"),)
    return Claim(f"entry{number}", f"owner{number}", own, destinations=(Wanted("crm", "msg"),), lease_ms=60_000)


def settle(journal: SqliteJournal, number: int, status: DeliveryStatus, payload: bytes | None = b"payload") -> Entry:
    verdict = journal.claim(a_claim(number))
    assert isinstance(verdict, Claimed)
    ended = replace(verdict.entry.deliveries[0], status=status, next_try_ms=1 if status.is_open else None)
    assert journal.settle(a_claim(number), verdict.entry, Settlement(Ending.DONE, "told", (ended,), payload=payload))
    return verdict.entry


def last_written_with(journal: SqliteJournal) -> int:
    return int(journal._db.execute("PRAGMA synchronous").fetchone()[0])


def test_what_is_still_to_do_costs_an_fsync_and_what_is_done_does_not(journal: SqliteJournal) -> None:
    settle(journal, 1, DeliveryStatus.DELIVERED, payload=None)
    assert last_written_with(journal) == NORMAL
    waiting = settle(journal, 2, DeliveryStatus.WAITING)
    assert last_written_with(journal) == FULL, "its provider is told 200 and keeps nothing"
    for status in (DeliveryStatus.WAITING, DeliveryStatus.DEAD):
        begun = journal.begin(waiting.id, "crm", "worker", 60_000)
        assert begun
        assert last_written_with(journal) == NORMAL
        next_try_ms = 1 if status.is_open else None
        assert journal.finish(waiting.id, "worker", replace(begun.delivery, status=status, next_try_ms=next_try_ms))
        assert last_written_with(journal) == FULL


def test_a_folder_that_is_not_there_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable):
        SqliteJournal(tmp_path / "missing" / "journal.db")


def test_a_file_that_is_locked_is_unavailable_and_free_again_later(journal: SqliteJournal, tmp_path: Path) -> None:
    other = sqlite3.connect(tmp_path / "journal.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailable):
        journal.claim(a_claim(1))
    other.execute("ROLLBACK")
    other.close()
    assert isinstance(journal.claim(a_claim(1)), Claimed)


def test_a_step_that_fails_half_way_changes_nothing(journal: SqliteJournal, monkeypatch: pytest.MonkeyPatch) -> None:
    verdict = journal.claim(a_claim(1))
    assert isinstance(verdict, Claimed)

    def fail(*_: object) -> None:
        raise StoreUnavailable("sqlite: database or disk is full")

    monkeypatch.setattr(journal, "_put_payload", fail)
    waiting = replace(verdict.entry.deliveries[0], status=DeliveryStatus.WAITING, next_try_ms=1)
    with pytest.raises(StoreUnavailable):
        journal.settle(a_claim(1), verdict.entry, Settlement(Ending.DONE, "queued", (waiting,), payload=b"payload"))
    assert journal.read(verdict.entry.id) == verdict.entry
    (found,) = journal.look(a_claim(1).own)
    assert not found.is_marked
    assert journal.due({"crm": 10}, 1000) == []


def test_what_is_over_leaves_the_file(journal: SqliteJournal, time: FakeClock, tmp_path: Path) -> None:
    for number in range(5):
        settle(journal, number, DeliveryStatus.DEAD, payload=b"x" * 1_000_000)
        time.advance(32 * DAY_MS)
    settle(journal, 5, DeliveryStatus.DELIVERED, payload=None)
    time.advance(DAY_MS)
    journal.claim(a_claim(6))
    with sqlite3.connect(tmp_path / "journal.db") as db:
        assert db.execute("SELECT count(*) FROM payloads").fetchone() == (0,)
        assert db.execute("SELECT count(*) FROM entries").fetchone() == (2,), "the last two"
        assert db.execute("SELECT count(*) FROM due").fetchone() == (0,)
    db.close()


def test_beside_redis_a_mark_lasts_no_longer_than_this_machine_should_remember(tmp_path: Path) -> None:
    time = FakeClock()
    journal = SqliteJournal(tmp_path / "journal.db", time.clock, marks_kept_ms=1000)
    claim = Claim("entry", "owner", (Name(Kind.EMAIL_ID, "2026-11-16", "e1"),))
    verdict = journal.claim(claim)
    assert isinstance(verdict, Claimed)
    assert journal.settle(claim, verdict.entry, Settlement(Ending.DONE))
    assert journal.look(claim.own)[0].is_marked
    time.advance(1000)
    assert not journal.look(claim.own)[0].is_marked
    journal.close()


def an_entry(id_: str) -> Entry:
    return Entry(id_, (), (), "", State.DONE, "owner", 1, 0, 1_800_000_000_000)


def test_a_process_that_is_stopped_in_its_turn_holds_up_others_no_longer_than_they_wait(tmp_path: Path) -> None:
    one, other = (SqliteJournal(tmp_path / "journal.db", busy_timeout_s=0.05) for _ in range(2))
    with one._exclusively(), pytest.raises(StoreUnavailable, match="locked"):
        other.check()
    other.check()
    one.close()
    with pytest.raises(StoreUnavailable, match="closed"):
        one.check()
    other.close()


def test_one_fsync_is_for_all_payloads_committed_by_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = SqliteJournal(tmp_path / "journal.db")
    synced: list[int] = []

    def fsync(fd: int) -> None:
        """While the first is at it, another thread commits, and comes for its own."""
        synced.append(fd)
        if len(synced) == 1:
            with journal._transaction():
                journal.set_memo("from", "another thread")

    monkeypatch.setattr(os, "fsync", fsync)
    assert journal.keep_payload("a", b"payload")
    assert len(synced) == 1
    journal._wal.sync()
    assert len(synced) == 2, "what was committed during the first fsync may not be in it"
    journal._wal.sync()
    assert len(synced) == 2, "nothing was committed since"
    journal.close()


def test_a_payload_that_cannot_be_synced_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = SqliteJournal(tmp_path / "journal.db")

    def fail(_fd: int) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(StoreUnavailable, match="cannot be written"):
        journal.keep_payload("a", b"payload")
    journal.close()


@pytest.mark.parametrize("count", [1, 1_200])
def test_names_are_found_whatever_is_in_them_and_however_many_are_asked_for(tmp_path: Path, count: int) -> None:
    journal = SqliteJournal(tmp_path / "journal.db")
    names = [Name(Kind.POST, "", f'{number} "\0\n\u00e9') for number in range(count)]
    with journal._transaction():
        journal._mark([(name, None) for name in names])
    assert all(found.is_marked for found in journal.look(names))
    assert not journal.look([Name(Kind.POST, "", '0 "')])[0].is_marked
    journal.close()


def test_every_process_sees_a_change_of_side_at_once(tmp_path: Path) -> None:
    """Also where a new file gets the inode of one that was replaced before."""
    one, other = MachineSide(tmp_path), MachineSide(tmp_path)
    for generation in range(1, 20):
        side = Side.REDIS if generation % 2 else Side.LOCAL
        with one.alone():
            one.change_to(side)
        with other.shared() as standing:
            assert (standing.side, standing.generation) == (side, generation)


def test_a_file_that_is_older_than_the_index_of_the_dead_gets_it(tmp_path: Path, time: FakeClock) -> None:
    before = SqliteJournal(tmp_path / "journal.db", time.clock)
    dead = settle(before, 1, DeliveryStatus.DEAD)
    settle(before, 2, DeliveryStatus.WAITING)
    before._db.execute("DROP TABLE dead")
    before.close()
    for _ in range(2):
        journal = SqliteJournal(tmp_path / "journal.db", time.clock)
        assert [each.entry.id for each in journal.list_deliveries(DeliveryStatus.DEAD)] == [dead.id]
        journal.close()
