"""The journal in a file of this machine: the embedded default, shared by all its processes, kept over restarts."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import islice
from pathlib import Path

from deduplication.claims import Name, Pattern
from deduplication.errors import StoreMisconfigured, StoreUnavailable
from deduplication.journal.base import DEFAULT_RETENTION, Retention
from deduplication.journal.clock import Clock, boot_id, system_clock
from deduplication.journal.codec import flat_entry, in_json, read_delivery, read_entry
from deduplication.journal.entry import Entry, State
from deduplication.journal.local import HOUR_MS, LocalJournal
from deduplication.journal.spool import Line, read_spools, remove_drained
from deduplication.journal.verdict import NameRecord, Ref
from deduplication.private_files import open_private

BUSY_TIMEOUT_S = 5.0
PURGE_EVERY_MS = 60_000
_UNDER_WAY_MS = 2 * HOUR_MS
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
CREATE TABLE IF NOT EXISTS payloads (entry TEXT PRIMARY KEY, until_ms INTEGER NOT NULL, payload BLOB NOT NULL);
CREATE INDEX IF NOT EXISTS payloads_by_end ON payloads (until_ms);
CREATE TABLE IF NOT EXISTS numbers (name TEXT PRIMARY KEY, number INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS spools (file TEXT PRIMARY KEY, position INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS memos (name TEXT PRIMARY KEY, memo TEXT NOT NULL) WITHOUT ROWID;
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
# References live with their entry, or with the mark of a name that is shared: it keeps telling the original.
_OVER = "SELECT id FROM entries WHERE until_ms <= :now"
_IS_SHARED = "substr(label, 1, instr(label, ':') - 1) IN ('subject_group', 'media', 'content')"
_DROP_WITH_ENTRY = (
    f"DELETE FROM payloads WHERE entry IN ({_OVER})",  # noqa: S608 - all constants
    f"DELETE FROM due WHERE entry IN ({_OVER})",  # noqa: S608
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
_RAISE = "INSERT INTO numbers VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET number = max(number, excluded.number)"
_MARKED = "SELECT label FROM marks WHERE label IN (SELECT value FROM json_each(?)) AND until_ms > ?"
_REFS = """
SELECT label, entry, seen_ms FROM refs WHERE label IN (SELECT value FROM json_each(?)) ORDER BY seen_ms, entry
"""
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

    def put(self, entry: Entry, known: Entry | None, told: Told) -> None:
        earlier = self.changes.pop(entry.id, None)
        self.changes[entry.id] = _Change(entry, earlier.before if earlier else known, told)

    def confirm(self, entry: str) -> None:
        if entry in self.changes:
            self.changes[entry] = replace(self.changes[entry], told=Told.YES)
        else:
            self.told.append(entry)


class SqliteJournal(LocalJournal):
    """One connection a process, used by one thread at a time; between processes BEGIN IMMEDIATE is the lock."""

    def __init__(
        self,
        path: Path,
        clock: Clock | None = None,
        retention: Retention = DEFAULT_RETENTION,
        busy_timeout_s: float = BUSY_TIMEOUT_S,
        marks_kept_ms: int | None = None,
    ) -> None:
        """``marks_kept_ms``: no mark lasts longer here; Redis has them too, and keeps them for their whole time."""
        self._lock = threading.RLock()
        self._purged_ms = 0
        self._is_durable = False
        self._told = Told.NO
        self._busy_timeout_s = busy_timeout_s
        self._marks_kept_ms = marks_kept_ms
        with translated_errors():
            self._db = open_private(path, busy_timeout_s)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=NORMAL")
            self._db.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} {_PUBLICATION_LOCKS} COMMIT;")
        super().__init__(clock or system_clock(self._count_boots()), retention)
        with self._exclusively():
            ahead_ms = self.now_ms() - self._clock.steady_ms()
            self._db.execute("INSERT OR REPLACE INTO numbers VALUES ('day_ahead_ms', ?)", (ahead_ms,))

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
        """Marks, payloads and entries whose time is over."""
        now_ms = self.now_ms()
        if now_ms - self._purged_ms < PURGE_EVERY_MS:
            return
        self._purged_ms = now_ms
        self._db.execute("DELETE FROM marks WHERE until_ms <= ?", (now_ms,))
        self._db.execute("DELETE FROM payloads WHERE until_ms <= ?", (now_ms,))
        for statement in _DROP_WITH_ENTRY:
            self._db.execute(statement, {"now": now_ms})

    def _names(self, names: Sequence[Name]) -> dict[Name, NameRecord]:
        labels = {name: name.label for name in names}
        asked = in_json(list(labels.values()))  # one list, one statement: however many names, it is prepared once
        marked = {row[0] for row in self._db.execute(_MARKED, (asked, self.now_ms()))}
        refs: dict[str, list[Ref]] = {}
        for label, entry, seen_ms in self._db.execute(_REFS, (asked,)):
            refs.setdefault(label, []).append(Ref(entry, seen_ms))
        return {name: NameRecord(label in marked, tuple(refs.get(label, ()))) for name, label in labels.items()}

    def _mark(self, marks: Sequence[tuple[Name, int | None]]) -> None:
        most_ms = _FOR_EVER_MS if self._marks_kept_ms is None else self.now_ms() + self._marks_kept_ms
        self._db.executemany(
            "INSERT INTO marks VALUES (?, ?) "
            "ON CONFLICT (label) DO UPDATE SET until_ms = max(until_ms, excluded.until_ms)",
            [(name.label, most_ms if until_ms is None else min(until_ms, most_ms)) for name, until_ms in marks],
        )

    def _refer(self, names: Sequence[Name], ref: Ref) -> None:
        shared = [(name.label,) for name in names if not name.is_own]
        if shared:
            self._db.executemany("DELETE FROM refs WHERE label = ?", shared)
        rows = [(name.label, ref.entry, ref.seen_ms) for name in names]
        self._db.executemany("INSERT OR IGNORE INTO refs VALUES (?, ?, ?)", rows)

    def _unrefer(self, name: Name, entry: str) -> None:
        self._db.execute("DELETE FROM refs WHERE label = ? AND entry = ?", (name.label, entry))

    def _drop_mark(self, name: Name) -> None:
        self._db.execute("DELETE FROM marks WHERE label = ?", (name.label,))

    def _put_entry(self, entry: Entry, before: Entry | None, until_ms: int | None) -> None:
        stop = entry.stop
        is_follower = stop and stop.follows and not entry.released_ms and entry.state is State.DONE
        self._db.execute(
            "INSERT OR REPLACE INTO entries VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (
                entry.id,
                in_json(flat_entry(entry)),
                entry.created_ms,
                _FOR_EVER_MS if until_ms is None else until_ms,
                stop.original if stop and is_follower else None,
                int(self._db.execute(_NEXT, ("change",)).fetchone()[0]),
                self.now_ms(),
                self._told,
            ),
        )
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

    def _drop_entry(self, entry: str) -> None:
        self._db.execute("DELETE FROM entries WHERE id = ?", (entry,))

    def _put_payload(self, entry: str, payload: bytes | None, until_ms: int | None = None) -> None:
        if payload is None:
            self._db.execute("DELETE FROM payloads WHERE entry = ?", (entry,))
        else:
            until_ms = _FOR_EVER_MS if until_ms is None else until_ms
            self._db.execute("INSERT OR REPLACE INTO payloads VALUES (?, ?, ?)", (entry, until_ms, payload))

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

    def _next_fence(self) -> int:
        return int(self._db.execute(_NEXT, ("fence",)).fetchone()[0])

    def _entry(self, entry: str) -> Entry | None:
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

    def find(self) -> Iterator[Entry]:
        return (entry for entry in self.everything() if not entry.is_lock)

    def everything(self) -> Iterator[Entry]:
        """Locks and the words that scripts marked too."""
        last: tuple[int, str] = (_FOR_EVER_MS, "")
        while True:
            with self._lock, translated_errors():
                rows = self._db.execute(
                    "SELECT entry, created_ms, id FROM entries WHERE (created_ms, id) < (?, ?) AND until_ms > ? "
                    "ORDER BY created_ms DESC, id DESC LIMIT ?",
                    (*last, self.now_ms(), _PAGE),
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
            count, news = 0, _News()
            for piece in read_spools(folder, positions):
                for line in piece.lines:
                    self._take_in(line, news)
                positions[piece.file] = piece.end
                self._db.execute("INSERT OR REPLACE INTO spools VALUES (?, ?)", (piece.file, piece.end))
                count += len(piece.lines)
            self._db.executemany("UPDATE entries SET told = 'yes' WHERE id = ?", [(id_,) for id_ in news.told])
            for change in news.changes.values():
                self._follow(change.entry, change.before, change.told)
        for file in remove_drained(folder, positions):
            with self._transaction():
                self._db.execute("DELETE FROM spools WHERE file = ?", (file,))
        return count

    def _take_in(self, line: Line, news: _News) -> None:
        """Every grant is kept: the item is busy while any of them is live."""
        match line.kind:
            case "granted":
                entry = read_entry(line.value)
                known = self._latest(entry.id, news)
                is_known_better = known and (
                    known.generation > entry.generation
                    or known.generation == entry.generation
                    and (known.state is State.DONE or known.lease_until_ms > entry.lease_until_ms)
                )
                if not is_known_better:
                    news.put(entry, known, Told.YES)
            case "delivered":
                flat, delivery = line.value[0], read_delivery(line.value[1])
                known = self._latest(flat[0], news)
                latest = known if known and known.generation >= flat[-1] else read_entry(flat)
                after = latest.with_fact(delivery)
                if not any(each.status.is_open for each in after.deliveries):
                    # What was settled here already is as old as it is, however late its line is read.
                    settled_ms = latest.settled_ms if latest.state is State.DONE else self.now_ms()
                    after = replace(after, state=State.DONE, lease_until_ms=0, settled_ms=settled_ms)
                news.put(after, known, Told.NO)
            case "settled" | "published":
                entry = read_entry(line.value)
                known = self._latest(entry.id, news)
                if known is None or _news(entry) >= _news(known):  # processes write, and are read, in any order
                    news.put(entry, known, Told.YES if line.kind == "settled" else Told.NO)
        for id_ in line.told:
            news.confirm(id_)

    def _latest(self, entry: str, news: _News) -> Entry | None:
        change = news.changes.get(entry)
        return change.entry if change else self._entry(entry)

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

    def replace_copy(self, entry: Entry) -> None:
        """By what Redis says of it, whatever is known here."""
        with self._transaction():
            deliveries = tuple(replace(each, owner="", lease_until_ms=0) for each in entry.deliveries)
            self._follow(replace(entry, deliveries=deliveries), self._entry(entry.id), Told.YES)
            if not entry.needs_payload:
                self._put_payload(entry.id, None)

    def keep_payload(self, entry: str, payload: bytes | None) -> None:
        """Of an entry that Redis keeps: it can be released from here."""
        with self._transaction():
            self._put_payload(entry, payload)

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
                self._follow(entry, None, whether_told)
                self._put_payload(entry.id, payload)
                count += 1
            self._db.execute(_RAISE, ("fence", fence))
            self.set_memo(note, "yes")
            return count

    def memo(self, name: str) -> str | None:
        row = self._db.execute("SELECT memo FROM memos WHERE name = ?", (name,)).fetchone()
        return None if row is None else str(row[0])

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
        self._db.close()


def _news(entry: Entry) -> tuple[int, bool, bool]:
    return entry.generation, entry.state is State.DONE, not entry.has_open_deliveries


@contextmanager
def translated_errors() -> Iterator[None]:
    try:
        yield
    except sqlite3.DatabaseError as error:
        primary_code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
        kind = StoreUnavailable if primary_code in _MAY_PASS else StoreMisconfigured
        raise kind(f"sqlite: {error}") from error
