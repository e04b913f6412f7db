"""Operators release what a gate stopped, and replay deliveries."""

from __future__ import annotations

from collections.abc import Callable

from deduplication.journal.entry import DeliveryStatus
from orchestrator.operations.resend import (
    Release,
    Replay,
    release,
    release_many,
    replay,
    replay_email,
    replay_many,
)
from orchestrator.operations.search import DecisionFilter, DeliveryFilter
from tests.orchestrator.operations.conftest import Desk
from tests.support.pipeline import STARTED


def test_a_stopped_email_is_released_once(desk: Desk) -> None:
    (second,) = desk.decisions(gate="subject_group")
    assert release(desk.service, second.id, Release(dry_run=True)) == "would_release"
    assert len(desk.bench.destinations["crm"].taken) == 3
    assert release(desk.service, second.id, Release(), at_once=True) == "released"
    assert desk.bench.destinations["crm"].taken[-1].payload["subject"] == second.subject
    (after,) = desk.decisions(q="rappel")
    assert (after.status, after.releasable_until) == ("processed", None)
    assert after.reason.startswith("Released at ")
    assert release(desk.service, second.id, Release()) == "already_released"
    assert release(desk.service, desk.decisions(status="processed")[-1].id, Release()) == "not_suppressed"
    assert release(desk.service, "nothing", Release()) == "unknown"


def test_all_that_match_are_released_or_those_that_are_given(desk: Desk) -> None:
    desk.bench.send(subject="Lot 456 : encore", sender="dora@four.example")
    (dora,) = desk.decisions(q="dora")
    every, one = DecisionFilter(), DecisionFilter(q="dora")
    assert release_many(desk.service, every, Release(dry_run=True)) == {"would_release": 2}
    assert release_many(desk.service, one, Release()) == {"released": 1}
    assert release_many(desk.service, one, Release()) == {}
    assert release_many(desk.service, [dora.id, "nothing"], Release()) == {"already_released": 1, "unknown": 1}
    assert release_many(desk.service, every, Release()) == {"released": 1}


def test_what_is_too_old_is_listed_and_can_be_released(start_desk: Callable[..., Desk]) -> None:
    desk = start_desk(realtime_only=True)
    old = {"subject": "Yesterday's news", "date": STARTED.replace(year=2020).isoformat()}
    for _ in range(2):
        assert desk.bench.status_of(**old) == "skipped_old"
    (listed,) = desk.decisions(status="skipped_old", q="yesterday")
    assert listed.reason.startswith("Not sent: it is older than the service")
    assert release(desk.service, listed.id, Release(), at_once=True) == "released"
    assert [each.payload["subject"] for each in desk.bench.destinations["crm"].taken] == ["Yesterday's news"]


def test_a_dead_delivery_is_replayed_under_the_same_webhook_id(desk: Desk) -> None:
    (gone,) = desk.deliveries(status="dead")
    assert replay(desk.service, gone.id, Replay(dry_run=True)) == "would_replay"
    assert [each.id for each in desk.deliveries(status="dead")] == [gone.id]
    assert replay(desk.service, gone.id, Replay(), at_once=True) == "replayed"
    sent = desk.bench.destinations["slack"].taken[-1]
    assert (sent.webhook_id, sent.payload["subject"]) == (gone.webhook_id, gone.subject)
    assert replay(desk.service, gone.id, Replay()) == "already_delivered"
    assert replay(desk.service, "nothing:crm", Replay()) == "unknown"
    delivered = desk.deliveries(status="delivered")[-1]
    for dry_run in (True, False):
        assert replay(desk.service, delivered.id, Replay(force=True, dry_run=dry_run)) == "no_payload"


def test_a_new_webhook_id_is_used_if_asked_for(desk: Desk) -> None:
    (gone,) = desk.deliveries(status="dead")
    assert replay(desk.service, gone.id, Replay(new_id=True), at_once=True) == "replayed"
    assert desk.bench.destinations["slack"].taken[-1].webhook_id not in ("", gone.webhook_id)


def test_a_waiting_delivery_is_replayed_now(desk: Desk) -> None:
    (slow,) = desk.deliveries(status="waiting")
    desk.bench.destinations["slack"].by_subject.clear()
    assert replay(desk.service, slow.id, Replay(), at_once=True) == "replayed"
    assert desk.deliveries(status="waiting") == []


def test_all_that_match_are_replayed_or_those_of_an_email(desk: Desk) -> None:
    (gone,) = desk.decisions(status="dead_lettered")
    (first,) = desk.decisions(status="processed")
    wanted = DeliveryFilter(destination="slack")
    assert replay_many(desk.service, wanted, Replay(dry_run=True)) == {"would_replay": 2, "already_delivered": 2}
    assert replay_many(desk.service, DeliveryFilter(q="lot nothing"), Replay()) == {}
    assert replay_many(desk.service, DeliveryFilter(status=DeliveryStatus.DEAD), Replay()) == {"replayed": 1}
    assert replay_email(desk.service, gone.id, Replay()) == "replayed"
    assert replay_email(desk.service, first.id, Replay()) == "already_delivered"
    assert replay_email(desk.service, "nothing", Replay()) == "unknown"
