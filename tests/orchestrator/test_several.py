"""Several items of one request: each as by itself, but claimed and settled together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from orchestrator import several
from orchestrator.intake import Outcome
from orchestrator.several import Several
from tests.orchestrator.conftest import Open
from tests.support.journals import JournalBench
from tests.support.pipeline import DOWN, LEASE_MS, REFUSES, FakeDestination, item, open_pipeline

LOT = "Lot 456 - Documents"
FILE = "<p>https://we.tl/t-abc</p>"


def told(outcomes: list[Outcome | Exception]) -> list[str]:
    return [str(each.status) if isinstance(each, Outcome) else type(each).__name__ for each in outcomes]


def emails(count: int) -> list[dict[str, Any]]:
    return [{"subject": f"Report {number}", "body": f"text {number}"} for number in range(count)]


@pytest.mark.parametrize("with_queue", [False, True], ids=["inline", "with a queue"])
def test_several_go_out_once_each_in_their_order(
    start: Open, with_queue: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(several, "MOST_AT_ONCE", 3)
    pipeline, some = start(with_queue=with_queue), emails(7)
    assert told(pipeline.send_many(*some)) == ["queued" if with_queue else "processed"] * 7
    pipeline.deliver_announced()
    subjects = [webhook.payload["subject"] for webhook in pipeline.destinations["crm"].taken]
    assert subjects == [each["subject"] for each in some]
    assert told(pipeline.send_many(*some)) == ["already_processed"] * 7


def test_each_of_several_gets_the_outcome_it_would_get_alone(start: Open) -> None:
    pipeline = start({"crm": [None, DOWN, DOWN, REFUSES]})
    pipeline.send(subject="known")
    some = [{"subject": "down"}, {"subject": "known"}, {"subject": "refused"}, {"subject": "well"}]
    assert told(pipeline.send_many(*some)) == ["queued", "already_processed", "dead_lettered", "processed"]
    assert pipeline.payload(subject="down") and pipeline.payload(subject="refused")


def test_of_several_those_that_share_a_name_go_one_after_the_other(start: Open) -> None:
    pipeline = start()
    some = [
        {"subject": LOT, "body": "one"},
        {"subject": "Alone"},
        {"subject": LOT, "body": "one"},
        {"subject": LOT, "body": "two"},
        {"subject": "Files", "body": FILE},
        {"subject": "The same files", "body": FILE},
    ]
    expected = ["processed", "processed", "already_processed", "skipped_subject_group", "processed", "skipped_media"]
    assert told(pipeline.send_many(*some)) == expected
    assert len(pipeline.destinations["crm"].taken) == 3


def test_an_error_of_our_own_at_one_of_several_gives_that_one_back_alone(start: Open) -> None:
    pipeline = start({"crm": [None, RuntimeError("a bug"), None]})
    assert told(pipeline.send_many(*emails(3))) == ["processed", "RuntimeError", "processed"]
    assert told(pipeline.send_many(*emails(3))) == ["already_processed", "processed", "already_processed"]


def test_while_names_cannot_be_claimed_none_of_several_is_sent(start: Open) -> None:
    pipeline = start()
    pipeline.journal.failing.add("claim")
    assert told(pipeline.send_many(*emails(3))) == ["retry_later"] * 3
    assert pipeline.destinations["crm"].asked == []
    pipeline.journal.failing.clear()
    assert told(pipeline.send_many(*emails(3))) == ["processed"] * 3


def test_what_was_delivered_of_several_but_not_marked_is_marked_later(start: Open) -> None:
    pipeline = start({"crm": [None, DOWN, DOWN]})
    pipeline.journal.failing.add("settle")
    assert told(pipeline.send_many(*emails(2))) == ["processed", "retry_later"]
    pipeline.journal.failing.clear()
    pipeline.settle_what_is_owed()
    assert told(pipeline.send_many(*emails(2)))[0] == "already_processed"
    assert len(pipeline.destinations["crm"].taken) == 1


def test_one_of_several_whose_turn_comes_late_is_asked_for_again(bench: JournalBench, start: Open) -> None:
    """The first took longer than the lease of those behind it: another server has sent one of them meanwhile."""
    slow, other = start(), start(journal=bench.another)
    some = emails(3)

    def take_long() -> None:
        slow.let_time_pass(LEASE_MS)
        assert other.status_of(**some[1]) == "processed"

    slow.destinations["crm"].reactions.append(take_long)
    assert told(slow.send_many(*some))[1:] == ["already_processed", "processed"]
    assert [len(each.destinations["crm"].taken) for each in (slow, other)] == [2, 1]


def test_what_was_sent_of_several_is_settled_before_the_next_one_is_through(
    bench: JournalBench, start: Open, eventually: Callable[[Callable[[], bool]], None]
) -> None:
    """A process that dies during the second POST must not have the first one sent again."""
    pipeline, other = start(), start(journal=bench.another)
    some = emails(2)

    def is_first_settled() -> bool:
        return other.status_of(**some[0]) == "already_processed"

    pipeline.destinations["crm"].reactions += [None, lambda: eventually(is_first_settled)]
    assert told(pipeline.send_many(*some)) == ["processed"] * 2


@pytest.mark.parametrize("with_queue", [False, True], ids=["inline", "with a queue"])
def test_of_several_what_cannot_be_stored_is_sent_or_given_back(full: JournalBench, with_queue: bool) -> None:
    crm = FakeDestination(by_subject={emails(3)[1]["subject"]: [DOWN, DOWN]})
    with open_pipeline(full, {"crm": crm}, with_queue=with_queue) as pipeline:
        assert told(pipeline.send_many(*emails(3))) == ["processed", "retry_later", "processed"]
        assert told(pipeline.send_many(*emails(3))) == ["already_processed", "processed", "already_processed"]


def test_where_links_are_followed_several_go_one_at_a_time(bench: JournalBench) -> None:
    """Two links that lead to one file: which, nobody knows before they are followed."""
    with open_pipeline(bench, {"crm": FakeDestination()}) as pipeline:
        resolving = replace(pipeline.intake, resolve=lambda links: ["https://we.tl/t-final"] * len(links))
        some = [item(subject=f"S{number}", body=f"<p>https://we.tl/t-{number}</p>") for number in range(2)]
        assert told(Several(resolving).receive(some)) == ["processed", "skipped_media"]
