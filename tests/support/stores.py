"""Every store behind one handle, with a way to let time pass, so that one test-suite runs over all of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import fakeredis
import redis

from deduplication.redis_client import connect
from deduplication.stores.base import Store
from deduplication.stores.failover import FailoverStore
from deduplication.stores.memory import MemoryStore, Shelf
from deduplication.stores.redis import RedisStore
from deduplication.stores.spelling import Speller
from deduplication.stores.sqlite import SqliteStore
from tests.support.redis_server import RedisServer

STORES = ("memory", "sqlite", "fakeredis", "redis", "failover")


class FakeClock:
    def __init__(self) -> None:
        self.ms = 1_800_000_000_000

    def __call__(self) -> int:
        return self.ms

    def advance(self, ms: int) -> None:
        self.ms += ms


@dataclass(frozen=True)
class Bench:
    """A store under test; ``another`` is a second handle on the same names, as another worker would have."""

    kind: str
    store: Store
    another: Store
    advance: Callable[[int], None]


def age(client: redis.Redis, ms: int) -> None:
    """Lets time pass in a Redis by moving every deadline in it that much closer."""
    for key in list(client.scan_iter()):
        if key.startswith("claim:"):
            for fingerprint, text in client.hgetall(key).items():
                record = json.loads(text)
                for deadline in {"lease_until_ms", "expires_ms"} & set(record):
                    record[deadline] -= ms
                client.hset(key, fingerprint, json.dumps(record))
        left_ms = client.pttl(key)
        if left_ms >= 0:
            client.pexpire(key, left_ms - ms)


@contextmanager
def open_bench(
    kind: str, folder: Path, redis_server: RedisServer | None = None, speller: Speller | None = None
) -> Iterator[Bench]:
    clock = FakeClock()
    if kind == "memory":
        shelf = Shelf()
        yield Bench(kind, MemoryStore(clock, shelf), MemoryStore(clock, shelf), clock.advance)
        return
    if kind == "sqlite":
        stores = [SqliteStore(folder / "names.db", clock) for _ in range(2)]
        yield Bench(kind, stores[0], stores[1], clock.advance)
        for store in stores:
            store.close()
        return
    if kind == "fakeredis":
        server = fakeredis.FakeServer()
        clients: list[redis.Redis] = [fakeredis.FakeRedis(server=server, decode_responses=True) for _ in range(2)]
    else:
        assert redis_server is not None
        database = 1 if kind == "failover" else 0  # so that both kinds can stand side by side
        clients = [connect(f"{redis_server.address}/{database}", timeout_s=5) for _ in range(2)]
    on_redis = [RedisStore(client, speller) for client in clients]
    if kind == "failover":
        locals_ = [SqliteStore(folder / "mirror.db", clock) for _ in range(2)]
        both = [FailoverStore(*pair) for pair in zip(on_redis, locals_, strict=True)]

        def advance(ms: int) -> None:
            age(clients[0], ms)
            clock.advance(ms)

        yield Bench(kind, both[0], both[1], advance)
        for each in both:
            each.close()
        return
    yield Bench(kind, on_redis[0], on_redis[1], lambda ms: age(clients[0], ms))
    for client in clients:
        client.close()
