"""Names in a file of this machine: the embedded default, shared by all its workers, kept over restarts."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from deduplication.claims import WEEK_MS, Gate, Kind, Name
from deduplication.errors import StoreUnavailable
from deduplication.journal.sqlite import BUSY_TIMEOUT_S, PURGE_EVERY_MS, translated_errors
from deduplication.private_files import open_private
from deduplication.stores.base import Pattern, Record, State
from deduplication.stores.local import ClockMs, LocalStore, system_clock_ms

MIRROR_TIMEOUT_S = 0.15  # what only follows Redis must not hold up a request

_BATCH = 500

_SCHEMA = """
CREATE TABLE IF NOT EXISTS names (
    kind TEXT NOT NULL, scope TEXT NOT NULL, value TEXT NOT NULL, fingerprint TEXT NOT NULL,
    state TEXT NOT NULL, owner TEXT NOT NULL, item TEXT, fence INTEGER NOT NULL,
    lease_until_ms INTEGER NOT NULL, retries_left INTEGER, first_seen_ms INTEGER,
    gate TEXT, stopped_by TEXT, original TEXT, original_seen_ms INTEGER, siblings TEXT NOT NULL,
    expires_ms INTEGER, mirrored_ms INTEGER,
    PRIMARY KEY (kind, scope, value, fingerprint)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS names_by_value ON names (value);
CREATE INDEX IF NOT EXISTS names_by_expiry ON names (expires_ms) WHERE expires_ms IS NOT NULL;
CREATE INDEX IF NOT EXISTS names_by_mirroring ON names (mirrored_ms);
CREATE TABLE IF NOT EXISTS fence (number INTEGER NOT NULL);
INSERT INTO fence SELECT 0 WHERE NOT EXISTS (SELECT 1 FROM fence);
CREATE TABLE IF NOT EXISTS memos (key TEXT PRIMARY KEY, value TEXT NOT NULL);
"""
# Names of the kind lock, as their users know them: one row for each lock ever taken, at most one of them active.
# The triggers keep it in step with the names, in the same transaction.
_LOCKS_SCHEMA = """
CREATE TABLE IF NOT EXISTS publication_locks (
    content_id TEXT NOT NULL, platform TEXT NOT NULL, server_id TEXT, owner TEXT NOT NULL, fence INTEGER NOT NULL,
    created_ms INTEGER NOT NULL, expires_ms INTEGER NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('active', 'completed', 'failed', 'expired'))
);
CREATE UNIQUE INDEX IF NOT EXISTS one_active_lock ON publication_locks (content_id, platform) WHERE status = 'active';
CREATE TRIGGER IF NOT EXISTS lock_taken AFTER INSERT ON names WHEN NEW.kind = 'lock' AND NEW.state = 'pending' BEGIN
    UPDATE publication_locks SET status = 'expired'
        WHERE content_id = NEW.value AND platform = NEW.scope AND status = 'active' AND owner <> NEW.owner;
    UPDATE publication_locks SET expires_ms = NEW.lease_until_ms
        WHERE content_id = NEW.value AND platform = NEW.scope AND status = 'active';
    INSERT INTO publication_locks
        SELECT NEW.value, NEW.scope, NEW.item, NEW.owner, NEW.fence, NEW.first_seen_ms, NEW.lease_until_ms, 'active'
        WHERE changes() = 0;
END;
CREATE TRIGGER IF NOT EXISTS lock_completed AFTER INSERT ON names WHEN NEW.kind = 'lock' AND NEW.state = 'done' BEGIN
    UPDATE publication_locks SET status = 'completed'
        WHERE content_id = NEW.value AND platform = NEW.scope AND status = 'active';
END;
CREATE TRIGGER IF NOT EXISTS lock_dropped AFTER DELETE ON names WHEN OLD.kind = 'lock' BEGIN
    UPDATE publication_locks
        SET status = iif(expires_ms <= unixepoch() * 1000, 'expired', 'failed')
        WHERE content_id = OLD.value AND platform = OLD.scope AND status = 'active';
