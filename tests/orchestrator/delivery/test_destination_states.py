"""What a process knows of its destinations: at once what it found out itself, within a moment what others did."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest

from deduplication.errors import StoreUnavailable
from deduplication.journal.base import Journal
from deduplication.journal.destination_state import DestinationState
from deduplication.journal.memory import MemoryJournal
from orchestrator.delivery.destination_states import KNOWN_FOR_S, DestinationStates
from orchestrator.delivery.webhook import DeliveryFailed
from tests.support.journals import FakeClock, JournalBench
from tests.support.pipeline import DOWN, REFUSES, FakeDestination, Pipeline, open_pipeline

GONE = DeliveryFailed("crm: answered 410 Gone", permanent=False, status_code=410)


@dataclass
class World:
    """One journal, and processes that look at it; steps of it may fail, and are counted."""

    time: FakeClock = field(default_factory=FakeClock)
    is_away: bool = False
    asked: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.journal = MemoryJournal(self.time.clock)

    def __getattr__(self, name: str) -> Any:
        self.asked.append(name)
        if self.is_away:
            raise StoreUnavailable("away")
        return getattr(self.journal, name)

    def process(self) -> DestinationStates:
        journal: Journal = self
        return DestinationStates(journal, lambda: self.time.ms / 1000)

    def pass_s(self, seconds: float) -> None:
        self.time.advance(int(seconds * 1000))


@pytest.fixture
def world() -> World:
    return World()


def test_a_process_asks_once_in_a_while_and_hears_of_what_others_decided(world: World) -> None:
    one, other = world.process(), world.process()
    assert not one.of("crm").is_paused
    other.decide("crm", is_paused=True, reason="moves", by="ada")
    world.asked.clear()
    assert not one.of("crm").is_paused and not one.of("slack").is_paused
    assert world.asked == [], "an email on its way asks nobody"
    world.pass_s(KNOWN_FOR_S + 0.1)
    assert one.of("crm").is_paused and one.of("crm").by == "ada"
    assert world.asked == ["states"]


def test_one_that_is_asked_by_the_thread_of_what_is_due_asks_no_more(world: World) -> None:
    one = world.process()
    for _ in range(5):
        one.refresh()
        world.asked.clear()
        world.pass_s(1)
        one.of("crm")
        assert world.asked == []


def test_what_an_operator_says_holds_whatever_the_clocks_say(world: World) -> None:
    ahead_ms = world.time.ms + 3_600_000
    world.journal.put_states({"crm": DestinationState(True, ahead_ms, "x", "another machine")})
    state = world.process().decide("crm", is_paused=False, reason="", by="ada")
    assert not state.is_paused
    assert world.journal.states()["crm"].by == "ada"


def test_of_many_that_hear_410_at_once_one_says_so(world: World, caplog: pytest.LogCaptureFixture) -> None:
    processes = [world.process() for _ in range(4)]
    for each in processes:
        each.of("crm")
    together = threading.Barrier(4)

    def hear(states: DestinationStates) -> None:
        together.wait(10)
        states.note_gone("crm")

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(hear, [processes[0]] * 4))
    assert caplog.text.count("AUDIT pause") == 1
    since_ms = world.journal.states()["crm"].since_ms
    world.pass_s(0.5)
    processes[1].note_gone("crm")
    assert world.journal.states()["crm"].since_ms == since_ms, "another process was first"
    assert caplog.text.count("AUDIT pause") == 1


def test_what_is_found_out_while_the_journal_is_away_counts_here_and_is_told_later(world: World) -> None:
    one = world.process()
    one.of("crm")
    world.is_away = True
    one.note_gone("crm")
    one.note_well("slack")
    assert one.of("crm").is_paused and one.of("slack").well_since_ms
    one.refresh()
    world.is_away = False
    assert world.journal.states() == {}
    one.refresh()
    known = world.journal.states()
    assert (known["crm"].is_paused, known["crm"].by) == (True, "410")
    assert known["slack"].well_since_ms > 0 and not known["slack"].is_paused
    world.asked.clear()
    one.refresh()
    assert world.asked == ["states"], "told once"


def test_while_the_journal_is_away_what_is_known_counts(world: World) -> None:
    one = world.process()
    one.decide("crm", is_paused=True, reason="", by="ada")
    world.is_away = True
    world.pass_s(60)
    assert one.of("crm").is_paused


def test_an_operator_hears_that_the_journal_is_away(world: World) -> None:
    world.is_away = True
    with pytest.raises(StoreUnavailable):
        world.process().decide("crm", is_paused=True, reason="", by="ada")


# Through the pipeline, on every journal


@pytest.fixture
def pipeline(bench: JournalBench) -> Iterator[Pipeline]:
    with open_pipeline(bench, {"crm": FakeDestination([GONE])}) as pipeline:
        yield pipeline


def test_after_a_410_emails_are_stored_without_a_post_and_go_out_once_it_is_resumed(pipeline: Pipeline) -> None:
    assert pipeline.status_of(subject="first") == "queued"
    assert pipeline.status_of(subject="second") == "queued"
    assert len(pipeline.destinations["crm"].asked) == 1
    waiting = pipeline.delivery(subject="second")
    assert (waiting.status, waiting.reason, waiting.tries) == ("waiting", "crm: paused", 0)
    pipeline.let_time_pass(100 * 3_600_000)
    assert pipeline.sender.room_at("crm") == 0
    assert not pipeline.sender.is_down("crm"), "while it is paused nothing grows too old"
    pipeline.sender.states.decide("crm", is_paused=False, reason="", by="ada")
    pipeline.let_time_pass(1)
    assert pipeline.deliver_due() == 2
    assert pipeline.status_of(subject="first") == pipeline.status_of(subject="second") == "already_processed"


def test_the_time_that_it_was_paused_does_not_count(pipeline: Pipeline) -> None:
    pipeline.destinations["crm"].reactions.append(DOWN)
    assert pipeline.status_of() == "queued"
    pipeline.let_time_pass(100 * 3_600_000)
    pipeline.sender.states.decide("crm", is_paused=False, reason="", by="ada")
    assert pipeline.deliver_due() == 1
    assert pipeline.delivery().status == "waiting"


def test_what_comes_again_after_days_is_as_new(bench: JournalBench) -> None:
    with open_pipeline(bench, {"crm": FakeDestination([REFUSES, DOWN, DOWN])}) as pipeline:
        assert pipeline.status_of() == "dead_lettered"
        pipeline.let_time_pass(100 * 3_600_000)
        pipeline.journal.forget(pipeline.entry().own)
        assert pipeline.status_of() == "queued", "its first try after days is not its last"


def test_a_stored_one_that_fails_after_76_hours_is_dead(bench: JournalBench) -> None:
    with open_pipeline(bench, {"crm": FakeDestination([DOWN] * 9)}) as pipeline:
        assert pipeline.status_of() == "queued"
        pipeline.let_time_pass(76 * 3_600_000 + 60_000)
        assert pipeline.deliver_due() == 1
        dead = pipeline.delivery()
        assert (dead.status, dead.reason) == ("dead", "answered 500; waited 76 h")


def test_with_a_queue_nothing_is_announced_for_a_paused_destination(bench: JournalBench) -> None:
    with open_pipeline(bench, {"crm": FakeDestination(), "slack": FakeDestination()}, with_queue=True) as pipeline:
        pipeline.sender.states.decide("crm", is_paused=True, reason="", by="ada")
        assert pipeline.status_of() == "queued"
        assert [destination for _, destination in pipeline.queue.announced] == ["slack"]
        assert pipeline.delivery("crm").reason == "crm: paused"
        pipeline.deliver_announced()
        assert len(pipeline.destinations["slack"].taken) == 1
        pipeline.sender.states.decide("crm", is_paused=False, reason="", by="ada")
        pipeline.let_time_pass(1)
        assert pipeline.deliver_due() == 1
        assert len(pipeline.destinations["crm"].taken) == 1
