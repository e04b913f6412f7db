"""A rate means the same in Redis and in the journal; callers that count at once count right."""

import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from orchestrator.delivery import counters as module
from orchestrator.delivery.counters import GUESS_RATE, Counters, Rate, parse_rate
from tests.deduplication.conftest import ON_REDIS, Bench
from tests.deduplication.conftest import bench as bench
from tests.deduplication.journal.test_fleet import RealTime
from tests.deduplication.journal.world import Machine, Time
from tests.deduplication.test_topologies import Start
from tests.deduplication.test_topologies import start as start
from tests.support.programs_loaded import run_at_once
from tests.support.proxy import Fault, Proxy
from tests.support.redis_server import RedisServer
from tests.support.waiting import wait_for

HOUR_S = 3600
RATE = Rate(3, HOUR_S)
RATE_25 = Rate(25, HOUR_S)
Pair = tuple[Counters, Counters]


@pytest.fixture
def pair(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Pair:
    """The same counters, as two processes of a machine have them, or two machines that share a Redis."""
    now = "{math.floor(redis.call('GET', 'test:now') / 1000), redis.call('GET', 'test:now') % 1000 * 1000}"
    monkeypatch.setattr(module, "_COUNT", module._COUNT.replace("redis.call('TIME')", now))
    return Counters(bench.one), Counters(bench.other)


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


def test_a_rate_allows_so_many_and_says_when_there_is_room(bench: Bench, pair: Pair) -> None:
    one, other = pair
    assert {one.wait_s(RATE, "crm", counts=False) for _ in range(9)} == {0}, "asking counts nothing"
    assert one.wait_s(RATE, "crm") == 0
    bench.advance(600_000)
    assert [other.wait_s(RATE, "crm"), one.wait_s(RATE, "crm")] == [0, 0]
    for counters in pair:
        assert counters.wait_s(RATE, "crm") == counters.wait_s(RATE, "crm", counts=False) == HOUR_S - 600 + 0.001
    assert one.wait_s(RATE, "archive") == 0, "another name has its own window"
    bench.advance((HOUR_S - 600) * 1000 + 1)
    assert one.wait_s(RATE, "crm") == 0
    assert other.wait_s(RATE, "crm") == 600


def test_no_window_at_any_time_holds_more_than_its_limit_and_waiting_as_told_is_enough(
    bench: Bench, pair: Pair
) -> None:
    pauses = random.Random(7)  # noqa: S311 - the same ones every time
    taken_ms: list[int] = []
    passed_ms = 0
    for _ in range(60):
        pause_ms = pauses.choice([0, 1, 500, 2500]) * 1000
        bench.advance(pause_ms)
        if wait_ms := round(pair[0].wait_s(RATE, "crm") * 1000):
            bench.advance(wait_ms)
            assert pair[1].wait_s(RATE, "crm") == 0
        passed_ms += pause_ms + wait_ms
        taken_ms.append(passed_ms)
    assert all(later - earlier > HOUR_S * 1000 for earlier, later in zip(taken_ms, taken_ms[3:], strict=False))


def test_counts_survive_a_restart_and_expired_ones_do_not_stay(tmp_path: Path) -> None:
    machine = Machine(None, Time(), folder=tmp_path)
    for rate, name in ((Rate(1, 60), "old"), (Rate(1, HOUR_S), "young")):
        Counters(machine.coordinator).wait_s(rate, name)
    machine.time.pass_ms(61_000)
    machine.restart()
    after = Counters(machine.coordinator)
    assert after.wait_s(Rate(1, HOUR_S), "young") > 0
    assert after.wait_s(Rate(1, 60), "new") == 0
    with machine.journal.reading() as step:
        assert step.query("SELECT key FROM windows ORDER BY key") == [("new",), ("young",)]
    machine.stop()


# Many at once


def count_in_process(url: str | None, folder: Path, barrier: threading.Barrier) -> list[float]:
    barrier.wait(60)  # before opening, so that they also create the file at once
    machine = Machine(url, RealTime(), folder=folder, host="here", timeout_s=10)
    machine.coordinator.redis.note_answer()
    with ThreadPoolExecutor(4) as pool:
        waits_s = list(pool.map(lambda _: Counters(machine.coordinator).wait_s(RATE_25, "crm"), range(20)))
    machine.stop()
    return waits_s


@pytest.mark.parametrize("kind", ["journal", "redis"])
def test_concurrent_processes_fill_a_window_exactly(request: pytest.FixtureRequest, tmp_path: Path, kind: str) -> None:
    url = request.getfixturevalue("redis_server").url if kind == "redis" else None
    assert sum(waits_s.count(0.0) for waits_s in run_at_once(3, count_in_process, url, tmp_path)) == 25


# Redis


@pytest.mark.parametrize("off_s", [-HOUR_S, HOUR_S])
@ON_REDIS
def test_machines_whose_clocks_differ_keep_to_one_rate(bench: Bench, pair: Pair, off_s: int) -> None:
    bench.second.time = Time(bench.first.time.now_ms + off_s * 1000)
    bench.second.restart()
    bench.other.redis.note_answer()
    here, there, rate = pair[0], Counters(bench.other), Rate(1, 60)
    assert (here.wait_s(rate, "crm"), there.wait_s(rate, "crm")) == (0, 60.001)
    assert 0 < bench.client.ttl("rate:crm") <= 60
    bench.advance(60_001)
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
    start: Start, tmp_path: Path, strike: Callable[[Proxy, RedisServer], object]
) -> None:
    server = start()
    with ExitStack() as stack:
        proxy = stack.enter_context(Proxy(server.port))
        machines = [Machine(proxy.url, RealTime(), folder=tmp_path, host="here", timeout_s=0.5) for _ in range(2)]
        one, other = (Counters(machine.coordinator) for machine in machines)
        for machine in machines:
            stack.callback(machine.stop)
            machine.coordinator.redis.note_answer()
        assert one.wait_s(RATE, "crm") == 0
        strike(proxy, server)
        assert [each.wait_s(RATE, "crm") for each in (one, other, one)] == [0, 0, 0], "from the start"
        assert one.wait_s(RATE, "crm") > 0 and other.wait_s(RATE, "crm") > 0
        proxy.set(Fault.REFUSE)  # what was hanging does not arrive late
        proxy.set(Fault.NONE)
        server.client.config_set("maxmemory", "0")
        _allow(server, "+@all")
        for machine in machines:
            machine.coordinator.redis.note_answer()
        wait_for(lambda: one.wait_s(RATE, "crm") == 0)  # Redis counts again; one answer may be late


