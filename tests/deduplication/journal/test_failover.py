"""One machine over a real Redis that goes, comes back, hangs, or forgets."""

from __future__ import annotations

import fcntl
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from deduplication.claims import WEEK_MS, Kind, Name
from deduplication.content import ContentGate
from deduplication.errors import ConnectionDropped, DeduplicationError, StoreUnavailable
from deduplication.journal import failover
from deduplication.journal.base import (
    Claim,
    Claimed,
    Duplicate,
    Ending,
    InFlight,
    Released,
    Replayed,
    Settlement,
    Verdict,
    Wanted,
)
from deduplication.journal.codec import flat_entry
from deduplication.journal.destination_state import DestinationState
from deduplication.journal.entry import DeliveryStatus, Entry, State
from deduplication.journal.failover import (
    COPIES_EVERY_MS,
    REFUSED_TICKS,
    RELIABLE_REPLY_MS,
    SILENT_TICKS,
    FailoverJournal,
    OnFailure,
)
from deduplication.journal.listing import PayloadPlace
from deduplication.journal.redis import RedisJournal, RedisLostMemory
from deduplication.journal.side import Side
from deduplication.journal.sqlite import SqliteJournal
from deduplication.locks import PublicationLocks
from deduplication.redis_client import connect
from deduplication.reservations import Reservations, Reserved, Skipped
from tests.support.journals import FakeClock
from tests.support.redis_server import RedisServer

pytestmark = pytest.mark.real_redis

LEASE_MS = 60_000
GROUP = Name(Kind.SUBJECT_GROUP, "2026-11", "lot_456")

Eventually = Callable[[Callable[[], bool]], None]
ComeBack = Callable[[FailoverJournal], None]
_numbers = count(1)


def an_id(value: str) -> Name:
    return Name(Kind.EMAIL_ID, "2026-11-16", value)


def a_claim(value: str, shared: tuple[Name, ...] = ()) -> Claim:
    number = next(_numbers)
    own = (an_id(value), Name(Kind.POST, "", f"{value}@example.org", WEEK_MS))
    wanted = (Wanted("crm", f"msg_{value}"),)
    return Claim(f"entry{number}", f"owner{number}", own, shared, wanted, lease_ms=LEASE_MS)


class Machine:
    """Processes over one folder; each is a journal of its own."""

    def __init__(self, redis_server: RedisServer, folder: Path, stack: ExitStack) -> None:
        self.server, self.folder, self.stack = redis_server, folder, stack
        self.time = FakeClock()
        folder.mkdir()

    def process(
        self, timeout_s: float = 5.0, on_failure: OnFailure = OnFailure.OPEN, hold_ms: int = 50
    ) -> FailoverJournal:
        client = connect(self.server.url, timeout_s, decode_responses=False)
        on_redis = RedisJournal(client, machine=self.folder.name)
        local = SqliteJournal(self.folder / "journal.db", self.time.clock)
        journal = FailoverJournal(on_redis, local, self.folder, on_failure, hold_ms)
        self.stack.callback(journal.close)
        return journal

    def pass_s(self, seconds: float) -> None:
        self.time.advance(int(seconds * 1000))


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def own_redis(stack: ExitStack) -> RedisServer:
    """One of its own, to be killed."""
    server = RedisServer("--save", "")
    stack.callback(server.stop)
    return server.start()


@pytest.fixture
def machine(own_redis: RedisServer, tmp_path: Path, stack: ExitStack) -> Machine:
    return Machine(own_redis, tmp_path / "m1", stack)


def deliver(journal: FailoverJournal, value: str, shared: tuple[Name, ...] = ()) -> Entry:
    claim = a_claim(value, shared)
    verdict = journal.claim(claim)
    assert isinstance(verdict, Claimed), verdict
    entry = journal.before_sending(verdict)
    assert entry
    settle_as_delivered(journal, claim, entry)
    return entry


def settle_as_delivered(journal: FailoverJournal, claim: Claim, entry: Entry) -> bool:
    delivered = replace(entry.deliveries[0], status=DeliveryStatus.DELIVERED, tries=1, delivered_ms=1)
    journal.note_delivered(entry, delivered)
    return journal.settle(claim, entry, Settlement(Ending.DONE, "processed", (delivered,)))


def store(
    journal: FailoverJournal,
    value: str,
    status: DeliveryStatus = DeliveryStatus.WAITING,
    next_try_ms: int = 1,
    tries: int = 1,
) -> Entry:
    claim = a_claim(value)
    verdict = journal.claim(claim)
    assert isinstance(verdict, Claimed)
    waiting = replace(
        verdict.entry.deliveries[0], status=status, tries=tries, next_try_ms=next_try_ms if status.is_open else None
    )
    settlement = Settlement(Ending.DONE, "queued", (waiting,), payload=b"payload")
    assert journal.settle(claim, verdict.entry, settlement)
    return verdict.entry


def suppress(journal: FailoverJournal, value: str, shared: Name, payload: bytes | None = b"payload") -> Entry:
    claim = a_claim(value, (shared,))
    verdict = journal.claim(claim)
    assert isinstance(verdict, Duplicate) and verdict.entry
    assert journal.settle(claim, verdict.entry, Settlement(Ending.DONE, "skipped", payload=payload))
    return verdict.entry


def send(journal: FailoverJournal, entry: Entry, status: DeliveryStatus) -> None:
    begun = journal.begin(entry.id, "crm", "worker", LEASE_MS)
    assert begun and begun.payload == b"payload"
    assert journal.finish(entry.id, "worker", replace(begun.delivery, status=status, next_try_ms=None))


def is_alone(process: FailoverJournal) -> bool:
    return process.standing.side is Side.LOCAL


def leave(process: FailoverJournal) -> None:
    """Redis refuses: the first process that is sure of it takes the machine along."""
    for _ in range(REFUSED_TICKS):
        process.tick()
    assert is_alone(process)


@pytest.fixture
def come_back(eventually: Eventually, machine: Machine) -> Callable[[FailoverJournal], None]:
    """Redis was started again: the machine returns to it by itself."""

    def wait(process: FailoverJournal) -> None:
        def has_come_back() -> bool:
            machine.pass_s(31)
            process.tick()
            return process.standing.side is Side.REDIS

        machine.server.start()
        eventually(has_come_back)

    return wait


