"""What fails is ours to retry: destinations that are down, while servers and Redis die and come back.

Each run says what it measured and how it is seen that its fault struck; the sinks are the judges. The schedule waits
for minutes after the second failure, so an operator tries what waits now once the destination is back.
"""

from __future__ import annotations

import base64
import os
import statistics
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil
import requests

from deduplication.claims import Kind, Name
from deduplication.journal.base import Claim, Claimed, Ending, Settlement, Wanted
from deduplication.journal.entry import DeliveryStatus
from deduplication.journal.redis import RedisJournal
from deduplication.redis_client import connect
from orchestrator.delivery.webhook import pack
from tests.faults.world import Size
from tests.support.proxy import Fault, Proxy
from tests.support.rabbitmq_server import RabbitmqServer
from tests.support.redis_server import RedisServer
from tests.support.server import ADMIN_TOKEN, Server, email
from tests.support.sink import Received, Reply, Sink
from tests.support.worker import WorkerProcess

DOWN, REFUSES = Reply(503), Reply(404)
PATIENCE_S = 150.0
TRIED_AGAIN_S = 3.0
CLIENTS = 16
TRIED_BEFORE = 10
STEPS = ("before begin", "after begin", "before the POST", "after the POST", "before finish", "after finish")
SHORT_LEASE = {"LEASE_SECONDS": "4"}
ADMIN = {"Authorization": f"Bearer {ADMIN_TOKEN}"}


@dataclass
class Run:
    """``measured`` is printed, ``problems`` say what must not be."""

    name: str
    measured: dict[str, Any] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def must(self, is_so: bool, otherwise: str) -> None:
        if not is_so:
            self.problems.append(otherwise)

    @property
    def row(self) -> str:
        figures = ", ".join(f"{name} {value}" for name, value in self.measured.items())
        return f"{self.name}: {figures}  {'; '.join(self.problems) or 'ok'}"


@dataclass
class Fleet:
    redis: RedisServer
    proxy: Proxy
    servers: list[Server]
    workers: list[WorkerProcess]

    def try_now(self, server: Server) -> int:
        """As an operator does: what waits is due at once."""
        url = f"{server.url}/api/admin/deliveries/replay"
        answer = requests.post(url, json={"status": "waiting"}, headers=ADMIN, timeout=120)
        return int(answer.json().get("replayed", 0)) if answer.ok else 0

    def waiting_at(self, server: Server) -> int:
        stats = requests.get(f"{server.url}/api/admin/stats", headers=ADMIN, timeout=120).json()
        return sum(each["deliveries"]["waiting"] for each in stats["destinations"].values())


