"""By what decisions are found: an index of this machine, kept behind the requests, in a file of its own.

The journal is what counts: what is found here is read there before it is shown. The index only spares going through all
of it: a row for each entry, by when it came, with what an operator filters by and the text that he searches for. One
process of the machine at a time follows the journal; a file that is lost or damaged is made again.
"""

from __future__ import annotations

import hashlib
import json
import logging
import sqlite3
import threading
import time
import zlib
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from deduplication.claims import Gate
from deduplication.email import well_formed
from deduplication.errors import DeduplicationError, StoreUnavailable
from deduplication.journal.base import Claim, Journal, Retention
from deduplication.journal.codec import flat_entry, in_json, read_entry
from deduplication.journal.entry import DeliveryStatus, Entry, State
from deduplication.journal.listing import Position
from deduplication.journal.storage import DiskRoom
from deduplication.private_files import open_private
from orchestrator.intake import SKIPPED_AT, Status, status_of
from orchestrator.privacy import Privacy

log = logging.getLogger(__name__)

GATES = (Gate.IDENTITY, Gate.SUBJECT_GROUP, Gate.MEDIA, Gate.CONTENT)  # at which an email can be stopped
FILE = "decisions.db"
OLD = "old-"
MOST_OLD_AT_ONCE = 1_000
FOLLOW_EVERY_S = 2.0
RESTS_FOR = 20  # times as long as a step took: emails that come meanwhile want the time
FOLLOWED_AT_ONCE = 1_000
READ_AGAIN_AT_ONCE = 200  # of what is still open: the newest, and as many of the others in turn
PURGED_AT_ONCE = 2_000
BEGIN_ANEW_AFTER_MS = 12 * 3_600_000  # of standing still: the journal tells for a day what was taken up again
WAIT_FOR_OTHERS_S = 2.0
SHORTEST_TRIGRAM = 3
LONGEST_NAME_LOOKED_UP = 8
MOST_LOOKED_THROUGH = 1_000
MOST_SCANNED = 10_000  # rows, for a word too short for the index of texts
MOST_IN_MEMORY = 20_000
_FOR_EVER_MS = 1 << 60
_ROW_BITS = 20
_LAST_MS = 1 << 42  # in the year 2109
_LAST = (1 << 63) - 1
_FACTS = "item, status, gate, provider, text, is_open, until_ms"
VERSION = "2"

_SCHEMA = """
CREATE TABLE decisions (
    row INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, item TEXT NOT NULL, status TEXT NOT NULL, gate TEXT NOT NULL,
    provider TEXT NOT NULL, text TEXT NOT NULL, is_open INTEGER NOT NULL, until_ms INTEGER NOT NULL, old TEXT
);
CREATE INDEX by_item ON decisions (item);
CREATE INDEX by_status ON decisions (status, row, gate, provider);
CREATE INDEX by_gate ON decisions (gate, row, status, provider) WHERE gate <> '';
CREATE INDEX by_provider ON decisions (provider, row, status, gate);
CREATE INDEX still_open ON decisions (row) WHERE is_open;
CREATE INDEX by_end ON decisions (until_ms);
CREATE TABLE destinations (
    destination TEXT NOT NULL, row INTEGER NOT NULL, status TEXT NOT NULL, gate TEXT NOT NULL, provider TEXT NOT NULL,
    PRIMARY KEY (destination, row)
) WITHOUT ROWID;
CREATE INDEX destinations_by_row ON destinations (row);
CREATE TABLE memos (name TEXT PRIMARY KEY, memo TEXT NOT NULL) WITHOUT ROWID;
CREATE TRIGGER row_dropped AFTER DELETE ON decisions BEGIN DELETE FROM destinations WHERE row = OLD.row; END
"""
# Pieces of three letters, so that any part of a word is found. An older sqlite has no such index.
_TEXTS = """
CREATE VIRTUAL TABLE texts USING fts5(text, content='decisions', content_rowid='row', tokenize='trigram')
"""
_TRIGGERS = (
    """CREATE TRIGGER text_put AFTER INSERT ON decisions BEGIN
        INSERT INTO texts (rowid, text) VALUES (NEW.row, NEW.text);
    END""",
    """CREATE TRIGGER text_dropped AFTER DELETE ON decisions BEGIN
        INSERT INTO texts (texts, rowid, text) VALUES ('delete', OLD.row, OLD.text);
    END""",
    """CREATE TRIGGER text_changed AFTER UPDATE OF text ON decisions BEGIN
        INSERT INTO texts (texts, rowid, text) VALUES ('delete', OLD.row, OLD.text);
        INSERT INTO texts (rowid, text) VALUES (NEW.row, NEW.text);
    END""",
)
_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}


