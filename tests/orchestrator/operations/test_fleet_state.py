"""One picture of the fleet: what waits, what is dead, Redis, the members, the workers."""

from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from deduplication import again
from deduplication.files import check_free_space
from deduplication.journal.entry import Attempt, DeliveryStatus
from orchestrator.delivery.sender import put_off
from orchestrator.operations.fleet_state import FRESH_MS, Facts, fleet_state
from orchestrator.operations.health import is_ready
from orchestrator.version import our_version
from orchestrator.watch import Watch, find_facts
from tests.deduplication.journal.world import Email, claimed, send, stored, take
from tests.orchestrator.operations.fleet_bench import OpenProcess, Process


def kill(process: Process, key: str) -> str:
    """A dead letter; its entry."""
    stored(process.machine, claimed(process.machine, Email(key)))
    (lent,) = take(process.machine)
    now_ms = process.machine.time.now_ms
    tried = replace(lent.delivery, tries=1, attempts=(Attempt(now_ms, 5, 500),))
    dead = replace(tried, status=DeliveryStatus.DEAD, ended_ms=now_ms)
    assert process.coordinator.finish(lent, dead)
    return lent.entry.id


def test_waiting_and_dead_are_counted_by_destination_also_where_it_is_gone(process: Process) -> None:
    send(process.machine, Email("delivered"))
    kill(process, "dead")
    for number in range(3):
        stored(process.machine, claimed(process.machine, Email(f"{number}", destinations=("crm", "old"))), in_ms=1)
        process.machine.time.pass_ms(60_000)
    state = process.state()
    found = state.destinations
    assert [(name, view.waiting, view.dead) for name, view in found.items()] == [
        ("crm", 3, 1),
        ("archive", 0, 0),
        ("old", 3, 0),
    ]
    assert (found["crm"].oldest_s, found["archive"].oldest_s) == (180, None)
    assert list(state.active) == ["crm"], "archive is disabled, old is no longer configured"


def test_a_dead_letter_that_is_replayed_waits_since_then(process: Process) -> None:
    entry = kill(process, "dead")
    process.machine.time.pass_ms(7_200_000)
    with process.journal.step() as step:
        known = step.read(entry)
        assert known
        step.put_payload(known, b"payload")
    assert again.replay(process.coordinator, entry, "crm") is None
    time = process.machine.time
    time.pass_ms(10_000)
    assert process.state().destinations["crm"].oldest_s == 10
    for waited_s, delay_s in ((0, 300), (300, 1800)):  # since the first attempt after the replay
        (lent,) = take(process.machine)
        failed = put_off(lent.delivery, "answered 500", time.now_ms + delay_s * 1000)
        attempts = (*failed.attempts, Attempt(time.now_ms, 5, 500))
        assert process.coordinator.finish(lent, replace(failed, tries=failed.tries + 1, attempts=attempts))
        assert process.state().destinations["crm"].oldest_s == waited_s
        time.pass_ms(delay_s * 1000)
    with process.journal.step() as step:  # as when the destination works again
        assert step.make_due(entry, "crm")
    assert process.state().destinations["crm"].oldest_s == 2100


def test_without_redis_there_is_none_and_a_pause_and_a_breaker_are_known(process: Process) -> None:
    process.guard.set_paused("crm", True, reason="it moves", by="Ada")
    process.guard.failed("crm")
    state = process.state()
    crm = state.destinations["crm"]
    assert crm.paused and (crm.paused.by, crm.breaker, state.active) == ("Ada", "open", {})
    assert (state.redis_status, state.workers, state.members) == (None, None, {})


def test_redis_the_members_and_what_is_unpublished(open_process: OpenProcess) -> None:
    one, two = open_process(with_redis=True), open_process(with_redis=True)
    stored(one.machine, claimed(one.machine, Email("waits")))
    two.guard.failed("crm")
    for process in (one, two, one):
        process.machine.tick()
        process.machine.follow()
    send(two.machine, Email("unpublished"))
    state = one.state()
    assert (state.redis_status, state.unpublished, state.behind_s) == ("up", 0, 0)
    assert state.lost_ms is None and state.gap_ms is None
    assert set(state.members) == {one.machine.name, two.machine.name}
    assert {member["version"] for member in state.members.values()} == {our_version()}
    facts = state.facts
    assert (facts.maxmemory_policy, facts.redis_payload_bytes, facts.evicted_keys) == ("noeviction", 7, 0)
    assert facts.used_bytes
    assert state.destinations["crm"].breaker == "open", "on another machine"
    assert state.known_since_ms and state.known_since_ms <= state.now_ms
    assert two.state().unpublished == 1
    assert two.state().destinations["crm"].waiting == 1, "stored by the other machine"


def test_the_room_of_suppressed_emails_is_that_of_the_machine_with_the_least_left(process: Process) -> None:
    now_ms = process.machine.time.now_ms
    members: dict[str, Any] = {"two": {"at_ms": now_ms, "suppressed_share": 0.81}, "old": {"at_ms": now_ms}}
    with process.journal.step() as step:
        facts = Facts(at_ms=now_ms, members=members, suppressed_share=0.1)
        step.set_meta("facts", facts.model_dump_json())
    assert fleet_state(process.service).suppressed_share == 0.81


def test_a_redis_that_is_lost_is_known_to_a_command_line_as_well(open_process: OpenProcess) -> None:
    process = open_process(with_redis=True)
    find_facts(process.service)
    process.machine.time.pass_ms(5_000)
    process.coordinator.redis.give_up()
    with process.journal.step() as step:  # as the fleet's thread does
        step.set_meta("lost_ms", str(step.now_ms))
    state = fleet_state(process.service)
    assert state.redis_status == "gone"
    assert state.lost_ms == process.machine.time.now_ms
    process.coordinator.redis.status = "suspected"  # as in a process that has not asked yet
    assert fleet_state(process.service).redis_status == "gone"


def test_workers_are_counted_over_the_fleet_while_they_live(open_process: OpenProcess) -> None:
    one, two = (open_process(with_redis=True, deliver_by="workers", is_worker=True) for _ in range(2))
    watches = [Watch(process.service) for process in (one, two)]
    for watch in watches:
        watch.tick()
    for process in (two, one):
        process.machine.tick()
    assert one.state().workers == 2
    watches[0].close()
    assert one.state().workers == 1
    one.machine.time.pass_ms(FRESH_MS + 1)
    one.machine.tick()
    assert one.state().workers == 0, "the other machine is silent"


def test_redis_is_asked_behind_the_requests(open_process: OpenProcess) -> None:
    process = open_process(with_redis=True)
    assert fleet_state(process.service).facts == Facts()
    assert process.state().facts.used_bytes
    process.machine.time.pass_ms(FRESH_MS + 1)
    assert fleet_state(process.service).facts == Facts(), "too old to be of now"


def test_a_full_disk_accepts_nothing(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process.journal, "check_disk", partial(check_free_space, process.machine.folder, 1 << 60))
    assert not is_ready(process.service)
