"""A rate means the same in Redis and in the journal; callers that count at once count right."""

from __future__ import annotations

import math
import multiprocessing
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from deduplication.clock import Clock
from deduplication.journal.coordinator import Coordinator
from deduplication.journal.registry import Registry, RegistryOptions
from deduplication.journal.sqlite import Journal
from deduplication.redis_client import connect
from orchestrator.delivery.counters import Counters
from orchestrator.delivery.guard import parse_rate
from tests.deduplication import test_topologies as topologies
from tests.support.proxy import Fault, Proxy
from tests.support.redis_server import RedisServer

start, cluster = topologies.start, topologies.cluster

HOUR_S, SLACK_S = 3600, 50  # so long that a slow machine does not matter
RATE = parse_rate("3/hour")
RATE_25 = parse_rate("25/hour")


class FakeClock:
    def __init__(self) -> None:
        self.now_s = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now_s

    time = monotonic = __call__  # stands in for the module ``time`` too

    def now_ms(self) -> int:
        return math.floor(self.now_s * 1000)


@contextmanager
def on_journal(path: Path | str = ":memory:", clock: FakeClock | None = None) -> Iterator[Counters]:
    coordinator = Coordinator(Journal(path, Clock(clock.now_ms, clock.now_ms) if clock else None))
    with closing(coordinator):
        yield Counters(coordinator)


@contextmanager
def on_redis(url: str, path: Path | str = ":memory:", prefix: str = "m:", timeout_s: float = 10) -> Iterator[Counters]:
    journal = Journal(path)
    client = connect(url, timeout_s, decode_responses=False)
    coordinator = Coordinator(journal, Registry(client, "a", journal.clock, RegistryOptions(prefix=prefix)))
    coordinator.redis.note_answer()
    with closing(coordinator):
        yield Counters(coordinator)


def opened(place: str) -> AbstractContextManager[Counters]:
    """As one process has them; ``place`` is a path, or the URL of a Redis."""
    return on_redis(place) if place.startswith("redis:") else on_journal(place)


@dataclass(frozen=True)
class Bench:
    """``another``: the same counters, as another process has them."""

    counters: Counters
    another: Counters
    advance: Callable[[float], None]
    passed_s: Callable[[], float]


def age(server: RedisServer, seconds: float) -> None:
    """Lets time pass in a Redis by moving the end of every window, and its entries, back by that much."""
    for key in list(server.client.scan_iter("*limits:*")):
        for index, at_s in enumerate(server.client.lrange(key, 0, -1)):
            server.client.lset(key, index, repr(float(at_s) - seconds))
        server.client.pexpire(key, int(server.client.pttl(key) - seconds * 1000))


