"""What ledger/base.py promises, over every ledger."""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from deduplication.errors import StoreMisconfigured, StoreUnavailable
from deduplication.redis_client import connect
from orchestrator.delivery.ledger.base import Ledger, Wanted
from orchestrator.delivery.ledger.failover import FailoverLedger
from orchestrator.delivery.ledger.redis import RedisLedger
from orchestrator.delivery.ledger.sqlite import SqliteLedger
from orchestrator.delivery.record import Attempt, DeliveryStatus
from tests.support.ledgers import HOLD_MS, LEDGERS, RETENTION, LedgerBench, open_ledgers, waiting
from tests.support.redis_server import RedisServer

UNDELIVERED = [status for status in DeliveryStatus if status is not DeliveryStatus.DELIVERED]


@pytest.fixture(params=LEDGERS)
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LedgerBench]:
    """Every ledger in turn."""
    needs_redis = request.param in ("redis", "failover")
    server: RedisServer | None = request.getfixturevalue("redis_server") if needs_redis else None
    with open_ledgers(request.param, tmp_path, server) as bench:
        yield bench


# add, save, get


def test_what_was_added_is_there_for_everyone(bench: LedgerBench) -> None:
    both = [bench.waiting("d1"), bench.waiting("d2", destination="archive")]
    bench.ledger.add(both)
    assert [bench.another.get("d1"), bench.another.get("d2")] == both
    assert bench.another.get("d3") is None


def test_every_field_is_kept(bench: LedgerBench) -> None:
    full = bench.waiting(
        tries=2,
        attempts=(Attempt(1, 20, 503, "answered 503"), Attempt(2, 30, error="no answer")),
        delivered_ms=17,
        receiver_id="r-9",
        reason="destination: crm, « occupé »",
        content_hash="ab" * 32,
        content_kept_ms=259_200_000,
        webhook_id="msg_other",
    )
    bench.ledger.add([full])
    assert bench.another.get("d1") == full
    bench.ledger.save(replace(full, status=DeliveryStatus.DEAD, next_try_ms=None))
    assert bench.another.get("d1") == replace(full, status=DeliveryStatus.DEAD, next_try_ms=None)


@pytest.mark.parametrize(
    "payload",
    [
        None,
        {},
        {
            "subject": "Été 日本 🎉 \x00 \u2028",
            "lone surrogate": "\udc80",
            "nested": {"list": [1, 2.5, None, True, "x"]},
        },
        {"body": "é" * 3_000_000},
    ],
    ids=["none", "empty", "unicode", "several MB"],
)
def test_a_payload_comes_back_as_it_was(bench: LedgerBench, payload: dict[str, Any] | None) -> None:
    bench.ledger.add([bench.waiting(payload=payload)])
    found = bench.another.get("d1")
    assert found is not None
    assert found.payload == payload
    bench.another.save(found)
    assert bench.ledger.get("d1") == found


def test_a_payload_that_is_no_longer_wanted_is_gone(bench: LedgerBench) -> None:
    bench.ledger.add([bench.waiting()])
    bench.ledger.save(bench.delivered(payload=None))
    found = bench.ledger.get("d1")
    assert found is not None
    assert found.payload is None


def test_adding_what_is_known_changes_nothing(bench: LedgerBench) -> None:
    first = bench.waiting(tries=3)
    bench.ledger.add([first])
    bench.another.add([bench.waiting(tries=0, item="other"), bench.waiting("d2")])
    assert bench.ledger.get("d1") == first
    assert bench.ids() == ["d1", "d2"]


CAN_BE_ADDED_ANEW = (DeliveryStatus.WAITING, DeliveryStatus.DEAD)


@pytest.mark.parametrize("status", [each for each in DeliveryStatus if each not in CAN_BE_ADDED_ANEW])
def test_what_was_settled_is_not_added_again(bench: LedgerBench, status: DeliveryStatus) -> None:
    settled = bench.delivered(status=status, payload=None)
    bench.ledger.save(settled)
    bench.ledger.add([bench.waiting()])
    assert bench.ledger.get("d1") == settled


