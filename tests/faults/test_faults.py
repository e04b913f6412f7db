"""Short versions of some faults, several after each other on the same machines. make faults has all of them."""

import pytest

from tests.faults.scenarios import SCENARIOS
from tests.faults.world import SHORT, opened, run_in

pytestmark = pytest.mark.real_redis

TOGETHER = (
    (
        "the reply of a hold lost",
        "network cut, sticky",
        "one machine cut off stores nothing",
        "deliveries under way when Redis goes",
    ),
    ("Redis emptied while requests are under way", "stream trimmed behind a machine that slept"),
    ("disk lost with emails queued", "a machine away for an hour"),
    ("kill -9 after the note",),
    ("large emails by link",),
)


@pytest.mark.parametrize("names", TOGETHER, ids=lambda names: names[0])
def test_nothing_is_lost_and_nothing_arrives_twice(names: tuple[str, ...]) -> None:
    """How long it takes is judged by make faults: here other tests run beside it."""
    scenarios = [next(each for each in SCENARIOS if each.name == name) for name in names]
    with opened(scenarios[0].setup, SHORT) as world:
        for scenario in scenarios:
            result = run_in(world, scenario)
            assert result.wrong == [], result.row
