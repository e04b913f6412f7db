from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from tests.deduplication.journal3.world import Machine, Time
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


@pytest.fixture(params=["sqlite", "redis"])
def pair(request: pytest.FixtureRequest, time: Time) -> Iterator[tuple[Machine, Machine]]:
    """The same promises on one machine without Redis, and on two that share one."""
    if request.param == "sqlite":
        machine = Machine(None, time)
        yield machine, machine
        machine.close()
        return
    fleet: Fleet3 = request.getfixturevalue("fleet")
    machines = fleet.add(), fleet.add()
    fleet.open()
    yield machines


Sync = Callable[[], None]


@pytest.fixture
def sync(pair: tuple[Machine, Machine]) -> Sync:
    """Everything is published; nothing is followed: the second machine hears of it from Redis."""

    def run() -> None:
        for machine in pair:
            machine.tick()

    return run
