"""The journal in a file of this machine: the embedded default, shared by all its processes, kept over restarts."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from deduplication.claims import Name, Pattern
from deduplication.errors import NoRoom, StoreMisconfigured, StoreUnavailable
from deduplication.journal.base import DEFAULT_RETENTION, Retention
from deduplication.journal.clock import Clock, boot_id, system_clock
from deduplication.journal.codec import flat_entry, flat_state, in_json, read_delivery, read_entry, read_state
from deduplication.journal.destination_state import DestinationState
from deduplication.journal.entry import Entry, State, changed
from deduplication.journal.listing import ALL, Count, Page, PayloadPlace, Position, Window
from deduplication.journal.local import HOUR_MS, LocalJournal, dead_at
from deduplication.journal.shared_sync import SharedSync
from deduplication.journal.spool import Line, read_spools, remove_drained
from deduplication.journal.storage import DiskRoom, Storage
from deduplication.journal.together import Together
from deduplication.journal.verdict import NameRecord, Ref
from deduplication.private_files import make_private, open_private

T = TypeVar("T")

BUSY_TIMEOUT_S = 5.0
PURGE_EVERY_MS = 60_000
TAKEN_UP_KEPT_MS = 24 * HOUR_MS  # who follows is never that far behind, or begins anew
_SHARED_KEY = "key of all who share the journal"
_UNDER_WAY_MS = 2 * HOUR_MS
_FOR_EVER_MS = 253_402_300_799_000  # the end of the year 9999
_PAGE = 500
_POLL_S = 0.0001
_CHECKPOINT_PAGES = 8_000  # 32 MB; an email writes twenty, many of them again and again: by default, 50 emails were one

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
CREATE TABLE IF NOT EXISTS dead (
    destination TEXT NOT NULL, died_ms INTEGER NOT NULL, entry TEXT NOT NULL, PRIMARY KEY (entry, destination)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS dead_by_time ON dead (destination, died_ms, entry);
CREATE TABLE IF NOT EXISTS payloads (entry TEXT PRIMARY KEY, until_ms INTEGER NOT NULL, payload BLOB NOT NULL);
CREATE INDEX IF NOT EXISTS payloads_by_end ON payloads (until_ms);
CREATE TABLE IF NOT EXISTS suppressed (entry TEXT PRIMARY KEY, created_ms INTEGER NOT NULL, bytes INTEGER NOT NULL);
CREATE INDEX IF NOT EXISTS suppressed_by_creation ON suppressed (created_ms, entry);
CREATE TABLE IF NOT EXISTS numbers (name TEXT PRIMARY KEY, number INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS spools (file TEXT PRIMARY KEY, position INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS destination_states (destination TEXT PRIMARY KEY, state TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS taken_up (
    at_ms INTEGER NOT NULL, entry TEXT NOT NULL, PRIMARY KEY (at_ms, entry)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS memos (name TEXT PRIMARY KEY, memo TEXT NOT NULL) WITHOUT ROWID;
"""
# What payloads take, and what of it may go, is counted by the file itself: whatever puts or drops one.
_COUNTING = """
INSERT OR IGNORE INTO numbers SELECT 'payload_bytes', coalesce(sum(length(payload)), 0) FROM payloads
    WHERE NOT EXISTS (SELECT 1 FROM numbers WHERE name = 'payload_bytes');
INSERT OR IGNORE INTO numbers VALUES ('suppressed_bytes', 0), ('fence', 0), ('change', 0), ('boots', 0);
CREATE TRIGGER IF NOT EXISTS payload_put AFTER INSERT ON payloads BEGIN
    UPDATE numbers SET number = number + length(NEW.payload) WHERE name = 'payload_bytes';
END;
CREATE TRIGGER IF NOT EXISTS payload_dropped AFTER DELETE ON payloads BEGIN
    UPDATE numbers SET number = number - length(OLD.payload) WHERE name = 'payload_bytes';
    DELETE FROM suppressed WHERE entry = OLD.entry;
END;
CREATE TRIGGER IF NOT EXISTS suppressed_put AFTER INSERT ON suppressed BEGIN
    UPDATE numbers SET number = number + NEW.bytes WHERE name = 'suppressed_bytes';
END;
CREATE TRIGGER IF NOT EXISTS suppressed_dropped AFTER DELETE ON suppressed BEGIN
    UPDATE numbers SET number = number - OLD.bytes WHERE name = 'suppressed_bytes';
END;
"""
# For whoever looks into the file: a row for each lock of a script and each delivery that someone was ever at. An entry
# is a list (codec.py). Leases are measured by a clock that cannot be set; how far the time of day is ahead is noted.
_PUBLICATION_LOCKS = """
CREATE VIEW IF NOT EXISTS publication_locks AS
WITH items AS (
    SELECT entry, created_ms, json_extract(entry, '$[1]') AS state, json_extract(entry, '$[3]') AS fence,
        json_extract(entry, '$[4]') AS lease_ms, json_extract(entry, '$[7][0][0]') IS 'lock' AS is_lock,
        json_extract(entry, '$[19][0]') AS content_id, json_extract(entry, '$[19][5]') AS server_id
    FROM entries
), deliveries AS (
    SELECT items.*, json_extract(each.value, '$[0]') AS platform, json_extract(each.value, '$[2]') AS status,
        json_extract(each.value, '$[9]') AS its_lease_ms, json_extract(each.value, '$[10]') AS its_fence,
        json_extract(each.value, '$[17]') AS its_server
    FROM items, json_each(items.entry, '$[9]') AS each
    WHERE NOT is_lock AND status IN ('delivering', 'delivered')
), held AS (
    SELECT content_id, json_extract(entry, '$[7][0][1]') AS platform, server_id, fence, state, created_ms, lease_ms
    FROM items WHERE is_lock
    UNION ALL
    SELECT content_id, platform, iif(its_fence > fence, its_server, server_id), max(fence, its_fence),
        CASE WHEN status = 'delivered' THEN 'done' WHEN state = 'free' THEN 'free' ELSE 'pending' END,
        created_ms, max(lease_ms, its_lease_ms)
    FROM deliveries
), dated AS (
    SELECT *, max(created_ms, lease_ms + (SELECT number FROM numbers WHERE name = 'day_ahead_ms')) AS expires_ms
    FROM held
)
SELECT content_id, platform, server_id, fence,
    CASE state WHEN 'done' THEN 'completed' WHEN 'free' THEN 'failed'
        ELSE iif(expires_ms > (julianday('now') - 2440587.5) * 86400000, 'active', 'expired') END AS status,
    created_ms, expires_ms
FROM dated;
"""
# Of a file that is older than the index.
_INDEX_THE_DEAD = """
INSERT OR IGNORE INTO dead SELECT json_extract(each.value, '$[0]'), changed_ms, entries.id
FROM entries, json_each(entries.entry, '$[9]') AS each WHERE json_extract(each.value, '$[2]') = 'dead';
"""
# References live with their entry, or with the mark of a name that is shared: it keeps telling the original.
_OVER = "SELECT id FROM entries WHERE until_ms <= :now"
_IS_SHARED = "substr(label, 1, instr(label, ':') - 1) IN ('subject_group', 'media', 'content')"
_DROP_WITH_ENTRY = (
    f"DELETE FROM payloads WHERE entry IN ({_OVER})",  # noqa: S608 - all constants
    f"DELETE FROM due WHERE entry IN ({_OVER})",  # noqa: S608
    f"DELETE FROM dead WHERE entry IN ({_OVER})",  # noqa: S608
    f"DELETE FROM refs WHERE entry IN ({_OVER}) AND NOT ({_IS_SHARED} AND label IN (SELECT label FROM marks))",  # noqa: S608
    "DELETE FROM entries WHERE until_ms <= :now",
)
_LABELS = """
SELECT label FROM marks WHERE label BETWEEN :first AND :last AND until_ms > :now
UNION SELECT label FROM refs WHERE label BETWEEN :first AND :last
    AND EXISTS (SELECT 1 FROM entries WHERE id = refs.entry AND until_ms > :now)
ORDER BY label LIMIT :page
"""
# From one to the next by the index: DISTINCT would read every row of a destination that is down.
_DESTINATIONS = """
WITH RECURSIVE waiting (destination) AS (
    SELECT min(destination) FROM due
    UNION ALL SELECT (SELECT min(destination) FROM due WHERE destination > waiting.destination) FROM waiting
    WHERE destination IS NOT NULL
) SELECT destination FROM waiting WHERE destination IS NOT NULL
"""
# What waits and was sent to Redis is Redis's to hand out, whatever changes about it here.
_PUT_ENTRY = """
INSERT OR REPLACE INTO entries VALUES (:id, :entry, :created_ms, :until_ms, :follows, :change, :now_ms,
    CASE WHEN :told = 'no' AND EXISTS (SELECT 1 FROM entries WHERE id = :id AND told <> 'no' AND until_ms = :for_ever)
    THEN 'handed over' ELSE coalesce(:told, (SELECT told FROM entries WHERE id = :id)) END)
"""
_PUT_REPEAT = """
UPDATE entries SET entry = :entry, change = :change, changed_ms = :now_ms,
    told = CASE WHEN :told = 'no' AND told <> 'no' AND until_ms = :for_ever
    THEN 'handed over' ELSE coalesce(:told, told) END
WHERE id = :id
"""
_REFER = "INSERT OR IGNORE INTO refs VALUES (?, ?, ?)"
_MARK = "INSERT INTO marks VALUES (?, ?) ON CONFLICT (label) DO UPDATE SET until_ms = max(until_ms, excluded.until_ms)"
_MAY_GO = "INSERT OR IGNORE INTO suppressed SELECT entry, ?, length(payload) FROM payloads WHERE entry = ?"
_RAISE = "INSERT INTO numbers VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET number = max(number, excluded.number)"
_RESERVE_BOTH = "UPDATE numbers SET number = number + ? WHERE name IN ('fence', 'change') RETURNING name, number"
_RESERVE_CHANGES = "UPDATE numbers SET number = number + ? WHERE name = 'change' RETURNING name, number"

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


