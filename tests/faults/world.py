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
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import requests

from tests.faults.load import Load
from tests.support.proxy import Proxy
from tests.support.redis_server import RedisServer
from tests.support.server import ADMIN, Server, WorkerProcess, email
from tests.support.sink import Reply, Sink
from tests.support.waiting import wait_for

AOF = ("--appendonly", "yes")
HELD = "held"  # emails with such a subject are answered by the destination once the scenario releases them
REFUSED = "refused"  # and these are refused until then
NOTHING_ARRIVES_FOR_S = 60.0
BEFORE_S = 1.0  # window (b) of docs/failures.md begins so long before an outage
AROUND_S = 0.5  # of a kill: windows (a) and (c) are for what is sent and not published then
NOTICED_S = 1.5  # and ends when every process, each of which asks every second, has noticed that Redis is back
# Facts, and the words by which the logs state them.
LOGGED = {
    "gone": "Redis is gone: the journal",
    "gaps": "the stream was trimmed behind",
    "published_later": "published later",
    "misconfigured": "StoreMisconfigured",
}


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
    """What runs. ``by_workers``: one on each machine delivers. ``cuts_processes``: the second process of each machine
    reaches Redis by one of ``World.spares``. ``others``: destinations beside ``sink``, which get every email
    (``fans_out``) or those with "other" in the subject. ``options``: of each destination; by default no breaker, so
    that stored deliveries are tried when they are due."""

    machines: int = 2
    redis_options: tuple[str, ...] = AOF
    settings: dict[str, str] = field(default_factory=dict)
    has_redis: bool = True
    by_workers: bool = False
    has_acl: bool = False
    crash_at: str = ""
    crash_signal: str = "SIGKILL"
    sets_the_clock: bool = False
    cuts_processes: bool = False
    others: tuple[str, ...] = ()
    fans_out: bool = False
    options: str = "breaker_failures = 0"


@dataclass(frozen=True)
class Scenario:
    """``struck``: facts that must be found, or the fault missed; ``never``: those that must not. ``window``: the letter
    in docs/failures.md that allows doubles, and ``most_doubles`` how many; without it, any number of emails that first
    arrived during an outage or around a kill. ``loaded``: how many machines get the traffic, if not all. The limits in
    seconds are judged by make faults alone."""

    name: str
    strike: Callable[[World], object]
    struck: str = ""
    never: str = ""
    setup: Setup = Setup()
    loaded: int | None = None
    sticky: bool = False
    duplicates: float = 0.3
    window: str = ""
    most_doubles: int = 0
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

    def reply_to(self, subject: str, *request: str) -> Reply:
        if subject.startswith(REFUSED) and not self.release.is_set():
            return Reply(503)
        if self.fails_every and len(self.received) % self.fails_every == 0:
            return Reply(503)
        if not subject.startswith(HELD):
            return super().reply_to(subject, *request)
        with self._lock:
            self.held[subject] += 1
        return Reply(after=self.release)


