"""The service on one machine without Redis, or on two that share one; days pass when a test says so."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any

import pytest

from deduplication.errors import StoreUnavailable
from deduplication.files import Retention
from deduplication.journal.registry import RegistryOptions
from tests.deduplication.conftest import Bench
from tests.deduplication.journal.world import HOLD_MS, Line
from tests.support.pipeline import FakeDestination, PipelineBench, open_pipeline

DAY_MS = 24 * 3_600_000
Fields = dict[str, Any]


@dataclass
class Town:
    """``places``: processes of one machine, or two machines that share a Redis. All send to ``crm``."""

    bench: Bench
    crm: FakeDestination = field(default_factory=FakeDestination)
    line: Line = field(default_factory=Line)
    places: list[PipelineBench] = field(default_factory=list)

    def settle(self) -> None:
        """Everything is published, read, and ended that is kept no longer."""
        for machine in (self.bench.first, self.bench.second) * 2:
            with suppress(StoreUnavailable):
                machine.tick()
                machine.follow()
            machine.coordinator.tend()

    def pass_days(self, days: float) -> None:
        self.settle()
        self.bench.advance(int(days * DAY_MS))
        self.settle()

    def status_of(self, fields: Fields, place: int = 0) -> str:
        return str(self.places[place].send(**fields).status)

    def statuses(self, fields: Fields) -> set[str]:
        """The answers, if the email arrives everywhere."""
        found = set()
        for place in range(len(self.places)):
            found.add(self.status_of(fields, place))
            self.settle()
        return found


Build = Callable[..., Town]


@pytest.fixture
def build(bench: Bench) -> Iterator[Build]:
    with ExitStack() as stack:

        def build(decision_days: int = 7, suppressed_bytes: int = 64 << 20, **route: Any) -> Town:
            town, kept_ms = Town(bench), decision_days * DAY_MS
            for machine in (bench.first, bench.second):
                machine.retention = Retention(entry_ms=kept_ms, suppressed_bytes=suppressed_bytes)
                machine.options = RegistryOptions(hold_ms=HOLD_MS, entry_ms=kept_ms)
                machine.wrap = town.line.wrap
                machine.restart()
                opened = open_pipeline(machine, {"crm": town.crm}, **route)
                town.places.append(stack.enter_context(opened))
            town.pass_days(6)  # to the beginning of a month
            return town

        yield build
