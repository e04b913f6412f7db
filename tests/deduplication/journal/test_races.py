"""Many threads and processes at once, on one machine and on several: exactly one of them gets an email."""

from __future__ import annotations

import multiprocessing
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from deduplication.errors import StoreUnavailable
from deduplication.journal.coordinator import Claimed
from deduplication.journal.registry import RegistryOptions
from tests.deduplication.conftest import Fleet3
from tests.deduplication.journal.test_fleet import RealTime
from tests.deduplication.journal.world import Email, Machine, ask, delivered

ROUNDS, PROCESSES, THREADS = 15, 4, 8


def contend(url: str | None, folder: Path, barrier: Any, posts: Any) -> None:
    """Asks for the same emails, round by round, with all threads at once. Whoever gets one delivers it."""
    machine = Machine(url, RealTime(), folder=folder, options=RegistryOptions(hold_ms=1), timeout_s=30)
    machine.tick()
    machine.tick()

    def run(number: int) -> int:
        try:
            found = ask(machine, Email(f"e{number}", message_id=f"<{number}@x>"))
        except StoreUnavailable:
            return 0
        if isinstance(found, Claimed):
            delivered(machine, found)
        return isinstance(found, Claimed)

    with ThreadPoolExecutor(THREADS) as pool:
        for number in range(ROUNDS):
            barrier.wait()
            posts.append((number, sum(pool.map(run, [number] * THREADS))))
            machine.tick()
    machine.stop()


@pytest.mark.parametrize("kind", ["sqlite", "one machine", "four machines"])
def test_of_all_that_ask_at_once_one_gets_it(kind: str, tmp_path: Path, fleet: Fleet3) -> None:
    spawn = multiprocessing.get_context("spawn")
    barrier = spawn.Barrier(PROCESSES)
    folders = [tmp_path / str(number if kind == "four machines" else 0) for number in range(PROCESSES)]
    for folder in folders:
        folder.mkdir(exist_ok=True)
    if kind != "sqlite":
        fleet.add(options=RegistryOptions(hold_ms=1)).tick()
    with spawn.Manager() as manager:
        posts = manager.list()
        url = None if kind == "sqlite" else fleet.redis.url
        processes = [spawn.Process(target=contend, args=(url, folder, barrier, posts)) for folder in folders]
        for process in processes:
            process.start()
        for process in processes:
            process.join(90)
        assert [process.exitcode for process in processes] == [0] * PROCESSES
        won = {number: sum(count for round_, count in posts if round_ == number) for number in range(ROUNDS)}
    assert won == dict.fromkeys(range(ROUNDS), 1)


def test_a_step_that_waits_for_the_journal_of_another_process_is_not_lost(tmp_path: Path) -> None:
    machines = [Machine(None, RealTime(), folder=tmp_path) for _ in range(2)]
    is_inside, may_leave = threading.Event(), threading.Event()

    def hold() -> None:
        with machines[0].journal.step():
            is_inside.set()
            may_leave.wait(10)

    thread = threading.Thread(target=hold)
    thread.start()
    is_inside.wait(10)
    threading.Timer(0.2, may_leave.set).start()
    assert isinstance(ask(machines[1], Email()), Claimed)
    thread.join()
    for machine in machines:
        machine.stop()
