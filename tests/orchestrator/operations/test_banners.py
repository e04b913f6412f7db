from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from orchestrator.operations.banners import banners
from orchestrator.operations.health import Health

SINCE = "2026-11-17T02:00:00+00:00"
WELL = Health(
    status="ok",
    version="0.1.0",
    checks={
        "redis": {"status": "up", "side": "redis", "since": SINCE, "unmerged": 0},
        "database": {"status": "up"},
        "storage": {"status": "up"},
        "queue": {"status": "up", "workers": 1},
        "destinations": {"status": "up", "breakers": {"crm": "closed"}},
        "deliveries": {"status": "up", "oldest_waiting_s": {}},
        "memory": {"status": "up"},
    },
    warnings=[],
    paused={},
    alarms=[],
)


def told(**changed: dict[str, Any]) -> list[str]:
    """The headlines, with these checks instead."""
    return [each.headline for each in banners(replace(WELL, checks=WELL.checks | changed))]


def test_where_all_is_well_nothing_is_said() -> None:
    assert banners(WELL) == []
    assert told(redis={"status": "not configured"}, queue={"status": "not configured"}) == []


@pytest.mark.parametrize(
    ("check", "headline"),
    [
        ({"redis": {"status": "down", "side": "local", "since": SINCE, "unmerged": 3}}, "Redis is away"),
        ({"redis": {"status": "down", "side": "redis", "error": "slow"}}, "Redis does not answer"),
        ({"destinations": {"status": "in trouble", "breakers": {"crm": "open"}}}, "crm keeps failing"),
        ({"queue": {"status": "down", "error": "x"}}, "The queue is away"),
        ({"queue": {"status": "no worker", "workers": 0}}, "The queue has no worker"),
        ({"database": {"status": "down", "error": "x"}}, "The journal of this machine cannot be used"),
        ({"storage": {"status": "over the limit", "stage": "disk"}}, "Redis has no room for payloads"),
        ({"storage": {"status": "over the limit", "stage": "full"}}, "There is no room for payloads"),
        ({"memory": {"status": "over the limit"}}, "This process takes more memory than MEMORY_LIMIT_MB"),
    ],
)
def test_each_trouble_is_said_in_words(check: dict[str, Any], headline: str) -> None:
    assert told(**check) == [headline]


def test_an_outage_says_since_when_and_what_will_be_told() -> None:
    away = {"status": "down", "side": "local", "since": SINCE, "unmerged": 1234}
    (banner,) = banners(replace(WELL, checks=WELL.checks | {"redis": away}))
    assert banner.since == SINCE
    assert "1,234 of its decisions will be told" in banner.text


def test_while_redis_is_away_payloads_go_to_the_disk_as_they_should() -> None:
    away = {"status": "down", "side": "local", "since": SINCE, "unmerged": 0}
    assert told(redis=away, storage={"status": "over the limit", "stage": "disk"}) == ["Redis is away"]


def test_an_alarm_about_a_breaker_is_not_said_twice() -> None:
    alarm: dict[str, str | None] = {"condition": "breaker", "destination": "crm", "since": SINCE, "text": "crm fails"}
    trouble = {"status": "in trouble", "breakers": {"crm": "open", "archive": "half-open"}}
    said = banners(replace(WELL, checks=WELL.checks | {"destinations": trouble}, alarms=[alarm]))
    assert [each.headline for each in said] == ["Alarm", "archive keeps failing"]
    assert said[0].text == "crm fails"


def test_a_pause_is_somebodys_wish_and_a_warning_is_not() -> None:
    paused = {"crm": {"since": SINCE, "reason": "it moves", "by": "Ada"}}
    pause, warning = banners(replace(WELL, paused=paused, warnings=["maxmemory-policy is allkeys-lru"]))
    assert (pause.headline, pause.text, pause.is_bad) == (
        "crm is paused",
        "Why: it moves. What comes for it waits.",
        False,
    )
    assert warning.is_bad and "allkeys-lru" in warning.text
