"""What goes wrong between a machine and Redis: lost replies, half merges, wrong set-ups, late news, a reset."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis as redis_py

from deduplication.claims import WEEK_MS, Gate, Kind, Name, Pattern
from deduplication.errors import StoreMisconfigured, StoreUnavailable
from deduplication.journal.base import (
    Claim,
    Claimed,
    Duplicate,
    Ending,
    Forgotten,
    InFlight,
    Settlement,
    Settling,
    Wanted,
)
from deduplication.journal.entry import DeliveryStatus, Entry
from deduplication.journal.failover import RELIABLE_REPLY_MS, TOLD_AT_ONCE, FailoverJournal, OnFailure
from deduplication.journal.redis import RedisJournal, translated_errors
from deduplication.journal.side import Side
from deduplication.journal.sqlite import SqliteJournal
from deduplication.redis_client import connect
from tests.deduplication.journal import test_failover as machines
from tests.deduplication.journal.test_failover import (
    GROUP,
    ComeBack,
    Eventually,
    Machine,
    a_claim,
    again,
    an_id,
    deliver,
    is_alone,
    leave,
    send,
    settle_as_delivered,
    store,
    suppress,
)
from tests.support.proxy import Fault, Proxy
from tests.support.redis_server import RedisServer

pytestmark = pytest.mark.real_redis

stack, own_redis, machine, come_back = machines.stack, machines.own_redis, machines.machine, machines.come_back

TEXT, OTHER_TEXT = "t1.f1.-.-.l1.-.-", "t2.f1.-.-.l1.-.-"
MEDIUM = Name(Kind.MEDIA, "", "https://files.example/x", WEEK_MS)


@pytest.fixture
def proxy(own_redis: RedisServer) -> Iterator[Proxy]:
    with Proxy(own_redis.port) as proxy:
        yield proxy


def behind(proxy: Proxy, machine: Machine, tmp_path: Path) -> FailoverJournal:
    """A process of a machine that reaches Redis through the proxy."""
    folder = tmp_path / "behind"
    folder.mkdir()
    on_redis = RedisJournal(connect(proxy.url, 10, decode_responses=False), "behind")
    local = SqliteJournal(folder / "journal.db", machine.time.clock)
    journal = FailoverJournal(on_redis, local, folder)
    machine.stack.callback(journal.close)
    return journal


def entries_of(verdicts: list[Any]) -> list[Entry]:
    assert all(isinstance(each, Claimed) for each in verdicts), verdicts
    return [each.entry for each in verdicts]


def as_delivered(journal: FailoverJournal, claim: Claim, entry: Entry) -> Settling:
    """It was sent, and is noted; Redis is still to be told."""
    delivered = replace(entry.deliveries[0], status=DeliveryStatus.DELIVERED, tries=1, delivered_ms=1)
    journal.note_delivered(entry, delivered)
    return Settling(claim, entry, Settlement(Ending.DONE, "processed", (delivered,)))


def forget(journal: FailoverJournal, value: str) -> None:
    assert journal.forget(a_claim(value).own) == Forgotten(2)


def next_millisecond(server: RedisServer) -> None:
    """What comes in the same one as a reset counts as before it."""

    def now_ms() -> int:
        seconds, micros = server.client.time()
        return int(seconds) * 1000 + int(micros) // 1000

    before_ms = now_ms()
    while now_ms() == before_ms:
        pass


# Lost replies


@pytest.mark.parametrize("fault", [Fault.CUT_AFTER_SEND, Fault.CUT_BEFORE_SEND, Fault.CUT_MID_REPLY])
def test_a_lost_reply_is_never_a_duplicate(machine: Machine, proxy: Proxy, tmp_path: Path, fault: Fault) -> None:
    """The claim reaches Redis, its reply is lost, the connection drops: asked again, the owner has what it claimed."""
    process = behind(proxy, machine, tmp_path)
    proxy.set(fault, once=True)
    verdict = again(process, "a")
    assert isinstance(verdict, Claimed)
    assert process.numbers.lost_replies == 1
    assert process.standing.side is Side.REDIS
    proxy.set(fault, once=True)
    claim = replace(a_claim("b"), owner="me")
    claimed = process.claim(claim)
    assert isinstance(claimed, Claimed)
    proxy.set(fault, once=True)
    assert settle_as_delivered(process, claim, claimed.entry), "nor does its settlement read as another's"


@pytest.mark.parametrize("fault", [Fault.CUT_AFTER_SEND, Fault.CUT_BEFORE_SEND, Fault.CUT_MID_REPLY])
def test_of_several_a_lost_reply_is_none_of_them_a_duplicate(
    machine: Machine, proxy: Proxy, tmp_path: Path, fault: Fault
) -> None:
    process = behind(proxy, machine, tmp_path)
    process.claim(a_claim("warm"))
    claims = [a_claim(f"many{number}") for number in range(20)]
    proxy.set(fault, once=True)
    verdicts = process.claim_many(claims)
    assert [type(each) for each in verdicts] == [Claimed] * 20
    assert process.numbers.lost_replies == 1
    settlings = [as_delivered(process, *each) for each in zip(claims, entries_of(verdicts), strict=True)]
    proxy.set(fault, once=True)
    assert process.settle_many(settlings) == [True] * 20
    assert [type(again(process, f"many{number}")) for number in range(20)] == [Duplicate] * 20
    known = [process.read(claim.entry) for claim in claims]
    assert [each and each.repeats for each in known] == [1] * 20


def test_of_several_that_redis_granted_each_is_known_to_the_machine_when_redis_is_gone(machine: Machine) -> None:
    process = machine.process()
    claims = [a_claim(f"many{number}") for number in range(5)]
    entries = entries_of(process.claim_many(claims))
    sent = [as_delivered(process, *each) for each in zip(claims[:3], entries[:3], strict=True)]
    machine.server.kill()
    assert process.settle_many(sent) == [True] * 3, "facts, in the spool"
    leave(process)
    told = [type(again(process, f"many{number}")) for number in range(5)]
    assert told == [Duplicate] * 3 + [InFlight] * 2


def test_of_several_whose_process_died_what_was_sent_is_not_sent_again(machine: Machine) -> None:
    died, neighbour = machine.process(), machine.process()
    claims = [replace(a_claim(f"many{number}"), lease_ms=1) for number in range(5)]
    entries = entries_of(died.claim_many(claims))
    for each in zip(claims[:3], entries[:3], strict=True):
        as_delivered(died, *each)
    next_millisecond(machine.server)
    next_millisecond(machine.server)  # their leases are over
    verdicts = neighbour.claim_many([a_claim(f"many{number}") for number in range(5)])
    assert [each.id for each in entries_of(verdicts)] == [each.id for each in entries]
    to_send = [neighbour.before_sending(each) for each in verdicts if isinstance(each, Claimed)]
    statuses = [each and each.deliveries[0].status for each in to_send]
    assert statuses == [DeliveryStatus.DELIVERED] * 3 + [DeliveryStatus.DELIVERING] * 2


def test_of_several_that_wait_none_is_settled_without_redis(machine: Machine) -> None:
    process = machine.process()
    claims = [a_claim(f"many{number}") for number in range(3)]
    entries = entries_of(process.claim_many(claims))
    waiting = [replace(each.deliveries[0], status=DeliveryStatus.WAITING, next_try_ms=1, tries=1) for each in entries]
    machine.server.kill()
    answers = process.settle_many(
        [
            Settling(claim, entry, Settlement(Ending.DONE, "queued", (delivery,), payload=b"payload"))
            for claim, entry, delivery in zip(claims, entries, waiting, strict=True)
        ]
    )
    assert all(isinstance(each, StoreUnavailable) for each in answers)


def test_of_several_a_late_answer_is_relied_on_for_none(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    process = machine.process()
    deliver(process, "done")
    on_redis = process._redis.claim_many

    def slowly(*asked: Any) -> Any:
        verdicts = on_redis(*asked)
        machine.pass_s(RELIABLE_REPLY_MS / 1000 + 1)
        return verdicts

    with monkeypatch.context() as slow:
        slow.setattr(process._redis, "claim_many", slowly)
        first, known, second = process.claim_many([a_claim("a"), a_claim("done"), a_claim("b")])
    assert isinstance(first, StoreUnavailable) and isinstance(second, StoreUnavailable)
    assert isinstance(known, Duplicate), "that it is done is no grant"
    assert process.numbers.late_replies == 2
    assert [type(again(process, value)) for value in ("a", "b")] == [Claimed] * 2, "given back at once"


def test_several_that_wait_are_synced_to_this_disk_once(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    process, synced = machine.process(), list[int]()
    claims = [a_claim(f"many{number}") for number in range(10)]
    entries = entries_of(process.claim_many(claims))
    monkeypatch.setattr("os.fsync", synced.append)
    waiting = [replace(each.deliveries[0], status=DeliveryStatus.WAITING, next_try_ms=1) for each in entries]
    settlings = [
        Settling(claim, entry, Settlement(Ending.DONE, "queued", (delivery,), payload=b"payload"))
        for claim, entry, delivery in zip(claims, entries, waiting, strict=True)
    ]
    assert process.settle_many(settlings) == [True] * 10
    assert len(set(synced)) == 2, "a file, and the folder that it is in"
    assert len(synced) == 2
    process.tick()
    assert sorted(process.local.payload(claim.entry) or b"" for claim in claims) == [b"payload"] * 10


def test_the_client_itself_never_sends_a_command_twice(own_redis: RedisServer, proxy: Proxy) -> None:
    """A client that did would read its own SET NX as somebody else's."""
    client = connect(proxy.url, timeout_s=10)
    client.ping()
    own_redis.client.config_resetstat()
    proxy.set(Fault.CUT_AFTER_SEND, once=True)
    with pytest.raises(redis_py.exceptions.ConnectionError):
        client.set("once", "1", nx=True)
    assert own_redis.client.info("commandstats")["cmdstat_set"]["calls"] == 1
    client.close()


