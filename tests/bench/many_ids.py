"""Decisions with two million remembered ids, against those with a thousand."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import date, timedelta
from pathlib import Path

from deduplication.redis_client import connect
from tests.bench.figures import ROUNDS, Row, Step, rates, ratio_row
from tests.bench.machines import Machine, new_claim, opened
from tests.support.redis_server import RedisServer

MANY, FEW, DAYS = 2_000_000, 1_000, 700


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
                        journal.executemany("INSERT INTO marks (reference) VALUES (?)", rows)
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
