"""What is due is delivered by the service itself: once, as there is room, and whatever happens to one of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from deduplication.errors import StoreUnavailable
from deduplication.journal.base import Journal
from orchestrator.delivery import due as module
from orchestrator.delivery.due import TAKEN_AHEAD, Chore, DueDeliveries
from orchestrator.delivery.sender import Sender
from tests.support.journals import JournalBench, open_journal
from tests.support.pipeline import DOWN, FakeDestination, Pipeline, open_pipeline

Eventually = Callable[[Callable[[], bool]], None]
OpenDue = Callable[..., DueDeliveries]
OUTAGE = [DOWN] * 100


@dataclass
class FakeSender:
    """Waits with each delivery until it may go on, and then fails as told."""

    rooms: dict[str, int] = field(default_factory=dict)
    began: list[tuple[str, str]] = field(default_factory=list)
    may_go_on: threading.Event = field(default_factory=threading.Event)
    error: Exception | None = None

    def room_at(self, destination: str) -> int:
        return self.rooms.get(destination, 1_000)

    def deliver_or_leave(self, entry: str, destination: str) -> None:
        self.began.append((entry, destination))
        assert self.may_go_on.wait(60)
        if self.error:
            raise self.error


@dataclass
class FakeJournal:
    """Hands out what waits, as much as there is room for, each once."""

    waiting: dict[str, list[str]]
    asked: list[dict[str, int]] = field(default_factory=list)
    error: Exception | None = None

    def destinations(self) -> list[str]:
        if self.error:
            error, self.error = self.error, None
            raise error
        return sorted(self.waiting)

    def due(self, room: dict[str, int], hold_ms: int) -> list[tuple[str, str]]:
        self.asked.append(dict(room))
        found = [(entry, name) for name, left in room.items() for entry in self.waiting.get(name, [])[:left]]
        for entry, name in found:
            self.waiting[name].remove(entry)
        return found


@pytest.fixture
def open_due(monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenDue]:
    monkeypatch.setattr(module, "TICK_S", 0.01)
    opened: list[tuple[DueDeliveries, Any]] = []

    def open_one(journal: Any, sender: Any, *destinations: str, **more: Any) -> DueDeliveries:
        due = DueDeliveries(cast(Journal, journal), cast(Sender, sender), destinations, threads_each=1, **more)
        opened.append((due, sender))
        return due

    yield open_one
    for due, sender in opened:
        if isinstance(sender, FakeSender):
            sender.may_go_on.set()
        due.close()


def test_no_more_is_taken_than_there_is_room_for(open_due: OpenDue, eventually: Eventually) -> None:
    journal, sender = FakeJournal({"crm": [f"e{n}" for n in range(3 * TAKEN_AHEAD)]}), FakeSender()
    due = open_due(journal, sender, "crm")
    due.look()
    due.look()
    assert len(journal.waiting["crm"]) == 2 * TAKEN_AHEAD, "what is at work takes room"
    eventually(lambda: sender.began == [("e0", "crm")])
    sender.may_go_on.set()
    eventually(lambda: len(sender.began) == TAKEN_AHEAD)
    eventually(lambda: due._room_at("crm") == TAKEN_AHEAD)
    due.look()
    assert len(journal.waiting["crm"]) == TAKEN_AHEAD


def test_a_destination_that_is_not_to_be_troubled_is_not_asked_for_and_one_that_may_be_well_again_gets_one(
    open_due: OpenDue,
) -> None:
    waiting = {name: [f"{name} {n}" for n in range(3)] for name in ("open", "half-open", "closed")}
    journal, sender = FakeJournal(waiting), FakeSender({"open": 0, "half-open": 1})
    open_due(journal, sender, *waiting).look()
    assert journal.asked == [{"half-open": 1, "closed": TAKEN_AHEAD}]
    assert {name: len(left) for name, left in waiting.items()} == {"open": 3, "half-open": 2, "closed": 0}


def test_a_destination_that_hangs_holds_up_no_other(open_due: OpenDue, eventually: Eventually) -> None:
    journal, sender = FakeJournal({"hangs": ["e1", "e2"], "crm": ["e3"], "gone": ["e4"]}), FakeSender()
    open_due(journal, sender, "hangs", "crm").look()
    eventually(lambda: sorted(sender.began) == [("e1", "hangs"), ("e3", "crm"), ("e4", "gone")])


def test_a_fault_ends_neither_the_looking_nor_the_chores(
    open_due: OpenDue, eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    journal, sender = FakeJournal({"crm": ["e1"]}), FakeSender(error=RuntimeError("a bug"))
    sender.may_go_on.set()
    chores: list[str] = []
    due = open_due(journal, sender, "crm", chores=[Chore(0.02, lambda: chores.append("done"))])
    journal.error = StoreUnavailable("away")
    due.start()
    eventually(lambda: sender.began == [("e1", "crm")])
    journal.error = RuntimeError("a bug of our own")
    eventually(lambda: journal.error is None)
    journal.waiting["crm"].append("e2")
    eventually(lambda: sender.began == [("e1", "crm"), ("e2", "crm")])
    eventually(lambda: len(chores) >= 2)
    assert "looking for due deliveries failed: away" in caplog.text


def test_at_the_end_what_is_under_way_is_finished_and_the_rest_is_left(
    open_due: OpenDue, eventually: Eventually
) -> None:
    journal, sender = FakeJournal({"crm": ["e1", "e2", "e3"]}), FakeSender()
    due = open_due(journal, sender, "crm")
    due.look()
    eventually(lambda: sender.began == [("e1", "crm")])
    closing = threading.Thread(target=due.close)
    closing.start()
    eventually(lambda: due._pools["crm"]._shutdown)
    sender.may_go_on.set()
    closing.join()
    assert sender.began == [("e1", "crm")]


# With a journal


@pytest.fixture
def sqlite_bench(tmp_path: Path) -> Iterator[JournalBench]:
    with open_journal("sqlite", tmp_path) as bench:
        yield bench


@pytest.fixture
def pipeline(sqlite_bench: JournalBench) -> Iterator[Pipeline]:
    with open_pipeline(sqlite_bench, {"crm": FakeDestination(list(OUTAGE)), "slack": FakeDestination()}) as pipeline:
        yield pipeline


def test_what_failed_goes_out_once_it_is_due_and_once_only(
    pipeline: Pipeline, open_due: OpenDue, eventually: Eventually
) -> None:
    processes = [open_due(pipeline.journal, pipeline.sender, "crm", "slack") for _ in range(3)]
    for number in range(20):
        assert pipeline.status_of(subject=f"Mail {number}") == "queued"
    crm = pipeline.destinations["crm"]
    crm.reactions.clear()
    for each in processes:
        each.look()
    assert crm.taken == [], "not yet due"
    pipeline.let_time_pass(3_600_000)
    for each in processes:
        each.start()
    eventually(lambda: len(crm.taken) >= 20)
    eventually(lambda: pipeline.delivery(subject="Mail 19").status == "delivered")
    assert len({webhook.webhook_id for webhook in crm.taken}) == len(crm.taken) == 20
    assert len(pipeline.destinations["slack"].taken) == 20