@contextmanager
def fleet(
    toml: str, settings: dict[str, str], count: int = 2, queue: str = "", app: str | None = None, *redis_options: str
) -> Iterator[Fleet]:
    """Servers on one Redis, each a machine of its own; with a queue, a worker beside each."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mailonce-retries-")))
        redis = RedisServer("--appendonly", "yes", *redis_options)
        stack.callback(redis.stop)
        redis.start()
        proxy = stack.enter_context(Proxy(redis.port))
        config = folder / "mailonce.toml"
        config.write_text(toml)
        settings = {"MAILONCE_CONFIG": str(config), "REDIS_URL": proxy.url, **settings}
        if queue:
            settings |= {"QUEUE_URL": queue if queue != "redis" else proxy.url, "WORKER_PROCESSES": "1"}
        servers, workers = [], []
        for number in range(count):
            server = Server(folder / str(number), app=app, **settings)
            stack.callback(server.stop)
            server.launch()
            servers.append(server)
        for number, server in enumerate(servers):
            server.wait_until_up()
            if queue:
                workers.append(stack.enter_context(WorkerProcess(folder / str(number), **settings)))
        yield Fleet(redis, proxy, servers, workers)


def destination(name: str, sink: Sink, breaker: str = "breaker_failures = 5\nbreaker_pause_s = 2") -> str:
    return f"[destinations.{name}]\nurl = '{sink.url}'\n{breaker}\n"


@dataclass
class Provider:
    """Sends to the servers in turn, and to another one if a connection breaks, as a load balancer does."""

    servers: list[Server]
    answers: Counter[str] = field(default_factory=Counter)
    cut_off: set[str] = field(default_factory=set)
    latencies_s: list[float] = field(default_factory=list)

    def send(self, subject: str, first: int = 0, **fields: Any) -> str:
        """Until it is taken. ``answers`` other than 200 count only for those that no dead server had before."""
        deadline, turn = time.monotonic() + PATIENCE_S, first
        while True:
            assert time.monotonic() < deadline, f"{subject} was never taken"
            server = self.servers[turn % len(self.servers)]
            started = time.monotonic()
            try:
                answer = server.post(email(subject=subject, **({"body": f"This is {subject}"} | fields)))
            except requests.RequestException:
                self.cut_off.add(subject)
                turn += 1
                continue
            self.latencies_s.append(time.monotonic() - started)
            if subject not in self.cut_off:
                self.answers[f"{answer.status_code} {answer.json()['status']}"] += 1
            if answer.status_code == 200:
                return str(answer.json()["status"])
            time.sleep(0.3)

    def send_all(self, subjects: list[str], per_second: float) -> None:
        started = time.monotonic()

        def send(number: int) -> None:
            time.sleep(max(0.0, started + number / per_second - time.monotonic()))
            self.send(subjects[number], number)

        with ThreadPoolExecutor(CLIENTS) as clients:
            list(clients.map(send, range(len(subjects))))

    @property
    def refusals(self) -> int:
        return sum(count for answer, count in self.answers.items() if not answer.startswith("200 "))


def subject_of(received: Received) -> str:
    return str(received.payload["subject"])


def wait_until(condition: Callable[[], bool], what: str, within_s: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"in vain: {what}"
        time.sleep(0.05)


def wait_for_all(run: Run, fleet: Fleet, server: Server, sink: Sink, subjects: set[str]) -> None:
    """An operator tries what waits now and then; at the end a while for what might come twice."""
    started, deadline, tried_at, tried = time.monotonic(), time.monotonic() + PATIENCE_S, 0.0, 0
    while missing := subjects - sink.counts(subject_of).keys():
        if time.monotonic() > deadline:
            break
        if time.monotonic() - tried_at > TRIED_AGAIN_S:
            tried_at = time.monotonic()
            tried += fleet.try_now(server)
        time.sleep(0.1)
    run.measured |= {"all there after s": round(time.monotonic() - started, 1), "tried now": tried}
    time.sleep(2.0)
    counts = sink.counts(subject_of)
    doubles = sum(counts.values()) - len(counts)
    run.measured |= {"delivered": len(counts), "lost": len(missing), "double": doubles}
    run.must(not missing, f"lost {len(missing)}")
    run.must(not doubles, f"double {doubles}")


# A destination that is down for the first half, and a server that dies meanwhile


def down_for_half(emails: int, per_second: float, queue: str = "") -> Run:
    """``queue``: "", "redis" or "rabbitmq"."""
    run = Run(f"down for half of {emails} emails, {f'queue on {queue}' if queue else 'no queue'}, a server killed")
    subjects = [f"email {number}" for number in range(emails)]
    with ExitStack() as stack:
        sink = stack.enter_context(Sink(otherwise=DOWN))
        address = queue
        if queue == "rabbitmq":
            rabbit = RabbitmqServer()
            stack.callback(rabbit.stop)
            address = rabbit.start().url
        toml = destination("sink", sink) + "[[routes]]\nname = 'all'\ndestinations = ['sink']\nsubject_groups = 'off'\n"
        world = stack.enter_context(fleet(toml, SHORT_LEASE, queue=address))
        provider = Provider(world.servers)
        sending = threading.Thread(target=provider.send_all, args=(subjects, per_second))
        sending.start()
        time.sleep(emails / per_second / 4)
        wait_until(lambda: world.waiting_at(world.servers[0]) > 0, "something waits")
        run.measured["waiting at the kill"] = world.waiting_at(world.servers[0])
        world.servers[1].kill()
        if world.workers:
            kill_all(world.workers[1])
        time.sleep(emails / per_second / 4)
        run.measured["refused by the destination"] = len(sink.received)
        run.must(len(sink.received) > 0 and not sink.accepted, "did not strike: the destination was not down")
        sink.otherwise = Reply()
        sending.join()
        wait_for_all(run, world, world.servers[0], sink, set(subjects))
        run.measured |= {"cut off by the kill": len(provider.cut_off), "answers": dict(provider.answers)}
        run.must(provider.refusals == 0, "the provider was told to come back")
        run.must(bool(provider.cut_off), "did not strike: nobody noticed the kill")
    return run


def kill_all(worker: WorkerProcess) -> None:
    assert worker.process is not None
    for process in [*psutil.Process(worker.process.pid).children(recursive=True), psutil.Process(worker.process.pid)]:
        process.kill()
    worker.process.wait()
    worker.process = None


# Redis away and back while deliveries wait, and the machine that stored some of them alone dies


def redis_away_while_deliveries_wait(emails: int) -> Run:
    run = Run(f"Redis away and back while {3 * emails} deliveries wait, one machine dies and comes back later")
    with Sink(otherwise=DOWN) as sink, fleet(destination("sink", sink), SHORT_LEASE) as world:
        first, second = world.servers
        known, alone, elsewhere = ([f"{kind} {n}" for n in range(emails)] for kind in ("known", "alone", "elsewhere"))
        Provider(world.servers).send_all(known, 200)
        world.proxy.set(Fault.REFUSE)
        wait_until(lambda: {side_of(each) for each in world.servers} == {"local"}, "both decide alone")
        Provider([first]).send_all(alone, 200)
        Provider([second]).send_all(elsewhere, 200)
        run.measured["waiting alone"] = (world.waiting_at(first), world.waiting_at(second))
        second.kill()
        run.must(not sink.accepted, "did not strike: the destination was not down")
        sink.otherwise = Reply()
        world.proxy.set(Fault.NONE)
        wait_until(lambda: side_of(first) == "redis", "the one that lives is back at Redis")
        wait_for_all(run, world, first, sink, {*known, *alone})
        missing = {*elsewhere} - sink.counts(subject_of).keys()
        run.measured["on the dead machine"] = len(missing)
        run.must(len(missing) == emails, "did not strike: they were not on the dead machine alone")
        second.start()
        wait_for_all(run, world, second, sink, {*known, *alone, *elsewhere})
    return run


def side_of(server: Server) -> str | None:
    try:
        side: str | None = server.health()["checks"]["redis"].get("side")
    except requests.RequestException:
        return None
    return side


# Followers, over a crash at each step of the retry that decides


class FollowedSink(Sink):
    """``first`` is the answer to the email that the others follow."""

    def __init__(self) -> None:
        super().__init__()
        self.first = DOWN

    def reply_to(self, payload: dict[str, Any]) -> Reply:
        return self.first if "first" in str(payload) else super().reply_to(payload)


def followers(step: str, *, dies: bool) -> Run:
    """The crash strikes at the try that decides: the process is killed there, and another one goes on."""
    run = Run(f"followers, the original {'dies' if dies else 'is delivered'}, killed {step}")
    crashed = Path(tempfile.mkdtemp(prefix="mailonce-crash-")) / "crashed"
    faults = {"FAULTS_CRASH_AT": step, "FAULTS_CRASH_SIGNAL": "SIGKILL", "FAULTS_CRASH_FILE": str(crashed)}
    toml = destination("sink", sink_of := FollowedSink(), "breaker_failures = 0")
    app = "tests.support.faulty_wsgi:app"
    with sink_of as sink, fleet(toml, SHORT_LEASE | faults, 1, app=app) as world:
        (server,) = world.servers
        provider = Provider([server])
        bodies = ["the first of them", "the second", "the third"]
        told = [provider.send("Lot 456", body=body) for body in bodies]
        run.measured["told"] = told
        run.must(told == ["queued", "skipped_subject_group", "skipped_subject_group"], "they did not follow")
        sink.first = REFUSES if dies else Reply()
        Path(f"{crashed}.armed").touch()
        wait_until(lambda: world.try_now(server) > 0, "the original is tried now")
        wait_until(crashed.exists, "the crash")
        expected = bodies[1] if dies else bodies[0]
        wait_until(lambda: expected in bodies_at(sink), "the one that is to go out")
        wait_until(lambda: open_deliveries(server) == 0, "everything has ended")
        time.sleep(1.5)
        found = bodies_at(sink)
    again = found[expected] - 1
    run.measured |= {"delivered": dict(found), "the refused one was sent": len(sink.received) - sum(found.values())}
    run.must(set(found) == {expected}, "another one went out")
    in_the_window = not dies and step in ("after the POST",)  # sent, but gone before it was noted: same webhook-id
    run.must(again <= in_the_window, f"double {again}")
    return run


def bodies_at(sink: Sink) -> Counter[str]:
    return sink.counts(lambda received: str(received.payload["body"]))


def open_deliveries(server: Server) -> int:
    headers = ADMIN
    found = requests.get(f"{server.url}/api/admin/deliveries", headers=headers, timeout=60).json()["deliveries"]
    return sum(each["status"] in ("waiting", "delivering") for each in found)


# Many that wait behind an open breaker


@dataclass(frozen=True)
class Load:
    """Of Redis and of the server, a second; ``p95_s`` of the healthy destination, from the request to its answer."""

    commands: float
    redis_cpu_ms: float
    server_cpu_ms: float
    p95_s: float


TWO_ROUTES = (
    "[[routes]]\nname = 'down'\nmatch = [{ field = 'subject', contains = 'down' }]\ndestinations = ['down']\n"
    "[[routes]]\nname = 'well'\ndestinations = ['well']\n"
)


def backlog(waiting: int, seconds: float, per_second: float = 20) -> Run:
    run = Run(f"{waiting} deliveries wait behind an open breaker")
    breaker = "breaker_failures = 3\nbreaker_pause_s = 15"
    with Sink() as well, Sink(otherwise=DOWN) as down, ExitStack() as stack:
        toml = destination("well", well) + destination("down", down, breaker) + TWO_ROUTES
        world = stack.enter_context(fleet(toml, SHORT_LEASE, 1))
        (server,) = world.servers
        provider = Provider([server])
        for number in range(TRIED_BEFORE):
            provider.send(f"down {number}")
        store_waiting(world.redis, "down", 20 - TRIED_BEFORE)
        few = measure(world, seconds, per_second, "few")
        store_waiting(world.redis, "down", waiting - 20)
        run.measured["waiting"] = indexed(world, "down")
        run.must(run.measured["waiting"] >= waiting, "did not strike: there is no backlog")
        many = measure(world, seconds, per_second, "many")
        run.measured |= {"with 20": shown(few), f"with {waiting}": shown(many)}
        run.measured["p95 ratio"] = round(many.p95_s / few.p95_s, 2)
        run.must(many.commands < 1.5 * few.commands + 50, "Redis is asked more, the more waits")
        run.must(not down.accepted, "did not strike: the destination was not down")
        down.otherwise = Reply()
        started = time.monotonic()
        wait_until(lambda: bool(down.accepted), "it is noticed that it is well again")
        noticed_s = time.monotonic() - started
        meanwhile = measure(world, seconds, per_second, "recovery")
        wait_until(lambda: indexed(world, "down") <= TRIED_BEFORE, "what was due", 900)
        world.try_now(server)  # what failed twice would wait for five minutes
        wait_until(lambda: indexed(world, "down") == 0, "the rest")
        took_s = time.monotonic() - started - noticed_s
        counts = down.counts()
        run.measured |= {
            "well again noticed after s": round(noticed_s, 1),
            "all delivered after s": round(took_s, 1),
            "p95 ratio meanwhile": round(meanwhile.p95_s / few.p95_s, 2),
            "delivered": len(counts),
            "double": sum(counts.values()) - len(counts),
        }
        run.must(len(counts) == waiting, f"lost {waiting - len(counts)}")
        run.must(sum(counts.values()) == len(counts), "some came twice")
    return run


def indexed(world: Fleet, to: str) -> int:
    """By the size of the index: the numbers of the service would read what is being delivered."""
    return sum(world.redis.client.zcard(key) for key in world.redis.client.keys(f"due:{to}*"))


def measure(world: Fleet, seconds: float, per_second: float, name: str) -> Load:
    (server,) = world.servers
    provider = Provider([server])
    processes = [psutil.Process(pid) for pid in server.worker_pids()]

    def used() -> tuple[float, float, float]:
        cpu, stats = world.redis.client.info("cpu"), world.redis.client.info("stats")
        of_server = sum(sum(each.cpu_times()[:2]) for each in processes)
        return stats["total_commands_processed"], cpu["used_cpu_user"] + cpu["used_cpu_sys"], of_server

    before, started = used(), time.monotonic()
    count = int(seconds * per_second)
    with ThreadPoolExecutor(4) as clients:

        def send(number: int) -> None:
            time.sleep(max(0.0, started + number / per_second - time.monotonic()))
            provider.send(f"{name} {number}")

        list(clients.map(send, range(count)))
    took_s = time.monotonic() - started
    commands, redis_s, server_s = (after - was for after, was in zip(used(), before, strict=True))
    p95_s = statistics.quantiles(provider.latencies_s, n=20)[18]
    return Load(commands / took_s, 1000 * redis_s / took_s, 1000 * server_s / took_s, p95_s)


def shown(load: Load) -> str:
    return (
        f"{load.commands:.0f} commands/s, Redis {load.redis_cpu_ms:.1f} ms/s, "
        f"server {load.server_cpu_ms:.0f} ms/s, p95 {1000 * load.p95_s:.0f} ms"
    )


def store_waiting(redis: RedisServer, to: str, count: int) -> None:
    """As a server stores what comes while the breaker is open; a thousand times faster."""
    with connect(redis.url, timeout_s=30, decode_responses=False) as client:
        journal = RedisJournal(client, "filler")
        payload = pack({"subject": "waiting", "sender": "a@down.example", "body": "x" * 200})
        first = redis.client.incrby("test:filled", count) - count
        for number in range(first, first + count):
            own = (Name(Kind.EMAIL_ID, "2026-11-16", f"filler{number}"),)
            claim = Claim(f"filler{number}", "filler", own, destinations=(Wanted(to, f"msg_filler{number}"),))
            verdict = journal.claim(claim)
            assert isinstance(verdict, Claimed)
            (delivery,) = verdict.entry.deliveries
            waits = replace(delivery, status=DeliveryStatus.WAITING, next_try_ms=journal.now_ms())
            assert journal.settle(claim, verdict.entry, Settlement(Ending.DONE, "queued", (waits,), payload=payload))


# Payloads that fill Redis and the disk, and one that takes longer than anybody waits


def full_redis(seconds: float, per_second: float = 20) -> Run:
    """Large emails for a destination that is down fill a small Redis, then the disk; all others go on as before."""
    run = Run("a small Redis full of payloads for a destination that is down")
    limits = {"PAYLOAD_DISK_MB": "5", "DISK_FREE_MB": "1"}
    small = ("--maxmemory", f"{12 << 20}", "--maxmemory-policy", "noeviction")
    with Sink() as well, Sink(otherwise=DOWN) as down, ExitStack() as stack:
        toml = destination("well", well) + destination("down", down) + TWO_ROUTES
        world = stack.enter_context(fleet(toml, SHORT_LEASE | limits, 1, "", None, *small))
        (server,) = world.servers
        before = measure(world, seconds, per_second, "before")
        stages, taken, refused = fill_with_payloads(server)
        run.measured |= {"stages": "-".join(stages), "stored": len(taken), "kept by their provider": len(refused)}
        run.must(stages == ["redis", "disk", "full"], "the stages are not in their order")
        memory = world.redis.client.info("memory")
        run.measured["Redis used of its memory"] = f"{memory['used_memory'] / memory['maxmemory']:.2f}"
        is_ended = threading.Event()
        again = threading.Thread(target=keep_sending, args=(server, refused[0], is_ended))
        again.start()
        full = measure(world, seconds, per_second, "full")
        is_ended.set()
        again.join()
        run.measured |= {"well alone": shown(before), "well beside it": shown(full)}
        run.measured["p95 ratio"] = round(full.p95_s / before.p95_s, 2)
        run.must(full.p95_s < 1.5 * before.p95_s, "the healthy destination waits")
        repeats = Counter(
            server.post(email(subject=f"full {n}", body=f"This is full {n}")).json()["status"] for n in range(50)
        )
        run.measured["the same again"] = dict(repeats)
        run.must(set(repeats) == {"already_processed"}, "duplicates were not recognised")
        errors = world.redis.client.info("errorstats")
        run.must("errorstat_OOM" not in errors, f"Redis said OOM: {errors}")
        down.otherwise = Reply()
        subjects = {each["subject"] for each in taken}
        wait_for_all(run, world, server, down, subjects)
        provider = Provider([server])
        for each in refused:
            provider.send(each["subject"], body=each["body"])
        expected = subjects | {each["subject"] for each in refused}
        run.must(down.counts(subject_of).keys() == expected, "not all went out in the end")
        run.must(set(well.counts().values()) == {1}, "the healthy destination got some twice")
    return run


def fill_with_payloads(server: Server) -> tuple[list[str], list[dict[str, Any]], list[dict[str, Any]]]:
    """The stages as they came, what was taken, and the first ten that were left to their provider."""
    stages = [stage_of(server)]
    taken: list[dict[str, Any]] = []
    refused: list[dict[str, Any]] = []
    for number in range(2_000):
        large = email(subject=f"down {number}", body=base64.b64encode(os.urandom(30_000)).decode())
        told = server.post(large)
        (taken if told.status_code == 200 else refused).append(large)
        if (stage := stage_of(server)) != stages[-1]:
            stages.append(stage)
        if len(refused) == 10:
            break
    return stages, taken, refused


def stage_of(server: Server) -> str:
    return str(server.health()["checks"]["storage"]["stage"])


def keep_sending(server: Server, payload: dict[str, Any], is_ended: threading.Event) -> None:
    """As its provider does, every quarter of a second."""
    while not is_ended.wait(0.25):
        server.post(payload)


def large_email(megabytes: float, line_bytes_per_s: int) -> Run:
    """It takes longer than its provider waits, and than a destination's timeouts: its stored attempt delivers it."""
    run = Run(f"an email of {megabytes:g} MB over a line of {line_bytes_per_s / 1e6:g} MB a second")
    with Sink() as sink, Proxy(int(sink.url.split(":")[2].split("/")[0])) as line:
        line.bytes_per_s = line_bytes_per_s
        toml = f"[destinations.sink]\nurl = '{line.url.replace('redis:', 'http:')}'\n"
        with fleet(toml, SHORT_LEASE, 1) as world:
            body = base64.b64encode(os.urandom(int(megabytes * 1e6 * 3 / 4))).decode()
            started = time.monotonic()
            told = world.servers[0].post(email(subject="large", body=body), timeout_s=120).json()["status"]
            run.measured |= {"told": told, "after s": round(time.monotonic() - started, 1)}
            run.must(told == "queued", "did not strike: the line is not slow")
            wait_until(lambda: bool(sink.accepted), "it is delivered", 600)
            run.measured["delivered after s"] = round(time.monotonic() - started, 1)
            wait_until(lambda: indexed(world, "sink") == 0, "it is finished")
            time.sleep(2.0)
            run.must(len(sink.accepted) == 1, "it came twice")
            run.must(sink.accepted[0].payload["body"] == body, "it is not what was sent")
    return run


