"""Which deliveries there are, why they wait, and what it takes to say so."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest

from deduplication.claims import Kind, Name
from deduplication.journal.base import Claim, Claimed, Ending, Settlement, Wanted
from deduplication.journal.entry import Delivery, DeliveryStatus, Entry, State
from deduplication.journal.memory import MemoryJournal
from orchestrator.operations.deliveries import Counts, _reason, cursor_after, find_deliveries, position_of
from orchestrator.operations.deliveries import Wanted as Question
from tests.support.journals import FakeClock


@pytest.mark.parametrize(
    ("delivery", "state", "held_back", "has_queue", "reason"),
    [
        ({"reason": "crm: answered 503"}, State.DONE, None, True, "crm: answered 503"),
        ({"reason": "crm: over its rate"}, State.DONE, None, False, "crm: over its rate"),
        ({"reason": "crm: answered 503"}, State.DONE, "paused", False, "crm: paused"),
        ({}, State.DONE, None, True, "announced to the workers"),
        ({}, State.DONE, None, False, None),
        ({"awaits_content": True, "reason": "x"}, State.DONE, None, False, "its words are on their way there"),
        ({"reason": "x"}, State.FREE, "paused", False, "given back to its provider, to be sent again"),
        ({"status": DeliveryStatus.DELIVERING}, State.DONE, "paused", False, "under way"),
        (
            {"status": DeliveryStatus.DEAD, "reason": "crm: answered 404"},
            State.DONE,
            "paused",
            True,
            "crm: answered 404",
        ),
    ],
)
def test_the_reason_it_waits(
    delivery: dict[str, Any], state: State, held_back: str | None, has_queue: bool, reason: str | None
) -> None:
    one = Delivery(**{"destination": "crm", "webhook_id": "msg", "status": DeliveryStatus.WAITING} | delivery)
    entry = Entry("e", (), (), "", state, "", 0, 0, 1, deliveries=(one,))
    assert _reason(entry, one, lambda destination: held_back, has_queue=has_queue) == reason


@pytest.fixture
def journal() -> MemoryJournal:
    return MemoryJournal(FakeClock().clock)


def settle(journal: MemoryJournal, number: int, status: DeliveryStatus) -> None:
    own = (Name(Kind.EMAIL_ID, "2026-11-16", f"e{number}"),)
    claim = Claim(f"entry{number}", "owner", own, destinations=(Wanted("crm", "msg"),))
    verdict = journal.claim(claim)
    assert isinstance(verdict, Claimed)
    ended = Delivery("crm", "msg", status, next_try_ms=1 if status.is_open else None)
    assert journal.settle(claim, verdict.entry, Settlement(Ending.DONE, "told", (ended,), payload=b"payload"))


def test_what_waits_and_what_is_dead_is_listed_without_reading_anything_else(journal: MemoryJournal) -> None:
    for number, status in enumerate((DeliveryStatus.WAITING, DeliveryStatus.DEAD, DeliveryStatus.DELIVERED)):
        settle(journal, number, status)
    for status, entry in ((DeliveryStatus.WAITING, "entry0"), (DeliveryStatus.DEAD, "entry1")):
        listed = list(journal.list_deliveries(status))
        with (
            patch.object(journal, "find", side_effect=AssertionError),
            patch.object(journal, "list_deliveries", return_value=iter(listed)),
        ):
            assert [each.entry.id for each in find_deliveries(journal, Question(status))] == [entry]


def test_a_cursor_is_for_the_question_that_it_answers(journal: MemoryJournal) -> None:
    settle(journal, 0, DeliveryStatus.WAITING)
    (found,) = find_deliveries(journal, Question(DeliveryStatus.WAITING))
    cursor = cursor_after(Question(DeliveryStatus.WAITING), found)
    assert position_of(Question(DeliveryStatus.WAITING), cursor) == found.position
    with pytest.raises(ValueError, match="another list"):
        position_of(Question(DeliveryStatus.DEAD), cursor)


def test_counting_rests_for_as_long_as_it_took_many_times_over(journal: MemoryJournal) -> None:
    now = [0.0]

    def clock() -> float:
        now[0] += 1.0  # it takes a second to count
        return now[0]

    counts = Counts(journal, clock)
    settle(journal, 0, DeliveryStatus.DELIVERED)
    assert counts.read()["crm"] | {} == dict.fromkeys(DeliveryStatus, 0) | {DeliveryStatus.DELIVERED: 1}
    settle(journal, 1, DeliveryStatus.DELIVERED)
    settle(journal, 2, DeliveryStatus.WAITING)
    settle(journal, 3, DeliveryStatus.DEAD)
    soon = counts.read()["crm"]
    assert (soon[DeliveryStatus.DELIVERED], soon[DeliveryStatus.WAITING], soon[DeliveryStatus.DEAD]) == (1, 1, 1)
    now[0] += 20
    assert counts.read()["crm"][DeliveryStatus.DELIVERED] == 2
