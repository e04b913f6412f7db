"""Delivery records in a file of this machine, shared by all its workers, kept over restarts."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from deduplication.errors import StoreUnavailable
from deduplication.journal.sqlite import BUSY_TIMEOUT_S, translated_errors
from deduplication.private_files import open_private
from deduplication.stores.local import ClockMs, system_clock_ms
from orchestrator.delivery.ledger.base import DEFAULT_RETENTION, Counts, Retention, Wanted, would_undo
from orchestrator.delivery.record import Delivery, DeliveryStatus

_PAGE = 500

# Status and next try change more often than the rest of a record, so their columns count, not what the record says.
# Payloads lie apart: SQLite writes a row as a whole, and they may be several MB.
# The last three columns are for copies of what Redis has (copies.py).
_SCHEMA = """
CREATE TABLE IF NOT EXISTS deliveries (
    id TEXT PRIMARY KEY, destination TEXT NOT NULL, status TEXT NOT NULL, created_ms INTEGER NOT NULL,
    next_try_ms INTEGER, expires_ms INTEGER NOT NULL, progress TEXT NOT NULL, record TEXT NOT NULL,
    is_at_redis INTEGER NOT NULL DEFAULT 0, is_anothers INTEGER NOT NULL DEFAULT 0,
    compared_ms INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX IF NOT EXISTS deliveries_by_creation ON deliveries (created_ms, id);
CREATE INDEX IF NOT EXISTS deliveries_by_status ON deliveries (status, created_ms, id);
CREATE INDEX IF NOT EXISTS deliveries_counted ON deliveries (destination, status, expires_ms);
CREATE INDEX IF NOT EXISTS deliveries_by_next_try ON deliveries (next_try_ms) WHERE next_try_ms IS NOT NULL;
CREATE INDEX IF NOT EXISTS deliveries_by_expiry ON deliveries (expires_ms);
CREATE INDEX IF NOT EXISTS deliveries_by_comparison ON deliveries (compared_ms);
CREATE TABLE IF NOT EXISTS payloads (id TEXT PRIMARY KEY, payload TEXT NOT NULL);
CREATE TRIGGER IF NOT EXISTS payload_dropped AFTER DELETE ON deliveries BEGIN
    DELETE FROM payloads WHERE id = OLD.id;
END;
"""
_SELECT = "SELECT record, status, next_try_ms, NULL FROM deliveries"
_SELECT_WITH_PAYLOAD = "SELECT record, status, next_try_ms, payload FROM deliveries LEFT JOIN payloads USING (id)"
_PUT = """
INSERT INTO deliveries (id, destination, status, created_ms, next_try_ms, expires_ms, progress, record)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE SET
    destination = excluded.destination, status = excluded.status, created_ms = excluded.created_ms,
    next_try_ms = excluded.next_try_ms, expires_ms = excluded.expires_ms, progress = excluded.progress,
    record = excluded.record, is_at_redis = 0, is_anothers = 0, compared_ms = 0
"""
_PUT_PAYLOAD = """
INSERT INTO payloads VALUES (?, ?)
ON CONFLICT (id) DO UPDATE SET payload = excluded.payload WHERE payload <> excluded.payload
"""
_IS_OPEN = "status IN ('waiting', 'delivering') AND expires_ms > :now"
IS_DUE = f"next_try_ms <= :now AND {_IS_OPEN}"
_BEGIN = f"UPDATE deliveries SET status = 'delivering', next_try_ms = :now + :hold WHERE id = :id AND {_IS_OPEN}"  # noqa: S608 - constant text
_COUNT = "SELECT destination, status, count(*) FROM deliveries WHERE expires_ms > ? GROUP BY destination, status"
_HOLD = "UPDATE deliveries SET next_try_ms = ? WHERE id = ? AND next_try_ms = ?"
_EXPIRED = "SELECT id FROM deliveries WHERE expires_ms <= ? LIMIT ?"
_FILTERS = {
    "status": "status = :status",
    "destination": "destination = :destination",
    "since_ms": "created_ms >= :since_ms",
    "until_ms": "created_ms < :until_ms",
}


class SqliteLedger:
    """One connection a process, used by one thread at a time; between processes BEGIN IMMEDIATE is the lock."""

    def __init__(
        self,
        path: Path,
        retention: Retention = DEFAULT_RETENTION,
        now_ms: ClockMs = system_clock_ms,
        busy_timeout_s: float = BUSY_TIMEOUT_S,
    ) -> None:
        self._retention = retention
        self.now_ms = now_ms
        self._busy_timeout_s = busy_timeout_s
        self._lock = threading.Lock()
        self._durable: bool | None = None
        with translated_errors():
            self._db = open_private(path, busy_timeout_s)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} COMMIT;")

    # The contract

    def add(self, deliveries: Sequence[Delivery]) -> None:
        with self.transaction(durable=True) as db:
            for delivery in deliveries:
                self.put_if_new(db, delivery)

    def save(self, delivery: Delivery) -> None:
        with self.transaction(durable=is_durable(delivery)) as db:
            known = self._read(db, _SELECT, delivery.id)
            if known is None or not would_undo(delivery, known):
                self.put(db, delivery)

    def get(self, delivery_id: str) -> Delivery | None:
        with self.reading() as db:
            return self._read(db, _SELECT_WITH_PAYLOAD, delivery_id)

    def begin(self, delivery_id: str, hold_ms: int) -> Delivery | None:
        with self.transaction(durable=False) as db:
            begun = db.execute(_BEGIN, {"id": delivery_id, "now": self.now_ms(), "hold": hold_ms})
            return self._read(db, _SELECT_WITH_PAYLOAD, delivery_id) if begun.rowcount else None

    def find(self, wanted: Wanted) -> Iterator[Delivery]:
        last: tuple[int, str] = (-1, "")
        while page := self._page(wanted, last):
            yield from page
            last = (page[-1].created_ms, page[-1].id)

    def counts(self) -> Counts:
        with self.reading() as db:
            rows = db.execute(_COUNT, (self.now_ms(),)).fetchall()
        return {(destination, DeliveryStatus(status)): count for destination, status, count in rows}

    def due(self, limit: int, hold_ms: int) -> list[Delivery]:
        return self.hand_out("TRUE", limit, hold_ms)

    def forget(self, delivery_ids: Iterable[str]) -> int:
        return len(self.forget_known(delivery_ids))

    def follow(self) -> None:
        """Purges a batch of what has expired."""
        if self._expired():
            with self.transaction(durable=False) as db:
                db.execute(f"DELETE FROM deliveries WHERE id IN ({_EXPIRED})", (self.now_ms(), _PAGE))  # noqa: S608

    def close(self) -> None:
        self._db.close()

    # For copies.py and for the above

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """The threads of this process take turns, and none waits longer than it would for another process."""
        if not self._lock.acquire(timeout=self._busy_timeout_s):
            raise StoreUnavailable("sqlite: database is locked")
        try:
            with translated_errors():
                yield self._db
        finally:
            self._lock.release()

    @contextmanager
    def transaction(self, *, durable: bool) -> Iterator[sqlite3.Connection]:
        """One atomic step for every thread and process. Durable: it survives a power cut, which costs an fsync."""
        with self.reading() as db:
            if durable is not self._durable:
                db.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
                self._durable = durable
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
                db.execute("COMMIT")
            finally:
                if db.in_transaction:
                    db.execute("ROLLBACK")

    def put(self, db: sqlite3.Connection, delivery: Delivery) -> None:
        facts = (delivery.id, delivery.destination, delivery.status, delivery.created_ms, delivery.next_try_ms)
        expires_ms = self._retention.expires_ms(delivery)
        db.execute(_PUT, (*facts, expires_ms, json.dumps(delivery.progress), delivery.to_json()))
        payload = delivery.payload_to_json()
        if payload is None:
            db.execute("DELETE FROM payloads WHERE id = ?", (delivery.id,))
        else:
            db.execute(_PUT_PAYLOAD, (delivery.id, payload))

    def put_if_new(self, db: sqlite3.Connection, delivery: Delivery) -> bool:
        """Also where the known one waits without a payload, or is dead: its provider has sent it again."""
        known = self._read(db, _SELECT, delivery.id)
        has_payload = db.execute("SELECT 1 FROM payloads WHERE id = ?", (delivery.id,)).fetchone()
        is_given_back = known and known.status is DeliveryStatus.WAITING and not has_payload
        is_new = known is None or is_given_back or known.status is DeliveryStatus.DEAD
        if is_new:
            self.put(db, delivery)
        return bool(is_new)

    def hand_out(self, where: str, limit: int, hold_ms: int) -> list[Delivery]:
        now_ms, held_until_ms = self.now_ms(), self.now_ms() + hold_ms
        query = f"{_SELECT} WHERE {IS_DUE} AND {where} ORDER BY next_try_ms, created_ms, id LIMIT :limit"
        values = {"now": now_ms, "limit": limit}
        with self.reading() as db:
            if not db.execute(query, values).fetchone():
                return []
        with self.transaction(durable=False) as db:
            due = [delivery_of(row) for row in db.execute(query, values).fetchall()]
            held = [(held_until_ms, delivery.id) for delivery in due]
            db.executemany("UPDATE deliveries SET next_try_ms = ? WHERE id = ?", held)
        return [replace(delivery, next_try_ms=held_until_ms) for delivery in due]

    def hold(self, deliveries: Sequence[Delivery], hold_ms: int) -> None:
        until_ms = self.now_ms() + hold_ms
        with self.transaction(durable=False) as db:
            db.executemany(_HOLD, [(until_ms, each.id, each.next_try_ms) for each in deliveries])

    def forget_known(self, delivery_ids: Iterable[str]) -> set[str]:
        """The ids that were known until now."""
        with self.transaction(durable=True) as db:
            known = {each for each in set(delivery_ids) if self._read(db, _SELECT, each)}
            db.executemany("DELETE FROM deliveries WHERE id = ?", [(each,) for each in known])
        return known

    def _read(self, db: sqlite3.Connection, select: str, delivery_id: str) -> Delivery | None:
        row = db.execute(f"{select} WHERE id = ? AND expires_ms > ?", (delivery_id, self.now_ms())).fetchone()
        return None if row is None else delivery_of(row)

    def _page(self, wanted: Wanted, last: tuple[int, str]) -> list[Delivery]:
        given = {name: value for name, value in asdict(wanted).items() if value is not None}
        filters = ["expires_ms > :now", "(created_ms, id) > (:last_ms, :last_id)", *(_FILTERS[name] for name in given)]
        query = f"{_SELECT} WHERE {' AND '.join(filters)} ORDER BY created_ms, id LIMIT :limit"
        values = {"now": self.now_ms(), "last_ms": last[0], "last_id": last[1], "limit": _PAGE, **given}
        with self.reading() as db:
            return [delivery_of(row) for row in db.execute(query, values)]

    def _expired(self) -> bool:
        with self.reading() as db:
            return db.execute(_EXPIRED, (self.now_ms(), 1)).fetchone() is not None


def is_durable(delivery: Delivery) -> bool:
    """What was sent may be lost to a power cut, what still has to be sent or seen to may not."""
    return delivery.status in (DeliveryStatus.WAITING, DeliveryStatus.DEAD)


def delivery_of(row: tuple[Any, ...]) -> Delivery:
    record, status, next_try_ms, payload = row
    return Delivery.from_json(record, payload, status=status, next_try_ms=next_try_ms)
