"""Every fault, as something that strikes in the middle of traffic, and the facts that show that it did."""

from __future__ import annotations

import base64
import os
import random
import resource
import shutil
import signal
import sqlite3
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import requests

from deduplication.journal.coordinator import Claimed
from deduplication.journal.entry import DeliveryStatus, changed
from orchestrator.delivery.webhook import pack
from tests.bench.machines import new_claim, opened
from tests.faults.world import AOF, HELD, REFUSED, Scenario, Setup, World, wait_for, wait_until_well
from tests.support.proxy import Fault
from tests.support.redis_server import RedisServer, free_port, redis_server_version
from tests.support.server import ADMIN, Server, email
from tests.support.sink import Reply, Sink

LEASE_S = 4
DAY_S = 86_400
AWAY_S = 3_600
NOTICEABLE_S = 0.05
DOWN, GONE_FOR_GOOD = Reply(503), Reply(404)
HOLDS, OUTCOMES = b"\xa4HOLD", b"\xa4SADD"  # in the requests of the protocol
Strike = Callable[..., object]

ALONE = "gone alone"
LOST = "lost_holds lost_outcomes"
CALM = "gone alone gaps new_eras"
LEASE = {"LEASE_SECONDS": str(LEASE_S)}
AS_SHIPPED = Setup()
ONE = Setup(machines=1)
QUICK = Setup(settings=LEASE)
NO_AOF = Setup(redis_options=())
CLOSED = Setup(settings={"ON_STORE_FAILURE": "closed", **LEASE})
QUEUE = Setup(queue="redis", settings=LEASE)
BREAKER = Setup(settings=LEASE, options="breaker_failures = 5\nbreaker_pause_s = 2")
TWO_ROUTES = replace(BREAKER, machines=1, others=("other",))
FAN_OUT = replace(BREAKER, queue="redis", others=("slow", "failing"), fans_out=True)
SMALL_REDIS = (*AOF, "--maxmemory", str(24 << 20), "--maxmemory-policy", "noeviction")
CRASH_STEPS = ("before take", "after hand-out", "after take", "before finish", "after finish")

SCENARIOS: list[Scenario] = []


def scenario(
    name: str, struck: str = "", never: str = "", setup: Setup = AS_SHIPPED, **named: Any
) -> Callable[[Strike], Strike]:
    """Lists a strike as a scenario. Arguments that a Scenario does not have are given to the strike."""
    judged = {key: value for key, value in named.items() if key in Scenario.__dataclass_fields__ and key != "strike"}
    given = {key: value for key, value in named.items() if key not in judged}

    def add(strike: Strike) -> Strike:
        listed = sum(getattr(each.strike, "func", None) is strike for each in SCENARIOS)
        at = len(SCENARIOS) - listed  # Python applies the last decorator first
        SCENARIOS.insert(at, Scenario(name, partial(strike, **given), struck, never, setup, **judged))
        return strike

    return add


def crash_at(step: str, by: str = "SIGKILL") -> Setup:
    return Setup(settings={"WEB_THREADS": "1", **LEASE}, crash_at=step, crash_signal=by)


def at_each_step(name: str, machines: int = 2, **given: Any) -> Callable[[Strike], Strike]:
    """Of a stored delivery. The process has requests under way as well."""

    def add(strike: Strike) -> Strike:
        for step in reversed(CRASH_STEPS):
            setup = replace(crash_at(step), machines=machines)
            scenario(name.format(step=step), "kills", setup=setup, window="a", most_doubles=2, **given)(strike)
        return strike

    return add


@scenario("nothing happens", never=CALM, pause_s=3)
@scenario("queue: nothing happens", never=CALM, setup=QUEUE, pause_s=3)
def do_nothing(world: World) -> None:
    """The way it should be."""


# Parts of strikes


@contextmanager
def without_redis(world: World, *numbers: int) -> Iterator[None]:
    """All machines, or these, cannot reach Redis and have noticed it."""
    chosen = numbers or range(len(world.servers))
    with world.outage():
        for number in chosen:
            world.proxies[number].set(Fault.REFUSE)
        wait_for(lambda: all(state_of(world.servers[number]) == "gone" for number in chosen), "Redis is gone")
        yield
        world.set_all(Fault.NONE)


@contextmanager
def redis_killed(world: World, *options: str) -> Iterator[None]:
    """``options`` are for its next start."""
    with world.outage():
        world.redis.kill()
        world.counts["kills"] += 1
        yield
        world.redis.start(*options)


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


def names(world: World, what: str, count: int) -> list[str]:
    """Subjects that no scenario before has used."""
    return [f"{what} {world.seed}-{number}" for number in range(count)]


