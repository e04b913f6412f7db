"""Every fault, as something that strikes in the middle of a load."""

from __future__ import annotations

import os
import resource
import signal
import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from tests.support.proxy import Fault
from tests.support.redis_server import free_port, redis_server_version

if TYPE_CHECKING:
    from tests.faults.world import World

AOF = ("--appendonly", "yes")
LEASE_S = 4


@dataclass(frozen=True)
class Scenario:
    """``expected_doubles`` says why there may be some; ``most_doubles`` how many (None: any number)."""

    name: str
    strike: Callable[[World], None]
    redis_options: tuple[str, ...] = AOF
    settings: dict[str, str] = field(default_factory=dict)
    sticky: bool = True
    crash_at: str = ""
    crash_signal: str = "SIGKILL"
    acl: bool = False
    expected_doubles: str = ""
    most_doubles: int | None = 0


def kill_redis(world: World) -> None:
    world.redis.kill()
    time.sleep(world.scale(1.0))
    world.redis.start()


def stop_redis_for(seconds: float) -> Callable[[World], None]:
    def strike(world: World) -> None:
        assert world.redis.process is not None
        os.kill(world.redis.process.pid, signal.SIGSTOP)
        time.sleep(seconds)
        os.kill(world.redis.process.pid, signal.SIGCONT)

    return strike


def break_connections(fault: Fault) -> Callable[[World], None]:
    """Again and again, so that it meets claims, commits and releases."""

    def strike(world: World) -> None:
        for _ in range(10):
            world.proxy.set(fault)
            time.sleep(0.05)
            world.proxy.set(Fault.NONE)
            time.sleep(0.1)

    return strike


def cut_the_network(world: World) -> None:
    world.proxy.set(Fault.REFUSE)
    time.sleep(world.scale(2.0))
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
    delay_us = int(world.scale(1.5) * 1_000_000 / max(1, keys))
    answers = ("--loading-process-events-interval-bytes", "1024") if redis_server_version() >= (7,) else ()
    world.redis.launch("--key-load-delay", str(delay_us), *answers)
    world.redis.wait_until_up()


def flush_scripts(world: World) -> None:
    for _ in range(20):
        world.redis.client.script_flush()
        time.sleep(0.05)


def kill_connections(world: World) -> None:
    for _ in range(20):
        world.redis.client.client_kill_filter(_type="normal", skipme=True)
        time.sleep(0.05)


def flush_all(world: World) -> None:
    world.redis.client.flushall()


def refuse_by_acl(world: World) -> None:
    """A misconfiguration is loud: errors until it is put right, and no silent fallback."""
    world.redis.client.acl_setuser("app", enabled=True, commands=["-evalsha", "-eval"])
    time.sleep(world.scale(1.0))
    decided_alone = [server.health()["checks"]["redis"]["numbers"]["local_decisions"] for server in world.servers]
    world.redis.client.acl_setuser("app", enabled=True, commands=["+evalsha", "+eval"])
    assert decided_alone == [0, 0], "a refused command made a server decide alone"
    assert any("StoreMisconfigured" in server.log.read_text() for server in world.servers)


def arm_the_crash(world: World) -> None:
    Path(f"{world.crash_file}.armed").touch()
    wait_for(world.crash_file.exists)


def stop_a_worker_past_its_lease(world: World) -> None:
    arm_the_crash(world)
    time.sleep(LEASE_S + 1)
    for pid in [pid for server in world.servers for pid in server.worker_pids()]:
        os.kill(pid, signal.SIGCONT)


def lock_sqlite(world: World) -> None:
    for server in world.servers:
        lock = sqlite3.connect(server.data_dir / "mailonce.db", isolation_level=None, timeout=10)
        lock.execute("BEGIN IMMEDIATE")
        time.sleep(world.scale(2.0))
        lock.execute("ROLLBACK")
        lock.close()


def lock_sqlite_without_redis(world: World) -> None:
    world.proxy.set(Fault.REFUSE)
    lock_sqlite(world)
    world.proxy.set(Fault.NONE)


