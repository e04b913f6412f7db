"""The breaker and the rate of a destination, over every kind of counters, over threads, processes and outages."""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from limits import (
    RateLimitItem,
    RateLimitItemPerDay,
    RateLimitItemPerHour,
    RateLimitItemPerMinute,
    RateLimitItemPerSecond,
)

from orchestrator.delivery.counters import AWAY_PAUSE_S, RedisCounters, SqliteCounters, process_counters
from orchestrator.delivery.guard import FAILURES_KEPT_S, KNOWN_WELL_S, PROBE_WAIT_S, Guard, Limits, parse_rate
from tests.deduplication import test_topologies as topologies
from tests.orchestrator.delivery.test_counters import (
    KINDS,
    FakeClock,
    open_counter_bench,
    open_shared,
    run_in_processes,
)
from tests.support.proxy import Fault, Proxy
from tests.support.redis_server import RedisServer

start, cluster = topologies.start, topologies.cluster

PAUSE_S, LEASE_S, HOUR_S = 1000, 300, 3600  # so long that a slow machine does not matter
OFF_S = 50
BROKEN = Limits(breaker_failures=3, breaker_pause_s=PAUSE_S, probe_lease_s=LEASE_S)
LIMITS = {
    "crm": BROKEN,
    "archive": BROKEN,
    "limited": replace(BROKEN, rate=parse_rate("3/hour")),
    "unbroken": Limits(breaker_failures=0),
}


def about(seconds: float) -> object:
    return pytest.approx(seconds, abs=OFF_S)


@dataclass(frozen=True)
class GuardBench:
    """Two guards as two processes have them, on the same counters."""

    guard: Guard
    other: Guard
    advance: Callable[[float], None]
    passed_s: Callable[[], float]
    slack_s: float

    def trip(self, destination: str = "crm") -> None:
        for _ in range(3):
            assert self.guard.wait_s(destination) == 0
            self.guard.failed(destination)
        assert self.guard.state(destination) == "open"

    def trip_and_pause(self, destination: str = "crm") -> None:
        self.trip(destination)
        self.advance(self.guard.wait_s(destination))
        self.advance(1)  # Redis tells what is left in whole seconds
        assert self.guard.state(destination) == "half-open"


@pytest.fixture(params=KINDS)
def bench(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[GuardBench]:
    """Over every kind of counters in turn."""
    server: RedisServer | None = request.getfixturevalue("redis_server") if request.param == "redis" else None
    with open_counter_bench(request.param, tmp_path, monkeypatch, server) as counters, ExitStack() as stack:
        own = [stack.enter_context(closing(process_counters(counters.clock))) for _ in range(2)]
        guards = [
            Guard(shared, fallback, LIMITS, counters.clock)
            for shared, fallback in zip((counters.counters, counters.another), own, strict=True)
        ]
        yield GuardBench(guards[0], guards[1], counters.advance, counters.passed_s, counters.slack_s)


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("10/s", RateLimitItemPerSecond(10)),
        ("10/sec", RateLimitItemPerSecond(10)),
        ("600/min", RateLimitItemPerMinute(600)),
        ("5 per minute", RateLimitItemPerMinute(5)),
        ("5 Per Minutes", RateLimitItemPerMinute(5)),
        (" 1000 / hour ", RateLimitItemPerHour(1000)),
        ("1000/h", RateLimitItemPerHour(1000)),
        ("10000/day", RateLimitItemPerDay(10000)),
        ("10/d", RateLimitItemPerDay(10)),
        ("20 per 15 minutes", RateLimitItemPerMinute(20, 15)),
        ("20/15min", RateLimitItemPerMinute(20, 15)),
    ],
)
def test_a_rate_is_so_many_in_some_time(text: str, rate: RateLimitItem) -> None:
    assert parse_rate(text) == rate