class World:
    """``proxies``: the way of each machine to Redis. ``sinks``: those that must get every email, ``sink`` and maybe
    ``others``. ``lines``: the ways to the latter.

    ``notes``: what the strike did and measured. ``outages``: when machines may have decided alone, or one was killed.
    """

    def __init__(self, setup: Setup, size: Size, stack: ExitStack) -> None:
        start = stack.enter_context
        self.setup, self.size, self.seed = setup, size, 0
        self.folder = Path(start(tempfile.TemporaryDirectory(prefix="mailonce-faults-")))
        self.crash_file, self.clock_file = self.folder / "crashed", self.folder / "clock"
        self.redis = start(RedisServer(*setup.redis_options))
        self.redis.open_era()
        if setup.has_acl:
            self.redis.client.acl_setuser("app", enabled=True, passwords=["+secret"], commands=["+@all"], keys=["*"])
        self.proxies = [start(Proxy(self.redis.port)) for _ in range(setup.machines)]
        self.spares = [start(Proxy(self.redis.port)) for _ in range(setup.machines)]
        self.sink = start(FaultySink())
        stack.callback(self.sink.release.set)
        self.others = {name: start(Sink()) for name in setup.others}
        self.lines = {name: start(Proxy(sink.port)) for name, sink in self.others.items()}
        self.sinks: list[Sink] = [self.sink, *self.others.values()] if setup.fans_out else [self.sink]
        (self.folder / "mailonce.toml").write_text(self._config())
        self.clock_file.write_text("0")
        self.servers = [self._machine(number) for number in range(setup.machines)]
        for server in self.servers:
            stack.callback(server.stop)
            server.launch()
        self.workers: list[WorkerProcess] = []
        for number, server in enumerate(self.servers):
            server.wait_until_up()
            if setup.by_workers:
                self.workers.append(start(WorkerProcess(server.data_dir, **self._settings(number))))
        wait_for(lambda: all(each.post(email(subject="first")).ok for each in self.servers), "the machines accept")
        self.wait_until_well()

    def _config(self) -> str:
        setup = self.setup
        lines = {name: f"http://127.0.0.1:{line.port}/hook" for name, line in self.lines.items()}
        urls = {"sink": self.sink.url, **lines}
        destinations = [
            f"[destinations.{name}]\nurl = '{url}'\nread_timeout_s = 10\n{setup.options}\n"
            for name, url in urls.items()
        ]
        routes = f"[[routes]]\nname = 'all'\ndestinations = {list(urls) if setup.fans_out else ['sink']}\n"
        if self.others and not setup.fans_out:
            match = "match = [{ field = 'subject', contains = 'other' }]"
            routes = f"[[routes]]\nname = 'others'\n{match}\ndestinations = {list(self.others)}\n" + routes
        return "".join(destinations) + routes

    def _settings(self, number: int) -> dict[str, str]:
        setup, url = self.setup, self.proxies[number].url
        settings = {"MAILONCE_CONFIG": str(self.folder / "mailonce.toml"), "REDIS_TIMEOUT_MS": "", "DISK_FREE_MB": "1"}
        if setup.has_redis:
            settings["REDIS_URL"] = url.replace("redis://", "redis://app:secret@") if setup.has_acl else url
        if setup.by_workers:
            settings |= {"DELIVER_BY": "workers", "WORKER_PROCESSES": "2", "WORKER_THREADS": "4"}
        return settings | setup.settings

    def _machine(self, number: int) -> Server:
        setup, faults = self.setup, dict[str, str]()
        if setup.crash_at:
            faults |= {"FAULTS_CRASH_AT": setup.crash_at, "FAULTS_CRASH_SIGNAL": setup.crash_signal}
            faults |= {"FAULTS_CRASH_FILE": str(self.crash_file)}
        if setup.sets_the_clock:
            faults |= {"FAULTS_CLOCK": str(self.clock_file)}
        if setup.cuts_processes:
            faults |= {"FAULTS_REDIS_URLS": f"{self.proxies[number].url},{self.spares[number].url}"}
        app = "tests.support.faulty_wsgi:app" if faults else None
        return Server(self.folder / str(number), app=app, **self._settings(number), **faults)

    def begin(self, scenario: Scenario) -> None:
        self.seed += 1
        self.began_at = time.monotonic()
        self.load = Load([server.url for server in self.servers], self.size, scenario, self.seed)
        self.notes: dict[str, object] = {}
        self.outages: list[tuple[float, float]] = []
        self.sink.release.clear()
        self.sink.held.clear()
        self._before = self._facts()

    # What strikes are made of

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
            self.outages.append((began - BEFORE_S, self.wait_until_well() + NOTICED_S))

    def kill(self, number: int) -> None:
        self.outages.append((time.monotonic() - AROUND_S, time.monotonic() + AROUND_S))
        self.servers[number].kill()

    def show(self, **facts: int) -> None:
        """What the strike did; 0 means that it missed."""
        self.notes |= facts
        assert all(facts.values()), f"did not strike: {facts}"

    def names(self, what: str, count: int) -> list[str]:
        """Subjects that no scenario before has used."""
        return [f"{what} {self.seed}-{number}" for number in range(count)]

    def put(self, subjects: Iterable[str], to: int | None = None) -> None:
        """Sends them now, to one machine, or to all in turn."""
        for number, subject in enumerate(subjects):
            self.load.put(subject, number % len(self.servers) if to is None else to)

    def send(self, subjects: Iterable[str], to: int | None = None, *, again: bool = False) -> list[str]:
        """And waits until they are accepted; ``again``: until they are answered once more."""
        sent = list(subjects)
        before = self.load.report.answers.total()
        self.put(sent, to)
        wait_for(lambda: self.load.has_accepted(sent), "they are accepted")
        if again:
            wait_for(lambda: self.load.report.answers.total() >= before + len(sent), "they are answered")
        return sent

    def repeat_elsewhere(self, subjects: Sequence[str]) -> None:
        for subject in subjects:
            self.load.put(subject, (self.load.machine_of(subject) + 1) % len(self.servers))

    def hold_deliveries(self) -> list[str]:
        """Some that have reached the destination, and are not answered before ``release``."""
        held = self.names(HELD, 4)
        self.put(held)
        wait_for(lambda: self.sink.held.keys() >= set(held), "they are held")
        return held

    def release(self, held: Collection[str]) -> None:
        self.sink.release.set()
        wait_for(lambda: self.load.has_accepted(held), "they are delivered")

    def post(self, subject: str, body: str) -> str:
        """Outside the traffic, until it is accepted; the status."""
        answers: list[requests.Response] = []

        def is_accepted() -> bool:
            answers.append(self.servers[0].post(email(subject=subject, body=body), timeout_s=120))
            return answers[-1].ok

        wait_for(is_accepted, f"{subject} is accepted")
        return str(answers[-1].json()["status"])

    def replay_waiting(self, number: int = 0) -> int:
        url = f"{self.servers[number].url}/api/admin/deliveries/replay"
        answer = requests.post(url, json={"status": "waiting"}, headers=ADMIN, timeout=60)
        assert answer.status_code == 200, answer.text
        return int(answer.json().get("replayed", 0))

    def replay_until(self, is_done: Callable[[int], bool], tries: int = 60) -> None:
        """As an operator does: after two failures, the next try would be minutes away. ``is_done`` gets how many
        waited."""
        for _ in range(tries):
            if is_done(self.replay_waiting()):
                return
            time.sleep(2.0)

    def replay_until_arrived(self, sink: Sink, subjects: Iterable[str]) -> None:
        self.replay_until(lambda _: sink.subjects.keys() >= set(subjects))

    def count_due(self, destination: str) -> int:
        return int(self.redis.client.zcard(f"due:{destination}"))

    def worker_pids(self) -> list[int]:
        return [pid for server in self.servers for pid in server.worker_pids()]

    def wait_until_well(self, within_s: float = 180, machines: Iterable[int] | None = None) -> float:
        """Until every machine says so six times in a row, as each of its processes answers for itself; since when."""
        deadline, since, in_a_row = time.monotonic() + within_s, time.monotonic(), 0
        chosen = [self.servers[number] for number in machines] if machines else self.servers
        while in_a_row < 6:
            if all(map(_is_well, chosen)):
                in_a_row += 1
            else:
                in_a_row, since = 0, time.monotonic()
            assert time.monotonic() < deadline, "the machines did not recover"
            time.sleep(0.05)
        return since

    # What is judged

    @property
    def found(self) -> Counter[str]:
        return Counter({name: count - self._before[name] for name, count in self._facts().items()})

    def _facts(self) -> Counter[str]:
        """What logs and journals say: how often Redis was lost, how many emails were decided without it, ..."""
        logs = [each.log.read_text() for each in (*self.servers, *self.workers) if each.log.exists()]
        facts = Counter({name: sum(log.count(words) for log in logs) for name, words in LOGGED.items()})
        facts["new_eras"] = len({era for log in logs for era in re.findall(r"began a new era: (\w+)", log)})
        facts["alone"] = sum(count_decided_alone(server) for server in self.servers)
        return facts

    def count_waiting(self) -> int:
        """Safe, but not due yet."""
        url = f"{self.servers[0].url}/api/admin/deliveries"
        answer = requests.get(url, params={"status": "waiting", "limit": "1000"}, headers=ADMIN, timeout=60)
        return len(answer.json()["deliveries"])

    def wait_until_all_arrived(self) -> None:
        """Emails answered ``queued`` arrive later: as long as some arrive, and a little longer for doubles."""
        subjects, arrived, at = set(self.load.subjects), -1, time.monotonic()
        while time.monotonic() - at < NOTHING_ARRIVES_FOR_S:
            if all(subjects <= sink.subjects.keys() for sink in self.sinks):
                break
            if (accepted := sum(len(sink.accepted) for sink in self.sinks)) > arrived:
                arrived, at = accepted, time.monotonic()
            time.sleep(0.2)
        if self.workers or any(len(sink.received) > len(sink.accepted) for sink in self.sinks):
            time.sleep(2.0)


