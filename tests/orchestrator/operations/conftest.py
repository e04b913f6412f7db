"""Lists and actions over a pipeline that has received something, without Redis and with it."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC
from types import SimpleNamespace
from typing import Any, cast

import pytest

from orchestrator.build import Service
from orchestrator.operations.decisions import Decision, DeliveryView, list_decisions, list_deliveries
from orchestrator.operations.search import DecisionFilter, DeliveryFilter
from tests.orchestrator.conftest import Open
from tests.orchestrator.operations.fleet_bench import open_process, process, time
from tests.support.pipeline import DOWN, MAX_ATTEMPTS, REFUSES, PipelineBench

__all__ = ["open_process", "process", "time"]  # fixtures

DAY_MS = 24 * 3_600_000


@dataclass(frozen=True)
class Desk:
    """What an operator has in front of them."""

    bench: PipelineBench
    service: Service

    def decisions(self, **wanted: Any) -> list[Decision]:
        return list_decisions(self.service, DecisionFilter(**wanted), 100).decisions

    def subjects(self, **wanted: Any) -> list[str]:
        return [decision.subject for decision in self.decisions(**wanted)]

    def deliveries(self, **wanted: Any) -> list[DeliveryView]:
        return list_deliveries(self.service, DeliveryFilter(**wanted), 100).deliveries

    def flush(self) -> None:
        """What happens behind the requests every second."""
        self.bench.machine.coordinator.tend()


def open_desk(bench: PipelineBench) -> Desk:
    pipeline = bench.pipeline
    named = {name: SimpleNamespace(max_attempts=MAX_ATTEMPTS) for name in bench.destinations}
    service = SimpleNamespace(
        journal=bench.machine.journal,
        coordinator=bench.machine.coordinator,
        privacy=pipeline.privacy,
        sender=pipeline.sender,
        guard=pipeline.sender.guard,
        retrier=bench.retrier,
        config=SimpleNamespace(destinations=named),
        settings=SimpleNamespace(
            timezone=UTC,
            decision_ms=7 * DAY_MS,
            dead_letter_ms=30 * DAY_MS,
            keep_suppressed=True,
            deliver_by=pipeline.settings.deliver_by,
        ),
    )
    return Desk(bench, cast(Service, service))


@pytest.fixture
def start_desk(start: Open) -> Callable[..., Desk]:
    return lambda *given, **options: open_desk(start(*given, **options))


@pytest.fixture
def desk(start_desk: Callable[..., Desk]) -> Desk:
    """Four emails: delivered, of the same group, waiting at one destination, and dead at one."""
    desk = start_desk({"crm": [], "slack": []})
    slack = desk.bench.destinations["slack"]
    slack.by_subject |= {"To slow": [DOWN] * 9, "To gone": [REFUSES]}
    for subject, sender in (
        ("Lot 456 : nouvelle mission", "Ada <ada@one.example>"),
        ("Lot 456 : rappel", "Bob <bob@one.example>"),
        ("To slow", "ada@one.example"),
        ("To gone", "carl@three.example"),
    ):
        slack.max_attempts = 1 if subject == "To gone" else MAX_ATTEMPTS
        desk.bench.send(subject=subject, sender=sender, message_id=f"<{subject.replace(' ', '.')}@mail.example>")
        desk.bench.let_time_pass(1_000)
    slack.max_attempts = MAX_ATTEMPTS
    return desk
