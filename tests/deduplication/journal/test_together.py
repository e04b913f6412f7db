"""Steps of several threads in one transaction."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from deduplication.errors import StoreUnavailable
from deduplication.journal.sqlite import SqliteJournal
from deduplication.journal.together import Together

Eventually = Callable[[Callable[[], bool]], None]


class File:
    """Counts its transactions; what was done in one that failed is undone."""

    def __init__(self, patience_s: float = 10.0) -> None:
        self.lock = threading.RLock()
        self.rows: list[str] = []
        self.ended: list[tuple[int, bool]] = []
        self.together = Together(self.lock, self.transaction, patience_s)

    @contextmanager
    def transaction(self, *, durable: bool) -> Iterator[None]:
        with self.lock:
            before = list(self.rows)
            try:
                yield
            except BaseException:
                self.rows = before
                raise
            self.ended.append((len(self.rows) - len(before), durable))

    def put(self, row: str) -> str:
        self.rows.append(row)
        return f"{row} is in"


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as threads:
        yield threads


@contextmanager
def busy(file: File) -> Iterator[None]:
    """Somebody else has the file."""
    is_taken, is_over = threading.Event(), threading.Event()

    def hold() -> None:
        with file.lock:
            is_taken.set()
            is_over.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    is_taken.wait()
    try:
        yield
    finally:
        is_over.set()
        holder.join()


def waiting(file: File, count: int) -> Callable[[], bool]:
    return lambda: len(file.together._waiting) == count


def test_what_waits_at_the_same_time_goes_through_in_one_transaction(
    threads: ThreadPoolExecutor, eventually: Eventually
) -> None:
    file = File()
    with busy(file):
        asked = [threads.submit(file.together.run, lambda n=n: file.put(str(n)), durable=n == 3) for n in range(5)]
        eventually(waiting(file, 5))
    assert [each.result() for each in asked] == [f"{number} is in" for number in range(5)]
    assert file.ended == [(5, True)], "durable as soon as one of them has to be"


def test_one_that_fails_undoes_no_other(threads: ThreadPoolExecutor, eventually: Eventually) -> None:
    file = File()

    def fail() -> str:
        file.put("half")
        raise ValueError("its own")

    with busy(file):
        steps: list[Callable[[], str]] = [lambda: file.put("a"), fail, lambda: file.put("b")]
        asked: list[Future[str]] = []
        for place, step in enumerate(steps, 1):
            asked.append(threads.submit(file.together.run, step))
            eventually(waiting(file, place))
    assert (asked[0].result(), asked[2].result()) == ("a is in", "b is in")
    with pytest.raises(ValueError, match="its own"):
        asked[1].result()
    assert file.rows == ["a", "b"]
    assert file.ended == [(1, False), (1, False)]


def test_one_that_waited_too_long_is_not_done_later() -> None:
    file = File(patience_s=0.05)
    with busy(file), pytest.raises(StoreUnavailable, match="locked"):
        file.together.run(lambda: file.put("late"))
    assert file.together.run(lambda: file.put("next")) == "next is in"
    assert file.rows == ["next"]


def test_one_that_somebody_is_at_is_waited_for(threads: ThreadPoolExecutor, eventually: Eventually) -> None:
    """Whoever has taken it along takes longer than it would have waited: it cannot say that it was not done."""
    file = File(patience_s=1.0)
    is_slow = threading.Event()

    def slow() -> str:
        is_slow.wait()
        return file.put("slow")

    with file.lock:
        first = threads.submit(file.together.run, slow)
        eventually(waiting(file, 1))
        second = threads.submit(file.together.run, lambda: file.put("with it"))
        eventually(waiting(file, 2))
    eventually(waiting(file, 0))
    threading.Event().wait(1.2)  # longer than its patience
    is_slow.set()
    assert (first.result(), second.result()) == ("slow is in", "with it is in")


def test_a_journal_that_is_busy_takes_several_in_one_commit(
    tmp_path: Path, threads: ThreadPoolExecutor, eventually: Eventually
) -> None:
    journal = SqliteJournal(tmp_path / "journal.db")
    with journal._exclusively():
        asked = [threads.submit(journal._step, lambda n=n: journal.set_memo(str(n), "yes")) for n in range(6)]
        eventually(lambda: len(journal._together._waiting) == 6)
        before = journal._wal._synced.writes
    for each in asked:
        each.result()
    assert journal._wal._synced.writes == before + 2, "that of whoever had it, and one for all others"
    assert [journal.memo(str(number)) for number in range(6)] == ["yes"] * 6
    journal.close()
