"""Redis away, back, emptied: what becomes of delivery records, over a real Redis and a proxy that breaks the line."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from deduplication.errors import StoreMisconfigured, StoreUnavailable
from deduplication.redis_client import Client, connect
from orchestrator.delivery.ledger.base import Retention, Wanted
from orchestrator.delivery.ledger.copies import COMPARED_EVERY_MS, Copies
from orchestrator.delivery.ledger.failover import COMPARED_AT_ONCE, MOST_BATCHES, FailoverLedger
from orchestrator.delivery.ledger.redis import TAKEN, RedisLedger, Rule
from orchestrator.delivery.ledger.sqlite import SqliteLedger
from orchestrator.delivery.record import Attempt, Delivery, DeliveryStatus
from tests.support.ledgers import HOLD_MS, ShiftedClock, age, waiting
from tests.support.proxy import Fault, Proxy
from tests.support.redis_server import RedisServer

WAITING, DELIVERED, DEAD = DeliveryStatus.WAITING, DeliveryStatus.DELIVERED, DeliveryStatus.DEAD
RETENTION = Retention(delivered_ms=1_000_000, others_ms=2_000_000)


@dataclass
class Server:
    """A server with its own file. ``sees_redis`` is what its breaker says."""

    ledger: FailoverLedger
    local: SqliteLedger
    clock: ShiftedClock
    sees_redis: list[bool]

    def follow(self) -> None:
        """A while later, so that every copy is compared again."""
        self.clock.advance(COMPARED_EVERY_MS + 1)
        self.ledger.follow()

    def is_free_of_copies(self) -> bool:
        return list(self.local.find(Wanted())) == []


@dataclass
class World:
    """Records are all of one creation, ``began_ms``, so that they are listed by their ids."""

    redis_server: RedisServer
    proxy: Proxy
    redis: RedisLedger
    start: Callable[..., Server]
    began_ms: int = 0

    def __post_init__(self) -> None:
        self.began_ms = self.now_ms()

    @property
    def client(self) -> Client:
        return self.redis_server.client

    def now_ms(self) -> int:
        seconds, microseconds = self.client.time()
        return int(seconds * 1000 + microseconds // 1000)

    def waiting(self, delivery_id: str = "d1", **changes: Any) -> Delivery:
        return waiting(delivery_id, self.began_ms, **changes)

    def delivered(self, delivery_id: str = "d1", **changes: Any) -> Delivery:
        return self.settled(delivery_id, **{"status": DELIVERED, "delivered_ms": self.began_ms + 5} | changes)

    def dead(self, delivery_id: str = "d1", **changes: Any) -> Delivery:
        return self.settled(delivery_id, status=DEAD, **changes)

    def settled(self, delivery_id: str, **changes: Any) -> Delivery:
        return self.waiting(delivery_id, **{"next_try_ms": None, "tries": 1} | changes)

    def cut(self) -> None:
        self.proxy.set(Fault.REFUSE)

    def mend(self) -> None:
        self.proxy.set(Fault.NONE)

    def dump(self) -> dict[str, Any]:
        """Everything Redis holds, but for how long."""
        read: dict[str, Callable[[str], Any]] = {
            "string": self.client.get,
            "hash": self.client.hgetall,
            "set": self.client.smembers,
            "zset": lambda key: self.client.zrange(key, 0, -1, withscores=True),
        }
        return {key: read[str(self.client.type(key))](key) for key in self.client.scan_iter()}


@pytest.fixture
def world(redis_server: RedisServer, tmp_path: Path) -> Iterator[World]:
    with open_world(redis_server, tmp_path) as world:
        yield world


@contextmanager
def open_world(redis_server: RedisServer, folder: Path) -> Iterator[World]:
    """A Redis behind a proxy, and servers that are started one by one; two of one ``name`` share their file."""
    with ExitStack() as stack:
        proxy = stack.enter_context(Proxy(redis_server.port))
        direct = RedisLedger(connect(redis_server.url, timeout_s=10), retention=RETENTION)
        stack.callback(direct.close)

        def start(name: str = "a", clock: ShiftedClock | None = None) -> Server:
            clock, sees_redis = clock or ShiftedClock(), [True]
            local = SqliteLedger(folder / f"{name}.db", RETENTION, clock, busy_timeout_s=0.5)
            on_redis = RedisLedger(connect(proxy.url, timeout_s=2), retention=RETENTION)
            ledger = FailoverLedger(on_redis, local, lambda: sees_redis[0])
            stack.callback(ledger.close)
            return Server(ledger, local, clock, sees_redis)

        yield World(redis_server, proxy, direct, start)


def ids(deliveries: Any) -> list[str]:
    return [delivery.id for delivery in deliveries]


# Nothing that was acknowledged is lost


def test_an_emptied_redis_gets_back_what_is_open_or_dead(world: World) -> None:
    server = world.start()
    added, dead = world.waiting("d1"), world.dead("d2")
    tried = world.waiting("d3", tries=2, next_try_ms=world.now_ms() + 60_000)
    server.ledger.add([added, world.waiting("d2")])
    server.ledger.save(dead)
    server.ledger.save(tried)
    world.client.flushall()
    server.follow()
    assert [world.redis.get(name) for name in ("d1", "d2", "d3")] == [added, dead, tried]
    assert ids(world.redis.due(10, HOLD_MS)) == ["d1"]


@pytest.mark.real_redis
def test_a_killed_redis_gets_back_what_is_open_or_dead(tmp_path: Path) -> None:
    redis_server = RedisServer("--appendonly", "no").start()
    try:
        with open_world(redis_server, tmp_path) as world:
            server = world.start()
            added, dead = world.waiting("d1"), world.dead("d2")
            server.ledger.add([added])
            server.ledger.save(dead)
            redis_server.kill()
            meanwhile = waiting("d3", added.created_ms + 1)
            server.ledger.add([meanwhile])
            assert server.ledger.get("d1") == added
            redis_server.start()
            server.follow()
            assert [world.redis.get(name) for name in ("d1", "d2", "d3")] == [added, dead, meanwhile]
    finally:
        redis_server.stop()


def test_what_was_written_alone_is_moved_when_redis_is_back(world: World) -> None:
    server, other = world.start("a"), world.start("b")
    world.cut()
    added, dead, done = world.waiting("d1"), world.dead("d2"), world.delivered("d3")
    server.ledger.add([added, world.waiting("d2"), world.waiting("d3")])
    server.ledger.save(dead)
    server.ledger.save(done)
    assert world.dump() == {}
    world.mend()
    server.ledger.follow()
    assert [other.ledger.get(name) for name in ("d1", "d2", "d3")] == [added, dead, done]
    assert ids(server.local.find(Wanted())) == ["d1", "d2"], "of what is delivered no copy is kept"


def test_redis_is_not_asked_while_the_breaker_is_open(world: World) -> None:
    server = world.start()
    server.sees_redis[0] = False
    server.ledger.add([world.waiting("d1")])
    server.follow()
    assert world.dump() == {}
    server.sees_redis[0] = True
    server.follow()
    assert ids(world.redis.find(Wanted())) == ["d1"]


def test_a_full_redis_is_a_redis_that_is_away(world: World) -> None:
    server = world.start()
    server.ledger.add([world.waiting("d1")])
    world.client.config_set("maxmemory", 1)
    try:
        server.ledger.add([world.waiting("d2")])
        server.ledger.save(world.waiting("d1", tries=1, next_try_ms=None))
        assert ids(server.ledger.find(Wanted())) == ["d1", "d2"]
    finally:
        world.client.config_set("maxmemory", 0)
    assert ids(world.redis.find(Wanted())) == ["d1"], "nothing was written to it half-way"
    assert ids(world.redis.due(10, 0)) == ["d1"]
    server.follow()
    assert [(each.id, each.tries) for each in world.redis.find(Wanted())] == [("d1", 1), ("d2", 0)]


def test_what_a_process_left_behind_is_moved_by_the_next(world: World) -> None:
    first = world.start("a")
    world.cut()
    added = world.waiting("d1", payload={"body": "é" * 2_000_000})
    first.ledger.add([added])
    first.ledger.close()
    world.mend()
    world.start("a").ledger.follow()
    assert world.redis.get("d1") == added


def test_what_was_recorded_before_there_was_a_redis_is_moved(world: World, tmp_path: Path) -> None:
    alone = SqliteLedger(tmp_path / "a.db", RETENTION)
    added, done = world.waiting("d1"), world.delivered("d2")
    alone.add([added])
    alone.save(done)
    alone.close()
    world.start("a").ledger.follow()
    assert [world.redis.get(name) for name in ("d1", "d2")] == [added, done]


def test_one_that_redis_knew_already_is_not_lost_with_it_either(world: World) -> None:
    """Its first add may have been refused by a server that Redis had only seemed not to hear."""
    world.redis.add([world.waiting("d1", tries=1), world.waiting("d2")])
    world.redis.save(world.delivered("d2"))
    server = world.start()
    server.ledger.add([world.waiting("d1"), world.waiting("d2")])
    server.follow()
    world.client.flushall()
    server.follow()
    assert [(each.id, each.tries) for each in world.redis.find(Wanted())] == [("d1", 1)]


# Copies come and go


def test_the_copy_goes_with_the_delivery(world: World) -> None:
    server = world.start()
    server.ledger.add([world.waiting("d1"), world.waiting("d2")])
    assert ids(server.local.find(Wanted())) == ["d1", "d2"]
    server.ledger.save(world.delivered("d1"))
    server.ledger.save(world.settled("d2", status=DeliveryStatus.SKIPPED))
    assert server.is_free_of_copies()


def test_the_copy_goes_when_another_server_has_delivered_it(world: World) -> None:
    server, other = world.start("a"), world.start("b")
    server.ledger.add([world.waiting("d1")])
    assert other.ledger.begin("d1", HOLD_MS)
    other.ledger.save(world.delivered("d1"))
    server.follow()
    assert server.is_free_of_copies()
    world.client.flushall()
    server.follow()
    assert world.dump() == {}


def test_the_copy_of_a_dead_one_stays_as_long_as_its_record(world: World) -> None:
    server = world.start()
    server.ledger.save(world.dead("d1"))
    server.follow()
    server.follow()
    assert ids(server.local.find(Wanted())) == ["d1"]
    age(world.client, RETENTION.others_ms + 1000)
    server.clock.advance(RETENTION.others_ms + 1000)
    server.follow()
    assert server.is_free_of_copies()
    assert ids(world.redis.find(Wanted())) == []


def test_a_copy_takes_over_what_another_server_has_saved(world: World) -> None:
    server, other = world.start("a"), world.start("b")
    server.ledger.add([world.waiting("d1")])
    tried = world.waiting("d1", tries=2, next_try_ms=world.now_ms() + 60_000, reason="answered 503")
    other.ledger.save(tried)
    server.follow()
    assert server.local.get("d1") == tried
    world.client.flushall()
    server.follow()
    assert world.redis.get("d1") == tried


def test_each_copy_is_looked_at_every_few_seconds_only(world: World) -> None:
    server = world.start()
    server.ledger.add([world.waiting("d1")])
    world.client.flushall()
    server.ledger.follow()
    assert world.dump() == {}, "it was just seen there"
    server.clock.advance(COMPARED_EVERY_MS + 1)
    server.ledger.follow()
    assert ids(world.redis.find(Wanted())) == ["d1"]


def test_following_twice_changes_nothing(world: World) -> None:
    server, other = world.start("a"), world.start("b")
    server.ledger.add([world.waiting(f"d{number}") for number in range(5)])
    other.ledger.save(world.waiting("d1", tries=1))
    other.ledger.save(world.delivered("d2"))
    world.cut()
    server.ledger.save(world.dead("d3"))
    server.ledger.save(world.delivered("d4"))
    world.mend()
    server.follow()
    other.follow()
    before, copies = world.dump(), list(server.local.find(Wanted()))
    for _ in range(3):
        server.follow()
        other.follow()
    assert world.dump() == before
    assert list(server.local.find(Wanted())) == copies


def test_two_processes_may_follow_at_once(world: World) -> None:
    clock = ShiftedClock()
    processes = [world.start("shared", clock) for _ in range(2)]
    world.cut()
    names = [f"d{number:03d}" for number in range(150)]
    now_ms = world.now_ms()
    processes[0].ledger.add([waiting(name, now_ms) for name in names])
    for name in names[::3]:
        processes[1].ledger.save(waiting(name, now_ms, status=DELIVERED, delivered_ms=now_ms, next_try_ms=None))
    world.mend()
    barrier = threading.Barrier(4)

    def follow(number: int) -> None:
        barrier.wait()
        for _ in range(10):
            processes[number % 2].ledger.follow()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(follow, range(4)))
    assert ids(world.redis.find(Wanted())) == names
    assert world.redis.counts() == {("crm", WAITING): 100, ("crm", DELIVERED): 50}
    assert len(ids(processes[0].local.find(Wanted()))) == 100


def test_following_takes_a_bounded_number_at_a_time(world: World) -> None:
    server = world.start()
    world.cut()
    now_ms, most = world.now_ms(), COMPARED_AT_ONCE * MOST_BATCHES
    server.ledger.add([waiting(f"d{number}", now_ms, payload={}) for number in range(most + 1)])
    world.mend()
    server.ledger.follow()
    assert world.redis.counts() == {("crm", WAITING): most}
    server.ledger.follow()
    assert world.redis.counts() == {("crm", WAITING): most + 1}


def test_what_is_forgotten_is_not_brought_back_by_another_server(world: World) -> None:
    server, other = world.start("a"), world.start("b")
    server.ledger.add([world.waiting("d1"), world.waiting("d2")])
    server.ledger.save(world.dead("d2"))
    assert other.ledger.forget(["d1", "d2"]) == 2
    anew = world.waiting("d2", created_ms=world.now_ms() + 1)
    other.ledger.add([anew])
    assert server.ledger.get("d1") is None
    server.follow()
    assert world.redis.get("d1") is None
    assert server.local.get("d1") is None
    assert world.redis.get("d2") == anew, "the older record is not put in its place"
    assert server.local.get("d2") == anew


def test_what_was_written_alone_is_forgotten_too(world: World) -> None:
    server = world.start()
    world.cut()
    server.ledger.add([world.waiting("d1")])
    with pytest.raises(StoreUnavailable):
        server.ledger.forget(["d1"])
    world.mend()
    assert server.ledger.forget(["d1", "d2"]) == 1
    server.follow()
    assert ids(server.ledger.find(Wanted())) == []


# Reading


def test_without_redis_the_file_answers(world: World) -> None:
    server = world.start()
    added, dead = world.waiting("d1"), world.dead("d2")
    server.ledger.add([added])
    server.ledger.save(dead)
    world.cut()
    assert server.ledger.get("d2") == dead
    assert ids(server.ledger.find(Wanted(status=DEAD))) == ["d2"]
    assert server.ledger.counts() == {("crm", WAITING): 1, ("crm", DEAD): 1}
    begun = server.ledger.begin("d1", HOLD_MS)
    assert begun is not None
    assert begun.payload == added.payload
    assert server.ledger.due(10, HOLD_MS) == []


def test_until_it_is_moved_what_was_written_alone_is_read_beside_what_redis_has(world: World) -> None:
    server, other = world.start("a"), world.start("b")
    now_ms = world.now_ms()
    other.ledger.add([waiting(name, now_ms + number) for number, name in enumerate(("r1", "r2", "r3"))])
    world.cut()
    alone = waiting("l1", now_ms + 1, destination="archive")
    server.ledger.add([alone, waiting("l0", now_ms - 1)])
    world.mend()
    assert ids(server.ledger.find(Wanted())) == ["l0", "r1", "l1", "r2", "r3"]
    assert ids(server.ledger.find(Wanted(destination="crm", since_ms=now_ms))) == ["r1", "r2", "r3"]
    assert server.ledger.counts() == {("crm", WAITING): 4, ("archive", WAITING): 1}
    assert server.ledger.get("l1") == alone
    assert server.ledger.get("r1") is not None


def test_a_record_that_both_have_is_met_once_in_its_further_state(world: World) -> None:
    server, other = world.start("a"), world.start("b")
    server.ledger.add([world.waiting("d1"), world.waiting("d2")])
    world.cut()
    server.ledger.save(world.delivered("d1"))
    server.ledger.save(world.waiting("d2", tries=1))
    world.mend()
    world.redis.save(world.dead("d2", tries=3))
    assert {each.id: each.status for each in server.ledger.find(Wanted())} == {"d1": DELIVERED, "d2": DEAD}
    assert len(ids(server.ledger.find(Wanted()))) == 2
    assert ids(server.ledger.find(Wanted(status=WAITING))) == []
    assert server.ledger.counts() == {("crm", DELIVERED): 1, ("crm", DEAD): 1}
    found = [server.ledger.get(name) for name in ("d1", "d2")]
    assert [each.status for each in found if each] == [DELIVERED, DEAD]
    assert ids(other.ledger.find(Wanted(status=WAITING))) == ["d1"], "not moved yet"


def test_what_redis_has_lost_is_still_there_for_who_asks_by_id(world: World) -> None:
    server = world.start()
    added = world.waiting("d1")
    server.ledger.add([added])
    world.client.flushall()
    assert server.ledger.get("d1") == added
    assert server.ledger.begin("d1", HOLD_MS) is not None
    assert ids(world.redis.find(Wanted(status=DeliveryStatus.DELIVERING))) == ["d1"]


def test_a_listing_goes_on_from_the_file_when_redis_goes_away(world: World) -> None:
    server = world.start()
    names = [f"d{number:03d}" for number in range(450)]
    now_ms = world.now_ms()
    server.ledger.add([waiting(name, now_ms + number // 100, payload={}) for number, name in enumerate(names)])
    found = server.ledger.find(Wanted())
    met = ids(islice(found, 10))
    world.cut()
    assert met + ids(found) == names


# What is due


def test_what_was_written_alone_is_due_once_though_it_is_not_moved_yet(world: World) -> None:
    server, other = world.start("a"), world.start("b")
    now_ms = world.now_ms()
    other.ledger.add([waiting("r1", now_ms, next_try_ms=now_ms - 1000), waiting("r2", now_ms, next_try_ms=now_ms - 10)])
    world.cut()
    server.ledger.add([waiting("l1", now_ms, next_try_ms=now_ms - 500), waiting("l2", now_ms, next_try_ms=now_ms - 5)])
    world.mend()
    assert ids(server.ledger.due(3, HOLD_MS)) == ["r1", "l1", "r2"]
    assert ids(other.ledger.due(3, HOLD_MS)) == ["l2"]
    server.follow()
    assert server.ledger.due(10, HOLD_MS) == []
    assert other.ledger.due(10, HOLD_MS) == []


def test_what_was_delivered_alone_is_not_due_though_redis_does_not_know_yet(world: World) -> None:
    server = world.start()
    server.ledger.add([world.waiting("d1"), world.waiting("d2")])
    world.cut()
    server.ledger.save(world.delivered("d1"))
    world.mend()
    assert server.ledger.begin("d1", HOLD_MS) is None
    server.ledger.follow()
    assert ids(server.ledger.due(10, HOLD_MS)) == ["d2"]


def test_what_was_written_alone_can_be_begun_at_once(world: World) -> None:
    server, other = world.start("a"), world.start("b")
    world.cut()
    added = world.waiting("d1")
    server.ledger.add([added])
    world.mend()
    begun = server.ledger.begin("d1", HOLD_MS)
    assert begun is not None
    assert begun.payload == added.payload
    assert other.ledger.get("d1") == begun
    assert other.ledger.due(10, HOLD_MS) == []


def test_what_redis_handed_out_is_not_handed_out_again_by_the_file(world: World) -> None:
    server = world.start()
    server.ledger.add([world.waiting("d1"), world.waiting("d2")])
    assert server.ledger.begin("d2", HOLD_MS)
    assert ids(server.ledger.due(10, HOLD_MS)) == ["d1"]
    world.cut()
    assert server.ledger.due(10, HOLD_MS) == []
    server.clock.advance(HOLD_MS + 1000)
    assert set(ids(server.ledger.due(10, HOLD_MS))) == {"d1", "d2"}


def test_what_another_server_is_at_is_not_due_here_when_redis_goes_away(world: World) -> None:
    server, other = world.start("a"), world.start("b")
    server.ledger.add([world.waiting("begun"), world.waiting("saved"), world.waiting("ours")])
    other.ledger.begin("begun", HOLD_MS)
    other.ledger.save(world.waiting("saved", tries=1))
    server.follow()
    world.cut()
    assert ids(server.ledger.due(10, HOLD_MS)) == ["ours"]
    assert ids(other.ledger.due(10, HOLD_MS)) == ["saved"]


# Replies that were lost, and states that crossed


def test_a_lost_reply_to_an_add_does_no_harm(world: World) -> None:
    server = world.start()
    server.ledger.get("warm")
    added = world.waiting("d1")
    world.proxy.set(Fault.CUT_AFTER_SEND, once=True)
    server.ledger.add([added])
    assert world.redis.get("d1") == added, "it got there"
    assert ids(server.ledger.find(Wanted())) == ["d1"]
    assert ids(server.ledger.due(10, HOLD_MS)) == ["d1"]
    server.follow()
    world.client.flushall()
    server.follow()
    assert ids(world.redis.find(Wanted())) == ["d1"]


@pytest.mark.parametrize("later", [DELIVERED, WAITING, DEAD])
def test_a_save_whose_reply_was_lost_does_not_undo_what_came_after(world: World, later: DeliveryStatus) -> None:
    server, other = world.start("a"), world.start("b")
    server.ledger.add([world.waiting("d1")])
    world.proxy.set(Fault.CUT_AFTER_SEND, once=True)
    server.ledger.save(world.waiting("d1", tries=1))
    assert other.ledger.begin("d1", HOLD_MS)
    delivered_ms = world.now_ms() if later is DELIVERED else None
    state = world.waiting("d1", status=later, tries=2, delivered_ms=delivered_ms, next_try_ms=None)
    other.ledger.save(state)
    server.follow()
    assert world.redis.get("d1") == state
    assert server.local.get("d1") == (None if later is DELIVERED else state)


def test_a_save_that_was_refused_since_redis_knew_better_leaves_no_copy(world: World) -> None:
    server = world.start()
    server.ledger.add([world.waiting("d1")])
    done = world.delivered("d1")
    world.redis.save(done)
    server.ledger.save(world.waiting("d1", tries=1, scheduled_ms=done.scheduled_ms))
    assert world.redis.get("d1") == done
    assert server.is_free_of_copies()


T = 100_000  # how long ago all of it began
ADDED = {"created_ms": -T, "scheduled_ms": -T}
TRIED = ADDED | {"tries": 1, "attempts": (Attempt(5, 1, 503),)}
GIVEN_BACK = TRIED | {"payload": None, "next_try_ms": None, "tries": 4}
DONE = ADDED | {"status": DELIVERED, "delivered_ms": -T + 1000, "next_try_ms": None, "tries": 1, "payload": None}
REPLAYED = ADDED | {"scheduled_ms": -T + 2000}
ADDED_LATER = {"created_ms": -T + 5000, "scheduled_ms": -T + 5000}
DIED = ADDED | {"status": DEAD, "tries": 8, "next_try_ms": None}


both_states = pytest.mark.parametrize(
    ("here", "there", "here_holds"),
    [
        (TRIED, ADDED, True),
        (ADDED, TRIED, False),
        (TRIED | {"attempts": (Attempt(9, 1, 503),)}, TRIED, True),
        (TRIED, TRIED | {"attempts": (Attempt(9, 1, 503),)}, False),
        (DIED, TRIED, True),
        (TRIED, DIED, False),
        (DIED, DIED | {"status": WAITING}, True),
        (DONE, TRIED, True),
        (DONE, DIED, True),
        (TRIED, DONE, False),
        (DIED, DONE, False),
        (REPLAYED, DONE, True),
        (DONE, REPLAYED, False),
        (REPLAYED, DIED, True),
        (DIED, REPLAYED, False),
        (DONE | {"delivered_ms": -T + 3000}, REPLAYED, True),
        (REPLAYED, DONE | {"delivered_ms": -T + 3000}, False),
        (ADDED_LATER, DONE, False),
        (DONE, ADDED_LATER, True),
        (ADDED_LATER, GIVEN_BACK, True),
        (GIVEN_BACK, ADDED_LATER, False),
        (GIVEN_BACK, DONE, False),
        (DONE, GIVEN_BACK, True),
    ],
)


def state(world: World, changes: dict[str, Any]) -> Delivery:
    began_ms = world.began_ms
    moved = {name: began_ms + value if name.endswith("_ms") and value else value for name, value in changes.items()}
    return world.waiting(**moved)


@both_states
def test_of_two_states_the_further_one_holds(
    world: World, here: dict[str, Any], there: dict[str, Any], here_holds: bool
) -> None:
    ours, theirs = state(world, here), state(world, there)
    holds = ours if here_holds else theirs
    server = world.start()
    world.cut()
    server.ledger.save(ours)
    world.mend()
    world.redis.save(theirs)
    assert server.ledger.get("d1") == holds
    server.follow()
    assert world.redis.get("d1") == holds
    assert len(ids(world.redis.find(Wanted()))) == 1
    server.follow()
    is_kept = holds.status in (WAITING, DEAD)
    assert server.local.get("d1") == (holds if is_kept else None)


@both_states
def test_redis_itself_takes_only_the_further_one(
    world: World, here: dict[str, Any], there: dict[str, Any], here_holds: bool
) -> None:
    """It may have changed since a server looked at it."""
    ours, theirs = state(world, here), state(world, there)
    world.redis.save(theirs)
    assert world.redis.put([ours], Rule.MERGE) == [TAKEN if here_holds else theirs.status]
    assert world.redis.get("d1") == (ours if here_holds else theirs)


def test_redis_itself_takes_nothing_that_was_forgotten_or_is_over(world: World) -> None:
    world.redis.forget(["d1"])
    assert world.redis.put([world.waiting("d1")], Rule.MERGE) == ["forgotten"]
    old_ms = world.began_ms - RETENTION.others_ms
    over = world.waiting("d2", created_ms=old_ms, scheduled_ms=old_ms, status=DeliveryStatus.DEAD, next_try_ms=None)
    assert world.redis.put([over], Rule.MERGE) == ["expired"]
    assert ids(world.redis.find(Wanted())) == []
    later_ms = world.now_ms() + 1
    assert world.redis.put([world.waiting("d1", created_ms=later_ms)], Rule.MERGE) == [TAKEN]


def test_what_was_written_alone_meanwhile_is_not_undone_by_what_redis_took(world: World) -> None:
    """Two processes share a file: one writes to Redis and then here, the other in between, when Redis was away."""
    server = world.start()
    copies = Copies(server.local)
    replay = world.waiting(scheduled_ms=world.began_ms + 10)
    server.local.save(replay)
    copies.keep(world.waiting(tries=1))
    copies.settle(world.delivered())
    copies.note([world.waiting(next_try_ms=5)])
    assert server.local.get("d1") == replay
    copies.settle(world.delivered(delivered_ms=world.began_ms + 20))
    assert server.local.get("d1") is None


def test_a_copy_that_changed_while_it_was_compared_is_left_alone(world: World) -> None:
    server = world.start()
    copies = Copies(server.local)
    copies.keep(world.waiting())
    seen = copies.get("d1")
    assert seen is not None
    tried = world.waiting(tries=1, next_try_ms=None)
    server.local.save(tried)
    copies.drop(seen)
    copies.agree(seen, world.waiting(next_try_ms=5))
    copies.take_over(seen, world.dead())
    assert server.local.get("d1") == tried
    assert [copy.delivery.id for copy in copies.unsent()] == ["d1"]


# Files that cannot be written


def test_a_file_that_cannot_be_written_does_not_stop_what_redis_takes(
    world: World, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = world.start("a")
    blocker = SqliteLedger(tmp_path / "a.db")
    added = world.waiting("d1")
    with blocker.transaction(durable=False), caplog.at_level(logging.ERROR):
        server.ledger.add([added, world.waiting("d2")])
        server.ledger.save(world.delivered("d2"))
        server.ledger.follow()
        assert ids(server.ledger.due(10, HOLD_MS)) == ["d1"]
        assert server.ledger.begin("d1", HOLD_MS) is not None
        assert ids(server.ledger.find(Wanted(status=DELIVERED))) == ["d2"]
    assert "local copy" in caplog.text
    assert world.redis.counts() == {("crm", DeliveryStatus.DELIVERING): 1, ("crm", DELIVERED): 1}
    blocker.close()


def test_what_neither_takes_is_refused(world: World, tmp_path: Path) -> None:
    server = world.start("a")
    blocker = SqliteLedger(tmp_path / "a.db")
    world.cut()
    with blocker.transaction(durable=False):
        with pytest.raises(StoreUnavailable):
            server.ledger.add([world.waiting("d1")])
        with pytest.raises(StoreUnavailable):
            server.ledger.save(world.waiting("d1"))
    world.mend()
    server.follow()
    assert ids(server.ledger.find(Wanted())) == []
    blocker.close()


def test_a_broken_file_is_as_good_as_none(world: World, caplog: pytest.LogCaptureFixture) -> None:
    server = world.start("a")
    server.local.close()
    server.ledger.add([world.waiting("d1")])
    assert server.ledger.get("d1") is not None
    assert server.ledger.counts() == {("crm", WAITING): 1}
    world.cut()
    with pytest.raises(StoreUnavailable):
        server.ledger.add([world.waiting("d2")])


def test_a_misconfigured_redis_is_loud_and_what_became_of_a_delivery_is_kept(world: World) -> None:
    server = world.start()
    world.client.set("delivery:d1", "not ours")
    with pytest.raises(StoreMisconfigured):
        server.ledger.add([world.waiting("d1")])
    done = world.delivered("d1")
    with pytest.raises(StoreMisconfigured):
        server.ledger.save(done)
    world.client.delete("delivery:d1")
    server.follow()
    assert world.redis.get("d1") == done


class Choosy(RedisLedger):
    """A Redis that cannot take one record in time, say because it is too big."""

    refused = "big"

    def put(self, deliveries: Sequence[Delivery], rule: Rule) -> list[str]:
        if any(each.id == self.refused for each in deliveries):
            raise StoreUnavailable("redis: timed out")
        return super().put(deliveries, rule)


def test_one_that_redis_cannot_take_is_delivered_from_here_and_keeps_no_other_waiting(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    clock = ShiftedClock()
    local = SqliteLedger(tmp_path / "a.db", RETENTION, clock)
    sees_redis = [False]
    redis = Choosy(connect(redis_server.url, timeout_s=2), retention=RETENTION)
    ledger = FailoverLedger(redis, local, lambda: sees_redis[0])
    now_ms = clock()
    ledger.add([waiting(name, now_ms) for name in ("big", "d1", "d2")])
    sees_redis[0] = True
    clock.advance(COMPARED_EVERY_MS + 1)
    ledger.follow()
    assert set(ids(redis.find(Wanted()))) == {"d1", "d2"}
    assert set(ids(ledger.due(10, 1000))) == {"big", "d1", "d2"}
    begun = ledger.begin("big", 1000)
    assert begun is not None
    assert begun.payload is not None
    ledger.close()
