"""Imported emails are recognised and never sent, with and without Redis."""

from dataclasses import replace
from typing import Any

import pytest

from deduplication.journal.coordinator import Claimed, Coordinator
from deduplication.names import Kind
from orchestrator.importing import remember as importing
from orchestrator.importing.sources import row_item
from orchestrator.item import Item
from tests.orchestrator.conftest import ON_REDIS, Open
from tests.support.pipeline import DOWN, LEASE_MS, PipelineBench, item

NOW = "2026-05-28T20:00:00Z"  # of the bench's clock
THIS_MONTH, LAST_MONTH = "2026-05-24T09:00:00Z", "2026-04-30T09:00:00Z"
DAY_MS = 24 * 3600 * 1000


@pytest.fixture
def bench(start: Open) -> PipelineBench:
    return start()


def remember(bench: PipelineBench, *emails: dict[str, Any] | Item) -> dict[str, int]:
    items = [email if isinstance(email, Item) else item(**email) for email in emails]
    counts = importing.remember(bench.pipeline, items)
    return {name: count for name, count in counts.items() if count}


def one(date: str = THIS_MONTH, subject: str = "Hello", **fields: Any) -> dict[str, Any]:
    return {"date": date, "subject": subject, **fields}


def test_an_imported_email_is_recognised_and_never_sent(bench: PipelineBench) -> None:
    assert remember(bench, one()) == {"imported": 1}
    outcome = bench.send(**one())
    assert (outcome.status, outcome.id) == ("already_processed", "")
    bench.let_time_pass(400 * DAY_MS)
    assert bench.status_of(**one()) == "already_processed", "its id is kept forever"
    assert bench.deliver_due() == 0
    assert bench.destinations["crm"].asked == []


def test_another_email_with_the_same_id_is_delivered_and_not_imported(bench: PipelineBench) -> None:
    assert remember(bench, one(body="the first")) == {"imported": 1}
    assert remember(bench, one(body="quite another")) == {"left": 1}
    assert bench.status_of(**one(body="quite another")) == "processed"
    assert bench.status_of(**one(body="the first")) == "already_processed"


def test_a_group_counts_in_the_month_of_its_email(bench: PipelineBench) -> None:
    assert remember(bench, one(subject="Lot 456"), one(subject="Again lot 456")) == {"imported": 2, "groups": 1}
    assert bench.status_of(date=NOW, subject="lot-456") == "skipped_subject_group"
    others = [one(LAST_MONTH, subject="Lot 7"), one("", subject="Lot 7"), one("2026-06-01T00:00:00Z", subject="Lot 7")]
    assert "groups" not in remember(bench, *others)
    assert bench.status_of(date=NOW, subject="lot-7") == "processed"


def test_a_file_counts_for_a_week_from_the_date_of_its_email(start: Open) -> None:
    bench = start()
    links = [f"See https://we.tl/t-{number} for the files" for number in range(2)]
    remember(bench, one("2026-05-23T22:00:00Z", body=links[0]), one("2026-05-21T20:00:00Z", body=links[1]))
    assert bench.status_of(date=NOW, subject="A", body=f"Again {links[0]}") == "skipped_media"
    assert bench.status_of(date=NOW, subject="B", body=f"Again {links[1]}") == "processed"
    if bench.machine.url:  # whose own clock the test cannot move
        assert bench.machine.client.pttl("media:https://we.tl/t-0") < 3 * DAY_MS
    else:
        bench.let_time_pass(3 * DAY_MS)
        assert bench.status_of(date=NOW, subject="C", body=f"Once more {links[0]}") == "processed"


def test_emails_that_the_service_has_or_is_processing_are_left_alone(bench: PipelineBench) -> None:
    done, waits, held = (one(subject=word) for word in ("done", "waits", "held"))
    bench.destinations["crm"].by_subject["waits"] = [DOWN] * 9
    assert [bench.status_of(**email) for email in (done, waits)] == ["processed", "queued"]
    pipeline = bench.pipeline
    case = pipeline.prepare(item(**held), pipeline.router.pick(item()))
    assert isinstance(pipeline.coordinator.claim(case.claim), Claimed)
    assert remember(bench, done, waits, held) == {"known": 2, "left": 1}
    bench.let_time_pass(LEASE_MS + 1)
    assert remember(bench, held) == {"left": 1}, "its request died, so its provider sends it again"
    assert bench.status_of(**held) == "processed"


@ON_REDIS  # without it there is one step only
def test_a_run_that_was_stopped_before_redis_is_repeated(bench: PipelineBench) -> None:
    machine = bench.machine
    alone = replace(bench.pipeline, coordinator=Coordinator(machine.journal))
    importing.remember(alone, [item(**one())])
    ids = "processed_ids:2026-05-24"
    assert machine.client.smembers(ids) == set()
    assert remember(bench, one()) == {"known": 1}
    assert machine.client.smembers(ids) == {name.value.encode() for name in own_ids()}


def own_ids() -> list[Any]:
    return [name for name in item(**one()).own_names if name.kind is Kind.EMAIL_ID]


def test_a_mark_of_another_program_gets_the_fingerprint(bench: PipelineBench) -> None:
    name = own_ids()[0]
    with bench.machine.journal.step() as step:
        step.put_mark(name.label, None)
    assert remember(bench, one()) == {"known": 1}
    assert bench.status_of(**one(body="quite another")) == "processed"
    assert bench.status_of(**one()) == "already_processed"


@pytest.mark.parametrize(
    "row",
    [
        {"subject": "Hello", "sender": "Ada Lovelace <ada@example.org>", "date": THIS_MONTH},
        {"email_id": item(**one()).id.upper(), "date": "Sun, 24 May 2026 11:00:00 +0200"},
        {"message_id": "<m1@example.org>"},
    ],
)
def test_a_row_of_ids_is_enough(bench: PipelineBench, row: dict[str, str]) -> None:
    assert remember(bench, row_item(row, "mime", None)) == {"imported": 1}
    assert bench.status_of(**one(message_id="<m1@example.org>")) == "already_processed"
    assert bench.status_of(**one(date="2026-05-25T09:00:00Z", message_id="<m2@example.org>")) == "processed"