def test_a_redis_that_is_gone_is_not_waited_for(redis_server: RedisServer) -> None:
    with Proxy(redis_server.port) as proxy:
        machine = Machine(proxy.url, RealTime(), timeout_s=0.5)
        counters, state = Counters(machine.coordinator), machine.coordinator.redis
        state.note_answer()
        proxy.set(Fault.HANG)
        assert counters.wait_s(RATE_25, "crm") == 0
        assert state.status == "suspected", "which wakes the probe"
        state.give_up()
        proxy.set(Fault.REFUSE)  # what was hanging does not arrive late
        proxy.set(Fault.NONE)
        assert [counters.wait_s(RATE_25, "crm") for _ in range(5)] == [0] * 5
        assert not list(redis_server.client.scan_iter("*rate*"))
        machine.close()


# Wrong tokens


@pytest.fixture
def machine() -> Iterator[Machine]:
    machine = Machine(None, Time())
    yield machine
    machine.close()


def use_up(guesses: Counters, address: str) -> None:
    for _ in range(GUESS_RATE.amount):
        assert guesses.guess_wait_s(address) == 0
        guesses.guess_wait_s(address, counts=True)


def test_a_guesser_waits_until_the_first_wrong_token_is_a_minute_old(machine: Machine) -> None:
    guesses = Counters(machine.coordinator)
    use_up(guesses, "192.0.2.1")
    machine.time.pass_ms(20_000)
    assert guesses.guess_wait_s("192.0.2.1") == 41
    machine.time.pass_ms(41_000)
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
def test_only_the_guesser_is_limited(machine: Machine, guesser: str, same: str, other: str) -> None:
    guesses = Counters(machine.coordinator)
    use_up(guesses, guesser)
    assert guesses.guess_wait_s(same) > 0
    assert guesses.guess_wait_s(other) == 0
