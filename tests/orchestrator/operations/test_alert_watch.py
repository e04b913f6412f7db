"""One process judges for all, and an alarm is told once when it begins and once when it ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from deduplication.errors import StoreUnavailable
from deduplication.journal.base import Journal
from deduplication.journal.side import Side
from deduplication.journal.sqlite import SqliteJournal
from orchestrator.operations.alert_watch import BOARD, LEASE_MS, Alerting, AlertWatch
from orchestrator.operations.alerts import TOLD_AGAIN_AFTER_S, AlertCondition, Facts, read_board
from tests.deduplication.journal.test_failover import Machine, leave
from tests.support.journals import JournalBench
from tests.support.pipeline import DOWN, REFUSES, FakeDestination
from tests.support.redis_server import RedisServer

AFTER_MS = 60_000
WELL = Facts(has_queue=True, received=0, died={}, breakers={}, oldest_s={}, workers=2)
NO_WORKER = replace(WELL, workers=0)


@dataclass
class Fleet:
    """Processes that see the same facts and tell the same receiver."""

    facts: Facts = WELL
    receiver: FakeDestination = field(default_factory=FakeDestination)
    reads: int = 0

    def process(self, journal: Journal, off: frozenset[AlertCondition] = frozenset()) -> AlertWatch:
        return AlertWatch(journal, self.read, Alerting(self.receiver, AFTER_MS, off))

    def read(self) -> Facts:
        self.reads += 1
        return self.facts

    @property
    def told(self) -> list[str]:
        return [each.payload["data"]["status"] for each in self.receiver.taken]


@pytest.fixture
def fleet() -> Fleet:
    return Fleet()


def look(bench: JournalBench, *processes: AlertWatch, for_ms: int = AFTER_MS) -> None:
    """All of them, before and after that time."""
    for process in processes:
        process.look()
    bench.advance(for_ms)
    for process in processes:
        process.look()


def test_of_all_processes_one_judges_and_tells_once(bench: JournalBench, fleet: Fleet) -> None:
    one, two = fleet.process(bench.journal), fleet.process(bench.another)
    fleet.facts = NO_WORKER
    look(bench, one, two, for_ms=LEASE_MS // 2)
    assert fleet.reads == 2, "the other sees what was found"
    for _ in range(3):
        look(bench, one, two, for_ms=LEASE_MS // 2)
    assert fleet.told == ["begun"]
    assert (
        [each.condition for each in two.alarms()]
        == [AlertCondition.NO_WORKER]
        == [each.condition for each in one.alarms()]
    )
    assert two.findings == one.findings
    fleet.facts = WELL
    for _ in range(4):
        look(bench, two, one, for_ms=LEASE_MS // 2)
    two.look()
    assert fleet.told == ["begun", "ended"]
    assert one.alarms() == two.alarms() == []
    begun, ended = fleet.receiver.taken
    assert begun.webhook_id != ended.webhook_id


def test_when_the_judge_is_silent_another_goes_on_where_it_was(bench: JournalBench, fleet: Fleet) -> None:
    one, two = fleet.process(bench.journal), fleet.process(bench.another)
    fleet.facts = NO_WORKER
    look(bench, one)
    assert fleet.told == ["begun"]
    two.look()
    assert fleet.reads == 2, "the first still judges"
    bench.advance(LEASE_MS)
    look(bench, two)
    assert fleet.told == ["begun"], "it was told already"
    fleet.facts = WELL
    look(bench, two)
    assert fleet.told == ["begun", "ended"]


def test_a_judge_that_was_held_up_while_it_looked_decides_nothing(bench: JournalBench, fleet: Fleet) -> None:
    two = fleet.process(bench.another)

    def look_for_long() -> Facts:
        bench.advance(LEASE_MS)
        two.look()
        return NO_WORKER

    held_up = AlertWatch(bench.journal, look_for_long, Alerting(fleet.receiver, after_ms=0))
    held_up.look()
    assert fleet.told == []
    assert held_up.alarms() == two.alarms() == []


def test_a_judge_that_is_held_up_while_it_tells_has_told_it_once(bench: JournalBench, fleet: Fleet) -> None:
    one, two = fleet.process(bench.journal), fleet.process(bench.another)
    fleet.facts = NO_WORKER

    def take_long() -> None:
        bench.advance(LEASE_MS // 2)
        two.look()
        bench.advance(LEASE_MS // 2)
        two.look()

    fleet.receiver.reactions = [take_long]
    look(bench, one)
    look(bench, two, one, for_ms=max(TOLD_AGAIN_AFTER_S) * 1000)
    assert len(fleet.receiver.asked) <= 2, "whoever took over could not know that it arrives"
    assert len({each.webhook_id for each in fleet.receiver.asked}) == 1


def test_a_judge_that_ends_leaves_it_to_the_next_at_once(bench: JournalBench, fleet: Fleet) -> None:
    one, two = fleet.process(bench.journal), fleet.process(bench.another)
    one.look()
    one.close()
    two.look()
    assert fleet.reads == 2


def test_a_clock_set_back_by_a_day_lets_nobody_judge_for_a_day(bench: JournalBench, fleet: Fleet) -> None:
    one, two = fleet.process(bench.journal), fleet.process(bench.another)
    bench.advance(24 * 3600 * 1000)
    one.look()
    bench.advance(-24 * 3600 * 1000)
    two.look()
    assert fleet.reads == 2


def test_an_alarm_survives_a_restart(tmp_path: Path, fleet: Fleet) -> None:
    journal = SqliteJournal(tmp_path / "journal.db")
    fleet.facts = NO_WORKER
    before = AlertWatch(journal, fleet.read, Alerting(fleet.receiver, after_ms=0))
    before.look()
    before.close()
    after = AlertWatch(journal, fleet.read, Alerting(fleet.receiver, after_ms=0))
    after.look()
    assert [each.condition for each in after.alarms()] == [AlertCondition.NO_WORKER]
    assert fleet.told == ["begun"]
    journal.close()


def test_a_receiver_that_fails_is_told_again_a_bounded_number_of_times(bench: JournalBench, fleet: Fleet) -> None:
    one = fleet.process(bench.journal)
    fleet.receiver.reactions = [DOWN] * 100
    fleet.facts = NO_WORKER
    look(bench, one)
    for wait_s in TOLD_AGAIN_AFTER_S:
        one.look()
        bench.advance(wait_s * 1000)
        one.look()
    look(bench, one, for_ms=24 * 3600 * 1000)
    assert len(fleet.receiver.asked) == len(TOLD_AGAIN_AFTER_S) + 1
    assert len({each.webhook_id for each in fleet.receiver.asked}) == 1
    assert [each.condition for each in one.alarms()] == [AlertCondition.NO_WORKER], "that it fails is no alarm"


def test_a_receiver_that_is_well_again_gets_what_it_missed(bench: JournalBench, fleet: Fleet) -> None:
    one = fleet.process(bench.journal)
    fleet.receiver.reactions = [DOWN]
    fleet.facts = NO_WORKER
    look(bench, one)
    look(bench, one, for_ms=TOLD_AGAIN_AFTER_S[0] * 1000)
    assert fleet.told == ["begun"]


def test_a_receiver_that_refuses_is_told_nothing_more_of_that(bench: JournalBench, fleet: Fleet) -> None:
    one = fleet.process(bench.journal)
    fleet.receiver.reactions = [REFUSES]
    fleet.facts = NO_WORKER
    look(bench, one)
    look(bench, one, for_ms=24 * 3600 * 1000)
    assert len(fleet.receiver.asked) == 1


def test_one_that_dies_in_the_middle_of_telling_makes_no_loop(bench: JournalBench, fleet: Fleet) -> None:
    class Killed(BaseException):
        pass

    def die() -> None:
        raise Killed

    fleet.receiver.reactions = [die] * 100
    fleet.facts = NO_WORKER
    tries = 0
    for wait_s in (AFTER_MS / 1000, 0, *TOLD_AGAIN_AFTER_S, *TOLD_AGAIN_AFTER_S, 86_400):
        try:
            fleet.process(bench.journal).look()
        except Killed:
            tries += 1
        bench.advance(LEASE_MS + int(wait_s * 1000))
    assert tries == len(TOLD_AGAIN_AFTER_S) + 1


def test_without_a_receiver_alarms_are_shown(bench: JournalBench, fleet: Fleet) -> None:
    one = AlertWatch(bench.journal, fleet.read, Alerting(after_ms=AFTER_MS))
    fleet.facts = NO_WORKER
    look(bench, one)
    assert [each.condition for each in one.alarms()] == [AlertCondition.NO_WORKER]
    told_later = fleet.process(bench.another)
    bench.advance(LEASE_MS)
    told_later.look()
    assert fleet.told == [], "what began before there was anybody to tell is old news"


def test_what_is_off_is_no_alarm(bench: JournalBench, fleet: Fleet) -> None:
    one = fleet.process(bench.journal, frozenset({AlertCondition.NO_WORKER}))
    fleet.facts = NO_WORKER
    look(bench, one)
    assert one.alarms() == []


def test_an_alarm_is_shown_in_the_words_of_now(bench: JournalBench, fleet: Fleet) -> None:
    one = fleet.process(bench.journal)
    for age_s in (1_000, 1_060, 7_500):
        fleet.facts = replace(WELL, oldest_s={"crm": age_s})
        look(bench, one)
    assert [each.text for each in one.alarms()] == ["An email has waited for 2 h to be delivered to crm."]
    assert fleet.receiver.taken[0].payload["data"]["text"].startswith("An email has waited for 16 min")


def test_a_journal_that_is_away_stops_nobody(
    bench: JournalBench, fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> Facts:
        raise StoreUnavailable("away")

    done = []
    watch = AlertWatch(bench.journal, fail, Alerting(), also=[lambda: done.append("written")])
    watch.start()
    watch.close()
    assert done == ["written"]


# Two sides


@pytest.mark.real_redis
def test_alone_a_machine_goes_on_from_what_it_has_seen_and_an_emptied_redis_is_told(
    tmp_path: Path, fleet: Fleet, eventually: Callable[[Callable[[], bool]], None]
) -> None:
    with ExitStack() as stack:
        redis = stack.enter_context(running_redis())
        machines = [Machine(redis, tmp_path / name, stack) for name in ("m1", "m2")]
        here, there = (each.process() for each in machines)
        one, two = fleet.process(here), fleet.process(there)
        fleet.facts = NO_WORKER
        for _ in range(2):
            one.look()
            two.look()
            for each in machines:
                each.pass_s(AFTER_MS // 1000)
        assert fleet.told == ["begun"]
        redis.kill()
        leave(there)
        two.look()
        assert [each.condition for each in two.alarms()] == [AlertCondition.NO_WORKER]
        fleet.facts = WELL
        two.look()
        machines[1].pass_s(AFTER_MS // 1000)
        two.look()
        assert fleet.told == ["begun", "ended"]
        redis.start()

        def is_back() -> bool:
            machines[1].pass_s(31)
            there.tick()
            return there.standing.side is Side.REDIS

        eventually(is_back)
        two.look()
        assert read_board(there.memo(BOARD)).episodes["no_worker"].ended_ms
        assert fleet.told == ["begun", "ended"]


@contextmanager
def running_redis() -> Iterator[RedisServer]:
    server = RedisServer("--save", "").start()
    try:
        yield server
    finally:
        server.stop()
