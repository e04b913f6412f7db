"""The short version of every scenario of make faults."""

from __future__ import annotations

import pytest

from tests.faults import queue_run
from tests.faults.scenarios import SCENARIOS, Scenario
from tests.faults.world import run

pytestmark = pytest.mark.real_redis


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_nothing_is_lost_and_nothing_comes_twice(scenario: Scenario) -> None:
    result = run(scenario, emails=100, duration_s=2.0, is_long=False)
    assert result.problems == [], result.row


def test_through_the_queue_everything_arrives_once_though_a_worker_is_killed() -> None:
    report = queue_run.run(queue_run.Plan(emails=60, duration_s=3.0, slow_s=0.1, deadline_s=240))
    assert report.problems == [], report.row