@dataclass(frozen=True)
class Filter:
    """Which decisions; None matches anything. ``since_ms`` and ``until_ms`` are of the email's coming. ``q``: a part of
    its sender or subject, or the whole of its id, email id or Message-ID."""

    status: Status | None = None
    gate: Gate | None = None
    provider: str | None = None
    destination: str | None = None
    q: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None


def decided_status(entry: Entry, lease_time_ms: int) -> Status:
    """What its provider was told, brought up to date with what became of it since."""
    if entry.state is State.PENDING:
        return Status.ALREADY_PROCESSING if entry.is_held(lease_time_ms) else Status.RETRY_LATER
    if entry.state is State.FREE:
        return Status.RETRY_LATER
    if entry.stop and entry.released_ms is None:
        return SKIPPED_AT.get(entry.stop.gate, Status.ALREADY_PROCESSED)
    return Status(entry.answer) if entry.answer in (Status.SKIPPED_OLD, Status.IMPORTED) else status_of(entry)


def searched_text(entry: Entry, privacy: Privacy) -> str:
    about = privacy.about(entry.about)
    return well_formed(f"{about.sender}\n{about.subject}").lower()


@dataclass(frozen=True)
class Row:
    """Rows are numbered by when the entries came: that is their order, and what a cursor is made of."""

    number: int
    id: str


@dataclass(frozen=True)
class Sought:
    """What a q means: a text that stands in sender or subject, "" for none; ids of entries and emails."""

    text: str
    ids: tuple[str, ...]


@dataclass(frozen=True)
class _Source:
    """Where rows are taken from: the column of their numbers, the table that has their facts, and a condition."""

    tables: str
    place: str
    facts: str
    condition: str = ""
    values: tuple[object, ...] = ()


def _rare_part(text: str) -> str:
    """Of an address the end of its name: the domain is everybody's, and each piece of it is looked up in all texts."""
    name = text.partition("@")[0][-LONGEST_NAME_LOOKED_UP:]
    return name if len(name) >= SHORTEST_TRIGRAM and "@" in text else text