# All of them


def runs(size: Size) -> dict[str, Callable[[], Run]]:
    """By their names; the long ones are of the size that was promised."""
    emails, rate = size.emails, size.per_second
    few = 100 if size.is_long else 20
    chosen: dict[str, Callable[[], Run]] = {"down for half, no queue": lambda: down_for_half(emails, rate)}
    for broker in ["redis", "rabbitmq"] if RabbitmqServer.is_installed() else ["redis"]:
        chosen[f"down for half, queue on {broker}"] = lambda broker=broker: down_for_half(emails, rate, broker)  # type: ignore[misc]
    chosen["redis away while deliveries wait"] = lambda: redis_away_while_deliveries_wait(few)
    for dies in (True, False):
        for step in STEPS:
            name = f"followers, original {'dies' if dies else 'delivered'}, {step}"
            chosen[name] = lambda dies=dies, step=step: followers(step, dies=dies)  # type: ignore[misc]
    chosen["backlog"] = lambda: backlog(20_000 if size.is_long else 400, 20 if size.is_long else 5)
    chosen["full redis"] = lambda: full_redis(20 if size.is_long else 5)
    megabytes, line = (24.9, 1_000_000) if size.is_long else (5, 300_000)
    chosen["large email"] = lambda: large_email(megabytes, line)
    return chosen


def run_all(size: Size, words: list[str]) -> list[list[str]]:
    """The problems of each, for whoever counts them."""
    if not RabbitmqServer.is_installed():
        print("rabbitmq-server is not installed: retries are tried with a queue on Redis alone")
    problems = []
    for name, run in runs(size).items():
        if words and not any(word in name for word in words):
            continue
        try:
            result = run()
        except AssertionError as error:
            result = Run(name, problems=[str(error)])
        print(result.row, flush=True)
        problems.append(result.problems)
    return problems
