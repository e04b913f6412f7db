"""Two machines on one Redis; each is a folder, a file and a client of its own."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from deduplication.journal.redis_figures import RedisFigures
from deduplication.redis_client import connect
from orchestrator.metrics.counted import ALIVE_FOR_S, Counted, Recorder
from orchestrator.metrics.history import HOUR_S, KEPT_S, History
from orchestrator.metrics.meter import Meter
from orchestrator.metrics.sums import Sums
from orchestrator.metrics.tally import BEAT, Slot
from tests.support.redis_server import RedisServer

pytestmark = pytest.mark.real_redis


@dataclass(frozen=True)
class Machine:
    slot: Slot
    meter: Meter
    counted: Counted
    recorder: Recorder

    def receive(self, count: int) -> None:
        for _ in range(count):
            self.meter.count_email("gmail", "processed")

    @property
    def received(self) -> int:
        return self.counted.fleet().sums.received

    @property
    def received_over_time(self) -> list[int]:
        """By each length of buckets, in those of now and before."""
        found = []
        for step_s in KEPT_S:
            start = int(time.time() // step_s) * step_s
            buckets, _ = self.counted.over_time(step_s, [start - step_s, start])
            found.append(sum(sums.received for sums in buckets.values()))
        return found


class Machines:
    def __init__(self, folder: Path, redis: RedisServer) -> None:
        self._folder = folder
        self._redis = redis
        self._made: list[Machine] = []

    def start(self, name: str, kind: str = "web") -> Machine:
        slot = Slot(self._folder / name / "metrics", kind)
        meter = Meter(slot.tally, ("crm",))
        meter.know_providers({"gmail"})
        shared = RedisFigures(connect(self._redis.url, 5), name, "test:", KEPT_S)
        history = History(self._folder / name / "figures.db")
        counted = Counted(self._folder / name / "metrics", slot.tally, history, shared, is_filed=True)
        self._made.append(Machine(slot, meter, counted, Recorder(counted, meter)))
        return self._made[-1]

    def close(self) -> None:
        for machine in self._made:
            machine.slot.close()
            machine.counted.history.close()
            assert machine.counted.shared
            machine.counted.shared.close()


@pytest.fixture
def machines(tmp_path: Path, redis_server: RedisServer) -> Iterator[Machines]:
    machines = Machines(tmp_path, redis_server)
    yield machines
    machines.close()


def test_each_machine_sees_what_all_have_counted(machines: Machines) -> None:
    one, other = machines.start("one"), machines.start("other")
    one.receive(3)
    other.receive(4)
    one.recorder.beat()
    other.recorder.beat()
    assert (one.received, other.received) == (7, 7)
    assert one.received_over_time == other.received_over_time == [7, 7, 7]


def test_what_a_machine_counts_itself_it_knows_at_once(machines: Machines) -> None:
    one, other = machines.start("one"), machines.start("other")
    one.recorder.beat()
    one.receive(5)
    assert (one.received, one.received_over_time) == (5, [5, 5, 5])
    assert other.received == 0, "not told yet"


def test_telling_twice_changes_nothing(machines: Machines) -> None:
    one, other = machines.start("one"), machines.start("other")
    one.receive(3)
    for _ in range(3):
        one.recorder.beat()
    assert (other.received, other.received_over_time) == (3, [3, 3, 3])


def test_processes_of_one_machine_record_what_they_counted_once(machines: Machines) -> None:
    web, worker, other = machines.start("one"), machines.start("one", "worker"), machines.start("other")
    web.receive(3)
    worker.receive(2)
    web.recorder.beat()
    worker.recorder.beat()
    assert (other.received, other.received_over_time) == (5, [5, 5, 5])


def test_a_redis_that_lost_its_memory_is_told_all_of_it_again(machines: Machines, redis_server: RedisServer) -> None:
    one, other = machines.start("one"), machines.start("other")
    one.receive(3)
    one.recorder.beat()
    redis_server.client.flushall()
    assert other.received == 0
    one.recorder.beat()
    assert (other.received, other.received_over_time) == (3, [3, 3, 3])


def test_a_redis_that_went_back_to_an_older_state_is_told_what_it_lost(
    machines: Machines, redis_server: RedisServer
) -> None:
    one, other = machines.start("one"), machines.start("other")
    one.receive(3)
    one.recorder.beat()
    client = redis_server.client
    hashes = [key for key in client.keys("test:figures:one*") if client.type(key) == "hash"]
    older: dict[Any, Any] = {key: client.hgetall(key) for key in hashes}
    one.receive(2)
    one.recorder.beat()
    for key, fields in older.items():
        client.hset(key, mapping=fields)
    one.recorder.beat()
    assert (other.received, other.received_over_time) == (5, [5, 5, 5])


def test_while_redis_is_away_a_machine_knows_its_own(tmp_path: Path) -> None:
    redis = RedisServer().start()
    machines = Machines(tmp_path, redis)
    one, other = machines.start("one"), machines.start("other")
    one.receive(3)
    other.receive(4)
    one.recorder.beat()
    redis.kill()
    other.recorder.beat()
    seen = other.counted.fleet()
    assert (seen.sums.received, seen.is_whole) == (4, False)
    assert other.received_over_time == [4, 4, 4]
    redis.start()
    one.recorder.beat()
    other.recorder.beat()
    seen = other.counted.fleet()
    assert (seen.sums.received, seen.is_whole) == (7, True)
    machines.close()
    redis.stop()


def test_everything_on_redis_has_an_end(machines: Machines, redis_server: RedisServer) -> None:
    one = machines.start("one")
    one.receive(1)
    one.recorder.beat()
    keys = redis_server.client.keys("*")
    assert len(keys) == 6
    assert all(redis_server.client.ttl(key) > 0 for key in keys)


def test_old_buckets_go_from_redis_too(machines: Machines, redis_server: RedisServer) -> None:
    one = machines.start("one")
    long_ago = int(time.time() - KEPT_S[HOUR_S] - 2 * HOUR_S)
    redis_server.client.hset(f"test:figures:one:{HOUR_S}", str(long_ago), "{}")
    one.receive(1)
    one.recorder.beat()
    assert str(long_ago) not in redis_server.client.hkeys(f"test:figures:one:{HOUR_S}")
    assert redis_server.client.hlen(f"test:figures:one:{HOUR_S}") == 1


def test_workers_are_counted_over_the_fleet_and_web_processes_are_none(machines: Machines) -> None:
    web, worker, other = machines.start("one"), machines.start("one", "worker"), machines.start("other", "worker")
    for machine in (web, worker, other):
        machine.recorder.beat()
    web.recorder.beat()
    assert [machine.counted.workers_alive() for machine in (web, worker, other)] == [2, 2, 2]


def test_a_worker_that_is_silent_or_ended_is_not_alive(machines: Machines) -> None:
    web, worker, other = machines.start("one"), machines.start("one", "worker"), machines.start("other")
    worker.recorder.beat()
    worker.recorder.start()
    assert other.counted.workers_alive() == 1
    worker.recorder.close()
    assert (web.counted.workers_alive(), other.counted.workers_alive()) == (0, 0), "it says so when it ends"
    worker.slot.tally.put(BEAT, time.time() - ALIVE_FOR_S - 1)
    web.recorder.beat()
    assert (web.counted.workers_alive(), other.counted.workers_alive()) == (0, 0)


def test_time_is_counted_by_the_side_the_machine_is_on(machines: Machines) -> None:
    one = machines.start("one")
    recorder = Recorder(one.counted, one.meter, side=lambda: "local")
    recorder.beat()
    recorder.beat()
    assert one.counted.here().counts["side_s|local"] > 0


def test_what_is_recorded_while_somebody_reads_is_read_once(
    machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, its_worker = machines.start("one"), machines.start("one", "worker")
    one.receive(3)
    one.recorder.beat()
    one.receive(2)
    here = Counted.here

    def record_meanwhile(counted: Counted) -> Sums:
        with monkeypatch.context() as once:
            once.setattr(Counted, "here", here)
            its_worker.recorder.beat()
            one.receive(1)
            return here(counted)

    monkeypatch.setattr(Counted, "here", record_meanwhile)
    start = int(time.time() // HOUR_S) * HOUR_S
    buckets, _ = one.counted.over_time(HOUR_S, [start - HOUR_S, start])
    assert sum(sums.received for sums in buckets.values()) == 6
