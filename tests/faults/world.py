"""Runs one scenario, counts, and judges."""

from __future__ import annotations

import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import requests

from tests.faults.scenarios import HELD, REFUSED, Scenario, count_in_logs
from tests.support.load import Load, Plan, Report
from tests.support.proxy import Proxy
from tests.support.redis_server import RedisServer
from tests.support.server import ADMIN_TOKEN, Server
from tests.support.sink import Received, Reply, Sink
from tests.support.worker import WorkerProcess

LOOK_EVERY_S = 0.2
NOTHING_COMES_FOR_S = 80.0  # what was stored and could not be announced is due after a minute


@dataclass(frozen=True)
class Size:
    """How much traffic, and how patient its clients are."""

    emails: int
    per_second: float
    patience_s: float
    is_long: bool


LONG = Size(emails=2000, per_second=100, patience_s=3.0, is_long=True)
SHORT = Size(emails=100, per_second=40, patience_s=1.0, is_long=False)


class FaultySink(Sink):
    """Emails whose subject begins with HELD are answered once ``release`` is set; with REFUSED, refused until then."""

    def __init__(self) -> None:
        super().__init__()
        self.release = threading.Event()
        self.held: Counter[str] = Counter()

    def reply_to(self, payload: dict[str, Any]) -> Reply:
        subject = payload["subject"]
        if subject.startswith(REFUSED) and not self.release.is_set():
            return Reply(503)
        if not subject.startswith(HELD):
            return super().reply_to(payload)
        with self._lock:
            self.held[subject] += 1
        return Reply(after=self.release)


