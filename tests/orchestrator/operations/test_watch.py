"""What happens behind the requests: counts are written, and one process does what one does for its machine."""

from __future__ import annotations

from deduplication.errors import NoAnswer, NotNow
from orchestrator.metrics.counts import read_sums
from orchestrator.operations.alarms import Alarms
from orchestrator.operations.providers import ProvidersSeen
from orchestrator.operations.watch import TURN_MS, Watch
from tests.deduplication.journal.world import Email, ask, send
from tests.orchestrator.operations.fleet_bench import OpenProcess, Process, open_process, process, time

__all__ = ["open_process", "process", "time"]  # fixtures


def watch_of(process: Process) -> Watch:
    providers, alarms = ProvidersSeen(process.journal), Alarms(process.journal)
    return Watch(process.coordinator, process.meter, process.counts, providers, process.observer, alarms)


def sums(process: Process) -> dict[str, float]:
    with process.journal.reading() as step:
        return read_sums(step)


def test_a_tick_writes_counts_and_asks_the_other_servers(process: Process) -> None:
    watch = watch_of(process)
    process.meter.count_group()
    watch.tick()
    assert sums(process) == {"groups": 1}
    assert process.observer.fleet_state().outside is not None


def test_without_redis_a_tick_tends_the_journal(process: Process) -> None:
    send(process.machine, Email())
    ask(process.machine, Email())
    watch_of(process).tick()
    with process.journal.reading() as step:
        assert step.query("SELECT sum(count) FROM repeats") == [(1,)]


def test_one_process_of_a_machine_has_the_turn_and_another_takes_it_over(process: Process) -> None:
    one, two = watch_of(process), watch_of(process)
    assert [watch._has_turn() for watch in (one, two, one)] == [True, False, True]
    process.machine.time.pass_ms(TURN_MS)
    assert [watch._has_turn() for watch in (two, one)] == [True, False], "the first one was silent"
    two.close()
    assert one._has_turn(), "at once"
    process.machine.time.pass_ms(-3 * TURN_MS)
    assert two._has_turn(), "a clock that was set back lets nobody have it for ever"


def test_what_was_counted_is_written_at_the_end_and_a_worker_is_gone(open_process: OpenProcess) -> None:
    process = open_process(queue_url="redis://127.0.0.1:1", is_worker=True)
    watch = watch_of(process)
    watch.start()
    watch.close()
    watch.close()
    process.meter.count_group()
    again = watch_of(process)
    again.tick()
    assert process.observer.fleet_state().workers == 1
    process.meter.count_group()
    again.close()
    assert sums(process) == {"groups": 2}
    assert process.observer.fleet_state().workers == 0


def test_steps_of_redis_their_errors_and_its_status_are_counted(open_process: OpenProcess) -> None:
    process = open_process(with_redis=True)
    watch = watch_of(process)

    def fail() -> None:
        raise NoAnswer("late") from TimeoutError()

    process.coordinator.redis.ask(lambda: None)
    for question in (fail, fail):
        try:
            process.coordinator.redis.ask(question)
        except NotNow:
            continue
    process.coordinator.redis.give_up()
    watch.tick()
    found = sums(process)
    assert (found["redis_steps"], found["redis_errors|TimeoutError"]) == (2, 1), "nobody asks one that is suspected"
    assert found["redis_s|gone"] > 0
    state = process.observer.fleet_state()
    assert (state.lately.redis_error_share, state.lately.redis_gone_share) == (0.5, 1.0)


def test_counts_of_the_fleet_are_shared_in_turn(open_process: OpenProcess) -> None:
    one, two = open_process(with_redis=True), open_process(with_redis=True)
    two.meter.count_group()
    for each in (two, one):
        watch_of(each).tick()
    assert sums(one)["groups"] == 1
