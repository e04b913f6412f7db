"""What was imported is recognised, and nothing of it is ever sent: over every journal."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from deduplication.errors import StoreUnavailable
from deduplication.journal.base import Claimed, Released, Replayed
from deduplication.journal.entry import State
from orchestrator.importing.remember import Importer, Remembered
from orchestrator.importing.rows import row_item
from orchestrator.operations.decision_index import decided_status
from tests.support.journals import JournalBench
from tests.support.pipeline import DOWN, LEASE_MS, REFUSES, FakeDestination, Pipeline, item, open_pipeline

NOW = "2027-01-15T08:00:00Z"  # of the pipeline's clock
THIS_MONTH, LAST_MONTH = "2027-01-10T09:00:00Z", "2026-12-30T09:00:00Z"


@pytest.fixture
def pipeline(bench: JournalBench) -> Iterator[Pipeline]:
    with open_pipeline(bench, {"crm": FakeDestination()}) as pipeline:
        yield pipeline


def remember(pipeline: Pipeline, *emails: dict[str, Any]) -> list[Remembered]:
    return [each.what for each in Importer(pipeline.intake).remember([item(**fields) for fields in emails])]


def one(date: str = THIS_MONTH, subject: str = "Hello", **fields: Any) -> dict[str, Any]:
    return {"date": date, "subject": subject, **fields}


def test_an_imported_email_is_recognised_and_was_sent_nowhere(pipeline: Pipeline) -> None:
    assert remember(pipeline, one()) == [Remembered.IMPORTED]
    outcome = pipeline.send(**one())
    assert outcome.status == "already_processed"
    assert pipeline.destinations["crm"].asked == []
    entry = pipeline.entry(**one())
    assert (entry.state, entry.answer, entry.deliveries, entry.payload_bytes) == (State.DONE, "imported", (), 0)
    assert decided_status(entry, pipeline.journal.lease_time_ms()) == "imported"
    assert entry.repeats == 1, "it came once since then"


def test_it_can_be_neither_replayed_nor_released(pipeline: Pipeline) -> None:
    remember(pipeline, one())
    entry = pipeline.entry(**one())
    assert pipeline.journal.release(entry.id, force=True) is Released.NOT_SUPPRESSED
    assert pipeline.journal.replay(entry.id, "crm", force=True) is Replayed.UNKNOWN
    assert pipeline.deliver_due() == 0


def test_to_import_twice_changes_nothing(pipeline: Pipeline) -> None:
    emails = [one(subject=f"Mail {number}") for number in range(7)]
    assert set(remember(pipeline, *emails, emails[0])) == {Remembered.IMPORTED, Remembered.KNOWN}
    before = [pipeline.entry(**each) for each in emails]
    assert set(remember(pipeline, *emails)) == {Remembered.KNOWN}
    assert [pipeline.entry(**each) for each in emails] == before, "not even a repeat is counted"


def test_another_email_with_the_same_names_is_still_delivered(pipeline: Pipeline) -> None:
    remember(pipeline, one(body="the first"))
    assert pipeline.status_of(**one(body="quite another")) == "processed"


def test_a_group_of_this_month_stops_others_and_says_by_what(pipeline: Pipeline) -> None:
    assert remember(pipeline, one(subject="Lot 456"), one(subject="Re: Lot 456")) == [Remembered.IMPORTED] * 2
    outcome = pipeline.send(date=NOW, subject="lot-456")
    assert outcome.status == "skipped_subject_group"
    assert outcome.reason
    assert outcome.reason.original == pipeline.entry(**one(subject="Lot 456")).id
    assert pipeline.status_of(**one(subject="Re: Lot 456")) == "already_processed"


def test_a_group_of_another_month_stops_nobody(pipeline: Pipeline) -> None:
    remember(pipeline, one(LAST_MONTH, subject="Lot 456"), {"date": "", "subject": "Lot 456"})
    remember(pipeline, one("2027-02-01T00:00:00Z", subject="Lot 456"))
    assert pipeline.status_of(date=NOW, subject="lot-456") == "processed"


def test_a_file_counts_for_a_week_from_the_date_of_its_email(pipeline: Pipeline, bench: JournalBench) -> None:
    links = [f"See https://we.tl/t-{number} for the files" for number in range(2)]
    remember(pipeline, one("2027-01-10T08:00:00Z", body=links[0]), one("2027-01-08T07:00:00Z", body=links[1]))
    assert pipeline.status_of(date=NOW, subject="A", body=f"Again {links[0]}") == "skipped_media"
    assert pipeline.status_of(date=NOW, subject="B", body=f"Again {links[1]}") == "processed"
    pipeline.let_time_pass(2 * 24 * 3600 * 1000 + 1000)
    assert pipeline.status_of(date=NOW, subject="C", body=f"Once more {links[0]}") == "processed"


def test_what_the_service_has_done_or_is_at_is_left_alone(pipeline: Pipeline) -> None:
    done, waits, dead, held = (one(subject=word) for word in ("done", "waits", "dead", "held"))
    pipeline.destinations["crm"].reactions[:] = [None, DOWN, DOWN, REFUSES]
    assert [pipeline.status_of(**each) for each in (done, waits, dead)] == ["processed", "queued", "dead_lettered"]
    verdict = pipeline.journal.claim(pipeline.intake.prepare(item(**held), pipeline.intake.router.pick(item())).claim)
    assert isinstance(verdict, Claimed)
    before = [pipeline.entry(**each) for each in (done, waits, dead, held)]
    assert remember(pipeline, done, waits, dead, held) == [Remembered.KNOWN] * 3 + [Remembered.LEFT]
    assert [pipeline.entry(**each) for each in (done, waits, dead, held)] == before
    pipeline.let_time_pass(LEASE_MS + 1)
    assert remember(pipeline, held) == [Remembered.LEFT], "its request died: its provider sends it again"
    assert pipeline.status_of(**held) == "processed"


def test_it_waits_for_no_one_and_follows_no_one(pipeline: Pipeline) -> None:
    """Stopped behind one that waits, it would go out in its place once that one is dead."""
    pipeline.destinations["crm"].reactions[:] = [DOWN] * 20
    assert pipeline.status_of(date=NOW, subject="Lot 7") == "queued"
    assert remember(pipeline, one(subject="Re: Lot 7")) == [Remembered.IMPORTED]
    for _ in range(10):
        pipeline.let_time_pass(24 * 3600 * 1000)
        pipeline.deliver_due()
    asked = {webhook.payload["subject"] for webhook in pipeline.destinations["crm"].asked}
    assert asked == {"Lot 7"}


def test_a_run_that_was_killed_is_gone_on_with(pipeline: Pipeline) -> None:
    """Between its claims and their settlement; the group that they hold stays theirs."""
    pipeline.journal.failing.add("settle")
    with pytest.raises(StoreUnavailable):
        remember(pipeline, one(subject="Lot 9"), one(subject="Hi"))
    pipeline.journal.failing.clear()
    assert remember(pipeline, one(subject="Lot 9"), one(subject="Hi")) == [Remembered.IMPORTED] * 2
    assert pipeline.status_of(date=NOW, subject="lot-9") == "skipped_subject_group"


def test_a_request_that_comes_between_look_and_claim_wins(pipeline: Pipeline) -> None:
    importer = Importer(pipeline.intake)
    look = importer._look

    def look_and_let_it_come(claims: Any) -> Any:
        looked = look(claims)
        pipeline.send(**one())
        return looked

    object.__setattr__(importer, "_look", look_and_let_it_come)
    assert [each.what for each in importer.remember([item(**one())])] == [Remembered.KNOWN]
    assert pipeline.delivery(**one()).delivered_ms


def test_what_a_request_left_between_look_and_claim_is_given_back(pipeline: Pipeline) -> None:
    """Its lease is over, and it may have been sent: only its provider's retry may go on with it."""
    importer, intake = Importer(pipeline.intake), pipeline.intake
    look = importer._look

    def look_and_let_it_come(claims: Any) -> Any:
        looked = look(claims)
        assert isinstance(
            pipeline.journal.claim(intake.prepare(item(**one()), intake.router.pick(item())).claim), Claimed
        )
        pipeline.let_time_pass(LEASE_MS + 1)
        return looked

    object.__setattr__(importer, "_look", look_and_let_it_come)
    assert [each.what for each in importer.remember([item(**one())])] == [Remembered.LEFT]
    assert pipeline.status_of(**one()) == "processed"


