"""The counters mean the same in a file, in Redis and in limits' own memory, and many who count at once count right."""

from __future__ import annotations

import multiprocessing
import random
import secrets
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from limits.storage import MemoryStorage, Storage

from orchestrator.delivery.counters import (
    AWAY_PAUSE_S,
    PURGE_EVERY_S,
    FallbackCounters,
    RedisCounters,
    SqliteCounters,
    open_counters,
    process_counters,
)
from tests.support.proxy import Fault, Proxy
from tests.support.redis_server import RedisServer

KINDS = ("sqlite", "redis", "memory")
PATIENT_S = 10.0


class FakeClock:
    """Also stands in for the module ``time`` in limits' memory, which asks it for ``time.time()``."""

    def __init__(self) -> None:
        self.now_s = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now_s

    time = __call__


@dataclass(frozen=True)
class CounterBench:
    """Counters under test; ``another`` is a second handle on the same ones, as another process would have.

    ``clock`` is what they go by. ``passed_s`` is the time since the start, at most ``slack_s`` off.
    """

    counters: SqliteCounters | RedisCounters | MemoryStorage
    another: SqliteCounters | RedisCounters | MemoryStorage
    clock: Callable[[], float]
    advance: Callable[[float], None]
    passed_s: Callable[[], float]
    slack_s: float


class _NeverDue(threading.Timer):
    """MemoryStorage tidies up from a thread that can meet the test's; what it would remove is expired anyway."""

    def is_alive(self) -> bool:
        return True


def age(server: RedisServer, seconds: float) -> None:
    """Lets time pass in a Redis by moving the end of every key, and every entry of a window, back by that much."""
    client = server.client
    for key in list(client.scan_iter()):
        if client.type(key) == "list":
            for index, at_s in enumerate(client.lrange(key, 0, -1)):
                client.lset(key, index, repr(float(at_s) - seconds))
        client.pexpire(key, int(client.pttl(key) - seconds * 1000))


@contextmanager
def open_counter_bench(
    kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch, server: RedisServer | None = None
) -> Iterator[CounterBench]:
    if kind == "redis":
        assert server is not None
        with _on_redis(server) as bench:
            yield bench
        return
    clock = FakeClock()
    start_s = clock()

    def advance(seconds: float) -> None:
        clock.now_s += seconds

    if kind == "sqlite":
        pair = [SqliteCounters(folder / "counters.db", clock) for _ in range(2)]
        with closing(pair[0]), closing(pair[1]):
            yield CounterBench(pair[0], pair[1], clock, advance, lambda: clock() - start_s, 0)
        return
    monkeypatch.setattr("limits.storage.memory.time", clock)
    memory = MemoryStorage()
    memory.timer.join()
    memory.timer = _NeverDue(0, print)
    yield CounterBench(memory, memory, clock, advance, lambda: clock() - start_s, 0)


@contextmanager
def _on_redis(server: RedisServer) -> Iterator[CounterBench]:
    """Redis goes by its own clock, so a little real time passes too."""
    started_s, aged_s = time.monotonic(), [0.0]

    def advance(seconds: float) -> None:
        age(server, seconds)
        aged_s.append(seconds)

    def passed_s() -> float:
        return time.monotonic() - started_s + sum(aged_s)

    pair = [RedisCounters(server.url, PATIENT_S, "m:") for _ in range(2)]
    with closing(pair[0]), closing(pair[1]):
        yield CounterBench(pair[0], pair[1], time.time, advance, passed_s, slack_s=50)


@pytest.fixture(params=KINDS)
def bench(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CounterBench]:
    """Every kind of counters in turn."""
    server: RedisServer | None = request.getfixturevalue("redis_server") if request.param == "redis" else None
    with open_counter_bench(request.param, tmp_path, monkeypatch, server) as bench:
        yield bench


