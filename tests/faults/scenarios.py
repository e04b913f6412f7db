"""Every fault, as something that strikes in the middle of traffic, and the facts that show that it did."""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import psutil
import requests

from tests.faults.world import ADMIN, HELD, REFUSED, Scenario, Setup, World, wait_for, wait_until_well
from tests.support.proxy import Fault
from tests.support.redis_server import free_port, redis_server_version
from tests.support.server import Server
from tests.support.sink import Reply

LEASE_S = 4
DAY_S = 86_400
AWAY_S = 3_600
Strike = Callable[[World], object]


def do_nothing(world: World) -> None:
    """The way it should be."""


# Redis goes away


def kill_redis(world: World, seconds: float = 1.0, times: int = 1) -> None:
    for _ in range(times):
        with world.outage():
            world.redis.kill()
            world.counts["kills"] += 1
            time.sleep(seconds)
            world.redis.start()


def kill_redis_twice(world: World) -> None:
    kill_redis(world, 5.0, times=2)


def kill_redis_after_a_did_its_work(world: World) -> None:
    """The same emails come to B, and to C, which began with an empty disk and has read the stream."""
    known = send(world, names(world, "known", 60), to=0)
    replace_disk(world, 2)
    wait_until_well(world)
    wait_for(lambda: count_entries(world.servers[2]) >= len(known), "C has read the stream")
    with world.outage():
        world.redis.kill()
        world.counts["kills"] += 1
        for number in (1, 2):
            wait_for(lambda number=number: state_of(world.servers[number]) == "gone", "Redis is gone")  # type: ignore[misc]
            send(world, known, to=number, again=True)
        world.counts["repeats"] += 2 * len(known)
        world.redis.start()


def stop_redis_for(seconds: float) -> Strike:
    def strike(world: World) -> None:
        with world.outage(), stopped(world, [world.redis.pid]):
            time.sleep(seconds)

    return strike


def hang_redis_alone(world: World) -> None:
    """A machine that has been the only member for a minute goes on at the first missing answer."""
    time.sleep(65 if world.size.is_long else 1)
    stop_redis_for(30)(world)


def stop_redis_while_deliveries_are_under_way(world: World) -> None:
    """They are noted, and published later. Another machine, asked for them then, must not send them."""
    held = hold_deliveries(world)
    with world.outage(), stopped(world, [world.redis.pid]):
        time.sleep(2.5)
        world.sink.release.set()
        wait_for(lambda: world.load.has_accepted(held), "they are delivered")
    repeat_elsewhere(world, held)


def lose_requests(fault: Fault) -> Strike:
    """Holds and outcomes, one after the other, each exactly once."""

    def strike(world: World) -> None:
        for step, words in {"holds": b"\r\nHOLD\r\n", "outcomes": b'["E",'}.items():
            for number in range(8 if world.size.is_long else 3):
                proxy = world.proxies[number % len(world.proxies)]
                before = proxy.cuts
                proxy.set(fault, once=True, meant=lambda request, words=words: words in request)  # type: ignore[misc]
                wait_for(lambda proxy=proxy, before=before: proxy.cuts > before, f"one of the {step} is lost")  # type: ignore[misc]
                world.counts[f"lost_{step}"] += 1

    return strike


def lose_the_reply_of_a_hold(world: World) -> None:
    """Its email must not be blocked for the whole lease (25 s)."""
    proxy, (subject,) = world.proxies[0], names(world, "lost", 1)
    before = proxy.cuts
    proxy.set(Fault.CUT_AFTER_SEND, once=True, meant=lambda request: b"\r\nHOLD\r\n" in request)
    world.load.put(subject, 0)
    wait_for(lambda: proxy.cuts > before, "the reply is lost")
    world.counts["lost_replies"] += 1
    took_s = wait_for(lambda: world.load.has_accepted([subject]), "the email is accepted")
    assert took_s < 8, f"a lost reply blocked its email for {took_s:.1f} s"


def execute_holds_late(world: World) -> None:
    """Redis is stopped for longer than anybody waits, and executes afterwards what lies in its sockets."""
    subjects = names(world, "late", 4)
    with world.outage():
        with stopped(world, [world.redis.pid]):
            for number, subject in enumerate(subjects):
                world.load.put(subject, number % 2)
            time.sleep(3.5)
        took_s = wait_for(lambda: world.load.has_accepted(subjects), "they are accepted")
    assert took_s < 10, f"a late hold blocked its email for {took_s:.1f} s"


