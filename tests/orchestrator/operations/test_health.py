"""Health and banners for each kind of trouble, and what is known of providers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from deduplication.journal.sqlite import Journal
from orchestrator.metrics.shared import RedisFacts
from orchestrator.operations.alarms import Alarms
from orchestrator.operations.fleet_state import FleetState, Outside
from orchestrator.operations.health import Health, HealthChecks, banners
from orchestrator.operations.providers import MOST_WHY_CHARACTERS, ProviderSeen, ProvidersSeen
from tests.orchestrator.operations.fleet_bench import Process, open_process, process, time
from tests.orchestrator.operations.test_alarms import BROKEN, SOUND, crm, lately

__all__ = ["open_process", "process", "time"]  # fixtures

FACTS = RedisFacts(maxmemory_policy="noeviction", most_payload_bytes=100)
FULL = FACTS.model_copy(update={"payload_bytes": 96})
GONE: dict[str, Any] = {"redis_status": "gone", "lost_ms": 1_800_000_000_000, "unpublished": 1234}


def report(process: Process, state: FleetState, **settings: Any) -> Health:
    class Observer:
        def fleet_state(self) -> FleetState:
            return state

        def is_ready(self) -> bool:
            return True

    alarms = Alarms(process.journal, after_ms=0)
    alarms.look(state)
    own = process.settings.model_copy(update={"memory_limit_mb": 100, **settings})
    return HealthChecks(own, Observer(), alarms, lambda: 50 << 20).report()  # type: ignore[arg-type]


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
        ({"outside": Outside(redis=FULL)}, "storage", "full", "No room is left"),
        ({"outside": Outside(redis=FACTS, queue_error="x")}, "queue", "down", "The queue does not answer"),
        ({"workers": 0}, "queue", "no worker", "Alarm: The queue has no worker"),
        ({"workers": None}, "queue", "not configured", None),
        (crm(breaker="open"), "destinations", "in trouble", "Alarm"),
        (crm(oldest_s=901), "deliveries", "late", "Alarm"),
    ],
)
def test_each_trouble_has_a_check_and_a_banner(
    process: Process, changes: dict[str, Any], check: str, status: str, headline: str | None
) -> None:
    found = report(process, replace(SOUND, **changes))
    assert found.checks[check].status == status
    assert found.status == ("ok" if status in ("up", "not configured") else "degraded")
    texts = [each.text for each in banners(found)]
    assert [text.startswith(headline or "") for text in texts] == [True] * bool(headline)


def test_an_outage_says_since_when_and_how_much_is_unpublished(process: Process) -> None:
    (banner,) = banners(report(process, replace(SOUND, **GONE)))
    assert banner.since == "2027-01-15T08:00:00+00:00"
    assert "1,234" in banner.text


def test_warnings_are_loud_and_change_no_status(process: Process) -> None:
    facts = RedisFacts(maxmemory_policy="allkeys-lru", most_payload_bytes=1, detects_rollback=False)
    found = report(process, replace(SOUND, outside=Outside(redis=facts)))
    assert found.status == "ok"
    assert ["allkeys-lru" in found.warnings[0], "INFO" in found.warnings[1]] == [True, True]
    assert [each.text.split()[0] for each in banners(found)] == ["Alarm:", "Redis", "Redis"]


def test_a_breaker_without_an_alarm_and_memory_over_the_limit(process: Process) -> None:
    found = report(process, BROKEN, memory_limit_mb=49).model_copy(update={"alarms": []})
    assert [each.text for each in banners(found)] == [
        "Circuit breaker open: crm. New emails are queued",
        "This process uses 50.0 MB, more than MEMORY_LIMIT_MB (49)",
    ]


def test_a_pause_is_not_bad(process: Process) -> None:
    process.states.decide("crm", is_paused=True, reason="it moves", by="Ada")
    paused = process.states.of("crm")
    (banner,) = banners(report(process, replace(SOUND, **crm(paused=paused))))
    assert (banner.text, banner.is_bad) == ("crm is paused (it moves). New emails for it are queued", False)


def test_a_journal_that_cannot_be_used_is_down(process: Process) -> None:
    checks = HealthChecks(process.settings, process.observer, Alarms(process.journal))
    assert checks.is_ready() and checks.report().status != "down"
    process.journal.close()
    assert not checks.is_ready()
    found = checks.report()
    assert (found.status, found.checks["database"].status) == ("down", "down")
    assert [each.text[:42] for each in banners(found)] == ["The journal of this machine cannot be used"]


def test_dead_letters_raise_an_alarm_on_health(process: Process) -> None:
    found = report(process, replace(SOUND, **lately(died={"crm": 2})))
    assert [(each.condition, each.destination) for each in found.alarms] == [("dead_letters", "crm")]


def test_the_last_email_and_refusal_of_a_provider_are_known_to_all_processes(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.db")
    moments = iter(range(1, 100))
    here, there = (ProvidersSeen(journal, lambda: next(moments)) for _ in range(2))
    here.note_email("gmail", "processed")
    there.note_refusal("gmail", "x" * 1000)
    assert there.read() == {"gmail": ProviderSeen(0, "", 2_000, "x" * MOST_WHY_CHARACTERS)}
    here.flush()
    there.flush()
    both = {"gmail": ProviderSeen(1_000, "processed", 2_000, "x" * MOST_WHY_CHARACTERS)}
    assert here.read() == there.read() == ProvidersSeen(journal).read() == both
    here.note_email("gmail", "retry_later")
    there.note_email("gmail", "queued")
    there.flush()
    here.flush()
    assert here.read()["gmail"].status == "queued", "an older one never replaces it"
    journal.close()