def test_a_dead_one_whose_email_comes_again_after_a_reset_is_added_anew(bench: LedgerBench) -> None:
    bench.ledger.save(bench.waiting(status=DeliveryStatus.DEAD, next_try_ms=None, tries=9))
    again = bench.waiting()
    bench.another.add([again])
    assert bench.ledger.get("d1") == again


def test_one_that_waits_without_a_payload_is_added_anew(bench: LedgerBench) -> None:
    bench.ledger.save(bench.waiting(payload=None, next_try_ms=None, tries=1))
    again = bench.waiting(tries=1)
    bench.another.add([again])
    assert bench.ledger.get("d1") == again
    assert bench.ids() == ["d1"]
    assert [delivery.id for delivery in bench.ledger.due(10, HOLD_MS)] == ["d1"]


def test_saving_puts_a_record_in_place_of_the_one_before(bench: LedgerBench) -> None:
    bench.ledger.add([bench.waiting()])
    later = bench.waiting(tries=1, reason="answered 503", next_try_ms=bench.now_ms() + 5000)
    bench.another.save(later)
    assert bench.ledger.get("d1") == later
    fewer = bench.waiting(tries=0)
    bench.another.save(fewer)
    assert bench.ledger.get("d1") == fewer, "a plain save always wins over what was not delivered"
    assert bench.ledger.counts() == {("crm", DeliveryStatus.WAITING): 1}


def test_saving_what_is_not_known_records_it(bench: LedgerBench) -> None:
    done = bench.delivered()
    bench.ledger.save(done)
    assert bench.another.get("d1") == done


@pytest.mark.parametrize("status", UNDELIVERED)
def test_delivered_stays_delivered(bench: LedgerBench, status: DeliveryStatus) -> None:
    done = bench.delivered()
    assert done.delivered_ms
    bench.ledger.add([bench.waiting()])
    bench.ledger.save(done)
    bench.another.save(bench.waiting(status=status, tries=9, scheduled_ms=done.scheduled_ms))
    bench.another.save(bench.waiting(status=status, tries=9, scheduled_ms=done.delivered_ms))
    assert bench.ledger.get("d1") == done
    assert bench.ledger.due(10, HOLD_MS) == []
    assert bench.ledger.counts() == {("crm", DeliveryStatus.DELIVERED): 1}


def test_a_replay_takes_the_place_of_a_delivery_and_is_delivered_again(bench: LedgerBench) -> None:
    first = bench.delivered()
    bench.ledger.save(first)
    replay = bench.waiting(created_ms=first.created_ms, scheduled_ms=(first.delivered_ms or 0) + 1)
    bench.ledger.save(replay)
    assert bench.another.get("d1") == replay
    assert [delivery.id for delivery in bench.ledger.due(10, HOLD_MS)] == ["d1"]
    again = replace(first, delivered_ms=replay.scheduled_ms + 10, scheduled_ms=replay.scheduled_ms, receiver_id="r-2")
    bench.ledger.save(again)
    assert bench.another.get("d1") == again
    assert bench.ledger.counts() == {("crm", DeliveryStatus.DELIVERED): 1}


def test_more_can_become_known_of_a_delivery(bench: LedgerBench) -> None:
    bench.ledger.save(bench.delivered())
    known = bench.delivered(receiver_id="r-1")
    bench.ledger.save(known)
    assert bench.ledger.get("d1") == known


def test_of_savers_at_once_the_one_that_delivered_wins(bench: LedgerBench) -> None:
    now_ms = bench.now_ms()
    done = waiting("d1", now_ms, status=DeliveryStatus.DELIVERED, delivered_ms=now_ms, next_try_ms=None)
    barrier = threading.Barrier(8)

    def save(number: int) -> None:
        ledger = (bench.ledger, bench.another)[number % 2]
        barrier.wait()
        for tries in range(5):
            ledger.save(done if number == 0 and tries == 2 else waiting("d1", now_ms, tries=tries))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(save, range(8)))
    assert bench.ledger.counts() == {("crm", DeliveryStatus.DELIVERED): 1}
    assert bench.another.due(10, HOLD_MS) == []


