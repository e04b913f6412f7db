"""Emails through the queue to three destinations: one healthy, one down for the first half, one slow.

In the middle a worker is killed. The sinks are the judge. What the killed worker had under way may come a second time,
under the same webhook-id: the one window nobody can close. The healthy destination must not notice the others: its p95
from 200 to arrival is compared with a run that has no others.
"""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import requests

from tests.support.rabbitmq_server import RabbitmqServer
from tests.support.redis_server import RedisServer
from tests.support.server import INGRESS_TOKEN, Server, email
from tests.support.sink import Received, Reply, Sink
from tests.support.worker import WorkerProcess

CLIENTS = 8
WARM_UP = "warm-up"
THREADS = 8  # of a worker for each destination: so many deliveries it may have under way when it is killed


@dataclass(frozen=True)
class Plan:
    emails: int
    duration_s: float
    slow_s: float
    broker: str = "redis"
    deadline_s: float = 240


@dataclass(frozen=True)
class Tally:
    """What one destination got. ``allowed_doubles`` were under way in the worker when it was killed."""

    distinct: int
    doubles: int
    allowed_doubles: int


@dataclass(frozen=True)
class Report:
    plan: Plan
    alone_p95_s: float
    healthy_p95_s: float
    tallies: dict[str, Tally]
    all_there_s: float

    @property
    def problems(self) -> list[str]:
        found = []
        for name, tally in self.tallies.items():
            if tally.distinct != self.plan.emails:
                found.append(f"{name}: lost {self.plan.emails - tally.distinct}")
            if tally.doubles > tally.allowed_doubles:
                found.append(f"{name}: double {tally.doubles}, of them under way at the kill {tally.allowed_doubles}")
        return found

    @property
    def row(self) -> str:
        doubles = sum(tally.doubles for tally in self.tallies.values())
        return (
            f"queue on {self.plan.broker}: {self.plan.emails} emails x {len(self.tallies)} destinations, "
            f"lost {sum(self.plan.emails - tally.distinct for tally in self.tallies.values())}, "
            f"double {doubles} (under way at the kill), healthy p95 {self.healthy_p95_s:.2f} s, "
            f"alone {self.alone_p95_s:.2f} s: {self.healthy_p95_s / self.alone_p95_s:.2f}x; "
            f"all there {self.all_there_s:.0f} s after the last email  {'; '.join(self.problems) or 'ok'}"
        )


class TimedSink(Sink):
    def __init__(self, reply: Reply | None = None) -> None:
        super().__init__(otherwise=reply)
        self.arrivals: dict[str, list[float]] = {}

    def take(self, received: Received) -> None:
        if 200 <= received.status < 300:
            self.arrivals.setdefault(received.payload["subject"], []).append(time.monotonic())
        super().take(received)

    @property
    def emails(self) -> int:
        return len(self.arrivals.keys() - {WARM_UP})

    def is_down(self, down: bool) -> None:
        self.otherwise = Reply(503) if down else Reply()

    def tally(self, killed_at: float | None) -> Tally:
        again = [times for times in self.arrivals.values() if len(times) > 1]
        under_way = [times for times in again if killed_at and len(times) == 2 and times[1] > killed_at]
        return Tally(self.emails, sum(len(times) - 1 for times in again), min(THREADS, len(under_way)))


def run(plan: Plan) -> Report:
    with ExitStack() as stack:
        broker_url = _broker(plan, stack)
        alone = stack.enter_context(TimedSink())
        with _service(broker_url, {"healthy": alone}) as (server, _):
            sent = _send(plan, server)
            _wait_for(plan, [alone])
        alone_p95_s = _p95(sent, alone)
        healthy, flaky, slow = (stack.enter_context(TimedSink()) for _ in range(3))
        slow.otherwise = Reply(delay_s=plan.slow_s)
        flaky.is_down(True)
        with _service(broker_url, {"healthy": healthy, "flaky": flaky, "slow": slow}) as (server, worker):
            killed_at: list[float] = []
            middle = threading.Thread(target=lambda: killed_at.append(_half_way(plan, flaky, worker)))
            middle.start()
            sent = _send(plan, server)
            middle.join()
            ended = time.monotonic()
            _wait_for(plan, [healthy, flaky, slow])
            all_there_s = time.monotonic() - ended
        tallies = {"healthy": healthy, "flaky": flaky, "slow": slow}
        return Report(
            plan,
            alone_p95_s,
            _p95(sent, healthy),
            {name: sink.tally(killed_at[0]) for name, sink in tallies.items()},
            all_there_s,
        )


