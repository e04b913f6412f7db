"""What happened to each email: found by any filter, page by page, with its reason, and released."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from orchestrator.build import Service
from orchestrator.operations import search
from orchestrator.operations.decisions import (
    Release,
    count_decisions,
    list_decisions,
    read_decision,
    release,
    release_matching,
)
from orchestrator.operations.search import DecisionFilter, index_some
from orchestrator.pipeline import Status
from tests.deduplication.journal.world import Machine
from tests.orchestrator.operations.conftest import Desk
from tests.support.pipeline import STARTED

FIRST, SECOND, SLOW, GONE = "Lot 456 : nouvelle mission", "Lot 456 : rappel", "To slow", "To gone"


@pytest.mark.parametrize(
    ("wanted", "subjects"),
    [
        ({}, [GONE, SLOW, SECOND, FIRST]),
        ({"status": "processed"}, [FIRST]),
        ({"status": "queued"}, [SLOW]),
        ({"status": "dead_lettered"}, [GONE]),
        ({"status": "skipped_subject_group"}, [SECOND]),
        ({"status": "retry_later"}, []),
        ({"status": "already_processing"}, []),
        ({"gate": "subject_group"}, [SECOND]),
        ({"gate": "media"}, []),
        ({"provider": "gmail", "destination": "slack"}, [GONE, SLOW, SECOND, FIRST]),
        ({"provider": "mailgun"}, []),
        ({"route": "another"}, []),
        ({"destination": "cr"}, []),
        ({"q": "456 LOT"}, [SECOND, FIRST]),
        ({"q": "lot nouv"}, [FIRST]),
        ({"q": "bob@two"}, [SECOND]),
        ({"q": "ADA@one.example", "status": "processed"}, [FIRST]),
        ({"q": "to"}, [GONE, SLOW]),
        ({"q": "t o"}, [GONE, SLOW, SECOND, FIRST]),
        ({"q": "To slow"}, [SLOW]),
        ({"sender": "ada@"}, [SLOW, FIRST]),
        ({"sender": "ad", "q": "lot"}, [FIRST]),
        ({"sender": "lot"}, []),
        ({"q": '"'}, []),
        ({"q": "%"}, []),
        ({"q": 'a"b OR sender:x'}, []),
        ({"q": "\0\ud800 lot 456 rappel"}, []),
        ({"q": "lot", "gate": "subject_group"}, [SECOND]),
        ({"since": "2020-01-01", "q": "slow"}, [SLOW]),
        ({"until": "2020-01-01"}, []),
        ({"since": "9999-12-31T23:59:59Z"}, []),
        ({"since": "0001-01-01T00:00:00Z", "status": "queued"}, [SLOW]),
    ],
)
def test_each_filter_finds_what_it_says(desk: Desk, wanted: dict[str, Any], subjects: list[str]) -> None:
    assert desk.subjects(**wanted) == subjects
    assert count_decisions(desk.service, DecisionFilter(**wanted), 100) == len(subjects)


def test_every_status_in_sql_is_the_status_that_is_shown(desk: Desk) -> None:
    assert set(search._BY_STATUS) == set(Status)
    for each in desk.decisions():
        assert each.subject in desk.subjects(status=each.status)
        assert sum(each.subject in desk.subjects(status=status) for status in Status) == 1


@pytest.mark.parametrize("wanted", [{}, {"q": "lot"}, {"destination": "crm"}, {"q": "to"}])
@pytest.mark.parametrize("limit", [1, 2, 3])
def test_page_by_page_each_email_is_shown_once(desk: Desk, wanted: dict[str, Any], limit: int) -> None:
    found, cursor = [], None
    for _ in range(10):
        page = list_decisions(desk.service, DecisionFilter(**wanted), limit, cursor)
        found += [each.subject for each in page.decisions]
        cursor = page.next
        assert page.more is (cursor is not None)
        if not cursor:
            break
    assert found == desk.subjects(**wanted)


@pytest.mark.parametrize("by", ["id", "email_id", "<message-id>", "webhook_id"])
def test_one_is_found_by_any_of_its_ids(desk: Desk, by: str) -> None:
    (slow,) = desk.decisions(status="queued")
    (delivery,) = desk.deliveries(status="waiting")
    text = {"<message-id>": "<To.slow@mail.example>", "webhook_id": delivery.webhook_id}.get(by) or getattr(slow, by)
    one = read_decision(desk.service, text)
    assert one is not None and one.id == slow.id
    assert desk.subjects(q=text) == [SLOW]
    assert read_decision(desk.service, "nothing") is None


def test_the_reason_is_a_sentence_and_repeats_are_counted(desk: Desk) -> None:
    desk.bench.send(
        subject=FIRST, sender="Ada <ada@one.example>", message_id="<Lot.456.:.nouvelle.mission@mail.example>"
    )
    desk.flush()
    gone, slow, second, first = desk.decisions()
    assert first.reason.startswith("Delivered to crm and slack at ")
    assert first.reason.endswith(", and was not sent again")
    assert (first.repeats, first.status, first.took_ms is not None) == (1, "processed", True)
    assert second.reason.startswith("Not sent: same subject group ")
    assert second.reason.endswith(" from ada@one.example, delivered to crm and slack")
    assert (second.original, second.gate, second.releasable_until) == (
        first.id,
        "subject_group",
        second.received_at + desk.service.settings.decision_ms,
    )
    assert "waiting for slack (answered 500), after 1 attempt; next attempt at" in slow.reason
    assert gone.reason.endswith("not delivered to slack, given up after 1 attempt: answered 422")
    assert first.store == ("redis" if desk.service.coordinator.registry else "local")


def test_one_in_full_has_its_names_gates_original_and_payload(desk: Desk) -> None:
    second = read_decision(desk.service, desk.decisions(gate="subject_group")[0].id)
    assert second is not None and second.payload is not None and second.original_email is not None
    assert (second.payload["subject"], second.original_email.subject) == (SECOND, FIRST)
    assert [(each.gate, each.said.split(":")[0]) for each in second.gates] == [
        ("identity", "passed"),
        ("subject_group", "stopped"),
    ]
    first = read_decision(desk.service, second.original_email.id)
    assert first is not None
    assert (first.payload, first.payload_machine, len(first.deliveries[0].attempts)) == (None, None, 1)


def test_a_stopped_email_is_released_once(desk: Desk) -> None:
    (second,) = desk.decisions(gate="subject_group")
    assert release(desk.service, second.id, Release(dry_run=True), "test") == "would_release"
    assert len(desk.bench.destinations["crm"].taken) == 3
    assert release(desk.service, second.id, Release(), "test", at_once=True) == "released"
    assert desk.bench.destinations["crm"].taken[-1].payload["subject"] == SECOND
    (after,) = desk.decisions(q="rappel")
    assert (after.status, after.releasable_until) == ("processed", None)
    assert after.reason.startswith("Released at ")
    assert release(desk.service, second.id, Release(), "test") == "already_released"
    assert release(desk.service, desk.decisions(status="processed")[-1].id, Release(), "test") == "not_suppressed"
    assert release(desk.service, "nothing", Release(), "test") == "unknown"


def test_all_that_match_are_released_with_the_count_first(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.operations.decisions.PAGE", 1)
    desk.bench.send(subject="Lot 456 : encore", sender="dora@four.example")
    both, one = DecisionFilter(), DecisionFilter(q="dora")
    assert release_matching(desk.service, both, Release(dry_run=True), "test") == {"would_release": 2}
    assert release_matching(desk.service, one, Release(), "test") == {"released": 1}
    assert release_matching(desk.service, one, Release(), "test") == {}
    assert release_matching(desk.service, both, Release(), "test") == {"released": 1}


def test_what_is_too_old_is_listed_and_can_be_released(start_desk: Callable[..., Desk]) -> None:
    desk = start_desk(realtime_only=True)
    old = {"subject": "Yesterday's news", "date": STARTED.replace(year=2020).isoformat()}
    for _ in range(2):
        assert desk.bench.status_of(**old) == "skipped_old"
    (listed,) = desk.decisions(status="skipped_old", q="yesterday")
    assert listed.reason.startswith("Not sent: it is older than the service")
    assert release(desk.service, listed.id, Release(), "test", at_once=True) == "released"
    assert [each.payload["subject"] for each in desk.bench.destinations["crm"].taken] == ["Yesterday's news"]


def test_what_is_forgotten_is_found_no_more_and_its_number_can_be_used_again(desk: Desk) -> None:
    """SQLite gives the number of the last row again; the index must not take the new email for the old one."""
    journal = desk.service.journal
    assert desk.subjects(q="gone") == [GONE]
    with journal.step() as step:
        entry = step.read(desk.decisions(q="gone")[0].id)
        assert entry
        step.forget(entry)
    desk.bench.send(subject="A newer one")
    assert desk.subjects(q="gone") == []
    with journal.reading() as step:
        assert step.query("SELECT count(*) FROM search") == [(4,)], "the old one is gone from the disk as well"
        assert step.query("SELECT count(*) FROM keys WHERE seq NOT IN (SELECT seq FROM entries)") == [(0,)]
    assert desk.subjects(q="newer") == ["A newer one"]
    assert index_some(journal) == 0


def test_another_machine_lists_the_same_and_asks_the_one_that_has_the_payload(desk: Desk) -> None:
    here = desk.bench.machine
    if here.url is None:
        pytest.skip("a fleet needs Redis")
    there = Machine(here.url, here.time)
    try:
        there.tick()
        there.follow()
        other = SimpleNamespace(**vars(desk.service) | {"journal": there.journal, "coordinator": there.coordinator})
        listed = list_decisions(cast(Service, other), DecisionFilter(), 10).decisions
        assert [each.reason for each in listed] == [each.reason for each in desk.decisions()]
        (second,) = list_decisions(cast(Service, other), DecisionFilter(gate="subject_group"), 10).decisions
        found = read_decision(cast(Service, other), second.id)
        assert found is not None and second.releasable_until is not None
        assert (found.payload, found.payload_machine, found.deliveries[0].storage) == (
            None,
            here.name,
            "another_machine",
        )
        assert release(cast(Service, other), second.id, Release(), "test") == "released"
        here.follow()
        desk.bench.deliver_due()
        assert desk.bench.destinations["crm"].taken[-1].payload["subject"] == SECOND
    finally:
        there.close()
