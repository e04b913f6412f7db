"""Every fault, as something that strikes in the middle of traffic, and how it is seen that it did."""

from __future__ import annotations

import os
import resource
import signal
import sqlite3
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from hashlib import sha1
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import requests

from deduplication.journal.lua_source import source
from tests.support.proxy import Fault
from tests.support.redis_server import free_port, redis_server_version
from tests.support.server import ADMIN_TOKEN, Server
from tests.support.sink import Reply

if TYPE_CHECKING:
    from tests.faults.world import World

AOF = ("--appendonly", "yes")
LEASE_S = 4
HELD = "held"  # emails of such a subject are answered by the destination when the scenario says so
REFUSED = "refused"  # and these are refused until then
DAY_S = 86_400
MOST_AT_WORK = 16  # of the clients of the load, with some of them at what is held


@dataclass(frozen=True)
class Scenario:
    """``expected_doubles`` says why there may be some; ``most_doubles`` how many (None: any number).

    ``struck`` are counts and numbers of /health that must be seen, or the fault has missed; ``never`` those that must
    not. ``slowest_s`` and ``recovery_s`` are limits. ``in_make_test``: a short version of it runs there.
    """

    name: str
    strike: Callable[[World], None]
    struck: tuple[str, ...] = ()
    never: tuple[str, ...] = ()
    redis_options: tuple[str, ...] = AOF
    settings: dict[str, str] = field(default_factory=dict)
    sticky: bool = True
    duplicates: float = 0.3
    crash_at: str = ""
    crash_signal: str = "SIGKILL"
    has_redis: bool = True
    has_queue: bool = False
    sets_the_clock: bool = False
    cuts_one_process: bool = False
    acl: bool = False
    expected_doubles: str = ""
    most_doubles: int | None = 0
    slowest_s: float = 10
    recovery_s: float = 20
    in_make_test: bool = False


# Redis goes


def kill_redis(world: World) -> None:
    world.redis.kill()
    world.counts["kills"] += 1
    time.sleep(world.scale(1.0))
    world.redis.start()


def stop_redis_for(seconds: float) -> Callable[[World], None]:
    def strike(world: World) -> None:
        os.kill(world.redis.pid, signal.SIGSTOP)
        world.counts["stops"] += 1
        time.sleep(seconds)
        os.kill(world.redis.pid, signal.SIGCONT)

    return strike


def stop_redis_while_deliveries_are_under_way(world: World) -> None:
    """What is delivered meanwhile cannot be settled; the other server, asked for it, must not take it for free.

    First its clients run into the silence, so that no connection is left that was open before.
    """
    held = hold_deliveries(world)
    stopped_at, before = time.monotonic(), world.load.report.troubles
    os.kill(world.redis.pid, signal.SIGSTOP)
    world.counts["stops"] += 1
    wait_for(lambda: world.load.report.troubles >= before + MOST_AT_WORK)
    world.sink.release.set()
    wait_for(lambda: world.load.report.taken.keys() >= held and time.monotonic() >= stopped_at + 3)
    os.kill(world.redis.pid, signal.SIGCONT)
    for subject in held:
        world.load.put(subject, 1 - world.load.server_of(subject))
    world.counts["told_later"] = count_in_logs(world, "Redis is told later")


def lose_claims_and_settlements(fault: Fault) -> Callable[[World], None]:
    """One after the other, each exactly."""

    def strike(world: World) -> None:
        for step in ("claim", "settle") * (20 if world.is_long else 5):
            before = world.proxy.cuts
            world.proxy.set(fault, once=True, meant=is_step(step))
            wait_for(lambda before=before: world.proxy.cuts > before)  # type: ignore[misc]
            world.counts[f"lost_{step}s"] += 1

    return strike


def lose_every_settlement(world: World) -> None:
    """Asked again, too. The other server hears of what was delivered before the lease of it is over."""
    held = hold_deliveries(world)
    world.proxy.set(Fault.CUT_BEFORE_SEND, meant=is_step("settle"))
    world.sink.release.set()
    wait_for(lambda: world.load.report.taken.keys() >= held)
    world.proxy.set(Fault.NONE)
    for subject in held:
        world.load.put(subject, 1 - world.load.server_of(subject))
    world.counts["told_later"] = count_in_logs(world, "Redis is told later")


