"""Every journal behind one handle, with a way to let time pass, so that one test-suite runs over all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import redis

from deduplication.journal import redis as on_redis
from deduplication.journal.base import Journal
from deduplication.journal.clock import Clock
from deduplication.journal.failover import FailoverJournal
from deduplication.journal.memory import MemoryJournal
from deduplication.journal.redis import RedisJournal
from deduplication.journal.side import Side
from deduplication.journal.sqlite import SqliteJournal
from deduplication.redis_client import connect
from tests.support.redis_server import RedisServer

JOURNALS = ("memory", "sqlite", "redis", "failover")
_OFFSET = "test:offset_ms"


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

    def __init__(self, client: redis.Redis, machine: str = "m1", prefix: str = "", *, group_ttl: bool = False) -> None:
        super().__init__(client, machine, prefix, group_ttl=group_ttl)
        found = "local now = "
        for step in self._scripts:
            text = on_redis.source(step)
            assert text.count(found) == 1
            moved = text.replace(found, f"{found}(tonumber(call('GET', '{_OFFSET}') or 0)) + ")
            self._scripts[step] = client.register_script(moved)

    def now_ms(self) -> int:
        return super().now_ms() + int(self._client.get(_OFFSET) or 0)

    def advance(self, ms: int) -> None:
        for key in list(self._client.scan_iter()):
            left_ms = self._client.pttl(key)
            if left_ms >= 0:
                self._client.pexpire(key, max(0, left_ms - ms))
        self._client.incrby(_OFFSET, ms)


@dataclass(frozen=True)
class JournalBench:
    """A journal under test."""

    kind: str
    journal: Journal
    advance: Callable[[int], None]


@contextmanager
def open_journal(kind: str, folder: Path, redis_server: RedisServer | None = None) -> Iterator[JournalBench]:
    time = FakeClock()
    if kind == "memory":
        yield JournalBench(kind, MemoryJournal(time.clock), time.advance)
    elif kind == "sqlite":
        journal = SqliteJournal(folder / "journal.db", time.clock)
        yield JournalBench(kind, journal, time.advance)
        journal.close()
    else:
        assert redis_server is not None
        is_alone = kind == "redis"
        client = connect(f"{redis_server.address}/{0 if is_alone else 1}", timeout_s=10, decode_responses=False)
        movable = MovableRedisJournal(client)
        if is_alone:
            yield JournalBench(kind, movable, movable.advance)
            client.close()
            return
        (folder / "machine").mkdir()
        local = SqliteJournal(folder / "machine" / "journal.db", time.clock)
        both = FailoverJournal(movable, local, folder / "machine", clock=time.clock)
        assert both.standing.side is Side.REDIS

        def advance(ms: int) -> None:
            movable.advance(ms)
            time.advance(ms)

        yield JournalBench(kind, both, advance)
        both.close()
