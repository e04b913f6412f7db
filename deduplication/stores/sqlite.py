"""Names in a file of this machine: the embedded default, shared by all its workers, kept over restarts."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from deduplication.claims import Gate, Kind, Name
from deduplication.errors import StoreMisconfigured, StoreUnavailable
from deduplication.stores.base import Pattern, Record, State
from deduplication.stores.local import ClockMs, LocalStore, system_clock_ms

BUSY_TIMEOUT_S = 5.0
PURGE_EVERY_MS = 60_000

_SCHEMA = """
CREATE TABLE IF NOT EXISTS names (
    kind TEXT NOT NULL, scope TEXT NOT NULL, value TEXT NOT NULL, fingerprint TEXT NOT NULL,
    state TEXT NOT NULL, owner TEXT NOT NULL, item TEXT, fence INTEGER NOT NULL,
    lease_until_ms INTEGER NOT NULL, retries_left INTEGER, first_seen_ms INTEGER,
    gate TEXT, stopped_by TEXT, original TEXT, original_seen_ms INTEGER, siblings TEXT NOT NULL,
    expires_ms INTEGER,
    PRIMARY KEY (kind, scope, value, fingerprint)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS names_by_value ON names (value);
CREATE INDEX IF NOT EXISTS names_by_expiry ON names (expires_ms) WHERE expires_ms IS NOT NULL;
CREATE TABLE IF NOT EXISTS fence (number INTEGER NOT NULL);
INSERT INTO fence SELECT 0 WHERE NOT EXISTS (SELECT 1 FROM fence);
"""
_COLUMNS = (
    "kind, scope, value, fingerprint, state, owner, item, fence, lease_until_ms, retries_left, first_seen_ms, "
    "gate, stopped_by, original, original_seen_ms, siblings"
)
_SELECT = f"SELECT {_COLUMNS} FROM names"  # noqa: S608 - constant text
_UPSERT = f"INSERT OR REPLACE INTO names ({_COLUMNS}, expires_ms) VALUES ({', '.join('?' * 17)})"  # noqa: S608

_MAY_PASS = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_NOMEM,
}


class SqliteStore(LocalStore):
    """One connection a process, used by one thread at a time; between processes BEGIN IMMEDIATE is the lock.

    synchronous=FULL: what was answered with 200 survives a power cut, at the price of one fsync a step.
    """

    def __init__(self, path: Path, now_ms: ClockMs = system_clock_ms) -> None:
        super().__init__(now_ms)
        self._lock = threading.Lock()
        self._purged_ms = 0
        with _translated_errors():
            self._db = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=FULL")
            self._db.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} COMMIT;")

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._lock, _translated_errors():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._purge()
                self._db.execute("COMMIT")
            finally:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")

    def _records(self, name: Name) -> list[Record]:
        rows = self._db.execute(
            f"{_SELECT} WHERE kind = ? AND scope = ? AND value = ? AND (expires_ms IS NULL OR expires_ms > ?)",
            (name.kind, name.scope, name.value, self._now_ms()),
        )
        return [_record(row) for row in rows]

    def _save(self, record: Record, kept_ms: int | None) -> None:
        expires_ms = None if kept_ms is None else self._now_ms() + kept_ms
        self._db.execute(_UPSERT, (*_row(record), expires_ms))

    def _next_fence(self) -> int:
        (number,) = self._db.execute("UPDATE fence SET number = number + 1 RETURNING number").fetchone()
        return int(number)

    def _purge(self) -> None:
        now_ms = self._now_ms()
        if now_ms - self._purged_ms >= PURGE_EVERY_MS:
            self._purged_ms = now_ms
            self._db.execute("DELETE FROM names WHERE expires_ms <= ?", (now_ms,))

    def read(self, names: Iterable[Name]) -> Iterator[Record]:
        with self._lock, _translated_errors():
            records = [record for name in dict.fromkeys(names) for record in self._records(name)]
        yield from records

    def find(self, pattern: Pattern) -> Iterator[Record]:
        wanted = {"kind": pattern.kind, "scope": pattern.scope, "value": pattern.value}
        given = {column: value for column, value in wanted.items() if value is not None}
        where = " AND ".join([f"{column} = ?" for column in given] + ["(expires_ms IS NULL OR expires_ms > ?)"])
        with self._lock, _translated_errors():
            rows = self._db.execute(f"{_SELECT} WHERE {where}", (*given.values(), self._now_ms())).fetchall()
        yield from map(_record, rows)

    def forget(self, names: Iterable[Name]) -> int:
        with self._transaction():
            known = [name for name in set(names) if self._records(name)]
            for name in known:
                self._db.execute(
                    "DELETE FROM names WHERE kind = ? AND scope = ? AND value = ?", (name.kind, name.scope, name.value)
                )
            return len(known)

    def check(self) -> None:
        with self._transaction():
            self._db.execute("UPDATE fence SET number = number")

    def close(self) -> None:
        self._db.close()


def _row(record: Record) -> tuple[object, ...]:
    return (
        *(record.name.kind, record.name.scope, record.name.value, record.fingerprint),
        *(record.state, record.owner, record.item, record.fence, record.lease_until_ms),
        *(record.retries_left, record.first_seen_ms, record.gate, record.by, record.original),
        *(record.original_seen_ms, json.dumps(record.siblings)),
    )


def _record(row: tuple[str, ...]) -> Record:
    kind, scope, value, fingerprint, state, owner, item, fence, lease, retries, seen, gate, *rest = row
    by, original, original_seen, siblings = rest
    return Record(
        name=Name(Kind(kind), scope, value),
        fingerprint=fingerprint,
        state=State(state),
        owner=owner,
        item=item,
        fence=int(fence),
        lease_until_ms=int(lease),
        retries_left=None if retries is None else int(retries),
        first_seen_ms=None if seen is None else int(seen),
        gate=Gate(gate) if gate else None,
        by=by,
        original=original,
        original_seen_ms=None if original_seen is None else int(original_seen),
        siblings=tuple(json.loads(siblings)),
    )


@contextmanager
def _translated_errors() -> Iterator[None]:
    try:
        yield
    except sqlite3.DatabaseError as error:
        primary_code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
        kind = StoreUnavailable if primary_code in _MAY_PASS else StoreMisconfigured
        raise kind(f"sqlite: {error}") from error
