"""What fails is retried by the service: destinations that are down, slow or too many, while machines die and come back.

Each run prints what it measured; the receivers are the judges. After the second failure the schedule waits for minutes,
so an operator replays what waits once the destination is back.
"""

from __future__ import annotations

import base64
import os
import statistics
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import requests

from deduplication.journal.coordinator import Claimed
from deduplication.journal.entry import DeliveryStatus, changed
from orchestrator.delivery.webhook import pack
from tests.bench.machines import new_claim, opened
from tests.faults.scenarios import replay_waiting
from tests.faults.world import Size, wait_for
from tests.support.proxy import Proxy
from tests.support.rabbitmq_server import RabbitmqServer
from tests.support.redis_server import RedisServer
from tests.support.server import Server, email
from tests.support.sink import Received, Reply, Sink
from tests.support.worker import WorkerProcess

DOWN, REFUSES = Reply(503), Reply(404)
NOTICEABLE_S = 0.05
SHORT_LEASE = {"LEASE_SECONDS": "4"}
CRASH_STEPS = ("before take", "after hand-out", "after take", "before finish", "after finish")
TWO_ROUTES = (
    "[[routes]]\nname = 'down'\nmatch = [{ field = 'subject', contains = 'down' }]\ndestinations = ['down']\n"
    "[[routes]]\nname = 'well'\ndestinations = ['well']\n"
)


@dataclass
class Run:
    """``measured`` is printed; ``problems`` make it fail."""

    name: str
    measured: dict[str, Any] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def must(self, is_so: bool, otherwise: str) -> None:
        if not is_so:
            self.problems.append(otherwise)

    def judge(self, sink: Sink, subjects: set[str]) -> None:
        """Everything arrived, once."""
        counts = sink.counts(_subject)
        lost, double = len(subjects - counts.keys()), sum(counts.values()) - len(counts)
        self.measured |= {"lost": lost, "double": double}
        self.must(not lost, f"lost {lost}")
        self.must(not double, f"double {double}")

    @property
    def row(self) -> str:
        figures = ", ".join(f"{name} {value}" for name, value in self.measured.items())
        return f"{self.name}: {figures}  {'; '.join(self.problems) or 'ok'}"


@dataclass
class Fleet:
    redis: RedisServer
    servers: list[Server]
    workers: list[WorkerProcess]

    def send(self, subject: str, first: int = 0, **fields: Any) -> tuple[str, int]:
        """As a provider behind a load balancer, until it is accepted; the status, and how often it had to retry."""
        payload = email(subject=subject, **({"body": f"This is {subject}"} | fields))
        for turn in range(first, first + 300):
            try:
                answer = self.servers[turn % len(self.servers)].post(payload)
            except requests.RequestException:
                continue
            if answer.status_code == 200:
                return str(answer.json()["status"]), turn - first
            time.sleep(0.3)
        raise AssertionError(f"{subject} was never accepted")

    def send_all(self, subjects: list[str], per_second: float) -> Counter[str]:
        started = time.monotonic()

        def send(number: int) -> str:
            time.sleep(max(0.0, started + number / per_second - time.monotonic()))
            return self.send(subjects[number], number)[0]

        with ThreadPoolExecutor(16) as clients:
            return Counter(clients.map(send, range(len(subjects))))

    def wait_for_all(self, sink: Sink, subjects: set[str], within_s: float = 120) -> None:
        """An operator replays what waits now and then."""
        deadline, asked_at = time.monotonic() + within_s, 0.0
        while subjects - sink.counts(_subject).keys() and time.monotonic() < deadline:
            if time.monotonic() - asked_at > 3:
                replay_waiting(self.servers[0])
                asked_at = time.monotonic()
            time.sleep(0.1)
        time.sleep(2.0)  # for what might come twice

    def waiting_for(self, destination: str) -> int:
        return int(self.redis.client.zcard(f"due:{destination}"))

    def p95_s(self, name: str, seconds: float, per_second: float = 20) -> float:
        """From the request to its answer, at the destination that is well."""
        began, times = time.monotonic(), []

        def send(number: int) -> None:
            time.sleep(max(0.0, began + number / per_second - time.monotonic()))
            started = time.monotonic()
            self.send(f"{name} {number}")
            times.append(time.monotonic() - started)

        with ThreadPoolExecutor(4) as clients:
            list(clients.map(send, range(int(seconds * per_second))))
        return statistics.quantiles(times, n=20)[18]