# due and begin


def test_what_is_due_comes_oldest_first_and_once(bench: LedgerBench) -> None:
    now_ms = bench.now_ms()
    times = {"a": now_ms + 10_000, "b": now_ms - 10, "c": now_ms - 200, "d": now_ms - 3000}
    bench.ledger.add([bench.waiting(name, next_try_ms=time_ms) for name, time_ms in times.items()])
    assert [delivery.id for delivery in bench.ledger.due(2, HOLD_MS)] == ["d", "c"]
    assert [delivery.id for delivery in bench.another.due(2, HOLD_MS)] == ["b"]
    assert bench.ledger.due(2, HOLD_MS) == []
    bench.advance(10_000)
    assert [delivery.id for delivery in bench.ledger.due(2, HOLD_MS)] == ["a"]


def test_what_is_due_comes_without_its_payload_and_says_when_it_comes_again(bench: LedgerBench) -> None:
    added = bench.waiting()
    bench.ledger.add([added])
    before_ms = bench.now_ms()
    (due,) = bench.ledger.due(10, HOLD_MS)
    assert due == replace(added, payload=None, next_try_ms=due.next_try_ms)
    assert before_ms + HOLD_MS <= (due.next_try_ms or 0) <= bench.now_ms() + HOLD_MS
    assert bench.another.get("d1") == replace(added, next_try_ms=due.next_try_ms)


def test_what_nobody_settled_comes_again_after_the_hold(bench: LedgerBench) -> None:
    bench.ledger.add([bench.waiting()])
    assert bench.ledger.due(10, HOLD_MS)
    bench.advance(HOLD_MS - 5000)
    assert not bench.another.due(10, HOLD_MS)
    bench.advance(5000)
    assert bench.another.due(10, HOLD_MS)


def test_what_was_handed_out_can_be_held_for_longer(bench: LedgerBench) -> None:
    bench.ledger.add([bench.waiting("a"), bench.waiting("b")])
    bench.ledger.hold(bench.ledger.due(10, 1000), HOLD_MS)
    bench.ledger.hold([], HOLD_MS)
    bench.advance(HOLD_MS - 5000)
    assert bench.another.due(10, HOLD_MS) == []
    bench.advance(5000)
    assert {delivery.id for delivery in bench.another.due(10, HOLD_MS)} == {"a", "b"}


def test_what_something_became_of_since_is_not_held(bench: LedgerBench) -> None:
    """A worker was quicker: its retry must come at its own time, and what it settled stays settled."""
    bench.ledger.add([bench.waiting("failed"), bench.waiting("done"), bench.waiting("begun")])
    due = bench.ledger.due(10, HOLD_MS)
    bench.another.save(bench.waiting("failed", tries=1, next_try_ms=bench.now_ms() + 5000))
    bench.another.save(bench.delivered("done"))
    bench.another.begin("begun", 3000)
    bench.ledger.hold(due, 100 * HOLD_MS)
    bench.advance(6000)
    assert {delivery.id for delivery in bench.ledger.due(10, HOLD_MS)} == {"failed", "begun"}


def test_what_is_settled_or_has_no_next_try_is_never_due(bench: LedgerBench) -> None:
    for status in (DeliveryStatus.DELIVERED, DeliveryStatus.DEAD, DeliveryStatus.SKIPPED):
        bench.ledger.add([bench.waiting(status)])
        bench.ledger.save(bench.delivered(status, status=status, next_try_ms=bench.now_ms()))
    bench.ledger.add([bench.waiting("given back", next_try_ms=None)])
    bench.advance(1000)
    assert bench.ledger.due(10, HOLD_MS) == []


def test_a_new_next_try_counts_from_when_it_is_saved(bench: LedgerBench) -> None:
    bench.ledger.add([bench.waiting()])
    bench.ledger.due(10, HOLD_MS)
    bench.ledger.save(bench.waiting(tries=1, next_try_ms=bench.now_ms() + 5000))
    assert bench.ledger.due(10, HOLD_MS) == []
    bench.advance(5000)
    (due,) = bench.ledger.due(10, HOLD_MS)
    assert due.tries == 1


