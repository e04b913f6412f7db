"""Runs scenarios against real machines, each a ``mailonce serve`` with its own DATA_DIR, on one Redis behind proxies.

A counting receiver is the judge. The load behaves as providers do, so an email that was accepted must arrive.
"""

from __future__ import annotations

import re
import sqlite3
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import requests

from tests.support.load import Load, Plan, Report
from tests.support.proxy import Proxy
from tests.support.redis_server import RedisServer
from tests.support.server import ADMIN_TOKEN, Server, email
from tests.support.sink import Received, Reply, Sink
from tests.support.worker import WorkerProcess

AOF = ("--appendonly", "yes")
HELD = "held"  # emails with such a subject are answered by the destination once the scenario says so
REFUSED = "refused"  # and these are refused until then
NOTHING_COMES_FOR_S = 60.0
BEFORE_S = 1.0  # window (b) of docs/failures.md begins so long before an outage
NOTICED_S = 1.5  # and ends when every process has noticed that Redis is back, each of which asks every second
ADMIN = {"Authorization": f"Bearer {ADMIN_TOKEN}"}


@dataclass(frozen=True)
class Size:
    emails: int
    per_second: float
    patience_s: float
    is_long: bool


LONG = Size(emails=1000, per_second=60, patience_s=3.0, is_long=True)
SHORT = Size(emails=60, per_second=30, patience_s=1.0, is_long=False)


@dataclass(frozen=True)
class Setup:
    """What runs. ``cuts_processes``: the second process of each machine reaches Redis by one of ``spares``."""

    machines: int = 2
    redis_options: tuple[str, ...] = AOF
    settings: dict[str, str] = field(default_factory=dict)
    has_redis: bool = True
    has_queue: bool = False
    has_acl: bool = False
    crash_at: str = ""
    crash_signal: str = "SIGKILL"
    sets_the_clock: bool = False
    cuts_processes: bool = False


@dataclass(frozen=True)
class Scenario:
    """``window``: the letter in docs/failures.md that allows doubles, and ``most_doubles`` how many (None: any number
    of emails that first arrived during the outage). ``struck``: facts that must be found, or the fault missed;
    ``never``: those that must not be found. ``loaded``: how many machines get the traffic, if not all. The limits in
    seconds are judged by make faults alone."""

    name: str
    strike: Callable[[World], object]
    struck: tuple[str, ...] = ()
    never: tuple[str, ...] = ()
    setup: Setup = Setup()
    loaded: int | None = None
    sticky: bool = False
    duplicates: float = 0.3
    window: str = ""
    most_doubles: int | None = 0
    slowest_s: float = 10
    pause_s: float = 15
    recovery_s: float = 15


class FaultySink(Sink):
    """Answers HELD emails once ``release`` is set, and refuses REFUSED ones until then."""

    def __init__(self) -> None:
        super().__init__()
        self.release = threading.Event()
        self.held: Counter[str] = Counter()
        self.fails_every = 0  # so many webhooks, one is refused

    def reply_to(self, payload: dict[str, Any]) -> Reply:
        subject = payload["subject"]
        if subject.startswith(REFUSED) and not self.release.is_set():
            return Reply(503)
        if self.fails_every and len(self.received) % self.fails_every == 0:
            return Reply(503)
        if not subject.startswith(HELD):
            return super().reply_to(payload)
        with self._lock:
            self.held[subject] += 1
        return Reply(after=self.release)

    @property
    def arrived_at(self) -> Counter[str]:
        return self.counts(lambda each: str(each.payload["subject"]))