def ask_journal(server: Server, query: str) -> int:
    """A count."""
    journal = sqlite3.connect(f"file:{server.data_dir / 'journal.db'}?mode=ro", uri=True, timeout=10)
    with closing(journal):
        return int(journal.execute(query).fetchone()[0])


def count_decided_alone(server: Server) -> int:
    """Emails that this machine claimed without Redis: the last field that is shown of an entry says so."""
    query = (
        "SELECT count(*) FROM entries WHERE json_extract(data, '$.about.alone')"
        " AND machine = (SELECT value FROM meta WHERE key = 'machine')"
    )
    try:
        return ask_journal(server, query)
    except sqlite3.Error:
        return 0


def _is_well(server: Server) -> bool:
    """Deliveries that wait, or a destination in trouble, are judged by the receiver; a gap is for ever, and that Redis
    was gone for a part of the last ten minutes remains a problem for as long."""
    try:
        health = server.health()
    except (requests.RequestException, ValueError):
        return False
    checks = health["checks"]
    statuses = {checks[name]["status"] for name in ("database", "storage", "memory")} | {
        checks["redis"].get("state", "up")
    }
    is_up = health["status"] != "down" and statuses <= {"up", "not configured"}
    return is_up and checks["fleet"]["status"] in ("up", "gap", "not configured")