_TOLD_BY = {"settled": Told.YES, "published": Told.NO, "stored": Told.HANDED_OVER}  # which line of a spool


@dataclass(frozen=True)
class _Change:
    entry: Entry
    before: Entry | None
    told: Told


class _News:
    """What the lines of one drain make of each entry: an email has three of them, and is written once.

    ``changes`` are in the order in which the entries changed last. ``told``: those whose row is not changed by a line
    before the one that says so.
    """

    def __init__(self) -> None:
        self.changes: dict[str, _Change] = {}
        self.told: list[str] = []
        self.known: dict[str, Entry] = {}  # as the journal has them before the drain
        self.delivered: set[tuple[str, int]] = set()  # grants that are told once more, as delivered
        self.with_payload: set[str] = set()

    def latest(self, entry: str) -> Entry | None:
        change = self.changes.get(entry)
        return change.entry if change else self.known.get(entry)

    def put(self, entry: Entry, known: Entry | None, told: Told) -> None:
        earlier = self.changes.pop(entry.id, None)
        self.changes[entry.id] = _Change(entry, earlier.before if earlier else known, told)

    def confirm(self, entry: str) -> None:
        if entry in self.changes:
            self.changes[entry] = replace(self.changes[entry], told=Told.YES)
        else:
            self.told.append(entry)


