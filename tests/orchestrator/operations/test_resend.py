"""What cannot be released or replayed, and what is too old; tests/routes has the rest, as operators do it."""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from deduplication.journal.entry import DeliveryStatus
from orchestrator.delivery.webhook import EventType, pack
from orchestrator.operations.resend import Release, Replay, replay_email, send_again, send_many
from orchestrator.operations.search import DeliveryFilter
from tests.orchestrator.conftest import WITHOUT_REDIS
from tests.orchestrator.operations.conftest import Desk
from tests.support.pipeline import STARTED


def test_each_refusal_has_its_reason(desk: Desk) -> None:
    (first,) = desk.decisions(status="processed")
    (stopped,) = desk.decisions(gate="subject_group")
    assert send_many(desk.service, [stopped.id, first.id, "nothing"], Release()) == {
        "released": 1,
        "not_suppressed": 1,
        "unknown": 1,
    }
    assert send_again(desk.service, stopped.id, Release()) == "already_released"
    assert replay_email(desk.service, first.id, Replay()) == "already_delivered"
    assert replay_email(desk.service, "nothing", Replay()) == "unknown"
    for dry_run in (True, False):
        assert send_again(desk.service, f"{first.id}:crm", Replay(force=True, dry_run=dry_run)) == "no_payload"


@WITHOUT_REDIS  # which does not know a delivery that only the test has stored
@pytest.mark.parametrize(
    ("statuses", "result", "sent"),
    [
        ((DeliveryStatus.DELIVERED, DeliveryStatus.RETURNED), "no_payload", []),
        ((DeliveryStatus.DELIVERED, DeliveryStatus.DEAD), "replayed", ["slack"]),
        ((DeliveryStatus.WAITING, DeliveryStatus.DELIVERED), "replayed", ["crm"]),
        ((DeliveryStatus.SKIPPED, DeliveryStatus.DELIVERED), "already_delivered", []),
    ],
)
def test_an_email_is_replayed_to_the_destinations_that_have_not_received_it(
    desk: Desk, statuses: tuple[DeliveryStatus, ...], result: str, sent: list[str]
) -> None:
    (first,) = desk.decisions(status="processed")
    with desk.service.journal.step() as step:
        entry = step.read(first.id)
        assert entry
        deliveries = (replace(old, status=status) for old, status in zip(entry.deliveries, statuses, strict=True))
        step.put(replace(entry, deliveries=tuple(deliveries)), entry, publishes=False)
        if DeliveryStatus.RETURNED not in statuses:
            step.put_payload(entry, pack({"type": EventType.EMAIL_RECEIVED, "subject": "again"}))
    before = {name: len(destination.taken) for name, destination in desk.bench.destinations.items()}
    assert replay_email(desk.service, first.id, Replay()) == result
    desk.bench.deliver_due()
    after = {name: len(destination.taken) for name, destination in desk.bench.destinations.items()}
    assert [name for name in after if after[name] > before[name]] == sent


def test_a_dry_run_says_of_each_match_what_would_happen_and_does_nothing(desk: Desk) -> None:
    wanted = DeliveryFilter(destination="slack")
    for _ in range(2):
        assert send_many(desk.service, wanted, Replay(dry_run=True)) == {"would_replay": 2, "already_delivered": 2}


@pytest.mark.parametrize(
    ("rule", "status", "reason"),
    [
        ({"realtime_only": True}, "skipped_old", "Suppressed: older than the service"),
        ({"dropped_by": "junk mail"}, "skipped_route", "Suppressed: dropped by route junk mail"),
    ],
)
def test_what_a_rule_of_its_route_stops_is_listed_and_can_be_released(
    start_desk: Callable[..., Desk], rule: dict[str, Any], status: str, reason: str
) -> None:
    desk = start_desk(**rule)
    old = {"subject": "Yesterday's news", "date": STARTED.replace(year=2020).isoformat()}
    for _ in range(2):
        assert desk.bench.status_of(**old) == status
    (listed,) = desk.decisions(status=status, q="yesterday")
    assert listed.reason.startswith(reason)
    assert desk.decisions(status={"skipped_old", "skipped_route"}.difference([status]).pop()) == []
    assert send_again(desk.service, listed.id, Release()) == "released"
    desk.bench.deliver_due()
    assert [webhook.payload["subject"] for webhook in desk.bench.destinations["crm"].taken] == ["Yesterday's news"]
