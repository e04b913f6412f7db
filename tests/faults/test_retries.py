"""The short version of what is retried while servers die; make faults has all of it, and longer."""

from __future__ import annotations

import pytest

from tests.faults.retries import down_for_half, followers
from tests.faults.world import SHORT

pytestmark = pytest.mark.real_redis


def test_what_a_destination_missed_comes_once_though_a_server_was_killed() -> None:
    run = down_for_half(SHORT.emails, SHORT.per_second)
    assert run.problems == [], run.row


@pytest.mark.parametrize(("step", "dies"), [("before finish", True), ("after begin", False)])
def test_of_a_group_one_goes_out_over_a_crash(step: str, dies: bool) -> None:
    run = followers(step, dies=dies)
    assert run.problems == [], run.row
