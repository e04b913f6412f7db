"""Pause, circuit breaker and rate of a destination, across threads, processes and machines."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from deduplication.journal.sqlite import Journal
from orchestrator.delivery.counters import Counters
from orchestrator.delivery.guard import Blocker, Guard
from tests.deduplication.conftest import Fleet3
from tests.deduplication.conftest import fleet as fleet
from tests.deduplication.conftest import time as time
from tests.deduplication.journal.test_fleet import RealTime
from tests.deduplication.journal.world import Machine
from tests.support.pipeline import ModuleTime, limited
from tests.support.programs_loaded import run_at_once

PAUSE_S = 1000
BROKEN = {"breaker_failures": 3, "breaker_pause_s": PAUSE_S}
CONFIGS = {
    "crm": limited(**BROKEN),
    "archive": limited(**BROKEN),
    "limited": limited(**BROKEN, rate="3/hour"),
    "unbroken": limited(breaker_failures=0),
}


@dataclass(frozen=True)
class Bench:
    """Two guards as two processes of a machine have them: ``guard`` is ``a`` in the scenarios, ``other`` is ``b``."""

    guard: Guard
    other: Guard
    clock: ModuleTime

    def play(self, scenario: str, destination: str = "crm") -> None:
        guards = {"a": self.guard, "b": self.other}
        for line in scenario.split(", "):
            match line.split():
                case ["pass", seconds]:
                    self.clock.pass_ms(int(float(seconds) * 1000))
                    for each in guards.values():
                        each.refresh()
                case ["is", state]:
                    assert {each.breaker(destination) for each in guards.values()} == {state}, line
                case [who, "fails"]:
                    guards[who].failed(destination)
                case [who, "works" | "recovers" as how]:
                    assert (guards[who].breaker(destination) == "closed") == (how == "works"), line
                    guards[who].succeeded(destination)
                case [who, "waits", seconds]:
                    wait_s = guards[who].wait_s(destination)
                    assert wait_s == pytest.approx(float(seconds), abs=0.02), line
                case _:
                    raise ValueError(line)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    clock = ModuleTime()
    machines = [Machine(None, clock, folder=tmp_path, host="here") for _ in range(2)]
    guard, other = (Guard(Counters(machine.coordinator), CONFIGS) for machine in machines)
    yield Bench(guard, other, clock)
    for machine in machines:
        machine.stop()


OPENS = "a fails, a fails, a fails, is open"
HALF_OPENS = f"{OPENS}, pass 1000, is half-open"
SCENARIOS = {
    "so many failures in a row open it for the pause, in all processes": (
        "a fails, is closed, a waits 0, b fails, is closed, a waits 0, b fails, is open, pass 200, a waits 800, "
        "b waits 800, pass 799, a waits 1, is open, pass 1, is half-open"
    ),
    "a success in between starts the count again": (
        "a fails, a fails, a waits 0, a works, a fails, a fails, pass 2, b waits 0, b works, a fails, is closed"
    ),
    "another process knows within a second": f"b waits 0, {OPENS}, pass 2, b waits 998",
    "after the pause one probes and the others wait for it": f"{HALF_OPENS}, b waits 0, is open, a waits 1000",
    "a probe that succeeds closes it for all, and earlier failures do not count any more": (
        f"{HALF_OPENS}, b waits 0, b recovers, b works, is closed, a waits 0, b waits 0, a fails, b fails, is closed"
    ),
    "a probe that fails opens it for another whole pause, which has its own probe": (
        f"{HALF_OPENS}, b waits 0, pass 9, b fails, is open, a waits 1000, pass 1000, a waits 0, b waits 1000, "
        f"a fails, is open, b waits 1000, pass 1000, b waits 0, a waits 1000"
    ),
    "a probe that never ends is followed by another, and its late failure counts as one": (
        f"{HALF_OPENS}, b waits 0, pass 999, a waits 1, pass 1, a waits 0, a recovers, b fails, is closed"
    ),
    "the pause counts from the latest failure, and a late success ends it": (
        f"{OPENS}, pass 4, b fails, a waits 1000, a recovers, is closed, {OPENS}, a waits 1000"
    ),
}


@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=SCENARIOS)
def test_a_circuit_breaker(bench: Bench, scenario: str) -> None:
    bench.play(scenario)
    bench.play("is closed, a waits 0", "archive")


def test_without_a_breaker_failures_do_not_matter(bench: Bench) -> None:
    bench.play("a fails, a fails, a fails, a fails, a waits 0, a works, is closed", "unbroken")


def test_a_destination_that_works_costs_no_read(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.delattr(Journal, "reading")
        patched.delattr(Journal, "step")
        assert bench.guard.lasting_blocker("crm") is None
        bench.guard.wait_s("crm")
        bench.guard.succeeded("crm")


def test_another_process_knows_of_a_pause_once_it_reads_it(bench: Bench) -> None:
    assert not bench.guard.pause_of("crm").is_paused
    assert bench.other.set_paused("crm", True, reason="moves", by="ada")
    assert not bench.guard.pause_of("crm").is_paused
    bench.guard.refresh()
    assert bench.guard.blocker("crm") is Blocker.PAUSED


def test_machines_share_pauses_and_one_that_delivers_closes_the_breaker_of_all(fleet: Fleet3) -> None:
    one, other = guards = [Guard(Counters(fleet.add().coordinator), CONFIGS) for _ in range(2)]

    def share() -> None:
        for machine in fleet.machines * 2:
            machine.tick()
        for guard in guards:
            guard.refresh()

    one.set_paused("archive", True, reason="moves", by="ada")
    for _ in range(3):
        one.failed("crm")
    share()
    assert other.blocker("archive") is Blocker.PAUSED
    assert (one.breaker("crm"), other.breaker("crm"), other.is_failing("crm")) == ("open", "closed", True)
    other.succeeded("crm")
    share()
    assert (one.breaker("crm"), one.is_failing("crm"), other.is_failing("crm")) == ("closed", False, False)


def test_a_journal_that_fails_does_not_undo_what_was_sent(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.play("a fails")
    bench.guard._journal.close()
    bench.play("a fails")
    bench.guard.succeeded("crm")
    assert ["not counted" in caplog.messages[0], "not cleared" in caplog.messages[1]] == [True, True]


def test_opening_and_closing_are_logged_once_each(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    bench.play(f"{OPENS}, b fails, pass 1000, a waits 0, a recovers, a works")
    assert caplog.messages == [
        "destination crm: keeps failing, breaker open for 1000 s",
        "destination crm: works again, breaker closed",
    ]


# The rate, of three in an hour


def test_an_open_breaker_uses_up_no_rate_and_a_probe_keeps_to_it(bench: Bench) -> None:
    scenario = (
        f"a waits 0, {OPENS}, pass 0, a waits 1000, b waits 1000, a waits 1000, b waits 1000, pass 1000, a waits 0, "
        "b waits 1000, a fails, pass 1000, b waits 0, b fails, pass 1000, a waits 600, b waits 1000, "
        "pass 1000, b waits 0"
    )
    bench.play(scenario, "limited")


# Many at once


def ask_in_process(folder: Path, barrier: threading.Barrier) -> list[float]:
    guard = Guard(Counters(Machine(None, RealTime(), folder=folder, host="here").coordinator), CONFIGS)
    barrier.wait(60)
    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(lambda _: guard.wait_s("crm"), range(8)))


def test_of_all_threads_of_all_processes_exactly_one_probes(tmp_path: Path) -> None:
    machine = Machine(None, RealTime(), folder=tmp_path, host="here")
    with machine.journal.step() as step:
        step.query("INSERT INTO breakers VALUES ('crm', 3, ?)", (step.steady_ms - PAUSE_S * 1000,))
    machine.stop()
    waits_s = [each for waits_s in run_at_once(3, ask_in_process, tmp_path) for each in waits_s]
    assert (waits_s.count(0.0), len(waits_s)) == (1, 24)


def test_of_all_threads_that_fail_one_opens_it(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda guard: guard.failed("crm"), [bench.guard, bench.other] * 8))
    assert len(caplog.messages) == 1
    bench.play("is open, a waits 1000")