@dataclass
class World:
    """``counts``: what the strike did. ``outages``: when machines may have decided alone (window b)."""

    setup: Setup
    folder: Path
    redis: RedisServer
    proxies: list[Proxy]
    spares: list[Proxy]
    servers: list[Server]
    workers: list[WorkerProcess]
    sink: FaultySink
    size: Size
    seed: int = 0
    load: Load = field(init=False)
    counts: Counter[str] = field(init=False)
    outages: list[tuple[float, float]] = field(init=False)

    def begin(self, plan: Plan) -> None:
        self.seed = plan.seed
        self.load = Load(plan, [server.url for server in self.servers])
        self.counts, self.outages = Counter(), []
        self.sink.release.clear()
        self.sink.held.clear()
        self._before = self._facts()

    def scale(self, seconds: float) -> float:
        return seconds * (2 if self.size.is_long else 1)

    def set_all(self, *args: Any, **named: Any) -> None:
        """Sets a fault on the way of every machine to Redis."""
        for proxy in self.proxies:
            proxy.set(*args, **named)

    @contextmanager
    def outage(self) -> Iterator[None]:
        """Emails that first arrive from now until all machines are well again may be sent by two of them."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.outages.append((began - BEFORE_S, wait_until_well(self) + NOTICED_S))

    @property
    def found(self) -> Counter[str]:
        return Counter({name: count - self._before[name] for name, count in self._facts().items()}) + self.counts

    def _facts(self) -> Counter[str]:
        """What logs and journals say: how often Redis was lost, how many emails were decided without it, ..."""
        paths = [*(each.log for each in self.servers), *(each.log for each in self.workers)]
        logs = [path.read_text() for path in paths if path.exists()]
        facts = Counter(
            {
                "gone": sum(log.count("Redis is gone: the journal") for log in logs),
                "gaps": sum(log.count("the stream was trimmed behind") for log in logs),
                "new_eras": len({era for log in logs for era in re.findall(r"began a new era: (\w+)", log)}),
                "published_later": sum(log.count("published later") for log in logs),
                "misconfigured": sum(log.count("StoreMisconfigured") for log in logs),
            }
        )
        facts["alone"] = sum(map(_decided_alone, (server.data_dir for server in self.servers)))
        return facts

    def crash_file(self) -> Path:
        return self.folder / "crashed"


def _decided_alone(data_dir: Path) -> int:
    """Emails that this machine claimed without Redis: the last field that is shown of an entry says so."""
    try:
        with sqlite3.connect(f"file:{data_dir / 'journal.db'}?mode=ro", uri=True, timeout=10) as journal:
            query = (
                "SELECT count(*) FROM entries WHERE json_extract(data, '$[6][6]')"
                " AND machine = (SELECT value FROM meta WHERE key = 'machine')"
            )
            return int(journal.execute(query).fetchone()[0])
    except sqlite3.Error:
        return 0


@dataclass(frozen=True)
class Result:
    """``excused``: doubles of emails that first arrived during an outage."""

    scenario: Scenario
    report: Report
    distinct: int
    delivered: int
    waiting: int
    double: int
    excused: int
    other_ids: int
    pause_s: float
    recovery_s: float
    found: Counter[str]
    failures: list[str]
    doubled: list[str]

    @property
    def lost(self) -> int:
        return self.distinct - self.delivered - self.waiting

    @property
    def wrong(self) -> list[str]:
        """Judged however busy the machine is."""
        scenario = self.scenario
        wrong = list(self.failures)
        wrong += [f"lost {self.lost}"] if self.lost else []
        wrong += [f"{self.waiting} still wait"] if self.waiting else []
        wrong += [f"never accepted {len(self.report.unanswered)}"] if self.report.unanswered else []
        allowed = self.excused if scenario.most_doubles is None else scenario.most_doubles
        wrong += [f"double {self.double}, at most {allowed}: {self.doubled}"] if self.double > allowed else []
        wrong += [f"{self.other_ids} with more than one webhook-id"] if self.other_ids else []
        wrong += [f"did not strike: no {name}" for name in scenario.struck if not self.found[name]]
        return wrong + [f"{name} {self.found[name]}, must be 0" for name in scenario.never if self.found[name]]

    @property
    def late(self) -> list[str]:
        """Judged on a machine that has nothing else to do."""
        scenario = self.scenario
        limits = {
            f"a request took {self.report.slowest_s:.1f} s": (self.report.slowest_s, scenario.slowest_s),
            f"a machine accepted nothing for {self.pause_s:.1f} s": (self.pause_s, scenario.pause_s),
            f"recovered after {self.recovery_s:.1f} s": (self.recovery_s, scenario.recovery_s),
        }
        return [f"{what}, at most {limit:g}" for what, (took, limit) in limits.items() if took > limit]

    @property
    def row(self) -> str:
        struck = ", ".join(f"{name} {self.found[name]}" for name in self.scenario.struck)
        window = f"ok, window ({self.scenario.window})" if self.double else "ok"
        return (
            f"{self.scenario.name:<50} {self.report.sent:>5} {self.delivered:>5} {self.lost:>4} {self.double:>6} "
            f"{self.report.slowest_s:>7.1f} {self.pause_s:>5.1f} {self.recovery_s:>8.1f}  "
            f"{'; '.join([*self.wrong, *self.late]) or window}  [{struck}]"
        )


HEADER = (
    f"{'scenario':<50} {'sent':>5} {'deliv':>5} {'lost':>4} {'double':>6} {'slowest':>7} {'pause':>5} {'recovery':>8}"
    "  verdict  [what struck]"
)


@contextmanager
def opened(setup: Setup, size: Size) -> Iterator[World]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mailonce-faults-")))
        redis = RedisServer(*setup.redis_options)
        stack.callback(redis.stop)
        redis.start()
        proxies, spares = ([stack.enter_context(Proxy(redis.port)) for _ in range(setup.machines)] for _ in range(2))
        sink = stack.enter_context(FaultySink())
        stack.callback(sink.release.set)
        world = World(setup, folder, redis, proxies, spares, [], [], sink, size)
        for number in range(setup.machines):
            server = machine(world, number)
            stack.callback(server.stop)
            server.launch()
            world.servers.append(server)
        for number, server in enumerate(world.servers):
            server.wait_until_up()
            if setup.has_queue:
                settings = settings_of(world, number)
                world.workers.append(stack.enter_context(WorkerProcess(server.data_dir, **settings)))
            wait_for(lambda server=server: server.post(email(subject="first")).ok, "the first era opens")  # type: ignore[misc]
        wait_until_well(world)
        yield world


def settings_of(world: World, number: int) -> dict[str, str]:
    setup, config = world.setup, world.folder / "mailonce.toml"
    # Enough time for a delivery that is held; no breaker, so that stored ones are tried when they are due.
    config.write_text(f"[destinations.sink]\nurl = '{world.sink.url}'\nread_timeout_s = 10\nbreaker_failures = 0\n")
    settings = {"MAILONCE_CONFIG": str(config), "REDIS_TIMEOUT_MS": "", "DISK_FREE_MB": "1"}
    if setup.has_redis:
        settings["REDIS_URL"] = url_of(world, world.proxies[number])
    if setup.has_queue:
        settings |= {"QUEUE_URL": settings["REDIS_URL"], "WORKER_PROCESSES": "2", "WORKER_THREADS": "4"}
    return settings | setup.settings


def url_of(world: World, proxy: Proxy) -> str:
    if not world.setup.has_acl:
        return proxy.url
    world.redis.client.acl_setuser("app", enabled=True, passwords=["+secret"], commands=["+@all"], keys=["*"])
    return proxy.url.replace("redis://", "redis://app:secret@")


def machine(world: World, number: int) -> Server:
    setup, clock = world.setup, world.folder / "clock"
    clock.write_text("0")
    faults: dict[str, str] = {}
    if setup.crash_at:
        faults |= {"FAULTS_CRASH_AT": setup.crash_at, "FAULTS_CRASH_SIGNAL": setup.crash_signal}
        faults |= {"FAULTS_CRASH_FILE": str(world.crash_file())}
    if setup.sets_the_clock:
        faults |= {"FAULTS_CLOCK": str(clock)}
    if setup.cuts_processes:
        faults |= {"FAULTS_REDIS_URLS": f"{world.proxies[number].url},{world.spares[number].url}"}
    app = "tests.support.faulty_wsgi:app" if faults else None
    return Server(world.folder / str(number), app=app, **settings_of(world, number), **faults)


def run_in(world: World, scenario: Scenario) -> Result:
    """One scenario, after others in the same world or as the first."""
    size = world.size
    plan = Plan(
        size.emails,
        size.per_second,
        scenario.duplicates,
        scenario.sticky,
        size.patience_s,
        seed=world.seed + 1,
        machines=scenario.loaded,
    )
    world.begin(plan)
    failures = []
    before = len(world.sink.accepted)
    loading = threading.Thread(target=world.load.run)
    loading.start()
    began = struck_at = recovered_at = time.monotonic()
    try:
        time.sleep(size.emails / size.per_second * 0.3)
        began = time.monotonic()
        scenario.strike(world)
        struck_at = time.monotonic()
        recovered_at = wait_until_well(world)
        time.sleep(1.0)  # the first moments after a fault are part of it
    except (AssertionError, requests.RequestException) as error:
        failures.append(str(error)[:300])
    finally:
        ended = time.monotonic()
        world.load.finish()
        loading.join()
    _wait_until_all_arrived(world)
    report, counts = world.load.report, world.sink.counts(_subject)
    ours = {subject: counts[subject] for subject in world.load.subjects if subject in counts}
    ids = {(_subject(each), each.webhook_id) for each in world.sink.accepted[before:]}
    return Result(
        scenario,
        report,
        distinct=len(world.load.subjects),
        delivered=len(ours),
        waiting=_count_waiting(world) if len(ours) < len(world.load.subjects) else 0,
        double=sum(count - 1 for count in ours.values()),
        excused=sum(count - 1 for subject, count in ours.items() if _is_excused(world, subject)),
        other_ids=len(ids) - len({subject for subject, _ in ids}),
        pause_s=report.pause_s(began, ended),
        recovery_s=max(0.0, recovered_at - struck_at, report.trouble_at - struck_at),
        found=world.found,
        failures=failures,
        doubled=[_story(world, subject, began) for subject, count in ours.items() if count > 1],
    )


def _subject(received: Received) -> str:
    return str(received.payload["subject"])


def _story(world: World, subject: str, began: float) -> str:
    """When it was first sent, and when it arrived, in seconds from the strike."""
    arrivals = ", ".join(f"{each.at - began:.2f}" for each in world.sink.accepted if _subject(each) == subject)
    sent = world.load.report.first_sent[subject] - began
    return f"{subject} to {world.load.machine_of(subject)} at {sent:.2f}: {arrivals}"


def _is_excused(world: World, subject: str) -> bool:
    """Window (b): its first delivery was during an outage, or so shortly before that the others had not read of it."""
    first = min(each.at for each in world.sink.accepted if _subject(each) == subject)
    return any(began <= first <= ended for began, ended in world.outages)


def wait_for(condition: Callable[[], bool], what: str, within_s: float = 90) -> float:
    """How long it took."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() < began + within_s, f"in vain: {what}"
        time.sleep(0.02)
    return time.monotonic() - began