def is_step(step: str) -> Callable[[bytes], bool]:
    """Of the journal, for an email: canaries are claims too, and two of them lost in a row make a machine leave."""
    digest = sha1(source(step).encode(), usedforsecurity=False).hexdigest().encode()
    return lambda request: digest in request and b"canary-" not in request


def cut_the_network(world: World) -> None:
    """Until every server is on its own side, and a while of deciding alone."""
    world.proxy.set(Fault.REFUSE)
    wait_for(lambda: "redis" not in world.sides())
    time.sleep(world.scale(1.0))
    world.proxy.set(Fault.NONE)


def cut_the_network_closed(world: World) -> None:
    world.proxy.set(Fault.REFUSE)
    time.sleep(world.scale(3.0))
    world.proxy.set(Fault.NONE)


def reach_maxmemory(world: World) -> None:
    world.redis.client.config_set("maxmemory", "1")
    time.sleep(world.scale(1.5))
    world.redis.client.config_set("maxmemory", "0")


def make_it_a_replica(world: World) -> None:
    world.redis.client.replicaof("127.0.0.1", str(free_port()))
    time.sleep(world.scale(1.5))
    world.redis.client.replicaof("NO", "ONE")


def restart_slowly(world: World) -> None:
    """LOADING: it answers, but only to say that it is not ready."""
    keys = world.redis.client.dbsize()
    world.redis.kill()
    world.counts["kills"] += 1
    delay_us = int(world.scale(1.5) * 1_000_000 / max(1, keys))
    answers = ("--loading-process-events-interval-bytes", "1024") if redis_server_version() >= (7,) else ()
    world.redis.launch("--key-load-delay", str(delay_us), *answers)
    world.redis.wait_until_up()


def slow_down_by(seconds: float) -> Callable[[World], None]:
    """Every answer comes later, for longer than a Redis that is silent would be waited for."""

    def strike(world: World) -> None:
        world.proxy.delay_s = seconds
        time.sleep(20 if world.is_long else 8)
        world.proxy.delay_s = 0
        world.counts["slow_replies"] = world.proxy.delayed

    return strike


def cut_off_one_process(world: World) -> None:
    """The second process of the first server; its neighbour and the other server reach Redis all the time."""
    world.proxies[1].set(Fault.REFUSE)
    time.sleep(world.scale(6.0))
    world.proxies[1].set(Fault.NONE)


def lose_redis_while_deliveries_are_under_way(world: World) -> None:
    """Redis granted them; a repeat that comes while the machine decides alone must find them under way."""
    held = hold_deliveries(world)
    world.proxy.set(Fault.REFUSE)
    wait_for(lambda: "redis" not in world.sides())
    for subject in held:
        world.load.put(subject)
    time.sleep(1.0)
    world.sink.release.set()
    wait_for(lambda: world.load.report.taken.keys() >= held)
    world.proxy.set(Fault.NONE)


# Redis forgets


def flush_scripts(world: World) -> None:
    for _ in range(20):
        world.redis.client.script_flush()
        time.sleep(0.05)
    world.counts["noscripts"] = world.redis.client.info("errorstats").get("errorstat_NOSCRIPT", {}).get("count", 0)


def kill_connections(world: World) -> None:
    for _ in range(20):
        world.counts["connections_cut"] += int(world.redis.client.client_kill_filter(_type="normal", skipme=True))
        time.sleep(0.05)


def flush_all(world: World) -> None:
    world.redis.client.flushall()


def flush_all_while_one_server_is_busy(world: World) -> None:
    """It tells what it knows a second later than the other, which is asked for its emails meanwhile."""
    known = [f"known {number}" for number in range(10)]
    for subject in known:
        world.load.put(subject, 1)
    wait_for(lambda: world.load.report.taken.keys() >= set(known))
    pids = world.servers[1].worker_pids()
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    world.redis.client.flushall()
    for subject in known:
        world.load.put(subject, 0)
    time.sleep(1.2)
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
    world.counts["stops"] += 1