def _half_way(plan: Plan, flaky: TimedSink, worker: WorkerProcess) -> float:
    time.sleep(plan.duration_s / 2)
    flaky.is_down(False)
    worker.kill_a_child()
    return time.monotonic()


def _broker(plan: Plan, stack: ExitStack) -> str:
    if plan.broker == "redis":
        return ""
    rabbit = RabbitmqServer()
    stack.callback(rabbit.stop)
    return rabbit.start().url


@contextmanager
def _service(broker_url: str, sinks: dict[str, TimedSink]) -> Iterator[tuple[Server, WorkerProcess]]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mailonce-queue-")))
        redis = RedisServer("--appendonly", "yes")
        stack.callback(redis.stop)
        redis.start()
        settings = {
            "REDIS_URL": redis.url,
            "QUEUE_URL": broker_url or redis.url,
            "MAILONCE_CONFIG": str(_toml(folder / "mailonce.toml", sinks)),
            "WORKER_PROCESSES": "2",
            "WORKER_THREADS": str(THREADS),
        }
        server = stack.enter_context(Server(folder / "web", **settings))
        worker = stack.enter_context(WorkerProcess(folder / "worker", **settings))
        _warm_up(server, sinks["healthy"])
        yield server, worker


def _warm_up(server: Server, sink: TimedSink) -> None:
    """Until the worker delivers."""
    assert server.post(email(subject=WARM_UP)).status_code == 200
    deadline = time.monotonic() + 60
    while WARM_UP not in sink.arrivals:
        assert time.monotonic() < deadline, "the worker does not deliver"
        time.sleep(0.05)


def _toml(path: Path, sinks: dict[str, TimedSink]) -> Path:
    destinations = [f"[destinations.{name}]\nurl = '{sink.url}'\n" for name, sink in sinks.items()]
    route = f"[[routes]]\nname = 'all'\ndestinations = {list(sinks)}\nsubject_groups = 'off'\n"
    path.write_text("\n".join([*destinations, route]))
    return path


def _send(plan: Plan, server: Server) -> dict[str, float]:
    """When each email was answered with 200."""
    answered: dict[str, float] = {}
    started = time.monotonic()

    def send(number: int) -> None:
        time.sleep(max(0.0, started + plan.duration_s * number / plan.emails - time.monotonic()))
        subject = f"email {number}"
        while subject not in answered:
            answer = session.post(
                f"{server.url}/api/ingress/gmail", json=email(subject=subject, body=f"This is {subject}"), timeout=30
            )
            if answer.status_code == 200:
                answered[subject] = time.monotonic()

    with requests.Session() as session, ThreadPoolExecutor(CLIENTS) as clients:
        session.headers["Authorization"] = f"Bearer {INGRESS_TOKEN}"
        list(clients.map(send, range(plan.emails)))
    return answered


def _wait_for(plan: Plan, sinks: list[TimedSink]) -> None:
    """Until all are there, and then as long as a message that was sent twice might take."""
    deadline = time.monotonic() + plan.deadline_s
    while any(sink.emails < plan.emails for sink in sinks) and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(2)


def _p95(answered: dict[str, float], sink: TimedSink) -> float:
    waits = [max(0.0, sink.arrivals[subject][0] - at) for subject, at in answered.items() if subject in sink.arrivals]
    return statistics.quantiles(waits, n=20)[18] + 0.001