def again(journal: FailoverJournal, value: str, shared: tuple[Name, ...] = ()) -> Verdict:
    return journal.claim(a_claim(value, shared))


# Redis goes and comes back


def test_until_it_is_sure_that_redis_is_gone_the_answer_is_retry_later(machine: Machine) -> None:
    process = machine.process()
    machine.server.kill()
    with pytest.raises(StoreUnavailable):
        again(process, "a")
    process.tick()
    assert not is_alone(process)
    leave(process)
    assert isinstance(again(process, "a"), Claimed)
    assert process.numbers.redis_errors and process.numbers.side_changes >= 1


def test_a_redis_that_is_silent_is_left_only_after_several_tries(machine: Machine) -> None:
    process = machine.process(timeout_s=0.2)
    assert machine.server.process
    machine.server.process.send_signal(signal.SIGSTOP)
    for _ in range(SILENT_TICKS - 1):
        process.tick()
    assert not is_alone(process)
    process.tick()
    assert is_alone(process)


def test_what_was_settled_on_redis_is_still_known_when_redis_is_gone(machine: Machine) -> None:
    process = machine.process()
    deliver(process, "a", (GROUP,))
    machine.server.kill()
    leave(process)
    assert isinstance(again(process, "a"), Duplicate)
    stopped = again(process, "b", (GROUP,))
    assert isinstance(stopped, Duplicate) and stopped.stop.name == GROUP


def test_what_is_under_way_on_redis_is_under_way_on_its_own_side(machine: Machine) -> None:
    process = machine.process()
    claim = a_claim("a")
    verdict = process.claim(claim)
    machine.server.kill()
    leave(process)
    assert isinstance(again(process, "a"), InFlight)
    assert isinstance(verdict, Claimed)
    assert settle_as_delivered(process, claim, verdict.entry), "a settlement goes to the side the machine is on then"
    assert isinstance(again(process, "a"), Duplicate)


def test_leases_that_redis_granted_and_those_of_this_machine_are_of_one_clock(
    own_redis: RedisServer, tmp_path: Path, stack: ExitStack
) -> None:
    """With the machine's real clock: its journal counts boots into it, and a grant noted without them was long over."""
    client = connect(own_redis.url, 5.0, decode_responses=False)
    process = FailoverJournal(RedisJournal(client, "m1"), SqliteJournal(tmp_path / "journal.db"), tmp_path)
    stack.callback(process.close)
    assert isinstance(process.claim(a_claim("a")), Claimed)
    own_redis.kill()
    leave(process)
    assert isinstance(again(process, "a"), InFlight)
    alone = process.claim(a_claim("b"))
    assert isinstance(alone, Claimed)
    left_ms = alone.entry.lease_until_ms - process.local.lease_time_ms()
    assert 0 < left_ms <= LEASE_MS
    assert process.before_sending(alone)


def test_what_was_decided_alone_is_told_before_redis_decides_again(machine: Machine, come_back: ComeBack) -> None:
    process = machine.process()
    machine.server.kill()
    leave(process)
    deliver(process, "a", (GROUP,))
    under_way = process.claim(a_claim("b"))
    come_back(process)
    assert isinstance(again(process, "a"), Duplicate)
    assert isinstance(again(process, "c", (GROUP,)), Duplicate)
    assert isinstance(under_way, Claimed)
    assert isinstance(again(process, "b"), InFlight), "what is under way here is under way there"
    assert process.local.untold_count() == 0


def test_telling_twice_changes_nothing(machine: Machine) -> None:
    process = machine.process()
    entry = deliver(process, "a", (GROUP,))
    process.tick()
    known = process.local.read(entry.id)
    assert known
    before = process.read(entry.id)
    for _ in range(2):
        process._redis.merge([(known, None)], machine.time.clock, seen=0)
    after = process.read(entry.id)
    assert before and after and replace(after, fence=0) == replace(before, fence=0)


def test_repeats_that_machines_counted_alone_are_summed(
    machine: Machine, tmp_path: Path, stack: ExitStack, come_back: ComeBack
) -> None:
    one, elsewhere = machine.process(), Machine(machine.server, tmp_path / "m2", stack)
    other = elsewhere.process()
    entry = deliver(one, "a")
    one.tick()
    assert other.reopen(entry.id, "crm")
    deliver(other, "a")
    one.tick()
    assert isinstance(again(one, "a"), Duplicate), "counted by Redis"
    machine.server.client.save()
    machine.server.kill()
    for process, repeats in ((one, 2), (other, 3)):
        leave(process)
        for _ in range(repeats):
            repeat = again(process, "a")
            assert isinstance(repeat, Duplicate) and repeat.stop.original == entry.id
    elsewhere.pass_s(3600)
    come_back(one)
    other.tick()
    known = one.read(entry.id)
    assert known and known.repeats == 1 + 2 + 3
    for process, clock in ((one, machine.time.clock), (other, elsewhere.time.clock)):
        copy = process.local.read(entry.id)
        assert copy
        process._redis.merge([(copy, None)], clock, seen=0)
    assert one.read(entry.id) == known, "telling twice changes nothing"
    again(other, "a")
    copy = one.local.read(entry.id)
    assert copy
    one._redis.merge([(replace(copy, repeats=copy.repeats + 1), None)], machine.time.clock, seen=0)
    known = one.read(entry.id)
    assert known and known.repeats == 6 + 1 + 1, "one more on Redis, and one more alone"


def test_all_processes_of_a_machine_are_on_one_side(machine: Machine) -> None:
    one, other = machine.process(), machine.process()
    deliver(other, "a")
    machine.server.kill()
    leave(one)
    machine.server.start()
    assert other.standing.side is Side.LOCAL
    assert isinstance(again(other, "a"), Duplicate), "it reaches Redis, and goes with the machine all the same"
    assert other.numbers.decided_alone == 1