def hold_deliveries(world: World) -> list[str]:
    """Some that have reached the destination, and are not answered before ``release``."""
    held = names(world, HELD, 4)
    put(world, held)
    wait_for(lambda: world.sink.held.keys() >= set(held), "they are held")
    world.counts["held"] += len(held)
    return held


def release(world: World, held: Collection[str]) -> None:
    world.sink.release.set()
    wait_for(lambda: world.load.has_accepted(held), "they are delivered")


def put(world: World, subjects: Iterable[str], to: int | None = None) -> None:
    """Sends them now, to one machine, or to all in turn."""
    for number, subject in enumerate(subjects):
        world.load.put(subject, number % len(world.servers) if to is None else to)


def send(world: World, subjects: Iterable[str], to: int | None = None, *, again: bool = False) -> list[str]:
    """And waits until they are accepted; ``again``: until they are answered once more."""
    sent = list(subjects)
    before = world.load.report.answers.total()
    put(world, sent, to)
    wait_for(lambda: world.load.has_accepted(sent), "they are accepted")
    if again:
        wait_for(lambda: world.load.report.answers.total() >= before + len(sent), "they are answered")
    return sent


def repeat_elsewhere(world: World, subjects: Sequence[str]) -> None:
    for subject in subjects:
        world.load.put(subject, (world.load.machine_of(subject) + 1) % len(world.servers))


def post(world: World, subject: str, body: str) -> str:
    """Outside the traffic, until it is accepted; the status."""
    answers: list[requests.Response] = []

    def is_accepted() -> bool:
        answers.append(world.servers[0].post(email(subject=subject, body=body), timeout_s=120))
        return answers[-1].ok

    wait_for(is_accepted, f"{subject} is accepted")
    return str(answers[-1].json()["status"])


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


def replay_waiting(server: Server) -> int:
    url = f"{server.url}/api/admin/deliveries/replay"
    answer = requests.post(url, json={"status": "waiting"}, headers=ADMIN, timeout=60)
    assert answer.status_code == 200, answer.text
    return int(answer.json().get("replayed", 0))


def replay_until(world: World, is_done: Callable[[int], bool], tries: int = 60) -> None:
    """As an operator does: after two failures, the next try would be minutes away. ``is_done`` gets how many waited."""
    for _ in range(tries):
        if is_done(replay_waiting(world.servers[0])):
            return
        time.sleep(2.0)


def replay_until_arrived(world: World, sink: Sink, subjects: Iterable[str]) -> None:
    replay_until(world, lambda _: sink.subjects.keys() >= set(subjects))


# Redis goes away


@scenario("Redis killed", "kills new_eras", window="b")
@scenario("Redis killed, AOF off", "kills new_eras", setup=NO_AOF, window="b")
@scenario("Redis killed, sticky", "kills new_eras", sticky=True)
@scenario("Redis killed, closed", "kills", "alone", CLOSED, pause_s=150, recovery_s=150)
@scenario("Redis killed twice for 5 s", f"kills {ALONE}", window="b", seconds=5, times=2)
@scenario("Redis killed twice for 5 s, sticky", f"kills {ALONE}", sticky=True, seconds=5, times=2)
@scenario("queue: Redis killed", "kills new_eras", setup=QUEUE, window="b")
@scenario("queue: Redis killed, AOF off", "kills new_eras", setup=replace(QUEUE, redis_options=()), window="b")
def kill_redis(world: World, seconds: float = 1.0, times: int = 1) -> None:
    for _ in range(times):
        with redis_killed(world):
            time.sleep(seconds)


@scenario(
    "Redis killed, the same emails to B and to C with a new disk",
    "kills empty_disks repeats gone",
    setup=Setup(machines=3),
    loaded=2,
    sticky=True,
)
def kill_redis_after_a_did_its_work(world: World) -> None:
    """The same emails come to B, and to C, which began with an empty disk and has read the stream."""
    known = send(world, names(world, "known", 60), to=0)
    replace_disk(world, 2)
    wait_until_well(world)
    wait_for(lambda: count_entries(world.servers[2]) >= len(known), "C has read the stream")
    with redis_killed(world):
        wait_for(lambda: all(state_of(each) == "gone" for each in world.servers[1:]), "Redis is gone")
        for number in (1, 2):
            send(world, known, to=number, again=True)
        world.counts["repeats"] += 2 * len(known)


@scenario("Redis silent for 0.1 s", "stops", CALM, seconds=0.1)
@scenario("Redis silent for 30 s", f"stops {ALONE}", window="b", slowest_s=5, pause_s=6, seconds=30)
def stop_redis(world: World, seconds: float) -> None:
    with world.outage(), stopped(world, [world.redis.pid]):
        time.sleep(seconds)


