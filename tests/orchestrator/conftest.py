"""The pipeline on one machine without Redis, and on one with it. Time passes only when a test says so."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from deduplication.journal import registry
from orchestrator.delivery import sender
from tests.deduplication.journal.world import HOLD_MS, HandedScript, Machine, Time
from tests.support.pipeline import FakeDestination, PipelineBench, Reaction, open_pipeline
from tests.support.redis_server import RedisServer

Open = Callable[..., PipelineBench]


@pytest.fixture(params=["sqlite", "redis"])
def machine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    time = Time()
    if request.param == "sqlite":
        machine = Machine(None, time)
    else:
        server: RedisServer = request.getfixturevalue("redis_server")
        monkeypatch.setattr(registry, "_Script", HandedScript)
        server.client.set("test:run", "a1")
        server.client.set("test:now", time.now_ms)
        machine = Machine(server.url, time)
        machine.tick()
        _pass(machine, HOLD_MS + 1)
        machine.tick()
        machine.follow()
    yield machine
    machine.close()


def _pass(machine: Machine, ms: int) -> None:
    machine.time.pass_ms(ms)
    if machine.url:
        machine.clients[0].set("test:now", machine.time.now_ms)


@pytest.fixture
def start(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    """A process on the machine, with destinations by name and how each of them reacts. ``impatient`` names those whose
    first failure is final."""
    monkeypatch.setattr(sender, "QUICK_PAUSE_S", 0.0)
    with ExitStack() as stack:

        def start(
            reactions: dict[str, list[Reaction]] | None = None, impatient: Collection[str] = (), **options: Any
        ) -> PipelineBench:
            fakes = {name: FakeDestination(list(each)) for name, each in (reactions or {"crm": []}).items()}
            for name in impatient:
                fakes[name].max_attempts = 1
            opened = open_pipeline(machine, fakes, lambda ms: _pass(machine, ms), **options)
            return stack.enter_context(opened)

        yield start