def test_on_its_own_side_requests_do_not_ask_redis(machine: Machine) -> None:
    process = machine.process()
    machine.server.kill()
    leave(process)
    errors = process.numbers.redis_errors.total()
    for number in range(20):
        assert isinstance(again(process, str(number)), Claimed)
    assert process.numbers.redis_errors.total() == errors


# Alone


def test_alone_what_was_skipped_and_what_a_group_stops_is_known(machine: Machine) -> None:
    process = machine.process()
    first = deliver(process, "a", (GROUP,))
    suppress(process, "b", GROUP)
    machine.server.kill()
    leave(process)
    skipped = again(process, "b")
    assert isinstance(skipped, Duplicate) and skipped.entry is None, "skipped, and so settled"
    grouped = again(process, "c", (GROUP,))
    assert isinstance(grouped, Duplicate)
    assert (grouped.stop.gate, grouped.stop.original) == (Gate.SUBJECT_GROUP, first.id)


def test_looking_goes_on_alone(machine: Machine) -> None:
    process = machine.process()
    entry = deliver(process, "a", (GROUP,))
    machine.server.kill()
    leave(process)
    (found,) = process.look([an_id("a")])
    assert (found.is_marked, [each.id for each in found.entries]) == (True, [entry.id])
    assert [each.id for each in process.find()] == [entry.id]
    assert set(process.names(Pattern())) == {*a_claim("a").own, GROUP}
    known = process.read(entry.id)
    assert known and known.deliveries[0].status is DeliveryStatus.DELIVERED