@scenario("Redis silent for 30 s, one machine", f"stops {ALONE}", setup=ONE, slowest_s=5, pause_s=3)
def hang_redis_alone(world: World) -> None:
    """A machine that has been the only member for a minute goes on at the first missing answer."""
    time.sleep(65 if world.size.is_long else 1)
    stop_redis(world, 30)


@scenario("Redis silent for 3 s, deliveries under way", "stops held published_later", window="b")
def stop_redis_while_deliveries_are_under_way(world: World) -> None:
    """They are noted, and published later. Another machine, asked for them then, must not send them."""
    held = hold_deliveries(world)
    with world.outage(), stopped(world, [world.redis.pid]):
        time.sleep(2.5)
        release(world, held)
    repeat_elsewhere(world, held)


@scenario(f"requests lost, {Fault.CUT_BEFORE_SEND}", LOST, setup=QUICK, window="b", fault=Fault.CUT_BEFORE_SEND)
@scenario(f"requests lost, {Fault.CUT_AFTER_SEND}", LOST, setup=QUICK, window="b", fault=Fault.CUT_AFTER_SEND)
@scenario(f"requests lost, {Fault.CUT_MID_REPLY}", LOST, setup=QUICK, window="b", fault=Fault.CUT_MID_REPLY)
def lose_requests(world: World, fault: Fault) -> None:
    """Holds and outcomes, one after the other, each exactly once."""
    for step, words in {"holds": HOLDS, "outcomes": OUTCOMES}.items():
        for number in range(8 if world.size.is_long else 3):
            lose_one(world, number % len(world.proxies), fault, words)
            world.counts[f"lost_{step}"] += 1


def lose_one(world: World, number: int, fault: Fault, words: bytes = b"", skips: int = 0) -> None:
    """One request of a machine with these words, or its reply, after ``skips`` others."""
    proxy = world.proxies[number]
    before = proxy.cuts
    proxy.set(fault, once=True, skips=skips, meant=lambda request: words in request)
    wait_for(lambda: proxy.cuts > before, "a request or a reply is lost")


@scenario("the reply of a hold lost", "lost_replies", "alone")
def lose_the_reply_of_a_hold(world: World) -> None:
    """Its email must not be blocked for the whole lease (25 s)."""
    (subject,) = names(world, "lost", 1)
    world.proxies[0].set(Fault.CUT_AFTER_SEND, once=True, meant=lambda request: HOLDS in request)
    before = world.proxies[0].cuts
    world.load.put(subject, 0)
    wait_for(lambda: world.proxies[0].cuts > before, "the reply is lost")
    world.counts["lost_replies"] += 1
    took_s = wait_for(lambda: world.load.has_accepted([subject]), "the email is accepted")
    assert took_s < 8, f"a lost reply blocked its email for {took_s:.1f} s"


@scenario("holds executed late", "stops", window="b")
def execute_holds_late(world: World) -> None:
    """Redis is stopped for longer than anybody waits, and executes afterwards what lies in its sockets."""
    subjects = names(world, "late", 4)
    with world.outage():
        with stopped(world, [world.redis.pid]):
            put(world, subjects)
            time.sleep(3.5)
        took_s = wait_for(lambda: world.load.has_accepted(subjects), "they are accepted")
    assert took_s < 10, f"a late hold blocked its email for {took_s:.1f} s"


@scenario("every outcome lost", "held lost_outcomes", window="b")
def lose_every_outcome(world: World) -> None:
    held = hold_deliveries(world)
    before = sum(proxy.cuts for proxy in world.proxies)
    world.set_all(Fault.CUT_BEFORE_SEND, meant=lambda request: OUTCOMES in request)
    release(world, held)
    wait_for(lambda: sum(proxy.cuts for proxy in world.proxies) > before, "outcomes are lost")
    world.counts["lost_outcomes"] += 1
    world.set_all(Fault.NONE)
    repeat_elsewhere(world, held)


@scenario("network cut, sticky", ALONE, sticky=True)
@scenario("network cut", ALONE, window="b")
@scenario("network cut, closed", "gone", "alone", CLOSED)
@scenario("queue: network cut, sticky", "gone", setup=QUEUE, sticky=True)
def cut_the_network(world: World) -> None:
    """Until every machine decides alone, and a while longer."""
    with without_redis(world):
        time.sleep(world.scale(1.5))


@scenario("one machine cut off stores nothing", "gone stored_by_the_other", sticky=True)
def cut_off_one_machine(world: World) -> None:
    """It stores nothing meanwhile: an email that the others store too must be sent once."""
    refused = names(world, REFUSED, 20)
    with without_redis(world, 1):
        put(world, refused, to=1)
        send(world, refused, to=0)
        world.counts["stored_by_the_other"] += len(refused)
    world.sink.release.set()
    replay_waiting(world.servers[0])


