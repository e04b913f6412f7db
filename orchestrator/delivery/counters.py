"""What rates and breakers are counted with: a file of this machine, or Redis for all machines; limits' own contract."""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar, cast

from limits.storage import MovingWindowSupport, RedisStorage, Storage
from limits.typing import RedisClient

from deduplication.disk import use_write_ahead_log
from deduplication.private_files import open_private
from deduplication.redis_client import connect
from deduplication.silence import is_silent, note_silence

log = logging.getLogger(__name__)

T = TypeVar("T")

Clock = Callable[[], float]

OPEN_TIMEOUT_S = 5.0
BUSY_TIMEOUT_S = 1.0
PURGE_EVERY_S = 60.0
AWAY_PAUSE_S = 1.0

_CANARY, _CANARY_KEPT_S = "canary", 60

_BY_THE_TIME_OF_REDIS = b"local time = redis.call('TIME')\nARGV[1] = time[1] + time[2] / 1000000\n"
_SCHEMA = """
CREATE TABLE IF NOT EXISTS counters (
    key TEXT PRIMARY KEY, value INTEGER NOT NULL, expires_s REAL NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS counters_by_expiry ON counters (expires_s);
CREATE TABLE IF NOT EXISTS entries (key TEXT NOT NULL, at_s REAL NOT NULL, expires_s REAL NOT NULL);
CREATE INDEX IF NOT EXISTS entries_by_time ON entries (key, at_s);
CREATE INDEX IF NOT EXISTS entries_by_expiry ON entries (expires_s);
"""
_INCREMENT = """
INSERT INTO counters VALUES (:key, :amount, :until)
ON CONFLICT (key) DO UPDATE SET
    value = iif(expires_s <= :now, 0, value) + :amount,
    expires_s = iif(expires_s <= :now, :until, expires_s)
RETURNING value
"""


class SqliteCounters(Storage, MovingWindowSupport):
    """Counters in a file, shared by the threads and processes of the machine; raises sqlite3.Error where it fails.

    One connection a process, used by one thread at a time; between processes BEGIN IMMEDIATE is the lock. They survive
    a restart, not a power cut. At the path ``:memory:`` they are those of this process alone.
    """

    def __init__(self, path: Path, clock: Clock = time.time, busy_timeout_s: float = BUSY_TIMEOUT_S) -> None:
        super().__init__()
        self._clock = clock
        self._busy_timeout_s = busy_timeout_s
        self._purged_s = clock()
        self._lock = threading.Lock()
        self._db = open_private(path, OPEN_TIMEOUT_S)
        use_write_ahead_log(self._db)
        self._db.execute("PRAGMA synchronous=NORMAL")
        self._db.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} COMMIT;")
        self._db.execute(f"PRAGMA busy_timeout={int(busy_timeout_s * 1000)}")

    @property
    def base_exceptions(self) -> type[Exception]:
        return sqlite3.Error

    def incr(self, key: str, expiry: float, amount: int = 1) -> int:
        """The new value. Only the first increment sets when the counter ends."""
        with self._transaction() as now_s:
            values = {"key": key, "amount": amount, "now": now_s, "until": now_s + expiry}
            return int(self._db.execute(_INCREMENT, values).fetchone()[0])

    def get(self, key: str) -> int:
        with self._turn():
            row = self._living_counter(key)
        return 0 if row is None else int(row[0])

    def get_expiry(self, key: str) -> float:
        """When the counter ends, in seconds of the clock; now if there is none."""
        with self._turn():
            row = self._living_counter(key)
        return self._clock() if row is None else row[1]

    def clear(self, key: str) -> None:
        with self._transaction():
            self._db.execute("DELETE FROM counters WHERE key = ?", (key,))
            self._db.execute("DELETE FROM entries WHERE key = ?", (key,))

    def reset(self) -> int:
        """Forgets everything; how many keys that were."""
        with self._transaction():
            keys = self._db.execute("SELECT key FROM counters UNION SELECT key FROM entries").fetchall()
            self._db.execute("DELETE FROM counters")
            self._db.execute("DELETE FROM entries")
        return len(keys)

    def check(self) -> bool:
        try:
            with self._transaction():
                return True
        except sqlite3.Error:
            return False

    def acquire_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        """True if the ``amount`` still had room in the last ``expiry`` seconds, and now takes it up."""
        with self._transaction() as now_s:
            _, taken = self._window(key, now_s - expiry)
            if taken + amount > limit:
                return False
            self._db.executemany("INSERT INTO entries VALUES (?, ?, ?)", [(key, now_s, now_s + expiry)] * amount)
            return True

    def get_moving_window(self, key: str, limit: int, expiry: int) -> tuple[float, int]:
        """The oldest entry's time, or now, and how many there are in the last ``expiry`` seconds."""
        with self._turn():
            now_s = self._clock()
            start_s, taken = self._window(key, now_s - expiry)
        return (now_s if start_s is None else start_s), taken

    def close(self) -> None:
        self._db.close()

    def _living_counter(self, key: str) -> tuple[int, float] | None:
        wanted = "SELECT value, expires_s FROM counters WHERE key = ? AND expires_s > ?"
        return cast(tuple[int, float] | None, self._db.execute(wanted, (key, self._clock())).fetchone())

    def _window(self, key: str, since_s: float) -> tuple[float | None, int]:
        wanted = "SELECT min(at_s), count(*) FROM entries WHERE key = ? AND at_s >= ?"
        return cast(tuple[float | None, int], self._db.execute(wanted, (key, since_s)).fetchone())

    @contextmanager
    def _transaction(self) -> Iterator[float]:
        """Gives the time, read when nobody else can count any more, so that entries never go back in time."""
        with self._turn():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                now_s = self._clock()
                yield now_s
                self._purge(now_s)
                self._db.execute("COMMIT")
            finally:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """The threads of this process take turns, and none waits longer than it would for another process."""
        if not self._lock.acquire(timeout=self._busy_timeout_s):
            raise sqlite3.OperationalError("database is locked")
        try:
            yield
        finally:
            self._lock.release()

    def _purge(self, now_s: float) -> None:
        if abs(now_s - self._purged_s) >= PURGE_EVERY_S:
            self._purged_s = now_s
            self._db.execute("DELETE FROM counters WHERE expires_s <= ?", (now_s,))
            self._db.execute("DELETE FROM entries WHERE expires_s < ?", (now_s,))