@pytest.fixture(params=["journal", "redis"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    with ExitStack() as stack:
        if request.param == "redis":
            server: RedisServer = request.getfixturevalue("redis_server")
            pair = [stack.enter_context(on_redis(server.url)) for _ in range(2)]
            started_s, aged_s = time.monotonic(), [0.0]

            def advance(seconds: float) -> None:
                age(server, seconds)
                aged_s.append(seconds)

            yield Bench(pair[0], pair[1], advance, lambda: time.monotonic() - started_s + sum(aged_s))
            return
        clock = FakeClock()
        pair = [stack.enter_context(on_journal(tmp_path / "journal.db", clock)) for _ in range(2)]

        def tick(seconds: float) -> None:
            clock.now_s += seconds

        yield Bench(pair[0], pair[1], tick, clock)


def about(seconds: float) -> object:
    return pytest.approx(seconds, abs=SLACK_S)


def test_a_rate_allows_so_many_and_says_when_there_is_room(bench: Bench) -> None:
    assert {bench.counters.wait_s(RATE, "crm") for _ in range(9)} == {0}, "asking counts nothing"
    assert bench.counters.hit(RATE, "crm") == 0
    bench.advance(600)
    assert [bench.another.hit(RATE, "crm"), bench.counters.hit(RATE, "crm")] == [0, 0]
    for counters in (bench.counters, bench.another):
        assert counters.hit(RATE, "crm") == counters.wait_s(RATE, "crm") == about(HOUR_S - 600)
    assert bench.counters.hit(RATE, "archive") == 0, "another name has its own window"
    bench.advance(bench.counters.hit(RATE, "crm"))
    assert bench.counters.hit(RATE, "crm") == 0
    assert bench.another.hit(RATE, "crm") == about(600)


def test_no_window_at_any_time_holds_more_than_its_limit_and_waiting_as_told_is_enough(bench: Bench) -> None:
    pauses = random.Random(7)  # noqa: S311 - the same ones every time
    taken_s: list[float] = []
    for _ in range(60):
        bench.advance(pauses.choice([0, 1, 500, 2500]))
        if wait_s := bench.counters.hit(RATE, "crm"):
            bench.advance(wait_s)
            assert bench.another.hit(RATE, "crm") == 0
        taken_s.append(bench.passed_s())
    assert all(later - earlier > HOUR_S - SLACK_S for earlier, later in zip(taken_s, taken_s[3:], strict=False))


# Many at once


@pytest.fixture(params=["journal", "redis"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "journal":
        return str(tmp_path / "journal.db")
    server: RedisServer = request.getfixturevalue("redis_server")
    return server.url


def run_in_processes(count: int, target: Callable[..., None], *given: object) -> list[float]:
    """What the processes put into the queue they are handed, after a barrier that lets them all begin at once."""
    spawn = multiprocessing.get_context("spawn")
    barrier, results = spawn.Barrier(count), spawn.Queue()
    processes = [spawn.Process(target=target, args=(*given, barrier, results)) for _ in range(count)]
    for process in processes:
        process.start()
    answers = [each for _ in processes for each in results.get(timeout=60)]
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * count
    results.close()
    return answers


def hit_in_process(place: str, barrier: threading.Barrier, results: multiprocessing.Queue[list[float]]) -> None:
    barrier.wait(60)  # before opening, so that they also create the file at once
    with opened(place) as counters:
        results.put([counters.hit(RATE_25, "crm") for _ in range(20)])


def test_processes_that_count_at_once_fill_a_window_exactly(place: str) -> None:
    assert run_in_processes(3, hit_in_process, place).count(0.0) == 25


def test_threads_that_count_at_once_fill_a_window_exactly(place: str) -> None:
    barrier = threading.Barrier(16)

    def hit(counters: Counters) -> list[float]:
        barrier.wait(60)
        return [counters.hit(RATE_25, "crm") for _ in range(5)]

    with opened(place) as one, opened(place) as other, ThreadPoolExecutor(16) as pool:
        assert [wait_s for waits_s in pool.map(hit, [one, other] * 8) for wait_s in waits_s].count(0.0) == 25


def test_counts_survive_a_restart_and_expired_ones_do_not_stay(tmp_path: Path) -> None:
    clock, path = FakeClock(), tmp_path / "journal.db"
    with on_journal(path, clock) as before:
        before.hit(parse_rate("1/min"), "old")
        before.hit(parse_rate("1/hour"), "young")
    clock.now_s += 61
    with on_journal(path, clock) as after:
        assert after.hit(parse_rate("1/hour"), "young") > 0
        with after.journal.reading() as step:
            assert step.query("SELECT count(*) FROM windows") == [(1,)]


# Redis


@pytest.mark.parametrize("off_s", [-HOUR_S, HOUR_S])
def test_machines_whose_clocks_differ_keep_to_one_rate(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch, off_s: float
) -> None:
    rate = parse_rate("1/min")
    with on_redis(redis_server.url) as counters:
        assert counters.hit(rate, "crm") == 0
        elsewhere = FakeClock()
        elsewhere.now_s = time.time() + off_s
        monkeypatch.setattr("limits.storage.redis.time", elsewhere)
        assert counters.hit(rate, "crm") > 0
        (key,) = redis_server.client.scan_iter("*limits*")
        assert key == "m:limits:LIMITER/crm/1/1/minute" and 0 < redis_server.client.ttl(key) <= 60
        age(redis_server, 61)
        assert counters.hit(rate, "crm") == 0


def _allow(server: RedisServer, category: str) -> None:
    server.client.execute_command("ACL", "SETUSER", "default", category)  # type: ignore[no-untyped-call]


FAULTS: dict[str, Callable[[Proxy, RedisServer], object]] = {
    "refuses": lambda proxy, _: proxy.set(Fault.REFUSE),
    "hangs": lambda proxy, _: proxy.set(Fault.HANG),
    "is out of memory": lambda _, server: server.client.config_set("maxmemory", "1"),
    "forbids scripts": lambda _, server: _allow(server, "-@scripting"),
}


@pytest.mark.real_redis
@pytest.mark.parametrize("strike", FAULTS.values(), ids=FAULTS)
def test_while_redis_fails_the_processes_of_the_machine_count_together(
    start: topologies.Start,
    tmp_path: Path,
    strike: Callable[[Proxy, RedisServer], object],
    eventually: Callable[[Callable[[], bool]], None],
) -> None:
    server = start()
    with ExitStack() as stack:
        proxy = stack.enter_context(Proxy(server.port))
        pair = [stack.enter_context(on_redis(proxy.url, tmp_path / "journal.db", timeout_s=0.5)) for _ in range(2)]
        one, other = pair
        assert one.hit(RATE, "crm") == 0
        strike(proxy, server)
        assert [one.hit(RATE, "crm"), other.hit(RATE, "crm"), one.hit(RATE, "crm")] == [0, 0, 0], "from the start"
        assert one.hit(RATE, "crm") > 0 and other.hit(RATE, "crm") > 0
        proxy.set(Fault.REFUSE)  # what was hanging does not arrive late
        proxy.set(Fault.NONE)
        server.client.config_set("maxmemory", "0")
        _allow(server, "+@all")
        for counters in pair:
            counters._coordinator.redis.note_answer()
        eventually(lambda: one.hit(RATE, "crm") == 0)  # Redis counts again; one answer may be late


def test_a_redis_that_is_gone_is_not_waited_for(redis_server: RedisServer) -> None:
    with Proxy(redis_server.port) as proxy, on_redis(proxy.url, timeout_s=0.5) as counters:
        state = counters._coordinator.redis
        proxy.set(Fault.HANG)
        assert counters.hit(RATE_25, "crm") == 0
        assert state.status == "suspected", "which wakes the probe"
        state.give_up()
        proxy.set(Fault.REFUSE)  # what was hanging does not arrive late
        proxy.set(Fault.NONE)
        assert [counters.hit(RATE_25, "crm") for _ in range(5)] == [0] * 5
        assert not list(redis_server.client.scan_iter("*limits*"))


@pytest.mark.real_redis
def test_rates_are_counted_on_a_cluster(cluster: list[RedisServer]) -> None:
    url = f"redis+cluster://{','.join(f'127.0.0.1:{node.port}' for node in cluster)}"
    with on_redis(url, prefix="{mailonce}:") as one, on_redis(url, prefix="{mailonce}:") as other:
        assert [one.hit(RATE, "crm"), other.hit(RATE, "crm"), one.hit(RATE, "crm")] == [0, 0, 0]
        assert other.hit(RATE, "crm") == about(HOUR_S)