def restore_older_snapshot_and_restart(world: World) -> None:
    """Redis is back at the snapshot, and no process is left that has seen more."""
    world.redis.client.save()
    newer = [f"newer {number}" for number in range(30)]
    send_and_wait(world, newer)
    for server in world.servers:
        server.stop()
    world.redis.kill()
    world.counts["kills"] += 1
    world.redis.start()
    for server in world.servers:
        server.launch()
    for server in world.servers:
        server.wait_until_up()
    for subject in newer:
        world.load.put(subject)


def go_back_between_claim_and_settlement(world: World) -> None:
    held = hold_deliveries(world)
    world.redis.client.save()
    world.sink.release.set()
    wait_for(lambda: world.load.report.taken.keys() >= held)
    world.redis.kill()
    world.counts["kills"] += 1
    world.redis.start()
    time.sleep(LEASE_S)  # what Redis thinks is under way is free now
    for subject in held:
        world.load.put(subject)


def restart_everything(world: World) -> None:
    first, second = world.servers
    first.stop()
    world.redis.kill()
    world.counts["kills"] += 1
    first.start()
    world.redis.start()
    second.stop()
    second.start()


# This machine


def refuse_by_acl(world: World) -> None:
    """A misconfiguration is loud: errors until it is put right, and no silent fallback."""
    world.redis.client.acl_setuser("app", enabled=True, commands=["-evalsha", "-eval"])
    time.sleep(world.scale(3.0))
    world.redis.client.acl_setuser("app", enabled=True, commands=["+evalsha", "+eval"])
    world.counts["said_in_the_log"] = count_in_logs(world, "StoreMisconfigured")


def arm_the_crash(world: World) -> None:
    Path(f"{world.crash_file}.armed").touch()
    wait_for(world.crash_file.exists)
    world.counts["kills"] += 1


def stop_a_process_past_its_lease(world: World) -> None:
    arm_the_crash(world)
    time.sleep(LEASE_S + 1)
    for pid in [pid for server in world.servers for pid in server.worker_pids()]:
        os.kill(pid, signal.SIGCONT)


def lock_sqlite(world: World) -> None:
    for server in world.servers:
        lock = sqlite3.connect(server.data_dir / "journal.db", isolation_level=None, timeout=10)
        lock.execute("BEGIN IMMEDIATE")
        world.counts["locks"] += 1
        time.sleep(world.scale(1.5))
        lock.execute("ROLLBACK")
        lock.close()


def lock_sqlite_without_redis(world: World) -> None:
    world.proxy.set(Fault.REFUSE)
    wait_for(lambda: "redis" not in world.sides())
    lock_sqlite(world)
    world.proxy.set(Fault.NONE)


def fill_the_disk(world: World) -> None:
    """No file of the processes may grow any more, while Redis is away and they need their own journal."""
    world.proxy.set(Fault.REFUSE)
    wait_for(lambda: "redis" not in world.sides())
    before = world.load.report.troubles
    limit_file_sizes(world, 4096)
    time.sleep(world.scale(1.5))
    limit_file_sizes(world, resource.RLIM_INFINITY)
    world.counts["full_disks"] = world.load.report.troubles - before  # their logs are full too
    world.proxy.set(Fault.NONE)


def limit_file_sizes(world: World, most_bytes: int) -> None:
    for pid in [pid for server in world.servers for pid in server.worker_pids()]:
        psutil.Process(pid).rlimit(psutil.RLIMIT_FSIZE, (most_bytes, resource.RLIM_INFINITY))


def set_the_clock_forward(world: World) -> None:
    """By more than a lease lasts, while deliveries are under way; their repeats must find them so."""
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
    new = world.clock_file.with_suffix(".new")
    new.write_text(str(ahead_s))
    new.replace(world.clock_file)  # whoever reads the time meanwhile must not find an empty file
    world.counts["clock_changes"] += 1


# Operators and destinations


