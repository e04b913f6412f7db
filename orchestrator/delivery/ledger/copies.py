"""Copies of what Redis has, in the local file: what is still open or dead here must not be lost with Redis."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.delivery.ledger.sqlite import IS_DUE, SqliteLedger, delivery_of, is_durable
from orchestrator.delivery.record import Delivery

COMPARED_EVERY_MS = 5000

_SELECT = "SELECT record, status, next_try_ms, NULL, progress, is_at_redis FROM deliveries"
_IS_TO_COMPARE = "(compared_ms <= :now - :every OR compared_ms > :now) AND expires_ms > :now"
_IS_UNSENT_AND_DUE = f"NOT is_at_redis AND {IS_DUE}"
_MARK = "UPDATE deliveries SET is_at_redis = 1, is_anothers = ?, compared_ms = ? WHERE id = ?"
_AGREE = "UPDATE deliveries SET is_at_redis = 1, status = ?, next_try_ms = ? WHERE id = ? AND record = ?"
_NOTE = "UPDATE deliveries SET status = ?, next_try_ms = ? WHERE id = ? AND is_at_redis"


@dataclass(frozen=True)
class Copy:
    """A record of the file, without its payload. ``written`` is its text there, by which a change since is noticed.

    ``is_at_redis``: Redis was seen to have it. If not, it was written here alone.
    """

    delivery: Delivery
    progress: tuple[int, ...]
    is_at_redis: bool
    written: str


class Copies:
    """The file of a ledger that follows Redis. A copy that another server has saved since is that server's to deliver.

    All steps may be taken by several processes at once. None undoes what was written here alone and is further.
    """

    def __init__(self, ledger: SqliteLedger) -> None:
        self._ledger = ledger

    # Redis has taken something

    def add(self, new: Sequence[Delivery], known: Sequence[Delivery]) -> None:
        """``known`` are those that Redis knew already, so another server may be at them."""
        with self._ledger.transaction(durable=True) as db:
            for delivery, is_anothers in [*((each, False) for each in new), *((each, True) for each in known)]:
                if self._ledger.put_if_new(db, delivery):
                    self._mark(db, delivery.id, is_anothers=is_anothers)

    def keep(self, delivery: Delivery) -> None:
        with self._ledger.transaction(durable=is_durable(delivery)) as db:
            if not self._is_behind(db, delivery):
                self._ledger.put(db, delivery)
                self._mark(db, delivery.id)

    def settle(self, delivery: Delivery) -> None:
        """It is delivered or skipped, and Redis knows: the copy has served its purpose."""
        if self.get(delivery.id) is None:
            return
        with self._ledger.transaction(durable=False) as db:
            if not self._is_behind(db, delivery):
                db.execute("DELETE FROM deliveries WHERE id = ?", (delivery.id,))

    def note(self, deliveries: Iterable[Delivery]) -> None:
        """They were handed out by Redis: should it go away, they are not due here before their time either."""
        held = [(each.status, each.next_try_ms, each.id) for each in deliveries]
        if held:
            with self._ledger.transaction(durable=False) as db:
                db.executemany(_NOTE, held)

    # Looking at copies

    def get(self, delivery_id: str) -> Copy | None:
        return next(iter(self._find("id = :id", id=delivery_id)), None)

    def unsent(self) -> list[Copy]:
        """What was written here alone."""
        return self._find("NOT is_at_redis")

    def due(self, limit: int, hold_ms: int) -> list[Delivery]:
        return self._ledger.hand_out("NOT is_anothers", limit, hold_ms)

    def due_alone(self, limit: int, hold_ms: int) -> list[Delivery]:
        """What is due and could not be moved to Redis, which therefore cannot hand it out."""
        return self._ledger.hand_out("NOT is_anothers AND NOT is_at_redis", limit, hold_ms) if limit > 0 else []

    def to_compare(self, limit: int) -> list[Copy]:
        """Copies to be held against Redis, those that waited longest first; each comes again after five seconds."""
        return self._take(_IS_TO_COMPARE, limit)

    def unsent_and_due(self, limit: int) -> list[Copy]:
        return self._take(f"{_IS_TO_COMPARE} AND {_IS_UNSENT_AND_DUE}", limit)

    # Redis was held against a copy; a copy that has changed since is left alone

    def agree(self, copy: Copy, at_redis: Delivery) -> None:
        """Redis has it too, and says how it stands at the moment."""
        ours, theirs = copy.delivery, at_redis
        if not copy.is_at_redis or (ours.status, ours.next_try_ms) != (theirs.status, theirs.next_try_ms):
            with self._ledger.transaction(durable=False) as db:
                db.execute(_AGREE, (theirs.status, theirs.next_try_ms, ours.id, copy.written))

    def take_over(self, copy: Copy, at_redis: Delivery) -> None:
        """Another server has saved it since."""
        with self._ledger.transaction(durable=is_durable(at_redis)) as db:
            if db.execute(f"{_SELECT} WHERE id = ? AND record = ?", (copy.delivery.id, copy.written)).fetchone():
                self._ledger.put(db, at_redis)
                self._mark(db, at_redis.id, is_anothers=True)

    def drop(self, copy: Copy) -> None:
        with self._ledger.transaction(durable=False) as db:
            db.execute("DELETE FROM deliveries WHERE id = ? AND record = ?", (copy.delivery.id, copy.written))

    def _mark(self, db: sqlite3.Connection, delivery_id: str, *, is_anothers: bool = False) -> None:
        db.execute(_MARK, (is_anothers, self._ledger.now_ms(), delivery_id))

    def _is_behind(self, db: sqlite3.Connection, delivery: Delivery) -> bool:
        """Whether a state further than this one was written here alone, meanwhile and by another process."""
        query = "SELECT progress FROM deliveries WHERE id = ? AND NOT is_at_redis"
        row = db.execute(query, (delivery.id,)).fetchone()
        return row is not None and tuple(json.loads(row[0])) > delivery.progress

    def _find(self, where: str, **values: object) -> list[Copy]:
        query = f"{_SELECT} WHERE {where} AND expires_ms > :now"
        with self._ledger.reading() as db:
            return [_copy(row) for row in db.execute(query, {"now": self._ledger.now_ms(), **values})]

    def _take(self, where: str, limit: int) -> list[Copy]:
        """Taken by one process at a time, as with what is due."""
        values = {"now": self._ledger.now_ms(), "every": COMPARED_EVERY_MS, "limit": limit}
        query = f"{_SELECT} WHERE {where} ORDER BY compared_ms LIMIT :limit"
        with self._ledger.reading() as db:
            if not db.execute(query, values).fetchone():
                return []
        with self._ledger.transaction(durable=False) as db:
            copies = [_copy(row) for row in db.execute(query, values).fetchall()]
            taken = [(values["now"], copy.delivery.id) for copy in copies]
            db.executemany("UPDATE deliveries SET compared_ms = ? WHERE id = ?", taken)
        return copies


def _copy(row: tuple[Any, ...]) -> Copy:
    *known, progress, is_at_redis = row
    return Copy(delivery_of(tuple(known)), tuple(json.loads(progress)), bool(is_at_redis), written=row[0])