class DecisionIndex:
    """``follow`` brings it up to date, ``find`` asks it. ``path`` None: in memory, of the newest only."""

    def __init__(
        self,
        journal: Journal,
        privacy: Privacy,
        retention: Retention,
        path: Path | None,
        room: DiskRoom | None = None,
    ) -> None:
        """``room``: what is to stay free on the disk, where that matters."""
        self._journal = journal
        self._room = room
        self._privacy = privacy
        self._version = f"{VERSION} {privacy.mode}"  # what was kept of texts before goes when that changes
        self._old: deque[Entry] = deque(maxlen=MOST_OLD_AT_ONCE)
        self._retention = retention
        self._path = path
        self._lock = threading.RLock()
        self._db: sqlite3.Connection | None = None
        self._inode: int | None = None
        self._has_texts = False
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="decisions", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        if self._thread:
            self._thread.join()
        with suppress(StoreUnavailable):
            self._write_old()
        with self._lock:
            self._close()

    def _run(self) -> None:
        rest_s = FOLLOW_EVERY_S
        while not self._stop.wait(rest_s):
            started = time.monotonic()
            try:
                self._privacy.look_after_key()
                self.follow(unless_within_ms=FOLLOW_EVERY_S * 500)
            except DeduplicationError as error:
                log.warning("decisions: the index is behind: %s", error)
            except Exception:
                log.exception("decisions: the index is behind")
            rest_s = max(FOLLOW_EVERY_S, RESTS_FOR * (time.monotonic() - started))

    # Following the journal

    def follow(self, unless_within_ms: float = 0) -> bool:
        """One step: what is new, what is still open, what is over. True: for now there is no more.

        ``unless_within_ms``: not where another process did so lately.
        """
        self._write_old()
        now_ms = self._journal.now_ms()
        with self._lock, self._usable() as db:
            if _memo(db, "is_all") and abs(now_ms - int(_memo(db, "followed_ms") or 0)) < unless_within_ms:
                return True
        with self._transaction() as db:
            is_far_behind = now_ms - int(_memo(db, "followed_ms") or 0) > BEGIN_ANEW_AFTER_MS
            places = "" if is_far_behind else _memo(db, "places") or ""
            if not places:
                _set_memo(db, "indexed", "")
            news = self._journal.news(places, FOLLOWED_AT_ONCE)
            again = self._journal.read_all(self._still_open(db))
            if self._room and self._room.left_bytes() <= 0:
                _drop_oldest(db, len(news.entries))
            self._put(db, (*news.entries, *again.values(), *(self._of_indexes(db) if news.is_all else ())))
            _set_memo(db, "places", news.places)
            _set_memo(db, "followed_ms", str(now_ms))
            is_all = news.is_all and _memo(db, "indexed") == "yes"
            _set_memo(db, "is_all", "yes" if is_all else "")
            self._purge(db, now_ms)
            return is_all

    def note_old(self, claim: Claim) -> None:
        """An item that was too old to be taken marks nothing and has no entry: it is only listed, and only here.

        Written with the next step; of a burst, the last ones.
        """
        id_ = f"{OLD}{hashlib.sha256(claim.own[0].label.encode()).hexdigest()[:12]}"
        now_ms = self._journal.now_ms()
        self._old.append(
            Entry(
                id=id_,
                own=claim.own,
                shared=(),
                fingerprint="",
                state=State.DONE,
                owner="",
                fence=0,
                lease_until_ms=0,
                created_ms=now_ms,
                about=claim.about,
                answer=Status.SKIPPED_OLD,
                settled_ms=now_ms,
            )
        )

    def _write_old(self) -> None:
        if not self._old:
            return
        with self._transaction() as db:
            while self._old:
                entry = self._old.popleft()
                known = self._read_old(db, [entry.id]).get(entry.id)
                if known:
                    entry = replace(known, repeats=known.repeats + 1, repeated_ms=entry.created_ms)
                self._put(db, [entry])
                db.execute("UPDATE decisions SET old = ? WHERE id = ?", (in_json(flat_entry(entry)), entry.id))

    def read_old(self, ids: Sequence[str]) -> dict[str, Entry]:
        """Of what was too old, all that is known."""
        asked = [id_ for id_ in ids if id_.startswith(OLD)]
        if not asked:
            return {}
        with self._lock, self._usable() as db:
            return self._read_old(db, asked)

    def _read_old(self, db: sqlite3.Connection, ids: Sequence[str]) -> dict[str, Entry]:
        asked = "SELECT old FROM decisions WHERE id = ? AND old IS NOT NULL"
        found = [db.execute(asked, (well_formed(id_),)).fetchone() for id_ in ids]
        entries = [read_entry(json.loads(row[0])) for row in found if row]
        return {entry.id: entry for entry in entries}

    def put(self, entries: Sequence[Entry]) -> None:
        """What is known of them by now, for who has found rows that say otherwise."""
        with self._transaction() as db:
            self._put(db, entries)

    def _put(self, db: sqlite3.Connection, entries: Iterable[Entry]) -> None:
        lease_time_ms = self._journal.lease_time_ms()
        for entry in entries:
            facts = self._facts(entry, lease_time_ms)
            known = db.execute(f"SELECT row, {_FACTS} FROM decisions WHERE id = ?", (entry.id,)).fetchone()  # noqa: S608
            if known is None:
                number = _free_number(db, entry)
                db.execute("INSERT INTO decisions VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, NULL)", (number, entry.id, *facts))
            elif known[1:] != facts:
                number = known[0]
                changed = ", ".join(f"{name} = ?" for name in _FACTS.split(", "))
                db.execute(f"UPDATE decisions SET {changed} WHERE row = ?", (*facts, number))  # noqa: S608
                db.execute("DELETE FROM destinations WHERE row = ?", (number,))
            else:
                continue
            _, status, gate, provider, *_ = facts
            at = [(well_formed(each.destination), number, status, gate, provider) for each in entry.deliveries]
            db.executemany("INSERT OR IGNORE INTO destinations VALUES (?, ?, ?, ?, ?)", at)

    def _facts(self, entry: Entry, lease_time_ms: int) -> tuple[str, str, str, str, str, int, int]:
        """In the order of _FACTS."""
        follows = entry.stop is not None and entry.stop.follows and entry.released_ms is None
        is_open = entry.state is not State.DONE or entry.has_open_deliveries or follows
        is_dead = any(each.status is DeliveryStatus.DEAD for each in entry.deliveries)
        kept_ms = self._retention.dead_ms if is_dead else self._retention.entry_ms
        until_ms = (entry.settled_ms or entry.created_ms) + kept_ms
        status, gate = decided_status(entry, lease_time_ms), entry.stop.gate if entry.stop else ""
        return (
            well_formed(entry.about.item),
            str(status),
            str(gate),
            well_formed(entry.about.provider),
            searched_text(entry, self._privacy),
            int(is_open),
            _FOR_EVER_MS if entry.has_open_deliveries else until_ms,
        )

    def _still_open(self, db: sqlite3.Connection) -> list[str]:
        """The newest, which end soon as a rule, and the others in turn."""
        asked = "SELECT row, id FROM decisions WHERE is_open AND row < ? ORDER BY row DESC LIMIT ?"
        newest = db.execute(asked, (_LAST, READ_AGAIN_AT_ONCE)).fetchall()
        if len(newest) < READ_AGAIN_AT_ONCE:
            return [id_ for _, id_ in newest]
        before = int(_memo(db, "open_before") or 0) or newest[-1][0]
        others = db.execute(asked, (before, READ_AGAIN_AT_ONCE)).fetchall()
        _set_memo(db, "open_before", str(others[-1][0]) if len(others) == READ_AGAIN_AT_ONCE else "0")
        return [id_ for _, id_ in (*newest, *others)]

    def _of_indexes(self, db: sqlite3.Connection) -> list[Entry]:
        """What waits or is dead may be older than all that a journal lists by the time. Once, a page at a time."""
        done = _memo(db, "indexed") or DeliveryStatus.WAITING
        if done == "yes":
            return []
        status, *last = json.loads(done) if done.startswith("[") else [done]
        listed = self._journal.list_deliveries(DeliveryStatus(status), after=Position(*last) if last else None)
        page = list(islice(listed, FOLLOWED_AT_ONCE))
        if len(page) == FOLLOWED_AT_ONCE:
            position = page[-1].position
            done = json.dumps([status, position.at_ms, position.entry, position.destination])
        else:
            done = DeliveryStatus.DEAD if status == DeliveryStatus.WAITING else "yes"
        _set_memo(db, "indexed", done)
        return [each.entry for each in page]

    def _purge(self, db: sqlite3.Connection, now_ms: int) -> None:
        over = "SELECT row FROM decisions WHERE until_ms < ? LIMIT ?"
        db.execute(f"DELETE FROM decisions WHERE row IN ({over})", (now_ms, PURGED_AT_ONCE))  # noqa: S608
        if self._path is None:
            too_many = "SELECT row FROM decisions ORDER BY row DESC LIMIT -1 OFFSET ?"
            db.execute(f"DELETE FROM decisions WHERE row IN ({too_many})", (MOST_IN_MEMORY,))  # noqa: S608

    # Asking

    def find(self, wanted: Filter, q: Sought | None, before: int | None, limit: int) -> list[Row]:
        """Rows before that number, the newest first."""
        newest = _first_row(wanted.until_ms if wanted.until_ms is not None else _LAST_MS)
        bounds = (min(newest, before) if before is not None else newest, _first_row(wanted.since_ms or 0))
        with self._lock, self._usable() as db:
            if q is None:
                return _ask(db, self._any(wanted), wanted, bounds, limit)
            found = set(self._ask_for_text(db, q.text, wanted, bounds, limit)) if q.text else set()
            for id_ in q.ids:
                found |= set(_ask(db, _with_id(id_), wanted, bounds, limit))
        return sorted(found, key=lambda each: each.number, reverse=True)[:limit]

    def _ask_for_text(
        self, db: sqlite3.Connection, text: str, wanted: Filter, bounds: tuple[int, int], limit: int
    ) -> list[Row]:
        """Where few rows pass the filters, these are looked at; a common text would be looked up in vain otherwise."""
        folded = well_formed(text).lower().replace("\0", " ")
        if (wanted.status, wanted.gate, wanted.provider, wanted.destination) != (None,) * 4:
            source = self._any(wanted)
            few = _ask(db, source, wanted, bounds, MOST_LOOKED_THROUGH)
            if len(few) < MOST_LOOKED_THROUGH:
                conditions = " AND ".join(filter(None, (source.condition, "instr(d.text, ?)")))
                holding = replace(source, condition=conditions, values=(*source.values, folded))
                return _ask(db, holding, wanted, bounds, limit)
        return _ask(db, self._holding(folded, bounds), wanted, bounds, limit)

    def _any(self, wanted: Filter) -> _Source:
        """By the index of the rarest thing that is asked for; each has the others too, so that no row is looked up."""
        if wanted.destination is not None:
            tables = "destinations AS k CROSS JOIN decisions AS d ON d.row = k.row"
            return _Source(tables, "k.row", "k", "k.destination = ?", (well_formed(wanted.destination),))
        by = "gate" if wanted.gate else "status" if wanted.status else "provider" if wanted.provider else ""
        return _Source(f"decisions AS d {f'INDEXED BY by_{by}' if by else ''}", "d.row", "d")

    def _holding(self, folded: str, bounds: tuple[int, int]) -> _Source:
        """Those in whose text this stands. The index of texts goes from the newest on, and ends when it has enough."""
        if self._has_texts and len(folded) >= SHORTEST_TRIGRAM:
            quoted = '"' + _rare_part(folded).replace('"', '""') + '"'
            tables = "texts AS k CROSS JOIN decisions AS d ON d.row = k.rowid"
            return _Source(tables, "k.rowid", "d", "k.texts MATCH ? AND instr(d.text, ?)", (quoted, folded))
        newest = "SELECT * FROM decisions WHERE row < ? AND row >= ? ORDER BY row DESC LIMIT ?"
        values = (*bounds, MOST_SCANNED if self._has_texts else -1, folded)
        return _Source(f"({newest}) AS d", "d.row", "d", "instr(d.text, ?)", values)

    # The file

    @contextmanager
    def _usable(self) -> Iterator[sqlite3.Connection]:
        """On the file that is there now. One that is damaged is removed, and made again for whoever asks next."""
        try:
            if self._db and self._path and self._inode != _inode(self._path):
                self._close()
            self._db = self._db or self._open()
            yield self._db
        except sqlite3.DatabaseError as error:
            if getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF in _DAMAGED:
                log.error("decisions: the index is damaged, and is made again: %s", error)
                self._close()
                self._remove()
            raise StoreUnavailable(f"the index of decisions: {error}") from error

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """For one process at a time, and one thread of it."""
        with self._lock, self._usable() as db:
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
                db.execute("COMMIT")
            finally:
                if db.in_transaction:
                    db.execute("ROLLBACK")

    def _open(self) -> sqlite3.Connection:
        db = self._connect()
        try:
            if _memo(db, "version") not in (None, self._version):
                db.close()
                self._remove()  # rather than emptied: nothing that it held stays on the disk
                db = self._connect()
            _make(db, self._version)
            self._has_texts = bool(db.execute("SELECT 1 FROM sqlite_master WHERE name = 'texts'").fetchone())
        except BaseException:
            db.close()
            raise
        self._inode = _inode(self._path) if self._path else None
        return db

    def _connect(self) -> sqlite3.Connection:
        db = open_private(self._path or Path(":memory:"), WAIT_FOR_OTHERS_S)
        try:
            db.execute("PRAGMA journal_mode=WAL")
            db.execute("PRAGMA synchronous=OFF")  # what a power cut damages is made again
            db.execute("PRAGMA secure_delete=ON")
        except BaseException:
            db.close()
            raise
        return db

    def _remove(self) -> None:
        for end in ("", "-wal", "-shm"):
            with suppress(OSError):
                Path(f"{self._path}{end}").unlink()

    def _close(self) -> None:
        if self._db:
            with suppress(sqlite3.Error):
                self._db.close()
            self._db = None


