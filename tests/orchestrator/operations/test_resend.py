"""What cannot be released or replayed, and what is too old; tests/routes has the rest, as operators do it."""

from __future__ import annotations

from collections.abc import Callable

from orchestrator.operations.resend import Release, Replay, release, release_many, replay, replay_email, replay_many
from orchestrator.operations.search import DeliveryFilter
from tests.orchestrator.operations.conftest import Desk
from tests.support.pipeline import STARTED


def test_each_refusal_has_its_reason(desk: Desk) -> None:
    (first,) = desk.decisions(status="processed")
    (stopped,) = desk.decisions(gate="subject_group")
    assert release_many(desk.service, [stopped.id, first.id, "nothing"], Release()) == {
        "released": 1,
        "not_suppressed": 1,
        "unknown": 1,
    }
    assert release(desk.service, stopped.id, Release()) == "already_released"
    assert replay_email(desk.service, first.id, Replay()) == "already_delivered"
    assert replay_email(desk.service, "nothing", Replay()) == "unknown"
    for dry_run in (True, False):
        assert replay(desk.service, f"{first.id}:crm", Replay(force=True, dry_run=dry_run)) == "no_payload"


def test_a_dry_run_says_of_each_match_what_would_happen_and_does_nothing(desk: Desk) -> None:
    wanted = DeliveryFilter(destination="slack")
    for _ in range(2):
        assert replay_many(desk.service, wanted, Replay(dry_run=True)) == {"would_replay": 2, "already_delivered": 2}


def test_a_released_email_says_so_and_cannot_be_released_again(desk: Desk) -> None:
    (stopped,) = desk.decisions(gate="subject_group")
    assert release(desk.service, stopped.id, Release(), at_once=True) == "released"
    assert desk.bench.destinations["crm"].taken[-1].payload["subject"] == stopped.subject
    (after,) = desk.decisions(q="rappel")
    assert (after.status, after.releasable_until) == ("processed", None)
    assert after.reason.startswith("Released at ")


def test_what_is_too_old_is_listed_and_can_be_released(start_desk: Callable[..., Desk]) -> None:
    desk = start_desk(realtime_only=True)
    old = {"subject": "Yesterday's news", "date": STARTED.replace(year=2020).isoformat()}
    for _ in range(2):
        assert desk.bench.status_of(**old) == "skipped_old"
    (listed,) = desk.decisions(status="skipped_old", q="yesterday")
    assert listed.reason.startswith("Not sent: it is older than the service")
    assert release(desk.service, listed.id, Release(), at_once=True) == "released"
    assert [webhook.payload["subject"] for webhook in desk.bench.destinations["crm"].taken] == ["Yesterday's news"]
