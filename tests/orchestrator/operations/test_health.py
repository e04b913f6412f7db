"""Health and banners for each kind of trouble, and what is known of providers."""

from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest

from orchestrator.config.model import AlertCondition, AlertsConfig
from orchestrator.metrics.meter import EMAILS, REFUSED
from orchestrator.operations.alarms import Alarms
from orchestrator.operations.fleet_state import FleetState, Pause
from orchestrator.operations.health import (
    UNTRUSTED_PROXY,
    Health,
    is_ready,
    note_untrusted_proxy,
    read_health,
)
from orchestrator.operations.stats import read_providers
from tests.orchestrator.operations.fleet_bench import Process
from tests.orchestrator.operations.test_alarms import BROKEN, EVICTING, FACTS, SOUND, crm, died

FULL = FACTS.model_copy(update={"redis_payload_bytes": 96})
GONE: dict[str, Any] = {"redis_status": "gone", "lost_ms": 1_800_000_000_000, "unpublished": 1234}


def report(process: Process, state: FleetState, after_s: int = 0, **settings: Any) -> Health:
    process.alarms = Alarms(process.coordinator, AlertsConfig(after_s=after_s))
    process.alarms.evaluate(state)
    process.settings = process.settings.model_copy(update={"memory_limit_mb": 100_000, **settings})
    with patch("orchestrator.operations.health.fleet_state", lambda _: state):
        return read_health(process.service)


@pytest.mark.parametrize(
    ("changes", "check", "status", "headline"),
    [
        ({}, "redis", "up", None),
        ({"redis_status": None}, "redis", "not configured", None),
        (GONE, "redis", "down", "Redis does not answer"),
        ({"redis_status": "suspected"}, "redis", "down", "Redis does not answer"),
        ({"gap_ms": 1}, "fleet", "gap", "This machine missed a part of the fleet's work"),
        ({"behind_s": 61}, "fleet", "behind", "This machine has not read all"),
        ({"behind_s": None}, "fleet", "behind", "This machine has not read all"),
        ({"behind_s": 60}, "fleet", "up", None),
        ({"disk_free_bytes": 1}, "storage", "full", "No room is left"),
        ({"facts": FULL}, "storage", "full", "No room is left"),
        ({"workers": 0}, "workers", "no worker", "Alarm: No worker is running"),
        ({"workers": None}, "workers", "not configured", None),
        (crm(breaker="open"), "destinations", "in trouble", "Alarm"),
        (crm(oldest_s=901), "deliveries", "late", "Alarm"),
        (died(2), "destinations", "in trouble", "Alarm"),
        (crm(dead=37), "destinations", "up", None),
        ({"facts": EVICTING}, "redis", "in trouble", "Alarm: Redis may forget names"),
    ],
)
def test_each_trouble_has_a_check_and_a_banner(
    process: Process, changes: dict[str, Any], check: str, status: str, headline: str | None
) -> None:
    found = report(process, replace(SOUND, **changes))
    assert found.checks[check].status == status
    is_ok = all(each.status in ("up", "not configured") for each in found.checks.values())
    assert (found.status, bool(found.alarms)) == ("ok" if is_ok else "degraded", (headline or "").startswith("Alarm"))
    texts = [f"{'Alarm: ' * (problem.about in set(AlertCondition))}{problem.text}" for problem in found.problems]
    assert [text.startswith(headline or "") for text in texts] == [True] * bool(headline)


def test_an_outage_says_since_when_and_how_much_is_unpublished(process: Process) -> None:
    (banner,) = report(process, replace(SOUND, **GONE)).problems
    assert (banner.since, "1,234" in banner.text) == ("2027-01-15T08:00:00+00:00", True)