@scenario("one process cut off, its neighbour not", ALONE, setup=Setup(cuts_processes=True), sticky=True)
def cut_off_one_process(world: World) -> None:
    """Its neighbour on the same machine, and the other machine, reach Redis all the time."""
    with world.outage():
        world.spares[0].set(Fault.REFUSE)
        time.sleep(world.scale(4.0))
        wait_for(lambda: bool(world.found["alone"]), "it gets an email")  # the kernel chooses the process
        world.spares[0].set(Fault.NONE)


@scenario("deliveries under way when Redis goes", f"held {ALONE}", sticky=True)
def lose_redis_while_deliveries_are_under_way(world: World) -> None:
    """Repeats that arrive while their machine decides alone must find them in progress."""
    held = hold_deliveries(world)
    with without_redis(world):
        for subject in held:
            world.load.put(subject)
        time.sleep(1.0)
        release(world, held)


@scenario("a reply lost while a machine boots", "lost_replies", sticky=True)
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


@scenario("Redis slow, 0.4 s", "slow_replies", CALM, seconds=0.4)
@scenario("Redis slow, 1.5 s", "slow_replies", "alone new_eras", seconds=1.5)
def slow_redis_down(world: World, seconds: float) -> None:
    for proxy in world.proxies:
        proxy.delay_s = seconds
    time.sleep(10 if world.size.is_long else 4)
    for proxy in world.proxies:
        proxy.delay_s = 0
        world.counts["slow_replies"] += proxy.delayed


@scenario("maxmemory reached", "gone", window="b")
def reach_maxmemory(world: World) -> None:
    with world.outage():
        world.redis.client.config_set("maxmemory", "1")
        time.sleep(world.scale(3.0))
        world.redis.client.config_set("maxmemory", "0")


@scenario("Redis read-only", "gone", window="b")
def make_redis_a_replica(world: World) -> None:
    with world.outage():
        world.redis.client.replicaof("127.0.0.1", str(free_port()))
        time.sleep(world.scale(3.0))
        world.redis.client.replicaof("NO", "ONE")


@scenario("Redis loading", "kills new_eras", window="b")
def restart_redis_slowly(world: World) -> None:
    """LOADING: it answers, but only that it is not ready."""
    delay_us = int(world.scale(2.0) * 1_000_000 / max(1, world.redis.client.dbsize()))
    answers = ("--loading-process-events-interval-bytes", "1024") if redis_server_version() >= (7,) else ()
    with redis_killed(world, "--key-load-delay", str(delay_us), *answers):
        pass


@scenario("reset during an outage", "gone refused_resets", sticky=True)
def reset_during_an_outage(world: World) -> None:
    """Refused with 503 and words that say why; what was delivered stays known."""
    with without_redis(world):
        answer = world.servers[0].reset(scope="all", confirm="all")
        assert answer.status_code == 503 and "Redis" in answer.text, f"{answer.status_code} {answer.text}"
        world.counts["refused_resets"] += 1


# Redis forgets


@scenario("scripts flushed", "noscripts", CALM)
def flush_scripts(world: World) -> None:
    for _ in range(20):
        world.redis.client.script_flush()
        time.sleep(0.05)
    world.counts["noscripts"] = world.redis.client.info("errorstats").get("errorstat_NOSCRIPT", {}).get("count", 0)


@scenario("connections killed", "connections_cut", window="b")
def kill_connections(world: World) -> None:
    with world.outage():
        for _ in range(20):
            world.counts["connections_cut"] += int(world.redis.client.client_kill_filter(_type="normal", skipme=True))
            time.sleep(0.05)


@scenario("Redis emptied", "flushes new_eras")
@scenario("queue: Redis emptied", "flushes new_eras", setup=QUEUE)
def flush_all(world: World) -> None:
    world.redis.client.flushall()
    world.counts["flushes"] += 1


@scenario("Redis emptied while requests are under way", "flushes held new_eras")
def flush_all_while_requests_are_under_way(world: World) -> None:
    """On two machines. Repeats come to the other machine while they are, and after that."""
    held = hold_deliveries(world)
    flush_all(world)
    repeat_elsewhere(world, held)
    time.sleep(1.0)
    release(world, held)
    repeat_elsewhere(world, held)


