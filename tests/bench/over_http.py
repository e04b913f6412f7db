"""Requests a second through gunicorn, each server with the same settings as the anchors; and what a start costs.

Stored deliveries through one worker process to a receiver on this machine.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from orchestrator.build import build
from orchestrator.config.settings import load_settings
from orchestrator.item import email_item
from tests.bench.figures import Figure, Row, alternate, number, ratio_row
from tests.bench.load import NUMBER, CountingReceiver, Generator, Request
from tests.bench.machines import new_email
from tests.support.redis_server import RedisServer
from tests.support.server import ADMIN_TOKEN, INGRESS_TOKEN, Server, WorkerProcess, email
from tests.support.surroundings import clean_environment, output_of

ROUNDS = 5
ROUND_S = 1.2
EMAILS = 50_000
SETTINGS = {"WEB_CONCURRENCY": "2", "WEB_THREADS": "4"}
NEW = email(subject=f"Report {NUMBER}", body=f"<p>The text of email {NUMBER}.</p>")
SAME = email(subject="The same report")
_TIMED = "import time; began = time.process_time(); import wsgi; print(time.process_time() - began)"


def http_rows(redis: RedisServer, folder: Path) -> Iterator[Row]:
    redis.client.flushall()
    with ExitStack() as stack:
        generator = stack.enter_context(Generator())
        receiver = stack.enter_context(closing(CountingReceiver()))

        def start(name: str, app: str | None = None, **settings: str) -> Server:
            return stack.enter_context(Server(folder / name, app, **SETTINGS, **settings))

        anchors = start("anchors", "tests.bench.anchors:make_app()", ANCHOR_REDIS_URL=f"{redis.address}/1")
        on_redis, on_sqlite = start("redis", REDIS_URL=redis.url), start("sqlite")
        delivered = start("delivered", REDIS_URL=f"{redis.address}/4", WEBHOOK_URL=receiver.url)
        queued = start("queued", REDIS_URL=f"{redis.address}/2", DELIVER_BY="workers")
        asked = {
            **{name: (anchors, Request(anchors.port, f"/{name}", NEW)) for name in ("bare", "one-op", "naive")},
            "redis duplicate": (on_redis, _ingress(on_redis, is_new=False)),
            "redis new": (on_redis, _ingress(on_redis)),
            "sqlite duplicate": (on_sqlite, _ingress(on_sqlite, is_new=False)),
            "sqlite new": (on_sqlite, _ingress(on_sqlite)),
            "delivered new": (delivered, _ingress(delivered)),
            "queued new": (queued, _ingress(queued)),
        }
        busy: list[float] = []
        cpu_us: dict[str, list[float]] = {name: [] for name in asked}

        def turn(name: str) -> float:
            server, request = asked[name]
            pids = [*server.worker_pids(), redis.pid]
            before_s = _cpu_s(pids)
            report = generator.run(request, ROUND_S)
            refused = report.answered - report.statuses.get(200, 0)
            assert refused < report.answered / 100, (name, report.statuses)
            if refused:
                print(f"{name}: {refused} of {report.answered} were not accepted", file=sys.stderr)
            cpu_us[name].append((_cpu_s(pids) - before_s) / report.answered * 1e6)
            busy.append(report.busy)
            return report.rate

        for _, request in asked.values():
            while set(generator.run(request, ROUND_S / 2).statuses) != {200}:
                pass  # a new era is closed for some seconds
        rates = alternate({name: partial(turn, name) for name in asked}, ROUNDS)
    yield ratio_row("http: bare against one-op", rates, ("bare", "one-op"), "/s")
    for store in ("redis", "sqlite"):
        names = (f"{store} duplicate", "one-op")
        yield ratio_row(f"http: duplicate on {store} against one-op", rates, names, "/s", (0.95, 1.15))
    yield ratio_row("http: new on redis against naive", rates, ("redis new", "naive"), "/s", (0.9, 1.1))
    yield ratio_row("http: new on sqlite against naive", rates, ("sqlite new", "naive"), "/s", (1.0, 1.3))
    for name in list(asked)[3:]:
        yield Row(f"http: {name}", Figure.of(*rates[name]), "/s")
        yield Row(f"http: CPU of {name}, servers and Redis", Figure.of(*cpu_us[name]), "µs")
    yield Row("http: the load generator's share of a core, at most", Figure.of(max(busy)), "")


def start_rows(redis: RedisServer, folder: Path, emails: int = EMAILS) -> Iterator[Row]:
    """What a web process costs before and after its first emails: the time to import it, and its memory."""
    yield Row("start: import of wsgi", Figure.of(*(_import_s(folder) for _ in range(5))), "s", "", 0.6, 0.4, True)
    redis.client.flushall()
    sizes_mb, sent = [], 0
    with (
        Server(folder / "memory", REDIS_URL=redis.url, WEB_CONCURRENCY="1", WEB_THREADS="4") as server,
        Generator() as generator,
    ):
        (pid,) = server.worker_pids()
        for share in (0.5, 1.0):
            while sent < emails * share:
                sent += generator.run(_ingress(server), 1.0).answered
            sizes_mb.append(psutil.Process(pid).memory_info().rss / 1e6)
    told = f"{number(sizes_mb[0])} MB after half of {sent:,} emails"
    yield Row("start: memory of a web worker", Figure.of(sizes_mb[1]), "MB", told, 75, 65, True)


def _import_s(folder: Path) -> float:
    """In time of the processor, as the machine may be busy. The service is built by it."""
    tokens = {"INGRESS_TOKEN": INGRESS_TOKEN, "ADMIN_TOKEN": ADMIN_TOKEN}
    env = clean_environment(DATA_DIR=str(folder / "import"), **tokens)
    return float(output_of([sys.executable, "-c", _TIMED], folder, env).splitlines()[-1])


def _cpu_s(pids: list[int]) -> float:
    return sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in pids)


def _ingress(server: Server, *, is_new: bool = True) -> Request:
    headers = {"Authorization": f"Bearer {INGRESS_TOKEN}"}
    return Request(server.port, "/api/ingress/gmail", NEW if is_new else SAME, is_new, headers)


# A worker

DELIVERIES = 1_500


def worker_rows(redis: RedisServer, folder: Path) -> Iterator[Row]:
    redis.client.flushall()
    delivered = _delivery_rate(redis, folder / "worker")
    yield Row("worker: deliveries a second of one process", Figure.of(delivered), "/s", "", 400, 600)


def _delivery_rate(redis: RedisServer, folder: Path) -> float:
    """Everything is stored before the worker starts; the clock runs from its tenth delivery on."""
    with closing(CountingReceiver()) as counter:
        settings = {"redis_url": redis.url, "deliver_by": "workers", "webhook_url": counter.url}
        tokens = {"ingress_token": INGRESS_TOKEN, "admin_token": ADMIN_TOKEN}
        service = build(load_settings(data_dir=folder, **settings, **tokens))
        stored = 0
        while stored < DELIVERIES:
            if service.pipeline.receive(email_item(new_email(), None)).status == "queued":
                stored += 1
            else:
                time.sleep(0.2)  # a new era is closed for some seconds
        service.close()
        with WorkerProcess(folder, **{name.upper(): value for name, value in settings.items()}):
            return _rate(lambda: counter.count, DELIVERIES)


def _rate(count: Any, total: int) -> float:
    deadline = time.monotonic() + 120
    first, began = 0, 0.0
    while (done := count()) < total:
        if not began and done >= 10:
            first, began = done, time.perf_counter()
        assert time.monotonic() < deadline, f"{done} of {total} came"
        time.sleep(0.005)
    return (total - first) / (time.perf_counter() - began)
