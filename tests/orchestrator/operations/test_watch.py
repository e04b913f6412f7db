"""What happens behind the requests: counts are written, and one process does what one does for its machine."""

import threading
import time
from collections.abc import Mapping
from typing import Any

import pytest
import redis

from deduplication import members
from deduplication.errors import StoreUnavailable
from orchestrator.metrics.meter import GROUPS, read_sums
from orchestrator.operations.alarms import diagnose
from orchestrator.operations.fleet_state import fleet_state
from orchestrator.watch import TURN_MS, Watch
from tests.deduplication.journal.world import Email, ask, send
from tests.orchestrator.operations.fleet_bench import OpenProcess, Process


def sums(process: Process) -> Mapping[str, float]:
    with process.journal.reading() as step:
        return read_sums(step).counts


def test_a_tick_writes_counts_fills_the_search_index_and_asks_the_other_servers(process: Process) -> None:
    process.meter.count((1, GROUPS))
    send(process.machine, Email())
    ask(process.machine, Email())
    Watch(process.service).tick()
    assert sums(process) == {"groups": 1}
    assert fleet_state(process.service).facts.at_ms
    with process.journal.reading() as step:
        assert step.query("SELECT count(*) FROM search") == [(1,)]
        assert step.query("SELECT sum(count) FROM repeats") == [(1,)], "without Redis, it tends the journal"


def test_one_process_of_a_machine_has_the_turn_and_another_takes_it_over(process: Process) -> None:
    one, two = Watch(process.service), Watch(process.service)

    def turns(*watches: Watch) -> list[bool]:
        for watch in watches:
            watch.tick()
        return [watch._has_turn for watch in watches]

    assert turns(one, two) == turns(one, two) == [True, False]
    process.machine.time.pass_ms(TURN_MS)
    assert turns(two, one) == [True, False], "the first one was silent"
    two.close()
    assert turns(one) == [True], "at once"


def test_what_was_counted_is_written_at_the_end_and_a_worker_is_gone(open_process: OpenProcess) -> None:
    process = open_process(deliver_by="workers", is_worker=True)
    watch = Watch(process.service)
    watch.start()
    while fleet_state(process.service).workers != 1:
        pass
    process.meter.count((1, GROUPS))
    for _ in range(2):
        watch.close()
        assert (sums(process), fleet_state(process.service).workers) == ({"groups": 1}, 0)


def test_a_pause_is_known_while_an_alarm_receiver_does_not_answer(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluates, answers = threading.Event(), threading.Event()

    def evaluate(_: object) -> None:
        evaluates.set()
        answers.wait(60)

    monkeypatch.setattr(process.alarms, "evaluate", evaluate)
    watch = Watch(process.service)
    watch.start()
    try:
        assert evaluates.wait(60)
        with process.journal.step() as step:  # as another process does
            members.put_note(step, "destination:crm", "{}")
        ends_at = time.monotonic() + 20
        while not (is_paused := process.guard.pause_of("crm").is_paused) and time.monotonic() < ends_at:
            time.sleep(0.01)
        assert is_paused
    finally:
        answers.set()
        watch.close()


def test_steps_of_redis_their_errors_and_its_status_are_counted(open_process: OpenProcess) -> None:
    process = open_process(with_redis=True)
    watch, registry = Watch(process.service), process.machine.registry

    def fail(client: Any, _: str) -> None:
        raise redis.exceptions.TimeoutError

    registry.ask(lambda client, _: client.ping())
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            registry.ask(fail)
    process.coordinator.redis.give_up()
    watch.tick()
    found = sums(process)
    assert (found["redis_steps"], found["redis_errors|TimeoutError"]) == (2, 1), "a suspected Redis is not asked"
    assert found["redis_s|gone"] > 0
    texts = diagnose(fleet_state(process.service))
    assert (texts["redis_errors"] or "").startswith("50.0% of") and "100.0% of" in (texts["local_journal"] or "")