END;
"""
_COLUMNS = (
    "kind, scope, value, fingerprint, state, owner, item, fence, lease_until_ms, retries_left, first_seen_ms, "
    "gate, stopped_by, original, original_seen_ms, siblings, expires_ms, mirrored_ms"
)
_SELECT = f"SELECT {_COLUMNS} FROM names"  # noqa: S608 - constant text
_UPSERT = f"INSERT OR REPLACE INTO names ({_COLUMNS}) VALUES ({', '.join('?' * 18)})"  # noqa: S608
_DELETE = "DELETE FROM names WHERE kind = ? AND scope = ? AND value = ?"
_IS_ALIVE = "(expires_ms IS NULL OR expires_ms > :now) AND (mirrored_ms IS NULL OR mirrored_ms > :now - :retention)"
_COUNTS = "(state = 'done' OR (state = 'pending' AND lease_until_ms > :now))"
_WAITS = f"mirrored_ms IS NULL AND {_COUNTS}"
_COUNT_WAITING = f"SELECT count(*) FROM names WHERE {_IS_ALIVE} AND {_WAITS}"  # noqa: S608 - constant text
_PURGE_OLD_LOCKS = "DELETE FROM publication_locks WHERE status <> 'active' AND expires_ms <= ?"


class SqliteStore(LocalStore):
    """One connection a process, used by one thread at a time; between processes BEGIN IMMEDIATE is the lock.

    Durable transactions cost an fsync (synchronous=FULL); the others survive a crash of the process, not a power cut.
    """

    def __init__(
        self,
        path: Path,
        now_ms: ClockMs = system_clock_ms,
        retention_ms: int = WEEK_MS,
        busy_timeout_s: float = BUSY_TIMEOUT_S,
    ) -> None:
        super().__init__(now_ms, retention_ms)
        self._lock = threading.Lock()
        self._purged_ms = 0
        self._durable: bool | None = None
        self._busy_timeout_s = busy_timeout_s
        with translated_errors():
            self._db = open_private(path, BUSY_TIMEOUT_S)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} {_LOCKS_SCHEMA} COMMIT;")

    @contextmanager
    def _transaction(self, *, durable: bool = True) -> Iterator[None]:
        timeout_s = self._busy_timeout_s if durable else min(self._busy_timeout_s, MIRROR_TIMEOUT_S)
        with self._turn(timeout_s), translated_errors():
            if durable is not self._durable:
                self._db.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
                self._db.execute(f"PRAGMA busy_timeout={int(timeout_s * 1000)}")
                self._durable = durable
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._purge()
                self._db.execute("COMMIT")
            finally:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")

    @contextmanager
    def _turn(self, timeout_s: float) -> Iterator[None]:
        """The threads of this process take turns, and none waits longer than it would for another process."""
        if not self._lock.acquire(timeout=timeout_s):
            raise StoreUnavailable("sqlite: database is locked")
        try:
            yield
        finally:
            self._lock.release()

    def _rows(self, where: str, **values: object) -> list[Record]:
        rows = self._db.execute(f"{_SELECT} WHERE {_IS_ALIVE} AND {where}", self._times() | values)
        return [_record(row) for row in rows]

    def _times(self) -> dict[str, object]:
        return {"now": self.now_ms(), "retention": self._retention_ms}

    def _records(self, name: Name) -> list[Record]:
        return self._rows(
            "kind = :kind AND scope = :scope AND value = :value", kind=name.kind, scope=name.scope, value=name.value
        )

    def _put(self, record: Record) -> None:
        self._db.execute(_UPSERT, _row(record))

    def _drop(self, name: Name, fingerprint: str) -> None:
        self._db.execute(f"{_DELETE} AND fingerprint = ?", (name.kind, name.scope, name.value, fingerprint))

    def _next_fence(self, at_least: int = 0) -> int:
        (number,) = self._db.execute(
            "UPDATE fence SET number = max(number + 1, ?) RETURNING number", (at_least,)
        ).fetchone()
        return int(number)

    def _purge(self) -> None:
        now_ms = self.now_ms()
        if now_ms - self._purged_ms >= PURGE_EVERY_MS:
            self._purged_ms = now_ms
            self._db.execute("DELETE FROM names WHERE expires_ms <= ?", (now_ms,))
            self._db.execute("DELETE FROM names WHERE mirrored_ms <= ?", (now_ms - self._retention_ms,))
            self._db.execute(_PURGE_OLD_LOCKS, (now_ms - self._retention_ms,))

    def read(self, names: Iterable[Name]) -> Iterator[Record]:
        with self._lock, translated_errors():
            records = [record for name in dict.fromkeys(names) for record in self._records(name)]
        yield from records

    def find(self, pattern: Pattern) -> Iterator[Record]:
        wanted = {"kind": pattern.kind, "scope": pattern.scope, "value": pattern.value}
        given = {column: value for column, value in wanted.items() if value is not None}
        where = " AND ".join([f"{column} = :{column}" for column in given]) or "TRUE"
        with self._lock, translated_errors():
            records = self._rows(where, **given)
        yield from records

    def forget(self, names: Iterable[Name]) -> int:
        with self._transaction():
            known = [name for name in set(names) if self._records(name)]
            for name in known:
                self._db.execute(_DELETE, (name.kind, name.scope, name.value))
            return len(known)

    def forget_mirrored(self, names: Iterable[Name], up_to_fence: int) -> None:
        with self._transaction(durable=False):
            for name in names:
                self._db.execute(
                    f"{_DELETE} AND mirrored_ms IS NOT NULL AND fence <= ?",
                    (name.kind, name.scope, name.value, up_to_fence),
                )

    def waiting(self, limit: int) -> list[Record]:
        with self._lock, translated_errors():
            return self._rows(f"{_WAITS} LIMIT :limit", limit=limit)

    def waiting_count(self) -> int:
        with self._lock, translated_errors():
            return int(self._db.execute(_COUNT_WAITING, self._times()).fetchone()[0])

    def known(self) -> Iterator[list[Record]]:
        last = ("", "", "", "")
        while True:
            with self._lock, translated_errors():
                batch = self._rows(
                    f"{_COUNTS} AND (kind, scope, value, fingerprint) > (:k, :s, :v, :f) "
                    "ORDER BY kind, scope, value, fingerprint LIMIT :limit",
                    **dict(zip("ksvf", last, strict=True)),
                    limit=_BATCH,
                )
            if not batch:
                return
            yield batch
            name = batch[-1].name
            last = (name.kind, name.scope, name.value, batch[-1].fingerprint)

    def memo(self, key: str) -> str | None:
        with self._lock, translated_errors():
            row = self._db.execute("SELECT value FROM memos WHERE key = ?", (key,)).fetchone()
        return None if row is None else str(row[0])

    def set_memo(self, key: str, value: str) -> None:
        with self._transaction(durable=False):
            self._db.execute("INSERT OR REPLACE INTO memos VALUES (?, ?)", (key, value))

    def check(self) -> None:
        with self._transaction(durable=False):
            self._db.execute("UPDATE fence SET number = number")

    def close(self) -> None:
        self._db.close()


def _row(record: Record) -> tuple[object, ...]:
    return (
        *(record.name.kind, record.name.scope, record.name.value, record.fingerprint),
        *(record.state, record.owner, record.item, record.fence, record.lease_until_ms),
        *(record.retries_left, record.first_seen_ms, record.gate, record.by, record.original),
        *(record.original_seen_ms, json.dumps(record.siblings), record.expires_ms, record.mirrored_ms),
    )


def _record(row: tuple[Any, ...]) -> Record:
    kind, scope, value, fingerprint, state, owner, item, fence, lease, retries, seen, gate, *rest = row
    by, original, original_seen, siblings, expires, mirrored = rest
    return Record(
        name=Name(Kind(kind), scope, value),
        fingerprint=fingerprint,
        state=State(state),
        owner=owner,
        item=item,
        fence=fence,
        lease_until_ms=lease,
        retries_left=retries,
        first_seen_ms=seen,
        gate=Gate(gate) if gate else None,
        by=by,
        original=original,
        original_seen_ms=original_seen,
        siblings=tuple(json.loads(siblings)),
        expires_ms=expires,
        mirrored_ms=mirrored,
    )