def test_closed_on_failure_what_was_delivered_is_kept_and_told(machine: Machine, come_back: ComeBack) -> None:
    process = machine.process(on_failure=OnFailure.CLOSED)
    claim = a_claim("a")
    verdict = process.claim(claim)
    assert isinstance(verdict, Claimed)
    machine.server.kill()
    assert settle_as_delivered(process, claim, verdict.entry), "a fact, in the spool"
    leave(process)
    with pytest.raises(StoreUnavailable):
        process.check()
    come_back(process)
    assert machine.server.client.sismember("processed_ids:2026-11-16", "a")


# What is told


def test_a_fingerprint_is_told_with_its_name(machine: Machine, come_back: ComeBack) -> None:
    process = machine.process()
    machine.server.kill()
    leave(process)
    claim = replace(a_claim("a"), fingerprint=TEXT)
    verdict = process.claim(claim)
    assert isinstance(verdict, Claimed)
    settle_as_delivered(process, claim, verdict.entry)
    come_back(process)
    assert isinstance(process.claim(replace(a_claim("a"), fingerprint=TEXT)), Duplicate)
    assert isinstance(process.claim(replace(a_claim("a"), fingerprint=OTHER_TEXT)), Claimed)


def test_an_undated_id_marked_by_another_program_does_not_keep_out_what_is_told(
    machine: Machine, proxy: Proxy, tmp_path: Path
) -> None:
    process = behind(proxy, machine, tmp_path)
    proxy.set(Fault.REFUSE)
    leave(process)
    undated = Name(Kind.EMAIL_ID, "undated", "a")
    claim = replace(a_claim("a"), own=(undated,), fingerprint="t.0.0.-.0.i.-")
    verdict = process.claim(claim)
    assert isinstance(verdict, Claimed)
    settle_as_delivered(process, claim, verdict.entry)
    machine.server.client.sadd("processed_ids:undated", "a")
    proxy.set(Fault.NONE)
    machine.pass_s(31)
    process.tick()
    assert process.standing.side is Side.REDIS
    repeat = process.claim(replace(a_claim("a"), own=(undated,), fingerprint="t.0.0.-.0.i.-"))
    assert isinstance(repeat, Duplicate)
    assert repeat.stop.original == verdict.entry.id


