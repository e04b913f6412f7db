"""Many threads and processes at once, on one machine and on several: exactly one of them gets an email."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from deduplication.errors import StoreUnavailable
from deduplication.journal.coordinator import Claimed
from deduplication.journal.registry import RegistryOptions
from tests.deduplication.conftest import Fleet3
from tests.deduplication.journal.test_fleet import RealTime
from tests.deduplication.journal.world import Email, Machine, ask, delivered
from tests.support.programs_loaded import run_at_once

ROUNDS, PROCESSES, THREADS = 15, 4, 8


def contend(url: str | None, folder: Path | None, barrier: threading.Barrier) -> list[int]:
    """Asks for the same emails, round by round, with all threads at once. Whoever gets one delivers it; how many did,
    in each round. ``folder`` None: a machine of its own."""
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

    won = []
    with ThreadPoolExecutor(THREADS) as pool:
        for number in range(ROUNDS):
            barrier.wait(60)
            won.append(sum(pool.map(run, [number] * THREADS)))
            machine.tick()
    if folder:
        machine.stop()
    else:
        machine.close()
    return won


@pytest.mark.parametrize("kind", ["sqlite", "one machine", "four machines"])
def test_of_all_that_ask_at_once_one_gets_it(kind: str, tmp_path: Path, fleet: Fleet3) -> None:
    if kind != "sqlite":
        fleet.add(options=RegistryOptions(hold_ms=1)).tick()
    url, folder = None if kind == "sqlite" else fleet.redis.url, None if kind == "four machines" else tmp_path
    won = run_at_once(PROCESSES, contend, url, folder)
    assert list(map(sum, zip(*won, strict=True))) == [1] * ROUNDS


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