def lose_every_outcome(world: World) -> None:
    held = hold_deliveries(world)
    before = sum(proxy.cuts for proxy in world.proxies)
    world.set_all(Fault.CUT_BEFORE_SEND, meant=lambda request: b'["E",' in request)
    world.sink.release.set()
    wait_for(lambda: world.load.has_accepted(held), "they are delivered")
    wait_for(lambda: sum(proxy.cuts for proxy in world.proxies) > before, "outcomes are lost")
    world.counts["lost_outcomes"] += 1
    world.set_all(Fault.NONE)
    repeat_elsewhere(world, held)


def cut_the_network(world: World) -> None:
    """Until every machine decides alone, and a while longer."""
    with world.outage():
        world.set_all(Fault.REFUSE)
        for server in world.servers:
            wait_for(lambda server=server: state_of(server) == "gone", "it decides alone")  # type: ignore[misc]
        time.sleep(world.scale(1.5))
        world.set_all(Fault.NONE)


def cut_off_one_machine(world: World) -> None:
    """It stores nothing meanwhile: an email that the others store too must be sent once."""
    refused = names(world, REFUSED, 20)
    world.proxies[1].set(Fault.REFUSE)
    with world.outage():
        wait_for(lambda: state_of(world.servers[1]) == "gone", "it decides alone")
        for subject in refused:
            world.load.put(subject, 1)
            world.load.put(subject, 0)
        wait_for(lambda: world.load.has_accepted(refused), "they are stored")
        world.counts["stored_by_the_other"] += len(refused)
        world.proxies[1].set(Fault.NONE)
    world.sink.release.set()
    replay_waiting(world.servers[0])


def cut_off_one_process(world: World) -> None:
    """Its neighbour on the same machine, and the other machine, reach Redis all the time."""
    with world.outage():
        world.spares[0].set(Fault.REFUSE)
        time.sleep(world.scale(4.0))
        world.spares[0].set(Fault.NONE)


def lose_redis_while_deliveries_are_under_way(world: World) -> None:
    """Repeats that arrive while their machine decides alone must find them in progress."""
    held = hold_deliveries(world)
    with world.outage():
        world.set_all(Fault.REFUSE)
        for server in world.servers:
            wait_for(lambda server=server: state_of(server) == "gone", "it decides alone")  # type: ignore[misc]
        for subject in held:
            world.load.put(subject)
        time.sleep(1.0)
        world.sink.release.set()
        wait_for(lambda: world.load.has_accepted(held), "they are delivered")
        world.set_all(Fault.NONE)


def lose_replies_while_a_machine_boots(world: World) -> None:
    """The first, the third and the fifth answer that it gets from Redis."""
    server, proxy = world.servers[1], world.proxies[1]
    for skipped in (0, 2, 4)[: 3 if world.size.is_long else 1]:
        server.stop()
        before = proxy.cuts
        proxy.set(Fault.CUT_AFTER_SEND, once=True, skips=skipped)
        server.start()
        wait_for(lambda before=before: proxy.cuts > before, "a reply is lost")  # type: ignore[misc]
        world.counts["lost_replies"] += 1
        wait_until_well(world, machines=[1])


def slow_down_by(seconds: float) -> Strike:
    def strike(world: World) -> None:
        for proxy in world.proxies:
            proxy.delay_s = seconds
        time.sleep(10 if world.size.is_long else 4)
        for proxy in world.proxies:
            proxy.delay_s = 0
            world.counts["slow_replies"] += proxy.delayed

    return strike


def reach_maxmemory(world: World) -> None:
    with world.outage():
        world.redis.client.config_set("maxmemory", "1")
        time.sleep(world.scale(3.0))
        world.redis.client.config_set("maxmemory", "0")


def make_redis_a_replica(world: World) -> None:
    with world.outage():
        world.redis.client.replicaof("127.0.0.1", str(free_port()))
        time.sleep(world.scale(3.0))
        world.redis.client.replicaof("NO", "ONE")


def restart_redis_slowly(world: World) -> None:
    """LOADING: it answers, but only that it is not ready."""
    with world.outage():
        keys = world.redis.client.dbsize()
        world.redis.kill()
        world.counts["kills"] += 1
        delay_us = int(world.scale(2.0) * 1_000_000 / max(1, keys))
        answers = ("--loading-process-events-interval-bytes", "1024") if redis_server_version() >= (7,) else ()
        world.redis.launch("--key-load-delay", str(delay_us), *answers)
        world.redis.wait_until_up()


