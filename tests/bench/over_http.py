"""Requests a second through gunicorn, each server beside the anchors and with the same settings."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from tests.bench.figures import Figure, Row, alternate, ratio_row
from tests.bench.load import Generator, Request
from tests.bench.worker import Counter
from tests.support.redis_server import RedisServer
from tests.support.server import INGRESS_TOKEN, Server, email

ROUNDS = 5
ROUND_S = 1.2
SETTINGS = {"WEB_CONCURRENCY": "2", "WEB_THREADS": "4"}
AUTHORIZED = {"Authorization": f"Bearer {INGRESS_TOKEN}"}
NUMBER = "000000000000"
NEW = email(subject=f"Report {NUMBER}", body=f"<p>The text of email {NUMBER}.</p>")
SAME = email(subject="The same report")


def http_rows(redis: RedisServer, folder: Path) -> Iterator[Row]:
    redis.client.flushall()
    with ExitStack() as stack:
        generator = stack.enter_context(Generator())

        servers: dict[int, Server] = {}

        def start(name: str, app: str | None = None, **settings: str) -> int:
            server = stack.enter_context(Server(folder / name, app, **SETTINGS, **settings))
            servers[server.port] = server
            return server.port

        anchors = start("anchors", "tests.bench.anchor_app:app", ANCHOR_REDIS_URL=f"{redis.address}/1")
        on_redis = start("redis", REDIS_URL=redis.url)
        on_sqlite = start("sqlite")
        receiver = stack.enter_context(closing(Counter()))
        delivered = start("delivered", REDIS_URL=f"{redis.address}/4", WEBHOOK_URL=receiver.url)
        queued = start("queued", REDIS_URL=f"{redis.address}/2", QUEUE_URL=f"{redis.address}/3")
        requests = {
            "bare": Request(anchors, "/bare", NEW, is_new=True),
            "one-op": Request(anchors, "/one-op", NEW, is_new=True),
            "naive": Request(anchors, "/naive", NEW, is_new=True),
            "redis duplicate": _ingress(on_redis, SAME, is_new=False),
            "redis new": _ingress(on_redis, NEW, is_new=True),
            "sqlite duplicate": _ingress(on_sqlite, SAME, is_new=False),
            "sqlite new": _ingress(on_sqlite, NEW, is_new=True),
            "delivered new": _ingress(delivered, NEW, is_new=True),
            "queue new": _ingress(queued, NEW, is_new=True),
        }
        busiest = 0.0
        cpu: dict[str, list[float]] = {name: [] for name in requests}

        def turn(name: str, request: Request) -> float:
            nonlocal busiest
            pids = [*servers[request.port].worker_pids(), redis.pid]
            before_s = _cpu_s(pids)
            told = generator.run(request, ROUND_S)
            refused = told.answered - told.statuses.get(200, 0)
            log = [line for line in servers[request.port].log.read_text().splitlines() if "retry" in line]
            assert refused < told.answered / 100, (name, told.statuses, log[-3:])
            if refused:
                print(f"{name}: {refused} of {told.answered} were not accepted: {log[-1:]}", file=sys.stderr)
            cpu[name].append((_cpu_s(pids) - before_s) / told.answered)
            busiest = max(busiest, told.busy)
            return told.rate

        for request in requests.values():
            while set(generator.run(request, ROUND_S / 2).statuses) != {200}:
                pass  # a new era is closed for some seconds
        told = alternate({name: partial(turn, name, request) for name, request in requests.items()}, ROUNDS)
    yield ratio_row("http: bare against one-op", told, "bare", "one-op")
    for store in ("redis", "sqlite"):
        yield ratio_row(f"http: duplicate on {store} against one-op", told, f"{store} duplicate", "one-op", 0.95, 1.15)
    yield ratio_row("http: new on redis against naive", told, "redis new", "naive", 0.9, 1.1)
    yield ratio_row("http: new on sqlite against naive", told, "sqlite new", "naive", 1.0, 1.3)
    for name in list(requests)[3:]:
        yield Row(f"http: {name}", Figure.of(told[name]), "/s")
        yield Row(f"http: CPU of {name}, servers and Redis", Figure.of([each * 1e6 for each in cpu[name]]), "µs")
    yield Row("http: the load generator's share of a core, at most", Figure.once(busiest), "")


def _cpu_s(pids: list[int]) -> float:
    return sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in pids)


def _ingress(port: int, body: Mapping[str, Any], *, is_new: bool) -> Request:
    return Request(port, "/api/ingress/gmail", body, is_new, AUTHORIZED)
