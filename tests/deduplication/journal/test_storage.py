"""Payloads are bounded: first on Redis, then on this machine's disk, then nothing more is stored."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from deduplication.claims import WEEK_MS, Kind, Name
from deduplication.errors import NoRoom
from deduplication.journal.base import (
    Begun,
    Claim,
    Claimed,
    Duplicate,
    Ending,
    Journal,
    Released,
    Replayed,
    Retention,
    Settlement,
    Wanted,
)
from deduplication.journal.entry import DeliveryStatus, Entry, State
from deduplication.journal.failover import CONFIRMED_WITHIN_MS, SILENT_TICKS, FailoverJournal
from deduplication.journal.redis import PIECE_BYTES, RedisJournal
from deduplication.journal.side import Side
from deduplication.journal.sqlite import SqliteJournal
from deduplication.journal.storage import DiskRoom, Stage, Storage, stage_of
from deduplication.redis_client import connect
from tests.support.journals import FakeClock, JournalBench, counted_and_kept, open_journal
from tests.support.redis_server import RedisServer

LEASE_MS = 60_000
GROUP = Name(Kind.SUBJECT_GROUP, "2026-11", "lot_456")
KB = 1024
_numbers = count(1)


def claim_one(journal: Journal, shared: tuple[Name, ...] = ()) -> tuple[Claim, Entry]:
    number = next(_numbers)
    own = (Name(Kind.POST, "", f"{number}@example.org", WEEK_MS),)
    wanted = (Wanted("crm", f"msg_{number}"),)
    claim = Claim(f"entry{number}", f"owner{number}", own, shared, wanted, lease_ms=LEASE_MS)
    verdict = journal.claim(claim)
    assert isinstance(verdict, Claimed | Duplicate) and verdict.entry
    return claim, verdict.entry


def settle(journal: Journal, claim: Claim, entry: Entry, status: DeliveryStatus, payload: bytes) -> str:
    ended = tuple(
        replace(each, status=status, tries=1, next_try_ms=1 if status.is_open else None)
        for each in entry.deliveries
        if each.status is DeliveryStatus.DELIVERING
    )
    assert journal.settle(claim, entry, Settlement(Ending.DONE, "told", ended, payload=payload))
    return entry.id


def store(journal: Journal, size: int = KB, status: DeliveryStatus = DeliveryStatus.WAITING) -> str:
    return settle(journal, *claim_one(journal), status, b"x" * size)


def suppress(journal: Journal, size: int = KB) -> str:
    claim, entry = claim_one(journal, (GROUP,))
    assert entry.stop
    return settle(journal, claim, entry, DeliveryStatus.SKIPPED, b"x" * size)


def deliver_the_group(journal: Journal) -> None:
    settle(journal, *claim_one(journal, (GROUP,)), DeliveryStatus.DELIVERED, b"")


def send(journal: Journal, entry: str, status: DeliveryStatus = DeliveryStatus.DELIVERED) -> None:
    begun = begin(journal, entry)
    ended = replace(begun.delivery, status=status, next_try_ms=None, delivered_ms=1)
    assert journal.finish(entry, begun.delivery.owner, ended)


def begin(journal: Journal, entry: str) -> Begun:
    begun = journal.begin(entry, "crm", f"worker{next(_numbers)}", LEASE_MS)
    assert begun
    return begun


def read(journal: Journal, entry: str) -> Entry:
    known = journal.read(entry)
    assert known
    return known


BOUNDED: dict[str, dict[str, Any]] = {
    "sqlite": {"disk_bytes": 10 * KB},
    "redis": {"redis_bytes": 10 * KB},
    "failover": {"redis_bytes": 4 * KB, "disk_bytes": 10 * KB},
}


@pytest.fixture(params=BOUNDED)
def bench(request: pytest.FixtureRequest, tmp_path: Path, redis_server: RedisServer) -> Iterator[JournalBench]:
    """With room for ten payloads."""
    with open_journal(request.param, tmp_path, redis_server, **BOUNDED[request.param]) as bench:
        yield bench


def test_what_is_to_be_sent_and_has_no_room_is_not_settled(bench: JournalBench) -> None:
    stored = [store(bench.journal) for _ in range(10)]
    claim, entry = claim_one(bench.journal)
    with pytest.raises(NoRoom):
        settle(bench.journal, claim, entry, DeliveryStatus.WAITING, b"x" * KB)
    assert read(bench.journal, entry.id).state is State.PENDING
    assert bench.journal.settle(claim, entry, Settlement(Ending.FREE)), "it is still its owner's"
    send(bench.journal, stored[0])
    follow(bench.journal)
    assert bench.journal.payload(store(bench.journal)) == b"x" * KB, "what was delivered leaves room"


def test_one_that_is_too_large_for_what_is_left_leaves_room_to_smaller_ones(bench: JournalBench) -> None:
    claim, entry = claim_one(bench.journal)
    with pytest.raises(NoRoom):
        settle(bench.journal, claim, entry, DeliveryStatus.WAITING, b"x" * (11 * KB))
    assert bench.journal.payload(store(bench.journal)) == b"x" * KB


def test_a_dead_letter_without_room_is_seen_all_the_same(bench: JournalBench) -> None:
    for _ in range(10):
        store(bench.journal)
    dead = store(bench.journal, status=DeliveryStatus.DEAD)
    assert read(bench.journal, dead).payload_bytes == 0
    assert bench.journal.replay(dead, "crm") is Replayed.NO_PAYLOAD


def test_what_is_suppressed_uses_only_what_is_left(bench: JournalBench) -> None:
    deliver_the_group(bench.journal)
    for _ in range(10):
        store(bench.journal)
    suppressed = suppress(bench.journal)
    assert read(bench.journal, suppressed).payload_bytes == 0
    assert bench.journal.release(suppressed) is Released.NO_PAYLOAD


def test_the_size_stands_in_the_entry_as_long_as_there_is_a_payload(bench: JournalBench) -> None:
    stored = store(bench.journal, size=700)
    assert read(bench.journal, stored).payload_bytes == 700
    send(bench.journal, stored)
    assert read(bench.journal, stored).payload_bytes == 0


@pytest.fixture(params=["sqlite", "failover"])
def on_disk(request: pytest.FixtureRequest, tmp_path: Path, redis_server: RedisServer) -> Iterator[JournalBench]:
    with open_journal(request.param, tmp_path, redis_server, disk_bytes=10 * KB) as bench:
        yield bench


def follow(journal: Journal) -> None:
    if isinstance(journal, FailoverJournal):
        journal.tick()


def test_the_oldest_of_the_suppressed_makes_room_for_what_is_to_be_sent(on_disk: JournalBench) -> None:
    journal = on_disk.journal
    deliver_the_group(journal)
    suppressed = []
    for _ in range(10):
        suppressed.append(suppress(journal))
        on_disk.advance(1000)
    follow(journal)
    store(journal, size=2 * KB)
    follow(journal)
    on_disk.advance(CONFIRMED_WITHIN_MS)
    follow(journal)
    assert [read(journal, each).payload_bytes for each in suppressed] == [0, 0] + [KB] * 8
    assert [journal.release(each) for each in suppressed[1:3]] == [Released.NO_PAYLOAD, Released.RELEASED]
    follow(journal)
    store(journal, size=7 * KB)
    assert begin(journal, suppressed[2]).payload == b"x" * KB, "it was released: it is to be sent"


def test_a_newly_suppressed_one_takes_the_place_of_the_oldest(on_disk: JournalBench) -> None:
    journal = on_disk.journal
    deliver_the_group(journal)
    suppressed = []
    for _ in range(11):
        suppressed.append(suppress(journal))
        on_disk.advance(1000)
        follow(journal)
    assert [journal.payload(each) is None for each in suppressed] == [True] + [False] * 10


def test_a_follower_makes_no_room(on_disk: JournalBench) -> None:
    journal = on_disk.journal
    settle(journal, *claim_one(journal, (GROUP,)), DeliveryStatus.WAITING, b"x" * KB)
    follower = suppress(journal)
    follow(journal)
    store(journal, size=8 * KB)
    claim, entry = claim_one(journal)
    if on_disk.kind == "sqlite":
        with pytest.raises(NoRoom):
            settle(journal, claim, entry, DeliveryStatus.WAITING, b"x" * KB)
    assert journal.payload(follower) == b"x" * KB


# On Redis: counted to the byte


def test_kept_payloads_count_no_longer_once_they_have_ended(tmp_path: Path, redis_server: RedisServer) -> None:
    retention = Retention(delivered_payload_ms=10_000, dead_ms=1_000)
    with open_journal("redis", tmp_path, redis_server, retention) as bench:
        journal = bench.journal
        assert isinstance(journal, RedisJournal)
        delivered, dead = store(journal), store(journal)
        send(journal, delivered)
        send(journal, dead, DeliveryStatus.DEAD)
        assert counted_and_kept(journal._client) == (2 * KB, 2 * KB)
        bench.advance(20_000)
        journal.purge()
        assert (journal.payload(delivered), counted_and_kept(journal._client)) == (None, (KB, KB))
        assert read(journal, delivered).payload_bytes == 0
        bench.advance(4 * 3_600_000)
        journal.purge()
        assert counted_and_kept(journal._client) == (0, 0)


def test_a_dead_letter_that_is_replayed_and_dies_again_is_counted_once(
    tmp_path: Path, redis_server: RedisServer
) -> None:
    with open_journal("redis", tmp_path, redis_server) as bench:
        journal = bench.journal
        assert isinstance(journal, RedisJournal)
        dead = store(journal, status=DeliveryStatus.DEAD)
        for _ in range(2):
            assert journal.replay(dead, "crm") is Replayed.REPLAYED
            assert journal._client.zcard("payload_ends") == 0, "it has no end while it waits"
            send(journal, dead, DeliveryStatus.DEAD)
        assert counted_and_kept(journal._client) == (KB, KB)


def test_a_large_payload_takes_its_room_before_it_is_sent(tmp_path: Path, redis_server: RedisServer) -> None:
    size = 3 * PIECE_BYTES
    with open_journal("redis", tmp_path, redis_server, redis_bytes=4 * PIECE_BYTES) as bench:
        journal = bench.journal
        assert isinstance(journal, RedisJournal)
        assert journal._send_ahead("abandoned", b"x" * size), "its sender dies"
        assert journal._send_ahead("abandoned", b"x" * size), "and does it again"
        claim, entry = claim_one(journal)
        with pytest.raises(NoRoom):
            settle(journal, claim, entry, DeliveryStatus.WAITING, b"x" * size)
        assert counted_and_kept(journal._client) == (size, size)
        bench.advance(3_600_000)
        journal.purge()
        journal.look_at_memory()
        settle(journal, *claim_one(journal), DeliveryStatus.WAITING, b"x" * size)
        assert counted_and_kept(journal._client) == (size, size)


def test_no_payload_brings_redis_near_to_all_it_may_use(tmp_path: Path, redis_server: RedisServer) -> None:
    """Whatever else fills it: an eighth is left to what decides about emails."""
    client = redis_server.client
    with open_journal("redis", tmp_path, redis_server) as bench:
        journal = bench.journal
        assert isinstance(journal, RedisJournal)
        used = client.info("memory")["used_memory"]
        try:
            client.config_set("maxmemory", used * 8 // 7 + 500 * KB)
            memory = journal.look_at_memory()
            assert memory.left_bytes is not None and 0 < memory.left_bytes < 500 * KB
            assert journal.has_room_for(10 * KB)
            assert not journal.has_room_for(500 * KB)
            assert journal.most_payload_bytes == memory.most_bytes // 4
        finally:
            client.config_set("maxmemory", 0)


def test_who_may_not_ask_how_much_redis_uses_goes_by_what_is_counted(tmp_path: Path, redis_server: RedisServer) -> None:
    client = redis_server.client
    with open_journal("redis", tmp_path, redis_server, redis_bytes=2 * KB) as bench:
        try:
            client.execute_command("ACL", "SETUSER", "default", "-info")  # type: ignore[no-untyped-call]
            store(bench.journal)
            assert bench.journal.storage().redis_bytes == KB
        finally:
            client.execute_command("ACL", "SETUSER", "default", "+info")  # type: ignore[no-untyped-call]


# On this machine's disk alone


class Machine:
    """With room on Redis for one payload."""

    def __init__(self, server: RedisServer, folder: Path, stack: ExitStack, disk_bytes: int = 1 << 30) -> None:
        self.server, self.folder, self.stack, self.time = server, folder, stack, FakeClock()
        self.disk_bytes = disk_bytes
        folder.mkdir(exist_ok=True)

    def process(self) -> FailoverJournal:
        client = connect(self.server.url, 5, decode_responses=False)
        on_redis = RedisJournal(client, machine=self.folder.name, most_payload_bytes=KB)
        room = DiskRoom(self.folder, self.disk_bytes, free_bytes=0)
        local = SqliteJournal(self.folder / "journal.db", self.time.clock, room=room)
        journal = FailoverJournal(on_redis, local, self.folder, hold_ms=50)
        self.stack.callback(journal.close)
        assert journal.standing.side is Side.REDIS
        return journal


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def own_redis(stack: ExitStack) -> RedisServer:
    server = RedisServer()
    stack.callback(server.stop)
    return server.start()


@pytest.fixture
def machine(own_redis: RedisServer, tmp_path: Path, stack: ExitStack) -> Machine:
    return Machine(own_redis, tmp_path / "m1", stack)


@pytest.fixture
def other(own_redis: RedisServer, tmp_path: Path, stack: ExitStack) -> FailoverJournal:
    return Machine(own_redis, tmp_path / "m2", stack).process()


def due(journal: FailoverJournal) -> list[str]:
    return [entry for entry, _ in journal.due({"crm": 10}, 60_000)]


def test_what_redis_has_no_room_for_is_delivered_from_here(machine: Machine, other: FailoverJournal) -> None:
    process = machine.process()
    on_redis, here = store(process), store(process)
    assert [read(process, each).payload_machine for each in (on_redis, here)] == ["", "m1"]
    assert due(other) == [on_redis]
    assert other.begin(here, "crm", "worker", LEASE_MS) is None
    assert due(process) == [here]
    assert begin(process, here).payload == b"x" * KB


def test_it_is_delivered_by_whichever_process_of_the_machine_and_once(machine: Machine, other: FailoverJournal) -> None:
    first = machine.process()
    store(first)
    here = store(first)
    process = machine.process()
    begun = begin(process, here)
    assert begun.payload == b"x" * KB
    assert first.begin(here, "crm", "another", LEASE_MS) is None
    delivered = replace(begun.delivery, status=DeliveryStatus.DELIVERED, delivered_ms=1)
    assert process.finish(here, begun.delivery.owner, delivered)
    process.tick()
    assert process.local.payload(here) is None
    assert process.storage().disk_bytes == KB, "the copy of the one that Redis has"


def test_one_that_workers_elsewhere_cannot_have_is_asked_for_by_its_machine_alone(
    machine: Machine, other: FailoverJournal
) -> None:
    process = machine.process()
    store(process)
    here = store(process)
    assert other.due_here({"crm": 10}, 60_000) == []
    assert process.due_here({"crm": 10}, 60_000) == [(here, "crm")]


def test_what_was_only_to_be_announced_to_workers_is_due_here_at_once(machine: Machine) -> None:
    process = machine.process()
    store(process)
    claim, entry = claim_one(process)
    later = replace(entry.deliveries[0], status=DeliveryStatus.WAITING, next_try_ms=process.now_ms() + 60_000)
    assert process.settle(claim, entry, Settlement(Ending.DONE, "queued", (later,), payload=b"x" * KB))
    assert process.due_here({"crm": 10}, 60_000) == [(entry.id, "crm")]


def test_a_redis_that_lost_its_memory_hears_again_where_it_lies(machine: Machine, other: FailoverJournal) -> None:
    process = machine.process()
    stored = [store(process) for _ in range(3)]
    machine.server.client.flushall()
    process.tick()
    other.tick()
    eventually_open(process)
    at = {each: read(process, each).payload_machine for each in stored}
    assert sorted(at.values()) == ["", "m1", "m1"], "one of them has room on Redis, whichever is told first"
    for each in stored:
        assert begin(process, each).payload == b"x" * KB


def eventually_open(process: FailoverJournal) -> None:
    while int(process._redis._client.get("closed_until") or 0) > process._redis.now_ms():
        process.tick()


def test_it_rests_while_redis_is_away_and_goes_on_after_that(machine: Machine) -> None:
    process = machine.process()
    store(process)
    here = store(process)
    machine.server.client.config_set("maxmemory", 1)
    for _ in range(SILENT_TICKS):
        process.tick()
    assert (process.standing.side, due(process)) == (Side.LOCAL, [])
    alone = store(process)
    machine.server.client.config_set("maxmemory", 0)
    machine.time.advance(60_000)
    process.tick()
    assert {read(process, each).payload_machine for each in (here, alone)} == {"m1"}, "Redis has no room for it now"
    assert {begin(process, each).payload for each in (here, alone)} == {b"x" * KB}


def test_what_lies_on_one_machine_is_replayed_by_way_of_any(machine: Machine, other: FailoverJournal) -> None:
    process = machine.process()
    store(process)
    dead = store(process, status=DeliveryStatus.DEAD)
    assert read(other, dead).payload_machine == "m1"
    assert other.replay(dead, "crm") is Replayed.REPLAYED
    assert due(other) != [dead]
    assert dead in due(process)
    send(process, dead)
    assert (read(process, dead).payload_bytes, read(process, dead).payload_machine) == (0, "")


def test_what_was_suppressed_on_one_machine_is_released_by_way_of_any(machine: Machine, other: FailoverJournal) -> None:
    process = machine.process()
    deliver_the_group(process)
    suppressed = suppress(process)
    assert other.release(suppressed) is Released.RELEASED
    assert due(other) == []
    assert due(process) == [suppressed]
    assert begin(process, suppressed).payload == b"x" * KB


def test_a_follower_that_lies_here_goes_out_from_here(machine: Machine, other: FailoverJournal) -> None:
    process = machine.process()
    original = settle(process, *claim_one(process, (GROUP,)), DeliveryStatus.WAITING, b"x" * KB)
    follower = suppress(process)
    assert read(process, follower).payload_machine == "m1"
    send(process, original, DeliveryStatus.DEAD)
    assert due(other) == []
    assert due(process) == [follower]
    assert begin(process, follower).payload == b"x" * KB


def test_where_neither_has_room_nothing_is_settled(own_redis: RedisServer, tmp_path: Path, stack: ExitStack) -> None:
    process = Machine(own_redis, tmp_path / "m1", stack, disk_bytes=2 * KB).process()
    store(process)
    store(process)
    claim, entry = claim_one(process)
    with pytest.raises(NoRoom):
        settle(process, claim, entry, DeliveryStatus.WAITING, b"x" * KB)
    process.tick()
    assert read(process, entry.id).state is State.PENDING
    assert due(process) != [entry.id]


def test_what_lies_on_a_machine_is_listed_and_seen_to_be_under_way(machine: Machine) -> None:
    process = machine.process()
    store(process)
    here = store(process)
    begin(process, here)
    assert [each.entry.id for each in process.under_way()] == [here]
    assert here in {each.id for each in process._redis._created_before(process._redis.now_ms() + 1)}


# Stages


def test_the_stages_come_in_their_order_and_go_when_there_is_clearly_room_again() -> None:
    mb = KB * KB
    empty = Storage(redis_bytes=0, redis_limit_bytes=mb, disk_bytes=0, disk_limit_bytes=10 * mb)
    assert stage_of(empty) is Stage.REDIS
    redis_full = replace(empty, redis_bytes=mb)
    assert stage_of(redis_full) is Stage.DISK
    full = replace(redis_full, disk_bytes=10 * mb)
    assert stage_of(full) is Stage.FULL
    hardly = replace(empty, redis_bytes=mb * 92 // 100, disk_bytes=mb * 92 // 10)
    assert [stage_of(hardly, before) for before in Stage] == [Stage.REDIS, Stage.DISK, Stage.FULL]
    clearly = replace(empty, redis_bytes=mb // 2)
    assert [stage_of(clearly, before) for before in Stage] == [Stage.REDIS] * 3


@pytest.mark.parametrize("limit_kb", [50, 100, 500, 640, 700, 100_000])
def test_a_stage_that_was_left_behind_is_not_entered_again_by_looking_twice(limit_kb: int) -> None:
    limit = limit_kb * KB
    for used in range(0, limit + 1, max(1, limit // 50)):
        storage = Storage(redis_bytes=used, redis_limit_bytes=limit, disk_bytes=0, disk_limit_bytes=1 << 40)
        stage = stage_of(storage)
        assert stage_of(storage, stage) is stage, f"{used} of {limit} bytes"


def test_a_full_disk_is_no_room_though_payloads_are_few(tmp_path: Path) -> None:
    free = [10 * KB]
    room = DiskRoom(tmp_path, limit_bytes=1 << 30, free_bytes=8 * KB, free_on_disk=lambda _: free[0])
    assert room.has_room_for(2 * KB, used_bytes=0, reusable_bytes=0)
    assert not room.has_room_for(3 * KB, used_bytes=0, reusable_bytes=0)
    assert room.has_room_for(3 * KB, used_bytes=0, reusable_bytes=KB), "the file has taken that from the disk before"
    free[0] = 0
    assert room.has_room_for(2 * KB, used_bytes=0, reusable_bytes=0), "it is looked at once a second"


def test_what_a_file_held_before_it_was_counted_is_counted(tmp_path: Path) -> None:
    journal = SqliteJournal(tmp_path / "journal.db")
    store(journal, size=300)
    journal._db.execute("DELETE FROM numbers WHERE name = 'payload_bytes'")
    journal.close()
    again = SqliteJournal(tmp_path / "journal.db")
    assert again.storage().disk_bytes == 300
    again.close()
