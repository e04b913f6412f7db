from __future__ import annotations

from typing import Any

import pytest

from routes.terminal import BARS, SPARK_WIDTH, sparkline, stats_table


def figures(**totals: Any) -> dict[str, Any]:
    point = {"start_s": 0, "received": 5, "delivered": 3, "stopped": 1, "failed": 0}
    known: dict[str, Any] = {
        "received": 1_234,
        "delivered": 1_000,
        "failed": 7,
        "duplicates": 200,
        "suppressed": 34,
        "hit_rate": 0.1896,
    }
    known |= {"statuses": {"processed": 1_000}, "waiting": 2, "oldest_waiting_s": 600, "dead": 1, "workers_alive": None}
    times = {"delivered": 3, "failed": 0, "whole_p50_ms": 12.4, "whole_p95_ms": None}
    return {
        "totals": known | {"is_whole": True} | totals,
        "over_time": {"span": "day", "points": [point], "total": point, "destinations": {"crm": times}},
        "destinations": {"crm": destination(), "gone": destination(enabled=None, breaker=None)},
    }


def destination(**more: Any) -> dict[str, Any]:
    return {"enabled": True, "breaker": "closed", "paused": None, "deliveries": {"waiting": 2, "dead": 1}} | more


def test_the_table_has_what_came_and_what_became_of_it() -> None:
    lines = stats_table(figures()).splitlines()
    assert lines[1].split() == ["received", "1,234", "5", "█"]
    assert lines[3].split() == ["stopped", "234", "1", "█"]
    assert "duplicates 200, suppressed 34 (19.0% stopped)" in lines
    assert "waiting 2, the oldest for 10 min; dead 1" in lines
    assert next(line.split() for line in lines if line.startswith("crm")) == [
        "crm",
        "well",
        "2",
        "1",
        "3",
        "0",
        "12",
        "ms",
        "-",
    ]
    assert next(line.split()[:2] for line in lines if line.startswith("gone")) == ["gone", "gone"]


def test_workers_and_an_outage_are_told_where_there_are_some() -> None:
    assert "workers" not in stats_table(figures())
    assert "workers alive: 0" in stats_table(figures(workers_alive=0))
    assert "Redis does not answer" not in stats_table(figures())
    assert "Redis does not answer" in stats_table(figures(is_whole=False))


@pytest.mark.parametrize(
    ("more", "state"),
    [
        ({}, "well"),
        ({"breaker": "open"}, "breaker open"),
        ({"paused": {"since": "", "reason": "", "by": ""}, "breaker": "open"}, "paused"),
        ({"enabled": False}, "disabled"),
    ],
)
def test_the_state_of_a_destination_is_one_word(more: dict[str, Any], state: str) -> None:
    shown = figures() | {"destinations": {"crm": destination(**more)}}
    assert f"crm          {state} " in stats_table(shown)


def test_a_sparkline_shows_whatever_is_more_than_nothing() -> None:
    assert sparkline([0, 1, 4, 8]) == " ▁▄█"
    assert sparkline([1, 1_000_000]) == "▁█"
    assert sparkline([0, 0]) == "  "
    assert sparkline([]) == ""


def test_a_long_one_is_summed_up_with_now_at_its_end() -> None:
    numbers = [0.0] * 143 + [5.0]
    shown = sparkline(numbers)
    assert len(shown) <= SPARK_WIDTH
    assert (shown[-1], set(shown[:-1])) == (BARS[-1], {" "})
    assert sum(len(sparkline([1.0] * count)) <= SPARK_WIDTH for count in range(1, 200)) == 199