def test_beginning_makes_it_delivering_and_holds_it(bench: LedgerBench) -> None:
    added = bench.waiting()
    bench.ledger.add([added])
    begun = bench.ledger.begin("d1", HOLD_MS)
    assert begun is not None
    assert begun == replace(added, status=DeliveryStatus.DELIVERING, next_try_ms=begun.next_try_ms)
    assert bench.another.get("d1") == begun
    assert bench.ids(Wanted(status=DeliveryStatus.DELIVERING)) == ["d1"]
    assert bench.ids(Wanted(status=DeliveryStatus.WAITING)) == []
    assert bench.ledger.counts() == {("crm", DeliveryStatus.DELIVERING): 1}
    assert bench.another.due(10, HOLD_MS) == []


def test_what_was_begun_and_left_comes_again(bench: LedgerBench) -> None:
    bench.ledger.add([bench.waiting()])
    bench.ledger.begin("d1", HOLD_MS)
    bench.advance(HOLD_MS)
    (due,) = bench.another.due(10, HOLD_MS)
    assert due.status is DeliveryStatus.DELIVERING
    again = bench.another.begin("d1", HOLD_MS)
    assert again is not None
    assert again.payload == {"subject": "Lot 1"}
    bench.another.save(bench.delivered())
    assert bench.ledger.counts() == {("crm", DeliveryStatus.DELIVERED): 1}


@pytest.mark.parametrize("status", [DeliveryStatus.DELIVERED, DeliveryStatus.DEAD, DeliveryStatus.SKIPPED])
def test_what_is_settled_cannot_be_begun(bench: LedgerBench, status: DeliveryStatus) -> None:
    settled = bench.delivered(status=status)
    bench.ledger.save(settled)
    assert bench.another.begin("d1", HOLD_MS) is None
    assert bench.another.begin("unknown", HOLD_MS) is None
    assert bench.ledger.get("d1") == settled


# find, counts, expiry, forget


def test_find_goes_by_creation_and_leaves_payloads_out(bench: LedgerBench) -> None:
    now_ms = bench.now_ms()
    created = {"c": now_ms - 5, "a": now_ms - 3, "b": now_ms - 3, "d": now_ms - 10_000}
    added = [bench.waiting(name, created_ms=at_ms) for name, at_ms in created.items()]
    bench.ledger.add(added)
    found = list(bench.another.find(Wanted()))
    assert [delivery.id for delivery in found] == ["d", "c", "a", "b"]
    assert {delivery.payload for delivery in found} == {None}
    assert {replace(delivery, payload={"subject": "Lot 1"}).id for delivery in found} == {each.id for each in added}


def test_find_narrows_by_status_destination_and_creation(bench: LedgerBench) -> None:
    now_ms = bench.now_ms()
    bench.ledger.add([bench.waiting(f"crm{n}", created_ms=now_ms + n) for n in range(4)])
    bench.ledger.add([bench.waiting(f"archive{n}", created_ms=now_ms + n, destination="archive") for n in range(4)])
    bench.ledger.save(bench.waiting("crm1", created_ms=now_ms + 1, status=DeliveryStatus.DEAD, next_try_ms=None))
    assert bench.ids(Wanted(status=DeliveryStatus.DEAD)) == ["crm1"]
    assert bench.ids(Wanted(status=DeliveryStatus.WAITING, destination="crm")) == ["crm0", "crm2", "crm3"]
    assert bench.ids(Wanted(destination="archive", since_ms=now_ms + 1)) == ["archive1", "archive2", "archive3"]
    assert bench.ids(Wanted(since_ms=now_ms + 1, until_ms=now_ms + 2)) == ["archive1", "crm1"]
    assert bench.ids(Wanted(destination="nowhere")) == []
    assert bench.ids(Wanted(status=DeliveryStatus.SKIPPED)) == []


