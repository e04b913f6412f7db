"""A rate means the same in Redis and in the journal; callers that count at once count right."""

from __future__ import annotations

import math
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
from orchestrator.delivery.counters import GUESS_RATE, Counters, Rate, parse_rate
from tests.deduplication import test_topologies as topologies
from tests.support.programs_loaded import run_at_once
from tests.support.proxy import Fault, Proxy
from tests.support.redis_server import RedisServer
from tests.support.waiting import wait_for

start = topologies.start

HOUR_S, SLACK_S = 3600, 50  # so long that a slow machine does not matter
RATE = Rate(3, HOUR_S)
RATE_25 = Rate(25, HOUR_S)


class FakeClock:
    def __init__(self) -> None:
        self.now_s = 1_800_000_000.0

    def monotonic(self) -> float:
        return self.now_s

    def now_ms(self) -> int:
        return round(self.now_s * 1000)


@contextmanager
def on_journal(path: Path | str = ":memory:", clock: FakeClock | None = None) -> Iterator[Counters]:
    coordinator = Coordinator(Journal(path, Clock(clock.now_ms, clock.now_ms) if clock else None))
    with closing(coordinator):
        yield Counters(coordinator)


@contextmanager
def on_redis(
    url: str, path: Path | str = ":memory:", prefix: str = "m:", timeout_s: float = 10, clock: FakeClock | None = None
) -> Iterator[Counters]:
    journal = Journal(path, Clock(clock.now_ms, clock.now_ms) if clock else None)
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


def age(server: RedisServer, seconds: float) -> None:
    """Lets time pass in a Redis by moving the end of every window, and its events, back by that much."""
    for key in list(server.client.scan_iter("*rate:*")):
        for index, at_ms in enumerate(server.client.lrange(key, 0, -1)):
            server.client.lset(key, index, str(int(at_ms) - math.ceil(seconds * 1000)))
        server.client.pexpire(key, int(server.client.pttl(key) - seconds * 1000))


@pytest.fixture(params=["journal", "redis"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    with ExitStack() as stack:
        if request.param == "redis":
            server: RedisServer = request.getfixturevalue("redis_server")
            pair = [stack.enter_context(on_redis(server.url)) for _ in range(2)]
            yield Bench(pair[0], pair[1], lambda seconds: age(server, seconds))
            return
        clock = FakeClock()
        pair = [stack.enter_context(on_journal(tmp_path / "journal.db", clock)) for _ in range(2)]

        def tick(seconds: float) -> None:
            clock.now_s += seconds

        yield Bench(pair[0], pair[1], tick)


def about(seconds: float) -> object:
    return pytest.approx(seconds, abs=SLACK_S)


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("10/s", Rate(10, 1)),
        ("10/sec", Rate(10, 1)),
        ("600/min", Rate(600, 60)),
        ("5 Per Minutes", Rate(5, 60)),
        (" 1000 / hour ", Rate(1000, 3600)),
        ("1000/h", Rate(1000, 3600)),
        ("10000/day", Rate(10000, 86_400)),
        ("20 per 15 minutes", Rate(20, 900)),
        ("20/15min", Rate(20, 900)),
    ],
)
def test_a_rate_is_a_number_in_some_time(text: str, rate: Rate) -> None:
    assert parse_rate(text) == rate


@pytest.mark.parametrize(
    "text",
    ["", "10", "10/", "/s", "0/s", "-1/s", "1.5/s", "10/0s", "10/fortnight", "5/m", "10/s;5/min", "10pers", "10/s x"]
    + ["9" * 400 + "/s", "10/" + "9" * 400 + "s", "\u0661/s", "10/\u017f", "10/month", "10/ss"],
)
def test_anything_else_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match='^must be a rate such as "10/s", "600/min" or "1000/hour"$'):
        parse_rate(text)


def test_a_rate_allows_so_many_and_says_when_there_is_room(bench: Bench) -> None:
    one, other = bench.counters, bench.another
    assert {one.wait_s(RATE, "crm", counts=False) for _ in range(9)} == {0}, "asking counts nothing"
    assert one.wait_s(RATE, "crm") == 0
    bench.advance(600)
    assert [other.wait_s(RATE, "crm"), one.wait_s(RATE, "crm")] == [0, 0]
    for counters in (one, other):
        assert counters.wait_s(RATE, "crm") == about(HOUR_S - 600)
        assert counters.wait_s(RATE, "crm", counts=False) == about(HOUR_S - 600)
    assert one.wait_s(RATE, "archive") == 0, "another name has its own window"
    bench.advance(one.wait_s(RATE, "crm"))
    assert one.wait_s(RATE, "crm") == 0
    assert other.wait_s(RATE, "crm") == about(600)


def test_no_window_at_any_time_holds_more_than_its_limit_and_waiting_as_told_is_enough(bench: Bench) -> None:
    pauses = random.Random(7)  # noqa: S311 - the same ones every time
    taken_s: list[float] = []
    passed_s = 0.0
    for _ in range(60):
        pause_s = float(pauses.choice([0, 1, 500, 2500]))
        bench.advance(pause_s)
        if wait_s := bench.counters.wait_s(RATE, "crm"):
            bench.advance(wait_s)
            assert bench.another.wait_s(RATE, "crm") == 0
        passed_s += pause_s + wait_s
        taken_s.append(passed_s)
    assert all(later - earlier > HOUR_S - SLACK_S for earlier, later in zip(taken_s, taken_s[3:], strict=False))