def _drop_oldest(db: sqlite3.Connection, count: int) -> None:
    """The disk is full: as many go as come, and leave them their place in the file."""
    oldest = "SELECT row FROM decisions ORDER BY row LIMIT ?"
    db.execute(f"DELETE FROM decisions WHERE row IN ({oldest})", (count,))  # noqa: S608


def _free_number(db: sqlite3.Connection, entry: Entry) -> int:
    """By when it came; two of one millisecond hardly ever get the same, and then the next one is as good."""
    number = (entry.created_ms << _ROW_BITS) | (zlib.crc32(entry.id.encode()) & ((1 << _ROW_BITS) - 1))
    while db.execute("SELECT 1 FROM decisions WHERE row = ?", (number,)).fetchone():
        number += 1
    return number


def _first_row(moment_ms: int) -> int:
    """Of that moment; whatever year somebody asks for, it is a number that sqlite takes."""
    return max(0, min(moment_ms, _LAST_MS)) << _ROW_BITS


def _with_id(id_: str) -> _Source:
    text = well_formed(id_)
    return _Source("decisions AS d", "d.row", "d", "(d.id = ? OR d.item = ?)", (text, text))


def _ask(db: sqlite3.Connection, source: _Source, wanted: Filter, bounds: tuple[int, int], limit: int) -> list[Row]:
    conditions, values = [source.condition] if source.condition else [], list(source.values)
    for name, value in (("status", wanted.status), ("gate", wanted.gate), ("provider", wanted.provider)):
        if value is not None:
            conditions.append(f"{source.facts}.{name} = ?")
            values.append(well_formed(value))
    if wanted.gate is not None:
        conditions.append(f"{source.facts}.gate <> ''")  # what its index is of
    if wanted.destination is not None and not source.tables.startswith("destinations"):
        conditions.append("EXISTS (SELECT 1 FROM destinations AS x WHERE x.destination = ? AND x.row = d.row)")
        values.append(well_formed(wanted.destination))
    where = " AND ".join((*conditions, f"{source.place} < ? AND {source.place} >= ?"))
    rows = db.execute(
        f"SELECT d.row, d.id FROM {source.tables} WHERE {where} ORDER BY {source.place} DESC LIMIT ?",  # noqa: S608
        (*values, *bounds, limit),
    )
    return [Row(*row) for row in rows.fetchall()]


