"""Every fault, as something that strikes in the middle of traffic. The table at the end says what must come of it."""

import base64
import hashlib
import os
import random
import resource
import shutil
import signal
import sqlite3
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import redis
import requests
from msgspec import structs

from deduplication.journal.coordinator import Claimed
from deduplication.journal.entry import DeliveryStatus
from orchestrator.delivery.webhook import pack
from tests.bench.machines import new_claim, opened
from tests.faults.world import AOF, REFUSED, Scenario, Setup, World, ask_journal
from tests.support.proxy import Fault
from tests.support.redis_server import RedisServer, free_port, redis_server_version
from tests.support.server import ADMIN, INGRESS_TOKEN, Server, email
from tests.support.sink import Reply
from tests.support.waiting import wait_for

LEASE_S = 4
DAY_S = 86_400
AWAY_S = 3_600
NOTICEABLE_S = 0.05
DOWN, MISPLACED = Reply(503), Reply(404)
HOLDS, OUTCOMES = b"\xa4HOLD", b"\xa4SADD"  # in the requests of the protocol
Client = redis.Redis


# Faults that last


@contextmanager
def without_redis(world: World, *numbers: int) -> Iterator[None]:
    """All machines, or these, cannot reach Redis and have noticed it."""
    chosen = numbers or range(len(world.servers))
    with world.outage():
        for number in chosen:
            world.proxies[number].set(Fault.REFUSE)
        wait_for(lambda: all(state_of_redis(world.servers[number]) == "gone" for number in chosen), "Redis is gone")
        yield
        world.set_all(Fault.NONE)


def state_of_redis(server: Server) -> str | None:
    """As one process sees it."""
    try:
        state: str | None = server.health()["checks"]["redis"].get("state")
    except (requests.RequestException, ValueError, KeyError):
        return None
    return state


@contextmanager
def redis_killed(world: World, *options: str) -> Iterator[None]:
    """``options`` are for its next start."""
    with world.outage():
        world.redis.kill()
        yield
        world.redis.start(*options)


@contextmanager
def stopped(world: World, pids: Sequence[int]) -> Iterator[None]:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


# Redis goes away


def kill_redis(world: World, seconds: float = 1.0, times: int = 1) -> None:
    for _ in range(times):
        with redis_killed(world):
            time.sleep(seconds)


def kill_redis_after_a_did_its_work(world: World) -> None:
    """The same emails come to B, and to C, which began with an empty disk and has read the stream."""
    known = world.send(world.names("known", 60), to=0)
    replace_disk(world, 2)
    world.wait_until_well()
    count = "SELECT count(*) FROM entries"
    wait_for(lambda: ask_journal(world.servers[2], count) >= len(known), "C has read the stream")
    with redis_killed(world):
        wait_for(lambda: all(state_of_redis(each) == "gone" for each in world.servers[1:]), "Redis is gone")
        for number in (1, 2):
            world.send(known, to=number, again=True)


def stop_redis(world: World, seconds: float, alone_s: float = 0) -> None:
    """``alone_s``: a machine that has been the only member for a minute goes on at the first missing answer."""
    time.sleep(alone_s if world.size.is_long else min(1, alone_s))
    with world.outage(), stopped(world, [world.redis.pid]):
        time.sleep(seconds)


def stop_redis_while_deliveries_are_under_way(world: World) -> None:
    """They are noted, and published later. Another machine, asked for them then, must not send them."""
    held = world.hold_deliveries()
    with world.outage(), stopped(world, [world.redis.pid]):
        time.sleep(2.5)
        world.release(held)
    world.repeat_elsewhere(held)


def lose_requests(world: World, fault: Fault) -> None:
    """Holds and outcomes, one after the other, each exactly once."""
    for words in (HOLDS, OUTCOMES):
        for number in range(8 if world.size.is_long else 3):
            with one_lost(world, number % len(world.proxies), fault, words):
                pass


@contextmanager
def one_lost(world: World, number: int, fault: Fault, words: bytes = b"", skips: int = 0) -> Iterator[None]:
    """One request of a machine with these words, or its reply, after ``skips`` others."""
    proxy = world.proxies[number]
    before = proxy.cuts
    proxy.set(fault, once=True, skips=skips, meant=lambda request: words in request)
    yield
    wait_for(lambda: proxy.cuts > before, "a request or a reply is lost")


def lose_the_reply_of_a_hold(world: World) -> None:
    """Its email must not be blocked for the whole lease (25 s)."""
    (subject,) = world.names("lost", 1)
    with one_lost(world, 0, Fault.CUT_AFTER_SEND, HOLDS):
        world.load.put(subject, 0)
    took_s = wait_for(lambda: world.load.has_accepted([subject]), "the email is accepted")
    assert took_s < 8, f"a lost reply blocked its email for {took_s:.1f} s"


def execute_holds_late(world: World) -> None:
    """Redis is stopped for longer than any request waits, and then executes the requests in its sockets."""
    subjects = world.names("late", 4)
    with world.outage():
        with stopped(world, [world.redis.pid]):
            world.put(subjects)
            time.sleep(3.5)
        took_s = wait_for(lambda: world.load.has_accepted(subjects), "they are accepted")
    assert took_s < 10, f"a late hold blocked its email for {took_s:.1f} s"