def fill_the_disk(world: World) -> None:
    """No file of the workers may grow any more, while Redis is away and they need the local store."""
    world.proxy.set(Fault.REFUSE)
    limit_file_sizes(world, 4096)
    time.sleep(world.scale(1.5))
    limit_file_sizes(world, resource.RLIM_INFINITY)
    world.proxy.set(Fault.NONE)


def limit_file_sizes(world: World, most_bytes: int) -> None:
    for pid in [pid for server in world.servers for pid in server.worker_pids()]:
        psutil.Process(pid).rlimit(psutil.RLIMIT_FSIZE, (most_bytes, resource.RLIM_INFINITY))


def restart_everything(world: World) -> None:
    first, second = world.servers
    first.stop()
    world.redis.kill()
    first.start()
    world.redis.start()
    second.stop()
    second.start()


def wait_for(condition: Callable[[], bool], within_s: float = 120) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


CUT_OFF = "two servers cut off from each other, ON_STORE_FAILURE=open"
WINDOW = "sent, but gone before the commit: same webhook-id"
IMPATIENT = {"REDIS_TIMEOUT_MS": "250"}  # the fault is that it does not answer in time
ONE_BY_ONE = {"WEB_THREADS": "1", "LEASE_SECONDS": str(LEASE_S)}

SCENARIOS = [
    Scenario("nothing happens", lambda world: None, sticky=False),
    Scenario("kill -9 Redis, AOF on", kill_redis),
    Scenario("kill -9 Redis, AOF off", kill_redis, redis_options=()),
    Scenario("SIGSTOP Redis 0.1 s", stop_redis_for(0.1), sticky=False),
    Scenario("SIGSTOP Redis 1 s", stop_redis_for(1), settings=IMPATIENT),
    Scenario("SIGSTOP Redis 10 s", lambda world: stop_redis_for(10 if world.is_long else 3)(world), settings=IMPATIENT),
    Scenario("cut before send", break_connections(Fault.CUT_BEFORE_SEND)),
    Scenario("cut after send (reply lost)", break_connections(Fault.CUT_AFTER_SEND)),
    Scenario("cut mid-reply", break_connections(Fault.CUT_MID_REPLY)),
    Scenario("network cut", cut_the_network),
    Scenario("maxmemory reached", reach_maxmemory),
    Scenario("REPLICAOF (read-only)", make_it_a_replica),
    Scenario("LOADING", restart_slowly),
    Scenario("SCRIPT FLUSH", flush_scripts, sticky=False),
    Scenario("CLIENT KILL", kill_connections),
    Scenario("FLUSHALL, duplicates to any server", flush_all, sticky=False),
    Scenario("wrong ACL", refuse_by_acl, sticky=False, acl=True),
    *[
        Scenario(f"kill -9 a worker {step}", arm_the_crash, settings=ONE_BY_ONE, sticky=False, crash_at=step)
        for step in ("before claim", "after claim", "before send", "after commit")
    ],
    *[
        Scenario(
            f"kill -9 a worker {step}",
            arm_the_crash,
            settings=ONE_BY_ONE,
            sticky=False,
            crash_at=step,
            expected_doubles=WINDOW,
            most_doubles=1,
        )
        for step in ("after send", "before commit")
    ],
    Scenario(
        "SIGSTOP a worker past its lease, before it sends",
        stop_a_worker_past_its_lease,
        settings=ONE_BY_ONE,
        crash_at="after claim",
        crash_signal="SIGSTOP",
    ),
    Scenario(
        "SIGSTOP a worker past its lease, after it sent",
        stop_a_worker_past_its_lease,
        settings=ONE_BY_ONE,
        crash_at="before commit",
        crash_signal="SIGSTOP",
        expected_doubles=WINDOW,
        most_doubles=1,
    ),
    Scenario("sqlite locked", lock_sqlite, sticky=False),
    Scenario("sqlite locked and Redis away", lock_sqlite_without_redis),
    Scenario("disk full and Redis away", fill_the_disk),
    Scenario("restart of everything", restart_everything),
    Scenario(
        "cut off, duplicates to any server, open",
        cut_the_network,
        sticky=False,
        expected_doubles=CUT_OFF,
        most_doubles=None,
    ),
    Scenario(
        "cut off, duplicates to any server, closed",
        cut_the_network,
        sticky=False,
        settings={"ON_STORE_FAILURE": "closed"},
    ),
]