@scenario("Redis emptied while one machine sleeps", "flushes stops new_eras")
def flush_all_while_one_machine_sleeps(world: World) -> None:
    """It publishes what it knows later than the other machine, which gets repeats of its emails meanwhile."""
    known = send(world, names(world, "known", 10), to=1)
    with stopped(world, world.servers[1].worker_pids()):
        flush_all(world)
        put(world, known, to=0)
        time.sleep(1.2)


@scenario("older snapshot and restart of all", "kills new_eras", setup=NO_AOF, sticky=True)
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
        server.start()
    repeat_elsewhere(world, newer)


@scenario(
    "Redis set back between hold and outcome", "held kills new_eras", setup=replace(NO_AOF, settings=LEASE), window="b"
)
def go_back_between_hold_and_outcome(world: World) -> None:
    held = hold_deliveries(world)
    world.redis.client.save()
    release(world, held)
    with world.outage():
        kill_redis(world, 0)
        time.sleep(LEASE_S)  # what Redis takes for held is free now
    repeat_elsewhere(world, held)


@scenario("restart of everything", "kills", window="b")
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


@scenario("stream trimmed behind a machine that slept", "stops gaps asked_with_a_gap", sticky=True)
def trim_the_stream_behind_a_machine(world: World) -> None:
    """It slept meanwhile. Without Redis it must not decide: it does not know what the others did."""
    client = world.redis.client
    with stopped(world, world.servers[1].worker_pids()):
        last = client.xinfo_stream("events")["last-generated-id"]
        known = send(world, names(world, "missed", 20), to=0)
        wait_for(lambda: len(client.xrange("events", f"({last}") or ()) >= 20, "they are published")
        client.xtrim("events", maxlen=1, approximate=False)
    wait_for(lambda: world.servers[1].health()["checks"]["fleet"]["status"] == "gap", "it notices the gap")
    with without_redis(world, 1):
        put(world, known, to=1)
        time.sleep(1.5)
        world.counts["asked_with_a_gap"] += len(known)


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


@scenario(
    "disk lost with emails queued",
    "empty_disks sent_by_the_other",
    setup=QUICK,
    sticky=True,
    window="c",
    most_doubles=5,
)
def lose_the_disk_with_emails_queued(world: World) -> None:
    """Another machine sends what the lost one had stored, and both recognise it afterwards."""
    stored = send(world, names(world, REFUSED, 20), to=1)
    world.servers[1].kill()
    world.sink.release.set()
    replay_waiting(world.servers[0])
    wait_for(lambda: world.sink.subjects.keys() >= set(stored), "another machine sends them")
    world.counts["sent_by_the_other"] += len(stored)
    world.servers[1].start()
    replace_disk(world, 1)
    wait_until_well(world)
    send(world, stored, to=1, again=True)


@scenario("a machine away for an hour", "asked_while_behind", setup=QUICK, sticky=True)
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
        put(world, known, to=1)
        time.sleep(4.0)
        world.counts["asked_while_behind"] += len(known)
        proxy.set(Fault.NONE)


@scenario("wrong ACL", "misconfigured", "alone", Setup(has_acl=True))
def refuse_by_acl(world: World) -> None:
    """A misconfiguration is loud: errors until it is corrected, and no silent fallback."""
    world.redis.client.acl_setuser("app", enabled=True, commands=["-evalsha", "-eval"])
    time.sleep(world.scale(2.0))
    world.redis.client.acl_setuser("app", enabled=True, commands=["+evalsha", "+eval"])


def arm_the_crash(world: World) -> None:
    Path(f"{world.crash_file}.armed").touch()


@scenario("kill -9 before claim", "kills", setup=crash_at("before claim"))
@scenario("kill -9 after hold", "kills", setup=crash_at("after hold"))
@scenario("kill -9 after claim", "kills", setup=crash_at("after claim"))
@scenario("kill -9 before the POST", "kills", setup=crash_at("before the POST"))
@scenario("kill -9 after the POST", "kills", setup=crash_at("after the POST"), window="a", most_doubles=1)
@scenario("kill -9 after the note", "kills", setup=crash_at("after the note"))
@scenario("kill -9 after settle", "kills", setup=crash_at("after settle"))
def crash(world: World) -> None:
    arm_the_crash(world)
    wait_for(world.crash_file.exists, "the crash")
    world.counts["kills"] += 1


@at_each_step("kill -9 of a stored delivery, {step}")
def crash_at_a_stored_delivery(world: World) -> None:
    """The crash strikes at the attempt that would end it."""
    stored = send(world, names(world, REFUSED, 5))
    world.sink.release.set()
    arm_the_crash(world)
    replay_waiting(world.servers[0])
    crash(world)
    replay_until_arrived(world, world.sink, stored)  # its lease ends before another process may take it
    doubled = [subject for subject in stored if world.sink.subjects[subject] > 1]
    assert not doubled or world.setup.crash_at == "before finish", f"stored, and sent twice: {doubled}"


