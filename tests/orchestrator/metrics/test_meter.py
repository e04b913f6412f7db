"""How machines share their counts, and how long these are kept; test_stats.py has what is shown of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from deduplication.errors import StoreUnavailable
from orchestrator.metrics.meter import DAY_S, EMAILS, HOUR_S, MINUTE_S, read_sums
from tests.orchestrator.operations.fleet_bench import OpenProcess, Process, open_process, process, time
from tests.support.redis_server import RedisServer

__all__ = ["open_process", "process", "time"]  # fixtures

EMAIL = "emails|gmail|processed|"


def receive(process: Process, count: int) -> None:
    for _ in range(count):
        process.meter.count((1, EMAILS, "gmail", "processed", ""))
    process.meter.flush()


def fleet_sum(process: Process) -> float:
    with process.journal.reading() as step:
        return read_sums(step).counts.get(EMAIL, 0)


def counts(process: Process, step_s: int) -> list[float]:
    """Of the fleet, in each minute or hour that has some."""
    query = "SELECT sum(value) FROM counts WHERE step_s = ? AND key = ? GROUP BY start_s ORDER BY start_s"
    with process.journal.reading() as step:
        return [count for (count,) in step.query(query, (step_s, EMAIL))]


def test_counts_of_a_failed_flush_are_written_by_the_next(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def fail() -> Iterator[None]:
        raise StoreUnavailable("the disk is full")
        yield

    with monkeypatch.context() as patch:
        patch.setattr(process.journal, "step", fail)
        with pytest.raises(StoreUnavailable):
            receive(process, 2)
    receive(process, 1)
    assert fleet_sum(process) == 3


def test_machines_share_their_counts(open_process: OpenProcess) -> None:
    one, two = open_process(with_redis=True), open_process(with_redis=True)
    receive(one, 3)
    receive(two, 4)
    for member in (one, two, one):
        member.share()
    assert fleet_sum(one) == fleet_sum(two) == 7
    assert counts(one, MINUTE_S) == counts(two, MINUTE_S) == [7]
    two.machine.time.pass_ms(1)
    receive(two, 1)
    for member in (two, one, one):
        member.share()
    assert fleet_sum(one) == 8
    with one.journal.reading() as step:
        assert read_sums(step, one.machine.name).counts[EMAIL] == 3


def test_a_machine_that_was_without_redis_shares_later_what_it_counted_meanwhile(open_process: OpenProcess) -> None:
    one, two = open_process(with_redis=True), open_process(with_redis=True)
    receive(two, 1)
    for member in (two, one):
        member.share()
    for _ in range(3):
        one.machine.time.pass_ms(20 * MINUTE_S * 1000)
        receive(two, 2)
        receive(one, 1)
        one.share()
    assert fleet_sum(one) == 4
    for member in (two, one):
        member.share()
    assert fleet_sum(one) == 10
    assert counts(one, MINUTE_S) == [1, 3, 3, 3]


def test_a_redis_that_was_emptied_learns_everything_again(open_process: OpenProcess, redis_server: RedisServer) -> None:
    one = open_process(with_redis=True)
    receive(one, 2)
    one.machine.time.pass_ms(3 * DAY_S * 1000)
    receive(one, 1)
    one.share()
    redis_server.client.flushall()
    one.machine.tick()
    one.share()
    late = open_process(with_redis=True)
    late.share()
    assert fleet_sum(late) == sum(counts(late, HOUR_S)) == 3


def test_old_counts_end_here_and_in_redis_but_not_the_sum(open_process: OpenProcess, redis_server: RedisServer) -> None:
    one = open_process(with_redis=True)
    receive(one, 2)
    one.share()
    keys = redis_server.client.keys(f"counts:{one.machine.name}:*")
    kept_s = {str(key).split(":")[2]: redis_server.client.ttl(key) for key in keys}
    assert kept_s == {"60": 26 * HOUR_S, "3600": 32 * DAY_S, "0": 32 * DAY_S}
    for passed_s, steps in ((27 * HOUR_S, [(0,), (3600,)]), (32 * DAY_S, [(0,)])):
        one.machine.time.pass_ms(passed_s * 1000)
        one.meter.purge()
        with one.journal.reading() as step:
            assert step.query("SELECT DISTINCT step_s FROM counts ORDER BY 1") == steps
    assert fleet_sum(one) == 2