def test_what_was_only_printed_becomes_known(bench: JournalBench) -> None:
    with open_pipeline(bench, {"crm": FakeDestination()}) as pipeline:
        trial = replace(pipeline, intake=replace(pipeline.intake, is_trial=True))
        assert trial.status_of(**one()) == "processed"
        assert remember(pipeline, one()) == [Remembered.IMPORTED]
        assert pipeline.status_of(**one()) == "already_processed"


def test_a_reset_forgets_it(pipeline: Pipeline) -> None:
    remember(pipeline, one())
    pipeline.journal.forget(item(**one()).own_names)
    assert pipeline.status_of(**one()) == "processed"


@pytest.mark.parametrize(
    "row",
    [
        {"subject": "Hello", "sender": "Ada Lovelace <ada@example.org>", "date": THIS_MONTH},
        {"email_id": item(**one()).id.upper(), "date": "Sun, 10 Jan 2027 10:00:00 +0100"},
        {"message_id": "<m1@example.org>"},
    ],
)
def test_a_row_of_ids_is_enough(pipeline: Pipeline, row: dict[str, str]) -> None:
    became = Importer(pipeline.intake).remember([row_item(row, "mime", None)])
    assert [each.what for each in became] == [Remembered.IMPORTED]
    assert pipeline.status_of(**one(message_id="<m1@example.org>")) == "already_processed"
    assert pipeline.status_of(**one(date="2027-01-11T09:00:00Z", message_id="<m2@example.org>")) == "processed"


def test_rows_of_message_ids_have_no_name_in_common(pipeline: Pipeline) -> None:
    rows = [row_item({"message_id": f"<m{number}@example.org>"}, "mime", None) for number in range(3)]
    assert {each.what for each in Importer(pipeline.intake).remember(rows)} == {Remembered.IMPORTED}
    names = [name for row in rows for name in row.own_names]
    assert len(set(names)) == len(names) == 3


def test_the_clock_of_these_tests_is_the_pipelines(pipeline: Pipeline) -> None:
    assert pipeline.intake.sources.now() == datetime.fromisoformat(NOW).astimezone(UTC)
