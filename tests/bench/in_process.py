"""Requests in one process, without a socket: processor time against a bare Flask route, and with many ids.

What an operator sees after an hour of 50 emails a second must come as quickly as after a thousand; and its disk.
"""

import hashlib
import io
import itertools
import sqlite3
import time
from collections.abc import Iterator
from contextlib import ExitStack, redirect_stdout
from datetime import date, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from flask import Flask, jsonify, request

from deduplication.journal.entry import About, Delivery, DeliveryStatus, Entry, new_entry_id
from deduplication.journal.sqlite import Journal
from deduplication.names import Kind, Name
from deduplication.redis_client import connect
from orchestrator.build import Service, build
from orchestrator.config.settings import load_settings
from orchestrator.operations.search import index_some
from routes.app import create_app
from tests.bench.figures import ROUNDS, Figure, Row, Step, alternate, rates, ratio_row
from tests.bench.machines import Machine, new_claim, opened
from tests.routes.conftest import App
from tests.routes.dashboard.conftest import Visitor, signed_in
from tests.support.redis_server import RedisServer
from tests.support.server import ADMIN_TOKEN, INGRESS_TOKEN, email

REQUESTS = 200
MANY, FEW, DAYS = 2_000_000, 1_000, 700
AUTHORIZED = {"Authorization": f"Bearer {INGRESS_TOKEN}"}


def process_rows(redis: RedisServer, folder: Path) -> Iterator[Row]:
    """All threads of the process count, so what is published behind the requests counts as well."""
    redis.client.flushall()
    with ExitStack() as stack:
        stack.enter_context(redirect_stdout(io.StringIO()))  # of the log destination
        clients: dict[str, Any] = {"bare": _bare().test_client()}
        for store, url in (("sqlite", ""), ("redis", redis.url)):
            service = _build(folder / store, url)
            stack.callback(service.close)
            clients[store] = create_app(service).test_client()
        numbers = itertools.count()

        def post(client: Any, *, is_new: bool) -> float:
            """Processor time of one request in microseconds, with what follows behind it."""
            began = time.process_time()
            for _ in range(REQUESTS):
                subject = f"Report {next(numbers)}" if is_new else "The same report"
                answer = client.post("/api/ingress/gmail", json=email(subject=subject), headers=AUTHORIZED)
                assert answer.status_code == 200, answer.text
            time.sleep(0.1)
            return (time.process_time() - began) / REQUESTS * 1e6

        turns = {"bare": partial(post, clients["bare"], is_new=True)}
        for store, (what, is_new) in itertools.product(("sqlite", "redis"), (("duplicate", False), ("new", True))):
            turns[f"{store} {what}"] = partial(post, clients[store], is_new=is_new)
        for turn in turns.values():
            turn()
        costs = alternate(turns)
    for what, wanted in (("duplicate", (3.5, 2.5)), ("new", (7.0, 5.0))):
        for store in ("sqlite", "redis"):
            name = f"process: CPU of a {what} on {store} against a bare route"
            yield ratio_row(name, costs, (f"{store} {what}", "bare"), " µs", wanted)


def _bare() -> Flask:
    app = Flask("bare")

    @app.post("/api/ingress/gmail")
    def take() -> Any:
        return jsonify({"success": True, "status": "processed", "email_id": request.get_json()["subject"]})

    return app


def _build(folder: Path, redis_url: str) -> Service:
    tokens = {"ingress_token": INGRESS_TOKEN, "admin_token": ADMIN_TOKEN}
    service = build(load_settings(data_dir=folder, redis_url=redis_url, disk_free_mb=1, **tokens))
    client = create_app(service).test_client()
    while client.post("/api/ingress/gmail", json=email(subject="first"), headers=AUTHORIZED).status_code != 200:
        time.sleep(0.2)  # a new era is closed for some seconds
    return service


def id_rows(redis: RedisServer, folder: Path) -> Iterator[Row]:
    """Two million remembered ids must not be slower than a thousand."""
    redis.client.flushall()
    with ExitStack() as stack:
        steps: dict[str, Step] = {}
        for database, total in enumerate((FEW, MANY)):
            url = f"{redis.address}/{database}"
            with connect(url, timeout_s=60) as client, client.pipeline(transaction=False) as pipeline:
                for day, ids in _days(total):
                    pipeline.sadd(f"processed_ids:{day}", *ids)
                pipeline.execute()
            for store, address in (("redis", url), ("sqlite", "")):
                place = folder / f"{store}{total}"
                with opened(place):
                    pass
                with sqlite3.connect(place / "journal.db") as journal:
                    for day, ids in _days(total):
                        rows = ((f"email_id:{day}:{id_}",) for id_ in ids)
                        journal.executemany("INSERT INTO names VALUES (?, 0, '', 1, NULL, '', 0)", rows)
                journal.close()
                steps[f"{store} {total}"] = _decide(stack.enter_context(opened(place, address)))
        costs = rates(steps, 100)
    for store in ("redis", "sqlite"):
        what = f"ids: {MANY:,} against {FEW:,}, decisions on {store}"
        yield ratio_row(what, costs, (f"{store} {MANY}", f"{store} {FEW}"), "/s", (0.9, 1.0))


