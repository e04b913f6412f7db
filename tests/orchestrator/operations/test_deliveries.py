"""Deliveries: in the order that each list promises, page by page, with why they wait, and replayed."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from deduplication.journal.entry import DeliveryStatus
from orchestrator.operations.deliveries import (
    Replay,
    count_deliveries,
    list_deliveries,
    read_delivery,
    replay,
    replay_email,
    replay_matching,
)
from orchestrator.operations.search import DeliveryFilter
from tests.orchestrator.operations.conftest import Desk
from tests.support.pipeline import DOWN

SLOW, GONE = "To slow", "To gone"


def subjects(desk: Desk, **wanted: Any) -> list[str]:
    return [f"{each.destination}: {each.subject}" for each in desk.deliveries(**wanted)]


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({"status": "waiting"}, ["slack: To slow"]),
        ({"status": "waiting", "destination": "crm"}, []),
        ({"status": "dead"}, ["slack: To gone"]),
        ({"status": "dead", "q": "slow"}, []),
        ({"status": "skipped"}, ["crm: Lot 456 : rappel", "slack: Lot 456 : rappel"]),
        ({"status": "delivered", "destination": "slack"}, ["slack: Lot 456 : nouvelle mission"]),
        ({"status": "claimed"}, []),
        ({"q": "slow"}, ["crm: To slow", "slack: To slow"]),
        ({"sender": "carl", "destination": "crm"}, ["crm: To gone"]),
        ({"gate": "subject_group", "destination": "crm"}, ["crm: Lot 456 : rappel"]),
        ({"until": "2020-01-01"}, []),
    ],
)
def test_each_filter_finds_what_it_says(desk: Desk, wanted: dict[str, Any], found: list[str]) -> None:
    assert subjects(desk, **wanted) == found
    assert count_deliveries(desk.service, DeliveryFilter(**wanted), 100) == len(found)


@pytest.mark.parametrize(
    "wanted", [{}, {"status": "waiting"}, {"status": "dead"}, {"q": "lot"}, {"destination": "crm"}]
)
@pytest.mark.parametrize("limit", [1, 2, 3])
def test_page_by_page_each_delivery_is_shown_once(desk: Desk, wanted: dict[str, Any], limit: int) -> None:
    desk.bench.destinations["slack"].by_subject |= {"Slower": [DOWN] * 9}
    desk.bench.send(subject="Slower")
    found, cursor = [], None
    for _ in range(20):
        page = list_deliveries(desk.service, DeliveryFilter(**wanted), limit, cursor)
        found += [each.id for each in page.deliveries]
        cursor = page.next
        if not cursor:
            break
    assert found == [each.id for each in desk.deliveries(**wanted)]
    assert len(found) == len(set(found))


@pytest.mark.parametrize(
    "place",
    [
        b"dead\n1\n\xed\xa0\x80\ncrm",
        b"dead\n" + b"9" * 30 + b"\n1\ncrm",
        b"[" * 2000,
        b"dead\n1\n1\ncrm\n",
        b"waiting\n1\n1\ncrm",
        b"dead\n1\nentry\ncrm",
    ],
)
def test_a_forged_cursor_is_a_value_error(desk: Desk, place: bytes) -> None:
    cursor = base64.urlsafe_b64encode(place).decode().rstrip("=")
    with pytest.raises(ValueError):
        list_deliveries(desk.service, DeliveryFilter(status=DeliveryStatus.DEAD), 10, cursor)


def test_a_waiting_one_says_why_for_how_long_and_where_its_payload_is(desk: Desk) -> None:
    (slow,) = desk.deliveries(status="waiting")
    assert (slow.reason, slow.tries, slow.max_attempts, slow.age_s) == ("answered 500", 1, 3, 2)
    assert slow.storage == ("redis" if desk.service.coordinator.registry else "journal")
    assert slow.next_try and slow.next_try > slow.created
    desk.service.states.decide("slack", is_paused=True, reason="moves", by="test")
    one = read_delivery(desk.service, slow.id)
    assert one is not None and one.payload is not None
    assert (one.reason, one.payload["subject"]) == ("slack: paused (moves)", SLOW)
    assert read_delivery(desk.service, "nothing:crm") is None


def test_a_dead_one_is_replayed_under_the_same_webhook_id_unless_a_new_one_is_asked_for(desk: Desk) -> None:
    (gone,) = desk.deliveries(status="dead")
    assert replay(desk.service, gone.id, Replay(dry_run=True)) == "would_replay"
    assert desk.deliveries(status="waiting")[0].subject == SLOW
    assert replay(desk.service, gone.id, Replay(), at_once=True) == "replayed"
    sent = desk.bench.destinations["slack"].taken[-1]
    assert (sent.webhook_id, sent.payload["subject"]) == (gone.webhook_id, GONE)
    assert replay(desk.service, gone.id, Replay()) == "already_delivered"
    assert replay(desk.service, "nothing:crm", Replay()) == "unknown"


def test_a_new_webhook_id_is_used(desk: Desk) -> None:
    (gone,) = desk.deliveries(status="dead")
    assert replay(desk.service, gone.id, Replay(new_id=True), at_once=True) == "replayed"
    assert desk.bench.destinations["slack"].taken[-1].webhook_id not in ("", gone.webhook_id)


def test_a_waiting_one_is_replayed_now(desk: Desk) -> None:
    (slow,) = desk.deliveries(status="waiting")
    desk.bench.destinations["slack"].by_subject.clear()
    assert replay(desk.service, slow.id, Replay(), at_once=True) == "replayed"
    assert desk.deliveries(status="waiting") == []


def test_what_is_no_longer_stored_is_not_replayed(desk: Desk) -> None:
    delivered = desk.deliveries(status="delivered")[-1]
    assert replay(desk.service, delivered.id, Replay(force=True)) == "no_payload"
    assert replay(desk.service, delivered.id, Replay(force=True, dry_run=True)) == "no_payload"


def test_all_that_match_are_replayed(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.operations.deliveries.PAGE", 1)
    wanted = DeliveryFilter(destination="slack")
    assert replay_matching(desk.service, wanted, Replay(dry_run=True)) == {"would_replay": 2, "already_delivered": 2}
    assert replay_matching(desk.service, DeliveryFilter(q="lot nothing"), Replay()) == {}
    assert replay_matching(desk.service, DeliveryFilter(status=DeliveryStatus.DEAD), Replay()) == {"replayed": 1}


def test_of_an_email_what_is_dead_or_waits_is_replayed(desk: Desk) -> None:
    first, *_ = reversed(desk.decisions())
    (gone,) = desk.decisions(status="dead_lettered")
    assert replay_email(desk.service, gone.id, Replay()) == "replayed"
    assert replay_email(desk.service, first.id, Replay()) == "already_delivered"
    assert replay_email(desk.service, "nothing", Replay()) == "unknown"