def test_the_time_left_is_told_and_not_the_whole_time(machine: Machine, come_back: ComeBack) -> None:
    process = machine.process()
    machine.server.kill()
    leave(process)
    short = Name(Kind.MEDIA, "", "https://files.example/short", 60_000)
    deliver(process, "a", (MEDIUM, short))
    machine.pass_s(3600)
    come_back(process)
    left_ms = machine.server.client.pttl(f"media:{MEDIUM.value}")
    assert WEEK_MS - 2 * 3_600_000 < left_ms <= WEEK_MS - 3_600_000
    assert not machine.server.client.exists(f"media:{short.value}"), "its time is over"
    assert isinstance(again(process, "b", (short,)), Claimed)
    assert machine.server.client.ttl("processed_ids:2026-11-16") == -1, "for ever, as it was before"


def test_an_emptied_redis_is_not_told_of_names_whose_time_is_over(machine: Machine, eventually: Eventually) -> None:
    """A group with a time of an hour was marked anew for each email of the last week, and stopped the next one."""
    process = machine.process()
    hourly = Name(Kind.SUBJECT_GROUP, "2026-11", "hourly", 3_600_000)
    entry = deliver(process, "a", (hourly,))
    process.tick()
    machine.pass_s(7200)
    machine.server.client.flushall()
    with pytest.raises(StoreUnavailable):
        again(process, "a")
    process.tick()
    eventually(lambda: not _is_closed(process))
    repeat = again(process, "a")
    assert isinstance(repeat, Duplicate) and repeat.stop.original == entry.id
    assert isinstance(again(process, "b", (hourly,)), Claimed)


def _is_closed(process: FailoverJournal) -> bool:
    try:
        process.look([an_id("probe")])
    except StoreUnavailable:
        return True
    return False


def test_after_a_loss_of_memory_numbers_go_on_from_where_they_were(machine: Machine, eventually: Eventually) -> None:
    process = machine.process()
    in_flight = again(process, "a")
    assert isinstance(in_flight, Claimed)
    machine.server.client.flushall()
    process.tick()
    eventually(lambda: not _is_closed(process))
    assert isinstance(again(process, "a"), InFlight), "what was under way still is"
    after = again(process, "b")
    assert isinstance(after, Claimed)
    assert after.entry.fence > in_flight.entry.fence