@at_each_step("a group, its first dies, kill -9 {step}", machines=1, dies=True)
@at_each_step("a group, its first arrives, kill -9 {step}", machines=1, dies=False)
def crash_in_a_group(world: World, *, dies: bool) -> None:
    """Of a group one goes out: the first, or the next if that becomes a dead letter; a crash strikes in between."""
    first, *others = group = [f"Lot {world.seed}00 {which}" for which in ("first", "second", "third")]
    world.sink.answers[first] = DOWN
    answers = [post(world, subject, f"This is the {subject}") for subject in group]
    assert answers[0] == "queued", "the first one was not stored"
    world.sink.answers[first] = GONE_FOR_GOOD if dies else Reply()
    arm_the_crash(world)
    replay_waiting(world.servers[0])
    crash(world)
    expected = set(others if dies else [first])
    wait_for(lambda: bool(expected & world.sink.subjects.keys()), "the one that is to go out")
    time.sleep(6.0)  # those that wait for a name are judged again after 5 s
    arrived = {subject: count for subject, count in world.sink.subjects.items() if subject in group}
    assert len(arrived) == 1 and arrived.keys() <= expected, f"another one went out: {arrived}"
    assert sum(arrived.values()) <= 1 + (world.setup.crash_at == "before finish"), f"sent twice: {arrived}"
    world.notes["answers"] = "/".join(answers)


@scenario("SIGSTOP past the lease, before the POST", "kills", setup=crash_at("after claim", "SIGSTOP"), slowest_s=15)
@scenario(
    "SIGSTOP past the lease, after the note",
    "kills",
    setup=crash_at("after the note", "SIGSTOP"),
    window="c",
    most_doubles=1,
    slowest_s=15,
)
def stop_a_process_past_its_lease(world: World) -> None:
    crash(world)
    time.sleep(LEASE_S + 1)
    for pid in all_pids(world):
        os.kill(pid, signal.SIGCONT)


@scenario("SQLite locked", "locks", CALM)
def lock_sqlite(world: World) -> None:
    for server in world.servers:
        with closing(sqlite3.connect(server.data_dir / "journal.db", isolation_level=None, timeout=10)) as lock:
            lock.execute("BEGIN IMMEDIATE")
            world.counts["locks"] += 1
            time.sleep(world.scale(1.5))
            lock.execute("ROLLBACK")


