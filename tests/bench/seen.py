"""What an operator sees after an hour of 50 emails a second must come as quickly as after a thousand emails."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from deduplication.journal.base import Claimed, Ending, Journal, Settlement, Settling
from deduplication.journal.entry import Delivery, DeliveryStatus
from orchestrator.build import Parts, build
from orchestrator.config.settings import load_settings
from orchestrator.operations.decision_index import Filter
from orchestrator.operations.decisions import list_decisions
from routes.app import create_app
from tests.bench.emails import new_claim
from tests.bench.figures import Row, against, alternate, number
from tests.routes.conftest import App
from tests.routes.dashboard.conftest import Visitor, signed_in
from tests.support.redis_server import RedisServer
from tests.support.server import ADMIN_TOKEN

MANY, FEW = 180_000, 1_000
AT_ONCE = 500
ROUNDS = 15


def seen_rows(redis: RedisServer, folder: Path) -> Iterator[Row]:
    visitors = {entries: visit(redis, folder, database, entries) for database, entries in enumerate((FEW, MANY))}
    questions = {
        "list": "/decisions",
        "search by a sender": "/decisions?q={sender}",
        "search by a word of all": "/decisions?q=report",
        "filter with no match": "/decisions?gate=media",
    }
    senders = {entries: newest_sender(visitor.app.service.parts) for entries, visitor in visitors.items()}
    for what, path in questions.items():
        turns = {
            str(entries): partial(_seconds, visitor, path.format(sender=senders[entries]))
            for entries, visitor in visitors.items()
        }
        told = alternate(turns, ROUNDS)
        few_ms, many_ms = (1000 * sorted(told[str(entries)])[ROUNDS // 2] for entries in (FEW, MANY))
        figure = against(told[str(MANY)], told[str(FEW)])
        text = f"{number(many_ms)} ms against {number(few_ms)} ms"
        yield Row(f"page: {what}, {MANY:,} against {FEW:,}", figure, "x", text, 3, 1.5, is_less_better=True)
    for visitor in visitors.values():
        visitor.app.service.close()


def visit(redis: RedisServer, folder: Path, database: int, entries: int) -> Visitor:
    """Who looks at the page of a server that got so many emails, of which its index knows by now."""
    settings = load_settings(
        data_dir=folder / str(entries),
        redis_url=f"{redis.address}/{database}",
        redis_timeout_ms=30_000,
        admin_token=ADMIN_TOKEN,
    )
    service = build(settings)
    for _ in range(0, entries, AT_ONCE):
        deliver_many(service.journal, AT_ONCE)
    while not service.parts.decisions.follow():
        pass
    return signed_in(App(service, create_app(service).test_client()))


def deliver_many(journal: Journal, count: int) -> None:
    claims = [new_claim() for _ in range(count)]
    settlings = []
    for claim, verdict in zip(claims, journal.claim_many(claims), strict=True):
        assert isinstance(verdict, Claimed), verdict
        entry = verdict.entry.with_delivery(_delivered(verdict.entry.deliveries[0]))
        settlings.append(Settling(claim, entry, Settlement(Ending.DONE, "processed", entry.deliveries)))
    assert all(answer is True for answer in journal.settle_many(settlings))


def _delivered(delivery: Delivery) -> Delivery:
    return replace(delivery, status=DeliveryStatus.DELIVERED, tries=1, delivered_ms=1)


def newest_sender(parts: Parts) -> str:
    """One that a single email has, made of letters that all have."""
    (decision,) = list_decisions(parts, Filter(), 1).decisions
    return decision.entry.about.sender


def _seconds(visitor: Visitor, path: str) -> float:
    began = time.perf_counter()
    visitor.text(path)
    return time.perf_counter() - began