def reset_and_replay(world: World) -> None:
    """Some are answered 200 and wait, while others come, are under way and are delivered: none may be forgotten."""
    waiting = {f"{REFUSED} {number}" for number in range(20)}
    send_and_wait(world, waiting)
    for server in world.servers * (5 if world.is_long else 2):
        world.counts["kept_by_reset"] += len(reset_all(server))
        world.counts["replayed"] += replay_what_waits(server)
    world.sink.release.set()
    for server in world.servers:
        reset_all(server)
        replay_what_waits(server)  # tried twice by now, it would wait for five minutes


def reset_all(server: Server) -> list[str]:
    """What it kept. An operator who is told to come back does (a busy disk), like any other client."""
    deadline = time.monotonic() + 60
    while (answer := server.reset(scope="all", confirm="all")).status_code == 503 and time.monotonic() < deadline:
        time.sleep(0.5)
    assert answer.status_code == 200, answer.text
    return list(answer.json()["kept"])


def replay_what_waits(server: Server) -> int:
    url, headers = f"{server.url}/api/admin/deliveries/replay", {"Authorization": f"Bearer {ADMIN_TOKEN}"}
    answer = requests.post(url, json={"status": "waiting"}, headers=headers, timeout=60)
    assert answer.status_code == 200, answer.text
    return int(answer.json().get("replayed", 0))


def replay_by_force(world: World) -> None:
    """Ten that were delivered, each exactly once more."""
    headers = {"Authorization": f"Bearer {ADMIN_TOKEN}"}
    url = f"{world.servers[0].url}/api/admin/deliveries"
    found = requests.get(url, params={"status": "delivered", "limit": "10"}, headers=headers, timeout=60).json()
    for delivery in found["deliveries"]:
        answer = requests.post(f"{url}/{delivery['id']}/replay", json={"force": True}, headers=headers, timeout=60)
        assert answer.status_code == 200, answer.text
        world.counts["replayed"] += 1


def take_the_destination_down(world: World) -> None:
    world.sink.otherwise = Reply(503)
    time.sleep(world.scale(1.5))
    world.sink.otherwise = Reply()
    world.counts["refused_webhooks"] = sum(each.status == 503 for each in world.sink.received)


# With the queue


def kill_a_web_process(world: World) -> None:
    for server in world.servers:
        os.kill(server.worker_pids()[0], signal.SIGKILL)
        world.counts["kills"] += 1
        time.sleep(0.5)


def kill_a_worker(world: World) -> None:
    world.workers[0].kill_a_child()
    world.counts["kills"] += 1


# Helpers


def hold_deliveries(world: World) -> set[str]:
    """Some that have reached the destination, and are not answered before ``sink.release``."""
    held = {f"{HELD} {number}" for number in range(4)}
    for number, subject in enumerate(sorted(held)):
        world.load.put(subject, number % len(world.servers))
    wait_for(lambda: world.sink.held.keys() >= held)
    world.counts["held"] += len(held)
    return held


def send_and_wait(world: World, subjects: Iterable[str]) -> None:
    sent = set(subjects)
    for number, subject in enumerate(sorted(sent)):
        world.load.put(subject, number % len(world.servers))
    wait_for(lambda: world.load.report.taken.keys() >= sent)


def count_in_logs(world: World, words: str) -> int:
    logs = [*(server.log for server in world.servers), *(worker.log for worker in world.workers)]
    return sum(log.read_text().count(words) for log in logs)


def wait_for(condition: Callable[[], bool], within_s: float = 120) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


CUT_OFF = "two servers cut off from each other, ON_STORE_FAILURE=open"
WINDOW = "sent, but gone before it was noted: same webhook-id"
UNDER_WAY = "under way in the worker that was killed: same webhook-id"
ALONE = ("redis_errors", "side_changes", "decided_alone")
LOST = ("lost_claims", "lost_settles", "lost_replies")
CALM = ("side_changes", "memory_losses", "decided_alone")
SHORT_LEASE = {"LEASE_SECONDS": str(LEASE_S)}  # a claim without an answer is waited for
IMPATIENT = {"REDIS_TIMEOUT_MS": "1000", **SHORT_LEASE}  # the fault is that it does not answer in time
DEFAULT_PATIENCE = {"REDIS_TIMEOUT_MS": ""}
ONE_BY_ONE = {"WEB_THREADS": "1", **SHORT_LEASE}