def test_what_this_machine_knew_before_there_was_a_redis_moves_there(machine: Machine) -> None:
    """Someone starts without Redis and sets REDIS_URL later: nothing is forgotten."""
    count = TOLD_AT_ONCE + 1
    embedded = SqliteJournal(machine.folder / "journal.db", machine.time.clock)
    for number in range(count):
        claim = a_claim(str(number))
        verdict = embedded.claim(claim)
        assert isinstance(verdict, Claimed)
        status = DeliveryStatus.DELIVERED if number else DeliveryStatus.WAITING
        ended = replace(verdict.entry.deliveries[0], status=status, next_try_ms=None if number else 1)
        payload = None if number else b"payload"
        assert embedded.settle(claim, verdict.entry, Settlement(Ending.DONE, "told", (ended,), payload=payload))
    embedded.close()
    process = machine.process()
    assert process.standing.side is Side.REDIS
    assert machine.server.client.scard("processed_ids:2026-11-16") == count
    assert isinstance(again(process, str(count - 1)), Duplicate)
    ((waiting, _),) = process.due({"crm": 10}, hold_ms=1000)
    assert process.payload(waiting) == b"payload"


def test_what_it_knew_by_its_marks_alone_moves_there_too_and_once(machine: Machine) -> None:
    """Ids are known for ever, their entries for a week."""
    embedded = SqliteJournal(machine.folder / "journal.db", machine.time.clock)
    claim = a_claim("old")
    verdict = embedded.claim(claim)
    assert isinstance(verdict, Claimed)
    ended = replace(verdict.entry.deliveries[0], status=DeliveryStatus.DELIVERED)
    assert embedded.settle(claim, verdict.entry, Settlement(Ending.DONE, "told", (ended,)))
    machine.pass_s(20 * 24 * 3600)
    assert embedded.read(verdict.entry.id) is None
    embedded.close()
    assert isinstance(again(machine.process(), "old"), Duplicate)
    machine.server.client.delete("processed_ids:2026-11-16")
    machine.process()
    assert not machine.server.client.exists("processed_ids:2026-11-16"), "a person took it away, and it stays so"


