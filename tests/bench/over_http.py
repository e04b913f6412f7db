"""Requests a second through gunicorn, each server beside the anchors and with the same settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from tests.bench.figures import Figure, Row, against, alternate, number, ratio_row
from tests.bench.load import Generator, Request
from tests.bench.worker import Counter
from tests.support.redis_server import RedisServer
from tests.support.server import INGRESS_TOKEN, Server, email

ROUNDS = 5
ROUND_S = 1.2
SETTINGS = {"WEB_CONCURRENCY": "2", "WEB_THREADS": "4"}
AUTHORIZED = {"Authorization": f"Bearer {INGRESS_TOKEN}"}
ITEMS_AT_ONCE = 1_000
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
            assert set(told.statuses) == {200}, (request.path, told.statuses)
            cpu[name].append((_cpu_s(pids) - before_s) / told.answered)
            busiest = max(busiest, told.busy)
            return told.rate

        for request in requests.values():
            generator.run(request, ROUND_S / 2)
        told = alternate({name: partial(turn, name, request) for name, request in requests.items()}, ROUNDS)
    yield ratio_row("http: bare against one-op", told, "bare", "one-op")
    for store in ("redis", "sqlite"):
        yield ratio_row(f"http: duplicate on {store} against one-op", told, f"{store} duplicate", "one-op", 0.70, 0.90)
        yield ratio_row(f"http: new on {store} against one-op", told, f"{store} new", "one-op", 0.35, 0.70)
    yield ratio_row("http: new on redis against naive", told, "redis new", "naive", 1.2, 2.0)
    yield ratio_row("http: new with a queue against one-op", told, "queue new", "one-op", 0.35, 0.60)
    for name in list(requests)[3:]:
        yield Row(f"http: {name}", Figure.of(told[name]), "/s")
        yield Row(f"http: CPU of {name}, servers and Redis", Figure.of([each * 1e6 for each in cpu[name]]), "µs")
        costs = [f"{number(median(cpu[each]) * 1e6)} µs" for each in (name, "one-op")]
        what = f"http: CPU of {name} against one-op, servers and Redis"
        yield Row(what, against(cpu[name], cpu["one-op"]), "x", " against ".join(costs), is_less_better=True)
    yield Row("http: the load generator's share of a core, at most", Figure.once(busiest), "")


def _cpu_s(pids: list[int]) -> float:
    return sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in pids)


def _ingress(port: int, body: Mapping[str, Any], *, is_new: bool) -> Request:
    return Request(port, "/api/ingress/gmail", body, is_new, AUTHORIZED)


def batch_rows(redis: RedisServer, folder: Path) -> Iterator[Row]:
    """Messages a second: a thousand in one request against one in each, by one client."""
    redis.client.flushall()
    for store, settings in (("redis", {"REDIS_URL": redis.url}), ("sqlite", {})):
        with Generator() as generator, Server(folder / f"batch_{store}", **SETTINGS, **settings) as server:

            def request(count: int, port: int = server.port) -> Request:
                items = [{"id": f"{NUMBER}-{position}", "text": f"{NUMBER} {position}"} for position in range(count)]
                return Request(port, "/api/ingress/message", items, True, AUTHORIZED)

            def turn(count: int, seconds: float, generator: Generator = generator) -> float:
                told = generator.run(request(count), seconds, connections=1)
                assert set(told.statuses) == {200}, told.statuses
                return told.rate * count

            turn(1, 0.2)
            told = alternate({"at once": partial(turn, ITEMS_AT_ONCE, 0.0), "one": partial(turn, 1, ROUND_S)}, 3)
        yield ratio_row(
            f"messages: {ITEMS_AT_ONCE:,} at once on {store} against one at a time", told, "at once", "one", 4, 8
        )