@contextmanager
def opened(setup: Setup, size: Size) -> Iterator[World]:
    with ExitStack() as stack:
        yield World(setup, size, stack)


@dataclass(frozen=True)
class Result:
    """``wrong`` is judged however busy the machine is, ``late`` on a machine that has nothing else to do."""

    row: str
    wrong: list[str]
    late: list[str]


HEADER = (
    f"{'scenario':<50} {'sent':>5} {'deliv':>5} {'lost':>4} {'double':>6} {'slowest':>7} {'pause':>5} {'recovery':>8}"
    "  verdict  [what struck, and what was measured]"
)


def run_in(world: World, scenario: Scenario) -> Result:
    """One scenario, after others in the same world or as the first."""
    size = world.size
    world.begin(scenario)
    failures = []
    loading = threading.Thread(target=world.load.run)
    loading.start()
    began = struck_at = recovered_at = time.monotonic()
    try:
        time.sleep(size.emails / size.per_second * 0.3)
        began = time.monotonic()
        scenario.strike(world)
        struck_at = time.monotonic()
        recovered_at = world.wait_until_well()
        time.sleep(1.0)  # the first moments after a fault are part of it
    except (AssertionError, requests.RequestException) as error:
        failures.append(str(error)[:300])
    finally:
        ended = time.monotonic()
        world.load.finish()
        loading.join()
    world.wait_until_all_arrived()
    recovery_s = max(0.0, recovered_at - struck_at, world.load.report.trouble_at - struck_at)
    return judge(world, scenario, failures, (began, ended), recovery_s)