def reset_during_an_outage(world: World) -> None:
    """Refused with 503 and words that say why; what was delivered stays known."""
    with world.outage():
        world.set_all(Fault.REFUSE)
        wait_for(lambda: state_of(world.servers[0]) == "gone", "Redis is gone")
        answer = world.servers[0].reset(scope="all", confirm="all")
        assert answer.status_code == 503 and "Redis" in answer.text, f"{answer.status_code} {answer.text}"
        world.counts["refused_resets"] += 1
        world.set_all(Fault.NONE)


# Redis forgets


def flush_scripts(world: World) -> None:
    for _ in range(20):
        world.redis.client.script_flush()
        time.sleep(0.05)
    world.counts["noscripts"] = world.redis.client.info("errorstats").get("errorstat_NOSCRIPT", {}).get("count", 0)


def kill_connections(world: World) -> None:
    with world.outage():
        for _ in range(20):
            world.counts["connections_cut"] += int(world.redis.client.client_kill_filter(_type="normal", skipme=True))
            time.sleep(0.05)


def flush_all(world: World) -> None:
    world.redis.client.flushall()
    world.counts["flushes"] += 1


def flush_all_while_requests_are_under_way(world: World) -> None:
    """On two machines. Repeats come to the other machine while they are, and after that."""
    held = hold_deliveries(world)
    flush_all(world)
    for subject in held:
        world.load.put(subject, 1 - world.load.machine_of(subject))
    time.sleep(1.0)
    world.sink.release.set()
    wait_for(lambda: world.load.has_accepted(held), "they are delivered")
    repeat_elsewhere(world, held)


def flush_all_while_one_machine_sleeps(world: World) -> None:
    """It publishes what it knows later than the other machine, which gets repeats of its emails meanwhile."""
    known = send(world, names(world, "known", 10), to=1)
    with stopped(world, world.servers[1].worker_pids()):
        flush_all(world)
        for subject in known:
            world.load.put(subject, 0)
        time.sleep(1.2)


def restore_older_snapshot_and_restart(world: World) -> None:
    """No process is left that has seen more than the snapshot."""
    world.redis.client.save()
    newer = send(world, names(world, "newer", 30))
    for server in world.servers:
        server.stop()
    world.redis.kill()
    world.counts["kills"] += 1
    world.redis.start()
    for server in world.servers:
        server.launch()
    for server in world.servers:
        server.wait_until_up()
    repeat_elsewhere(world, newer)


def go_back_between_hold_and_outcome(world: World) -> None:
    held = hold_deliveries(world)
    world.redis.client.save()
    world.sink.release.set()
    wait_for(lambda: world.load.has_accepted(held), "they are delivered")
    with world.outage():
        world.redis.kill()
        world.counts["kills"] += 1
        world.redis.start()
        time.sleep(LEASE_S)  # what Redis takes for held is free now
    repeat_elsewhere(world, held)


def restart_everything(world: World) -> None:
    first, second = world.servers
    with world.outage():
        first.stop()
        world.redis.kill()
        world.counts["kills"] += 1
        first.start()
        world.redis.start()
        second.stop()
        second.start()


def trim_the_stream_behind_a_machine(world: World) -> None:
    """It slept meanwhile. Without Redis it must not decide: it does not know what the others did."""
    known, client = [], world.redis.client
    with stopped(world, world.servers[1].worker_pids()):
        last = client.xinfo_stream("events")["last-generated-id"]
        known = send(world, names(world, "missed", 20), to=0)
        wait_for(lambda: len(client.xrange("events", f"({last}") or ()) >= 20, "they are published")
        client.xtrim("events", maxlen=1, approximate=False)
    wait_for(lambda: world.servers[1].health()["checks"]["fleet"]["status"] == "gap", "it notices the gap")
    with world.outage():
        world.proxies[1].set(Fault.REFUSE)
        wait_for(lambda: state_of(world.servers[1]) == "gone", "Redis is gone")
        for subject in known:
            world.load.put(subject, 1)
        time.sleep(1.5)
        world.counts["asked_with_a_gap"] += len(known)
        world.proxies[1].set(Fault.NONE)


# Machines and processes


def replace_disk(world: World, number: int) -> None:
    """kill -9, and back with an empty DATA_DIR, as a container without a volume."""
    server = world.servers[number]
    server.kill()
    for path in server.data_dir.iterdir():
        if path != server.log:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    world.counts["empty_disks"] += 1
    server.start()