def test_find_meets_each_of_many_once_though_they_change_meanwhile(bench: LedgerBench) -> None:
    now_ms = bench.now_ms()
    names = [f"d{number:04d}" for number in range(1100)]
    bench.ledger.add([waiting(name, now_ms + number // 300, payload={}) for number, name in enumerate(names)])
    found = bench.ledger.find(Wanted())
    met = [delivery.id for delivery in islice(found, 5)]
    for name in (names[0], names[700], names[-1]):
        known = bench.another.get(name)
        assert known is not None
        bench.another.save(replace(known, status=DeliveryStatus.DEAD, next_try_ms=None))
    met += [delivery.id for delivery in found]
    assert met == names


def test_destinations_and_ids_may_be_called_anything(bench: LedgerBench) -> None:
    odd = ["crm:waiting", "due", "a b", "é[*]?", "expiring"]
    bench.ledger.add([bench.waiting(f"id:{name}:payload", destination=name) for name in odd])
    assert bench.ledger.counts() == {(name, DeliveryStatus.WAITING): 1 for name in odd}
    for name in odd:
        assert bench.ids(Wanted(destination=name)) == [f"id:{name}:payload"]
    assert {delivery.destination for delivery in bench.ledger.due(10, HOLD_MS)} == set(odd)
    assert bench.ledger.begin("id:a b:payload", HOLD_MS)


def test_counts_are_by_destination_and_status(bench: LedgerBench) -> None:
    assert bench.ledger.counts() == {}
    bench.ledger.add([bench.waiting(f"d{n}") for n in range(3)])
    bench.ledger.add([bench.waiting("a1", destination="archive")])
    bench.ledger.save(bench.delivered("d0"))
    bench.ledger.save(bench.waiting("d1", status=DeliveryStatus.SKIPPED))
    assert bench.another.counts() == {
        ("crm", DeliveryStatus.WAITING): 1,
        ("crm", DeliveryStatus.DELIVERED): 1,
        ("crm", DeliveryStatus.SKIPPED): 1,
        ("archive", DeliveryStatus.WAITING): 1,
    }


@pytest.mark.parametrize("follows", [False, True])
def test_records_are_gone_when_their_time_is_over(bench: LedgerBench, follows: bool) -> None:
    bench.ledger.add([bench.waiting("open"), bench.waiting("done"), bench.waiting("dead")])
    bench.ledger.save(bench.waiting("given back", payload=None, next_try_ms=None))
    bench.ledger.save(bench.delivered("done"))
    bench.ledger.save(bench.waiting("dead", status=DeliveryStatus.DEAD, next_try_ms=None))
    bench.advance(RETENTION.delivered_ms - 5000)
    assert set(bench.ids()) == {"dead", "done", "given back", "open"}
    bench.advance(6000)
    assert set(bench.ids()) == {"dead", "given back", "open"}
    assert bench.ledger.get("done") is None
    bench.advance(RETENTION.others_ms - RETENTION.delivered_ms)
    if follows:
        bench.ledger.follow()
    assert bench.ledger.counts() == {("crm", DeliveryStatus.WAITING): 1}
    assert bench.ids() == ["open"], "what is still to be delivered from here never expires"
    assert bench.ledger.get("dead") is None
    assert bench.ledger.begin("given back", HOLD_MS) is None
    assert [delivery.id for delivery in bench.ledger.due(10, HOLD_MS)] == ["open"]


def test_a_dead_letter_is_kept_from_its_last_attempt_on(bench: LedgerBench) -> None:
    now_ms = bench.now_ms()
    died = Attempt(now_ms + 50_000, 1, 500, "crm: answered 500")
    for name, attempts in (("late", (died,)), ("at once", ())):
        bench.ledger.save(bench.waiting(name, status=DeliveryStatus.DEAD, next_try_ms=None, attempts=attempts))
    bench.advance(RETENTION.others_ms + 10_000)
    assert bench.ids() == ["late"]


def test_a_replay_starts_the_time_anew(bench: LedgerBench) -> None:
    dead = {"status": DeliveryStatus.DEAD, "next_try_ms": None}
    bench.ledger.add([bench.waiting("d1", **dead), bench.waiting("d2", **dead)])
    known = bench.ledger.get("d1")
    assert known is not None
    bench.ledger.save(replace(known, scheduled_ms=known.scheduled_ms + 50_000))
    bench.advance(RETENTION.others_ms + 10_000)
    assert bench.ids() == ["d1"]


def test_an_id_whose_record_has_expired_can_be_added_anew(bench: LedgerBench) -> None:
    """Also as one of the same creation and as one of another, though nobody has tidied up in between."""
    first = [bench.waiting("same", status=DeliveryStatus.DEAD), bench.waiting("later", status=DeliveryStatus.DEAD)]
    bench.ledger.add(first)
    bench.advance(RETENTION.others_ms + 1000)
    now_ms = bench.now_ms()
    same = bench.waiting("same", created_ms=first[0].created_ms, scheduled_ms=now_ms, next_try_ms=1)
    bench.ledger.add([same, bench.waiting("later", next_try_ms=1)])
    bench.ledger.follow()
    assert bench.ledger.counts() == {("crm", DeliveryStatus.WAITING): 2}
    assert bench.ids() == ["same", "later"]
    assert len(bench.ledger.due(10, HOLD_MS)) == 2


def test_what_is_forgotten_is_gone_and_can_be_added_anew(bench: LedgerBench) -> None:
    bench.ledger.add([bench.waiting("d1"), bench.waiting("d2"), bench.waiting("d3", destination="archive")])
    if bench.kind == "failover without Redis":
        with pytest.raises(StoreUnavailable):
            bench.ledger.forget(["d1"])
        return
    assert bench.another.forget(["d1", "d3", "unknown", "d1"]) == 2
    bench.ledger.follow()
    assert bench.ids() == ["d2"]
    assert bench.ledger.get("d1") is None
    assert bench.ledger.begin("d1", HOLD_MS) is None
    assert bench.ledger.counts() == {("crm", DeliveryStatus.WAITING): 1}
    assert [delivery.id for delivery in bench.ledger.due(10, HOLD_MS)] == ["d2"]
    assert bench.another.forget(["d1"]) == 0
    again = bench.waiting("d1")
    bench.ledger.add([again])
    assert bench.another.get("d1") == again


def test_following_changes_nothing_that_is_not_over(bench: LedgerBench) -> None:
    bench.ledger.add([bench.waiting("d1"), bench.waiting("d2", tries=4)])
    bench.ledger.save(bench.delivered("d2"))
    before = list(bench.ledger.find(Wanted()))
    for _ in range(3):
        bench.advance(6000)
        bench.ledger.follow()
        bench.another.follow()
    assert [replace(each, next_try_ms=None) for each in bench.ledger.find(Wanted())] == [
        replace(each, next_try_ms=None) for each in before
    ]
    assert [delivery.id for delivery in bench.ledger.due(10, HOLD_MS)] == ["d1"]


# Many at once


def open_at(address: str) -> Ledger:
    kind, path, url = address.split("=")
    local = SqliteLedger(Path(path))
    if kind == "sqlite":
        return local
    on_redis = RedisLedger(connect(url, timeout_s=10), "test:")
    if kind == "failover":
        return FailoverLedger(on_redis, local, lambda: True)
    local.close()
    return on_redis


@pytest.fixture(params=["sqlite", "redis", "failover"])
def address(request: pytest.FixtureRequest, tmp_path: Path, redis_server: RedisServer) -> str:
    return f"{request.param}={tmp_path / 'deliveries.db'}={redis_server.url}"


def take_all(ledger: Ledger, barrier: Callable[[], object]) -> list[str]:
    barrier()
    taken: list[str] = []
    while due := ledger.due(7, HOLD_MS):
        taken += [delivery.id for delivery in due]
    return taken


def take_all_in_process(address: str, barrier: threading.Barrier, taken: multiprocessing.Queue[list[str]]) -> None:
    ledger = open_at(address)
    taken.put(take_all(ledger, barrier.wait))
    ledger.close()


def add_many(address: str) -> list[str]:
    names = [f"d{number}" for number in range(300)]
    ledger = open_at(address)
    ledger.add([waiting(name, 1_800_000_000_000, next_try_ms=1000) for name in names])
    ledger.close()
    return sorted(names)


def test_of_16_threads_one_gets_each(address: str) -> None:
    names = add_many(address)
    with ExitStack() as stack, ThreadPoolExecutor(16) as pool:
        ledgers = [open_at(address) for _ in range(2)]
        for ledger in ledgers:
            stack.callback(ledger.close)
        barrier = threading.Barrier(16)
        taken = [pool.submit(take_all, ledgers[number % 2], barrier.wait) for number in range(16)]
        assert sorted(name for each in taken for name in each.result()) == names


def test_of_4_processes_one_gets_each(address: str) -> None:
    names = add_many(address)
    spawn = multiprocessing.get_context("spawn")
    barrier = spawn.Barrier(4)
    taken: multiprocessing.Queue[list[str]] = spawn.Queue()
    processes = [spawn.Process(target=take_all_in_process, args=(address, barrier, taken)) for _ in range(4)]
    for process in processes:
        process.start()
    assert sorted(name for _ in processes for name in taken.get(timeout=60)) == names
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * 4
    taken.close()


# What is particular to one of them


def use_everything(ledger: Ledger) -> None:
    now_ms = waiting("", 1_800_000_000_000).created_ms
    ledger.add([waiting("d1", now_ms, next_try_ms=1), waiting("d2", now_ms, next_try_ms=1, destination="archive")])
    ledger.due(10, HOLD_MS)
    assert ledger.begin("d1", HOLD_MS)
    ledger.save(waiting("d1", now_ms, status=DeliveryStatus.DELIVERED, delivered_ms=now_ms, next_try_ms=None))
    assert ledger.get("d1")
    assert len(list(ledger.find(Wanted()))) == 2
    assert len(ledger.counts()) == 2
    ledger.save(waiting("over", 1000))
    ledger.follow()
    assert ledger.forget(["d1", "d2"]) == 2


def test_every_key_starts_with_the_prefix_and_every_script_declares_its_keys(redis_server: RedisServer) -> None:
    ledger = RedisLedger(connect(redis_server.url, timeout_s=10), "{mail}:")
    ledger.add([waiting("old", 1_800_000_000_000)])
    redis_server.client.delete("{mail}:delivery:old")  # something to sweep, too
    with redis_server.client.monitor() as monitor:  # type: ignore[no-untyped-call]
        use_everything(ledger)
        redis_server.client.echo("the end")
        declared: list[str] = []
        touched = 0
        for heard in monitor.listen():
            words = str(heard["command"]).split(" ")
            if words[0] == "EVALSHA":
                declared = words[3 : 3 + int(words[2])]
                assert all(key.startswith("{mail}:") for key in declared)
            elif heard["client_type"] == "lua" and words[0] != "TIME":
                touched += 1
                assert set(words[1:] if words[0] == "DEL" else words[1:2]) <= set(declared), heard["command"]
            elif words[0] == "ECHO":
                break
    assert touched > 50
    assert all(key.startswith("{mail}:") for key in redis_server.client.scan_iter())
    ledger.close()


def command(server: RedisServer, *words: str | int) -> Any:
    return server.client.execute_command(*words)  # type: ignore[no-untyped-call]


@pytest.mark.real_redis
def test_it_works_on_a_cluster() -> None:
    server = RedisServer("--cluster-enabled", "yes").start()
    try:
        command(server, "CLUSTER", "ADDSLOTS", *range(16384))
        while command(server, "CLUSTER INFO")["cluster_state"] != "ok":
            time.sleep(0.02)
        ledger = RedisLedger(connect(f"redis+cluster://127.0.0.1:{server.port}", timeout_s=10), "{mail}:")
        use_everything(ledger)
        ledger.close()
    finally:
        server.stop()


def test_records_and_payloads_expire_in_redis_by_themselves(redis_server: RedisServer) -> None:
    ledger = RedisLedger(connect(redis_server.url, timeout_s=10), retention=RETENTION)
    seconds, _ = redis_server.client.time()
    ledger.add([waiting("d1", seconds * 1000, status=DeliveryStatus.DEAD)])
    for key in ("delivery:d1", "delivery_payload:d1"):
        assert RETENTION.others_ms - 10_000 < redis_server.client.pttl(key) <= RETENTION.others_ms
    ledger.close()


def test_a_key_of_another_kind_is_a_misconfiguration(redis_server: RedisServer) -> None:
    ledger = RedisLedger(connect(redis_server.url, timeout_s=10))
    redis_server.client.set("delivery:d1", "not ours")
    with pytest.raises(StoreMisconfigured):
        ledger.save(waiting("d1", 1_800_000_000_000))
    ledger.close()


def test_a_redis_that_is_away_is_unavailable() -> None:
    ledger = RedisLedger(connect("redis://127.0.0.1:1/0"))
    with pytest.raises(StoreUnavailable):
        ledger.add([waiting("d1", 1_800_000_000_000)])
    ledger.close()


def test_the_file_is_for_its_owner_only(tmp_path: Path) -> None:
    ledger = SqliteLedger(tmp_path / "deliveries.db")
    ledger.add([waiting("d1", 1_800_000_000_000)])
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}
    ledger.close()


def test_what_is_still_to_do_costs_an_fsync_and_what_is_done_does_not(tmp_path: Path) -> None:
    ledger = SqliteLedger(tmp_path / "deliveries.db")
    normal, full = 1, 2

    def last_written_with() -> int:
        with ledger.reading() as db:
            return int(db.execute("PRAGMA synchronous").fetchone()[0])

    now_ms = 1_800_000_000_000
    ledger.save(waiting("d1", now_ms, status=DeliveryStatus.DELIVERED, delivered_ms=now_ms))
    assert last_written_with() == normal
    ledger.add([waiting("d2", now_ms)])
    assert last_written_with() == full
    ledger.begin("d2", HOLD_MS)
    assert last_written_with() == normal
    for status in (DeliveryStatus.WAITING, DeliveryStatus.DEAD):
        ledger.begin("d2", HOLD_MS)
        ledger.save(waiting("d2", now_ms, status=status))
        assert last_written_with() == full
    ledger.close()


def test_a_folder_that_is_not_there_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable):
        SqliteLedger(tmp_path / "missing" / "deliveries.db")


def test_a_file_that_is_locked_is_unavailable_and_free_again_later(tmp_path: Path) -> None:
    ledger, other = (SqliteLedger(tmp_path / "deliveries.db", busy_timeout_s=0.05) for _ in range(2))
    with other.transaction(durable=False), pytest.raises(StoreUnavailable):
        ledger.add([waiting("d1", 1_800_000_000_000)])
    ledger.add([waiting("d1", 1_800_000_000_000)])
    assert other.get("d1")
    ledger.close()
    other.close()


def test_an_add_that_fails_half_way_adds_nothing(tmp_path: Path) -> None:
    ledger = SqliteLedger(tmp_path / "deliveries.db")
    unwritable = waiting("d2", 1_800_000_000_000, payload={"not": object()})
    with pytest.raises(TypeError):
        ledger.add([waiting("d1", 1_800_000_000_000), unwritable])
    assert ledger.get("d1") is None
    ledger.close()


def test_the_file_shrinks_in_use_once_payloads_are_over(tmp_path: Path) -> None:
    """A purge takes the payloads along, so that their place is free for others."""
    now = [1_800_000_000_000]
    ledger = SqliteLedger(tmp_path / "deliveries.db", RETENTION, lambda: now[0])
    for _ in range(5):
        dead = {"status": DeliveryStatus.DEAD, "next_try_ms": None}
        ledger.add([waiting("d1", now[0], payload={"body": "x" * 1_000_000}, **dead)])
        now[0] += RETENTION.others_ms + 1
        ledger.follow()
    with ledger.reading() as db:
        assert db.execute("SELECT count(*) FROM payloads").fetchone() == (0,)
    ledger.close()
