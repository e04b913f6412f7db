"""What an operator sees after an hour of 50 emails a second must come as quickly as after a thousand; and its disk."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from deduplication.journal.entry import About, Delivery, DeliveryStatus, Entry, new_entry_id
from deduplication.journal.sqlite import Journal
from deduplication.names import Kind, Name
from orchestrator.build import build
from orchestrator.config.settings import load_settings
from orchestrator.operations.search import index_some
from routes.app import create_app
from tests.bench.figures import Figure, Row, alternate, ratio_row
from tests.routes.conftest import App
from tests.routes.dashboard.conftest import Visitor, signed_in
from tests.support.redis_server import RedisServer
from tests.support.server import ADMIN_TOKEN

MANY, FEW = 180_000, 1_000
AT_ONCE = 500
ROUNDS = 15


def seen_rows(_: RedisServer, folder: Path) -> Iterator[Row]:
    """Lists are read from the journal, with Redis or without."""
    visitors = {entries: visit(folder, entries) for entries in (FEW, MANY)}
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
        costs_ms = alternate(turns, ROUNDS)
        what = f"page: {what}, {MANY:,} against {FEW:,}"
        yield ratio_row(what, costs_ms, (str(MANY), str(FEW)), " ms", (3, 1.5))
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