class _Turn:
    """Whose turn it is among the processes of the machine: one that waits for sqlite's own lock sleeps for whole
    milliseconds, and most transactions take a tenth of one. The kernel frees the turn of a process that dies."""

    def __init__(self, database: Path) -> None:
        file = database.with_name(f"{database.name}.turn")
        self._fd = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        make_private(file)  # whoever can open it could hold everybody up

    def take(self, within_s: float) -> None:
        if self._fd < 0:
            raise StoreUnavailable("sqlite: the journal is closed")
        ends_at = time.monotonic() + within_s
        while True:
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > ends_at:
                    raise StoreUnavailable("sqlite: database is locked") from None
                time.sleep(_POLL_S)

    def give(self) -> None:
        fcntl.flock(self._fd, fcntl.LOCK_UN)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class _Wal:
    """The file that commits are appended to.

    Only for what nobody relies on before it is synced: within sqlite a commit is seen by others at once.
    """

    def __init__(self, database: Path) -> None:
        self._path = database.with_name(f"{database.name}-wal")
        self._fd: int | None = None
        self._synced = SharedSync()

    def note_commit(self) -> None:
        self._synced.writes += 1

    def sync(self) -> None:
        """Returns once all that was committed before the call is on the disk."""
        self._synced.wait(self._fsync)

    def _fsync(self) -> None:
        if self._fd is None:
            self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        os.fsync(self._fd)

    def close(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)


