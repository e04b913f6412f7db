"""Processes of a fleet as far as the figures see them: journals, a real Redis, and a clock that the tests set."""

import time as system
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from deduplication.journal.coordinator import Coordinator
from deduplication.journal.sqlite import Journal
from orchestrator.build import open_files
from orchestrator.config.model import load_config
from orchestrator.config.settings import load_settings
from orchestrator.delivery.counters import Counters
from orchestrator.delivery.guard import Guard
from orchestrator.metrics.meter import Meter
from orchestrator.operations.alarms import Alarms
from orchestrator.operations.fleet_state import FleetState, fleet_state
from orchestrator.watch import describe_machine, find_facts
from tests.deduplication.conftest import end_hold
from tests.deduplication.journal.world import Machine, Time
from tests.support.pipeline import limited
from tests.support.redis_server import RedisServer

CONFIG = """
[destinations.crm]
url = "http://127.0.0.1:9/"
[destinations.archive]
url = "http://127.0.0.1:9/"
enabled = false
[[routes]]
name = "all"
destinations = ["crm", "archive"]
"""


class Process:
    """What the figures need of a Service."""

    def __init__(self, machine: Machine, folder: Path, is_worker: bool = False, **settings: Any) -> None:
        path = folder / "mailonce.toml"
        path.write_text(CONFIG)
        self.machine = machine
        self.settings = load_settings(data_dir=machine.folder, mailonce_config=path, **settings)
        self.config = load_config(self.settings)
        self.coordinator: Coordinator = machine.coordinator
        self.journal: Journal = machine.journal
        self.is_worker = is_worker
        self.fleet = machine.fleet if machine.url else None
        self.meter = Meter(self.journal)
        self.files = open_files(self.settings, self.journal, self.meter)
        self.alarms = Alarms(self.coordinator, self.config.alerts)
        self.notices: list[str] = []
        configs = dict.fromkeys(self.config.destinations, limited(breaker_failures=1))
        self.guard = Guard(Counters(self.coordinator), configs)

    @property
    def service(self) -> Any:
        """As operations take it."""
        return self

    def state(self) -> FleetState:
        find_facts(self.service)
        return fleet_state(self.service)

    def share(self) -> None:
        self.meter.flush()
        self.meter.share(self.machine.registry)


@pytest.fixture
def time() -> Time:
    return Time(now_ms=system.time_ns() // 1_000_000)


OpenProcess = Callable[..., Process]


@pytest.fixture
def open_process(tmp_path: Path, time: Time, redis_server: RedisServer) -> Iterator[OpenProcess]:
    """On a machine of its own; ``with_redis``: one of a fleet that is at work."""
    redis_server.client.flushall()
    machines: list[Machine] = []

    def open_one(with_redis: bool = False, **options: Any) -> Process:
        machine = Machine(redis_server.url if with_redis else None, time)
        machines.append(machine)
        process = Process(machine, tmp_path, **options)
        if with_redis:
            machine.fleet._about = partial(describe_machine, process.service)
            machine.tick()
            end_hold(redis_server)
            machine.tick()
            machine.follow()
        return process

    yield open_one
    for machine in machines:
        machine.close()


@pytest.fixture
def process(open_process: OpenProcess) -> Process:
    """Without Redis."""
    return open_process()
