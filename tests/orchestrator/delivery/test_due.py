"""What is due is delivered by the service itself: once, as there is room, and whatever happens to one of them."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from deduplication.claims import Kind, Name
from deduplication.errors import StoreUnavailable
from deduplication.journal import failover
from deduplication.journal import redis as on_redis
from deduplication.journal.base import Claim, Claimed, Ending, Journal, Settlement, Settling, Wanted
from deduplication.journal.destination_state import DestinationState
from deduplication.journal.entry import DeliveryStatus, new_entry_id
from deduplication.journal.failover import FailoverJournal
from orchestrator.build import Parts, build_due, build_parts
from orchestrator.config.model import load_config
from orchestrator.config.settings import load_settings
from orchestrator.delivery import due as module
from orchestrator.delivery.due import FIRST_AFTER_TROUBLE, TAKEN_AHEAD, Chore, DueDeliveries, Pace
from orchestrator.delivery.schedule import put_off
from orchestrator.delivery.sender import MOST_AT_ONCE, Sender
from tests.support.journals import JournalBench, open_journal
from tests.support.pipeline import DOWN, FakeDestination, Pipeline, open_pipeline
from tests.support.redis_server import RedisServer, free_port
from tests.support.server import PATIENT_MS

Eventually = Callable[[Callable[[], bool]], None]
OpenDue = Callable[..., DueDeliveries]
OUTAGE = [DOWN] * 100


@dataclass
class FakeStates:
    """Nothing is known of any destination."""

    asked: int = 0

    def refresh(self) -> None:
        self.asked += 1

    def of(self, destination: str) -> DestinationState:
        return DestinationState()


@dataclass
class FakeSender:
    """Waits with each delivery until it may go on, and then fails as told."""

    rooms: dict[str, int] = field(default_factory=dict)
    began: list[tuple[str, str]] = field(default_factory=list)
    may_go_on: threading.Event = field(default_factory=threading.Event)
    error: Exception | None = None
    states: FakeStates = field(default_factory=lambda: FakeStates())

    def room_at(self, destination: str) -> int:
        return self.rooms.get(destination, MOST_AT_ONCE)

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


def test_the_states_of_destinations_are_asked_for_every_second_so_that_no_email_has_to(open_due: OpenDue) -> None:
    sender = FakeSender()
    due = open_due(FakeJournal({}), sender, "crm")
    due.tick()
    due.tick()
    due.look()
    assert sender.states.asked == 2


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


# After trouble


def test_after_trouble_few_are_sent_at_first_twice_as_many_each_second_and_never_more_than_a_bound() -> None:
    pace = Pace(at_once=20, most=50)
    assert pace.is_full and pace.room == 20
    pace.start_anew()
    given = []
    for _ in range(7):
        in_a_second = 0
        while pace.room:
            in_a_second += pace.room
            pace.give(pace.room)
        given.append(in_a_second)
        pace.next_second()
    assert given == [FIRST_AFTER_TROUBLE, 4, 8, 16, 32, 50, 50]
    assert pace.is_full


def test_a_second_in_which_something_fails_halves_the_pace() -> None:
    pace = Pace(20, 40)
    pace.start_anew()
    for fails, room in ((False, 4), (False, 8), (True, 4), (True, 2), (True, 2), (False, 4)):
        if fails:
            pace.note_failure()
        pace.next_second()
        assert pace.room == room


def test_a_destination_that_was_in_trouble_is_given_a_few_in_the_first_second(open_due: OpenDue) -> None:
    waiting = [f"e{n}" for n in range(40)]
    journal, sender = FakeJournal({"crm": waiting}), FakeSender({"crm": 0})
    due = open_due(journal, sender, "crm")
    due.tick()
    sender.rooms.clear()
    due.look()
    due.look()
    assert len(waiting) == 40 - FIRST_AFTER_TROUBLE
    due.tick()
    assert len(waiting) == 40 - FIRST_AFTER_TROUBLE - 2 * FIRST_AFTER_TROUBLE


def test_as_long_as_there_is_more_nobody_waits_for_the_next_second(
    open_due: OpenDue, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_A_SECOND", 1_000_000)
    journal, sender = FakeJournal({"crm": [f"e{n}" for n in range(10 * TAKEN_AHEAD)]}), FakeSender()
    sender.may_go_on.set()
    due = open_due(journal, sender, "crm")
    due.start()
    eventually(lambda: bool(sender.began))
    monkeypatch.setattr(module, "TICK_S", 3_600.0)
    sender.began.clear()
    journal.waiting["crm"] += [f"more {n}" for n in range(10 * TAKEN_AHEAD)]
    due._look_again.set()
    eventually(lambda: ("more 99", "crm") in sender.began)


def test_a_look_while_all_threads_are_busy_does_not_forget_that_there_is_more(
    open_due: OpenDue, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_A_SECOND", 1_000_000)
    journal, sender = FakeJournal({"crm": [f"e{n}" for n in range(3 * TAKEN_AHEAD)]}), FakeSender()
    due = open_due(journal, sender, "crm")
    monkeypatch.setattr(module, "TICK_S", 3_600.0)
    due.look()
    due.look()
    due.start()
    sender.may_go_on.set()
    eventually(lambda: len(sender.began) == 3 * TAKEN_AHEAD)


@pytest.fixture
def well_again(pipeline: Pipeline) -> Pipeline:
    """Thirty wait for hours, and their destination takes everything by now."""
    for number in range(30):
        assert pipeline.status_of(subject=f"Mail {number}") == "queued"
    pipeline.let_time_pass(10_000)
    pipeline.deliver_due()
    pipeline.destinations["crm"].reactions.clear()
    pipeline.let_time_pass(1)
    return pipeline


def test_what_waits_goes_out_once_it_is_well_before_its_time_and_once(
    well_again: Pipeline, open_due: OpenDue, eventually: Eventually
) -> None:
    crm = well_again.destinations["crm"]
    processes = [open_due(well_again.journal, well_again.sender, "crm", "slack") for _ in range(2)]
    for each in processes:
        each.tick()
    assert crm.taken == [], "it waits for five minutes"
    well_again.sender.states.note_well("crm")
    for each in processes:
        each.start()
    eventually(lambda: len(crm.taken) >= 30)
    eventually(lambda: all(well_again.delivery(subject=f"Mail {n}").status == "delivered" for n in range(30)))
    assert len({webhook.webhook_id for webhook in crm.taken}) == len(crm.taken) == 30


def test_another_process_pulls_forward_what_the_one_that_found_out_left(
    well_again: Pipeline, sqlite_bench: JournalBench, open_due: OpenDue, eventually: Eventually
) -> None:
    well_again.sender.states.note_well("crm")
    with open_pipeline(sqlite_bench, well_again.destinations, journal=sqlite_bench.another) as another:
        due = open_due(another.journal, another.sender, "crm")
        due.start()
        eventually(lambda: len(another.destinations["crm"].taken) == 30)
        due.close()


def test_what_fails_after_it_was_well_keeps_its_own_schedule(well_again: Pipeline, open_due: OpenDue) -> None:
    crm = well_again.destinations["crm"]
    crm.reactions[:] = list(OUTAGE)
    well_again.sender.states.note_well("crm")
    due = open_due(well_again.journal, well_again.sender, "crm")
    for _ in range(10):
        due.tick()
        due._pools["crm"].submit(lambda: None).result()
    asked = len(crm.asked)
    dead = [n for n in range(30) if well_again.delivery(subject=f"Mail {n}").status is DeliveryStatus.DEAD]
    assert len(dead) == 30, "the third try of three"
    for _ in range(3):
        due.tick()
    assert len(crm.asked) == asked


def test_behind_a_destination_that_is_down_or_was_paused_what_is_too_old_is_given_up(
    pipeline: Pipeline, open_due: OpenDue, monkeypatch: pytest.MonkeyPatch
) -> None:
    hour_ms = 3_600_000
    due = open_due(pipeline.journal, pipeline.sender, "crm")
    assert pipeline.status_of(subject="Old") == "queued"
    pipeline.let_time_pass(76 * hour_ms + 1)
    assert pipeline.status_of(subject="Young") == "queued"
    due.give_up_what_is_too_old()
    assert pipeline.delivery(subject="Old").status == "waiting", "the destination is not known to be down"
    monkeypatch.setattr(type(pipeline.sender), "is_down", lambda _, name: name == "crm")
    pipeline.sender.states.decide("crm", is_paused=False, reason="", by="test")
    due.give_up_what_is_too_old()
    assert pipeline.delivery(subject="Old").status == "waiting", "while it was paused no time passed"
    pipeline.let_time_pass(75 * hour_ms)
    due.give_up_what_is_too_old()
    assert pipeline.delivery(subject="Old").status == "waiting"
    pipeline.let_time_pass(2 * hour_ms)
    due.give_up_what_is_too_old()
    old = pipeline.delivery(subject="Old")
    assert (old.status, old.reason) == ("dead", "crm: waited 76 h")
    assert pipeline.payload(subject="Old") is not None


# However many wait


TROUBLES = ("open", "half-open", "paused", "disabled")


def wait_for_all(journal: Journal, count: int) -> None:
    """So many emails whose next try has come, everywhere."""
    wanted = tuple(Wanted(name, f"msg_{name}") for name in TROUBLES)
    for first in range(0, count, 100):
        claims = [
            Claim(new_entry_id(), owner, (Name(Kind.EMAIL_ID, "2026-11-16", owner),), (), wanted)
            for owner in (f"owner {count} {number}" for number in range(first, min(count, first + 100)))
        ]
        settlings = []
        for claim, claimed in zip(claims, journal.claim_many(claims), strict=True):
            assert isinstance(claimed, Claimed)
            waiting = tuple(put_off(each, "it waits", until_ms=1) for each in claimed.entry.deliveries)
            settlement = Settlement(Ending.DONE, "queued", waiting, payload=b"payload")
            settlings.append(Settling(claim, claimed.entry, settlement))
        assert all(answer is True for answer in journal.settle_many(settlings))


@pytest.fixture
def troubled(redis_server: RedisServer, tmp_path: Path) -> Iterator[Parts]:
    """A process on Redis, with one destination for each kind of trouble."""
    lines = f"url = 'http://127.0.0.1:{free_port()}/'\nbreaker_failures = 1\nbreaker_pause_s = 3600"
    sections = [f"[destinations.{name}]\n{lines}\nenabled = {str(name != 'disabled').lower()}" for name in TROUBLES]
    route = f"[[routes]]\nname = 'all'\ndestinations = {list(TROUBLES)}"
    (tmp_path / "mailonce.toml").write_text("\n".join([*sections, route]))
    settings = load_settings(data_dir=tmp_path / "data", redis_url=redis_server.url, redis_timeout_ms=PATIENT_MS)
    parts = build_parts(settings, load_config(settings))
    parts.guard.failed("open")
    parts.guard.failed("half-open")
    redis_server.client.delete(*redis_server.client.keys("*breaker/half-open/pause*"))
    parts.sender.states.decide("paused", is_paused=True, reason="", by="test")
    yield parts
    parts.close()


def test_behind_destinations_in_trouble_a_second_costs_redis_the_same_however_many_wait(
    troubled: Parts, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failover, "COPIES_EVERY_MS", 0)
    monkeypatch.setattr(on_redis, "_PURGE_EVERY_S", 0.0)  # each time, as everything else
    monkeypatch.setattr(failover, "RELIABLE_REPLY_MS", 60_000)  # the machine may be busy
    due = build_due(troubled, threads_each=2)
    handed_out: list[str] = []
    monkeypatch.setattr(due, "_hand_out", lambda _, destination: handed_out.append(destination))

    def calls() -> Counter[str]:
        stats = redis_server.client.info("commandstats")
        return Counter({name: int(each["calls"]) for name, each in stats.items() if name != "cmdstat_info"})

    def commands_of_a_second() -> Counter[str]:
        before = calls()
        due.tick()
        cast(FailoverJournal, troubled.journal).tick()
        return calls() - before

    wait_for_all(troubled.journal, 10)
    commands_of_a_second()  # scripts are loaded
    few = commands_of_a_second()
    wait_for_all(troubled.journal, 2_000)
    assert commands_of_a_second() == few
    assert few.total() > 10
    assert handed_out == ["half-open"] * 3, "one probe each time"
    due.close()