@pytest.mark.parametrize(
    "text",
    ["", "10", "10/", "/s", "0/s", "-1/s", "1.5/s", "10/0s", "10/fortnight", "5/m", "10/s;5/min", "10pers", "10/s x"]
    + ["9" * 400 + "/s", "10/" + "9" * 400 + "s", "\u0661/s", "10/month", "10/ss"],
)
def test_what_is_no_rate_is_refused_with_what_it_takes(text: str) -> None:
    with pytest.raises(ValueError, match='^takes a rate such as "10/s", "600/min" or "1000/hour"$'):
        parse_rate(text)


# The breaker


def test_a_destination_that_never_failed_is_free(bench: GuardBench) -> None:
    for _ in range(10):
        assert bench.guard.wait_s("crm") == 0
        bench.guard.succeeded("crm")
    assert bench.guard.state("crm") == "closed"


def test_after_so_many_failures_in_a_row_nobody_goes_ahead_for_the_pause(bench: GuardBench) -> None:
    for guard in (bench.guard, bench.other):
        assert guard.wait_s("crm") == 0
        guard.failed("crm")
        assert bench.guard.state("crm") == "closed"
    bench.other.failed("crm")
    assert bench.guard.state("crm") == bench.other.state("crm") == "open"
    for guard in (bench.guard, bench.other):
        assert guard.wait_s("crm") == about(PAUSE_S)
    bench.advance(PAUSE_S - 200)
    assert bench.guard.wait_s("crm") == about(200)
    bench.advance(200 - OFF_S)
    assert bench.guard.wait_s("crm") > 0
    assert bench.guard.state("crm") == "open"


def test_destinations_fail_on_their_own(bench: GuardBench) -> None:
    bench.trip("crm")
    assert bench.guard.state("archive") == "closed"
    assert bench.guard.wait_s("archive") == 0


def test_a_success_in_between_starts_the_count_anew(bench: GuardBench) -> None:
    for _ in range(4):
        bench.guard.failed("crm")
        bench.guard.failed("crm")
        bench.guard.succeeded("crm")
    assert bench.guard.state("crm") == "closed"


def test_a_success_also_undoes_the_failures_that_others_had_counted_before_it_went_ahead(bench: GuardBench) -> None:
    bench.other.failed("crm")
    bench.other.failed("crm")
    assert bench.guard.wait_s("crm") == 0
    bench.guard.succeeded("crm")
    bench.other.failed("crm")
    assert bench.guard.state("crm") == "closed"


def test_failures_are_not_in_a_row_over_more_than_a_day(bench: GuardBench) -> None:
    bench.guard.failed("crm")
    bench.guard.failed("crm")
    bench.advance(FAILURES_KEPT_S + PAUSE_S + 1)
    bench.guard.failed("crm")
    assert bench.guard.state("crm") == "closed"


def test_after_the_pause_one_goes_ahead_and_the_others_wait_for_it(bench: GuardBench) -> None:
    bench.trip_and_pause()
    assert bench.other.wait_s("crm") == 0
    assert bench.guard.wait_s("crm") == PROBE_WAIT_S
    assert bench.other.wait_s("crm") == PROBE_WAIT_S
    assert bench.guard.state("crm") == "half-open"


def test_a_probe_that_succeeds_lets_everybody_through(bench: GuardBench) -> None:
    bench.trip_and_pause()
    assert bench.other.wait_s("crm") == 0
    bench.other.succeeded("crm")
    assert bench.guard.state("crm") == "closed"
    for guard in (bench.guard, bench.other):
        assert guard.wait_s("crm") == 0
    bench.guard.failed("crm")
    bench.other.failed("crm")
    assert bench.guard.state("crm") == "closed", "the failures of before are forgotten"


def test_a_probe_that_fails_opens_the_breaker_again_for_the_whole_pause(bench: GuardBench) -> None:
    bench.trip_and_pause()
    for _ in range(3):
        assert bench.other.wait_s("crm") == 0
        bench.other.failed("crm")
        assert bench.guard.state("crm") == "open"
        assert bench.guard.wait_s("crm") == about(PAUSE_S)
        bench.advance(PAUSE_S + 1)
        assert bench.guard.state("crm") == "half-open"
    assert bench.guard.wait_s("crm") == 0, "and each pause has its own probe"
    assert bench.other.wait_s("crm") == PROBE_WAIT_S


