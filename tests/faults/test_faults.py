"""The short version of a scenario for each kind of fault; make faults has them all, and longer."""

from __future__ import annotations

import pytest

from tests.faults.mutants import MUTANTS
from tests.faults.scenarios import SCENARIOS, Scenario
from tests.faults.world import SHORT, run

pytestmark = pytest.mark.real_redis

# In a short run their fault does not strike each time; make faults has them, and the journal's tests hold the promises.
LONG_ONLY = ("cut after send (reply lost)", "reset and replay in traffic", "SIGSTOP Redis 3 s")


@pytest.mark.parametrize(
    "scenario",
    [each for each in SCENARIOS if each.in_make_test and each.name not in LONG_ONLY],
    ids=lambda scenario: scenario.name,
)
def test_nothing_is_lost_and_nothing_comes_twice(scenario: Scenario) -> None:
    result = run(scenario, SHORT)
    assert result.problems == [], result.row


def test_for_each_mutant_there_are_scenarios_that_should_notice() -> None:
    assert {name for mutant in MUTANTS.values() for name in mutant.caught_by} <= {each.name for each in SCENARIOS}
