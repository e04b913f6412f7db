"""The pipeline on one machine without Redis, and on one with it. Time passes only when a test says so."""

from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from orchestrator.delivery import sender
from tests.deduplication.journal.world import HOLD_MS, Machine, Time, TimeOfRedis
from tests.support.pipeline import FakeDestination, PipelineBench, Reaction, open_pipeline
from tests.support.redis_server import RedisServer

Open = Callable[..., PipelineBench]
ON_REDIS, WITHOUT_REDIS = (pytest.mark.parametrize("machine", [each], indirect=True) for each in ("redis", "sqlite"))


@pytest.fixture(params=["sqlite", "redis"])
def machine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    if request.param == "sqlite":
        machine = Machine(None, Time())
    else:
        server: RedisServer = request.getfixturevalue("redis_server")
        machine = Machine(server.url, TimeOfRedis(server, monkeypatch))
        machine.tick()
        machine.time.pass_ms(HOLD_MS + 1)
        machine.tick()
        machine.follow()
    yield machine
    machine.close()


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
            return stack.enter_context(open_pipeline(machine, fakes, **options))

        yield start