def test_a_probe_that_is_never_heard_of_again_is_followed_by_another(bench: GuardBench) -> None:
    bench.trip_and_pause()
    assert bench.other.wait_s("crm") == 0
    bench.advance(LEASE_S - OFF_S)
    assert bench.guard.wait_s("crm") == PROBE_WAIT_S
    bench.advance(OFF_S + 1)
    assert bench.guard.wait_s("crm") == 0
    assert bench.guard.wait_s("crm") == PROBE_WAIT_S
    bench.guard.succeeded("crm")
    assert bench.guard.state("crm") == "closed"


def test_a_probe_that_fails_after_its_lease_does_not_open_what_another_closed(bench: GuardBench) -> None:
    bench.trip_and_pause()
    assert bench.other.wait_s("crm") == 0
    bench.advance(LEASE_S + 1)
    assert bench.guard.wait_s("crm") == 0
    bench.guard.succeeded("crm")
    bench.other.failed("crm")
    assert bench.guard.state("crm") == "closed"


def test_a_short_pause_is_not_held_up_by_the_probe_of_the_last_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = {"crm": Limits(breaker_failures=1, breaker_pause_s=1)}
    with open_counter_bench("sqlite", tmp_path, monkeypatch) as counters, closing(process_counters()) as own:
        guard = Guard(counters.counters, own, limits, counters.clock)
        for _ in range(3):
            guard.failed("crm")
            counters.advance(guard.wait_s("crm"))
            assert guard.wait_s("crm") == 0
            guard.succeeded("crm")


def test_failures_that_were_under_way_when_it_opened_do_not_lengthen_the_pause(bench: GuardBench) -> None:
    bench.trip()
    for _ in range(5):
        bench.advance(160)
        bench.guard.failed("crm")
        bench.other.failed("crm")
    assert bench.guard.wait_s("crm") == about(200)
    bench.advance(201)
    assert bench.guard.state("crm") == "half-open"


def test_a_success_that_was_under_way_closes_it_and_the_next_pause_is_a_whole_one(bench: GuardBench) -> None:
    bench.trip()
    bench.advance(PAUSE_S / 2)
    bench.guard.succeeded("crm")
    assert bench.other.state("crm") == "closed"
    bench.trip()
    assert bench.other.wait_s("crm") == about(PAUSE_S)


def test_failures_that_were_under_way_do_not_open_it_again_once_it_is_half_open(bench: GuardBench) -> None:
    bench.trip_and_pause()
    bench.guard.failed("crm")
    bench.other.failed("crm")
    assert bench.guard.state("crm") == "half-open"
    assert bench.guard.wait_s("crm") == 0, "the probe is still to come"
    bench.other.failed("crm")
    assert bench.guard.state("crm") == "half-open", "and only its own failure counts"


def test_without_a_breaker_failures_do_not_matter(bench: GuardBench) -> None:
    for _ in range(20):
        bench.guard.failed("unbroken")
        assert bench.guard.wait_s("unbroken") == 0
    bench.guard.succeeded("unbroken")
    assert bench.guard.state("unbroken") == "closed"


def test_a_pause_of_less_than_a_second_is_one(redis_server: RedisServer) -> None:
    limits = {"crm": Limits(breaker_failures=1, breaker_pause_s=0.2, probe_lease_s=0.2)}
    with closing(RedisCounters(redis_server.url, 10, "")) as shared, closing(process_counters()) as own:
        guard = Guard(shared, own, limits)
        guard.failed("crm")
        assert 0 < guard.wait_s("crm") <= 1.1
        shared.clear("breaker/crm/pause")
        assert guard.wait_s("crm") == 0
        assert guard.state("crm") == "half-open", "nothing of it was too small for Redis"