def _days(total: int) -> Iterator[tuple[str, list[str]]]:
    for day in range(DAYS):
        count = max(1, total // DAYS)
        ids = sorted(hashlib.md5(f"{day}-{n}".encode(), usedforsecurity=False).hexdigest() for n in range(count))
        yield (date(2025, 1, 1) + timedelta(day)).isoformat(), ids


def _decide(machine: Machine) -> Step:
    """A new email and a duplicate."""
    new, known = machine.new(ROUNDS * 100 + 1), new_claim()
    machine.deliver(known)

    def step() -> None:
        new()
        machine.repeat(known)

    return step


# What an operator sees

MANY_ENTRIES, FEW_ENTRIES = 180_000, 1_000
AT_ONCE = 500
LOOKS = 15


def seen_rows(_: RedisServer, folder: Path) -> Iterator[Row]:
    """Lists are read from the journal, with Redis or without."""
    visitors = {entries: visit(folder, entries) for entries in (FEW_ENTRIES, MANY_ENTRIES)}
    questions = {
        "list": "/decisions",
        "search by a sender": "/decisions?q={sender}",
        "search by a word of all": "/decisions?q=report",
        "filter with no match": "/decisions?gate=media",
    }
    for what, path in questions.items():
        turns = {
            str(entries): partial(_milliseconds, visitor, path.format(sender=sender(entries - 1)))
            for entries, visitor in visitors.items()
        }
        costs_ms = alternate(turns, LOOKS)
        what = f"page: {what}, {MANY_ENTRIES:,} against {FEW_ENTRIES:,}"
        yield ratio_row(what, costs_ms, (str(MANY_ENTRIES), str(FEW_ENTRIES)), " ms", (3, 1.5))
    for visitor in visitors.values():
        visitor.app.service.close()


def disk_rows(_: RedisServer, folder: Path) -> Iterator[Row]:
    """What an email takes on the disk of the server that received it: the journal, and the index behind lists."""
    few, many = (_bytes_on_disk(folder, entries) for entries in (1_000, 5_000))
    yield Row("disk: bytes of an email in DATA_DIR", Figure.of((many - few) / 4_000), "")


def _bytes_on_disk(folder: Path, entries: int) -> int:
    """Once it is stopped: no write-ahead log is left then."""
    visit(folder, entries).app.service.close()
    return sum(path.stat().st_size for path in (folder / str(entries)).rglob("*") if path.is_file())


def visit(folder: Path, entries: int) -> Visitor:
    """Who looks at the page of a server that received so many emails, all of them indexed."""
    service = build(
        load_settings(data_dir=folder / str(entries), webhook_url="http://127.0.0.1:9/", admin_token=ADMIN_TOKEN)
    )
    for start in range(0, entries, AT_ONCE):
        receive(service.journal, start, AT_ONCE)
    while index_some(service.journal):
        pass
    return signed_in(App(service, create_app(service).test_client()))


def receive(journal: Journal, start: int, count: int) -> None:
    with journal.step() as step:
        for at in range(start, start + count):
            delivered = Delivery("default", f"msg_{at:032x}", DeliveryStatus.DELIVERED, tries=1, ended_ms=step.now_ms)
            entry = Entry(
                new_entry_id(),
                journal.machine,
                (Name(Kind.EMAIL_ID, "2026-11-16", f"{at:032x}"),),
                created_ms=step.now_ms - 1_000_000 + at,
                about=About(f"{at:032x}", "gmail", "all", f"Weekly report {at}", sender(at)),
                deliveries=(delivered,),
                answer="processed",
            )
            step.put(entry, None, publishes=False)


def sender(at: int) -> str:
    """One that a single email has, made of letters that all have."""
    return f"sender{at}@example.org"


def _milliseconds(visitor: Visitor, path: str) -> float:
    began = time.perf_counter()
    visitor.text(path)
    return 1000 * (time.perf_counter() - began)
