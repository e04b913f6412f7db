from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from redis import Redis

from deduplication.journal.coordinator import Coordinator
from tests.deduplication.journal.world import HOLD_MS, Machine, Time, TimeOfRedis
from tests.support.redis_server import RedisServer


@dataclass
class Fleet3:
    """Machines that share a Redis, and what makes and ends them."""

    redis: RedisServer
    time: Time
    machines: list[Machine] = field(default_factory=list)

    def add(self, url: str = "", **options: object) -> Machine:
        machine = Machine(url or self.redis.url, self.time, **options)  # type: ignore[arg-type]
        self.machines.append(machine)
        return machine

    def open(self) -> None:
        """Ends the time for which a new era is closed, and lets every machine see it."""
        for machine in self.machines:
            machine.tick()
        end_hold(self.redis)
        self.settle_down()

    def settle_down(self) -> None:
        """Everything is published and read."""
        for machine in (*self.machines, *self.machines):
            machine.tick()
            machine.follow()


def end_hold(redis: RedisServer) -> None:
    """As if HOLD had passed: Redis' own time cannot be set."""
    era = redis.client.get("era")
    assert isinstance(era, str)
    redis.client.set("era", " ".join([*era.split()[:3], "0"]))


@pytest.fixture
def time() -> Time:
    import time as system

    return Time(now_ms=system.time_ns() // 1_000_000)


@pytest.fixture
def fleet(redis_server: RedisServer, time: Time) -> Iterator[Fleet3]:
    redis_server.client.flushall()
    found = Fleet3(redis_server, time)
    yield found
    for machine in found.machines:
        machine.close()


@dataclass
class Bench:
    """Two processes that share a journal, or two machines that share a Redis whose time is handed in."""

    first: Machine
    second: Machine
    redis: RedisServer | None

    @property
    def one(self) -> Coordinator:
        return self.first.coordinator

    @property
    def other(self) -> Coordinator:
        return self.second.coordinator

    @property
    def client(self) -> Redis:
        assert self.redis, "mark it ON_REDIS"
        return self.redis.client

    def advance(self, ms: int) -> None:
        self.first.time.pass_ms(ms)


ON_REDIS = pytest.mark.parametrize("bench", ["redis"], indirect=True)


@pytest.fixture(params=["sqlite", "redis"])
def bench(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Bench]:
    if request.param == "sqlite":
        time = Time()
        one, two = (Machine(None, time, folder=tmp_path, host="here") for _ in range(2))
        found = Bench(one, two, None)
    else:
        server: RedisServer = request.getfixturevalue("redis_server")
        time = TimeOfRedis(server, monkeypatch)
        found = Bench(Machine(server.url, time), Machine(server.url, time), server)
        for machine in (found.first, found.second):
            machine.tick()
        found.advance(HOLD_MS + 1)
        for machine in (found.first, found.second):
            machine.tick()
    yield found
    found.first.close()
    found.second.close()


@pytest.fixture
def pair(bench: Bench) -> tuple[Machine, Machine]:
    """The same promises for two processes of one machine without Redis, and for two machines that share one."""
    return bench.first, bench.second


Sync = Callable[[], None]


@pytest.fixture
def sync(pair: tuple[Machine, Machine]) -> Sync:
    """Everything is published; nothing is followed: the second machine hears of it from Redis."""

    def run() -> None:
        for machine in pair:
            machine.tick()

    return run
