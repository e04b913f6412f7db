"""The short version of a scenario for each kind of fault; make faults has them all, and longer."""

from __future__ import annotations

import pytest

from tests.faults.mutants import MUTANTS
from tests.faults.scenarios import SCENARIOS, Scenario
from tests.faults.world import SHORT, run

pytestmark = pytest.mark.real_redis


@pytest.mark.parametrize(
    "scenario", [each for each in SCENARIOS if each.in_make_test], ids=lambda scenario: scenario.name
)
def test_nothing_is_lost_and_nothing_comes_twice(scenario: Scenario) -> None:
    """How long it took is judged by make faults: here other tests run beside it."""
    result = run(scenario, SHORT)
    assert result.wrong == [], result.row


def test_for_each_mutant_there_are_scenarios_that_should_notice() -> None:
    assert {name for mutant in MUTANTS.values() for name in mutant.caught_by} <= {each.name for each in SCENARIOS}
