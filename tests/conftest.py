from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.redis_server import RedisServer
from tests.support.stores import STORES, Bench, open_bench


@pytest.fixture(scope="session")
def redis_process() -> Iterator[RedisServer]:
    server = RedisServer().start()
    yield server
    server.stop()


@pytest.fixture
def redis_server(redis_process: RedisServer) -> RedisServer:
    """A real Redis, emptied."""
    redis_process.client.flushall()
    return redis_process


@pytest.fixture(params=STORES)
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    """Every store in turn."""
    needs_redis = request.param in ("redis", "failover")
    server: RedisServer | None = request.getfixturevalue("redis_server") if needs_redis else None
    with open_bench(request.param, tmp_path, server) as bench:
        yield bench


@pytest.fixture
def eventually() -> Callable[[Callable[[], bool]], None]:
    """Waits until something in the background has happened."""

    def wait(has_happened: Callable[[], bool], within_s: float = 30) -> None:
        deadline = time.monotonic() + within_s
        while not has_happened():
            assert time.monotonic() < deadline, "it did not happen"
            time.sleep(0.02)

    return wait