def judge(
    world: World, scenario: Scenario, failures: list[str], strike: tuple[float, float], recovery_s: float
) -> Result:
    """``strike``: when it began and ended."""
    report, subjects, found = world.load.report, world.load.subjects, world.found
    arrivals = [_arrivals(sink, subjects) for sink in world.sinks]
    expected, delivered = len(subjects) * len(arrivals), sum(map(len, arrivals))
    waiting = world.count_waiting() if delivered < expected else 0
    lost = expected - delivered - waiting
    doubles = [(subject, times) for each in arrivals for subject, times in each.items() for _ in times[1:]]
    in_outages = sum(any(start <= times[0] <= end for start, end in world.outages) for _, times in doubles)
    allowed = scenario.most_doubles or (in_outages if scenario.window else 0)
    stories = [_story(world, subject, times, strike[0]) for subject, times in doubles]
    ids = {(each.subject, each.webhook_id) for each in world.sink.accepted if each.at > world.began_at}
    other_ids = len(ids) - len({subject for subject, _ in ids})
    problems = {
        f"lost {lost}": lost,
        f"{waiting} still wait": waiting,
        f"never accepted {len(report.unanswered)}": report.unanswered,
        f"double {len(doubles)}, at most {allowed}: {stories}": len(doubles) > allowed,
        f"{other_ids} with more than one webhook-id": other_ids,
        **{f"did not strike: no {name}": not found[name] for name in scenario.struck.split()},
        **{f"{name} {found[name]}, must be 0": found[name] for name in scenario.never.split()},
    }
    pause_s = report.pause_s(*strike)
    limits = {
        f"a request took {report.slowest_s:.1f} s": (report.slowest_s, scenario.slowest_s),
        f"a machine accepted nothing for {pause_s:.1f} s": (pause_s, scenario.pause_s),
        f"recovered after {recovery_s:.1f} s": (recovery_s, scenario.recovery_s),
    }
    wrong = failures + [problem for problem, is_so in problems.items() if is_so]
    late = [f"{what}, at most {limit:g}" for what, (took, limit) in limits.items() if took > limit]
    shown = found if wrong else scenario.struck.split()  # a failure is explained by all that logs and journals say
    facts = {name: found[name] for name in shown} | world.notes
    verdict = "; ".join([*wrong, *late]) or (f"ok, window ({scenario.window})" if doubles else "ok")
    row = (
        f"{scenario.name:<50} {report.sent:>5} {delivered:>5} {lost:>4} {len(doubles):>6} "
        f"{report.slowest_s:>7.1f} {pause_s:>5.1f} {recovery_s:>8.1f}  {verdict}  "
        f"[{', '.join(f'{name} {value}' for name, value in facts.items())}]"
    )
    return Result(row, wrong, late)


def _arrivals(sink: Sink, subjects: Collection[str]) -> dict[str, list[float]]:
    """When each of these emails was accepted."""
    found: dict[str, list[float]] = {}
    for each in sink.accepted:
        if each.subject in subjects:
            found.setdefault(each.subject, []).append(each.at)
    return found


def _story(world: World, subject: str, arrivals: list[float], began: float) -> str:
    """When it was first sent, and when it arrived, in seconds from the strike."""
    sent = world.load.report.first_sent[subject] - began
    times = ", ".join(f"{each - began:.2f}" for each in arrivals)
    return f"{subject} to {world.load.machine_of(subject)} at {sent:.2f}: {times}"
