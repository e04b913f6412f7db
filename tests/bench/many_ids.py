"""Two million settled ids must not be slower than a thousand."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterator
from datetime import date, timedelta
from pathlib import Path

from deduplication.journal.base import Journal
from deduplication.redis_client import connect
from tests.bench.emails import Traffic
from tests.bench.figures import Row, Step, rates, ratio_row
from tests.bench.on_redis import redis_journal, sqlite_journal
from tests.support.redis_server import RedisServer

MANY, FEW = 2_000_000, 1_000
DAYS = 700
ROUNDS = 9
STEPS_A_ROUND = 100
_FOR_EVER_MS = 253_402_300_799_000


def ids_of_a_day(day: int, total: int) -> list[str]:
    count = max(1, total // DAYS)
    return sorted(hashlib.md5(f"{day}-{n}".encode(), usedforsecurity=False).hexdigest() for n in range(count))


def days(total: int) -> Iterator[tuple[str, list[str]]]:
    for day in range(DAYS):
        yield (date(2025, 1, 1) + timedelta(day)).isoformat(), ids_of_a_day(day, total)


def id_rows(redis: RedisServer, folder: Path) -> Iterator[Row]:
    redis.client.flushall()
    journals: dict[str, Journal] = {}
    for number, total in enumerate((FEW, MANY)):
        client = connect(f"{redis.address}/{number}", timeout_s=30)
        with client.pipeline(transaction=False) as pipeline:
            for day, ids in days(total):
                pipeline.sadd(f"processed_ids:{day}", *ids)
            pipeline.execute()
        client.close()
        journals[f"redis {total}"] = redis_journal(f"{redis.address}/{number}", folder / f"redis{total}")
        local = folder / f"sqlite{total}"
        sqlite_journal(local).close()
        with sqlite3.connect(local / "journal.db") as database:
            for day, ids in days(total):
                rows = ((f"email_id:{day}:{id_}", _FOR_EVER_MS) for id_ in ids)
                database.executemany("INSERT INTO marks VALUES (?, ?)", rows)
        database.close()
        journals[f"sqlite {total}"] = sqlite_journal(local)
    told = rates({name: _decide(journal) for name, journal in journals.items()}, ROUNDS, STEPS_A_ROUND)
    for store in ("redis", "sqlite"):
        what = f"ids: {MANY:,} against {FEW:,}, decisions on {store}"
        yield ratio_row(what, told, f"{store} {MANY}", f"{store} {FEW}", 0.9, 1.0)
    for journal in journals.values():
        journal.close()


def _decide(journal: Journal) -> Step:
    """A new email and a duplicate."""
    traffic = Traffic(journal, ROUNDS * STEPS_A_ROUND + 1)
    new, duplicate = traffic.new(), traffic.duplicates()

    def step() -> None:
        new()
        duplicate()

    return step