def lose_every_outcome(world: World) -> None:
    held = world.hold_deliveries()
    before = sum(proxy.cuts for proxy in world.proxies)
    world.set_all(Fault.CUT_BEFORE_SEND, meant=lambda request: OUTCOMES in request)
    world.release(held)
    wait_for(lambda: sum(proxy.cuts for proxy in world.proxies) > before, "outcomes are lost")
    world.set_all(Fault.NONE)
    world.repeat_elsewhere(held)


def cut_the_network(world: World) -> None:
    """Until every machine decides alone, and a while longer."""
    with without_redis(world):
        time.sleep(world.scale(1.5))


def cut_off_one_machine(world: World) -> None:
    """It stores nothing meanwhile: an email that the others store too must be sent once."""
    refused = world.names(REFUSED, 20)
    with without_redis(world, 1):
        world.put(refused, to=1)
        world.send(refused, to=0)
    world.sink.release.set()
    world.replay_waiting()


def cut_off_one_process(world: World) -> None:
    """Its neighbour on the same machine, and the other machine, reach Redis all the time."""
    with world.outage():
        world.spares[0].set(Fault.REFUSE)
        time.sleep(world.scale(4.0))
        wait_for(lambda: bool(world.found["alone"]), "it gets an email")  # the kernel chooses the process
        world.spares[0].set(Fault.NONE)


def lose_redis_while_deliveries_are_under_way(world: World) -> None:
    """Repeats that arrive while their machine decides alone must find them in progress."""
    held = world.hold_deliveries()
    with without_redis(world):
        for subject in held:
            world.load.put(subject)
        time.sleep(1.0)
        world.release(held)


def lose_replies_while_a_machine_boots(world: World) -> None:
    """The first, the third and the fifth answer that it gets from Redis."""
    for skipped in (0, 2, 4)[: 3 if world.size.is_long else 1]:
        world.servers[1].stop()
        with one_lost(world, 1, Fault.CUT_AFTER_SEND, skips=skipped):
            world.servers[1].start()
        world.wait_until_well(machines=[1])


def slow_redis_down(world: World, seconds: float) -> None:
    for proxy in world.proxies:
        proxy.delay_s = seconds
    time.sleep(10 if world.size.is_long else 4)
    for proxy in world.proxies:
        proxy.delay_s = 0
    world.show(slow_replies=sum(proxy.delayed for proxy in world.proxies))


def make_redis_refuse(world: World, refuse: Callable[[Client], object], mend: Callable[[Client], object]) -> None:
    with world.outage():
        refuse(world.redis.client)
        time.sleep(world.scale(3.0))
        mend(world.redis.client)


def allow_scripts(client: Client, sign: str) -> None:
    client.acl_setuser("app", enabled=True, commands=[f"{sign}evalsha", f"{sign}eval"])


def restart_redis_slowly(world: World) -> None:
    """LOADING: it answers, but only that it is not ready."""
    delay_us = int(world.scale(2.0) * 1_000_000 / max(1, world.redis.client.dbsize()))
    answers = ("--loading-process-events-interval-bytes", "1024") if redis_server_version() >= (7,) else ()
    with redis_killed(world, "--key-load-delay", str(delay_us), *answers):
        pass


def reset_during_an_outage(world: World) -> None:
    """Refused with 503 and words that say why; what was delivered stays known."""
    with without_redis(world):
        answer = world.servers[0].reset(scope="all", confirm="all")
        assert answer.status_code == 503 and "Redis" in answer.text, f"{answer.status_code} {answer.text}"


# Redis forgets


def flush_scripts(world: World) -> None:
    for _ in range(20):
        world.redis.client.script_flush()
        time.sleep(0.05)
    world.show(noscripts=world.redis.client.info("errorstats").get("errorstat_NOSCRIPT", {}).get("count", 0))


def kill_connections(world: World) -> None:
    cut = 0
    with world.outage():
        for _ in range(20):
            cut += int(world.redis.client.client_kill_filter(_type="normal", skipme=True))
            time.sleep(0.05)
    world.show(connections_cut=cut)


def flush_all(world: World) -> None:
    world.redis.client.flushall()


def flush_all_while_requests_are_under_way(world: World) -> None:
    """On two machines. Repeats come to the other machine while they are, and after that."""
    held = world.hold_deliveries()
    flush_all(world)
    world.repeat_elsewhere(held)
    time.sleep(1.0)
    world.release(held)
    world.repeat_elsewhere(held)


def flush_all_while_one_machine_sleeps(world: World) -> None:
    """It publishes what it knows later than the other machine, which gets repeats of its emails meanwhile."""
    known = world.send(world.names("known", 10), to=1)
    with stopped(world, world.servers[1].worker_pids()):
        flush_all(world)
        world.put(known, to=0)
        time.sleep(1.2)


def restore_older_snapshot_and_restart(world: World) -> None:
    """No process is left that has seen more than the snapshot."""
    world.redis.client.save()
    newer = world.send(world.names("newer", 30))
    for server in world.servers:
        server.stop()
    world.redis.kill()
    world.redis.start()
    for server in world.servers:
        server.start()
    world.repeat_elsewhere(newer)