def test_telling_that_breaks_half_way_is_finished_later(
    machine: Machine, proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = behind(proxy, machine, tmp_path)
    proxy.set(Fault.REFUSE)
    leave(process)
    count = TOLD_AT_ONCE + 1
    for number in range(count):
        deliver(process, str(number))
    mark_told = process.local.mark_told

    def break_after_the_first(changes: list[int]) -> None:
        monkeypatch.setattr(process.local, "mark_told", mark_told)
        proxy.set(Fault.REFUSE)  # Redis has the batch, and we do not know it

    monkeypatch.setattr(process.local, "mark_told", break_after_the_first)
    proxy.set(Fault.NONE)
    machine.pass_s(31)
    process.tick()
    assert is_alone(process)
    assert process.untold().entries == count
    proxy.set(Fault.NONE)
    machine.pass_s(31)
    process.tick()
    assert process.standing.side is Side.REDIS
    assert process.untold().entries == 0
    assert machine.server.client.scard("processed_ids:2026-11-16") == count


def test_one_that_lost_its_entry_keeps_no_copy_that_says_otherwise(machine: Machine, tmp_path: Path) -> None:
    """Its own copy of what it wanted to store waited here for ever, with its payload."""
    first = machine.process()
    other = Machine(machine.server, tmp_path / "m2", machine.stack).process()
    claim = a_claim("a")
    verdict = first.claim(claim)
    assert isinstance(verdict, Claimed)
    assert first.renew(verdict.entry.id, claim.owner, 0), "its lease is over at once"
    deliver(other, "a")
    waiting = replace(verdict.entry.deliveries[0], status=DeliveryStatus.WAITING, next_try_ms=1)
    settlement = Settlement(Ending.DONE, "queued", (waiting,), payload=b"payload")
    assert not first.settle(claim, verdict.entry, settlement)
    first.tick()
    copy = first.local.read(verdict.entry.id)
    assert copy and copy.deliveries[0].status is DeliveryStatus.DELIVERED
    assert first.local.payload(verdict.entry.id) is None


# A reset


def test_after_a_reset_the_machine_that_made_it_knows_nothing_of_it_either(machine: Machine) -> None:
    process = machine.process()
    deliver(process, "a")  # its lines are still in the spool
    forget(process, "a")
    machine.server.kill()
    leave(process)
    assert isinstance(again(process, "a"), Claimed)


def test_what_was_delivered_again_after_a_reset_is_known_here(machine: Machine) -> None:
    process = machine.process()
    deliver(process, "a")
    forget(process, "a")
    deliver(process, "a")
    machine.server.kill()
    leave(process)
    assert isinstance(again(process, "a"), Duplicate)


def test_what_was_reset_is_not_brought_back_by_a_machine_that_was_away(
    machine: Machine, proxy: Proxy, tmp_path: Path
) -> None:
    on_redis, away = machine.process(), behind(proxy, machine, tmp_path)
    machine.time.ms = on_redis.now_ms()  # the clocks of both agree with Redis
    proxy.set(Fault.REFUSE)
    leave(away)
    deliver(away, "a")
    deliver(on_redis, "a")
    machine.pass_s(1)
    forget(on_redis, "a")
    proxy.set(Fault.NONE)
    machine.pass_s(31)
    away.tick()
    assert away.standing.side is Side.REDIS
    assert isinstance(again(on_redis, "a"), Claimed)


def test_a_reset_reaches_what_other_machines_know(machine: Machine, proxy: Proxy, tmp_path: Path) -> None:
    first, second = machine.process(), behind(proxy, machine, tmp_path)
    deliver(second, "a")
    forget(first, "a")
    second.tick()
    proxy.set(Fault.REFUSE)
    leave(second)
    assert isinstance(again(second, "a"), Claimed)


def test_a_reset_heard_late_leaves_what_came_after_it(machine: Machine, proxy: Proxy, tmp_path: Path) -> None:
    first, second = machine.process(), behind(proxy, machine, tmp_path)
    deliver(second, "a")
    forget(first, "a")
    next_millisecond(machine.server)
    deliver(second, "a")
    second.tick()
    proxy.set(Fault.REFUSE)
    leave(second)
    assert isinstance(again(second, "a"), Duplicate)


def test_a_reset_heard_late_leaves_what_joined_its_entry_after_it(
    machine: Machine, proxy: Proxy, tmp_path: Path
) -> None:
    """A dead letter keeps its row in a reset, and so the row is older than the reset."""
    first, second = machine.process(), behind(proxy, machine, tmp_path)
    machine.time.ms = first.now_ms()
    dead = store(second, "a", DeliveryStatus.DEAD)
    forget(first, "a")
    claim = a_claim("a")
    verdict = second.claim(claim)
    assert isinstance(verdict, Claimed) and verdict.entry.id == dead.id
    machine.pass_s(1)
    delivered = replace(
        verdict.entry.deliveries[0], status=DeliveryStatus.DELIVERED, delivered_ms=machine.time.clock.now_ms()
    )
    second.note_delivered(verdict.entry, delivered)
    assert second.settle(claim, verdict.entry, Settlement(Ending.DONE, "processed", (delivered,)))
    second.tick()
    proxy.set(Fault.REFUSE)
    leave(second)
    assert isinstance(again(second, "a"), Duplicate)


def test_a_reset_of_what_another_machine_finished_reaches_the_copy_here(
    machine: Machine, proxy: Proxy, tmp_path: Path
) -> None:
    """The copy still waits here, and what waits keeps its names."""
    first, second = machine.process(), behind(proxy, machine, tmp_path)
    waiting = store(second, "a")
    second.tick()
    send(first, waiting, DeliveryStatus.DELIVERED)
    forget(first, "a")
    second.tick()
    proxy.set(Fault.REFUSE)
    leave(second)
    assert isinstance(again(second, "a"), Claimed)


def test_a_reset_is_heard_by_a_process_that_starts_later(machine: Machine, tmp_path: Path) -> None:
    away = Machine(machine.server, tmp_path / "m2", machine.stack)
    deliver(away.process(), "a")
    forget(machine.process(), "a")
    after = away.process()
    machine.server.kill()
    leave(after)
    assert isinstance(again(after, "a"), Claimed)


def test_what_was_reopened_elsewhere_is_reopened_in_the_copy_here(
    machine: Machine, proxy: Proxy, tmp_path: Path
) -> None:
    first, second = machine.process(), behind(proxy, machine, tmp_path)
    words = Name(Kind.CONTENT, "crm", "words", WEEK_MS)
    claim = replace(a_claim("a"), destinations=(Wanted("crm", "msg_a", words),))
    verdict = second.claim(claim)
    assert isinstance(verdict, Claimed) and settle_as_delivered(second, claim, verdict.entry)
    second.tick()
    assert first.reopen(verdict.entry.id, "crm")
    second.tick()
    proxy.set(Fault.REFUSE)
    leave(second)
    same_words = replace(a_claim("b"), destinations=(Wanted("crm", "msg_b", words),))
    assert isinstance(second.claim(same_words), Claimed)
    assert isinstance(again(second, "a"), Claimed)


def test_a_reset_keeps_what_waits_in_the_copy_here_too(machine: Machine) -> None:
    process = machine.process()
    waiting = store(process, "a")
    assert process.forget(a_claim("a").own) == Forgotten(0, (waiting.id,))
    (found,) = process.local.look([an_id("a")])
    assert [each.id for each in found.entries] == [waiting.id]
    assert process.local.payload(waiting.id) == b"payload"


# Wrong set-ups


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (redis_py.exceptions.ConnectionError("refused"), StoreUnavailable),
        (redis_py.exceptions.TimeoutError("timed out"), StoreUnavailable),
        (redis_py.exceptions.BusyLoadingError("LOADING"), StoreUnavailable),
        (redis_py.exceptions.ReadOnlyError("can't write"), StoreUnavailable),
        (redis_py.exceptions.OutOfMemoryError("command not allowed"), StoreUnavailable),
        (redis_py.exceptions.ClusterDownError("CLUSTERDOWN The cluster is down"), StoreUnavailable),
        (redis_py.exceptions.RedisClusterException("cannot be connected"), StoreUnavailable),
        (redis_py.exceptions.ResponseError("MISCONF errors writing to disk"), StoreUnavailable),
        (redis_py.exceptions.ResponseError("Error running script: @user_script: 7: -OOM command"), StoreUnavailable),
        (redis_py.exceptions.ResponseError("Error running script: @user_script: 7: -READONLY You"), StoreUnavailable),
        (redis_py.exceptions.AuthenticationError("WRONGPASS"), StoreMisconfigured),
        (redis_py.exceptions.NoPermissionError("NOPERM"), StoreMisconfigured),
        (redis_py.exceptions.ResponseError("WRONGTYPE Operation against a key"), StoreMisconfigured),
        (redis_py.exceptions.ResponseError("ERR Error running script: attempt to index nil"), StoreMisconfigured),
    ],
)
def test_an_outage_is_told_from_a_misconfiguration(error: Exception, expected: type[Exception]) -> None:
    with pytest.raises(expected) as raised, translated_errors():
        raise error
    assert isinstance(raised.value, StoreUnavailable) is (expected is StoreUnavailable)


def test_a_misconfiguration_never_makes_a_machine_decide_alone(machine: Machine) -> None:
    process, client = machine.process(), machine.server.client
    claim = a_claim("a")
    verdict = process.claim(claim)
    assert isinstance(verdict, Claimed)
    client.set("processed_ids:2026-11-16", "not a set")
    with pytest.raises(StoreMisconfigured):
        again(process, "b")
    with pytest.raises(StoreMisconfigured):
        settle_as_delivered(process, claim, verdict.entry)
    assert process.standing.side is Side.REDIS
    assert process.numbers.decided_alone == 0
    client.delete("processed_ids:2026-11-16")
    repeat = again(process, "a")
    assert isinstance(repeat, Duplicate), "what was delivered was not forgotten"
    assert repeat.stop.original == verdict.entry.id


def test_a_full_redis_is_one_that_is_away(machine: Machine) -> None:
    process = machine.process()
    deliver(process, "a")
    machine.server.client.config_set("maxmemory", "1")
    with pytest.raises(StoreUnavailable):
        again(process, "b")
    for _ in range(4):
        process.tick()
    assert is_alone(process)
    assert isinstance(again(process, "b"), Claimed)
    assert isinstance(again(process, "a"), Duplicate)