def test_counts_survive_a_restart_and_expired_ones_do_not_stay(tmp_path: Path) -> None:
    clock, path = FakeClock(), tmp_path / "journal.db"
    with on_journal(path, clock) as before:
        before.wait_s(Rate(1, 60), "old")
        before.wait_s(Rate(1, HOUR_S), "young")
    clock.now_s += 61
    with on_journal(path, clock) as after:
        assert after.wait_s(Rate(1, HOUR_S), "young") > 0
        assert after.wait_s(Rate(1, 60), "new") == 0
        with after.coordinator.journal.reading() as step:
            assert step.query("SELECT key FROM windows ORDER BY key") == [("new",), ("young",)]


# Many at once


def count_in_process(place: str, barrier: threading.Barrier) -> list[float]:
    barrier.wait(60)  # before opening, so that they also create the file at once
    with opened(place) as counters, ThreadPoolExecutor(4) as pool:
        return list(pool.map(lambda _: counters.wait_s(RATE_25, "crm"), range(20)))


@pytest.mark.parametrize("kind", ["journal", "redis"])
def test_concurrent_processes_fill_a_window_exactly(request: pytest.FixtureRequest, tmp_path: Path, kind: str) -> None:
    place = request.getfixturevalue("redis_server").url if kind == "redis" else str(tmp_path / "journal.db")
    assert sum(waits_s.count(0.0) for waits_s in run_at_once(3, count_in_process, place)) == 25


# Redis


@pytest.mark.parametrize("off_s", [-HOUR_S, HOUR_S])
def test_machines_whose_clocks_differ_keep_to_one_rate(redis_server: RedisServer, off_s: float) -> None:
    rate, elsewhere = Rate(1, 60), FakeClock()
    elsewhere.now_s = time.time() + off_s
    with on_redis(redis_server.url) as here, on_redis(redis_server.url, clock=elsewhere) as there:
        assert here.wait_s(rate, "crm") == 0
        assert 0 < there.wait_s(rate, "crm") <= 60.001
        (key,) = redis_server.client.scan_iter("*rate*")
        assert key == "m:rate:crm" and 0 < redis_server.client.ttl(key) <= 60
        age(redis_server, 61)
        assert there.wait_s(rate, "crm") == 0


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
    start: topologies.Start, tmp_path: Path, strike: Callable[[Proxy, RedisServer], object]
) -> None:
    server = start()
    with ExitStack() as stack:
        proxy = stack.enter_context(Proxy(server.port))
        pair = [stack.enter_context(on_redis(proxy.url, tmp_path / "journal.db", timeout_s=0.5)) for _ in range(2)]
        one, other = pair
        assert one.wait_s(RATE, "crm") == 0
        strike(proxy, server)
        assert [each.wait_s(RATE, "crm") for each in (one, other, one)] == [0, 0, 0], "from the start"
        assert one.wait_s(RATE, "crm") > 0 and other.wait_s(RATE, "crm") > 0
        proxy.set(Fault.REFUSE)  # what was hanging does not arrive late
        proxy.set(Fault.NONE)
        server.client.config_set("maxmemory", "0")
        _allow(server, "+@all")
        for counters in pair:
            counters.coordinator.redis.note_answer()
        wait_for(lambda: one.wait_s(RATE, "crm") == 0)  # Redis counts again; one answer may be late


def test_a_redis_that_is_gone_is_not_waited_for(redis_server: RedisServer) -> None:
    with Proxy(redis_server.port) as proxy, on_redis(proxy.url, timeout_s=0.5) as counters:
        state = counters.coordinator.redis
        proxy.set(Fault.HANG)
        assert counters.wait_s(RATE_25, "crm") == 0
        assert state.status == "suspected", "which wakes the probe"
        state.give_up()
        proxy.set(Fault.REFUSE)  # what was hanging does not arrive late
        proxy.set(Fault.NONE)
        assert [counters.wait_s(RATE_25, "crm") for _ in range(5)] == [0] * 5
        assert not list(redis_server.client.scan_iter("*rate*"))


# Wrong tokens


def use_up(guesses: Counters, address: str) -> None:
    for _ in range(GUESS_RATE.amount):
        assert guesses.guess_wait_s(address) == 0
        guesses.guess_wait_s(address, counts=True)


def test_a_guesser_waits_until_the_first_wrong_token_is_a_minute_old() -> None:
    clock = FakeClock()
    with on_journal(clock=clock) as guesses:
        use_up(guesses, "192.0.2.1")
        clock.now_s += 20
        assert guesses.guess_wait_s("192.0.2.1") == 41
        clock.now_s += 41
        use_up(guesses, "192.0.2.1")


@pytest.mark.parametrize(
    ("guesser", "same", "other"),
    [
        ("192.0.2.1", "192.0.2.1", "192.0.2.2"),
        ("2001:db8:0:1::1", "2001:db8:0:1:ffff::2", "2001:db8:0:2::1"),
        ("-", "-", "192.0.2.1"),
    ],
    ids=["IPv4", "an IPv6 network is one", "no address"],
)
def test_only_the_guesser_is_limited(guesser: str, same: str, other: str) -> None:
    with on_journal(clock=FakeClock()) as guesses:
        use_up(guesses, guesser)
        assert guesses.guess_wait_s(same) > 0
        assert guesses.guess_wait_s(other) == 0