def test_two_processes_on_their_own_side_give_an_item_to_one_of_them(machine: Machine) -> None:
    one, other = machine.process(), machine.process()
    machine.server.kill()
    leave(one)
    assert isinstance(again(one, "a"), Claimed)
    assert isinstance(again(other, "a"), InFlight)


def test_closed_on_failure_nobody_decides_alone(machine: Machine) -> None:
    process = machine.process(on_failure=OnFailure.CLOSED)
    deliver(process, "a")
    machine.server.kill()
    leave(process)
    with pytest.raises(StoreUnavailable, match="ON_STORE_FAILURE=closed"):
        again(process, "b")
    with pytest.raises(StoreUnavailable):
        process.check()


def test_a_reset_that_could_not_reach_the_others_is_refused(machine: Machine) -> None:
    process = machine.process()
    machine.server.kill()
    leave(process)
    with pytest.raises(StoreUnavailable, match="reset"):
        process.forget([an_id("a")])


# Processes die


def test_a_process_that_starts_takes_in_what_its_predecessor_left(machine: Machine) -> None:
    first = machine.process()
    deliver(first, "a")  # and is killed: nothing was drained
    machine.server.kill()
    second = machine.process()
    leave(second)
    assert isinstance(again(second, "a"), Duplicate)


def test_a_spool_that_a_neighbour_removes_meanwhile_stops_nobody(machine: Machine) -> None:
    """Two that started at once both found their predecessor's; for the second it was gone, and the server ended."""
    (machine.folder / "spool").mkdir()
    (machine.folder / "spool" / "4711-gone.spool").symlink_to("nowhere")  # listed, and not there when it is opened
    process = machine.process()
    deliver(process, "a")
    process.tick()
    assert process.untold().entries == 0


def test_delivered_and_never_settled_is_found_before_it_is_sent_again(machine: Machine, eventually: Eventually) -> None:
    first, second = machine.process(), machine.process()
    verdict = first.claim(a_claim("a"))
    assert isinstance(verdict, Claimed)
    delivered = replace(verdict.entry.deliveries[0], status=DeliveryStatus.DELIVERED)
    first.note_delivered(verdict.entry, delivered)  # then it is killed, before Redis is asked
    lapse_on_redis(machine, verdict.entry)
    machine.pass_s(LEASE_MS / 1000)
    answers: list[Verdict] = []

    def is_taken_over() -> bool:
        answers.append(again(second, "a"))
        return isinstance(answers[-1], Claimed)

    eventually(is_taken_over)
    retry = answers[-1]
    assert isinstance(retry, Claimed) and not retry.is_first
    entry = second.before_sending(retry)
    assert entry and entry.deliveries[0].status is DeliveryStatus.DELIVERED


def lapse_on_redis(machine: Machine, entry: Entry) -> None:
    """Its lease is over there, too."""
    journal = RedisJournal(connect(machine.server.url, 5, decode_responses=False), machine="test")
    assert journal.renew(entry.id, entry.owner, 1)


def test_one_that_was_stopped_past_its_lease_sends_nothing(machine: Machine) -> None:
    process = machine.process()
    verdict = process.claim(a_claim("a"))
    assert isinstance(verdict, Claimed)
    machine.pass_s(LEASE_MS / 1000)
    assert process.before_sending(verdict) is None


def test_setting_the_clock_neither_frees_a_lease_nor_holds_one(machine: Machine) -> None:
    process = machine.process()
    machine.server.kill()
    leave(process)
    again(process, "a")
    machine.time.set_by_ms = 120_000
    assert isinstance(again(process, "a"), InFlight), "two minutes forward"
    machine.pass_s(LEASE_MS / 1000)
    machine.time.set_by_ms = -24 * 3_600_000
    assert isinstance(again(process, "a"), Claimed), "a day back"


def test_a_settlement_that_redis_did_not_answer_is_told_again(machine: Machine, eventually: Eventually) -> None:
    process = machine.process()
    claim = a_claim("a")
    verdict = process.claim(claim)
    assert isinstance(verdict, Claimed)
    machine.server.kill()
    assert settle_as_delivered(process, claim, verdict.entry), "it was delivered: a fact"
    machine.server.start()  # empty: it is told all the same
    process.tick()
    machine.pass_s(6)
    process.tick()
    eventually(lambda: is_open(process))
    assert isinstance(again(process, "a"), Duplicate)