class SqliteJournal(LocalJournal):
    """One connection a process, used by one thread at a time; between processes BEGIN IMMEDIATE is the lock."""

    def __init__(
        self,
        path: Path,
        clock: Clock | None = None,
        retention: Retention = DEFAULT_RETENTION,
        busy_timeout_s: float = BUSY_TIMEOUT_S,
        marks_kept_ms: int | None = None,
        room: DiskRoom | None = None,
    ) -> None:
        """``marks_kept_ms``: no mark lasts longer here; Redis has them too, and keeps them for their whole time.
        ``room`` None: for any number of payloads."""
        self._lock = threading.RLock()
        self._purged_ms = 0
        self._is_durable = False
        self._reserved: dict[str, list[int]] = {}  # numbers for the transaction that is under way
        self._gathered: dict[str, list[Any]] | None = None  # rows by their statement, while many are written
        self._told: Told | None = Told.NO  # of what is written; None: as it was
        self._busy_timeout_s = busy_timeout_s
        self._marks_kept_ms = marks_kept_ms
        self._room = room
        with translated_errors():
            self._db = open_private(path, busy_timeout_s)
            self._turn, self._wal = _Turn(path), _Wal(path)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=NORMAL")
            self._db.execute(f"PRAGMA wal_autocheckpoint={_CHECKPOINT_PAGES}")
            has_dead = self._db.execute("SELECT 1 FROM sqlite_master WHERE name = 'dead'").fetchone()
            more = "" if has_dead else _INDEX_THE_DEAD
            schema = f"{_SCHEMA} {_COUNTING} {_PUBLICATION_LOCKS} {more}"
            self._db.executescript(f"BEGIN IMMEDIATE; {schema} COMMIT;")
        super().__init__(clock or system_clock(self._count_boots()), retention)
        self._together = Together(self._lock, self._transaction, busy_timeout_s)
        with self._exclusively():
            ahead_ms = self.now_ms() - self._clock.steady_ms()
            self._db.execute("INSERT OR REPLACE INTO numbers VALUES ('day_ahead_ms', ?)", (ahead_ms,))

    def _count_boots(self) -> int:
        """What was held when the machine went down is held by nobody any more."""
        with self._exclusively():
            if self.memo("boot") != boot_id():
                self.set_memo("boot", boot_id())
                self._db.execute("UPDATE numbers SET number = number + 1 WHERE name = 'boots'")
            return self._number("boots")

    def _transaction(self, *, durable: bool = False) -> AbstractContextManager[None]:
        return self._exclusively(durable=durable, purging=True)

    @contextmanager
    def _exclusively(self, *, durable: bool = False, purging: bool = False) -> Iterator[None]:
        """The threads of this process take turns, and none waits longer than it would for another process."""
        if not self._lock.acquire(timeout=self._busy_timeout_s):
            raise StoreUnavailable("sqlite: database is locked")
        try:
            self._turn.take(self._busy_timeout_s)
        except StoreUnavailable:
            self._lock.release()
            raise
        try:
            if durable is not self._is_durable:
                self._db.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
                self._is_durable = durable
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                if purging:
                    self._purge()
                self._db.execute("COMMIT")
                self._wal.note_commit()
            finally:
                self._reserved = {}
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
        except sqlite3.DatabaseError as error:
            raise _translated(error) from error
        finally:
            self._turn.give()
            self._lock.release()

    def _step(self, step: Callable[[], T], *, durable: bool = False) -> T:
        return self._together.run(step, durable=durable)

    @contextmanager
    def _part(self) -> Iterator[None]:
        self._db.execute("SAVEPOINT part")
        try:
            yield
        except NoRoom:
            self._db.execute("ROLLBACK TO part")
            self._db.execute("RELEASE part")
            raise
        self._db.execute("RELEASE part")

    def _purge(self) -> None:
        """Marks, payloads and entries whose time is over."""
        now_ms = self.now_ms()
        if now_ms - self._purged_ms < PURGE_EVERY_MS:
            return
        self._purged_ms = now_ms
        self._db.execute("DELETE FROM marks WHERE until_ms <= ?", (now_ms,))
        self._db.execute("DELETE FROM payloads WHERE until_ms <= ?", (now_ms,))
        self._db.execute("DELETE FROM taken_up WHERE at_ms <= ?", (now_ms - TAKEN_UP_KEPT_MS,))
        for statement in _DROP_WITH_ENTRY:
            self._db.execute(statement, {"now": now_ms})

    def _write(self, statement: str, rows: Sequence[Any]) -> None:
        if self._gathered is None:
            self._db.executemany(statement, rows)
        else:
            self._gathered.setdefault(statement, []).extend(rows)

    @contextmanager
    def _gathering(self) -> Iterator[None]:
        """What many entries write is written a table at a time, or before somebody reads it."""
        self._gathered = {}
        try:
            yield
            self._write_gathered()
        finally:
            self._gathered = None

    def _write_gathered(self) -> None:
        if self._gathered:
            gathered, self._gathered = self._gathered, {}
            for statement, rows in gathered.items():
                self._db.executemany(statement, rows)

    def _look_up(self, names: Sequence[Name]) -> tuple[dict[Name, NameRecord], dict[str, Entry]]:
        self._write_gathered()
        labels, now_ms = {name: name.label for name in names}, self.now_ms()
        marked: set[str] = set()
        refs: dict[str, list[Ref]] = {}
        entries: dict[str, Entry] = {}
        asked = iter(labels.values())
        while page := list(islice(asked, _PAGE)):
            for label, id_, seen_ms, entry in self._db.execute(_look_up(len(page)), (*page, now_ms, now_ms, *page)):
                if id_ is None:
                    marked.add(label)
                    continue
                refs.setdefault(label, []).append(Ref(id_, seen_ms))
                if entry is not None and id_ not in entries:
                    entries[id_] = read_entry(json.loads(entry))
        found = {
            name: NameRecord(label in marked, tuple(sorted(refs.get(label, ()), key=_by_age)))
            for name, label in labels.items()
        }
        return found, entries

    def _mark(self, marks: Sequence[tuple[Name, int | None]]) -> None:
        most_ms = _FOR_EVER_MS if self._marks_kept_ms is None else self.now_ms() + self._marks_kept_ms
        rows = [(name.label, most_ms if until_ms is None else min(until_ms, most_ms)) for name, until_ms in marks]
        self._write(_MARK, rows)

    def _refer(self, names: Sequence[Name], ref: Ref) -> None:
        shared = [(name.label,) for name in names if not name.is_own]
        if shared:
            self._write_gathered()
            self._db.executemany("DELETE FROM refs WHERE label = ?", shared)
        self._write(_REFER, [(name.label, ref.entry, ref.seen_ms) for name in names])

    def _unrefer(self, name: Name, entry: str) -> None:
        self._write_gathered()
        self._db.execute("DELETE FROM refs WHERE label = ? AND entry = ?", (name.label, entry))

    def _drop_mark(self, name: Name) -> None:
        self._db.execute("DELETE FROM marks WHERE label = ?", (name.label,))

    def _row_of(self, entry: Entry) -> dict[str, object]:
        """What every change of an entry writes."""
        return {
            "id": entry.id,
            "entry": in_json(flat_entry(entry)),
            "change": self._next("change"),
            "now_ms": self.now_ms(),
            "told": self._told,
            "for_ever": _FOR_EVER_MS,
        }

    def _put_repeat(self, entry: Entry) -> None:
        self._write(_PUT_REPEAT, [self._row_of(entry)])

    def _put_entry(self, entry: Entry, before: Entry | None, until_ms: int | None) -> None:
        stop = entry.stop
        is_follower = stop and stop.follows and not entry.released_ms and entry.state is State.DONE
        row = self._row_of(entry) | {
            "created_ms": entry.created_ms,
            "until_ms": _FOR_EVER_MS if until_ms is None else until_ms,
            "follows": stop.original if stop and is_follower else None,
        }
        self._write(_PUT_ENTRY, [row])
        if entry.is_suppressed:
            self._db.execute(_MAY_GO, (entry.created_ms, entry.id))
        elif before and before.is_suppressed:
            self._db.execute("DELETE FROM suppressed WHERE entry = ?", (entry.id,))
        if before and before.has_open_deliveries:
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

        was_dead, is_dead = dead_at(before), dead_at(entry)
        if was_dead != is_dead:
            gone, died = (
                [(entry.id, to) for to in was_dead - is_dead],
                [(to, self.now_ms(), entry.id) for to in is_dead],
            )
            self._db.executemany("DELETE FROM dead WHERE entry = ? AND destination = ?", gone)
            self._db.executemany("INSERT OR IGNORE INTO dead VALUES (?, ?, ?)", died)

    def _drop_entry(self, entry: str) -> None:
        self._db.execute("DELETE FROM entries WHERE id = ?", (entry,))

    def _put_payload(self, entry: str, payload: bytes | None, until_ms: int | None = None) -> None:
        self._db.execute("DELETE FROM payloads WHERE entry = ?", (entry,))  # REPLACE would not count what it drops
        if payload is not None:
            until_ms = _FOR_EVER_MS if until_ms is None else until_ms
            self._db.execute("INSERT INTO payloads VALUES (?, ?, ?)", (entry, until_ms, payload))

    def _make_room(self, payload_bytes: int) -> bool:
        """The oldest of what is only kept to be released goes first."""
        if self._room is None:
            return True
        while not self._room.has_room_for(payload_bytes, self._number("payload_bytes"), self._reusable_bytes()):
            if (
                self._number("payload_bytes") - self._number("suppressed_bytes") + payload_bytes
                > self._room.limit_bytes
            ):
                return False
            oldest = self._db.execute("SELECT entry FROM suppressed ORDER BY created_ms, entry LIMIT 1").fetchone()
            if oldest is None:
                return False
            self._put_payload(oldest[0], None)
            entry = self._entry(oldest[0])
            if entry:
                self._save(replace(entry, payload_bytes=0, payload_machine=""), entry)
        return True

    def _reusable_bytes(self) -> int:
        free_pages = self._db.execute("PRAGMA freelist_count").fetchone()[0]
        return int(free_pages * self._db.execute("PRAGMA page_size").fetchone()[0])

    def _number(self, name: str) -> int:
        return int(self._db.execute("SELECT number FROM numbers WHERE name = ?", (name,)).fetchone()[0])

    def room_bytes(self) -> int:
        """For payloads of what is to be sent: what is only kept to be released makes room for them."""
        storage = self.storage()
        if storage.disk_limit_bytes is None:
            return sys.maxsize
        within_limit = storage.disk_limit_bytes - (storage.disk_bytes or 0)
        return min(within_limit, (storage.disk_left_bytes or 0) + (storage.suppressed_bytes or 0))

    def storage(self) -> Storage:
        with self._lock, translated_errors():
            suppressed_bytes = self._number("suppressed_bytes")
            disk_bytes = self._number("payload_bytes") - suppressed_bytes
            if self._room is None:
                return Storage(disk_bytes=disk_bytes, suppressed_bytes=suppressed_bytes)
            left_bytes = self._room.left_bytes() + self._reusable_bytes()
            return Storage(
                disk_bytes=disk_bytes,
                suppressed_bytes=suppressed_bytes,
                disk_limit_bytes=self._room.limit_bytes,
                disk_left_bytes=left_bytes,
            )

    def _keep_payload(self, entry: str, until_ms: int | None) -> None:
        if until_ms is not None and until_ms <= self.now_ms():
            self._put_payload(entry, None)
            return
        until_ms = _FOR_EVER_MS if until_ms is None else until_ms
        self._db.execute("UPDATE payloads SET until_ms = ? WHERE entry = ?", (until_ms, entry))

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

    def _waiting(self, destination: str, from_ms: int, limit: int) -> list[Entry]:
        rows = self._db.execute(
            "SELECT e.entry FROM due JOIN entries AS e ON e.id = due.entry "
            "WHERE destination = ? AND next_try_ms >= ? AND told = 'no' ORDER BY next_try_ms, due.entry LIMIT ?",
            (destination, from_ms, limit),
        )
        return [read_entry(json.loads(row[0])) for row in rows.fetchall()]

    def _states(self) -> dict[str, DestinationState]:
        rows = self._db.execute("SELECT destination, state FROM destination_states")
        return {destination: read_state(json.loads(state)) for destination, state in rows.fetchall()}

    def _put_state(self, destination: str, state: DestinationState) -> None:
        told = (destination, in_json(flat_state(state)))
        self._db.execute("INSERT OR REPLACE INTO destination_states VALUES (?, ?)", told)

    def destinations(self) -> list[str]:
        with self._lock, translated_errors():
            return [row[0] for row in self._db.execute(_DESTINATIONS)]

    def _maybe_under_way(self) -> list[Entry]:
        """The words that are looked for may stand elsewhere in an entry too: who asks looks again."""
        rows = self._db.execute(
            "SELECT entry FROM entries WHERE until_ms > :now AND ("
            "id IN (SELECT entry FROM refs WHERE label BETWEEN 'lock:' AND 'lock;')"
            " OR id IN (SELECT id FROM entries WHERE created_ms > :since AND instr(entry, '\"pending\"'))"
            " OR id IN (SELECT entry FROM due) AND instr(entry, '\"delivering\"'))",
            {"now": self.now_ms(), "since": self.now_ms() - _UNDER_WAY_MS},
        )
        return [read_entry(json.loads(row[0])) for row in rows.fetchall()]

    def _came(self, after: Position, before: Position, limit: int, *, newest_first: bool) -> list[Entry]:
        order = "DESC" if newest_first else "ASC"
        rows = self._db.execute(
            "SELECT entry FROM entries WHERE (created_ms, id) > (?, ?) AND (created_ms, id) < (?, ?) "  # noqa: S608
            f"AND until_ms > ? ORDER BY created_ms {order}, id {order} LIMIT ?",
            (after.at_ms, after.entry, before.at_ms, before.entry, self.now_ms(), limit),
        )
        return [read_entry(json.loads(row[0])) for row in rows.fetchall()]

    def _note_taken_up(self, entry: str) -> None:
        self._db.execute("INSERT OR IGNORE INTO taken_up VALUES (?, ?)", (self.now_ms(), entry))

    def _taken_up(self, after: Position, limit: int) -> list[Position]:
        asked = "SELECT at_ms, entry FROM taken_up WHERE (at_ms, entry) > (?, ?) ORDER BY at_ms, entry LIMIT ?"
        return [Position(*row) for row in self._db.execute(asked, (after.at_ms, after.entry, limit))]

    def shared_key(self, candidate: bytes) -> bytes:
        with self._exclusively():
            if self.memo(_SHARED_KEY) is None:
                self.set_memo(_SHARED_KEY, candidate.hex())
            return bytes.fromhex(self.memo(_SHARED_KEY) or "")

    def replace_shared_key(self, key: bytes) -> None:
        """By the one that Redis has."""
        self.note(_SHARED_KEY, key.hex())

    def _next_fence(self) -> int:
        return self._next("fence")

    def _next(self, name: str) -> int:
        if not self._reserved.get(name):  # what gets a new fence is written next, and that is a change
            self._reserve(1, _RESERVE_BOTH if name == "fence" else _RESERVE_CHANGES)
        return self._reserved[name].pop()

    def _expect(self, count: int) -> None:
        self._reserve(count, _RESERVE_BOTH)

    def _reserve(self, count: int, statement: str) -> None:
        """The last one is to be used first. What is not used is never used: numbers only have to rise."""
        for name, last in self._db.execute(statement, (count,)).fetchall():
            self._reserved[name] = list(range(last, last - count, -1))

    def _entry(self, entry: str) -> Entry | None:
        self._write_gathered()
        row = self._db.execute(
            "SELECT entry FROM entries WHERE id = ? AND until_ms > ?", (entry, self.now_ms())
        ).fetchone()
        return read_entry(json.loads(row[0])) if row else None

    def payload(self, entry: str) -> bytes | None:
        with self._lock, translated_errors():
            row = self._db.execute(
                "SELECT payload FROM payloads WHERE entry = ? AND until_ms > ?", (entry, self.now_ms())
            ).fetchone()
        return row[0] if row else None

    def locate_payloads(self, entries: Sequence[str]) -> dict[str, PayloadPlace]:
        with self._lock, translated_errors():
            asked = "SELECT 1 FROM payloads WHERE entry = ? AND until_ms > ?"
            kept = {entry for entry in entries if self._db.execute(asked, (entry, self.now_ms())).fetchone()}
        return {entry: PayloadPlace.DISK if entry in kept else PayloadPlace.GONE for entry in entries}

    def _page(self, is_dead: bool, destination: str | None, after: Position | None, limit: int) -> Page:
        page = _page_of_index(is_dead, destination is not None, after is not None)
        asked: dict[str, object] = {"to": destination, "now": self.now_ms(), "limit": limit}
        if after:
            asked |= {"after_ms": after.at_ms, "after_entry": after.entry, "after_to": after.destination}
        with self._lock, translated_errors():
            rows = self._db.execute(page, asked).fetchall()
        return [(Position(*position), read_entry(json.loads(entry))) for *position, entry in rows]

    def count_deliveries(self) -> dict[str, Count]:
        with self._lock, translated_errors():
            waiting, dead = (
                dict(self._db.execute(f"SELECT destination, count(*) FROM {index} GROUP BY destination").fetchall())  # noqa: S608
                for index in ("due", "dead")
            )
        return {name: Count(waiting.get(name, 0), dead.get(name, 0)) for name in {*waiting, *dead}}

    def find(self, window: Window = ALL) -> Iterator[Entry]:
        return (entry for entry in self.everything(window) if not entry.is_lock)

    def everything(self, window: Window = ALL) -> Iterator[Entry]:
        """Locks and the words that scripts marked too."""
        since_ms, until_ms = window.since_ms or 0, _FOR_EVER_MS if window.until_ms is None else window.until_ms
        last = (until_ms, "")
        if window.start:
            last = min(last, (window.start.at_ms, f"{window.start.entry}\0"))  # itself too
        while True:
            with self._lock, translated_errors():
                rows = self._db.execute(
                    "SELECT entry, created_ms, id FROM entries "
                    "WHERE (created_ms, id) < (?, ?) AND created_ms >= ? AND until_ms > ? "
                    "ORDER BY created_ms DESC, id DESC LIMIT ?",
                    (*last, since_ms, self.now_ms(), _PAGE),
                ).fetchall()
            yield from [read_entry(json.loads(row[0])) for row in rows]
            if len(rows) < _PAGE:
                return
            last = (rows[-1][1], rows[-1][2])

    def names(self, pattern: Pattern) -> Iterator[Name]:
        """Labels are in order: what the pattern knows of their beginning narrows the search."""
        first = "" if pattern.kind is None else f"{pattern.kind}:"
        if pattern.kind is not None and pattern.scope is not None:
            first += f"{pattern.scope}:"
        last = f"{first}\U0010ffff"
        if pattern.name:
            first = last = pattern.name.label
        while True:
            with self._lock, translated_errors():
                asked = {"first": first, "last": last, "now": self.now_ms(), "page": _PAGE}
                labels = [str(row[0]) for row in self._db.execute(_LABELS, asked)]
            yield from filter(pattern.matches, map(Name.from_label, labels))
            if len(labels) < _PAGE:
                return
            first = f"{labels[-1]}\0"

    # Following Redis: what it granted, and what was delivered under that (failover.py)

    def drain(self, folder: Path) -> int:
        """Takes in what the processes of this machine wrote behind Redis. Returns how many lines."""
        with self._transaction():
            positions = dict(self._db.execute("SELECT file, position FROM spools").fetchall())
            count = self._take_in_spools(folder, positions)
        for file in remove_drained(folder, positions, self._wal.sync):
            with self._transaction():
                self._db.execute("DELETE FROM spools WHERE file = ?", (file,))
        return count

    @contextmanager
    def counting_room(self, folder: Path) -> Iterator[int]:
        """How much more may be stored, all that stands in spools counted; nobody else asks meanwhile."""
        with self._transaction():
            self._take_in_spools(folder, dict(self._db.execute("SELECT file, position FROM spools").fetchall()))
            yield self.room_bytes()

    def _take_in_spools(self, folder: Path, positions: dict[str, int]) -> int:
        count, news = 0, _News()
        for piece in read_spools(folder, positions):
            news.known |= self._entries_of(piece.entries - news.known.keys())
            news.delivered = {line.grant for line in piece.lines if line.kind == "delivered"}
            for line in piece.lines:
                self._take_in(line, news)
            positions[piece.file] = piece.end
            self._db.execute("INSERT OR REPLACE INTO spools VALUES (?, ?)", (piece.file, piece.end))
            count += len(piece.lines)
        self._db.executemany("UPDATE entries SET told = 'yes' WHERE id = ?", [(id_,) for id_ in news.told])
        if news.changes:
            self._reserve(len(news.changes), _RESERVE_CHANGES)
            with self._gathering():
                for change in news.changes.values():
                    self._follow(change.entry, change.before, change.told)
                    if change.entry.id in news.with_payload and not change.entry.needs_payload:
                        self._keep_payload(change.entry.id, self._payload_until_ms(change.entry))
        return count

    def _entries_of(self, ids: Iterable[str]) -> dict[str, Entry]:
        asked = "SELECT id, entry FROM entries WHERE id IN (SELECT value FROM json_each(?)) AND until_ms > ?"
        rows = self._db.execute(asked, (json.dumps(list(ids)), self.now_ms()))
        return {id_: read_entry(json.loads(entry)) for id_, entry in rows}

    def _take_in(self, line: Line, news: _News) -> None:
        """Every grant is kept: the item is busy while any of them is live."""
        match line.kind:
            case "granted" if line.grant in news.delivered and not news.latest(line.flat[0]):
                pass  # that it was delivered follows, with all that stands here
            case "granted":
                entry = read_entry(line.value)
                known = news.latest(entry.id)
                is_known_better = known and (
                    known.generation > entry.generation
                    or known.generation == entry.generation
                    and (known.state is State.DONE or known.lease_until_ms > entry.lease_until_ms)
                )
                if not is_known_better:
                    news.put(entry, known, Told.YES)
            case "delivered":
                told, delivery = read_entry(line.value[0]), read_delivery(line.value[1])
                known = news.latest(told.id)
                latest = known if known and known.generation >= told.generation else told
                after = latest.with_fact(delivery)
                if not any(each.status.is_open for each in after.deliveries):
                    # What was settled here already is as old as it is, however late its line is read.
                    settled_ms = latest.settled_ms if latest.state is State.DONE else self.now_ms()
                    after = changed(after, state=State.DONE, lease_until_ms=0, settled_ms=settled_ms)
                news.put(after, known, Told.NO)
            case "settled" | "published" | "stored":
                entry = read_entry(line.flat)
                known = news.latest(entry.id)
                if known is None or _news(entry) >= _news(known):  # processes write, and are read, in any order
                    news.put(entry, known, _TOLD_BY[line.kind])
                    if line.kind == "stored" and line.value[1]:
                        payload = base64.b64decode(line.value[1])
                        self._make_room(len(payload))  # whoever appended it has seen that there is some
                        self._put_payload(entry.id, payload)
                        news.with_payload.add(entry.id)
        for id_ in line.told:
            news.confirm(id_)

    def _follow(self, entry: Entry, before: Entry | None, told: Told) -> None:
        """Redis counts the repeats that it answers; here only those are counted that were answered alone."""
        repeats, repeated_ms, by = (before.repeats, before.repeated_ms, before.repeated_by) if before else (0, None, "")
        entry = changed(entry, repeats=repeats, repeated_ms=repeated_ms, repeated_by=by)
        self._told = told
        try:
            self._save(entry, before)
        finally:
            self._told = Told.NO

    def replace_copy(self, entry: Entry) -> None:
        """By what Redis says of it, whatever is known here."""
        with self._transaction():
            deliveries = tuple(replace(each, owner="", lease_until_ms=0) for each in entry.deliveries)
            self._follow(replace(entry, deliveries=deliveries), self._entry(entry.id), Told.YES)
            if not entry.payload_bytes:  # what was refused there brought one
                self._put_payload(entry.id, None)

    def keep_payload(self, entry: str, payload: bytes) -> bool:
        """Of an entry that Redis keeps: it can be sent from here. False: there is no room for it."""
        with self._transaction():
            if not self._make_room(len(payload)):
                return False
            self._put_payload(entry, payload)
        self._wal.sync()
        return True

    def payload_bytes(self, entry: str) -> int:
        """How much it has of that payload."""
        with self._lock, translated_errors():
            row = self._db.execute("SELECT length(payload) FROM payloads WHERE entry = ?", (entry,)).fetchone()
        return int(row[0]) if row else 0

    def marks_for_redis(self, after: str, limit: int) -> list[Name]:
        """Those beyond this label; each is kept for what is left of its time."""
        now_ms = self.now_ms()
        with self._lock, translated_errors():
            rows = self._db.execute(
                "SELECT label, until_ms FROM marks WHERE label > ? AND until_ms > ? ORDER BY label LIMIT ?",
                (after, now_ms, limit),
            ).fetchall()
        return [
            replace(Name.from_label(label), kept_ms=None if until_ms >= _FOR_EVER_MS else until_ms - now_ms)
            for label, until_ms in rows
        ]

    def open_copies(self, after: str, limit: int) -> dict[str, int]:
        """What waits here and at Redis, in the order of the ids, each with the number of its change."""
        with self._lock, translated_errors():
            rows = self._db.execute(
                "SELECT id, change FROM entries WHERE until_ms = ? AND id > ? AND told = 'yes' ORDER BY id LIMIT ?",
                (_FOR_EVER_MS, after, limit),
            )
            return dict(rows.fetchall())

    def told_copies(self, entries: Iterable[str]) -> dict[str, int]:
        """Those of them of which Redis knows all that is known here, each with the number of its change."""
        with self._lock, translated_errors():
            asked = "SELECT change FROM entries WHERE id = ? AND told = 'yes'"
            found = {entry: self._db.execute(asked, (entry,)).fetchone() for entry in entries}
        return {entry: row[0] for entry, row in found.items() if row}

    def follow_copies(self, latest: Iterable[Entry], changes: Mapping[str, int]) -> None:
        """Takes over where they differ from the copies here, unless these have changed since."""
        with self._transaction():
            for entry in latest:
                row = self._db.execute("SELECT change FROM entries WHERE id = ?", (entry.id,)).fetchone()
                known = self._entry(entry.id)
                if known is None or row[0] != changes[entry.id] or _course(entry) == _course(known):
                    continue
                self._follow(entry, known, Told.YES)
                for delivery in known.deliveries:
                    if entry.delivery_to(delivery.destination) is None:  # it was reopened
                        self._drop_words(delivery, entry.id)

    def follow_resets(self, resets: Mapping[Name, int], memo: tuple[str, str]) -> None:
        """Of names that were reset on Redis at that time; the memo is written in the same step."""
        with self._transaction():
            self._told = None
            try:
                for name, reset_ms in resets.items():
                    self._forget(name, reset_ms)
            finally:
                self._told = Told.NO
            self.set_memo(*memo)

    def untold(self, limit: int, changed_before_ms: int) -> list[tuple[int, Entry]]:
        """What Redis has not confirmed, oldest change first, each with the number of its change."""
        with self._lock, translated_errors():
            rows = self._db.execute(
                "SELECT change, entry FROM entries "
                "WHERE told <> 'yes' AND until_ms > ? AND changed_ms <= ? ORDER BY change LIMIT ?",
                (self.now_ms(), changed_before_ms, limit),
            ).fetchall()
        return [(change, read_entry(json.loads(entry))) for change, entry in rows]

    def is_handed_over(self, entry: str) -> bool:
        """Redis has it, or is about to: it alone hands it out."""
        with self._lock, translated_errors():
            return self._is_handed_over(entry)

    def _is_handed_over(self, entry: str) -> bool:
        row = self._db.execute("SELECT told FROM entries WHERE id = ?", (entry,)).fetchone()
        return row is not None and row[0] != Told.NO

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

    # The first start after the version before the journal (upgrade.py)

    def take_over(
        self,
        note: str,
        told: Iterable[tuple[Entry, bytes | None, Told]],
        marks: Iterable[tuple[Name, int | None]],
        fence: int,
    ) -> int:
        """All of it, or nothing: the memo ``note`` is written in the same step. Leases are counted from now.

        What is known already stays as it is, but for names that it lacks. Returns how many entries were told.
        """
        with self._transaction(durable=True):
            count = 0
            left = iter(marks)
            while page := list(islice(left, _PAGE)):
                self._mark(page)
            for entry, payload, whether_told in told:
                known = self._entry(entry.id)
                if known:
                    self._save(replace(known, own=tuple(dict.fromkeys((*known.own, *entry.own)))), known)
                    continue
                if entry.state is State.PENDING:
                    entry = replace(entry, lease_until_ms=self._clock.steady_ms() + entry.lease_until_ms)
                self._put_payload(entry.id, payload)
                self._follow(replace(entry, payload_bytes=len(payload or b"")), None, whether_told)
                count += 1
            self._db.execute(_RAISE, ("fence", fence))
            self.set_memo(note, "yes")
            return count

    def memo(self, name: str) -> str | None:
        with self._lock, translated_errors():
            row = self._db.execute("SELECT memo FROM memos WHERE name = ?", (name,)).fetchone()
        return None if row is None else str(row[0])

    def change_memo(self, name: str, before: str | None, memo: str) -> bool:
        """False: another process has changed it meanwhile."""
        with self._exclusively():
            is_as_before = self.memo(name) == before
            if is_as_before:
                self.set_memo(name, memo)
            return is_as_before

    def note(self, name: str, memo: str) -> None:
        """A memo in a step of its own."""
        with self._exclusively():
            self.set_memo(name, memo)

    def set_memo(self, name: str, memo: str) -> None:
        self._db.execute("INSERT OR REPLACE INTO memos VALUES (?, ?)", (name, memo))

    def check(self) -> None:
        with self._exclusively():
            self._db.execute("UPDATE numbers SET number = number WHERE name = 'fence'")

    def close(self) -> None:
        with self._lock:  # a thread that is in a transaction ends it first
            self._turn.close()
            self._wal.close()
            self._db.close()


