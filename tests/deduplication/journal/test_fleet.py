"""The threads behind the requests, on real sockets: machines hear of each other, and Redis goes and comes. And many
threads and processes at once: exactly one of them gets an email."""

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from deduplication.clock import Clock, system_clock
from deduplication.errors import StoreUnavailable
from deduplication.journal.coordinator import Claimed
from deduplication.journal.entry import pack_event
from deduplication.journal.registry import RegistryOptions
from deduplication.journal.rules import Repeat
from deduplication.room import trim_stream
from tests.deduplication.conftest import Fleet3
from tests.deduplication.journal.world import Email, Machine, Time, ask, claimed, delivered, send, stored, take
from tests.support.programs_loaded import run_at_once
from tests.support.redis_server import RedisServer
from tests.support.waiting import wait_for


class RealTime(Time):
    def clock(self) -> Clock:
        return system_clock(1)


def accepts(machine: Machine, email: Email) -> bool:
    try:
        return isinstance(ask(machine, email), Claimed | Repeat)
    except StoreUnavailable:
        return False


def has_read(machine: Machine) -> bool:
    """All of the stream: only then may it go on without Redis."""
    with machine.journal.reading() as step:
        return bool(step.meta("read_ms"))


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with RedisServer() as found:
        yield found


@pytest.fixture
def machines(server: RedisServer) -> Iterator[list[Machine]]:
    options = RegistryOptions(hold_ms=300)
    found = [Machine(server.url, RealTime(), options=options, timeout_s=0.5) for _ in range(2)]
    for machine in found:
        machine.fleet.start()
    wait_for(lambda: all(accepts(machine, Email(f"warm-{machine.name}")) for machine in found))
    wait_for(lambda: all(has_read(machine) for machine in found))
    yield found
    for machine in found:
        machine.fleet.close()
        machine.close()


def test_another_process_of_a_machine_goes_on_for_one_that_died(server: RedisServer, machines: list[Machine]) -> None:
    first, other = machines
    neighbour = Machine(server.url, RealTime(), options=first.options, host=first.host, folder=first.folder)
    neighbour.fleet.start()
    wait_for(lambda: neighbour.coordinator.redis.status == "up")
    assert [each.fleet._is_leader for each in (first, neighbour)] == [True, False]
    first.coordinator.redis.wake.set()
    first.fleet._threads.close()
    send(first, Email("unpublished"))
    send(other, Email("elsewhere"))
    wait_for(lambda: server.client.sismember("processed_ids:2026-11-17", "id-unpublished"))
    wait_for(lambda: position_of(neighbour) == last_event(server))
    assert isinstance(neighbour.coordinator.look(Email("elsewhere").claim("somebody")), Repeat)
    neighbour.fleet.close()
    neighbour.stop()


def test_a_process_that_starts_publishes_what_another_one_has_left(
    server: RedisServer, machines: list[Machine]
) -> None:
    first, _ = machines
    first.coordinator.redis.wake.set()
    first.fleet._threads.close()
    send(first, Email("left"))
    starts = Machine(server.url, RealTime(), options=first.options, host=first.host, folder=first.folder)
    starts.coordinator.redis.wake.set()
    starts.fleet._check_on()
    assert not starts.fleet._is_leader, "it does not wait until the other one counts as dead"
    assert server.client.sismember("processed_ids:2026-11-17", "id-left")
    starts.stop()


def test_a_hanging_redis_is_gone_until_it_answers(server: RedisServer, machines: list[Machine]) -> None:
    send(machines[0], Email("before"))
    os.kill(server.pid, signal.SIGSTOP)
    wait_for(lambda: accepts(machines[1], Email("meanwhile")))
    assert machines[1].coordinator.redis.status == "gone"
    os.kill(server.pid, signal.SIGCONT)
    wait_for(lambda: machines[1].coordinator.redis.status == "up")
    found = claimed(machines[1], Email("after"))
    assert not found.is_alone and delivered(machines[1], found).is_safe
    wait_for(lambda: server.client.sismember("processed_ids:2026-11-17", "id-before"))


def test_a_redis_that_was_killed_and_came_back_empty_is_refilled(server: RedisServer, machines: list[Machine]) -> None:
    send(machines[0], Email())
    wait_for(lambda: server.client.sismember("processed_ids:2026-11-17", "id-one"))
    server.kill()
    wait_for(lambda: machines[0].coordinator.redis.status == "gone")
    send(machines[0], Email("alone"))
    server.start()
    wait_for(lambda: server.client.sismember("processed_ids:2026-11-17", "id-one"))
    wait_for(lambda: server.client.sismember("processed_ids:2026-11-17", "id-alone"))
    wait_for(lambda: machines[1].coordinator.redis.status == "up")  # until then it would go on alone
    wait_for(lambda: accepts(machines[1], Email("alone")))
    assert isinstance(ask(machines[1], Email("alone")), Repeat)


def test_a_start_does_not_depend_on_redis() -> None:
    machine = Machine("redis://127.0.0.1:1/0", RealTime(), timeout_s=0.2)
    machine.fleet.start()
    wait_for(lambda: machine.coordinator.redis.status == "gone")
    with pytest.raises(StoreUnavailable):  # it has never read the stream: it may not go on alone
        ask(machine, Email())
    machine.fleet.close()
    machine.close()