@scenario("disk full", "refused_for_the_disk")
def fill_the_disk(world: World) -> None:
    """No file of the processes may grow any more."""
    before = world.load.report.troubles
    for limit in (4096, resource.RLIM_INFINITY):
        for pid in all_pids(world):
            psutil.Process(pid).rlimit(psutil.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        time.sleep(world.scale(1.5))
    world.counts["refused_for_the_disk"] = world.load.report.troubles - before


@scenario("SQLite locked and Redis away", "locks gone", sticky=True, strike=lock_sqlite)
@scenario("disk full and Redis away", "refused_for_the_disk gone", sticky=True, strike=fill_the_disk)
def strike_without_redis(world: World, strike: Strike) -> None:
    with without_redis(world):
        strike(world)


@scenario("clock two minutes forward", "held clock_changes", setup=replace(ONE, has_redis=False, sets_the_clock=True))
def set_the_clock_forward(world: World) -> None:
    """By more than a lease, while deliveries are under way; their repeats must find them so."""
    held = hold_deliveries(world)
    set_clock(world, 120)
    for subject in held:
        world.load.put(subject)
    time.sleep(1.5)
    world.sink.release.set()


@scenario(
    "clock a day back after kill -9",
    "kills clock_changes",
    setup=replace(crash_at("after claim"), has_redis=False, sets_the_clock=True, machines=1),
)
def set_the_clock_back(world: World) -> None:
    """What a killed process left must be free after its lease, not after a day."""
    crash(world)
    set_clock(world, -DAY_S)


def set_clock(world: World, ahead_s: int) -> None:
    new = world.folder / "clock.new"
    new.write_text(str(ahead_s))
    new.replace(world.folder / "clock")  # a process that reads it meanwhile must not find an empty file
    world.counts["clock_changes"] += 1


@scenario("chaos, sticky", "faults gone new_eras", sticky=True, pause_s=30)
@scenario("chaos", "faults gone new_eras", window="b", pause_s=30)
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


@scenario("chaos with a failing destination", "faults gone new_eras", window="b", pause_s=30)
def cause_chaos_with_a_failing_destination(world: World) -> None:
    """Some webhooks fail, so their emails are stored, or returned to their provider."""
    world.sink.fails_every = 7
    with world.outage():
        cause_chaos(world)
        world.sink.fails_every = 0
    replay_until(world, lambda waiting: not waiting, 20)


# Operators and destinations


@scenario("reset and replay in traffic", "kept_by_reset replayed", duplicates=0.0)
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


@scenario(
    "replay by force in traffic",
    "replayed",
    setup=Setup(settings={"DELIVERED_PAYLOAD_DAYS": "1"}),
    window="asked for",
    most_doubles=10,
)
def replay_by_force(world: World) -> None:
    """Ten that were delivered, each exactly once more."""
    url = f"{world.servers[0].url}/api/admin/deliveries"
    found = requests.get(url, params={"status": "delivered", "limit": "10"}, headers=ADMIN, timeout=60).json()
    for delivery in found["deliveries"]:
        answer = requests.post(f"{url}/{delivery['id']}/replay", json={"force": True}, headers=ADMIN, timeout=60)
        world.counts["replayed"] += answer.status_code == 200


@scenario("destination down", "troubled_webhooks", CALM, replies=[DOWN])
@scenario("destination slow", "troubled_webhooks", CALM, replies=[Reply(delay_s=1.0)])
@scenario("destination flapping", "troubled_webhooks", CALM, replies=[DOWN, Reply()] * 4 + [Reply(0)])
@scenario("destination overloaded (429)", "troubled_webhooks", CALM, replies=[Reply(429, headers={"Retry-After": "1"})])
@scenario("queue: destination down", "troubled_webhooks", setup=QUEUE, replies=[DOWN])
def answer_with(world: World, replies: Sequence[Reply]) -> None:
    """The destination answers so, one after the other, for a while."""
    before = len(world.sink.received)
    for reply in replies:
        world.sink.otherwise = reply
        time.sleep(world.scale(2.0) / len(replies))
    world.sink.otherwise = Reply()
    world.counts["troubled_webhooks"] += len(world.sink.received) - before
    replay_until(world, lambda waiting: not waiting, 10)


@scenario("destination down, a machine killed", "kills refused", setup=BREAKER, pause_s=30)
@scenario(
    "queue: destination down, a machine killed", "kills refused", setup=replace(BREAKER, queue="redis"), pause_s=30
)
@scenario(
    "RabbitMQ: destination down, a machine killed",
    "kills refused",
    setup=replace(BREAKER, queue="rabbitmq"),
    pause_s=30,
)
def kill_a_machine_while_the_destination_is_down(world: World) -> None:
    """The others deliver what it has stored."""
    world.sink.otherwise = DOWN
    time.sleep(world.scale(1.5))
    accepted = len(world.sink.accepted)
    wait_for(lambda: count_due(world, "sink") > 0, "something waits")
    world.servers[1].kill()
    world.counts["kills"] += 1
    time.sleep(world.scale(1.5))
    world.counts["refused"] += len(world.sink.received) - len(world.sink.accepted)
    assert len(world.sink.accepted) == accepted, "the destination was not down"
    world.sink.otherwise = Reply()
    replay_until(world, lambda _: not count_due(world, "sink"))
    world.servers[1].start()


@scenario(
    "queue: kill -9 a worker, a slow and a failing destination",
    "kills refused",
    setup=FAN_OUT,
    window="a",
    most_doubles=8,
)
@scenario(
    "RabbitMQ: kill -9 a worker, a slow and a failing destination",
    "kills refused",
    setup=replace(FAN_OUT, queue="rabbitmq"),
    window="a",
    most_doubles=8,
)
def kill_a_worker_beside_slow_and_failing_destinations(world: World) -> None:
    world.others["slow"].otherwise, world.others["failing"].otherwise = Reply(delay_s=0.2), DOWN
    time.sleep(world.scale(3.0))
    kill_a_worker(world)
    world.counts["refused"] += len(world.others["failing"].received) - len(world.others["failing"].accepted)
    for sink in world.others.values():
        sink.otherwise = Reply()
    replay_until_arrived(world, world.others["failing"], list(world.load.report.accepted))


@scenario("queue: kill -9 web processes", "kills", setup=QUEUE)
def kill_web_processes(world: World) -> None:
    for server in world.servers:
        os.kill(server.worker_pids()[0], signal.SIGKILL)
        world.counts["kills"] += 1
        time.sleep(0.5)


@scenario("queue: kill -9 a worker", "kills", setup=QUEUE, window="a", most_doubles=4)
def kill_a_worker(world: World) -> None:
    world.workers[0].kill_a_child()
    world.counts["kills"] += 1


# Much waits


def count_due(world: World, destination: str) -> int:
    return int(world.redis.client.zcard(f"due:{destination}"))


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


@scenario("many wait behind an open breaker", "waiting", setup=TWO_ROUTES)
def pile_up_behind_an_open_breaker(world: World) -> None:
    """Many wait: the healthy destination must not notice, nor Redis be asked more."""
    down, count = world.others["other"], 20_000 if world.size.is_long else 400
    down.otherwise = DOWN
    for number in range(5):
        post(world, f"other {number}", f"This is other {number}")
    few_s, few = measure(world)
    store_waiting(world.redis, "other", count)
    world.counts["waiting"] = count_due(world, "other")
    assert count_due(world, "other") >= count, "there is no backlog"
    many_s, many = measure(world)
    compare(world, few_s, many_s)
    world.notes["commands/s"] = f"{few:.0f} -> {many:.0f}"
    assert many < 1.5 * few + 50, "Redis is asked more, the more waits"
    down.otherwise = Reply()
    world.notes["noticed after s"] = round(wait_for(lambda: bool(down.accepted), "it is well again"), 1)
    world.notes["all sent after s"] = round(wait_for(lambda: not count_due(world, "other"), "the rest", 900), 1)
    counts = down.counts()
    assert (len(counts), counts.total()) == (count + 5, count + 5), f"{len(counts)} of {count + 5}, {counts.total()}"


def store_waiting(redis: RedisServer, to: str, count: int) -> None:
    """As a machine stores what comes while the breaker is open; faster than by HTTP."""
    payload = pack({"subject": "waiting", "sender": "a@down.example", "body": "x" * 200})
    with tempfile.TemporaryDirectory() as folder, opened(Path(folder), redis.url) as machine:
        for _ in range(count):
            claimed = machine.coordinator.claim(replace(new_claim((to,)), owner=machine.coordinator.new_owner()))
            assert isinstance(claimed, Claimed), claimed
            now_ms = machine.coordinator.journal.clock.now_ms()
            waits = [changed(each, status=DeliveryStatus.WAITING, next_try_ms=now_ms) for each in claimed.to_send]
            assert machine.coordinator.settle(claimed, waits, "queued", payload).is_safe, "it was not stored"


@scenario(
    "Redis full of payloads for a destination that is down",
    "stored returned",
    setup=replace(TWO_ROUTES, redis_options=SMALL_REDIS),
)
def fill_redis_with_payloads(world: World) -> None:
    """Large emails for a destination that is down fill their share of Redis; all others go on as before."""
    down, server, client = world.others["other"], world.servers[0], world.redis.client
    down.otherwise = DOWN
    before_s, _ = measure(world)
    stored: dict[str, str] = {}
    returned: dict[str, str] = {}
    while len(returned) < 10 and len(stored) < 2_000:
        subject, body = f"other {len(stored)}-{len(returned)}", random_text(40_000)
        is_stored = server.post(email(subject=subject, body=body)).ok
        (stored if is_stored else returned)[subject] = body
    memory = client.info("memory")
    world.counts |= Counter(stored=len(stored), returned=len(returned))
    world.notes["Redis used"] = f"{memory['used_memory'] / memory['maxmemory']:.2f}"
    assert len(returned) == 10 and len(stored) > 10, "Redis was not full"
    compare(world, before_s, measure(world)[0])
    assert "errorstat_OOM" not in client.info("errorstats"), "Redis said OOM"
    down.otherwise = Reply()
    replay_until_arrived(world, down, stored)
    for subject, body in returned.items():
        post(world, subject, body)
    replay_until_arrived(world, down, returned)
    assert down.subjects == Counter([*stored, *returned]), "lost, or twice"


@scenario("a large email over a slow line", "queued", setup=TWO_ROUTES)
def send_a_large_email_over_a_slow_line(world: World) -> None:
    """It takes longer than its provider waits: a stored attempt delivers it."""
    sink, line = world.others["other"], world.lines["other"]
    length, line.bytes_per_s = (24_900_000, 1_000_000) if world.size.is_long else (5_000_000, 300_000)
    body, began = random_text(length), time.monotonic()
    assert post(world, "other", body) == "queued", "the line is not slow"
    world.counts["queued"] += 1
    world.notes["answered after s"] = round(time.monotonic() - began, 1)
    world.notes["delivered after s"] = round(wait_for(lambda: bool(sink.accepted), "it is delivered", 600), 1)
    wait_for(lambda: not count_due(world, "other"), "it is finished")
    time.sleep(2.0)
    assert [each.payload["body"] == body for each in sink.accepted] == [True], "it came twice, or damaged"


def random_text(length: int) -> str:
    return base64.b64encode(os.urandom(length * 3 // 4)).decode()