@cache
def _page_of_index(is_dead: bool, is_of_one: bool, is_after: bool) -> str:
    index, at, beyond, order = ("dead", "died_ms", "<", "DESC") if is_dead else ("due", "next_try_ms", ">", "ASC")
    conditions = ["until_ms > :now"]
    if is_of_one:
        conditions.append("destination = :to")
    if is_after:
        conditions.append(f"({at}, i.entry, destination) {beyond} (:after_ms, :after_entry, :after_to)")
    return (
        f"SELECT {at}, i.entry, destination, e.entry FROM {index} AS i JOIN entries AS e ON e.id = i.entry "  # noqa: S608
        f"WHERE {' AND '.join(conditions)} ORDER BY {at} {order}, i.entry {order}, destination {order} LIMIT :limit"
    )


def _news(entry: Entry) -> tuple[int, bool, bool]:
    return entry.generation, entry.state is State.DONE, not entry.has_open_deliveries


@cache
def _look_up(count: int) -> str:
    """Which of so many labels are marked, and what they refer to. (A JSON list would lose what follows a NUL.)"""
    labels = ", ".join("?" * count)
    return (
        f"SELECT label, NULL, NULL, NULL FROM marks WHERE label IN ({labels}) AND until_ms > ? "  # noqa: S608 - placeholders alone
        "UNION ALL SELECT label, refs.entry, seen_ms, e.entry "
        f"FROM refs LEFT JOIN entries AS e ON e.id = refs.entry AND e.until_ms > ? WHERE label IN ({labels})"
    )


def _by_age(ref: Ref) -> tuple[int, str]:
    return ref.seen_ms, ref.entry


def _course(entry: Entry) -> tuple[object, ...]:
    """What has become of it so far; not who is at it now, nor when it is tried next."""
    deliveries = [
        (each.destination, each.generation, each.tries, not each.status.is_open and each.status)
        for each in entry.deliveries
    ]
    return entry.generation, entry.state, entry.released_ms, deliveries


def _translated(error: sqlite3.DatabaseError) -> StoreUnavailable | StoreMisconfigured:
    primary_code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    kind = StoreUnavailable if primary_code in _MAY_PASS else StoreMisconfigured
    return kind(f"sqlite: {error}")


@contextmanager
def translated_errors() -> Iterator[None]:
    try:
        yield
    except sqlite3.DatabaseError as error:
        raise _translated(error) from error