def test_a_counter_starts_at_nothing_and_every_handle_adds_to_it(bench: CounterBench) -> None:
    assert bench.counters.get("a") == 0
    assert bench.counters.incr("a", 1000) == 1
    assert bench.another.incr("a", 1000) == 2
    assert bench.counters.incr("a", 1000, amount=3) == 5
    assert bench.another.get("a") == 5
    assert bench.counters.get("b") == 0


def left_s(bench: CounterBench, key: str) -> float:
    return bench.counters.get_expiry(key) - bench.clock()


def test_only_the_first_increment_sets_when_a_counter_ends(bench: CounterBench) -> None:
    bench.counters.incr("a", 1000)
    bench.advance(600)
    assert bench.another.incr("a", 1000) == 2
    assert left_s(bench, "a") == pytest.approx(400, abs=bench.slack_s)
    bench.advance(401)
    assert bench.counters.get("a") == 0
    assert left_s(bench, "a") == pytest.approx(0, abs=0.1)
    assert bench.another.incr("a", 1000) == 1, "and the next one starts anew"
    assert left_s(bench, "a") == pytest.approx(1000, abs=bench.slack_s)


def test_a_cleared_counter_starts_anew_and_leaves_the_others(bench: CounterBench) -> None:
    for key in ("a", "b"):
        bench.counters.incr(key, 1000, amount=4)
    bench.advance(600)
    bench.another.clear("a")
    assert bench.counters.get("a") == 0
    assert bench.counters.incr("a", 1000) == 1
    assert left_s(bench, "a") == pytest.approx(1000, abs=bench.slack_s)
    assert bench.counters.get("b") == 4


def test_a_window_takes_so_many_and_no_more(bench: CounterBench) -> None:
    assert bench.counters.get_moving_window("a", 3, 1000)[1] == 0
    assert bench.counters.acquire_entry("a", 3, 1000)
    bench.advance(400)
    assert bench.another.acquire_entry("a", 3, 1000, amount=2)
    assert not bench.counters.acquire_entry("a", 3, 1000)
    start_s, taken = bench.another.get_moving_window("a", 3, 1000)
    assert bench.clock() - start_s == pytest.approx(400, abs=bench.slack_s)
    assert taken == 3
    assert bench.counters.acquire_entry("b", 3, 1000), "another key has its own window"


def test_an_empty_window_starts_now(bench: CounterBench) -> None:
    start_s, taken = bench.counters.get_moving_window("a", 3, 1000)
    assert bench.clock() - start_s == pytest.approx(0, abs=bench.slack_s)
    assert taken == 0


def test_a_window_has_room_again_when_its_oldest_entry_leaves_it(bench: CounterBench) -> None:
    assert bench.counters.acquire_entry("a", 3, 1000)
    bench.advance(400)
    assert bench.counters.acquire_entry("a", 3, 1000, amount=2)
    bench.advance(600 - bench.slack_s)
    assert not bench.another.acquire_entry("a", 3, 1000), "without slack, to the last instant"
    bench.advance(bench.slack_s + 0.001)
    assert bench.another.acquire_entry("a", 3, 1000)
    assert not bench.another.acquire_entry("a", 3, 1000)
    start_s, taken = bench.counters.get_moving_window("a", 3, 1000)
    assert bench.clock() - start_s == pytest.approx(600, abs=bench.slack_s + 1)
    assert taken == 3


def test_more_than_a_window_holds_is_never_taken(bench: CounterBench) -> None:
    assert not bench.counters.acquire_entry("a", 3, 1000, amount=4)
    assert bench.counters.get_moving_window("a", 3, 1000)[1] == 0
    assert bench.counters.acquire_entry("a", 3, 1000, amount=3)


def test_what_is_refused_takes_up_no_room(bench: CounterBench) -> None:
    assert bench.counters.acquire_entry("a", 1, 1000)
    bench.advance(900)
    assert not bench.counters.acquire_entry("a", 1, 1000)
    bench.advance(101)
    assert bench.counters.acquire_entry("a", 1, 1000)


