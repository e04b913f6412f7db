"""Every journal behind one handle, with a way to let time pass, so that one test-suite runs over all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import redis

from deduplication.journal.base import DEFAULT_RETENTION, Journal, Retention
from deduplication.journal.clock import Clock
from deduplication.journal.failover import FailoverJournal
from deduplication.journal.memory import MemoryJournal
from deduplication.journal.redis import RedisJournal
from deduplication.journal.side import Side
from deduplication.journal.sqlite import SqliteJournal
from deduplication.journal.storage import DiskRoom
from deduplication.redis_client import connect
from tests.support.redis_server import RedisServer

JOURNALS = ("memory", "sqlite", "redis", "failover")
_OFFSET, _NOW = "test:offset_ms", "test:now_ms"


class FakeClock:
    """Time of day and steady time; the former can be set like that of any machine."""

    def __init__(self) -> None:
        self.ms = 1_800_000_000_000
        self.set_by_ms = 0

    @property
    def clock(self) -> Clock:
        return Clock(now_ms=lambda: self.ms + self.set_by_ms, steady_ms=lambda: self.ms)

    def advance(self, ms: int) -> None:
        self.ms += ms


class MovableRedisJournal(RedisJournal):
    """Its scripts add an offset to the server's time."""

    def __init__(
        self,
        client: redis.Redis,
        retention: Retention = DEFAULT_RETENTION,
        prefix: str = "",
        most_payload_bytes: int | None = None,
    ) -> None:
        super().__init__(client, "m1", prefix, retention=retention, most_payload_bytes=most_payload_bytes)

    def _source(self, step: str) -> str:
        text, found = super()._source(step), "local now = "
        assert text.count(found) == 1
        return text.replace(found, f"{found}(tonumber(call('GET', '{_OFFSET}') or 0)) + ")

    def now_ms(self) -> int:
        return super().now_ms() + int(self._client.get(_OFFSET) or 0)

    def set_time_to(self, now_ms: int) -> None:
        self._client.set(_OFFSET, now_ms - super().now_ms())

    def advance(self, ms: int) -> None:
        for key in list(self._client.scan_iter()):
            left_ms = self._client.pttl(key)
            if left_ms >= 0:
                self._client.pexpire(key, max(0, left_ms - ms))
        self._client.incrby(_OFFSET, ms)


class StandingRedisJournal(MovableRedisJournal):
    """No time passes by itself: on a busy machine an example of the state machine took longer than a lease, and Redis
    alone had let it run out."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._client.set(_NOW, RedisJournal.now_ms(self), nx=True)

    def _source(self, step: str) -> str:
        return RedisJournal._source(self, step).replace(
            "local now = ", f"local now = tonumber(call('GET', '{_NOW}')) or "
        )

    def now_ms(self) -> int:
        return int(self._client.get(_NOW) or 0)

    def advance(self, ms: int) -> None:
        super().advance(ms)
        self._client.incrby(_NOW, ms)


@dataclass(frozen=True)
class JournalBench:
    """A journal under test; ``another`` is a second handle on it, as another worker would have."""

    kind: str
    journal: Journal
    advance: Callable[[int], None]
    open_another: Callable[[], Journal]

    @cached_property
    def another(self) -> Journal:
        return self.open_another()


@contextmanager
def open_journal(
    kind: str,
    folder: Path,
    redis_server: RedisServer | None = None,
    retention: Retention = DEFAULT_RETENTION,
    *,
    redis_bytes: int | None = None,
    disk_bytes: int | None = None,
    on_redis: type[MovableRedisJournal] = MovableRedisJournal,
) -> Iterator[JournalBench]:
    """``redis_bytes``, ``disk_bytes``: what payloads may take there."""
    time = FakeClock()
    room = None if disk_bytes is None else DiskRoom(folder, disk_bytes, free_bytes=0)
    with ExitStack() as stack:

        def open_on_redis(database: int) -> MovableRedisJournal:
            assert redis_server is not None
            client = connect(f"{redis_server.address}/{database}", timeout_s=10, decode_responses=False)
            stack.callback(client.close)
            return on_redis(client, retention, most_payload_bytes=redis_bytes)

        def open_one() -> Journal:
            match kind:
                case "memory":
                    return MemoryJournal(time.clock, retention)
                case "sqlite":
                    local = SqliteJournal(folder / "journal.db", time.clock, retention, room=room)
                    stack.callback(local.close)
                    return local
                case "redis":
                    return open_on_redis(0)
            machine = folder / "machine"
            machine.mkdir(exist_ok=True)
            local = SqliteJournal(machine / "journal.db", time.clock, retention, room=room)
            both = FailoverJournal(open_on_redis(1), local, machine)
            stack.callback(both.close)
            assert both.standing.side is Side.REDIS
            return both

        journal = open_one()
        clock_of_redis = {"redis": 0, "failover": 1}
        movable = open_on_redis(clock_of_redis[kind]) if kind in clock_of_redis else None

        def advance(ms: int) -> None:
            time.advance(ms)
            if movable:
                movable.advance(ms)

        yield JournalBench(kind, journal, advance, lambda: journal if kind == "memory" else open_one())


def counted_and_kept(client: redis.Redis) -> tuple[int, int]:
    """What Redis counts payloads for, and what they are; one that ended by itself counts until it is purged."""
    kept = sum(client.strlen(key) for pattern in ("payload:*", "upload:*") for key in client.scan_iter(pattern))
    members = cast(list[bytes], client.zrange("payload_ends", 0, -1))
    ended = [member.decode().split(" ") for member in members]
    gone = sum(int(size) for key, size in ended if not client.exists(key))
    return int(client.get("payload_bytes") or 0), kept + gone