@dataclass
class World:
    """``counts``: what a strike did. ``numbers``: the highest that any process of a server told on /health."""

    redis: RedisServer
    proxies: list[Proxy]
    servers: list[Server]
    workers: list[WorkerProcess]
    sink: FaultySink
    load: Load
    crash_file: Path
    clock_file: Path
    is_long: bool
    counts: Counter[str] = field(default_factory=Counter)
    numbers: list[Counter[str]] = field(default_factory=lambda: [Counter(), Counter()])

    @property
    def proxy(self) -> Proxy:
        return self.proxies[0]

    def scale(self, seconds: float) -> float:
        """Faults last longer in the long run than in the short one."""
        return seconds * (2 if self.is_long else 1)

    def look(self) -> list[dict[str, Any] | None]:
        """The health of every server; each of its processes answers for itself."""
        return [self._health(number) for number in range(len(self.servers))]

    def _health(self, number: int) -> dict[str, Any] | None:
        try:
            health = self.servers[number].health()
        except requests.RequestException:
            return None
        told = health["checks"]["redis"].get("numbers", {})
        for name, value in told.items():
            highest = sum(value.values()) if isinstance(value, dict) else value
            self.numbers[number][name] = max(self.numbers[number][name], highest)
        return health

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Processes die with their numbers, so they are looked at all the time."""
        ended = threading.Event()

        def watch() -> None:
            while not ended.wait(LOOK_EVERY_S):
                self.look()

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            yield
        finally:
            ended.set()
            watcher.join()

    def sides(self) -> list[str | None]:
        return [health["checks"]["redis"].get("side") if health else None for health in self.look()]


@dataclass(frozen=True)
class Result:
    scenario: Scenario
    report: Report
    distinct: int
    delivered: int
    waiting: int
    double: int
    other_ids: int
    recovery_s: float
    found: Counter[str]

    @property
    def lost(self) -> int:
        return self.distinct - self.delivered - self.waiting

    @property
    def problems(self) -> list[str]:
        return [*self.wrong, *self.late]

    @property
    def wrong(self) -> list[str]:
        """Whatever the machine is busy with."""
        scenario = self.scenario
        found = [f"lost {self.lost}"] if self.lost else []
        if self.waiting:
            found.append(f"{self.waiting} still wait")
        if self.report.unanswered:
            found.append(f"never taken {len(self.report.unanswered)}")
        if scenario.most_doubles is not None and self.double > scenario.most_doubles:
            found.append(f"double {self.double}, at most {scenario.most_doubles}")
        if self.other_ids:
            found.append(f"{self.other_ids} under more than one webhook-id")
        found += [f"did not strike: no {name}" for name in scenario.struck if not self.found[name]]
        found += [f"{name} {self.found[name]}, must be 0" for name in scenario.never if self.found[name]]
        return found

    @property
    def late(self) -> list[str]:
        """On a machine that has nothing else to do."""
        found = []
        if self.report.slowest_s > self.scenario.slowest_s:
            found.append(f"a request took {self.report.slowest_s:.1f} s, at most {self.scenario.slowest_s:g}")
        if self.recovery_s > self.scenario.recovery_s:
            found.append(f"recovered after {self.recovery_s:.1f} s, at most {self.scenario.recovery_s:g}")
        return found

    @property
    def row(self) -> str:
        scenario, report = self.scenario, self.report
        expected = f"ok, expected: {scenario.expected_doubles}" if self.double else "ok"
        struck = ", ".join(f"{name} {self.found[name]}" for name in scenario.struck)
        return (
            f"{scenario.name:<48} {report.sent:>5} {self.distinct:>8} {self.delivered:>9} "
            f"{self.waiting:>7} {self.lost:>4} {self.double:>6} {report.slowest_s:>6.2f} /{scenario.slowest_s:>3g} "
            f"{self.recovery_s:>6.2f} /{scenario.recovery_s:>3g}  {'; '.join(self.problems) or expected}"
            f"{f'  [{struck}]' if struck else ''}"
        )


HEADER = (
    f"{'scenario':<48} {'sent':>5} {'distinct':>8} {'delivered':>9} {'waiting':>7} {'lost':>4} {'double':>6} "
    f"{'slowest s':>11} {'recovery s':>11}  verdict  [what struck]"
)


def run(scenario: Scenario, size: Size, mutant: str = "") -> Result:
    with ExitStack() as stack:
        world = _build(scenario, size, mutant, stack)
        loading = threading.Thread(target=world.load.run)
        loading.start()
        with world.watched():
            try:
                time.sleep(size.emails / size.per_second * 0.3)
                scenario.strike(world)
                struck_at = time.monotonic()
                recovered_at = _wait_until_well(world)
                time.sleep(1.0)  # the first moments after a fault are part of it
            finally:
                world.load.finish()
                loading.join()
            _wait_until_all_there(world)
        # By whichever process, a worker too, and also before it could tell its numbers
        world.counts["losses_noticed"] = count_in_logs(world, "lost its memory; telling")
        waiting = _waiting(world) if len(world.sink.counts(_subject)) < len(world.load.subjects) else 0
        counts = world.sink.counts(_subject)
        ids = {(each.payload["subject"], each.webhook_id) for each in world.sink.accepted}
    return Result(
        scenario,
        world.load.report,
        distinct=len(world.load.subjects),
        delivered=len(counts),
        waiting=waiting,
        double=sum(count - 1 for count in counts.values()),
        other_ids=len(ids) - len(counts),
        recovery_s=max(0.0, recovered_at - struck_at, world.load.report.trouble_at - struck_at),
        found=sum(world.numbers, world.counts),
    )


def _build(scenario: Scenario, size: Size, mutant: str, stack: ExitStack) -> World:
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mailonce-faults-")))
    redis = RedisServer(*scenario.redis_options)
    stack.callback(redis.stop)
    redis.start()
    proxies = [stack.enter_context(Proxy(redis.port)) for _ in range(3)]
    sink = stack.enter_context(FaultySink())
    stack.callback(sink.release.set)
    clock_file, crash_file, config = folder / "clock", folder / "crashed", folder / "mailonce.toml"
    clock_file.write_text("0")
    # Time enough for a delivery that is held; no breaker, so that what waits is tried when its time has come.
    config.write_text(f"[destinations.sink]\nurl = '{sink.url}'\nread_timeout_s = 30\nbreaker_failures = 0\n")
    url = proxies[0].url
    if scenario.acl:
        redis.client.acl_setuser("app", enabled=True, passwords=["+secret"], commands=["+@all"], keys=["*"])
        url = url.replace("redis://", "redis://app:secret@")
    settings = {"MAILONCE_CONFIG": str(config), **({"REDIS_URL": url} if scenario.has_redis else {})}
    if scenario.has_queue:
        settings |= {"QUEUE_URL": url, "WORKER_PROCESSES": "2", "WORKER_THREADS": "4"}
    settings |= scenario.settings
    faults = {"FAULTS_MUTANT": mutant} if mutant else {}
    if scenario.crash_at:
        faults |= {"FAULTS_CRASH_AT": scenario.crash_at, "FAULTS_CRASH_SIGNAL": scenario.crash_signal}
        faults |= {"FAULTS_CRASH_FILE": str(crash_file)}
    if scenario.sets_the_clock:
        faults |= {"FAULTS_CLOCK": str(clock_file)}
    servers, workers = [], []
    for number in range(2):
        # With a proxy for each process: the second process of the first server has one of its own.
        own = (
            {"FAULTS_REDIS_URLS": f"{url},{proxies[1 if number == 0 else 2].url}"} if scenario.cuts_one_process else {}
        )
        app = "tests.support.faulty_wsgi:app" if faults or own else None
        server = Server(folder / str(number), app=app, first="tests.faults.mutants", **settings, **faults, **own)
        stack.callback(server.stop)
        server.launch()
        servers.append(server)
    for number, server in enumerate(servers):
        server.wait_until_up()
        if scenario.has_queue:
            workers.append(stack.enter_context(WorkerProcess(folder / str(number), **settings)))
    plan = Plan(size.emails, size.per_second, scenario.duplicates, scenario.sticky, size.patience_s)
    load = Load(plan, [server.url for server in servers])
    return World(redis, proxies, servers, workers, sink, load, crash_file, clock_file, size.is_long)


def _wait_until_well(world: World, within_s: float = 180) -> float:
    """Until every server said so ten times in a row, as each of its processes answers for itself."""
    deadline = time.monotonic() + within_s
    well_since, in_a_row = time.monotonic(), 0
    while in_a_row < 10:
        healths = world.look()
        if all(map(_is_well, healths)):
            in_a_row += 1
        else:
            in_a_row, well_since = 0, time.monotonic()
        assert time.monotonic() < deadline, f"the servers did not recover: {healths}"
        time.sleep(0.02)
    return well_since


def _is_well(health: dict[str, Any] | None) -> bool:
    """That a destination is given a pause, or that something waits, is judged by the sink."""
    if health is None:
        return False
    statuses = {name: check["status"] for name, check in health["checks"].items()}
    is_up = all(statuses[name] in ("up", "not configured") for name in ("redis", "database", "storage", "memory"))
    return is_up and health["checks"]["redis"].get("side", "redis") == "redis"


def _wait_until_all_there(world: World) -> None:
    """What was answered 200 ``queued`` comes later; as long as something comes, and a while longer for doubles."""
    expected = set(world.load.subjects)
    came, came_at = 0, time.monotonic()
    while time.monotonic() - came_at < NOTHING_COMES_FOR_S:
        accepted = world.sink.accepted
        if expected <= {each.payload["subject"] for each in accepted}:
            break
        if len(accepted) > came:
            came, came_at = len(accepted), time.monotonic()
        time.sleep(0.2)
    if len(world.sink.received) > len(world.sink.accepted) or world.workers:
        time.sleep(2.0)


def _subject(received: Received) -> str:
    return str(received.payload["subject"])


def _waiting(world: World) -> int:
    """What is safe, but not due yet."""
    url = f"{world.servers[0].url}/api/admin/deliveries"
    headers = {"Authorization": f"Bearer {ADMIN_TOKEN}"}
    answer = requests.get(url, params={"status": "waiting", "limit": "1000"}, headers=headers, timeout=60)
    return len(answer.json()["deliveries"])
