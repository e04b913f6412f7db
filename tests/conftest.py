from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.redis_server import RedisServer


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