def test_a_service_that_gets_a_redis_later_hands_its_journal_over(server: RedisServer, machines: list[Machine]) -> None:
    alone = Machine(None, RealTime())
    send(alone, Email("done"))
    stored(alone, claimed(alone, Email("waits")))
    with alone.journal.step() as step:
        step.put_mark("email_id:2026-01-01:old", None, "text......head")
    alone.stop()
    alone.url = server.url
    alone.start()
    alone.fleet.start()
    wait_for(lambda: server.client.sismember("processed_ids:2026-01-01", "old"))
    server.client.delete("restoring")  # a machine that is behind would wait until it expires
    assert isinstance(ask(machines[0], Email("done")), Repeat)
    assert [each.delivery.webhook_id for each in take(machines[0])] == ["msg_waits_crm"]
    alone.fleet.close()
    alone.close()


def test_restoring_delays_no_outcome(
    server: RedisServer, machines: list[Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With many entries that takes long; an outcome published after its lease would be sent again elsewhere."""
    is_restored = threading.Event()
    monkeypatch.setattr(machines[0].fleet, "restore", lambda **_: is_restored.wait(20))
    server.client.flushall()
    wait_for(lambda: accepts(machines[0], Email("first of the era")))
    send(machines[0], Email("new"))
    wait_for(lambda: server.client.sismember("processed_ids:2026-11-17", "id-new"))
    is_restored.set()


def test_a_quiet_week_is_no_gap(server: RedisServer, machines: list[Machine]) -> None:
    server.client.config_set("stream-node-max-entries", 1)  # Redis removes whole nodes
    send(machines[0], Email("before"))
    wait_for(lambda: all(position_of(each) == last_event(server) for each in machines))
    machines[1].fleet.close()  # else it may be waiting for the event, and look for a gap only afterwards
    trim_stream(machines[0].registry, machines[0].journal.clock.now_ms() + 60_000, 1 << 20)
    send(machines[0], Email("after"))
    wait_for(lambda: position_of(machines[0]) == last_event(server) != position_of(machines[1]))
    machines[1].fleet.follow()
    with machines[1].journal.reading() as step:
        assert not step.meta("gap_ms")


def position_of(machine: Machine) -> str:
    with machine.journal.reading() as step:
        return step.meta("position")


def last_event(server: RedisServer) -> str:
    found = server.client.xrevrange("events", count=1)
    return str(found[0][0]) if found else "none yet"


FOREIGN = (
    pack_event("E", "elsewhere", {"id": 1}),
    pack_event("E", "elsewhere", {"id": "of", "machine": "another version", "own": ["?:of:a new kind"]}),
    pack_event("R", "elsewhere", "seven", ["post::x"]),
    pack_event("Q", "elsewhere"),
    pack_event("Z", "elsewhere", "a new kind of event"),
)


@pytest.mark.parametrize("rubbish", [b"not one of ours", b"\xff\xfe", b"", *FOREIGN])
def test_an_event_that_cannot_be_read_is_a_gap_and_does_not_stop_the_others(
    server: RedisServer, machines: list[Machine], rubbish: bytes
) -> None:
    server.client.xadd("events", {"e": rubbish})
    entry = send(machines[0], Email("after it")).entry
    assert entry

    def is_known() -> bool:
        with machines[1].journal.reading() as step:
            return step.read(entry.id) is not None and bool(step.meta("gap_ms"))

    wait_for(is_known)


# At once

ROUNDS, PROCESSES, THREADS = 15, 4, 8


def contend(url: str | None, folder: Path | None, barrier: threading.Barrier) -> list[int]:
    """Asks for the same emails, round by round, with all threads at once. Whoever gets one delivers it; how many did,
    in each round. ``folder`` None: a machine of its own."""
    machine = Machine(url, RealTime(), folder=folder, options=RegistryOptions(hold_ms=1), timeout_s=30)
    machine.tick()
    machine.tick()

    def run(number: int) -> int:
        try:
            found = ask(machine, Email(f"e{number}", message_id=f"<{number}@x>"))
        except StoreUnavailable:
            return 0
        if isinstance(found, Claimed):
            delivered(machine, found)
        return isinstance(found, Claimed)

    won = []
    with ThreadPoolExecutor(THREADS) as pool:
        for number in range(ROUNDS):
            barrier.wait(60)
            won.append(sum(pool.map(run, [number] * THREADS)))
            machine.tick()
    if folder:
        machine.stop()
    else:
        machine.close()
    return won


@pytest.mark.parametrize("kind", ["sqlite", "one machine", "four machines"])
def test_of_all_that_ask_at_once_one_gets_it(kind: str, tmp_path: Path, fleet: Fleet3) -> None:
    if kind != "sqlite":
        fleet.add(options=RegistryOptions(hold_ms=1)).tick()
    url, folder = None if kind == "sqlite" else fleet.redis.url, None if kind == "four machines" else tmp_path
    won = run_at_once(PROCESSES, contend, url, folder)
    assert list(map(sum, zip(*won, strict=True))) == [1] * ROUNDS


def test_a_step_that_waits_for_the_journal_of_another_process_is_not_lost(tmp_path: Path) -> None:
    machines = [Machine(None, RealTime(), folder=tmp_path) for _ in range(2)]
    is_inside, may_leave = threading.Event(), threading.Event()

    def hold() -> None:
        with machines[0].journal.step():
            is_inside.set()
            may_leave.wait(10)

    thread = threading.Thread(target=hold)
    thread.start()
    is_inside.wait(10)
    threading.Timer(0.2, may_leave.set).start()
    assert isinstance(ask(machines[1], Email()), Claimed)
    thread.join()
    for machine in machines:
        machine.stop()