SCENARIOS = [
    Scenario("nothing happens", lambda world: None, never=("redis_errors", *CALM), sticky=False),
    Scenario(
        "kill -9 Redis, AOF on",
        kill_redis,
        struck=("kills", "redis_errors"),
        never=("memory_losses",),
        settings=SHORT_LEASE,
    ),
    Scenario("kill -9 Redis, AOF off", kill_redis, struck=("kills", "memory_losses"), redis_options=()),
    Scenario("SIGSTOP Redis 0.1 s", stop_redis_for(0.1), struck=("stops",), never=CALM, sticky=False),
    Scenario(
        "SIGSTOP Redis 3 s",
        stop_redis_while_deliveries_are_under_way,
        struck=("held", "stops", "redis_errors", "told_later"),
        never=CALM,
        settings={**IMPATIENT, "LEASE_SECONDS": str(2 * LEASE_S)},  # longer than the silence, as it is in real life
        sticky=False,
        in_make_test=True,
    ),
    Scenario("SIGSTOP Redis 12 s", stop_redis_for(12), struck=("stops", *ALONE), settings=IMPATIENT),
    Scenario(
        "Redis slow, 0.4 s",
        slow_down_by(0.4),
        struck=("slow_replies",),
        never=CALM,
        settings=DEFAULT_PATIENCE,
        sticky=False,
    ),
    Scenario(
        "Redis slow, 1.5 s",
        slow_down_by(1.5),
        struck=("slow_replies",),
        never=CALM,
        settings=DEFAULT_PATIENCE,
        sticky=False,
    ),
    Scenario(
        "cut before send",
        lose_claims_and_settlements(Fault.CUT_BEFORE_SEND),
        struck=LOST,
        settings=SHORT_LEASE,
    ),
    Scenario(
        "cut after send (reply lost)",
        lose_claims_and_settlements(Fault.CUT_AFTER_SEND),
        struck=LOST,
        settings=SHORT_LEASE,
        in_make_test=True,
    ),
    Scenario("cut mid-reply", lose_claims_and_settlements(Fault.CUT_MID_REPLY), struck=LOST, settings=SHORT_LEASE),
    Scenario(
        "settlements lost",
        lose_every_settlement,
        struck=("held", "told_later"),
        never=CALM,
        settings=SHORT_LEASE,
        sticky=False,
        in_make_test=True,
    ),
    Scenario("network cut", cut_the_network, struck=ALONE, in_make_test=True),
    Scenario("one process cut off from Redis", cut_off_one_process, struck=ALONE, cuts_one_process=True),
    Scenario(
        "deliveries under way when Redis goes",
        lose_redis_while_deliveries_are_under_way,
        struck=("held", *ALONE),
        in_make_test=True,
    ),
    Scenario("maxmemory reached", reach_maxmemory, struck=("redis_errors",)),
    Scenario("REPLICAOF (read-only)", make_it_a_replica, struck=("redis_errors",)),
    Scenario("LOADING", restart_slowly, struck=("kills", "redis_errors")),
    Scenario("SCRIPT FLUSH", flush_scripts, struck=("noscripts",), never=CALM, sticky=False),
    Scenario("CLIENT KILL", kill_connections, struck=("connections_cut", "lost_replies"), settings=SHORT_LEASE),
    Scenario("FLUSHALL, duplicates to any server", flush_all, struck=("memory_losses",), sticky=False),
    Scenario(
        "FLUSHALL, one server busy",
        flush_all_while_one_server_is_busy,
        struck=("stops", "memory_losses"),
        sticky=False,
        in_make_test=True,
    ),
    Scenario(
        "older snapshot and restart",
        restore_older_snapshot_and_restart,
        struck=("kills", "losses_noticed"),
        redis_options=(),
        in_make_test=True,
    ),
    Scenario(
        "back between claim and settlement",
        go_back_between_claim_and_settlement,
        struck=("held", "kills", "memory_losses"),
        redis_options=(),
        settings=SHORT_LEASE,
    ),
    Scenario("wrong ACL", refuse_by_acl, struck=("said_in_the_log",), never=CALM, sticky=False, acl=True),
    *[
        Scenario(f"kill -9 a process {step}", arm_the_crash, ("kills",), settings=ONE_BY_ONE, crash_at=step)
        for step in ("before claim", "after claim", "before the POST", "after settle")
    ],
    Scenario(
        "kill -9 a process after the POST",
        arm_the_crash,
        ("kills",),
        settings=ONE_BY_ONE,
        crash_at="after the POST",
        expected_doubles=WINDOW,
        most_doubles=1,
    ),
    Scenario(
        "kill -9 a process after note_delivered",
        arm_the_crash,
        ("kills",),
        settings=ONE_BY_ONE,
        crash_at="after note_delivered",
        in_make_test=True,
    ),
    Scenario(
        "SIGSTOP a process past its lease, before it sends",
        stop_a_process_past_its_lease,
        ("kills",),
        settings=ONE_BY_ONE,
        crash_at="after claim",
        crash_signal="SIGSTOP",
        slowest_s=15,
    ),
    Scenario(
        "SIGSTOP a process past its lease, after it noted",
        stop_a_process_past_its_lease,
        ("kills",),
        settings=ONE_BY_ONE,
        crash_at="after note_delivered",
        crash_signal="SIGSTOP",
        slowest_s=15,
    ),
    Scenario("sqlite locked", lock_sqlite, struck=("locks",), never=CALM, sticky=False),
    Scenario("sqlite locked and Redis away", lock_sqlite_without_redis, struck=("locks", *ALONE)),
    Scenario("disk full and Redis away", fill_the_disk, struck=("full_disks", *ALONE)),
    Scenario("restart of everything", restart_everything, struck=("kills",)),
    Scenario(
        "clock two minutes forward",
        set_the_clock_forward,
        struck=("held", "clock_changes"),
        has_redis=False,
        sets_the_clock=True,
        in_make_test=True,
    ),
    Scenario(
        "clock a day back after kill -9",
        set_the_clock_back,
        struck=("kills", "clock_changes"),
        has_redis=False,
        sets_the_clock=True,
        settings=ONE_BY_ONE,
        crash_at="after claim",
    ),
    Scenario("destination down", take_the_destination_down, struck=("refused_webhooks",), never=CALM, sticky=False),
    Scenario(
        "reset and replay in traffic",
        reset_and_replay,
        struck=("kept_by_reset", "replayed"),
        duplicates=0.0,
        in_make_test=True,
    ),
    Scenario(
        "replay by force in traffic",
        replay_by_force,
        struck=("replayed",),
        settings={"DELIVERED_PAYLOAD_DAYS": "1"},
        sticky=False,
        expected_doubles="asked for",
        most_doubles=10,
    ),
    Scenario(
        "cut off, duplicates to any server, open",
        cut_the_network,
        struck=ALONE,
        sticky=False,
        expected_doubles=CUT_OFF,
        most_doubles=None,
    ),
    Scenario(
        "cut off, duplicates to any server, closed",
        cut_the_network_closed,
        struck=("redis_errors", "side_changes"),
        never=("decided_alone",),
        sticky=False,
        settings={"ON_STORE_FAILURE": "closed"},
    ),
    Scenario("queue: nothing happens", lambda world: None, never=("redis_errors", *CALM), sticky=False, has_queue=True),
    Scenario(
        "queue: kill -9 web processes",
        kill_a_web_process,
        ("kills",),
        settings=SHORT_LEASE,
        has_queue=True,
    ),
    Scenario(
        "queue: kill -9 a worker",
        kill_a_worker,
        ("kills",),
        has_queue=True,
        expected_doubles=UNDER_WAY,
        most_doubles=4,
        in_make_test=True,
    ),
    Scenario(
        "queue: kill -9 Redis, AOF on", kill_redis, ("kills", "redis_errors"), settings=SHORT_LEASE, has_queue=True
    ),
    Scenario(
        "queue: kill -9 Redis, AOF off", kill_redis, ("kills", "losses_noticed"), redis_options=(), has_queue=True
    ),
    Scenario("queue: network cut", cut_the_network, ALONE, has_queue=True),
    Scenario("queue: destination down", take_the_destination_down, ("refused_webhooks",), has_queue=True),
]