def test_warnings_are_loud_and_change_no_status(process: Process) -> None:
    found = report(process, replace(SOUND, facts=FACTS.model_copy(update={"used_bytes": None})))
    assert (found.status, "INFO" in found.warnings[0], len(found.problems)) == ("ok", True, 1)


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({}, "ok"),
        ({"breaker": "open"}, "failing"),
        ({"breaker": "half-open", "dead": 1}, "failing"),
        ({"failing": True, "waiting": 1}, "failing"),
        ({"failing": True}, "ok"),  # the last one failed, and is a dead letter or was returned
        ({"oldest_s": 901}, "late"),
        ({"dead": 37}, "dead letters"),
        ({"paused": Pause(since="", reason="", by=""), "breaker": "open"}, "paused"),
        ({"enabled": False, "dead": 1}, "disabled"),
        ({"enabled": None, "breaker": None, "dead": 1}, "removed"),
    ],
)
def test_a_destination_has_one_status_wherever_it_is_shown(
    process: Process, changes: dict[str, Any], status: str
) -> None:
    found = report(process, replace(SOUND, **crm(**changes)))
    assert (found.checks["destinations"].model_extra or {})["states"] == {"crm": status}
    if status in ("failing", "late") and not changes.get("failing"):
        assert [alarm.destination for alarm in found.alarms] == ["crm"]
        assert found.status == "degraded"


def test_health_is_not_ok_while_an_alarm_is_on(process: Process) -> None:
    report(process, BROKEN)
    with patch("orchestrator.operations.health.fleet_state", lambda _: SOUND):
        found = read_health(process.service)
    (alarm,) = found.alarms
    assert (found.status, found.checks["destinations"].problem) == ("degraded", alarm.text)
    assert alarm.model_dump().keys() >= {"condition", "destination", "since", "text"}
    (shown,) = found.model_dump()["alarms"]
    assert shown.keys() == {"condition", "destination", "since", "text"}, "not how it is sent"
    report(process, SOUND)
    assert read_health(process.service).alarms == []


def test_a_problem_is_shown_before_it_is_an_alarm(process: Process) -> None:
    found = report(process, BROKEN, after_s=60, memory_limit_mb=1)
    assert found.alarms == []
    breaker, memory = [problem.text for problem in found.problems]
    assert breaker.startswith("crm keeps failing. Its circuit breaker is open.")
    assert memory.endswith(" MB, more than MEMORY_LIMIT_MB (1)")


def test_a_pause_is_not_bad(process: Process) -> None:
    paused = Pause(since="2026-11-16T09:00:00+00:00", reason="it moves", by="Ada")
    (banner,) = report(process, replace(SOUND, **crm(paused=paused))).problems
    assert (banner.text, banner.is_bad) == ("crm is paused (it moves). New emails for it are queued", False)
    assert (banner.about, banner.destination) == ("paused", "crm")


def test_a_journal_that_cannot_be_used_is_down(process: Process) -> None:
    assert is_ready(process.service) and read_health(process.service).status != "down"
    process.journal.close()
    assert not is_ready(process.service)
    found = read_health(process.service)
    assert (found.status, found.checks["database"].status) == ("down", "down")
    assert [problem.text[:42] for problem in found.problems] == ["The journal of this machine cannot be used"]


def test_the_last_email_and_refusal_of_a_provider_are_known_to_all_processes(process: Process) -> None:
    other = Process(process.machine, process.machine.folder)
    process.meter.count((1, EMAILS, "gmail", "queued", ""))
    process.meter.count((1, EMAILS, "gmail", "processed", ""))
    process.meter.count((1, EMAILS, "gmail", "invalid", ""))
    other.meter.count((0, REFUSED, "gmail", "x" * 1000))
    read_providers(process.service)
    now_ms = process.machine.time.now_ms
    assert read_providers(other.service) == {
        "gmail:email": (now_ms, "processed"),
        "gmail:refusal": (now_ms, "x" * 200),
    }


def test_a_proxy_that_is_not_trusted_is_logged_once_and_shown(
    process: Process, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        note_untrusted_proxy(process.service, "192.0.2.7")
    assert process.notices == [UNTRUSTED_PROXY]
    (line,) = caplog.messages
    assert "TRUSTED_PROXIES" in line and "192.0.2.7" in line
