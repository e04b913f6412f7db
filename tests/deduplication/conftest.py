from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.journals import JOURNALS, JournalBench, open_journal
from tests.support.redis_server import RedisServer


@pytest.fixture(params=JOURNALS)
def journal_bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[JournalBench]:
    """Every journal in turn."""
    needs_redis = request.param in ("redis", "failover")
    server: RedisServer | None = request.getfixturevalue("redis_server") if needs_redis else None
    with open_journal(request.param, tmp_path, server) as bench:
        yield bench