def test_no_window_at_any_time_holds_more_than_its_limit(bench: CounterBench) -> None:
    pauses = random.Random(7)  # noqa: S311 - the same ones every time
    taken_s: list[float] = []
    for _ in range(200):
        bench.advance(pauses.choice([0, 1, 150, 750]))
        if bench.counters.acquire_entry("a", 5, 1000):
            taken_s.append(bench.passed_s())
    assert len(taken_s) > 20
    assert all(later - earlier > 1000 - bench.slack_s for earlier, later in zip(taken_s, taken_s[5:], strict=False))


def test_clearing_and_resetting_empty_windows_too(bench: CounterBench) -> None:
    for key in ("a", "b"):
        bench.counters.acquire_entry(key, 1, 1000)
    bench.another.clear("a")
    assert bench.counters.acquire_entry("a", 1, 1000)
    assert not bench.counters.acquire_entry("b", 1, 1000)
    assert bench.another.reset() == 2
    assert bench.counters.acquire_entry("b", 1, 1000)


def test_a_reset_forgets_every_counter_and_says_how_many(bench: CounterBench) -> None:
    for key in ("a", "b", "c"):
        bench.counters.incr(key, 1000)
    assert bench.another.reset() == 3
    assert [bench.counters.get(key) for key in ("a", "b", "c")] == [0, 0, 0]
    assert bench.another.reset() == 0


def test_counters_that_work_are_healthy(bench: CounterBench) -> None:
    assert bench.counters.check() is True


@pytest.mark.parametrize("off_s", [-3600, 3600])
def test_machines_whose_clocks_differ_still_keep_to_one_rate(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch, off_s: float
) -> None:
    with closing(RedisCounters(redis_server.url, PATIENT_S, "")) as counters:
        assert counters.acquire_entry("a", 1, 1000)
        elsewhere = FakeClock()
        elsewhere.now_s = time.time() + off_s
        monkeypatch.setattr("limits.storage.redis.time", elsewhere)
        assert not counters.acquire_entry("a", 1, 1000)
        age(redis_server, 1001)
        assert counters.acquire_entry("a", 1, 1000)


def open_shared(address: str) -> SqliteCounters | RedisCounters:
    kind, _, place = address.partition("=")
    if kind == "sqlite":
        return SqliteCounters(Path(place), busy_timeout_s=PATIENT_S)
    return RedisCounters(place, PATIENT_S, "m:")


