"""The steps of the journal in one process, one after the other, against what others take for theirs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from deduplication.redis_client import connect
from tests.bench import anchors
from tests.bench.emails import Traffic
from tests.bench.figures import ROUNDS, STEPS_A_ROUND, Row, rates, ratio_row
from tests.bench.on_redis import redis_journal, sqlite_journal
from tests.support.redis_server import RedisServer


def process_rows(server: RedisServer, folder: Path) -> Iterator[Row]:
    server.client.flushall()
    journal, local = redis_journal(server.url, folder / "redis"), sqlite_journal(folder / "sqlite")
    client = connect(server.url, timeout_s=5)
    evalsha_new, evalsha_duplicate = anchors.evalsha(client)
    powertools_new, powertools_duplicate = anchors.powertools(server.url)
    on_redis, on_sqlite = (Traffic(each, ROUNDS * STEPS_A_ROUND + 1) for each in (journal, local))
    told = rates(
        {
            "new": on_redis.new(),
            "duplicate": on_redis.duplicates(),
            "sqlite new": on_sqlite.new(),
            "sqlite duplicate": on_sqlite.duplicates(),
            "evalsha new": evalsha_new,
            "evalsha duplicate": evalsha_duplicate,
            "powertools new": powertools_new,
            "powertools duplicate": powertools_duplicate,
            "naive": anchors.naive(client),
        }
    )
    for what, anchor, must, aim in (
        ("duplicate", "evalsha", 0.55, 0.85),
        ("new", "evalsha", 0.25, 0.42),
        ("duplicate", "powertools", 1.5, 3.0),
        ("new", "powertools", 1.0, 2.0),
    ):
        yield ratio_row(f"in process: {what} against {anchor}", told, what, f"{anchor} {what}", must, aim)
    yield ratio_row("in process: new against naive", told, "new", "naive")
    yield ratio_row("in process: sqlite duplicate against evalsha", told, "sqlite duplicate", "evalsha duplicate")
    yield ratio_row("in process: sqlite new against evalsha", told, "sqlite new", "evalsha new")
    client.close()
    journal.close()
    local.close()