def test_opening_and_closing_are_said_in_the_log(bench: GuardBench, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    bench.trip()
    bench.other.failed("crm")
    bench.advance(PAUSE_S + 1)
    assert bench.guard.wait_s("crm") == 0
    bench.guard.succeeded("crm")
    bench.guard.succeeded("crm")
    assert caplog.messages == [
        "destination crm: keeps failing, breaker open for 1000 s",
        "destination crm: works again, breaker closed",
    ]


# The rate


def test_a_rate_lets_so_many_through_and_says_when_there_is_room(bench: GuardBench) -> None:
    assert bench.guard.wait_s("limited") == 0
    bench.advance(600)
    assert bench.other.wait_s("limited") == 0
    assert bench.guard.wait_s("limited") == 0
    for guard in (bench.guard, bench.other):
        assert guard.wait_s("limited") == about(HOUR_S - 600)
    bench.advance(bench.guard.wait_s("limited"))
    assert bench.guard.wait_s("limited") == 0
    assert bench.other.wait_s("limited") == about(600)


def test_waiting_as_long_as_told_is_long_enough_and_never_too_short(bench: GuardBench) -> None:
    def go_ahead() -> float:
        wait_s = bench.guard.wait_s("limited")
        if wait_s:
            bench.advance(wait_s)
            assert bench.other.wait_s("limited") == 0
        return bench.passed_s()

    went_s = [go_ahead() for _ in range(12)]
    between_s = [later - earlier for earlier, later in zip(went_s, went_s[3:], strict=False)]
    assert all(HOUR_S - bench.slack_s < each < HOUR_S + OFF_S for each in between_s)


def test_a_closed_door_uses_up_no_rate(bench: GuardBench) -> None:
    bench.guard.wait_s("limited")
    for _ in range(3):
        bench.guard.failed("limited")
    for _ in range(10):
        assert bench.guard.wait_s("limited") > 0
    bench.advance(PAUSE_S + 1)
    assert bench.guard.wait_s("limited") == 0, "the probe"
    for _ in range(10):
        assert bench.other.wait_s("limited") == PROBE_WAIT_S
    bench.guard.succeeded("limited")
    assert bench.other.wait_s("limited") == 0, "the third of this hour"
    assert bench.other.wait_s("limited") > 0


def test_a_probe_that_the_rate_holds_back_is_given_back(bench: GuardBench) -> None:
    for _ in range(3):
        assert bench.guard.wait_s("limited") == 0
        bench.guard.failed("limited")
    bench.advance(PAUSE_S + 1)
    wait_s = bench.guard.wait_s("limited")
    assert wait_s == about(HOUR_S - PAUSE_S)
    assert bench.other.wait_s("limited") == about(HOUR_S - PAUSE_S), "it is the rate that is in the way"
    bench.advance(wait_s)
    assert bench.other.wait_s("limited") == 0
    bench.other.failed("limited")
    assert bench.guard.state("limited") == "open"


def test_asking_for_the_state_changes_nothing(bench: GuardBench) -> None:
    bench.trip_and_pause()
    for _ in range(5):
        assert bench.other.state("crm") == "half-open"
    assert bench.guard.wait_s("crm") == 0


def test_a_clock_that_is_set_back_lets_nobody_wait_longer_than_a_pause_or_a_window(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_counter_bench("sqlite", tmp_path, monkeypatch) as counters, closing(process_counters()) as own:
        guard = Guard(counters.counters, own, LIMITS, counters.clock)
        for _ in range(3):
            guard.wait_s("limited")
            guard.failed("crm")
        counters.advance(-24 * HOUR_S)
        assert guard.wait_s("crm") == about(PAUSE_S)
        assert guard.wait_s("limited") == about(HOUR_S)


# Cost


def test_where_nothing_fails_redis_is_asked_once_a_second_and_without_a_breaker_never(
    redis_server: RedisServer,
) -> None:
    with closing(RedisCounters(redis_server.url, 10, "")) as shared, closing(process_counters()) as own:
        clock = FakeClock()
        guard = Guard(shared, own, LIMITS, clock)
        guard.failed("crm")
        guard.succeeded("crm")
        before = redis_server.client.info("stats")["total_commands_processed"]
        for number in range(10):
            clock.now_s += KNOWN_WELL_S if number == 5 else 0
            guard.wait_s("crm")
            guard.succeeded("crm")
            guard.failed("unbroken")
            guard.succeeded("unbroken")
        after = redis_server.client.info("stats")["total_commands_processed"]
    assert after - before == 2 + 1, "one for each second, and the question itself"


# Many at once


def half_open(address: str) -> None:
    """As another process left it: its breaker opened, its pause is over."""
    with closing(open_shared(address)) as shared, closing(process_counters()) as own:
        guard = Guard(shared, own, LIMITS)
        for _ in range(3):
            guard.failed("crm")
        shared.clear("breaker/crm/pause")
        assert guard.state("crm") == "half-open"


@pytest.fixture(params=["sqlite", "redis"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite={tmp_path / 'counters.db'}"
    server: RedisServer = request.getfixturevalue("redis_server")
    return f"redis={server.url}"


def ask_in_process(
    address: str, destination: str, barrier: threading.Barrier, results: multiprocessing.Queue[list[float]]
) -> None:
    with closing(open_shared(address)) as shared, closing(process_counters()) as own:
        guard = Guard(shared, own, LIMITS)
        barrier.wait(60)
        results.put([guard.wait_s(destination) for _ in range(5)])


def test_of_all_processes_exactly_one_probes(address: str) -> None:
    half_open(address)
    answers = run_in_processes(4, ask_in_process, address, "crm")
    waits_s = [wait_s for answer in answers for wait_s in answer]
    assert sorted(waits_s) == [0.0] + [PROBE_WAIT_S] * 19


def test_all_processes_together_keep_to_the_rate(address: str) -> None:
    answers = run_in_processes(4, ask_in_process, address, "limited")
    assert sum(answer.count(0.0) for answer in answers) == 3


def test_of_all_threads_exactly_one_probes_and_all_keep_to_the_rate(address: str) -> None:
    half_open(address)
    barrier = threading.Barrier(16)

    def ask(guard: Guard) -> tuple[float, float]:
        barrier.wait(60)
        return guard.wait_s("crm"), guard.wait_s("limited")

    with ExitStack() as stack, ThreadPoolExecutor(16) as pool:
        pairs = [(stack.enter_context(closing(open_shared(address))), process_counters()) for _ in range(2)]
        guards = [Guard(shared, own, LIMITS) for shared, own in pairs]
        answers = list(pool.map(ask, guards * 8))
        assert [own.reset() for _, own in pairs] == [0, 0], "the shared counters decided alone"
    assert [wait_s for wait_s, _ in answers].count(0.0) == 1
    assert [wait_s for _, wait_s in answers].count(0.0) == 3


def test_many_failures_at_once_open_it_for_one_pause(address: str) -> None:
    barrier = threading.Barrier(16)

    def fail(guard: Guard) -> None:
        barrier.wait(60)
        guard.failed("crm")

    with ExitStack() as stack, ThreadPoolExecutor(16) as pool:
        shared = [stack.enter_context(closing(open_shared(address))) for _ in range(2)]
        guards = [Guard(each, process_counters(), LIMITS) for each in shared]
        list(pool.map(fail, guards * 8))
        assert guards[0].state("crm") == "open"
        assert guards[0].wait_s("crm") == about(PAUSE_S)
        assert 3 <= shared[0].get("breaker/crm/failures") <= 16


def test_a_thread_that_comes_late_finds_no_second_probe_and_no_lost_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It saw the pause over, then stood still while the probe failed and the next pause began."""

    class StandsStill(SqliteCounters):
        meanwhile: Callable[[], None] | None = None

        def incr(self, key: str, expiry: float, amount: int = 1) -> int:
            act = self.meanwhile
            if act and "/probe/" in key:
                self.meanwhile = None
                act()
            return super().incr(key, expiry, amount)

    with open_counter_bench("sqlite", tmp_path, monkeypatch) as counters:
        late = StandsStill(tmp_path / "counters.db", counters.clock)
        with closing(late), closing(process_counters()) as own:
            guard, other = (Guard(each, own, LIMITS, counters.clock) for each in (counters.counters, late))
            for _ in range(3):
                guard.failed("crm")
            counters.advance(PAUSE_S + 1)

            def probe_and_fail() -> None:
                assert guard.wait_s("crm") == 0
                guard.failed("crm")

            late.meanwhile = probe_and_fail
            assert other.wait_s("crm") > 0
            assert guard.wait_s("crm") == about(PAUSE_S)


def test_nobody_finds_it_half_open_while_a_probe_reports_its_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[float] = []

    class Watched(SqliteCounters):
        watcher: Guard | None = None

        def incr(self, key: str, expiry: float, amount: int = 1) -> int:
            value = super().incr(key, expiry, amount)
            if self.watcher:
                seen.append(self.watcher.wait_s("crm"))
            return value

    with open_counter_bench("sqlite", tmp_path, monkeypatch) as counters:
        watched = Watched(tmp_path / "counters.db", counters.clock)
        with closing(watched), closing(process_counters()) as own:
            watcher, guard = (Guard(each, own, LIMITS, counters.clock) for each in (counters.counters, watched))
            guard.failed("crm")
            guard.failed("crm")
            watched.watcher = watcher
            guard.failed("crm")
            watched.watcher = None
            counters.advance(PAUSE_S + 1)
            assert guard.wait_s("crm") == 0
            watched.watcher = watcher
            guard.failed("crm")
    assert seen[0] == 0, "two failures, not yet open"
    assert all(wait_s > 0 for wait_s in seen[1:])


def test_failures_counted_at_the_same_time_open_it_whichever_comes_last(tmp_path: Path) -> None:
    """Neither saw the other's, and the last one found one more than it knew of."""

    class StandsStill(SqliteCounters):
        meanwhile: Callable[[], None] | None = None

        def incr(self, key: str, expiry: float, amount: int = 1) -> int:
            act, self.meanwhile = self.meanwhile, None
            if act:
                act()
            return super().incr(key, expiry, amount)

    path = tmp_path / "counters.db"
    with (
        closing(SqliteCounters(path)) as shared,
        closing(StandsStill(path)) as late,
        closing(process_counters()) as own,
    ):
        guard, other = (Guard(each, own, LIMITS) for each in (shared, late))
        guard.failed("crm")
        late.meanwhile = lambda: guard.failed("crm")
        other.failed("crm")
        assert guard.state("crm") == "open"


# Outages of Redis


@dataclass(frozen=True)
class Outage:
    """A guard on a Redis that can be taken away, and one on the same Redis that nothing happens to."""

    guard: Guard
    witness: Guard
    own: SqliteCounters
    clock: FakeClock
    server: RedisServer

    def retry_time_comes(self) -> None:
        self.clock.now_s += AWAY_PAUSE_S


Open = Callable[..., Outage]


@pytest.fixture
def outage() -> Iterator[Open]:
    with ExitStack() as stack:

        def open_outage(
            server: RedisServer, url: str, limits: Mapping[str, Limits] = LIMITS, timeout_s: float = 10
        ) -> Outage:
            clock = FakeClock()
            clock.now_s = time.time()  # about Redis' own time
            shared = [stack.enter_context(closing(RedisCounters(each, timeout_s, ""))) for each in (url, server.url)]
            own = [stack.enter_context(closing(process_counters(clock))) for _ in range(2)]
            guard, witness = (Guard(*pair, limits, clock) for pair in zip(shared, own, strict=True))
            return Outage(guard, witness, own[0], clock, server)

        yield open_outage


def test_when_redis_dies_each_process_guards_alone_until_it_is_back(
    start: topologies.Start, outage: Open, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    server = start()
    there = outage(server, server.url)
    assert [there.guard.wait_s("limited") for _ in range(4)][:3] == [0, 0, 0]
    server.kill()
    assert [there.guard.wait_s("limited") for _ in range(3)] == [0, 0, 0], "its own rate, from the start"
    assert there.guard.wait_s("limited") > 0
    for _ in range(3):
        there.guard.failed("crm")
    assert there.guard.state("crm") == "open"
    assert there.guard.wait_s("crm") == about(PAUSE_S)
    server.start()
    there.retry_time_comes()
    assert there.guard.wait_s("crm") == 0, "the shared ones know of no failure"
    there.guard.failed("crm")
    assert there.witness.wait_s("crm") == 0
    assert server.client.get("limits:breaker/crm/failures") == "1"
    said = [record.levelname for record in caplog.records if record.name.endswith("counters")]
    assert said == ["ERROR", "INFO"]


def test_what_a_process_counted_alone_in_one_outage_does_not_count_in_the_next(
    redis_server: RedisServer, outage: Open
) -> None:
    with Proxy(redis_server.port) as proxy:
        there = outage(redis_server, proxy.url)
        proxy.set(Fault.REFUSE)
        there.guard.failed("crm")
        there.guard.failed("crm")
        there.guard.failed("archive")
        there.guard.failed("archive")
        there.guard.failed("archive")
        proxy.set(Fault.NONE)
        there.retry_time_comes()
        assert there.guard.state("archive") == "closed"
        proxy.set(Fault.REFUSE)
        there.guard.failed("crm")
        assert there.guard.state("crm") == "closed"
        assert there.guard.state("archive") == "closed"
        assert there.guard.wait_s("archive") == 0


def test_a_rate_used_up_in_an_outage_is_still_used_up_in_the_next(redis_server: RedisServer, outage: Open) -> None:
    with Proxy(redis_server.port) as proxy:
        there = outage(redis_server, proxy.url)
        proxy.set(Fault.REFUSE)
        assert [there.guard.wait_s("limited") for _ in range(3)] == [0, 0, 0]
        proxy.set(Fault.NONE)
        there.retry_time_comes()
        assert there.guard.wait_s("limited") == 0
        proxy.set(Fault.REFUSE)
        assert there.guard.wait_s("limited") > 0


def test_a_hung_redis_is_asked_once_and_then_left_alone_for_a_second(redis_server: RedisServer, outage: Open) -> None:
    with Proxy(redis_server.port) as proxy:
        there = outage(
            redis_server, proxy.url, {"crm": Limits(parse_rate("100/hour"), breaker_failures=0)}, timeout_s=1
        )
        assert there.guard.wait_s("crm") == 0
        proxy.set(Fault.HANG)
        assert there.guard.wait_s("crm") == 0
        proxy.set(Fault.REFUSE)  # what was hanging is gone, and does not arrive late
        proxy.set(Fault.NONE)
        key = "limits:LIMITER/crm/100/1/hour"
        before = redis_server.client.llen(key)
        for _ in range(10):
            assert there.guard.wait_s("crm") == 0
        assert redis_server.client.llen(key) == before
        there.retry_time_comes()
        assert there.guard.wait_s("crm") == 0
        assert redis_server.client.llen(key) == before + 1


def test_a_redis_out_of_memory_is_not_back_though_it_can_be_read(
    start: topologies.Start, outage: Open, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    server = start()
    there = outage(server, server.url)
    there.guard.wait_s("crm")
    server.client.config_set("maxmemory", "1")
    for _ in range(3):
        assert there.guard.wait_s("crm") == 0
        there.guard.failed("crm")
        there.retry_time_comes()
    assert there.guard.state("crm") == "open"
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"], "away, and its breaker open"
    server.client.config_set("maxmemory", "0")
    there.retry_time_comes()
    assert there.guard.state("crm") == "closed"


def test_a_success_that_redis_did_not_hear_of_is_made_good_by_the_next(redis_server: RedisServer, outage: Open) -> None:
    with Proxy(redis_server.port) as proxy:
        there = outage(redis_server, proxy.url)
        there.guard.failed("crm")
        there.guard.failed("crm")
        proxy.set(Fault.REFUSE)
        there.guard.succeeded("crm")
        proxy.set(Fault.NONE)
        there.retry_time_comes()
        assert there.guard.wait_s("crm") == 0
        there.guard.succeeded("crm")
        there.witness.failed("crm")
        assert there.witness.state("crm") == "closed"


def test_a_count_whose_reply_was_lost_does_not_stop_the_delivery(redis_server: RedisServer, outage: Open) -> None:
    with Proxy(redis_server.port) as proxy:
        there = outage(redis_server, proxy.url)
        assert there.guard.wait_s("limited") == 0
        proxy.set(Fault.CUT_AFTER_SEND, once=True)
        assert there.guard.wait_s("limited") == 0
        there.guard.failed("limited")


# Sentinel and Cluster


def guard_a_little(url: str, prefix: str) -> None:
    """One process trips the breaker and uses up the rate; another, on the same address, sees both."""
    with ExitStack() as stack:
        shared = [stack.enter_context(closing(RedisCounters(url, 5, prefix))) for _ in range(2)]
        own = [stack.enter_context(closing(process_counters())) for _ in range(2)]
        guard, other = (Guard(*pair, LIMITS) for pair in zip(shared, own, strict=True))
        for _ in range(3):
            assert guard.wait_s("limited") == 0
            guard.failed("crm")
        assert other.wait_s("limited") == about(HOUR_S)
        assert other.wait_s("crm") == about(PAUSE_S)
        shared[0].clear("breaker/crm/pause")
        assert other.wait_s("crm") == 0
        assert guard.wait_s("crm") == PROBE_WAIT_S
        other.succeeded("crm")
        assert guard.state("crm") == "closed"
        assert [each.reset() for each in own] == [0, 0], "Redis decided"
        assert (shared[0].reset() or 0) > 0
        assert other.wait_s("limited") == 0


@pytest.mark.real_redis
def test_the_guard_works_on_a_cluster(cluster: list[RedisServer]) -> None:
    hosts = ",".join(f"127.0.0.1:{node.port}" for node in cluster)
    guard_a_little(f"redis+cluster://{hosts}", "{mailonce}:")


@pytest.mark.real_redis
def test_a_cluster_that_dies_is_an_outage_like_any_other(cluster: list[RedisServer]) -> None:
    hosts = ",".join(f"127.0.0.1:{node.port}" for node in cluster)
    with closing(RedisCounters(f"redis+cluster://{hosts}", 5, "{mailonce}:")) as shared:
        guard = Guard(shared, process_counters(), LIMITS)
        assert guard.wait_s("limited") == 0
        for node in cluster:
            node.kill()
        assert [guard.wait_s("limited") for _ in range(3)] == [0, 0, 0]
        assert guard.wait_s("limited") > 0


@pytest.mark.real_redis
def test_the_guard_works_through_sentinel(start: topologies.Start, tmp_path: Path) -> None:
    master = start()
    conf = tmp_path / "sentinel.conf"
    conf.write_text(f"sentinel monitor mail 127.0.0.1 {master.port} 1\n")
    sentinel = RedisServer()
    sentinel.options = [str(conf), "--port", str(sentinel.port), "--bind", "127.0.0.1", "--sentinel"]
    sentinel.start()
    try:
        guard_a_little(f"redis+sentinel://127.0.0.1:{sentinel.port}/mail/2", "m:")
    finally:
        sentinel.stop()