class RedisCounters(RedisStorage):
    """limits' Redis storage on the client that the stores use too, whichever kind of address it is.

    Only the master is asked: limits' own Sentinel storage reads from replicas, which lag behind. Entries carry the
    time of Redis: limits sends each machine's own, and where two differ they would not see each other's entries.
    """

    SCRIPT_ACQUIRE_MOVING_WINDOW = _BY_THE_TIME_OF_REDIS + RedisStorage.SCRIPT_ACQUIRE_MOVING_WINDOW

    def __init__(self, redis_url: str, timeout_s: float, key_prefix: str) -> None:
        self._client = connect(redis_url, timeout_s)
        super().__init__("redis://", key_prefix=f"{key_prefix}limits")  # the client it makes of this never connects

    def get_connection(self, readonly: bool = False) -> RedisClient:
        return cast(RedisClient, self._client)

    @property
    def base_exceptions(self) -> tuple[type[Exception], ...]:
        return (self.dependency.RedisError, self.dependency.exceptions.RedisClusterException)

    @property
    def timeouts(self) -> type[Exception]:
        return cast(type[Exception], self.dependency.exceptions.TimeoutError)

    def close(self) -> None:
        self._client.close()


def open_counters(redis_url: str, timeout_s: float, key_prefix: str, path: Path) -> SqliteCounters | RedisCounters:
    """In Redis where there is an address, under ``<key_prefix>limits:``; otherwise in the file at ``path``.

    A Redis that is away is found out when it is asked, but for a Cluster, which connects at once.
    """
    return RedisCounters(redis_url, timeout_s, key_prefix) if redis_url else SqliteCounters(path)


def process_counters(clock: Clock = time.time) -> SqliteCounters:
    """Counters of this process alone. limits' MemoryStorage is none: of threads that count at once, two may get 1."""
    return SqliteCounters(Path(":memory:"), clock, busy_timeout_s=OPEN_TIMEOUT_S)


class FallbackCounters:
    """Asks the shared counters, and those of this process alone while the shared ones fail.

    Once they failed, one caller a second asks them again, so that a hung Redis does not cost each its timeout. They are
    back when they can be written: a Redis out of memory still answers what is only read. Nobody asks while ``is_gone``.
    """

    def __init__(
        self,
        shared: Storage,
        fallback: Storage,
        when_back: Callable[[], None],
        clock: Clock,
        is_gone: Callable[[], bool] = lambda: False,
    ) -> None:
        self._is_gone = is_gone
        self._shared = shared
        self._fallback = fallback
        self._when_back = when_back
        self._clock = clock
        self._lock = threading.Lock()
        self._is_away = False
        self._asked_s = 0.0

    def ask(self, question: Callable[[Storage], T]) -> T:
        """A question that fails half-way is put to the fallback as a whole."""
        if self._is_gone():
            self._leave("Redis is gone")
        was_away = self._is_away
        if is_silent() or (was_away and not self._is_due()):
            return question(self._fallback)
        try:
            if was_away:
                self._shared.incr(_CANARY, _CANARY_KEPT_S)
            answer = question(self._shared)
        except self._shared.base_exceptions as error:
            if isinstance(self._shared, RedisCounters) and isinstance(error, self._shared.timeouts):
                note_silence(error)  # it is the journal's Redis: a page does not wait for it again
            self._leave(error)
            return question(self._fallback)
        if was_away:
            self._return()
        return answer

    def _is_due(self) -> bool:
        """True for one caller each time, who then asks for all."""
        with self._lock:
            now_s = self._clock()
            is_due = abs(now_s - self._asked_s) >= AWAY_PAUSE_S
            if is_due:
                self._asked_s = now_s
            return is_due

    def _leave(self, error: Exception | str) -> None:
        with self._lock:
            self._asked_s = self._clock()
            is_news, self._is_away = not self._is_away, True
        if is_news:
            log.error("rates and breakers: each process counts alone, the shared counters fail: %s", error)

    def _return(self) -> None:
        with self._lock:
            is_news, self._is_away = self._is_away, False
        if is_news:
            self._when_back()
            log.info("rates and breakers: the shared counters are back")
