"""What was counted, by the minute, the ten minutes and the hour: in a file of this machine, bounded."""

from __future__ import annotations

import json
import logging
import sqlite3
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from deduplication.private_files import open_private
from orchestrator.metrics.meter import DELIVERIES, DELIVERY_S, EMAILS, REDIS_ERRORS, REDIS_STEPS, SIDE_S, STOPPED

log = logging.getLogger(__name__)

HOUR_S, DAY_S = 3600, 86_400
KEPT_S = {60: 3 * HOUR_S, 600: 2 * DAY_S, HOUR_S: 32 * DAY_S}  # how long buckets of each length are kept
OVER_TIME = (EMAILS, STOPPED, DELIVERIES, DELIVERY_S, REDIS_STEPS, REDIS_ERRORS, SIDE_S)
BUSY_TIMEOUT_S = 5.0
_COUNTED, _MARK = "counted until now", "told under"
_SCHEMA = """
CREATE TABLE IF NOT EXISTS buckets (
    step_s INTEGER, start_s INTEGER, counts TEXT NOT NULL, told INTEGER NOT NULL, PRIMARY KEY (step_s, start_s)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS memos (name TEXT PRIMARY KEY, memo TEXT NOT NULL) WITHOUT ROWID;
"""

Counts = Mapping[str, float]


class History:
    """Shared by the processes of the machine, of which one at a time records. Raises sqlite3.Error where it fails."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        try:
            self._db = _open(path)
        except sqlite3.OperationalError:
            raise
        except sqlite3.DatabaseError as error:
            log.warning("%s is damaged (%s): the figures over time begin anew", path, error)
            for each in (path, path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")):
                each.unlink(missing_ok=True)
            self._db = _open(path)

    def record(self, sums: Counts, now_s: float) -> None:
        """Adds what was counted since the last time to the buckets of now. Cut off, it is added the next time."""
        with self._transaction():
            now, before = over_time(sums), self._counted()
            if now == before:
                return
            grown = growth(now, before)
            for step_s, kept_s in KEPT_S.items() if grown else ():
                start_s = int(now_s // step_s) * step_s
                row = self._db.execute(
                    "SELECT counts FROM buckets WHERE step_s = ? AND start_s = ?", (step_s, start_s)
                ).fetchone()
                together = add(grown, read_counts(row[0])) if row else grown
                self._db.execute(
                    "INSERT OR REPLACE INTO buckets VALUES (?, ?, ?, 0)", (step_s, start_s, shown_counts(together))
                )
                self._db.execute("DELETE FROM buckets WHERE step_s = ? AND start_s < ?", (step_s, now_s - kept_s))
            self._note(_COUNTED, json.dumps(now))  # as they are: what is rounded seems to grow or to shrink

    def read(self, step_s: int, starts: Sequence[int]) -> tuple[dict[int, Counts], Counts]:
        """The buckets of that length, and the numbers that are in them: of one moment, whoever records meanwhile."""
        with self._transaction("BEGIN"):
            counted = self._counted()
            rows = self._db.execute(
                "SELECT start_s, counts FROM buckets WHERE step_s = ? AND start_s BETWEEN ? AND ?",
                (step_s, min(starts), max(starts)),
            ).fetchall()
        return {start_s: read_counts(text) for start_s, text in rows}, counted

    def untold(self) -> dict[tuple[int, int], str]:
        """What was not told, or changed since then, by length and start."""
        with self._lock:
            rows = self._db.execute("SELECT step_s, start_s, counts FROM buckets WHERE told = 0").fetchall()
        return {(step_s, start_s): text for step_s, start_s, text in rows}

    def mark(self) -> str:
        """Under which the last ones were told; whoever does not know it knows less."""
        with self._lock:
            return self._memo(_MARK)

    def mark_told(self, told: Sequence[tuple[int, int]], mark: str) -> None:
        with self._transaction():
            self._db.executemany("UPDATE buckets SET told = 1 WHERE step_s = ? AND start_s = ?", told)
            self._note(_MARK, mark)

    def mark_untold(self) -> None:
        with self._transaction():
            self._db.execute("UPDATE buckets SET told = 0")

    def close(self) -> None:
        with self._lock:
            self._db.close()

    def _counted(self) -> Counts:
        return read_counts(self._memo(_COUNTED) or "{}")

    def _memo(self, name: str) -> str:
        row = self._db.execute("SELECT memo FROM memos WHERE name = ?", (name,)).fetchone()
        return str(row[0]) if row else ""

    def _note(self, name: str, memo: str) -> None:
        self._db.execute("INSERT OR REPLACE INTO memos VALUES (?, ?)", (name, memo))

    @contextmanager
    def _transaction(self, begin: str = "BEGIN IMMEDIATE") -> Iterator[None]:
        with self._lock:
            self._db.execute(begin)
            try:
                yield
                self._db.execute("COMMIT")
            finally:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")


def over_time(sums: Counts) -> Counts:
    return {key: count for key, count in sums.items() if key.partition("|")[0] in OVER_TIME}


def add(*many: Counts) -> Counts:
    together: Counter[str] = Counter()
    for counts in many:
        together.update(counts)
    return together


def shown_counts(counts: Counts) -> str:
    whole = {key: int(count) if count == int(count) else round(count, 6) for key, count in counts.items()}
    return json.dumps(whole, separators=(",", ":"))


def read_counts(text: str) -> Counts:
    counts: dict[str, float] = json.loads(text)
    return counts


def growth(sums: Counts, before: Counts) -> Counts:
    """Where a number is smaller than it was, one of its files was lost; what is left was counted before."""
    more = {key: count - before.get(key, 0) for key, count in over_time(sums).items()}
    return {key: count for key, count in more.items() if count > 0}


def _open(path: Path) -> sqlite3.Connection:
    db = open_private(path, BUSY_TIMEOUT_S)
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("PRAGMA synchronous=NORMAL")
    db.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} COMMIT;")
    return db