def lose_the_disk_with_emails_queued(world: World) -> None:
    """Another machine sends what the lost one had stored, and both recognise it afterwards."""
    stored = send(world, names(world, REFUSED, 20), to=1)
    world.servers[1].kill()
    world.sink.release.set()
    replay_waiting(world.servers[0])
    wait_for(lambda: world.sink.arrived_at.keys() >= set(stored), "another machine sends them")
    world.counts["sent_by_the_other"] += len(stored)
    world.servers[1].start()
    replace_disk(world, 1)
    wait_until_well(world)
    send(world, stored, to=1, again=True)


def be_away_for_an_hour(world: World) -> None:
    """It comes back while it cannot reach Redis, and must not decide by a memory that is an hour old."""
    server, proxy = world.servers[1], world.proxies[1]
    server.stop()
    known = send(world, names(world, "meanwhile", 20), to=0)
    with closing(sqlite3.connect(server.data_dir / "journal.db")) as journal, journal:
        journal.execute("UPDATE meta SET value = value - ? WHERE key = 'read_ms'", (AWAY_S * 1000,))
    with world.outage():
        proxy.set(Fault.REFUSE)
        server.start()
        for subject in known:
            world.load.put(subject, 1)
        time.sleep(4.0)
        world.counts["asked_while_behind"] += len(known)
        proxy.set(Fault.NONE)


def refuse_by_acl(world: World) -> None:
    """A misconfiguration is loud: errors until it is corrected, and no silent fallback."""
    world.redis.client.acl_setuser("app", enabled=True, commands=["-evalsha", "-eval"])
    time.sleep(world.scale(2.0))
    world.redis.client.acl_setuser("app", enabled=True, commands=["+evalsha", "+eval"])


def arm_the_crash(world: World) -> None:
    crashed = world.crash_file()
    Path(f"{crashed}.armed").touch()
    wait_for(crashed.exists, "the crash")
    world.counts["kills"] += 1


def crash_at_a_stored_delivery(world: World) -> None:
    """The crash strikes at the attempt that would end it."""
    stored = send(world, names(world, REFUSED, 5))
    world.sink.release.set()
    Path(f"{world.crash_file()}.armed").touch()
    replay_waiting(world.servers[0])
    arm_the_crash(world)
    for _ in range(30):  # its lease ends before another process may take it
        if world.sink.arrived_at.keys() >= set(stored):
            break
        replay_waiting(world.servers[0])
        time.sleep(1.0)
    doubled = [subject for subject in stored if world.sink.arrived_at[subject] > 1]
    assert not doubled or world.setup.crash_at == "before finish", f"stored, and sent twice: {doubled}"


def stop_a_process_past_its_lease(world: World) -> None:
    arm_the_crash(world)
    time.sleep(LEASE_S + 1)
    for pid in all_pids(world):
        os.kill(pid, signal.SIGCONT)


def lock_sqlite(world: World) -> None:
    for server in world.servers:
        with closing(sqlite3.connect(server.data_dir / "journal.db", isolation_level=None, timeout=10)) as lock:
            lock.execute("BEGIN IMMEDIATE")
            world.counts["locks"] += 1
            time.sleep(world.scale(1.5))
            lock.execute("ROLLBACK")