def go_back_between_hold_and_outcome(world: World) -> None:
    held = world.hold_deliveries()
    world.redis.client.save()
    world.release(held)
    with world.outage():
        kill_redis(world, 0)
        time.sleep(LEASE_S)  # what Redis takes for held is free now
    world.repeat_elsewhere(held)


def restart_everything(world: World) -> None:
    first, second = world.servers
    with world.outage():
        first.stop()
        world.redis.kill()
        first.start()
        world.redis.start()
        second.stop()
        second.start()


def trim_the_stream_behind_a_machine(world: World) -> None:
    """It slept meanwhile. Without Redis it must not decide: it does not know what the others did."""
    client = world.redis.client
    with stopped(world, world.servers[1].worker_pids()):
        last = client.xinfo_stream("events")["last-generated-id"]
        known = world.send(world.names("missed", 20), to=0)
        wait_for(lambda: len(client.xrange("events", f"({last}") or ()) >= 20, "they are published")
        client.xtrim("events", maxlen=1, approximate=False)
    wait_for(lambda: world.servers[1].health()["checks"]["fleet"]["status"] == "gap", "it notices the gap")
    with without_redis(world, 1):
        world.put(known, to=1)
        time.sleep(1.5)


# Machines and processes


def replace_disk(world: World, number: int) -> None:
    """kill -9, and back with an empty DATA_DIR, as a container without a volume."""
    server = world.servers[number]
    world.kill(number)
    for path in server.data_dir.iterdir():
        if path != server.log:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    server.start()


def lose_the_disk_with_emails_queued(world: World) -> None:
    """Another machine sends what the lost one had stored, and both recognise it afterwards."""
    stored = world.send(world.names(REFUSED, 20), to=1)
    world.kill(1)
    world.sink.release.set()
    world.replay_waiting()
    wait_for(lambda: world.sink.subjects.keys() >= set(stored), "another machine sends them")
    world.servers[1].start()
    replace_disk(world, 1)
    world.wait_until_well()
    world.send(stored, to=1, again=True)


def be_away_for_an_hour(world: World) -> None:
    """It comes back while it cannot reach Redis, and must not decide by a memory that is an hour old."""
    server, proxy = world.servers[1], world.proxies[1]
    server.stop()
    known = world.send(world.names("meanwhile", 20), to=0)
    with closing(sqlite3.connect(server.data_dir / "journal.db")) as journal, journal:
        journal.execute("UPDATE meta SET value = value - ? WHERE key = 'read_ms'", (AWAY_S * 1000,))
    with world.outage():
        proxy.set(Fault.REFUSE)
        server.start()
        world.put(known, to=1)
        time.sleep(4.0)
        proxy.set(Fault.NONE)


def arm_the_crash(world: World) -> None:
    Path(f"{world.crash_file}.armed").touch()


def crash(world: World) -> None:
    arm_the_crash(world)
    wait_for(world.crash_file.exists, "the crash")


def crash_at_a_stored_delivery(world: World) -> None:
    """The crash strikes at the attempt that would end it."""
    stored = world.send(world.names(REFUSED, 5))
    world.sink.release.set()
    arm_the_crash(world)
    world.replay_waiting()
    crash(world)
    world.replay_until_arrived(world.sink, stored)  # its lease ends before another process may take it
    doubled = [subject for subject in stored if world.sink.subjects[subject] > 1]
    assert not doubled or world.setup.crash_at == "before finish", f"stored, and sent twice: {doubled}"


def crash_in_a_group(world: World, *, dies: bool) -> None:
    """Of a group one goes out: the first, or the next if that becomes a dead letter; a crash strikes in between."""
    first, *others = group = [f"Lot {world.seed}00 {which}" for which in ("first", "second", "third")]
    world.sink.answers[first] = DOWN
    answers = [world.post(subject, f"This is the {subject}") for subject in group]
    assert answers[0] == "queued", "the first one was not stored"
    world.sink.answers[first] = MISPLACED if dies else Reply()
    arm_the_crash(world)
    world.replay_waiting()
    crash(world)
    expected = set(others if dies else [first])
    wait_for(lambda: bool(expected & world.sink.subjects.keys()), "the one that is to go out")
    time.sleep(6.0)  # those that wait for a name are judged again after 5 s
    arrived = {subject: count for subject, count in world.sink.subjects.items() if subject in group}
    assert len(arrived) == 1 and arrived.keys() <= expected, f"another one went out: {arrived}"
    assert sum(arrived.values()) <= 1 + (world.setup.crash_at == "before finish"), f"sent twice: {arrived}"
    world.notes["answers"] = "/".join(answers)


def stop_a_process_past_its_lease(world: World) -> None:
    crash(world)
    time.sleep(LEASE_S + 1)
    for pid in world.worker_pids():
        os.kill(pid, signal.SIGCONT)


def lock_sqlite(world: World) -> None:
    for server in world.servers:
        with closing(sqlite3.connect(server.data_dir / "journal.db", isolation_level=None, timeout=10)) as lock:
            lock.execute("BEGIN IMMEDIATE")
            time.sleep(world.scale(1.5))
            lock.execute("ROLLBACK")