def test_another_machine_hears_of_it_before_the_lease_is_over(
    machine: Machine, own_redis: RedisServer, tmp_path: Path, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was told five seconds later, as if it were about to be confirmed: by then the other had sent it again."""
    process, other = machine.process(), Machine(own_redis, tmp_path / "m2", stack).process()
    claim = a_claim("a")
    verdict = process.claim(claim)
    assert isinstance(verdict, Claimed)

    def lost(*_: object) -> bool:
        raise StoreUnavailable("redis: Timeout connecting to server")

    monkeypatch.setattr(process._redis, "settle_many_if_room", lost)
    assert settle_as_delivered(process, claim, verdict.entry)
    assert isinstance(again(other, "a"), InFlight)
    monkeypatch.undo()
    process.tick()
    assert isinstance(again(other, "a"), Duplicate)


def test_what_is_stored_here_and_not_settled_there_is_told_with_its_next_try(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never tried yet, it looked no further than the claim it came from: done, and due never."""
    process = machine.process()
    claim = a_claim("a")
    verdict = process.claim(claim)
    assert isinstance(verdict, Claimed)
    waiting = replace(verdict.entry.deliveries[0], status=DeliveryStatus.WAITING, next_try_ms=1)

    def lost(*_: object) -> bool:
        raise StoreUnavailable("redis: gone")

    monkeypatch.setattr(process._redis, "settle_many_if_room", lost)
    with pytest.raises(StoreUnavailable):
        process.settle(claim, verdict.entry, Settlement(Ending.DONE, "queued", (waiting,), payload=b"payload"))
    monkeypatch.undo()
    machine.pass_s(10)
    process.tick()
    assert isinstance(again(process, "a"), Duplicate)
    assert process.due({"crm": 10}, 20_000) == [(verdict.entry.id, "crm")]


def test_a_late_answer_is_not_relied_on(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    process = machine.process()
    ask = process._redis.claim_many

    def slowly(claims: Sequence[Claim], seen: int = 0) -> list[Verdict | DeduplicationError]:
        verdicts = ask(claims, seen)
        machine.pass_s(RELIABLE_REPLY_MS / 1000 + 1)
        return verdicts

    monkeypatch.setattr(process._redis, "claim_many", slowly)
    with pytest.raises(StoreUnavailable, match="too late"):
        again(process, "a")
    assert process.numbers.late_replies == 1
    monkeypatch.undo()
    assert isinstance(again(process, "a"), Claimed), "it was given back: its provider need not wait for the lease"


# Redis forgets


@pytest.mark.parametrize("is_restarted", [False, True], ids=["process runs on", "process restarts too"])
def test_an_emptied_redis_is_noticed_and_told_everything(
    machine: Machine, is_restarted: bool, eventually: Eventually
) -> None:
    process = machine.process()
    deliver(process, "a", (GROUP,))
    process.tick()
    machine.server.client.flushall()
    if is_restarted:
        process = machine.process()
    with pytest.raises(StoreUnavailable):
        again(process, "a")
        again(process, "a")
    process.tick()
    eventually(lambda: is_open(process))
    assert isinstance(again(process, "a"), Duplicate)
    assert isinstance(again(process, "b", (GROUP,)), Duplicate)
    assert process.numbers.memory_losses == 1


ASKED_OF_REDIS: dict[str, Callable[[FailoverJournal, Entry], object]] = {
    "replay": lambda process, entry: process.replay(entry.id, "crm"),
    "release": lambda process, entry: process.release(entry.id),
    "reopen": lambda process, entry: process.reopen(entry.id, "crm"),
    "look": lambda process, entry: process.look(entry.own),
    "forget": lambda process, entry: process.forget(entry.own),
    "due": lambda process, entry: process.due({"crm": 10}, 20_000),
    "begin": lambda process, entry: process.begin(entry.id, "crm", "worker", LEASE_MS),
}


@pytest.mark.parametrize("step", ASKED_OF_REDIS)
def test_an_emptied_redis_that_nobody_has_noticed_says_nothing(machine: Machine, step: str) -> None:
    """It knows nothing: that is no answer."""
    process = machine.process()
    entry = store(process, "a")
    machine.server.client.flushall()
    with pytest.raises(RedisLostMemory):
        ASKED_OF_REDIS[step](process, entry)


def is_open(process: FailoverJournal) -> bool:
    try:
        again(process, "probe")
    except StoreUnavailable:
        return False
    return True


@pytest.mark.parametrize("is_restarted", [False, True], ids=["process runs on", "process restarts too"])
def test_a_redis_back_at_the_moment_between_claim_and_settlement_is_noticed(
    machine: Machine, is_restarted: bool, eventually: Eventually
) -> None:
    process = machine.process()
    claim = a_claim("a")
    verdict = process.claim(claim)
    assert isinstance(verdict, Claimed)
    machine.server.client.save()
    assert settle_as_delivered(process, claim, verdict.entry)
    machine.server.kill()
    machine.server.start()
    if is_restarted:
        process = machine.process()
    process.tick()
    eventually(lambda: is_open(process))
    assert isinstance(again(process, "a"), Duplicate)
    assert process.numbers.memory_losses == 1


def test_a_redis_that_goes_back_between_a_lost_reply_and_the_next_try_is_noticed(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked again with what the machine had seen at first, it gave to one process what another had just sent."""
    process, neighbour = machine.process(), machine.process()
    redis, ask = machine.server.client, process._redis.claim_many

    def lost(claims: Sequence[Claim], seen: int = 0) -> list[Verdict | DeduplicationError]:
        number = process._note.read()
        deliver(neighbour, "a")
        redis.flushall()
        redis.mset({"fence": number, f"machine:{machine.folder.name}": number})
        monkeypatch.setattr(process._redis, "claim_many", ask)
        raise ConnectionDropped("redis: Connection closed by server.")

    monkeypatch.setattr(process._redis, "claim_many", lost)
    with pytest.raises(RedisLostMemory):
        again(process, "a")


def test_a_redis_that_is_being_told_is_not_gone(machine: Machine) -> None:
    """A machine that left it meanwhile decided alone, and sent again what others had sent."""
    process = machine.process(hold_ms=60_000)
    deliver(process, "a")
    machine.server.client.flushall()
    for _ in range(SILENT_TICKS + 2):
        process.tick()
    assert not is_alone(process)
    with pytest.raises(StoreUnavailable, match="being told"):
        again(process, "a")


def test_another_machine_tells_what_it_knows_before_anything_is_decided(
    machine: Machine, tmp_path: Path, stack: ExitStack, eventually: Eventually
) -> None:
    one, other = machine.process(), Machine(machine.server, tmp_path / "m2", stack).process()
    deliver(other, "b")
    deliver(one, "a")
    machine.server.client.flushall()
    one.tick()
    other.tick()
    eventually(lambda: is_open(one))
    assert isinstance(again(one, "a"), Duplicate) and isinstance(again(one, "b"), Duplicate)


def test_a_settlement_does_not_hide_the_loss_from_its_own_machine(
    machine: Machine, tmp_path: Path, stack: ExitStack, eventually: Eventually
) -> None:
    """The other machine has raised the fence meanwhile; a number above the note looked as if nothing was lost."""
    one, other = machine.process(), Machine(machine.server, tmp_path / "m2", stack).process()
    deliver(other, "b")
    claim = a_claim("c")
    under_way = other.claim(claim)
    assert isinstance(under_way, Claimed)
    for number in range(9):
        deliver(one, f"a{number}")
    machine.server.client.flushall()
    one.tick()
    settle_as_delivered(other, claim, under_way.entry)
    other.tick()
    assert other.numbers.memory_losses == 1
    eventually(lambda: is_open(one))
    assert isinstance(again(one, "b"), Duplicate)


# What is stored for a later try


def test_what_is_stored_is_on_redis_and_on_this_disk(machine: Machine) -> None:
    process = machine.process()
    entry = store(process, "a")
    assert process.payload(entry.id) == b"payload"
    assert machine.process().local.payload(entry.id) == b"payload", "also if the process that stored it is gone"


def test_what_was_delivered_before_its_copy_was_taken_in_leaves_no_payload(machine: Machine) -> None:
    """All of its lines are drained at once."""
    process = machine.process()
    entry = store(process, "a")
    send(process, entry, DeliveryStatus.DELIVERED)
    process.tick()
    known = process.local.read(entry.id)
    assert known and known.is_delivered_everywhere
    assert process.local.payload(entry.id) is None and process.local.storage().disk_bytes == 0


def test_a_copy_that_is_taken_in_late_does_not_bring_back_what_was_delivered(machine: Machine) -> None:
    """Of two processes, the one that delivered is read first."""
    web, worker = machine.process(), machine.process()
    entry = store(web, "a")
    (stored,) = (path for path in (machine.folder / "spool").glob("*.spool") if b"stored" in path.read_bytes())
    send(worker, entry, DeliveryStatus.DELIVERED)
    hidden = stored.rename(machine.folder / "hidden")
    worker.tick()
    hidden.rename(stored)
    worker.tick()
    known = worker.local.read(entry.id)
    assert known and known.is_delivered_everywhere and worker.local.payload(entry.id) is None


def test_what_ended_dead_at_one_and_delivered_at_another_is_known_here_as_that(machine: Machine) -> None:
    process = machine.process()
    claim = replace(a_claim("a"), destinations=(Wanted("crm", "msg_1"), Wanted("erp", "msg_2")))
    verdict = process.claim(claim)
    assert isinstance(verdict, Claimed)
    crm, erp = verdict.entry.deliveries
    delivered = replace(crm, status=DeliveryStatus.DELIVERED, tries=1, delivered_ms=1)
    process.note_delivered(verdict.entry, delivered)
    ended = (delivered, replace(erp, status=DeliveryStatus.DEAD, tries=10, next_try_ms=None))
    assert process.settle(claim, verdict.entry, Settlement(Ending.DONE, "dead_lettered", ended, payload=b"payload"))
    process.tick()
    known = process.local.read(verdict.entry.id)
    assert known and [each.status for each in known.deliveries] == [DeliveryStatus.DELIVERED, DeliveryStatus.DEAD]


def test_while_redis_is_away_the_copies_of_what_it_has_rest(machine: Machine) -> None:
    process = machine.process()
    store(process, "a")
    machine.server.kill()
    leave(process)
    alone = store(process, "b")
    assert process.due({"crm": 10}, 20_000) == [(alone.id, "crm")], "stored here alone is delivered from here"


def test_alone_nobody_begins_what_redis_has(machine: Machine) -> None:
    """A message that was in the queue when Redis went away."""
    process = machine.process()
    resting = store(process, "a")
    process.tick()
    machine.server.kill()
    leave(process)
    assert process.begin(resting.id, "crm", "worker", LEASE_MS) is None
    alone = store(process, "b")
    assert process.begin(alone.id, "crm", "worker", LEASE_MS)


@pytest.mark.parametrize("change", ["a repeat", "a worker's try that failed"])
def test_what_redis_has_rests_whatever_changes_about_it_alone(machine: Machine, change: str) -> None:
    """Each made it one of this machine alone, and so it was sent from here as well as by Redis."""
    process = machine.process()
    entry = store(process, "a")
    begun = process.begin(entry.id, "crm", "worker", LEASE_MS)
    assert begun
    process.tick()
    machine.server.kill()
    leave(process)
    if change == "a repeat":
        assert isinstance(again(process, "a"), Duplicate)
    else:
        failed = replace(begun.delivery, status=DeliveryStatus.WAITING, next_try_ms=1)
        assert process.finish(entry.id, "worker", failed)
    machine.pass_s(LEASE_MS / 1000)
    assert process.due({"crm": 10}, 20_000) == []
    assert process.untold().entries == 1, "Redis is told all the same"


def test_what_redis_granted_and_is_stored_alone_is_delivered_from_here(machine: Machine) -> None:
    """Redis knows no more of it than that someone was at it: it would hand it out to nobody."""
    process = machine.process()
    claim = a_claim("a")
    verdict = process.claim(claim)
    assert isinstance(verdict, Claimed)
    machine.server.kill()
    leave(process)
    waiting = replace(verdict.entry.deliveries[0], status=DeliveryStatus.WAITING, tries=1, next_try_ms=1)
    assert process.settle(claim, verdict.entry, Settlement(Ending.DONE, "queued", (waiting,), payload=b"payload"))
    assert process.due({"crm": 10}, 20_000) == [(verdict.entry.id, "crm")]


def test_what_was_stored_alone_is_handed_over_and_then_delivered_by_redis(
    machine: Machine, come_back: ComeBack
) -> None:
    process = machine.process()
    machine.server.kill()
    leave(process)
    entry = store(process, "a")
    come_back(process)
    assert process.due({"crm": 10}, 20_000) == [(entry.id, "crm")]
    begun = process.begin(entry.id, "crm", "worker", LEASE_MS)
    assert begun and begun.payload == b"payload"


def test_what_waited_on_a_redis_that_was_emptied_is_announced_again(machine: Machine, eventually: Eventually) -> None:
    process = machine.process()
    entry = store(process, "a")
    machine.server.client.flushall()
    process.tick()
    eventually(lambda: is_open(process))
    assert process.due({"crm": 10}, 20_000) == [(entry.id, "crm")]
    begun = process.begin(entry.id, "crm", "worker", LEASE_MS)
    assert begun and begun.payload == b"payload"


def test_what_was_only_announced_to_workers_is_due_at_once_on_a_redis_that_was_emptied(
    machine: Machine, eventually: Eventually
) -> None:
    """The messages were lost with it; what failed before keeps its schedule."""
    process = machine.process()
    in_ten_minutes = max(process.now_ms(), process.local.now_ms()) + 600_000
    entry = store(process, "a", next_try_ms=in_ten_minutes, tries=0)
    store(process, "b", next_try_ms=in_ten_minutes, tries=1)
    assert process.due({"crm": 10}, 20_000) == []
    machine.server.client.flushall()
    process.tick()
    eventually(lambda: is_open(process))
    assert process.due({"crm": 10}, 20_000) == [(entry.id, "crm")]


def test_what_a_worker_is_at_is_not_handed_out_by_a_redis_that_was_emptied(
    machine: Machine, eventually: Eventually
) -> None:
    process = machine.process()
    entry = store(process, "a")
    begun = process.begin(entry.id, "crm", "worker", LEASE_MS)
    assert begun
    machine.server.client.flushall()
    process.tick()
    eventually(lambda: is_open(process))
    assert process.due({"crm": 10}, 20_000) == []
    assert process.begin(entry.id, "crm", "another", LEASE_MS) is None
    delivered = replace(begun.delivery, status=DeliveryStatus.DELIVERED, next_try_ms=None)
    assert process.finish(entry.id, "worker", delivered), "its owner goes on"


def test_the_copy_of_what_a_worker_delivered_is_over_too(machine: Machine, eventually: Eventually) -> None:
    process = machine.process()
    entry = store(process, "a")
    send(process, entry, DeliveryStatus.DELIVERED)
    process.tick()
    assert process.local.payload(entry.id) is None
    machine.server.client.flushall()
    process.tick()
    eventually(lambda: is_open(process))
    assert process.due({"crm": 10}, 20_000) == [], "and is not sent again after Redis lost its memory"


@pytest.mark.parametrize("status", [DeliveryStatus.DELIVERED, DeliveryStatus.DEAD])
def test_the_copy_of_what_another_machine_delivered_is_over_too(
    machine: Machine, tmp_path: Path, stack: ExitStack, eventually: Eventually, status: DeliveryStatus
) -> None:
    """It waited here for ever with its payload, and was sent again after Redis had lost its memory."""
    process = machine.process()
    other = Machine(machine.server, tmp_path / "m2", stack).process()
    entry = store(process, "a")
    process.tick()
    send(other, entry, status)
    machine.pass_s(COPIES_EVERY_MS / 1000)
    process.tick()
    copy = process.local.read(entry.id)
    assert copy and copy.deliveries[0].status is status
    assert (process.local.payload(entry.id) is None) is (status is DeliveryStatus.DELIVERED)
    machine.server.client.flushall()
    process.tick()
    eventually(lambda: is_open(process))
    assert process.due({"crm": 10}, 20_000) == []


def test_copies_are_looked_after_in_pages(
    machine: Machine, tmp_path: Path, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = machine.process()
    other = Machine(machine.server, tmp_path / "m2", stack).process()
    *_, last = sorted([store(process, str(number)) for number in range(5)], key=lambda entry: entry.id)
    machine.pass_s(COPIES_EVERY_MS / 1000)
    process.tick()
    send(other, last, DeliveryStatus.DELIVERED)
    monkeypatch.setattr(failover, "COPIES_AT_ONCE", 2)
    waiting = []
    for _ in range(4):
        process.tick()  # too soon
        machine.pass_s(COPIES_EVERY_MS / 1000)
        process.tick()
        waiting.append(len(process.local.open_copies("", 10)))
    assert waiting == [5, 5, 4, 4]


def test_a_copy_that_changes_meanwhile_is_left_for_the_next_time(machine: Machine) -> None:
    process = machine.process()
    entry = store(process, "a")
    process.tick()
    changes = process.local.open_copies("", 10)
    older = process._redis.read(entry.id)
    send(process, entry, DeliveryStatus.DELIVERED)
    process.tick()
    assert older
    process.local.follow_copies([older], changes)
    copy = process.local.read(entry.id)
    assert copy and copy.deliveries[0].status is DeliveryStatus.DELIVERED


def test_what_was_sent_again_elsewhere_is_known_here(
    machine: Machine, tmp_path: Path, stack: ExitStack, eventually: Eventually
) -> None:
    process = machine.process()
    other = Machine(machine.server, tmp_path / "m2", stack).process()
    entry = store(process, "a", DeliveryStatus.DEAD)
    process.tick()
    assert other.replay(entry.id, "crm") is Replayed.REPLAYED
    process.tick()
    machine.server.client.flushall()
    process.tick()
    eventually(lambda: is_open(process))
    assert process.due({"crm": 10}, 20_000) == [(entry.id, "crm")]


def test_a_copy_that_is_over_stays_so_whichever_line_is_read_first(machine: Machine) -> None:
    process = machine.process()
    entry = store(process, "a")
    process.tick()
    waiting = process.local.read(entry.id)
    assert waiting and waiting.has_open_deliveries
    send(process, entry, DeliveryStatus.DELIVERED)
    process.tick()
    process._spool.append("settled", flat_entry(waiting))  # as another process wrote it, read later
    process.tick()
    known = process.local.read(entry.id)
    assert known and known.deliveries[0].status is DeliveryStatus.DELIVERED


# Sent again, released, reopened


def test_a_replay_on_redis_is_numbered_and_survives_its_loss_of_memory(
    machine: Machine, eventually: Eventually
) -> None:
    process = machine.process()
    entry = store(process, "a")
    send(process, entry, DeliveryStatus.DEAD)
    seen = process._note.read()
    assert process.replay(entry.id, "crm") is Replayed.REPLAYED
    assert process._note.read() > seen
    machine.server.client.flushall()
    process.tick()
    eventually(lambda: is_open(process))
    assert process.due({"crm": 10}, 20_000) == [(entry.id, "crm")]
    send(process, entry, DeliveryStatus.DELIVERED)


@pytest.mark.parametrize("step", ["replay", "release"])
def test_a_payload_that_lies_on_this_machine_alone_goes_along(machine: Machine, step: str) -> None:
    process = machine.process()
    deliver(process, "a", (GROUP,))
    entry = suppress(process, "b", GROUP, payload=None)
    if step == "replay":
        assert process.replay(entry.id, "crm", force=True) is Replayed.NO_PAYLOAD
    else:
        assert process.release(entry.id) is Released.NO_PAYLOAD
    assert process.local.keep_payload(entry.id, b"payload")
    if step == "replay":
        assert process.replay(entry.id, "crm", force=True) is Replayed.REPLAYED
    else:
        assert process.release(entry.id) is Released.RELEASED
    send(process, entry, DeliveryStatus.DELIVERED)
    process.tick()
    assert process.local.payload(entry.id) is None and process.payload(entry.id) is None


def test_a_payload_is_at_redis_on_this_disk_or_gone(machine: Machine) -> None:
    process = machine.process()
    delivered = deliver(process, "a", (GROUP,))
    skipped, stored = suppress(process, "b", GROUP), store(process, "c")
    where = process.locate_payloads([delivered.id, skipped.id, stored.id])
    assert where == {delivered.id: PayloadPlace.GONE, skipped.id: PayloadPlace.DISK, stored.id: PayloadPlace.REDIS}


def test_what_redis_has_is_sent_again_by_redis_alone(machine: Machine) -> None:
    process = machine.process()
    deliver(process, "a", (GROUP,))
    dead, skipped = store(process, "b", DeliveryStatus.DEAD), suppress(process, "c", GROUP)
    machine.server.kill()
    leave(process)
    with pytest.raises(StoreUnavailable, match="alone"):
        process.replay(dead.id, "crm")
    with pytest.raises(StoreUnavailable, match="alone"):
        process.release(skipped.id)


def test_what_was_decided_alone_is_sent_again_from_here_and_told(machine: Machine, come_back: ComeBack) -> None:
    process = machine.process()
    machine.server.kill()
    leave(process)
    deliver(process, "a", (GROUP,))
    dead, skipped = store(process, "b", DeliveryStatus.DEAD), suppress(process, "c", GROUP)
    assert process.replay(dead.id, "crm") is Replayed.REPLAYED
    assert process.release(skipped.id) is Released.RELEASED
    assert set(process.due({"crm": 10}, 20_000)) == {(dead.id, "crm"), (skipped.id, "crm")}
    send(process, dead, DeliveryStatus.DELIVERED)
    come_back(process)
    machine.pass_s(31)
    send(process, skipped, DeliveryStatus.DELIVERED)
    for entry in (dead, skipped):
        known = process.read(entry.id)
        assert known and known.deliveries[0].status is DeliveryStatus.DELIVERED


def test_a_machine_with_older_news_does_not_bring_back_what_was_reopened(
    machine: Machine, tmp_path: Path, stack: ExitStack
) -> None:
    one, other = machine.process(), Machine(machine.server, tmp_path / "m2", stack).process()
    entry = deliver(other, "a")
    other.tick()
    older = other.local.read(entry.id)
    assert older and older.deliveries[0].status is DeliveryStatus.DELIVERED
    assert one.reopen(entry.id, "crm")
    one._redis.merge([(older, None)], machine.time.clock, seen=0)
    known = one.read(entry.id)
    assert known and known.state is State.FREE and known.deliveries == ()
    resent = again(other, "a")
    assert isinstance(resent, Claimed) and not resent.is_first
    sending = other.before_sending(resent)
    assert sending and sending.deliveries[0].status is DeliveryStatus.DELIVERING, "its copy is older news, too"
    other.tick()
    copy = other.local.read(entry.id)
    assert copy and (copy.state, copy.generation) == (State.PENDING, 1)
    one._redis.merge([(older, None)], machine.time.clock, seen=0)
    known = one.read(entry.id)
    assert known and known.state is State.PENDING
    assert known.deliveries[0].status is DeliveryStatus.DELIVERING


def test_what_was_reopened_on_redis_is_reopened_in_the_copy_here(machine: Machine, eventually: Eventually) -> None:
    process = machine.process()
    entry = deliver(process, "a")  # still in the spool
    assert process.reopen(entry.id, "crm")
    machine.server.client.flushall()
    process.tick()
    eventually(lambda: is_open(process))
    assert isinstance(again(process, "a"), Claimed)


def test_what_was_reopened_alone_is_told_with_its_words(machine: Machine, come_back: ComeBack) -> None:
    process = machine.process()
    words = Name(Kind.CONTENT, "crm", "words", WEEK_MS)
    claim = replace(a_claim("a"), destinations=(Wanted("crm", "msg_a", words),))
    verdict = process.claim(claim)
    assert isinstance(verdict, Claimed) and settle_as_delivered(process, claim, verdict.entry)
    process.tick()
    machine.server.client.save()
    machine.server.kill()
    leave(process)
    assert process.reopen(verdict.entry.id, "crm")
    come_back(process)
    known = process.read(verdict.entry.id)
    assert known and known.state is State.FREE and known.deliveries == ()
    same_words = replace(a_claim("b"), destinations=(Wanted("crm", "msg_b", words),))
    assert isinstance(process.claim(same_words), Claimed)
    assert isinstance(again(process, "a"), Claimed)


# Scripts


def scripts(process: FailoverJournal) -> tuple[Reservations, PublicationLocks, ContentGate]:
    def new_token() -> str:
        return f"token{next(_numbers)}"

    return (
        Reservations(process, new_token, LEASE_MS),
        PublicationLocks(process, "server a", new_token),
        ContentGate(process, new_token),
    )


def test_what_scripts_did_on_redis_is_known_when_redis_is_gone(machine: Machine) -> None:
    process = machine.process()
    posts, locks, words = scripts(process)
    reserved = posts.reserve("p1", ["https://a.example/1"])
    assert isinstance(reserved, Reserved) and posts.published(reserved)
    words.mark_as_forwarded("crm", "the same words")
    over, held = locks.acquire_lock("e1", "crm"), locks.acquire_lock("e2", "crm")
    assert over and held and locks.release_lock(over, "completed")
    machine.server.kill()
    leave(process)
    assert posts.state_of("p1") == "0"
    assert isinstance(posts.reserve("p2", ["https://a.example/1"]), Skipped)
    assert words.is_duplicate("crm", "the same words")
    assert locks.acquire_lock("e1", "crm") and not locks.acquire_lock("e2", "crm")
    assert {lock.content_id for lock in locks.active_locks()} == {"e1", "e2"}


def test_a_post_published_while_redis_went_away_is_told_once_it_is_back(machine: Machine, come_back: ComeBack) -> None:
    process = machine.process()
    posts, locks, _ = scripts(process)
    reserved = posts.reserve("p1", ["https://a.example/1"])
    machine.server.kill()
    assert isinstance(reserved, Reserved) and posts.published(reserved), "it was published, whoever heard of it"
    leave(process)
    assert posts.state_of("p1") == "0"
    lock = locks.acquire_lock("e1", "crm")
    come_back(process)
    assert posts.state_of("p1") == "0"
    assert isinstance(posts.reserve("p2", ["https://a.example/1"]), Skipped)
    assert lock and [each.owner for each in locks.active_locks()] == [lock.owner]


def test_a_redis_that_was_emptied_is_told_what_scripts_did(machine: Machine, eventually: Eventually) -> None:
    process = machine.process()
    posts, locks, words = scripts(process)
    reserved = posts.reserve("p1")
    assert isinstance(reserved, Reserved) and posts.published(reserved)
    words.mark_as_forwarded("crm", "the same words")
    machine.pass_s(2 * 3600)
    assert locks.acquire_lock("e1", "crm")
    machine.server.client.flushall()
    process.tick()
    eventually(lambda: is_open(process))
    assert locks.acquire_lock("e1", "crm") is None
    assert posts.state_of("p1") == "0"
    assert words.is_duplicate("crm", "the same words")


# What the fleet knows of its destinations

PAUSED = DestinationState(True, 100, "answered 410 Gone", "410")
RESUMED = DestinationState(False, 200, "", "ada", 200)


@pytest.fixture
def other_machine(machine: Machine, tmp_path: Path, stack: ExitStack) -> Machine:
    return Machine(machine.server, tmp_path / "m2", stack)


def state_of_crm(process: FailoverJournal) -> DestinationState | None:
    """None: Redis answers nothing yet, it is being told."""
    try:
        return process.states().get("crm", DestinationState())
    except StoreUnavailable:
        return None


def test_what_another_machine_decided_is_known_here_also_when_redis_is_gone(
    machine: Machine, other_machine: Machine
) -> None:
    here, there = machine.process(), other_machine.process()
    there.put_states({"crm": PAUSED})
    assert here.states() == {"crm": PAUSED}
    here.tick()
    machine.server.kill()
    leave(here)
    assert here.states() == {"crm": PAUSED}


def test_what_was_decided_alone_is_told_and_the_later_decision_holds_everywhere(
    machine: Machine, other_machine: Machine, come_back: ComeBack, eventually: Eventually
) -> None:
    here, there = machine.process(), other_machine.process()
    machine.server.kill()
    leave(here)
    leave(there)
    here.put_states({"crm": PAUSED, "slack": RESUMED})
    there.put_states({"crm": RESUMED, "slack": PAUSED})
    come_back(here)

    def have_heard() -> bool:
        other_machine.pass_s(31)
        there.tick()
        here.tick()
        return not is_alone(there)

    eventually(have_heard)
    here.tick()
    assert here.local.states() == there.local.states() == {"crm": RESUMED, "slack": RESUMED}
    eventually(lambda: state_of_crm(here) is not None)
    assert state_of_crm(here) == RESUMED


def test_a_redis_that_lost_its_memory_is_told_who_is_paused_before_it_answers(
    machine: Machine, eventually: Eventually
) -> None:
    process = machine.process()
    process.put_states({"crm": PAUSED})
    machine.server.client.flushall()
    with pytest.raises(RedisLostMemory):
        process.states()
    process.tick()
    eventually(lambda: state_of_crm(process) is not None)
    assert state_of_crm(process) == PAUSED


def test_a_pause_is_kept_over_a_restart_of_everything(
    machine: Machine, come_back: ComeBack, eventually: Eventually
) -> None:
    machine.process().put_states({"crm": PAUSED})
    machine.server.kill()
    later = machine.process()
    leave(later)
    assert state_of_crm(later) == PAUSED
    come_back(later)
    eventually(lambda: state_of_crm(later) is not None)
    assert state_of_crm(later) == PAUSED


def test_what_redis_has_is_neither_pulled_forward_nor_given_up_alone(machine: Machine) -> None:
    process = machine.process()
    store(process, "a", next_try_ms=process.now_ms() + 3_600_000)
    machine.server.kill()
    leave(process)
    alone = store(process, "b", next_try_ms=process.now_ms() + 3_600_000)
    assert process.recover("crm", process.now_ms(), 0, 10, 1000).entries == (alone.id,)
    assert process.expire("crm", process.now_ms() + 1, 10, "too old") == [alone.id]


def test_redis_knows_what_was_decided_alone_before_it_decides_again(machine: Machine, eventually: Eventually) -> None:
    process = machine.process(timeout_s=0.2)
    assert machine.server.process
    machine.server.process.send_signal(signal.SIGSTOP)
    for _ in range(SILENT_TICKS):
        process.tick()
    process.put_states({"crm": PAUSED})
    machine.server.process.send_signal(signal.SIGCONT)

    def has_come_back() -> bool:
        machine.pass_s(31)
        process.tick()
        return not is_alone(process)

    eventually(has_come_back)
    assert process.states() == {"crm": PAUSED}


def test_a_redis_that_lost_its_memory_is_told_who_is_paused_with_all_the_rest(
    machine: Machine, eventually: Eventually
) -> None:
    process = machine.process()
    process.put_states({"crm": PAUSED})
    machine.server.client.flushall()
    with (machine.folder / "chores.lock").open("w") as chores:  # another process is at what one does for all
        fcntl.flock(chores, fcntl.LOCK_EX)
        process.tick()
        eventually(lambda: state_of_crm(process) is not None)
        assert state_of_crm(process) == PAUSED


def test_a_redis_that_forgot_a_pause_alone_is_noticed(machine: Machine) -> None:
    process, client = machine.process(), machine.server.client
    number = client.get("machine:m1") or ""
    process.put_states({"crm": PAUSED})
    client.delete("destination_states")
    client.set("machine:m1", number)  # it is back at the moment before
    with pytest.raises(RedisLostMemory):
        process.states()
