"""Every ledger behind one handle, with a way to let time pass, so that one test-suite runs over all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fakeredis
import redis

from deduplication.redis_client import connect
from deduplication.stores.local import system_clock_ms
from orchestrator.delivery.ledger.base import Ledger, Retention, Wanted
from orchestrator.delivery.ledger.failover import FailoverLedger
from orchestrator.delivery.ledger.redis import RedisLedger
from orchestrator.delivery.ledger.sqlite import SqliteLedger
from orchestrator.delivery.record import Delivery, DeliveryStatus
from tests.support.redis_server import RedisServer

LEDGERS = ("sqlite", "fakeredis", "redis", "failover", "failover without Redis")
RETENTION = Retention(delivered_ms=100_000, others_ms=200_000)
NOWHERE = "redis://127.0.0.1:1/0"
HOLD_MS = 60_000


class ShiftedClock:
    """The time of day, and what a test adds to it: a real Redis beside it keeps its own time."""

    def __init__(self) -> None:
        self.ahead_ms = 0

    def __call__(self) -> int:
        return system_clock_ms() + self.ahead_ms

    def advance(self, ms: int) -> None:
        self.ahead_ms += ms


@dataclass(frozen=True)
class LedgerBench:
    """A ledger under test; ``another`` is a second handle on the same records, as another worker would have."""

    kind: str
    ledger: Ledger
    another: Ledger
    now_ms: Callable[[], int]
    advance: Callable[[int], None]

    def waiting(self, delivery_id: str = "d1", **changes: Any) -> Delivery:
        return waiting(delivery_id, self.now_ms(), **changes)

    def delivered(self, delivery_id: str = "d1", **changes: Any) -> Delivery:
        now_ms = self.now_ms()
        done = {"status": DeliveryStatus.DELIVERED, "next_try_ms": None, "delivered_ms": now_ms + 5, "tries": 1}
        return waiting(delivery_id, now_ms, **done | changes)

    def ids(self, wanted: Wanted | None = None) -> list[str]:
        return [delivery.id for delivery in self.ledger.find(wanted or Wanted())]


def waiting(delivery_id: str, now_ms: int, **changes: Any) -> Delivery:
    """One that is due at once."""
    values: dict[str, Any] = {
        "id": delivery_id,
        "item": "e1",
        "destination": "crm",
        "webhook_id": delivery_id,
        "status": DeliveryStatus.WAITING,
        "created_ms": now_ms,
        "scheduled_ms": now_ms,
        "next_try_ms": now_ms,
        "payload": {"subject": "Lot 1"},
    }
    return Delivery(**values | changes)


def age(client: redis.Redis, ms: int) -> None:
    """Lets time pass in a Redis by moving every deadline in it that much closer."""
    for key in list(client.scan_iter()):
        if key.endswith(("deliveries:due", "deliveries:expiring")):
            for member in client.zrange(key, 0, -1):
                client.zincrby(key, -ms, str(member))
        elif client.pttl(key) >= 0:
            client.pexpire(key, client.pttl(key) - ms)


@contextmanager
def open_ledgers(kind: str, folder: Path, redis_server: RedisServer | None = None) -> Iterator[LedgerBench]:
    clock = ShiftedClock()
    with ExitStack() as stack:
        clients = _clients(kind, redis_server)
        ledgers = [_open(kind, folder, clock, client) for client in clients]
        for ledger in ledgers:
            stack.callback(ledger.close)

        def advance(ms: int) -> None:
            clock.advance(ms)
            if kind in ("fakeredis", "redis", "failover"):
                age(clients[0], ms)

        yield LedgerBench(kind, ledgers[0], ledgers[1], clock, advance)


def _clients(kind: str, redis_server: RedisServer | None) -> list[redis.Redis]:
    if kind == "fakeredis":
        server = fakeredis.FakeServer()
        return [fakeredis.FakeRedis(server=server, decode_responses=True) for _ in range(2)]
    url = redis_server.url if redis_server else NOWHERE
    return [connect(url, timeout_s=10) for _ in range(2)]


def _open(kind: str, folder: Path, clock: Callable[[], int], client: redis.Redis) -> Ledger:
    local = SqliteLedger(folder / "deliveries.db", RETENTION, clock)
    if kind == "sqlite":
        client.close()
        return local
    on_redis = RedisLedger(client, "test:", RETENTION)
    if kind in ("failover", "failover without Redis"):
        return FailoverLedger(on_redis, local, lambda: kind == "failover")
    local.close()
    return on_redis