@pytest.fixture(params=["sqlite", "redis"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite={tmp_path / 'counters.db'}"
    server: RedisServer = request.getfixturevalue("redis_server")
    return f"redis={server.url}"


def run_in_processes(count: int, target: Callable[..., None], *given: object) -> list[list[float]]:
    """What each process puts into the queue it is handed, after a barrier that lets them all begin at once."""
    spawn = multiprocessing.get_context("spawn")
    barrier, results = spawn.Barrier(count), spawn.Queue()
    processes = [spawn.Process(target=target, args=(*given, barrier, results)) for _ in range(count)]
    for process in processes:
        process.start()
    answers = [results.get(timeout=60) for _ in processes]
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * count
    results.close()
    return answers


def count_and_take(counters: SqliteCounters | RedisCounters, rounds: int) -> list[float]:
    """The values it got, and as 0 and -1 whether it was given one of the 25 entries."""
    values = [float(counters.incr("a", 60)) for _ in range(rounds)]
    return values + [0.0 if counters.acquire_entry("w", 25, 60) else -1.0 for _ in range(rounds)]


def count_in_process(address: str, barrier: threading.Barrier, results: multiprocessing.Queue[list[float]]) -> None:
    barrier.wait(60)  # before opening, so that they also make the file at once
    with closing(open_shared(address)) as counters:
        results.put(count_and_take(counters, 20))


def assert_each_value_once_and_25_entries(answers: list[float], counted: int) -> None:
    assert sorted(each for each in answers if each > 0) == list(range(1, counted + 1))
    assert answers.count(0.0) == 25


def test_processes_that_count_at_once_get_each_value_once_and_fill_a_window_exactly(address: str) -> None:
    answers = run_in_processes(4, count_in_process, address)
    assert_each_value_once_and_25_entries([each for answer in answers for each in answer], 4 * 20)


@pytest.mark.parametrize("kind", ["sqlite", "redis", "process"])
def test_threads_that_count_at_once_get_each_value_once_and_fill_a_window_exactly(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if kind == "process":
        pair: list[SqliteCounters | RedisCounters] = [process_counters()] * 2
    else:
        place = tmp_path / "counters.db" if kind == "sqlite" else request.getfixturevalue("redis_server").url
        pair = [open_shared(f"{kind}={place}") for _ in range(2)]
    barrier = threading.Barrier(16)

    def count(number: int) -> list[float]:
        barrier.wait(60)
        return count_and_take(pair[number % 2], 5)

    with closing(pair[0]), closing(pair[1]), ThreadPoolExecutor(16) as pool:
        answers = [each for answer in pool.map(count, range(16)) for each in answer]
    assert_each_value_once_and_25_entries(answers, 16 * 5)


def test_counters_in_a_file_survive_a_restart(tmp_path: Path) -> None:
    with closing(SqliteCounters(tmp_path / "counters.db")) as before:
        before.incr("a", 60)
        before.acquire_entry("w", 1, 60)
    with closing(SqliteCounters(tmp_path / "counters.db")) as after:
        assert after.get("a") == 1
        assert not after.acquire_entry("w", 1, 60)


def test_counters_of_a_process_are_nobody_elses() -> None:
    with closing(process_counters()) as mine, closing(process_counters()) as others:
        mine.incr("a", 60)
        assert others.get("a") == 0


def test_what_expired_does_not_stay_in_the_file(tmp_path: Path) -> None:
    clock = FakeClock()
    with closing(SqliteCounters(tmp_path / "counters.db", clock)) as counters:
        for number in range(20):
            counters.incr(f"old {number}", 5)
            counters.acquire_entry(f"old window {number}", 1, 5)
        counters.incr("young", int(PURGE_EVERY_S) + 5)
        counters.acquire_entry("young window", 1, int(PURGE_EVERY_S) + 5)
        clock.now_s += PURGE_EVERY_S
        counters.incr("new", 5)
    with closing(sqlite3.connect(tmp_path / "counters.db")) as file:
        assert file.execute("SELECT key FROM counters ORDER BY key").fetchall() == [("new",), ("young",)]
        assert file.execute("SELECT key FROM entries").fetchall() == [("young window",)]


def test_a_file_that_another_holds_is_an_error_soon_and_no_count(tmp_path: Path) -> None:
    with (
        closing(SqliteCounters(tmp_path / "counters.db", busy_timeout_s=0.01)) as counters,
        closing(sqlite3.connect(tmp_path / "counters.db", isolation_level=None)) as holder,
    ):
        assert holder.execute("PRAGMA journal_mode").fetchone() == ("wal",), "so that readers need not wait"
        holder.execute("BEGIN IMMEDIATE")
        assert counters.get("a") == 0
        with pytest.raises(counters.base_exceptions):
            counters.incr("a", 60)
        assert counters.check() is False
        holder.execute("ROLLBACK")
        assert counters.incr("a", 60) == 1
        assert counters.check() is True


def test_a_count_that_fails_half_way_does_not_stand_in_the_way_of_the_next(tmp_path: Path) -> None:
    with closing(SqliteCounters(tmp_path / "counters.db")) as counters:
        with pytest.raises(OverflowError):
            counters.incr("a", 60, amount=2**70)
        assert counters.incr("a", 60) == 1


def test_a_thread_does_not_wait_for_another_without_end(tmp_path: Path) -> None:
    is_in, may_go_on = threading.Event(), threading.Event()

    def slow_clock() -> float:
        if threading.current_thread() is not threading.main_thread():
            is_in.set()
            may_go_on.wait(60)
        return time.time()

    counters = SqliteCounters(tmp_path / "counters.db", slow_clock, busy_timeout_s=0.01)
    slow = threading.Thread(target=counters.incr, args=("a", 60))
    slow.start()
    is_in.wait(60)
    with closing(counters):
        with pytest.raises(sqlite3.OperationalError):
            counters.get("a")
        may_go_on.set()
        slow.join()
        assert counters.get("a") == 1


def test_without_redis_the_counters_are_in_the_file(tmp_path: Path) -> None:
    with closing(open_counters("", 0.25, "", tmp_path / "counters.db")) as counters:
        counters.incr("a", 60)
    with closing(SqliteCounters(tmp_path / "counters.db")) as same:
        assert same.get("a") == 1


@pytest.mark.parametrize("prefix", ["", "m:", "{mailonce}:"])
def test_with_redis_every_key_is_under_the_prefix_and_there_is_no_file(
    redis_server: RedisServer, tmp_path: Path, prefix: str
) -> None:
    redis_server.client.flushall()
    redis_server.client.set("limit:not ours", "1")
    with closing(open_counters(redis_server.url, PATIENT_S, prefix, tmp_path / "counters.db")) as counters:
        counters.incr("a", 60)
        counters.acquire_entry("w", 1, 60)
        keys = set(redis_server.client.scan_iter())
        assert keys == {f"{prefix}limits:a", f"{prefix}limits:w", "limit:not ours"}
        assert all(redis_server.client.ttl(f"{prefix}limits:{key}") > 0 for key in ("a", "w"))
        counters.reset()
    assert set(redis_server.client.keys()) - {"era", "trial:era"} == {"limit:not ours"}
    assert not list(tmp_path.iterdir())


@pytest.mark.real_redis
def test_a_redis_over_a_unix_socket(tmp_path: Path) -> None:
    path = Path("/tmp") / f"mailonce-{secrets.token_hex(4)}.sock"  # noqa: S108 - a socket's path must be short
    server = RedisServer("--unixsocket", str(path)).start()
    try:
        with closing(open_counters(f"unix://{path}", PATIENT_S, "", tmp_path / "counters.db")) as counters:
            assert counters.incr("a", 60) == 1
        assert server.client.get("limits:a") == "1"
    finally:
        server.stop()


def test_a_count_whose_reply_was_lost_is_not_repeated(redis_server: RedisServer) -> None:
    with Proxy(redis_server.port) as proxy, closing(RedisCounters(proxy.url, PATIENT_S, "")) as counters:
        assert counters.incr("a", 60) == 1
        proxy.set(Fault.CUT_AFTER_SEND, once=True)
        with pytest.raises(counters.base_exceptions):
            counters.incr("a", 60)
        assert redis_server.client.get("limits:a") == "2"


def test_a_hung_redis_is_given_up_after_its_timeout(redis_server: RedisServer) -> None:
    with Proxy(redis_server.port) as proxy, closing(RedisCounters(proxy.url, 0.05, "")) as counters:
        proxy.set(Fault.HANG)
        with pytest.raises(counters.base_exceptions):
            counters.incr("a", 60)
        assert counters.check() is False


class Switchable(SqliteCounters):
    """Counters that fail, or make the caller wait, when the test says so."""

    def __init__(self, path: Path, clock: FakeClock) -> None:
        super().__init__(path, clock)
        self.fails = False
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self.is_asked = threading.Event()
        self.asked = 0

    def incr(self, key: str, expiry: float, amount: int = 1) -> int:
        self.asked += 1
        self.is_asked.set()
        self.may_go_on.wait(60)
        if self.fails:
            raise sqlite3.OperationalError("disk I/O error")
        return super().incr(key, expiry, amount)


@dataclass(frozen=True)
class Switched:
    shared: Switchable
    own: SqliteCounters
    counters: FallbackCounters
    clock: FakeClock
    returns: list[float]

    def count(self) -> int:
        return self.counters.ask(lambda counters: counters.incr("a", 3600))


@pytest.fixture
def switched(tmp_path: Path) -> Iterator[Switched]:
    clock = FakeClock()
    returns: list[float] = []
    shared, own = Switchable(tmp_path / "counters.db", clock), process_counters(clock)
    counters = FallbackCounters(shared, own, lambda: returns.append(clock()), clock)
    with closing(shared), closing(own):
        yield Switched(shared, own, counters, clock, returns)


def test_while_the_shared_counters_fail_the_process_counts_alone(switched: Switched) -> None:
    assert [switched.count(), switched.count()] == [1, 2]
    switched.shared.fails = True
    assert [switched.count(), switched.count()] == [1, 2]
    assert (switched.shared.get("a"), switched.own.get("a")) == (2, 2)


def test_shared_counters_that_failed_are_asked_again_once_a_second(switched: Switched) -> None:
    switched.shared.fails = True
    for _ in range(5):
        switched.count()
    assert switched.shared.asked == 1
    switched.clock.now_s += AWAY_PAUSE_S
    for _ in range(5):
        switched.count()
    assert switched.shared.asked == 2
    switched.clock.now_s -= 3600  # a clock set back must not keep them away
    switched.count()
    assert switched.shared.asked == 3


def test_the_way_there_and_back_is_said_once_each(switched: Switched, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    for _ in range(2):
        switched.shared.fails = True
        for _ in range(3):
            switched.count()
            switched.clock.now_s += AWAY_PAUSE_S
        switched.shared.fails = False
        for _ in range(3):
            switched.count()
            switched.clock.now_s += AWAY_PAUSE_S
    assert [record.levelname for record in caplog.records] == ["ERROR", "INFO"] * 2
    assert "disk I/O error" in caplog.messages[0]
    assert len(switched.returns) == 2
    assert switched.shared.get("a") == 6


def test_while_one_caller_waits_for_hung_counters_the_others_do_not(switched: Switched) -> None:
    switched.shared.fails = True
    switched.count()
    switched.clock.now_s += AWAY_PAUSE_S
    switched.shared.is_asked.clear()
    switched.shared.may_go_on.clear()
    hanging = threading.Thread(target=switched.count)
    hanging.start()
    assert switched.shared.is_asked.wait(60)
    assert switched.count() == 2, "the process's own"
    assert switched.shared.asked == 2
    switched.shared.may_go_on.set()
    hanging.join()


def test_counters_that_can_be_read_but_not_written_are_not_back(switched: Switched) -> None:
    switched.shared.fails = True
    switched.count()
    switched.clock.now_s += AWAY_PAUSE_S
    assert switched.counters.ask(lambda counters: counters.get("a")) == 1, "the process's own"
    assert not switched.returns


def test_an_answer_that_was_on_its_way_when_they_failed_does_not_say_that_they_are_back(switched: Switched) -> None:
    def read_while_another_fails_to_write(counters: Storage) -> int:
        switched.shared.fails = True
        switched.count()
        return counters.get("a")

    switched.count()
    assert switched.counters.ask(read_while_another_fails_to_write) == 1
    assert not switched.returns
    switched.count()
    assert switched.own.get("a") == 2


def test_an_error_that_is_not_the_counters_is_not_swallowed(switched: Switched) -> None:
    def broken(counters: Storage) -> int:
        raise KeyError("a bug")

    with pytest.raises(KeyError):
        switched.counters.ask(broken)
    assert switched.count() == 1
    assert switched.own.get("a") == 0