def fill_the_disk(world: World) -> None:
    """No file of the processes may grow any more."""
    before = world.load.report.troubles
    for limit in (4096, resource.RLIM_INFINITY):
        for pid in world.worker_pids():
            psutil.Process(pid).rlimit(psutil.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        time.sleep(world.scale(1.5))
    world.show(refused_for_the_disk=world.load.report.troubles - before)


def strike_without_redis(world: World, strike: Callable[[World], None]) -> None:
    with without_redis(world):
        strike(world)


def set_the_clock_forward(world: World) -> None:
    """By more than a lease, while deliveries are under way; their repeats must find them so."""
    held = world.hold_deliveries()
    set_clock(world, 120)
    for subject in held:
        world.load.put(subject)
    time.sleep(1.5)
    world.sink.release.set()


def set_the_clock_back(world: World) -> None:
    """What a killed process left must be free after its lease, not after a day."""
    crash(world)
    set_clock(world, -DAY_S)


def set_clock(world: World, ahead_s: int) -> None:
    new = world.folder / "clock.new"
    new.write_text(str(ahead_s))
    new.replace(world.clock_file)  # a process that reads it meanwhile must not find an empty file


def cause_chaos(world: World, fails_every: int = 0) -> None:
    """Faults of Redis and of the way to it at random, some of them at once. ``fails_every``: the destination refuses
    one of so many webhooks, whose emails are then stored, or returned to their provider."""
    chance = random.Random(world.seed)  # noqa: S311 - the same each time
    redis = world.redis

    def pause(least_s: float, most_s: float) -> None:
        time.sleep(chance.uniform(least_s, most_s))

    def break_the_way(fault: Fault) -> None:
        broken = chance.choice([world.proxies, [chance.choice(world.proxies)]])
        for proxy in broken:
            proxy.set(fault)
        pause(0.2, 4.0)
        if chance.random() < 0.3:
            redis.client.flushall()
        for proxy in broken:
            proxy.set(Fault.NONE)

    def restart_redis() -> None:
        redis.kill()
        pause(0.1, 3.0)
        redis.start()

    def stop(pids: Sequence[int], most_s: float) -> None:
        with stopped(world, pids):
            pause(0.5, most_s)

    faults: list[Callable[[], object]] = [
        *(partial(break_the_way, fault) for fault in (Fault.REFUSE, Fault.HANG, Fault.CUT_AFTER_SEND)),
        restart_redis,
        lambda: stop([redis.pid], 5.0),
        lambda: stop(chance.choice(world.servers).worker_pids(), 3.0),
        redis.client.flushall,
    ]
    world.sink.fails_every = fails_every
    with world.outage():
        for _ in range(20 if world.size.is_long else 6):
            chance.choice(faults)()
            pause(0.0, 3.0)
        world.sink.fails_every = 0
    if fails_every:
        world.replay_until(lambda waiting: not waiting, 20)


# Operators and destinations


def reset_and_replay(world: World) -> None:
    """Some wait, some are in progress, some are delivered: none may be forgotten."""
    world.send(world.names(REFUSED, 20))
    numbers, kept, replayed = range(len(world.servers)), 0, 0
    for number in [*numbers] * (5 if world.size.is_long else 2):
        kept += len(reset_all(world.servers[number]))
        replayed += world.replay_waiting(number)
    world.show(kept_by_reset=kept, replayed=replayed)
    world.sink.release.set()
    for number in numbers:
        reset_all(world.servers[number])
        world.replay_waiting(number)  # after two failures they would wait for five minutes


def reset_all(server: Server) -> list[str]:
    """What it kept. An operator who is asked to retry does so."""
    deadline = time.monotonic() + 60
    while (answer := server.reset(scope="all", confirm="all")).status_code == 503 and time.monotonic() < deadline:
        time.sleep(0.5)
    assert answer.status_code == 200, answer.text
    return list(answer.json()["kept"])


def replay_by_force(world: World) -> None:
    """Ten that were delivered, each exactly once more."""
    url = f"{world.servers[0].url}/api/admin/deliveries"
    found = requests.get(url, params={"status": "delivered", "limit": "10"}, headers=ADMIN, timeout=60).json()
    asked = (f"{url}/{delivery['id']}/replay" for delivery in found["deliveries"])
    answers = [requests.post(each, json={"force": True}, headers=ADMIN, timeout=60) for each in asked]
    world.show(replayed=sum(answer.status_code == 200 for answer in answers))


def answer_with(world: World, replies: Sequence[Reply]) -> None:
    """The destination answers so, one after the other, for a while."""
    before = len(world.sink.received)
    for reply in replies:
        world.sink.otherwise = reply
        time.sleep(world.scale(2.0) / len(replies))
    world.sink.otherwise = Reply()
    world.show(troubled_webhooks=len(world.sink.received) - before)
    world.replay_until(lambda waiting: not waiting, 10)


def kill_a_machine_while_the_destination_is_down(world: World) -> None:
    """The others deliver what it has stored."""
    world.sink.otherwise = DOWN
    time.sleep(world.scale(1.5))
    accepted = len(world.sink.accepted)
    wait_for(lambda: world.count_due("sink") > 0, "something waits")
    world.servers[1].kill()
    time.sleep(world.scale(1.5))
    world.show(refused=len(world.sink.received) - len(world.sink.accepted))
    assert len(world.sink.accepted) == accepted, "the destination was not down"
    world.sink.otherwise = Reply()
    world.replay_until(lambda _: not world.count_due("sink"))
    world.servers[1].start()


def kill_a_worker_beside_slow_and_failing_destinations(world: World) -> None:
    slow, failing = world.others["slow"], world.others["failing"]
    slow.otherwise, failing.otherwise = Reply(delay_s=0.2), DOWN
    time.sleep(world.scale(3.0))
    kill_a_worker(world)
    world.show(refused=len(failing.received) - len(failing.accepted))
    slow.otherwise = failing.otherwise = Reply()
    world.replay_until_arrived(failing, list(world.load.report.accepted))


def kill_web_processes(world: World) -> None:
    for server in world.servers:
        os.kill(server.worker_pids()[0], signal.SIGKILL)
        time.sleep(0.5)


def kill_a_worker(world: World) -> None:
    world.workers[0].kill_a_child()


# Many deliveries wait, or large ones


def measure(world: World) -> tuple[float, float]:
    """The 95th percentile of the traffic, in seconds, and the commands a second that Redis executes."""
    seconds, client = 20 if world.size.is_long else 5, world.redis.client
    since, before = time.monotonic(), client.info("stats")["total_commands_processed"]
    time.sleep(seconds)
    commands = (client.info("stats")["total_commands_processed"] - before) / seconds
    return world.load.report.p95_s(since), float(commands)


def compare(world: World, before_s: float, after_s: float) -> None:
    world.notes["p95 ms"] = f"{1000 * before_s:.0f} -> {1000 * after_s:.0f}"
    assert after_s < 2 * before_s or after_s - before_s < NOTICEABLE_S, "the healthy destination waits"


def pile_up_behind_an_open_breaker(world: World) -> None:
    """Many wait: the healthy destination must not notice, nor Redis be asked more."""
    down, count = world.others["other"], 20_000 if world.size.is_long else 400
    down.otherwise = DOWN
    for number in range(5):
        world.post(f"other {number}", f"This is other {number}")
    few_s, few = measure(world)
    store_waiting(world.redis, "other", count)
    assert world.count_due("other") >= count, "there is no backlog"
    many_s, many = measure(world)
    compare(world, few_s, many_s)
    world.notes["commands/s"] = f"{few:.0f} -> {many:.0f}"
    assert many < 1.5 * few + 50, "Redis is asked more, the more waits"
    down.otherwise = Reply()
    world.notes["noticed after s"] = round(wait_for(lambda: bool(down.accepted), "it is well again"), 1)
    world.notes["all sent after s"] = round(wait_for(lambda: not world.count_due("other"), "the rest", 900), 1)
    counts = down.counts()
    assert (len(counts), counts.total()) == (count + 5, count + 5), f"{len(counts)} of {count + 5}, {counts.total()}"


def store_waiting(redis: RedisServer, to: str, count: int) -> None:
    """As a machine stores what comes while the breaker is open; faster than by HTTP."""
    payload = pack({"subject": "waiting", "sender": "a@down.example", "body": "x" * 200})
    with tempfile.TemporaryDirectory() as folder, opened(Path(folder), redis.url) as machine:
        for _ in range(count):
            claimed = machine.coordinator.claim(
                structs.replace(new_claim((to,)), owner=machine.coordinator.new_owner())
            )
            assert isinstance(claimed, Claimed), claimed
            now_ms = machine.coordinator.journal.clock.now_ms()
            later = {"status": DeliveryStatus.WAITING, "next_try_ms": now_ms}
            waits = [structs.replace(each, **later) for each in claimed.to_send]
            assert machine.coordinator.settle(claimed, waits, "queued", payload).is_safe, "it was not stored"


def fill_redis_with_payloads(world: World) -> None:
    """Large emails for a destination that is down fill their share of Redis; all others go on as before."""
    down, client = world.others["other"], world.redis.client
    down.otherwise = DOWN
    before_s, _ = measure(world)
    stored: dict[str, str] = {}
    returned: dict[str, str] = {}
    while len(returned) < 10 and len(stored) < 2_000:
        subject, body = f"other {len(stored)}-{len(returned)}", random_text(40_000)
        is_stored = world.servers[0].post(email(subject=subject, body=body)).ok
        (stored if is_stored else returned)[subject] = body
    memory = client.info("memory")
    world.notes["Redis used"] = f"{memory['used_memory'] / memory['maxmemory']:.2f}"
    assert len(returned) == 10 and len(stored) > 10, "Redis was not full"
    compare(world, before_s, measure(world)[0])
    assert "errorstat_OOM" not in client.info("errorstats"), "Redis said OOM"
    down.otherwise = Reply()
    world.replay_until_arrived(down, stored)
    for subject, body in returned.items():
        world.post(subject, body)
    world.replay_until_arrived(down, returned)
    assert down.subjects == Counter([*stored, *returned]), "lost, or twice"


def send_a_large_email_over_a_slow_line(world: World) -> None:
    """It takes longer than its provider waits: a stored attempt delivers it."""
    sink, line = world.others["other"], world.lines["other"]
    length, line.bytes_per_s = (24_900_000, 1_000_000) if world.size.is_long else (5_000_000, 300_000)
    body, began = random_text(length), time.monotonic()
    assert world.post("other", body) == "queued", "the line is not slow"
    world.notes["answered after s"] = round(time.monotonic() - began, 1)
    world.notes["delivered after s"] = round(wait_for(lambda: bool(sink.accepted), "it is delivered", 600), 1)
    wait_for(lambda: not world.count_due("other"), "it is finished")
    time.sleep(2.0)
    assert [each.payload["body"] == body for each in sink.accepted] == [True], "it came twice, or damaged"


def send_large_emails_by_link(world: World) -> None:
    """Two at a time, to both machines. No process grows by as much as one of them; every link gives its file."""
    count, size_bytes = (50, 20 << 20) if world.size.is_long else (6, 10 << 20)
    for number in range(8):  # what a process needs for the first one stays with it
        post_with_file(world, f"warm {number}", size_bytes)
    before = {pid: rss_mb(pid) for pid in world.worker_pids()}
    most, is_over = dict(before), threading.Event()

    def watch() -> None:
        while not is_over.wait(0.02):
            most.update({pid: max(most[pid], rss_mb(pid)) for pid in most})

    with ThreadPoolExecutor(3) as pool:
        watching = pool.submit(watch)
        digests = dict(pool.map(partial(post_with_file, world, size_bytes=size_bytes), world.names("large", count)))
        is_over.set()
        watching.result()
    payloads = {each.payload["subject"]: each.payload for each in world.sink.accepted}
    for subject, (raw_sha256, sha256) in digests.items():
        (attachment,) = payloads[subject]["attachments"]
        assert [sha256_of(payloads[subject]["raw_url"]), sha256_of(attachment["url"])] == [raw_sha256, sha256]
    assert requests.get(attachment["url"].replace("/files/", "/files/A"), timeout=60).status_code == 404
    world.show(links=2 * count, rss_mb=max(before.values()), most_mb=max(most.values()))
    grown_mb = max(most[pid] - before[pid] for pid in before)
    assert grown_mb < size_bytes / (1 << 20), f"a process grew by {grown_mb} MB"


def post_with_file(world: World, subject: str, size_bytes: int) -> tuple[str, tuple[str, str]]:
    """As raw email of about that size; the SHA-256 of the whole and of its attachment."""
    content = os.urandom(size_bytes * 3 // 4 * 76 // 78)
    head = f"From: a@{subject.replace(' ', '-')}.example\r\nSubject: {subject}\r\nDate: Mon, 16 Nov 2026 09:00:00 +0000"
    parts = "MIME-Version: 1.0\r\nContent-Type: application/pdf\r\nContent-Transfer-Encoding: base64"
    raw = f"{head}\r\n{parts}\r\n\r\n".encode() + base64.encodebytes(content)
    server = world.servers[sum(subject.encode()) % len(world.servers)]
    headers = {"Authorization": f"Bearer {INGRESS_TOKEN}", "Content-Type": "message/rfc822"}
    answer = requests.post(f"{server.url}/api/ingress/mime", data=raw, headers=headers, timeout=120)
    assert answer.json()["status"] == "processed", answer.text
    return subject, (hashlib.sha256(raw).hexdigest(), hashlib.sha256(content).hexdigest())


def sha256_of(url: str) -> str:
    with requests.get(url, timeout=120) as answer:
        return hashlib.sha256(answer.content).hexdigest()


def rss_mb(pid: int) -> int:
    return int(psutil.Process(pid).memory_info().rss) >> 20


def random_text(length: int) -> str:
    return base64.b64encode(os.urandom(length * 3 // 4)).decode()


# The table

ALONE = "gone alone"
CALM = "gone alone gaps new_eras"
LEASE = {"LEASE_SECONDS": str(LEASE_S)}
ONE = Setup(machines=1)
QUICK = Setup(settings=LEASE)
NO_AOF = Setup(redis_options=())
CLOSED = Setup(settings={"ON_STORE_FAILURE": "closed", **LEASE})
WORKERS = Setup(by_workers=True, settings=LEASE)
BREAKER = Setup(settings=LEASE, options="breaker_failures = 5\nbreaker_pause_s = 2")
TWO_ROUTES = replace(BREAKER, machines=1, others=("other",))
FAN_OUT = replace(BREAKER, others=("slow", "failing"), fans_out=True)
LINKS = Setup(options="[providers.mime]\nattachments = 'link'", settings={"FILES_MB": "4096"})
SMALL_REDIS = (*AOF, "--maxmemory", str(24 << 20), "--maxmemory-policy", "noeviction")
FULL = partial(
    make_redis_refuse,
    refuse=lambda client: client.config_set("maxmemory", "1"),
    mend=lambda client: client.config_set("maxmemory", "0"),
)
READ_ONLY = partial(
    make_redis_refuse,
    refuse=lambda client: client.replicaof("127.0.0.1", str(free_port())),
    mend=lambda client: client.replicaof("NO", "ONE"),
)
NOT_PERMITTED = partial(
    make_redis_refuse, refuse=partial(allow_scripts, sign="-"), mend=partial(allow_scripts, sign="+")
)
KILLED_TWICE = partial(kill_redis, seconds=5, times=2)


def crash_at(step: str, by: str = "SIGKILL", **setup: Any) -> Setup:
    return Setup(settings={"WEB_THREADS": "1", **LEASE}, crash_at=step, crash_signal=by, **setup)


def at_each_step(name: str, strike: Callable[[World], object], **setup: Any) -> list[Scenario]:
    """Of a stored delivery. The process has requests under way as well."""
    return [
        Scenario(name.format(step), strike, setup=crash_at(step, **setup), window="a", most_doubles=2)
        for step in ("before take", "after hand-out", "after take", "before finish", "after finish")
    ]


SCENARIOS = [
    Scenario("nothing happens", lambda world: None, never=CALM, pause_s=3),
    Scenario("workers: nothing happens", lambda world: None, never=CALM, setup=WORKERS, pause_s=3),
    Scenario("Redis killed", kill_redis, "new_eras", window="b"),
    Scenario("Redis killed, AOF off", kill_redis, "new_eras", setup=NO_AOF, window="b"),
    Scenario("Redis killed, sticky", kill_redis, "new_eras", sticky=True),
    Scenario("Redis killed, closed", kill_redis, never="alone", setup=CLOSED, pause_s=150, recovery_s=150),
    Scenario("Redis killed twice for 5 s", KILLED_TWICE, ALONE, window="b"),
    Scenario("Redis killed twice for 5 s, sticky", KILLED_TWICE, ALONE, sticky=True),
    Scenario("workers: Redis killed", kill_redis, "new_eras", setup=WORKERS, window="b"),
    Scenario(
        "workers: Redis killed, AOF off", kill_redis, "new_eras", setup=replace(WORKERS, redis_options=()), window="b"
    ),
    Scenario(
        "Redis killed, the same emails to B and to C with a new disk",
        kill_redis_after_a_did_its_work,
        "gone",
        setup=Setup(machines=3),
        loaded=2,
        sticky=True,
    ),
    Scenario("Redis silent for 0.1 s", partial(stop_redis, seconds=0.1), never=CALM),
    Scenario("Redis silent for 30 s", partial(stop_redis, seconds=30), ALONE, window="b", slowest_s=5, pause_s=6),
    Scenario(
        "Redis silent for 30 s, one machine",
        partial(stop_redis, seconds=30, alone_s=65),
        ALONE,
        setup=ONE,
        slowest_s=5,
        pause_s=3,
    ),
    Scenario(
        "Redis silent for 3 s, deliveries under way",
        stop_redis_while_deliveries_are_under_way,
        "published_later",
        window="b",
    ),
    *(
        Scenario(f"requests lost, {fault}", partial(lose_requests, fault=fault), setup=QUICK, window="b")
        for fault in (Fault.CUT_BEFORE_SEND, Fault.CUT_AFTER_SEND, Fault.CUT_MID_REPLY)
    ),
    Scenario("the reply of a hold lost", lose_the_reply_of_a_hold, never="alone"),
    Scenario("holds executed late", execute_holds_late, window="b"),
    Scenario("every outcome lost", lose_every_outcome, window="b"),
    Scenario("network cut, sticky", cut_the_network, ALONE, sticky=True),
    Scenario("network cut", cut_the_network, ALONE, window="b"),
    Scenario("network cut, closed", cut_the_network, "gone", "alone", CLOSED),
    Scenario("workers: network cut, sticky", cut_the_network, ALONE, setup=WORKERS, sticky=True),
    Scenario("one machine cut off stores nothing", cut_off_one_machine, "gone", sticky=True),
    Scenario(
        "one process cut off, its neighbour not",
        cut_off_one_process,
        ALONE,
        setup=Setup(cuts_processes=True),
        sticky=True,
    ),
    Scenario("deliveries under way when Redis goes", lose_redis_while_deliveries_are_under_way, ALONE, sticky=True),
    Scenario("a reply lost while a machine boots", lose_replies_while_a_machine_boots, sticky=True),
    Scenario("Redis slow, 0.4 s", partial(slow_redis_down, seconds=0.4), never=CALM),
    Scenario("Redis slow, 1.5 s", partial(slow_redis_down, seconds=1.5), never="alone new_eras"),
    Scenario("maxmemory reached", FULL, "gone", window="b"),
    Scenario("Redis read-only", READ_ONLY, "gone", window="b"),
    Scenario("Redis loading", restart_redis_slowly, "new_eras", window="b"),
    Scenario("reset during an outage", reset_during_an_outage, "gone", sticky=True),
    Scenario("scripts flushed", flush_scripts, never=CALM),
    Scenario("connections killed", kill_connections, window="b"),
    Scenario("Redis emptied", flush_all, "new_eras"),
    Scenario("workers: Redis emptied", flush_all, "new_eras", setup=WORKERS),
    Scenario("Redis emptied while requests are under way", flush_all_while_requests_are_under_way, "new_eras"),
    Scenario("Redis emptied while one machine sleeps", flush_all_while_one_machine_sleeps, "new_eras"),
    Scenario(
        "older snapshot and restart of all", restore_older_snapshot_and_restart, "new_eras", setup=NO_AOF, sticky=True
    ),
    Scenario(
        "Redis set back between hold and outcome",
        go_back_between_hold_and_outcome,
        "new_eras",
        setup=replace(NO_AOF, settings=LEASE),
        window="b",
    ),
    Scenario("restart of everything", restart_everything, window="b"),
    Scenario("stream trimmed behind a machine that slept", trim_the_stream_behind_a_machine, "gaps", sticky=True),
    Scenario(
        "disk lost with emails queued",
        lose_the_disk_with_emails_queued,
        setup=QUICK,
        sticky=True,
        window="c",
    ),
    Scenario("a machine away for an hour", be_away_for_an_hour, setup=QUICK, sticky=True),
    Scenario("wrong ACL", NOT_PERMITTED, "misconfigured", "alone", Setup(has_acl=True)),
    Scenario("kill -9 after the POST", crash, setup=crash_at("after the POST"), window="a", most_doubles=1),
    *(
        Scenario(f"kill -9 {step}", crash, setup=crash_at(step))
        for step in ("before claim", "after hold", "after claim", "before the POST", "after the note", "after settle")
    ),
    *at_each_step("kill -9 of a stored delivery, {}", crash_at_a_stored_delivery),
    *at_each_step(
        "a group, its first dies, kill -9 {}",
        partial(crash_in_a_group, dies=True),
        machines=1,
        options="breaker_failures = 0\nmax_attempts = 3",  # two by the request
    ),
    *at_each_step("a group, its first arrives, kill -9 {}", partial(crash_in_a_group, dies=False), machines=1),
    Scenario(
        "SIGSTOP past the lease, before the POST",
        stop_a_process_past_its_lease,
        setup=crash_at("after claim", "SIGSTOP"),
        slowest_s=15,
    ),
    Scenario(
        "SIGSTOP past the lease, after the note",
        stop_a_process_past_its_lease,
        setup=crash_at("after the note", "SIGSTOP"),
        window="c",
        most_doubles=1,
        slowest_s=15,
    ),
    Scenario("SQLite locked", lock_sqlite, never=CALM),
    Scenario("disk full", fill_the_disk),
    Scenario("SQLite locked and Redis away", partial(strike_without_redis, strike=lock_sqlite), "gone", sticky=True),
    Scenario("disk full and Redis away", partial(strike_without_redis, strike=fill_the_disk), "gone", sticky=True),
    Scenario(
        "clock two minutes forward",
        set_the_clock_forward,
        setup=Setup(machines=1, has_redis=False, sets_the_clock=True),
    ),
    Scenario(
        "clock a day back after kill -9",
        set_the_clock_back,
        setup=crash_at("after claim", machines=1, has_redis=False, sets_the_clock=True),
    ),
    Scenario("chaos, sticky", cause_chaos, "gone new_eras", sticky=True, pause_s=30),
    Scenario("chaos", cause_chaos, "gone new_eras", window="b", pause_s=30),
    Scenario(
        "chaos with a failing destination", partial(cause_chaos, fails_every=7), "gone new_eras", window="b", pause_s=30
    ),
    Scenario("reset and replay in traffic", reset_and_replay, duplicates=0.0),
    Scenario(
        "replay by force in traffic",
        replay_by_force,
        setup=Setup(settings={"DELIVERED_PAYLOAD_DAYS": "1"}),
        window="asked for",
        most_doubles=10,
    ),
    *(
        Scenario(f"destination {what}", partial(answer_with, replies=replies), never=CALM)
        for what, replies in {
            "down": [DOWN],
            "slow": [Reply(delay_s=1.0)],
            "flapping": [DOWN, Reply()] * 4 + [Reply(0)],
            "overloaded (429)": [Reply(429, headers={"Retry-After": "1"})],
        }.items()
    ),
    Scenario("workers: destination down", partial(answer_with, replies=[DOWN]), setup=WORKERS),
    *(
        Scenario(
            f"{prefix}destination down, a machine killed",
            kill_a_machine_while_the_destination_is_down,
            setup=replace(BREAKER, by_workers=bool(prefix)),
            pause_s=30,
        )
        for prefix in ("", "workers: ")
    ),
    Scenario(
        "workers: kill -9 a worker, a slow and a failing destination",
        kill_a_worker_beside_slow_and_failing_destinations,
        setup=replace(FAN_OUT, by_workers=True),
        window="a",
        most_doubles=8,
    ),
    Scenario("workers: kill -9 web processes", kill_web_processes, setup=WORKERS),
    Scenario("workers: kill -9 a worker", kill_a_worker, setup=WORKERS, window="a", most_doubles=4),
    Scenario("many wait behind an open breaker", pile_up_behind_an_open_breaker, setup=TWO_ROUTES),
    Scenario(
        "Redis full of payloads for a destination that is down",
        fill_redis_with_payloads,
        setup=replace(TWO_ROUTES, redis_options=SMALL_REDIS),
    ),
    Scenario("a large email over a slow line", send_a_large_email_over_a_slow_line, setup=TWO_ROUTES),
    Scenario("large emails by link", send_large_emails_by_link, setup=LINKS),
]
