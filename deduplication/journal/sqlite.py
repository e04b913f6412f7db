"""The journal in a file of this machine: the embedded default, shared by all its processes, kept over restarts."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from enum import StrEnum
from pathlib import Path

from deduplication.claims import Name
from deduplication.errors import StoreMisconfigured, StoreUnavailable
from deduplication.journal.base import DEFAULT_RETENTION, Retention
from deduplication.journal.clock import Clock, boot_id, system_clock
from deduplication.journal.codec import flat_entry, read_delivery, read_entry
from deduplication.journal.entry import Entry, State
from deduplication.journal.local import LocalJournal
from deduplication.journal.spool import Line, read_spools, remove_drained
from deduplication.journal.verdict import NameRecord, Ref
from deduplication.private_files import open_private

BUSY_TIMEOUT_S = 5.0
PURGE_EVERY_MS = 60_000
_FOR_EVER_MS = 253_402_300_799_000  # the end of the year 9999
_PAGE = 500

_SCHEMA = """
CREATE TABLE IF NOT EXISTS entries (
    id TEXT PRIMARY KEY, entry TEXT NOT NULL, created_ms INTEGER NOT NULL, until_ms INTEGER NOT NULL, follows TEXT,
    change INTEGER NOT NULL, changed_ms INTEGER NOT NULL, told TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS entries_to_tell ON entries (change) WHERE told <> 'yes';
CREATE INDEX IF NOT EXISTS entries_by_creation ON entries (created_ms, id);
CREATE INDEX IF NOT EXISTS entries_by_end ON entries (until_ms);
CREATE INDEX IF NOT EXISTS followers ON entries (follows, created_ms, id) WHERE follows IS NOT NULL;
CREATE TABLE IF NOT EXISTS marks (label TEXT PRIMARY KEY, until_ms INTEGER NOT NULL) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS marks_by_end ON marks (until_ms);
CREATE TABLE IF NOT EXISTS refs (
    label TEXT NOT NULL, entry TEXT NOT NULL, seen_ms INTEGER NOT NULL, PRIMARY KEY (label, entry)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS refs_by_entry ON refs (entry);
CREATE TABLE IF NOT EXISTS due (
    destination TEXT NOT NULL, next_try_ms INTEGER NOT NULL, entry TEXT NOT NULL,
    PRIMARY KEY (destination, next_try_ms, entry)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS due_by_entry ON due (entry);
CREATE TABLE IF NOT EXISTS payloads (entry TEXT PRIMARY KEY, payload BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS numbers (name TEXT PRIMARY KEY, number INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS spools (file TEXT PRIMARY KEY, position INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS memos (name TEXT PRIMARY KEY, memo TEXT NOT NULL) WITHOUT ROWID;
"""
# References live with their entry, or with the mark of a name that is shared: it keeps telling the original.
_OVER = "SELECT id FROM entries WHERE until_ms <= :now"
_IS_SHARED = "substr(label, 1, instr(label, ':') - 1) IN ('subject_group', 'media', 'content')"
_DROP_WITH_ENTRY = (
    f"DELETE FROM payloads WHERE entry IN ({_OVER})",  # noqa: S608 - all constants
    f"DELETE FROM due WHERE entry IN ({_OVER})",  # noqa: S608
    f"DELETE FROM refs WHERE entry IN ({_OVER}) AND NOT ({_IS_SHARED} AND label IN (SELECT label FROM marks))",  # noqa: S608
    "DELETE FROM entries WHERE until_ms <= :now",
)
_NEXT = "INSERT INTO numbers VALUES (?, 1) ON CONFLICT (name) DO UPDATE SET number = number + 1 RETURNING number"

_MAY_PASS = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_NOMEM,
}


class Told(StrEnum):
    """Whether Redis knows the latest of an entry. Handed over: it was sent, so only Redis may deliver what waits."""

    NO = "no"
    HANDED_OVER = "handed over"
    YES = "yes"


class SqliteJournal(LocalJournal):
    """One connection a process, used by one thread at a time; between processes BEGIN IMMEDIATE is the lock."""

    def __init__(
        self,
        path: Path,
        clock: Clock | None = None,
        retention: Retention = DEFAULT_RETENTION,
        busy_timeout_s: float = BUSY_TIMEOUT_S,
    ) -> None:
        self._lock = threading.RLock()
        self._purged_ms = 0
        self._is_durable = False
        self._told = Told.NO
        self._busy_timeout_s = busy_timeout_s
        with translated_errors():
            self._db = open_private(path, busy_timeout_s)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=NORMAL")
            self._db.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} COMMIT;")
        super().__init__(clock or system_clock(self._count_boots()), retention)

    def _count_boots(self) -> int:
        """What was held when the machine went down is held by nobody any more."""
        with self._exclusively():
            if self.memo("boot") != boot_id():
                self.set_memo("boot", boot_id())
                return int(self._db.execute(_NEXT, ("boots",)).fetchone()[0])
            return int(self._db.execute("SELECT number FROM numbers WHERE name = 'boots'").fetchone()[0])

    @contextmanager
    def _transaction(self, *, durable: bool = False) -> Iterator[None]:
        with self._exclusively(durable=durable):
            yield
            self._purge()

    @contextmanager
    def _exclusively(self, *, durable: bool = False) -> Iterator[None]:
        """The threads of this process take turns, and none waits longer than it would for another process."""
        if not self._lock.acquire(timeout=self._busy_timeout_s):
            raise StoreUnavailable("sqlite: database is locked")
        try:
            with translated_errors():
                if durable is not self._is_durable:
                    self._db.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
                    self._is_durable = durable
                self._db.execute("BEGIN IMMEDIATE")
                try:
                    yield
                    self._db.execute("COMMIT")
                finally:
                    if self._db.in_transaction:
                        self._db.execute("ROLLBACK")
        finally:
            self._lock.release()

    def _purge(self) -> None:
        """Marks and entries whose time is over."""
        now_ms = self.now_ms()
        if now_ms - self._purged_ms < PURGE_EVERY_MS:
            return
        self._purged_ms = now_ms
        self._db.execute("DELETE FROM marks WHERE until_ms <= ?", (now_ms,))
        for statement in _DROP_WITH_ENTRY:
            self._db.execute(statement, {"now": now_ms})

    def _name(self, name: Name) -> NameRecord:
        mark = self._db.execute("SELECT until_ms FROM marks WHERE label = ?", (name.label,)).fetchone()
        refs = self._db.execute(
            "SELECT entry, seen_ms FROM refs WHERE label = ? ORDER BY seen_ms, entry", (name.label,)
        )
        return NameRecord(mark is not None and mark[0] > self.now_ms(), tuple(Ref(*row) for row in refs))

    def _mark(self, name: Name, until_ms: int | None) -> None:
        self._db.execute(
            "INSERT INTO marks VALUES (?, ?) "
            "ON CONFLICT (label) DO UPDATE SET until_ms = max(until_ms, excluded.until_ms)",
            (name.label, _FOR_EVER_MS if until_ms is None else until_ms),
        )

    def _refer(self, name: Name, ref: Ref, *, alone: bool) -> None:
        if alone:
            self._db.execute("DELETE FROM refs WHERE label = ?", (name.label,))
        self._db.execute("INSERT OR IGNORE INTO refs VALUES (?, ?, ?)", (name.label, ref.entry, ref.seen_ms))

    def _unrefer(self, name: Name, entry: str) -> None:
        self._db.execute("DELETE FROM refs WHERE label = ? AND entry = ?", (name.label, entry))

    def _drop_name(self, name: Name) -> None:
        self._db.execute("DELETE FROM marks WHERE label = ?", (name.label,))
        self._db.execute("DELETE FROM refs WHERE label = ?", (name.label,))

    def _put_entry(self, entry: Entry, until_ms: int | None) -> None:
        stop = entry.stop
        is_follower = stop and stop.follows and not entry.released_ms and entry.state is State.DONE
        self._db.execute(
            "INSERT OR REPLACE INTO entries VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (
                entry.id,
                json.dumps(flat_entry(entry), ensure_ascii=False, separators=(",", ":")),
                entry.created_ms,
                _FOR_EVER_MS if until_ms is None else until_ms,
                stop.original if stop and is_follower else None,
                int(self._db.execute(_NEXT, ("change",)).fetchone()[0]),
                self.now_ms(),
                self._told,
            ),
        )
        self._db.execute("DELETE FROM due WHERE entry = ?", (entry.id,))
        if entry.has_open_deliveries:
            self._db.executemany(
                "INSERT INTO due VALUES (?, ?, ?)",
                [
                    (each.destination, each.next_try_ms, entry.id)
                    for each in entry.deliveries
                    if each.status.is_open and each.next_try_ms is not None
                ],
            )

    def _put_payload(self, entry: str, payload: bytes | None) -> None:
        if payload is None:
            self._db.execute("DELETE FROM payloads WHERE entry = ?", (entry,))
        else:
            self._db.execute("INSERT OR REPLACE INTO payloads VALUES (?, ?)", (entry, payload))

    def _followers(self, entry: str) -> list[Entry]:
        rows = self._db.execute("SELECT entry FROM entries WHERE follows = ? ORDER BY created_ms, id", (entry,))
        return [read_entry(json.loads(row[0])) for row in rows]

    def _due(self, destination: str, limit: int) -> list[Entry]:
        rows = self._db.execute(
            "SELECT e.entry FROM due JOIN entries AS e ON e.id = due.entry "
            "WHERE destination = ? AND next_try_ms <= ? AND told = 'no' ORDER BY next_try_ms, due.entry LIMIT ?",
            (destination, self.now_ms(), limit),
        )
        return [read_entry(json.loads(row[0])) for row in rows.fetchall()]

    def _next_fence(self) -> int:
        return int(self._db.execute(_NEXT, ("fence",)).fetchone()[0])

    def _entry(self, entry: str) -> Entry | None:
        row = self._db.execute(
            "SELECT entry FROM entries WHERE id = ? AND until_ms > ?", (entry, self.now_ms())
        ).fetchone()
        return read_entry(json.loads(row[0])) if row else None

    def payload(self, entry: str) -> bytes | None:
        with self._lock, translated_errors():
            row = self._db.execute("SELECT payload FROM payloads WHERE entry = ?", (entry,)).fetchone()
        return row[0] if row else None

    def find(self) -> Iterator[Entry]:
        last: tuple[int, str] = (_FOR_EVER_MS, "")
        while True:
            with self._lock, translated_errors():
                rows = self._db.execute(
                    "SELECT entry, created_ms, id FROM entries WHERE (created_ms, id) < (?, ?) AND until_ms > ? "
                    "ORDER BY created_ms DESC, id DESC LIMIT ?",
                    (*last, self.now_ms(), _PAGE),
                ).fetchall()
            entries = [read_entry(json.loads(row[0])) for row in rows]
            yield from (entry for entry in entries if not entry.is_lock)
            if len(rows) < _PAGE:
                return
            last = (rows[-1][1], rows[-1][2])

    # Following Redis: what it granted, and what was delivered under that (failover.py)

    def drain(self, folder: Path) -> int:
        """Takes in what the processes of this machine wrote behind Redis. Returns how many lines."""
        with self._transaction():
            positions = dict(self._db.execute("SELECT file, position FROM spools").fetchall())
            count = 0
            for piece in read_spools(folder, positions):
                for line in piece.lines:
                    self._take_in(line)
                positions[piece.file] = piece.end
                self._db.execute("INSERT OR REPLACE INTO spools VALUES (?, ?)", (piece.file, piece.end))
                count += len(piece.lines)
        for file in remove_drained(folder, positions):
            with self._transaction():
                self._db.execute("DELETE FROM spools WHERE file = ?", (file,))
        return count

    def _take_in(self, line: Line) -> None:
        """Every grant is kept: the item is busy while any of them is live."""
        match line.kind:
            case "granted":
                entry = read_entry(line.value)
                known = self._entry(entry.id)
                is_known_better = known and (known.state is State.DONE or known.lease_until_ms > entry.lease_until_ms)
                if not is_known_better:
                    self._follow(entry, known, Told.YES)
            case "delivered":
                entry, delivery = read_entry(line.value[0]), read_delivery(line.value[1])
                known = self._entry(entry.id)
                after = (known or entry).with_delivery(delivery)
                if not any(each.status.is_open for each in after.deliveries):
                    after = replace(after, state=State.DONE, lease_until_ms=0, settled_ms=self.now_ms())
                self._follow(after, known, Told.NO)
            case "settled":
                entry = read_entry(line.value)
                self._follow(entry, self._entry(entry.id), Told.YES)
        self._db.executemany("UPDATE entries SET told = 'yes' WHERE id = ?", [(entry,) for entry in line.told])

    def _follow(self, entry: Entry, before: Entry | None, told: Told) -> None:
        self._told = told
        try:
            self._save(entry, before)
        finally:
            self._told = Told.NO

    def keep_copy(self, entry: Entry, payload: bytes | None) -> None:
        """Of what is about to be sent to Redis and told 200 for: it rests here until Redis has it, or lost it."""
        with self._transaction(durable=True):
            self._follow(entry, self._entry(entry.id), Told.HANDED_OVER)
            self._put_payload(entry.id, payload)

    def untold(self, limit: int, changed_before_ms: int) -> list[tuple[int, Entry]]:
        """What Redis has not confirmed, oldest change first, each with the number of its change."""
        with self._lock, translated_errors():
            rows = self._db.execute(
                "SELECT change, entry FROM entries "
                "WHERE told <> 'yes' AND until_ms > ? AND changed_ms <= ? ORDER BY change LIMIT ?",
                (self.now_ms(), changed_before_ms, limit),
            ).fetchall()
        return [(change, read_entry(json.loads(entry))) for change, entry in rows]

    def untold_count(self) -> int:
        with self._lock, translated_errors():
            return int(self._db.execute("SELECT count(*) FROM entries WHERE told <> 'yes'").fetchone()[0])

    def hand_over(self, changes: Iterable[int]) -> None:
        """Noted before it is sent to Redis: from then on it is not delivered from here."""
        self._mark_told(Told.HANDED_OVER, changes)

    def mark_told(self, changes: Iterable[int]) -> None:
        """What changed again meanwhile has another number, and stays to be told."""
        self._mark_told(Told.YES, changes)

    def _mark_told(self, told: Told, changes: Iterable[int]) -> None:
        with self._transaction():
            self._db.executemany("UPDATE entries SET told = ? WHERE change = ?", [(told, number) for number in changes])

    def memo(self, name: str) -> str | None:
        row = self._db.execute("SELECT memo FROM memos WHERE name = ?", (name,)).fetchone()
        return None if row is None else str(row[0])

    def set_memo(self, name: str, memo: str) -> None:
        self._db.execute("INSERT OR REPLACE INTO memos VALUES (?, ?)", (name, memo))

    def check(self) -> None:
        with self._exclusively():
            self._db.execute("UPDATE numbers SET number = number WHERE name = 'fence'")

    def close(self) -> None:
        self._db.close()


@contextmanager
def translated_errors() -> Iterator[None]:
    try:
        yield
    except sqlite3.DatabaseError as error:
        primary_code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
        kind = StoreUnavailable if primary_code in _MAY_PASS else StoreMisconfigured
        raise kind(f"sqlite: {error}") from error