def _make(db: sqlite3.Connection, version: str) -> None:
    """Of a new file; another process may have been quicker."""
    if _memo(db, "version") == version:
        return
    db.execute("BEGIN IMMEDIATE")
    try:
        if _memo(db, "version") == version:
            return
        for statement in _SCHEMA.split(";\n"):
            db.execute(statement)
        try:
            db.execute(_TEXTS)
        except sqlite3.OperationalError:
            log.info("decisions: this sqlite has no index of texts, so a search looks at every row")
        else:
            for statement in _TRIGGERS:
                db.execute(statement)
        _set_memo(db, "version", version)
        db.execute("COMMIT")
    finally:
        if db.in_transaction:
            db.execute("ROLLBACK")


def _memo(db: sqlite3.Connection, name: str) -> str | None:
    try:
        row = db.execute("SELECT memo FROM memos WHERE name = ?", (name,)).fetchone()
    except sqlite3.OperationalError:  # a new file has no such table
        return None
    return row[0] if row else None


def _set_memo(db: sqlite3.Connection, name: str, memo: str) -> None:
    db.execute("INSERT OR REPLACE INTO memos VALUES (?, ?)", (name, memo))


def _inode(path: Path) -> int | None:
    with suppress(OSError):
        return path.stat().st_ino
    return None