@contextmanager
def fleet(
    toml: str,
    count: int = 2,
    queue: str = "",
    redis_options: tuple[str, ...] = (),
    settings: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[Fleet]:
    """Machines on one Redis; with a queue ("redis" or an address), a worker beside each."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mailonce-retries-")))
        redis = RedisServer("--appendonly", "yes", *redis_options)
        stack.callback(redis.stop)
        redis.start()
        config = folder / "mailonce.toml"
        config.write_text(toml)
        settings = {
            "MAILONCE_CONFIG": str(config),
            "REDIS_URL": redis.url,
            "DISK_FREE_MB": "1",
            **SHORT_LEASE,
            **settings,
        }
        app = "tests.support.faulty_wsgi:app" if "FAULTS_CRASH_AT" in settings else None
        if queue:
            settings |= {"QUEUE_URL": redis.url if queue == "redis" else queue, "WORKER_PROCESSES": "1"}
        world = Fleet(redis, [], [])
        for number in range(count):
            server = Server(folder / str(number), app=app, **settings)
            stack.callback(server.stop)
            server.launch()
            world.servers.append(server)
        for number, server in enumerate(world.servers):
            server.wait_until_up()
            if queue:
                world.workers.append(stack.enter_context(WorkerProcess(folder / str(number), **settings)))
            world.send(f"well {number}", number)  # a new era is closed for some seconds
        yield world


def _start_rabbitmq(stack: ExitStack) -> str:
    rabbit = RabbitmqServer()
    stack.callback(rabbit.stop)
    return rabbit.start().url


def destination(name: str, sink: Sink, breaker: str = "breaker_failures = 5\nbreaker_pause_s = 2") -> str:
    return f"[destinations.{name}]\nurl = '{sink.url}'\n{breaker}\n"


def down_for_half(emails: int, per_second: float, queue: str = "") -> Run:
    """The destination is down for the first half, and a machine is killed meanwhile."""
    run = Run(f"down for half of {emails} emails, {f'queue on {queue}' if queue else 'no queue'}, a machine killed")
    subjects = [f"email {number}" for number in range(emails)]
    with ExitStack() as stack:
        sink = stack.enter_context(Sink())
        address = _start_rabbitmq(stack) if queue == "rabbitmq" else queue
        world = stack.enter_context(fleet(destination("sink", sink), queue=address))
        sink.otherwise = DOWN
        before = len(sink.accepted)
        sending = threading.Thread(target=world.send_all, args=(subjects, per_second))
        sending.start()
        time.sleep(emails / per_second / 4)
        wait_for(lambda: world.waiting_for("sink") > 0, "something waits")
        run.measured["waiting at the kill"] = world.waiting_for("sink")
        world.servers[1].kill()
        time.sleep(emails / per_second / 4)
        refused = len(sink.received) - len(sink.accepted)
        run.measured["refused"] = refused
        run.must(refused > 0 and len(sink.accepted) == before, "did not strike: the destination was not down")
        sink.otherwise = Reply()
        sending.join()
        world.wait_for_all(sink, set(subjects))
        run.judge(sink, set(subjects))
    return run


class GroupSink(Sink):
    """``first``: the answer to the email that the others of its group wait for."""

    def __init__(self) -> None:
        super().__init__()
        self.first = DOWN

    def reply_to(self, payload: dict[str, Any]) -> Reply:
        return self.first if "first" in str(payload) else super().reply_to(payload)


def wait_for_a_name(step: str, *, dies: bool) -> Run:
    """Of a group one goes out: the first, or the next if that becomes a dead letter; a crash strikes in between."""
    run = Run(f"a group whose first {'dies' if dies else 'is delivered'}, killed {step}")
    with ExitStack() as stack:
        crashed = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "crashed"
        faults = {"FAULTS_CRASH_AT": step, "FAULTS_CRASH_SIGNAL": "SIGKILL", "FAULTS_CRASH_FILE": str(crashed)}
        sink = stack.enter_context(GroupSink())
        world = stack.enter_context(fleet(destination("sink", sink, "breaker_failures = 0"), 1, settings=faults))
        bodies = ["the first of them", "the second", "the third"]
        answers = [world.send("Lot 456", body=body)[0] for body in bodies]
        run.measured["answers"] = answers
        run.must(answers[0] == "queued", "did not strike: the first was not stored")
        sink.first = REFUSES if dies else Reply()
        Path(f"{crashed}.armed").touch()
        replay_waiting(world.servers[0])
        wait_for(crashed.exists, "the crash")
        expected = set(bodies[1:] if dies else bodies[:1])

        def arrived() -> Counter[str]:
            found = sink.counts(lambda each: str(each.payload["body"]))
            return Counter({body: count for body, count in found.items() if body in bodies})

        wait_for(lambda: bool(expected & arrived().keys()), "the one that is to go out")
        time.sleep(6.0)  # those that wait for a name are judged again after 5 s
        run.measured["arrived"] = dict(arrived())
        run.must(len(arrived()) == 1 and arrived().keys() <= expected, "another one went out")
        run.must(arrived().total() <= 1 + (step == "before finish"), "double")  # window (a)
    return run


def backlog(waiting: int, seconds: float) -> Run:
    """Many wait behind an open breaker: the healthy destination must not notice, nor Redis be asked more."""
    run = Run(f"{waiting} deliveries wait behind an open breaker")
    with Sink() as well, Sink(otherwise=DOWN) as down, ExitStack() as stack:
        toml = destination("well", well) + destination("down", down, "breaker_failures = 3\nbreaker_pause_s = 15")
        world = stack.enter_context(fleet(toml + TWO_ROUTES, 1))
        for number in range(5):
            world.send(f"down {number}")
        few_s, few = world.p95_s("few", seconds), _commands_a_second(world, 3)
        store_waiting(world.redis, "down", waiting)
        run.measured["waiting"] = world.waiting_for("down")
        run.must(world.waiting_for("down") >= waiting, "did not strike: there is no backlog")
        many_s, many = world.p95_s("many", seconds), _commands_a_second(world, 3)
        run.measured |= {
            "p95 ms": f"{1000 * few_s:.0f} -> {1000 * many_s:.0f}",
            "commands/s": f"{few:.0f} -> {many:.0f}",
        }
        run.must(many_s < 2 * few_s or many_s - few_s < NOTICEABLE_S, "the healthy destination waits")
        run.must(many < 1.5 * few + 50, "Redis is asked more, the more waits")
        down.otherwise = Reply()
        run.measured["noticed after s"] = round(wait_for(lambda: bool(down.accepted), "it is well again"), 1)
        run.measured["all sent after s"] = round(wait_for(lambda: not world.waiting_for("down"), "the rest", 900), 1)
        counts = down.counts()
        run.measured |= {"delivered": len(counts), "double": sum(counts.values()) - len(counts)}
        run.must(len(counts) == waiting + 5, f"lost {waiting + 5 - len(counts)}")
        run.must(sum(counts.values()) == len(counts), "some came twice")
    return run


def _commands_a_second(world: Fleet, seconds: float) -> float:
    before = world.redis.client.info("stats")["total_commands_processed"]
    time.sleep(seconds)
    return float((world.redis.client.info("stats")["total_commands_processed"] - before) / seconds)


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


def full_redis(seconds: float) -> Run:
    """Large emails for a destination that is down fill their share of Redis; all others go on as before."""
    run = Run("Redis full of payloads for a destination that is down")
    small = ("--maxmemory", f"{24 << 20}", "--maxmemory-policy", "noeviction")
    with Sink() as well, Sink(otherwise=DOWN) as down, ExitStack() as stack:
        toml = destination("well", well) + destination("down", down) + TWO_ROUTES
        world = stack.enter_context(fleet(toml, 1, redis_options=small))
        before_s = world.p95_s("before", seconds)
        stored: list[dict[str, Any]] = []
        returned: list[dict[str, Any]] = []
        for number in range(2_000):
            large = email(subject=f"down {number}", body=base64.b64encode(os.urandom(30_000)).decode())
            (stored if world.servers[0].post(large).status_code == 200 else returned).append(large)
            if len(returned) == 10:
                break
        memory = world.redis.client.info("memory")
        share = memory["used_memory"] / memory["maxmemory"]
        run.measured |= {"stored": len(stored), "returned": len(returned), "Redis used": f"{share:.2f}"}
        run.must(len(returned) == 10 and len(stored) > 10, "did not strike: Redis was not full")
        full_s = world.p95_s("full", seconds)
        run.measured["p95 ms"] = f"{1000 * before_s:.0f} -> {1000 * full_s:.0f}"
        run.must(full_s < 2 * before_s or full_s - before_s < NOTICEABLE_S, "the healthy destination waits")
        run.must("errorstat_OOM" not in world.redis.client.info("errorstats"), "Redis said OOM")
        down.otherwise = Reply()
        subjects = {each["subject"] for each in stored}
        world.wait_for_all(down, subjects)
        for each in returned:
            world.send(each["subject"], body=each["body"])
        run.judge(down, subjects | {each["subject"] for each in returned})
        run.must(set(well.counts().values()) == {1}, "the healthy destination got some twice")
    return run


def large_email(megabytes: float, line_bytes_per_s: int) -> Run:
    """It takes longer than its provider waits: a stored attempt delivers it."""
    run = Run(f"an email of {megabytes:g} MB over a line of {line_bytes_per_s / 1e6:g} MB a second")
    with Sink() as sink, Proxy(int(sink.url.split(":")[2].split("/")[0])) as line:
        toml = f"[destinations.sink]\nurl = '{line.url.replace('redis:', 'http:')}'\n"
        with fleet(toml, 1) as world:
            line.bytes_per_s = line_bytes_per_s
            body = base64.b64encode(os.urandom(int(megabytes * 1e6 * 3 / 4))).decode()
            started, before = time.monotonic(), len(sink.accepted)
            answer = world.servers[0].post(email(subject="large", body=body), timeout_s=120).json()["status"]
            run.measured |= {"answer": answer, "after s": round(time.monotonic() - started, 1)}
            run.must(answer == "queued", "did not strike: the line is not slow")
            wait_for(lambda: len(sink.accepted) > before, "it is delivered", 600)
            run.measured["delivered after s"] = round(time.monotonic() - started, 1)
            wait_for(lambda: not world.waiting_for("sink"), "it is finished")
            time.sleep(2.0)
            run.must(len(sink.accepted) == before + 1, "it came twice")
            run.must(sink.accepted[-1].payload["body"] == body, "it is not what was sent")
    return run


def beside_a_slow_one(emails: int, per_second: float, broker: str) -> Run:
    """Through the queue to a healthy, a slow and a failing destination; a worker is killed in between."""
    run = Run(f"queue on {broker}: {emails} emails to a healthy, a slow and a failing destination, a worker killed")
    subjects = [f"email {number}" for number in range(emails)]
    with ExitStack() as stack:
        sinks = {name: stack.enter_context(Sink()) for name in ("healthy", "slow", "failing")}
        address = _start_rabbitmq(stack) if broker == "rabbitmq" else broker
        toml = "".join(destination(name, sink) for name, sink in sinks.items())
        toml += f"[[routes]]\nname = 'all'\ndestinations = {list(sinks)}\n"
        world = stack.enter_context(fleet(toml, 2, address))
        sinks["slow"].otherwise, sinks["failing"].otherwise = Reply(delay_s=0.2), DOWN
        sending = threading.Thread(target=world.send_all, args=(subjects, per_second))
        began = time.monotonic()
        sending.start()
        time.sleep(emails / per_second / 2)
        world.workers[0].kill_a_child()
        killed_at = time.monotonic()
        sinks["failing"].otherwise = Reply()
        sending.join()
        sinks["slow"].otherwise = Reply()
        for name, sink in sinks.items():
            world.wait_for_all(sink, set(subjects))
            counts = sink.counts(_subject)
            again = {subject for subject, count in counts.items() if count > 1}
            late = [each for each in sink.accepted if _subject(each) in again and each.at > killed_at]
            lost = len(set(subjects) - counts.keys())
            run.measured[name] = f"lost {lost}, double {len(again)}"
            run.must(not lost, f"{name}: lost {lost}")
            run.must(len(again) <= 8 and len(late) >= len(again), f"{name}: double {len(again)}")  # window (a)
        sent = [each.at for each in sinks["healthy"].accepted if _subject(each) in set(subjects)]
        delay_s = max(sent) - began - emails / per_second
        run.measured["healthy one was done after s"] = round(delay_s, 1)
    return run


def _subject(received: Received) -> str:
    return str(received.payload["subject"])


def runs(size: Size) -> dict[str, Callable[[], Run]]:
    emails, rate = size.emails, size.per_second
    brokers = ["redis", "rabbitmq"] if RabbitmqServer.is_installed() else ["redis"]
    chosen: dict[str, Callable[[], Run]] = {"down for half, no queue": lambda: down_for_half(emails, rate)}
    for broker in brokers:
        chosen[f"down for half, queue on {broker}"] = lambda broker=broker: down_for_half(emails, rate, broker)  # type: ignore[misc]
        chosen[f"beside a slow one, queue on {broker}"] = lambda broker=broker: beside_a_slow_one(emails, rate, broker)  # type: ignore[misc]
    for dies in (True, False):
        for step in CRASH_STEPS:
            name = f"a group, first {'dies' if dies else 'delivered'}, {step}"
            chosen[name] = lambda dies=dies, step=step: wait_for_a_name(step, dies=dies)  # type: ignore[misc]
    chosen["backlog"] = lambda: backlog(20_000 if size.is_long else 400, 20 if size.is_long else 5)
    chosen["full redis"] = lambda: full_redis(20 if size.is_long else 5)
    megabytes, line = (24.9, 1_000_000) if size.is_long else (5, 300_000)
    chosen["large email"] = lambda: large_email(megabytes, line)
    return chosen


def run_all(size: Size, words: list[str]) -> list[list[str]]:
    """The problems of each."""
    problems = []
    for name, run in runs(size).items():
        if words and not any(word in name for word in words):
            continue
        try:
            result = run()
        except (AssertionError, requests.RequestException) as error:
            result = Run(name, problems=[str(error) or repr(error)])
        print(result.row, flush=True)
        problems.append(result.problems)
    return problems