def wait_until_well(world: World, within_s: float = 180, machines: Iterable[int] | None = None) -> float:
    """Until every machine has said so six times in a row, as each of its processes answers for itself; since when."""
    deadline, since, in_a_row = time.monotonic() + within_s, time.monotonic(), 0
    chosen = [world.servers[number] for number in machines] if machines else world.servers
    while in_a_row < 6:
        healths = [_health(server) for server in chosen]
        if all(map(_is_well, healths)):
            in_a_row += 1
        else:
            in_a_row, since = 0, time.monotonic()
        assert time.monotonic() < deadline, f"the machines did not recover: {healths}"
        time.sleep(0.05)
    return since


def _health(server: Server) -> dict[str, Any] | None:
    try:
        return server.health()
    except (requests.RequestException, ValueError):
        return None


def _is_well(health: dict[str, Any] | None) -> bool:
    """Deliveries that wait, or a destination in trouble, are judged by the receiver; a gap is for ever."""
    if health is None or health["status"] == "down":
        return False
    checks = health["checks"]
    statuses = {checks[name]["status"] for name in ("redis", "database", "storage", "memory")}
    return statuses <= {"up", "not configured"} and checks["fleet"]["status"] in ("up", "gap", "not configured")


def _wait_until_all_arrived(world: World) -> None:
    """Emails answered ``queued`` arrive later: as long as some arrive, and a little longer for doubles."""
    expected, arrived, at = set(world.load.subjects), -1, time.monotonic()
    while time.monotonic() - at < NOTHING_COMES_FOR_S:
        accepted = world.sink.accepted
        if expected <= {_subject(each) for each in accepted}:
            break
        if len(accepted) > arrived:
            arrived, at = len(accepted), time.monotonic()
        time.sleep(0.2)
    if len(world.sink.received) > len(world.sink.accepted) or world.workers:
        time.sleep(2.0)


def _count_waiting(world: World) -> int:
    """Safe, but not due yet."""
    url = f"{world.servers[0].url}/api/admin/deliveries"
    answer = requests.get(url, params={"status": "waiting", "limit": "1000"}, headers=ADMIN, timeout=60)
    return len(answer.json()["deliveries"])
