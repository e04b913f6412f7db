"""What runs in the background: expired locks, the shared schedule's clock, what is due."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from deduplication.errors import StoreUnavailable
from deduplication.locks import PublicationLocks
from deduplication.stores.sqlite import SqliteStore
from orchestrator.delivery.ledger.sqlite import SqliteLedger
from orchestrator.delivery.record import Delivery
from orchestrator.delivery.sweeper import Chore, Hands, InProcess, Sweeper
from orchestrator.housekeeping import LOCKS_EVERY_S, drop_expired_locks
from orchestrator.store_time import StoreTime
from tests.orchestrator.test_schedule import FRESH
from tests.support.stores import FakeClock

Eventually = Callable[[Callable[[], bool]], None]


def test_expired_locks_are_dropped_every_five_minutes_by_one_process_of_the_machine(tmp_path: Path) -> None:
    clock = FakeClock()
    first, second = (SqliteStore(tmp_path / "names.db", now_ms=clock) for _ in range(2))
    tokens = iter(map(str, range(100)))
    locks = [PublicationLocks(store, f"server {store}", lambda: next(tokens)) for store in (first, second)]
    drop_expired_locks(first, locks[0])
    assert locks[0].acquire_lock("post-1", "telegram")
    clock.advance(LOCKS_EVERY_S * 1000 - 1)
    assert drop_expired_locks(second, locks[1]) == 0, "five minutes are not over"
    clock.advance(2)
    assert drop_expired_locks(second, locks[1]) == 1
    assert drop_expired_locks(first, locks[0]) == 0, "the other process has just done it"
    rows = sqlite3.connect(tmp_path / "names.db").execute("SELECT count(*) FROM names WHERE kind = 'lock'").fetchone()
    assert rows == (0,)
    first.close()
    second.close()


def test_servers_with_different_clocks_share_the_time_of_the_store() -> None:
    store_ms, is_away = 1_000_000, False

    def store_now_ms() -> int:
        if is_away:
            raise StoreUnavailable("away")
        return store_ms

    ahead = StoreTime(store_now_ms, lambda: 1_003_600)
    behind = StoreTime(store_now_ms, lambda: 990_000)
    assert ahead.now_ms() == behind.now_ms() == 1_000_000
    store_ms = 1_000_500
    ahead.sync()
    is_away = True
    ahead.sync()
    assert ahead.now_ms() == 1_000_500, "while the store is away, its clock is taken to go on as before"


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[SqliteLedger]:
    ledger = SqliteLedger(tmp_path / "deliveries.db")
    yield ledger
    ledger.close()


def due(number: int, ledger: SqliteLedger, destination: str = "crm") -> Delivery:
    delivery = replace(FRESH, id=f"d{number}", destination=destination, next_try_ms=number)
    now_ms = ledger.now_ms()
    return replace(delivery, created_ms=now_ms, scheduled_ms=now_ms)


def test_what_is_due_is_handed_over_once_and_no_more_than_there_is_room_for(ledger: SqliteLedger) -> None:
    ledger.add([due(number, ledger) for number in range(1, 6)])
    handed: list[str] = []
    sweeper = Sweeper(ledger, Hands(lambda delivery: handed.append(delivery.id), room=lambda: 2 - len(handed)))
    sweeper.sweep()
    assert handed == ["d1", "d2"], "the oldest first"
    sweeper.sweep()
    assert handed == ["d1", "d2"]
    Sweeper(ledger).sweep()
    assert handed == ["d1", "d2"], "without hands it leaves them to others"
    Sweeper(ledger, Hands(lambda delivery: handed.append(delivery.id))).sweep()
    assert handed == ["d1", "d2", "d3", "d4", "d5"]


def test_a_destination_that_is_not_to_be_troubled_waits_and_one_that_may_be_well_again_gets_one(
    ledger: SqliteLedger,
) -> None:
    ledger.add([due(number, ledger, ["open", "half-open", "closed"][number % 3]) for number in range(1, 10)])
    handed: list[str] = []
    most = {"open": 0, "half-open": 1, "closed": 100}
    hands = Hands(lambda delivery: handed.append(delivery.destination), most_for=most.__getitem__)
    Sweeper(ledger, hands).sweep()
    assert sorted(handed) == ["closed", "closed", "closed", "half-open"]
    assert ledger.due(100, 1) == [], "the others come again after a pause"


def test_many_that_may_not_go_do_not_keep_one_that_may_waiting(ledger: SqliteLedger) -> None:
    ledger.add([*(due(number, ledger, "open") for number in range(1, 301)), due(999, ledger, "closed")])
    handed: list[str] = []
    most = {"open": 0, "closed": 100}
    Sweeper(ledger, Hands(lambda each: handed.append(each.id), most_for=most.__getitem__)).sweep()
    assert handed == ["d999"]


def test_what_was_taken_comes_again_later_than_what_a_dead_process_had_only_fetched(ledger: SqliteLedger) -> None:
    ledger.add([due(1, ledger)])
    Sweeper(ledger, Hands(lambda _: None, hold_ms=20_000, taken_ms=600_000)).sweep()
    held = ledger.get("d1")
    assert held is not None
    assert held.next_try_ms is not None
    assert held.next_try_ms - ledger.now_ms() > 500_000


def test_a_fault_in_one_round_does_not_end_the_sweeping(ledger: SqliteLedger, eventually: Eventually) -> None:
    handed: list[str] = []
    chores: list[str] = []

    def hand_over(delivery: Delivery) -> None:
        handed.append(delivery.id)
        raise RuntimeError("a bug")

    sweeper = Sweeper(ledger, Hands(hand_over, hold_ms=1), [Chore(0.1, lambda: chores.append("done"))])
    ledger.add([due(1, ledger)])
    sweeper.start()
    eventually(lambda: len(handed) >= 2)
    ledger.forget(["d1"])
    eventually(lambda: bool(chores))
    sweeper.close()


def test_in_process_a_delivery_is_at_work_once_and_a_fault_does_not_stop_the_next(eventually: Eventually) -> None:
    may_end, began = threading.Event(), []

    def deliver(delivery_id: str) -> None:
        began.append(delivery_id)
        assert may_end.wait(10)
        raise StoreUnavailable("away")

    in_process = InProcess(deliver, ["crm"])
    room = in_process.room()
    for _ in range(3):
        in_process.take(FRESH)
    eventually(lambda: began == [FRESH.id])
    assert in_process.room() == room - 1
    may_end.set()
    eventually(lambda: in_process.room() == room)
    in_process.take(FRESH)
    in_process.take(replace(FRESH, id="to nowhere", destination="no longer there"))
    eventually(lambda: began == [FRESH.id, "to nowhere", FRESH.id] or began == [FRESH.id, FRESH.id, "to nowhere"])
    in_process.close()