def fill_the_disk(world: World) -> None:
    """No file of the processes may grow any more."""
    before = world.load.report.troubles
    for limit in (4096, resource.RLIM_INFINITY):
        for pid in all_pids(world):
            psutil.Process(pid).rlimit(psutil.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        time.sleep(world.scale(1.5))
    world.counts["refused_for_the_disk"] = world.load.report.troubles - before


def without_redis(strike: Strike) -> Strike:
    def strike_without(world: World) -> None:
        with world.outage():
            world.set_all(Fault.REFUSE)
            for server in world.servers:
                wait_for(lambda server=server: state_of(server) == "gone", "it decides alone")  # type: ignore[misc]
            strike(world)
            world.set_all(Fault.NONE)

    return strike_without


def set_the_clock_forward(world: World) -> None:
    """By more than a lease, while deliveries are under way; their repeats must find them so."""
    held = hold_deliveries(world)
    set_clock(world, 120)
    for subject in held:
        world.load.put(subject)
    time.sleep(1.5)
    world.sink.release.set()


def set_the_clock_back(world: World) -> None:
    """What a killed process left must be free after its lease, not after a day."""
    arm_the_crash(world)
    set_clock(world, -DAY_S)


def set_clock(world: World, ahead_s: int) -> None:
    new = world.folder / "clock.new"
    new.write_text(str(ahead_s))
    new.replace(world.folder / "clock")  # a process that reads it meanwhile must not find an empty file
    world.counts["clock_changes"] += 1


def cause_chaos(world: World) -> None:
    """Faults of Redis and of the way to it at random, some of them at once."""
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

    def stop_redis() -> None:
        with stopped(world, [redis.pid]):
            pause(0.5, 5.0)

    def stop_a_machine() -> None:
        with stopped(world, chance.choice(world.servers).worker_pids()):
            pause(0.5, 3.0)

    faults: list[Callable[[], object]] = [
        lambda: break_the_way(Fault.REFUSE),
        lambda: break_the_way(Fault.HANG),
        lambda: break_the_way(Fault.CUT_AFTER_SEND),
        restart_redis,
        stop_redis,
        stop_a_machine,
        redis.client.flushall,
    ]
    with world.outage():
        for _ in range(20 if world.size.is_long else 6):
            chance.choice(faults)()
            world.counts["faults"] += 1
            pause(0.0, 3.0)


def cause_chaos_with_a_failing_destination(world: World) -> None:
    """Some webhooks fail, so their emails are stored, or returned to their provider."""
    world.sink.fails_every = 7
    with world.outage():
        cause_chaos(world)
        world.sink.fails_every = 0
    for _ in range(20):
        if not replay_waiting(world.servers[0]):
            break
        time.sleep(1.0)


# Operators and destinations


def reset_and_replay(world: World) -> None:
    """Some wait, some are in progress, some are delivered: none may be forgotten."""
    send(world, names(world, REFUSED, 20))
    for server in world.servers * (5 if world.size.is_long else 2):
        world.counts["kept_by_reset"] += len(reset_all(server))
        world.counts["replayed"] += replay_waiting(server)
    world.sink.release.set()
    for server in world.servers:
        reset_all(server)
        replay_waiting(server)  # after two failures they would wait for five minutes


def reset_all(server: Server) -> list[str]:
    """What it kept. An operator who is asked to retry does so."""
    deadline = time.monotonic() + 60
    while (answer := server.reset(scope="all", confirm="all")).status_code == 503 and time.monotonic() < deadline:
        time.sleep(0.5)
    assert answer.status_code == 200, answer.text
    return list(answer.json()["kept"])


def replay_waiting(server: Server) -> int:
    url = f"{server.url}/api/admin/deliveries/replay"
    answer = requests.post(url, json={"status": "waiting"}, headers=ADMIN, timeout=60)
    assert answer.status_code == 200, answer.text
    return int(answer.json().get("replayed", 0))


def replay_by_force(world: World) -> None:
    """Ten that were delivered, each exactly once more."""
    url = f"{world.servers[0].url}/api/admin/deliveries"
    found = requests.get(url, params={"status": "delivered", "limit": "10"}, headers=ADMIN, timeout=60).json()
    for delivery in found["deliveries"]:
        answer = requests.post(f"{url}/{delivery['id']}/replay", json={"force": True}, headers=ADMIN, timeout=60)
        world.counts["replayed"] += answer.status_code == 200


def answer_with(*replies: Reply, seconds: float = 2.0) -> Strike:
    """The destination answers so, one after the other, for a while."""

    def strike(world: World) -> None:
        before = len(world.sink.received)
        for reply in replies:
            world.sink.otherwise = reply
            time.sleep(world.scale(seconds) / len(replies))
        world.sink.otherwise = Reply()
        world.counts["troubled_webhooks"] += len(world.sink.received) - before
        for _ in range(10):  # as an operator does: after two failures they would wait for five minutes
            time.sleep(0.5)
            if not replay_waiting(world.servers[0]):
                break

    return strike


def kill_web_processes(world: World) -> None:
    for server in world.servers:
        os.kill(server.worker_pids()[0], signal.SIGKILL)
        world.counts["kills"] += 1
        time.sleep(0.5)


def kill_a_worker(world: World) -> None:
    world.workers[0].kill_a_child()
    world.counts["kills"] += 1


# Helpers


def names(world: World, what: str, count: int) -> list[str]:
    """Subjects that no scenario before has used."""
    return [f"{what} {world.seed}-{number}" for number in range(count)]


def hold_deliveries(world: World) -> list[str]:
    """Some that have reached the destination, and are not answered before ``sink.release``."""
    held = names(world, HELD, 4)
    for number, subject in enumerate(held):
        world.load.put(subject, number % len(world.servers))
    wait_for(lambda: world.sink.held.keys() >= set(held), "they are held")
    world.counts["held"] += len(held)
    return held


def send(world: World, subjects: Iterable[str], to: int | None = None, *, again: bool = False) -> list[str]:
    """To one machine, or to all in turn, until they are accepted."""
    sent = list(subjects)
    before = world.load.report.answers.total()
    for number, subject in enumerate(sent):
        world.load.put(subject, number % len(world.servers) if to is None else to)
    wait_for(lambda: world.load.has_accepted(sent), "they are accepted")
    if again:
        wait_for(lambda: world.load.report.answers.total() >= before + len(sent), "they are answered")
    return sent


def repeat_elsewhere(world: World, subjects: Sequence[str]) -> None:
    for subject in subjects:
        world.load.put(subject, (world.load.machine_of(subject) + 1) % len(world.servers))


def count_entries(server: Server) -> int:
    with closing(sqlite3.connect(f"file:{server.data_dir / 'journal.db'}?mode=ro", uri=True)) as journal:
        return int(journal.execute("SELECT count(*) FROM entries").fetchone()[0])


def state_of(server: Server) -> str | None:
    """Of Redis, as one process sees it."""
    try:
        state: str | None = server.health()["checks"]["redis"].get("state")
    except (requests.RequestException, ValueError, KeyError):
        return None
    return state


def all_pids(world: World) -> list[int]:
    return [pid for server in world.servers for pid in server.worker_pids()]


@contextmanager
def stopped(world: World, pids: Sequence[int]) -> Iterator[None]:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    world.counts["stops"] += 1
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


# All of them

CUT_OFF = "b"
NOTED = "a"
ALONE = ("gone", "alone")
CALM = ("gone", "alone", "gaps", "new_eras")
SHORT_LEASE = {"LEASE_SECONDS": str(LEASE_S)}
QUICK = Setup(settings=SHORT_LEASE)
ONE_BY_ONE = Setup(settings={"WEB_THREADS": "1", **SHORT_LEASE})
NO_AOF = Setup(redis_options=())
QUEUE = Setup(has_queue=True, settings=SHORT_LEASE)
CLOSED = Setup(settings={"ON_STORE_FAILURE": "closed", **SHORT_LEASE})


def crash(step: str, by: str = "SIGKILL") -> Setup:
    return replace(ONE_BY_ONE, crash_at=step, crash_signal=by)


SCENARIOS = [
    Scenario("nothing happens", do_nothing, never=CALM, pause_s=3),
    # Redis goes away
    Scenario("Redis killed", kill_redis, ("kills", "new_eras"), window="b", most_doubles=None),
    Scenario("Redis killed, AOF off", kill_redis, ("kills", "new_eras"), setup=NO_AOF, window="b", most_doubles=None),
    Scenario("Redis killed, sticky", kill_redis, ("kills", "new_eras"), sticky=True),
    Scenario("Redis killed twice for 5 s", kill_redis_twice, ("kills", *ALONE), window="b", most_doubles=None),
    Scenario("Redis killed twice for 5 s, sticky", kill_redis_twice, ("kills", *ALONE), sticky=True),
    Scenario("Redis killed, closed", kill_redis, ("kills",), ("alone",), setup=CLOSED, pause_s=150, recovery_s=150),
    Scenario(
        "Redis killed, the same emails to B and to C with a new disk",
        kill_redis_after_a_did_its_work,
        ("kills", "empty_disks", "repeats", "gone"),
        setup=Setup(machines=3),
        loaded=2,
        sticky=True,
    ),
    Scenario("Redis silent for 0.1 s", stop_redis_for(0.1), ("stops",), CALM),
    Scenario(
        "Redis silent for 3 s, deliveries under way",
        stop_redis_while_deliveries_are_under_way,
        ("stops", "held", "published_later"),
        window="b",
        most_doubles=None,
    ),
    Scenario(
        "Redis silent for 30 s",
        stop_redis_for(30),
        ("stops", *ALONE),
        window="b",
        most_doubles=None,
        slowest_s=5,
        pause_s=6,
    ),
    Scenario(
        "Redis silent for 30 s, one machine",
        hang_redis_alone,
        ("stops", *ALONE),
        setup=Setup(machines=1),
        slowest_s=5,
        pause_s=3,
    ),
    Scenario("Redis slow, 0.4 s", slow_down_by(0.4), ("slow_replies",), CALM),
    Scenario("Redis slow, 1.5 s", slow_down_by(1.5), ("slow_replies",), ("alone", "new_eras")),
    *[
        Scenario(
            f"requests lost, {fault.value}",
            lose_requests(fault),
            ("lost_holds", "lost_outcomes"),
            setup=QUICK,
            window="b",
            most_doubles=None,
        )
        for fault in (Fault.CUT_BEFORE_SEND, Fault.CUT_AFTER_SEND, Fault.CUT_MID_REPLY)
    ],
    Scenario("the reply of a hold lost", lose_the_reply_of_a_hold, ("lost_replies",), ("alone",)),
    Scenario("holds executed late", execute_holds_late, ("stops",), window="b", most_doubles=None),
    Scenario("every outcome lost", lose_every_outcome, ("held", "lost_outcomes"), window="b", most_doubles=None),
    Scenario("network cut, sticky", cut_the_network, ALONE, sticky=True),
    Scenario("network cut", cut_the_network, ALONE, window="b", most_doubles=None),
    Scenario("network cut, closed", without_redis(lambda world: time.sleep(2)), ("gone",), ("alone",), setup=CLOSED),
    Scenario(
        "one machine cut off stores nothing",
        cut_off_one_machine,
        ("gone", "stored_by_the_other"),
        sticky=True,
    ),
    Scenario(
        "one process cut off, its neighbour not",
        cut_off_one_process,
        ("gone", "alone"),
        setup=Setup(cuts_processes=True),
        sticky=True,
    ),
    Scenario(
        "deliveries under way when Redis goes",
        lose_redis_while_deliveries_are_under_way,
        ("held", *ALONE),
        sticky=True,
    ),
    Scenario("a reply lost while a machine boots", lose_replies_while_a_machine_boots, ("lost_replies",), sticky=True),
    Scenario("maxmemory reached", reach_maxmemory, ("gone",), window="b", most_doubles=None),
    Scenario("Redis read-only", make_redis_a_replica, ("gone",), window="b", most_doubles=None),
    Scenario("Redis loading", restart_redis_slowly, ("kills", "new_eras"), window="b", most_doubles=None),
    Scenario("reset during an outage", reset_during_an_outage, ("gone", "refused_resets"), sticky=True),
    # Redis forgets
    Scenario("scripts flushed", flush_scripts, ("noscripts",), CALM),
    Scenario("connections killed", kill_connections, ("connections_cut",), window="b", most_doubles=None),
    Scenario("Redis emptied", flush_all, ("flushes", "new_eras")),
    Scenario(
        "Redis emptied while requests are under way",
        flush_all_while_requests_are_under_way,
        ("flushes", "held", "new_eras"),
    ),
    Scenario(
        "Redis emptied while one machine sleeps", flush_all_while_one_machine_sleeps, ("flushes", "stops", "new_eras")
    ),
    Scenario(
        "older snapshot and restart of all",
        restore_older_snapshot_and_restart,
        ("kills", "new_eras"),
        setup=NO_AOF,
        sticky=True,
    ),
    Scenario(
        "Redis set back between hold and outcome",
        go_back_between_hold_and_outcome,
        ("held", "kills", "new_eras"),
        setup=Setup(redis_options=(), settings=SHORT_LEASE),
        window="b",
        most_doubles=None,
    ),
    Scenario("restart of everything", restart_everything, ("kills",), window="b", most_doubles=None),
    Scenario(
        "stream trimmed behind a machine that slept",
        trim_the_stream_behind_a_machine,
        ("stops", "gaps", "asked_with_a_gap"),
        sticky=True,
    ),
    Scenario("chaos, sticky", cause_chaos, ("faults", "gone", "new_eras"), sticky=True, pause_s=30),
    Scenario("chaos", cause_chaos, ("faults", "gone", "new_eras"), window="b", most_doubles=None, pause_s=30),
    Scenario(
        "chaos with a failing destination",
        cause_chaos_with_a_failing_destination,
        ("faults", "gone", "new_eras"),
        window="b",
        most_doubles=None,
        pause_s=30,
    ),
    # Machines and processes
    Scenario(
        "disk lost with emails queued",
        lose_the_disk_with_emails_queued,
        ("empty_disks", "sent_by_the_other"),
        setup=QUICK,
        sticky=True,
        window="c",
        most_doubles=5,
    ),
    Scenario("a machine away for an hour", be_away_for_an_hour, ("asked_while_behind",), setup=QUICK, sticky=True),
    Scenario("wrong ACL", refuse_by_acl, ("misconfigured",), ("alone",), setup=Setup(has_acl=True)),
    *[
        Scenario(f"kill -9 {step}", arm_the_crash, ("kills",), setup=crash(step))
        for step in ("before claim", "after hold", "after claim", "before the POST", "after the note", "after settle")
    ],
    Scenario(
        "kill -9 after the POST", arm_the_crash, ("kills",), setup=crash("after the POST"), window="a", most_doubles=1
    ),
    *[  # the process has requests under way as well
        Scenario(
            f"kill -9 of a stored delivery, {step}",
            crash_at_a_stored_delivery,
            ("kills",),
            setup=crash(step),
            window="a",
            most_doubles=2,
        )
        for step in ("before take", "after hand-out", "after take", "before finish", "after finish")
    ],
    Scenario(
        "SIGSTOP past the lease, before the POST",
        stop_a_process_past_its_lease,
        ("kills",),
        setup=crash("after claim", "SIGSTOP"),
        slowest_s=15,
    ),
    Scenario(
        "SIGSTOP past the lease, after the note",
        stop_a_process_past_its_lease,
        ("kills",),
        setup=crash("after the note", "SIGSTOP"),
        window="c",
        most_doubles=1,
        slowest_s=15,
    ),
    Scenario("SQLite locked", lock_sqlite, ("locks",), CALM),
    Scenario("SQLite locked and Redis away", without_redis(lock_sqlite), ("locks", "gone"), sticky=True),
    Scenario("disk full", fill_the_disk, ("refused_for_the_disk",)),
    Scenario("disk full and Redis away", without_redis(fill_the_disk), ("refused_for_the_disk", "gone"), sticky=True),
    Scenario(
        "clock two minutes forward",
        set_the_clock_forward,
        ("held", "clock_changes"),
        setup=Setup(has_redis=False, sets_the_clock=True, machines=1),
    ),
    Scenario(
        "clock a day back after kill -9",
        set_the_clock_back,
        ("kills", "clock_changes"),
        setup=replace(crash("after claim"), has_redis=False, sets_the_clock=True, machines=1),
    ),
    # Operators and destinations
    Scenario("destination down", answer_with(Reply(503)), ("troubled_webhooks",), CALM),
    Scenario("destination slow", answer_with(Reply(delay_s=1.0)), ("troubled_webhooks",), CALM),
    Scenario(
        "destination flapping",
        answer_with(*(Reply(503), Reply()) * 4, Reply(0), seconds=3.0),
        ("troubled_webhooks",),
        CALM,
    ),
    Scenario(
        "destination overloaded (429)",
        answer_with(Reply(429, headers={"Retry-After": "1"})),
        ("troubled_webhooks",),
        CALM,
    ),
    Scenario("reset and replay in traffic", reset_and_replay, ("kept_by_reset", "replayed"), duplicates=0.0),
    Scenario(
        "replay by force in traffic",
        replay_by_force,
        ("replayed",),
        setup=Setup(settings={"DELIVERED_PAYLOAD_DAYS": "1"}),
        window="asked for",
        most_doubles=10,
    ),
    # With the queue on Redis
    Scenario("queue: nothing happens", do_nothing, never=CALM, setup=QUEUE, pause_s=3),
    Scenario("queue: kill -9 web processes", kill_web_processes, ("kills",), setup=QUEUE),
    Scenario("queue: kill -9 a worker", kill_a_worker, ("kills",), setup=QUEUE, window="a", most_doubles=4),
    Scenario("queue: Redis killed", kill_redis, ("kills", "new_eras"), setup=QUEUE, window="b", most_doubles=None),
    Scenario(
        "queue: Redis killed, AOF off",
        kill_redis,
        ("kills", "new_eras"),
        setup=replace(QUEUE, redis_options=()),
        window="b",
        most_doubles=None,
    ),
    Scenario("queue: network cut, sticky", cut_the_network, ("gone",), setup=QUEUE, sticky=True),
    Scenario("queue: destination down", answer_with(Reply(503)), ("troubled_webhooks",), setup=QUEUE),
    Scenario("queue: Redis emptied", flush_all, ("flushes", "new_eras"), setup=QUEUE),
]
