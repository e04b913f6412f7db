"""Runs one scenario and counts."""

from __future__ import annotations

import tempfile
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import requests

from tests.faults.scenarios import Scenario
from tests.support.load import Load, Plan, Report
from tests.support.proxy import Proxy
from tests.support.redis_server import RedisServer
from tests.support.server import Server
from tests.support.sink import Sink


@dataclass
class World:
    redis: RedisServer
    proxy: Proxy
    servers: list[Server]
    sink: Sink
    crash_file: Path
    is_long: bool

    def scale(self, seconds: float) -> float:
        """Faults last longer in the long run than in the short one."""
        return seconds * (2 if self.is_long else 1)


@dataclass(frozen=True)
class Result:
    scenario: Scenario
    report: Report
    delivered: int
    lost: int
    double: int
    recovery_s: float

    @property
    def problems(self) -> list[str]:
        most = self.scenario.most_doubles
        found = [f"lost {self.lost}"] if self.lost or self.report.unanswered else []
        if most is not None and self.double > most:
            found.append(f"double {self.double}, at most {most}")
        return found

    @property
    def row(self) -> str:
        note = "; ".join(self.problems) or (
            "ok" if not self.double else f"ok, expected: {self.scenario.expected_doubles}"
        )
        report = self.report
        return (
            f"{self.scenario.name:<50} {report.sent:>5} {report.distinct:>8} {self.delivered:>9} {self.lost:>5} "
            f"{self.double:>6} {report.slowest_s:>9.2f} {self.recovery_s:>10.2f}  {note}"
        )


HEADER = (
    f"{'scenario':<50} {'sent':>5} {'distinct':>8} {'delivered':>9} {'lost':>5} {'double':>6} {'slowest s':>9} "
    f"{'recovery s':>10}  verdict"
)


def run(scenario: Scenario, emails: int, duration_s: float, *, is_long: bool) -> Result:
    with ExitStack() as stack:
        world = _build(scenario, stack, is_long)
        plan = Plan(emails, duration_s, sticky=scenario.sticky)
        load = Load(plan, [server.url for server in world.servers])
        loading = threading.Thread(target=load.run)
        loading.start()
        load.wait_for(0.3)
        try:
            scenario.strike(world)
            struck_at = time.monotonic()
            recovered_at = _wait_until_well(world.servers)
        finally:
            loading.join()
        counts = world.sink.counts(lambda received: received.payload["subject"])
    return Result(
        scenario,
        load.report,
        delivered=len(counts),
        lost=load.report.distinct - len(counts),
        double=sum(count - 1 for count in counts.values()),
        recovery_s=max(0.0, recovered_at - struck_at),
    )


def _build(scenario: Scenario, stack: ExitStack, is_long: bool) -> World:
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mailonce-faults-")))
    redis = RedisServer(*scenario.redis_options)
    stack.callback(redis.stop)
    redis.start()
    proxy = stack.enter_context(Proxy(redis.port))
    sink = stack.enter_context(Sink())
    url = proxy.url
    if scenario.acl:
        redis.client.acl_setuser("app", enabled=True, passwords=["+secret"], commands=["+@all"], keys=["*"])
        url = url.replace("redis://", "redis://app:secret@")
    crash_file = folder / "crashed"
    servers = [_server(scenario, folder / str(number), url, sink.url, crash_file) for number in range(2)]
    for server in servers:
        stack.callback(server.stop)
        server.launch()
    for server in servers:
        server.wait_until_up()
    return World(redis, proxy, servers, sink, crash_file, is_long)


def _server(scenario: Scenario, data_dir: Path, redis_url: str, webhook_url: str, crash_file: Path) -> Server:
    settings = {"REDIS_URL": redis_url, "WEBHOOK_URL": webhook_url, **scenario.settings}
    if not scenario.crash_at:
        return Server(data_dir, **settings)
    crash = {"CRASH_AT": scenario.crash_at, "CRASH_SIGNAL": scenario.crash_signal, "CRASH_ONCE": str(crash_file)}
    return Server(data_dir, app="tests.support.crashing_wsgi:app", **settings, **crash)


def _wait_until_well(servers: list[Server], within_s: float = 180) -> float:
    """Until every server said so ten times in a row, as each of its workers answers for itself."""
    deadline = time.monotonic() + within_s
    well_since, in_a_row = time.monotonic(), 0
    while in_a_row < 10:
        if all(_is_well(server) for server in servers):
            in_a_row += 1
        else:
            in_a_row, well_since = 0, time.monotonic()
        assert time.monotonic() < deadline, "the servers did not recover"
        time.sleep(0.02)
    return well_since


def _is_well(server: Server) -> bool:
    try:
        health = server.health()
    except requests.RequestException:
        return False
    redis = health["checks"]["redis"]
    return (health["status"], redis["mode"], redis["names_waiting_to_be_merged"]) == ("ok", "redis", 0)
