"""The circuit breaker of a destination, across threads and processes, and its rate behind it."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from limits import (
    RateLimitItem,
    RateLimitItemPerDay,
    RateLimitItemPerHour,
    RateLimitItemPerMinute,
    RateLimitItemPerSecond,
)

from deduplication.journal.sqlite import Journal
from orchestrator.delivery.guard import PROBE_WAIT_S, READ_EVERY_S, Guard, Limits, parse_rate
from tests.orchestrator.delivery.test_counters import FakeClock, about, on_journal, run_in_processes

PAUSE_S, LEASE_S = 1000, 300
BROKEN = Limits(breaker_failures=3, breaker_pause_s=PAUSE_S, probe_lease_s=LEASE_S)
LIMITS = {
    "crm": BROKEN,
    "archive": BROKEN,
    "limited": replace(BROKEN, rate=parse_rate("3/hour")),
    "unbroken": Limits(breaker_failures=0),
}


@dataclass(frozen=True)
class Bench:
    """Two guards as two processes of a machine have them: ``guard`` is ``a`` in the scenarios, ``other`` is ``b``."""

    guard: Guard
    other: Guard
    clock: FakeClock

    def play(self, scenario: str, destination: str = "crm") -> None:
        guards = {"a": self.guard, "b": self.other}
        for line in scenario.split(", "):
            match line.split():
                case ["pass", seconds]:
                    self.clock.now_s += float(seconds)
                case ["is", state]:
                    assert {each.state(destination) for each in guards.values()} == {state}, line
                case [who, "fails"]:
                    guards[who].failed(destination)
                case [who, "works" | "recovers" as how]:
                    assert guards[who].succeeded(destination) == (how == "recovers"), line
                case [who, "waits", seconds]:
                    wait_s = guards[who].wait_s(destination)
                    assert wait_s == pytest.approx(float(seconds), abs=0.02), line
                case _:
                    raise ValueError(line)


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    clock = FakeClock()
    monkeypatch.setattr("orchestrator.delivery.guard.time", clock)
    with on_journal(tmp_path / "journal.db", clock) as one, on_journal(tmp_path / "journal.db", clock) as other:
        yield Bench(Guard(one, LIMITS), Guard(other, LIMITS), clock)


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("10/s", RateLimitItemPerSecond(10)),
        ("10/sec", RateLimitItemPerSecond(10)),
        ("600/min", RateLimitItemPerMinute(600)),
        ("5 Per Minutes", RateLimitItemPerMinute(5)),
        (" 1000 / hour ", RateLimitItemPerHour(1000)),
        ("1000/h", RateLimitItemPerHour(1000)),
        ("10000/day", RateLimitItemPerDay(10000)),
        ("20 per 15 minutes", RateLimitItemPerMinute(20, 15)),
        ("20/15min", RateLimitItemPerMinute(20, 15)),
    ],
)
def test_a_rate_is_a_number_in_some_time(text: str, rate: RateLimitItem) -> None:
    assert parse_rate(text) == rate


@pytest.mark.parametrize(
    "text",
    ["", "10", "10/", "/s", "0/s", "-1/s", "1.5/s", "10/0s", "10/fortnight", "5/m", "10/s;5/min", "10pers", "10/s x"]
    + ["9" * 400 + "/s", "10/" + "9" * 400 + "s", "\u0661/s", "10/month", "10/ss"],
)
def test_anything_else_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match='^must be a rate such as "10/s", "600/min" or "1000/hour"$'):
        parse_rate(text)


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
    "after the pause one probes and the others wait for it": (
        f"{HALF_OPENS}, b waits 0, a waits {PROBE_WAIT_S}, b waits {PROBE_WAIT_S}, is half-open"
    ),
    "a probe that succeeds closes it for all, and earlier failures do not count any more": (
        f"{HALF_OPENS}, b waits 0, b recovers, b works, is closed, a waits 0, b waits 0, a fails, b fails, is closed"
    ),
    "a probe that fails opens it for another whole pause, which has its own probe": (
        f"{HALF_OPENS}, b waits 0, b fails, is open, a waits 1000, pass 1000, a waits 0, b waits {PROBE_WAIT_S}, "
        f"a fails, is open, b waits 1000, pass 1000, b waits 0, a waits {PROBE_WAIT_S}"
    ),
    "a probe that never ends is followed by another, and its late failure counts as one": (
        f"{HALF_OPENS}, b waits 0, pass 299, a waits {PROBE_WAIT_S}, pass 1, a waits 0, a recovers, b fails, is closed"
    ),
    "requests that began before it opened neither lengthen the pause nor keep it open": (
        f"{OPENS}, pass 400, b fails, pass 400, b fails, a waits 200, a recovers, is closed, {OPENS}, a waits 1000"
    ),
}


@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=SCENARIOS)
def test_a_circuit_breaker(bench: Bench, scenario: str) -> None:
    bench.play(scenario)
    bench.play("is closed, a waits 0", "archive")


def test_without_a_breaker_failures_do_not_matter(bench: Bench) -> None:
    bench.play("a fails, a fails, a fails, a fails, a waits 0, a works, is closed", "unbroken")


def test_a_destination_that_works_costs_one_read_a_second(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    reads, reading = 0, Journal.reading

    def counted(journal: Journal) -> Any:
        nonlocal reads
        reads += 1
        return reading(journal)

    with monkeypatch.context() as patched:
        patched.setattr(Journal, "reading", counted)
        patched.delattr(Journal, "step")
        for number in range(20):
            bench.clock.now_s += READ_EVERY_S + 0.1 if number == 10 else 0
            bench.guard.wait_s("crm")
            bench.guard.succeeded("crm")
    assert reads == 2


def test_it_survives_a_restart(bench: Bench, tmp_path: Path) -> None:
    bench.play(OPENS)
    with on_journal(tmp_path / "journal.db", bench.clock) as counters:
        assert Guard(counters, LIMITS).wait_s("crm") == PAUSE_S


def test_a_journal_that_fails_does_not_undo_what_was_sent(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.play("a fails")
    bench.guard._journal.close()
    bench.play("a fails, a works")
    assert ["not counted" in caplog.messages[0], "not cleared" in caplog.messages[1]] == [True, True]


def test_opening_and_closing_are_logged_once_each(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    bench.play(f"{OPENS}, b fails, pass 1000, a waits 0, a recovers, a works")
    assert caplog.messages == [
        "destination crm: keeps failing, breaker open for 1000 s",
        "destination crm: works again, breaker closed",
    ]


# The rate, of three in an hour


def test_a_rate_is_never_exceeded_and_says_when_there_is_room(bench: Bench) -> None:
    bench.play("a waits 0, b waits 0, a waits 0, b waits 3600, pass 3600.1, b waits 0", "limited")


def test_an_open_breaker_uses_up_no_rate_and_a_probe_keeps_to_it(bench: Bench) -> None:
    ask = f", a waits {PROBE_WAIT_S}, b waits {PROBE_WAIT_S}" * 3
    scenario = (
        f"a waits 0, {OPENS}, a waits 1000, b waits 1000, a waits 1000, b waits 1000, pass 1000, a waits 0{ask}, "
        "a fails, pass 1000, b waits 0, b fails, pass 1000, a waits 600, pass 600.1, b waits 0"
    )
    bench.play(scenario, "limited")


# Many at once


def leave_half_open(path: Path) -> None:
    with on_journal(path) as counters, counters.journal.step() as step:
        step.query("INSERT INTO breakers VALUES ('crm', 3, ?, 0)", (step.steady_ms - PAUSE_S * 1000,))


def ask_in_process(path: Path, barrier: threading.Barrier, results: multiprocessing.Queue[list[float]]) -> None:
    with on_journal(path) as counters:
        guard = Guard(counters, LIMITS)
        barrier.wait(60)
        results.put([guard.wait_s("crm") for _ in range(5)])


def test_of_all_processes_exactly_one_probes(tmp_path: Path) -> None:
    leave_half_open(tmp_path / "journal.db")
    waits_s = run_in_processes(3, ask_in_process, tmp_path / "journal.db")
    assert sorted(waits_s) == [0.0] + [PROBE_WAIT_S] * 14


def test_of_all_threads_exactly_one_probes_and_many_failures_open_it_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    leave_half_open(tmp_path / "journal.db")
    barrier = threading.Barrier(16)

    def ask_and_fail(guard: Guard) -> float:
        barrier.wait(60)
        wait_s = guard.wait_s("crm")
        barrier.wait(60)
        guard.failed("crm")
        return wait_s

    path = tmp_path / "journal.db"
    with on_journal(path) as one, on_journal(path) as other, ThreadPoolExecutor(16) as pool:
        guards = [Guard(each, LIMITS) for each in (one, other)]
        assert list(pool.map(ask_and_fail, guards * 8)).count(0.0) == 1
        assert guards[0].wait_s("crm") == about(PAUSE_S)
    assert len(caplog.messages) == 1
