"""The journal of one machine: one SQLite file, used by all its processes. It stores; rules.py decides.

Steps that write hold one lock and are short. Reading waits for nobody. An open transaction is a ``Step``.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import resources
from pathlib import Path
from typing import Any

from deduplication.claims import Kind, Name
from deduplication.errors import StoreMisconfigured, StoreUnavailable
from deduplication.journal.clock import Clock, boot_id, system_clock
from deduplication.journal3.entry import Delivery, DeliveryStatus, Entry, changed, decode, encode
from deduplication.journal3.rules import Known, NameState, marked_names, reference

BUSY_TIMEOUT_S = 5.0
SCHEMA_VERSION = "3"
PURGED_AT_ONCE = 200
RESETS_KEPT_MS = 32 * 24 * 3_600_000
_STATUSES = {status.value: status for status in DeliveryStatus}


class Journal:
    """``machine`` is the random name of this journal; one that was copied to another host gets a new name."""

    def __init__(self, path: Path | str, clock: Clock | None = None, host: str | None = None) -> None:
        self._path = str(path)
        self._writer_lock = threading.Lock()
        self._readers: list[sqlite3.Connection] = []
        self._sync_lock = threading.Lock()
        self._written = self._synced = 0
        self._is_memory = self._path == ":memory:"
        try:
            if not self._is_memory:
                with suppress(FileExistsError):
                    os.close(os.open(self._path, os.O_CREAT | os.O_EXCL, 0o600))
            self._writer = self._connect()
            boot = self._prepare(host or host_id())
        except sqlite3.Error as error:
            raise translated(error) from error
        self.clock = clock or system_clock(boot)

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self._path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False, cached_statements=256
        )
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")  # a crash of the process loses nothing; ``sync`` is for power
        connection.execute("PRAGMA wal_autocheckpoint = 8000")  # 32 MB: writing back waits for the disk
        return connection

    def _prepare(self, host: str) -> int:
        """Creates the tables, names the machine, and counts its boots: leases of an earlier boot have ended."""
        run = self._writer.execute
        run("BEGIN IMMEDIATE")
        tables = {name for (name,) in run("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if not tables:
            for statement in resources.files(__package__).joinpath("schema.sql").read_text().split(";\n"):
                if statement.strip():
                    run(statement)
            run("INSERT INTO meta VALUES ('schema', ?)", (SCHEMA_VERSION,))
        elif "meta" not in tables or _meta(self._writer, "schema") != SCHEMA_VERSION:
            run("ROLLBACK")
            raise StoreMisconfigured(
                f"{self._path} was written by another version of Mailonce; set DATA_DIR to a new folder"
            )
        if _meta(self._writer, "host") != host:
            _set_meta(self._writer, "host", host)
            _set_meta(self._writer, "machine", secrets.token_hex(5))
        boot = int(_meta(self._writer, "boot_count") or 0)
        if _meta(self._writer, "boot") != boot_id():
            boot += 1
            _set_meta(self._writer, "boot", boot_id())
            _set_meta(self._writer, "boot_count", str(boot))
        self.machine = _meta(self._writer, "machine") or ""
        run("COMMIT")
        return boot

    @contextmanager
    def step(self) -> Iterator[Step]:
        """One transaction that may write. Raises StoreUnavailable if it cannot be made; then nothing has changed."""
        with self._writer_lock:
            try:
                self._writer.execute("BEGIN IMMEDIATE")
                try:
                    yield Step(self._writer, self.machine, self.clock)
                except BaseException:
                    self._writer.execute("ROLLBACK")
                    raise
                self._writer.execute("COMMIT")
                self._written += 1
            except sqlite3.Error as error:
                if self._writer.in_transaction:
                    with suppress(sqlite3.Error):
                        self._writer.execute("ROLLBACK")
                raise translated(error) from error

    @contextmanager
    def reading(self) -> Iterator[Step]:
        """What was committed when it was entered. Short: a long read keeps the log of changes from being trimmed."""
        if self._is_memory:
            with self._writer_lock:
                yield Step(self._writer, self.machine, self.clock)
            return
        try:
            connection = self._readers.pop() if self._readers else self._connect()
            try:
                yield Step(connection, self.machine, self.clock)
            finally:
                self._readers.append(connection)
        except sqlite3.Error as error:
            raise translated(error) from error

    def sync(self) -> None:
        """Returns once everything committed before the call is on the disk. All who wait share one fsync."""
        if self._is_memory:
            return
        wanted = self._written
        with self._sync_lock:
            if self._synced >= wanted:
                return
            reached = self._written
            try:
                # Not the database file: closing it would drop the locks that SQLite holds on it.
                log = os.open(f"{self._path}-wal", os.O_RDONLY)
                try:
                    os.fsync(log)
                finally:
                    os.close(log)
            except OSError as error:
                raise StoreUnavailable(f"DATA_DIR cannot be written: {error}") from error
            self._synced = reached

    def close(self) -> None:
        for connection in (*self._readers, self._writer):
            connection.close()


class Step:
    """A transaction on the journal, and everything that can be read or written in one."""

    def __init__(self, connection: sqlite3.Connection, machine: str, clock: Clock) -> None:
        self._run = connection.execute
        self._run_many = connection.executemany
        self._connection = connection
        self.machine = machine
        self.now_ms = clock.now_ms()
        self.steady_ms = clock.steady_ms()

    # What is known of names

    def known(self, names: Sequence[Name], fingerprint: str = "", proof: str = "") -> Known:
        """Everything a verdict about an item with these names depends on. Entries come without attempts and names."""
        by_reference = {reference(name, fingerprint): name for name in names}
        states = {name: _NameBuilder() for name in names}
        places = ",".join("?" * len(by_reference))
        asked = tuple(by_reference)
        rows = self._run(
            "SELECT n.reference, n.is_marked, n.until_ms, e.id, e.machine, e.created_ms, e.fingerprint, e.reset,"  # noqa: S608
            " e.answer, d.destination, d.status, d.generation, d.webhook_id, d.waits, d.owner, d.lease_until_ms,"
            " d.is_accepted FROM names n JOIN entries e ON e.seq = n.seq LEFT JOIN deliveries d ON d.seq = e.seq"
            f" WHERE n.reference IN ({places})"
            " UNION ALL SELECT reference, 1, until_ms, NULL, NULL, NULL, fingerprint, NULL, 'mark', NULL, NULL, NULL,"
            f" NULL, NULL, NULL, NULL, NULL FROM marks WHERE reference IN ({places})"
            " UNION ALL SELECT reference, 0, NULL, NULL, NULL, NULL, NULL, number, 'reset', NULL, NULL, NULL,"
            f" NULL, NULL, NULL, NULL, NULL FROM resets WHERE reference IN ({places}) LIMIT 2000",
            asked * 3,
        )
        for label, is_marked, until_ms, *entry in rows:
            state = states[by_reference[label]]
            is_valid = is_marked and (until_ms is None or until_ms > self.now_ms)
            if entry[0] is not None:
                state.add(is_valid, entry)
            elif entry[5] == "reset":
                state.reset = entry[4]
            elif is_valid:
                state.is_marked, state.kept_fingerprint = True, entry[3]
        proven = self._proven(proof) if proof else ""
        return Known({name: state.build() for name, state in states.items()}, self.steady_ms, proven)

    def _proven(self, proof: str) -> str:
        row = self._run("SELECT key FROM proofs WHERE proof = ? AND until_ms > ?", (proof, self.now_ms)).fetchone()
        return row[0] if row else ""

    def put_proof(self, proof: str, key: str, until_ms: int) -> None:
        self._run(
            "INSERT INTO proofs VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET key = excluded.key,"
            " until_ms = max(until_ms, excluded.until_ms)",
            (proof, key, until_ms),
        )

    # Entries

    def read(self, entry_id: str) -> Entry | None:
        row = self._run("SELECT seq, data FROM entries WHERE id = ?", (entry_id,)).fetchone()
        return self._whole(*row) if row else None

    def read_rows(self, where: str, values: Sequence[Any]) -> list[tuple[int, Entry]]:
        """Entries by a condition of ours, with their numbers; the caller bounds it."""
        rows = self._run(f"SELECT seq, data FROM entries WHERE {where}", values).fetchall()  # noqa: S608
        return [(seq, self._whole(seq, data)) for seq, data in rows]

    def _whole(self, seq: int, data: str) -> Entry:
        """With what this machine alone knows of its deliveries."""
        entry = decode(data)
        local = {
            destination: {"owner": owner, "lease_until_ms": lease, "is_accepted": bool(accepted)}
            for destination, owner, lease, accepted in self._run(
                "SELECT destination, owner, lease_until_ms, is_accepted FROM deliveries WHERE seq = ?", (seq,)
            )
        }
        deliveries = tuple(changed(each, **local.get(each.destination, {})) for each in entry.deliveries)
        return changed(entry, deliveries=deliveries)

    def put(self, entry: Entry, before: Entry | None, *, is_news: bool = False) -> None:
        """Writes the entry as it is now; ``before`` is what this step has read of it, None if that was nothing. Unless
        it ``is_news`` of others, it goes to the outbox."""
        gate = entry.stop.gate.value if entry.stop else ""
        columns = (entry.fingerprint, entry.reset, entry.answer, gate, entry.about.provider, encode(entry), entry.id)
        if before is None:
            query = (
                "INSERT INTO entries (fingerprint, reset, answer, gate, provider, data, id, machine, created_ms,"
                " version) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, 1) RETURNING seq, version"
            )
            row = self._run(query, (*columns, entry.machine, entry.created_ms)).fetchone()
        else:
            query = (
                "UPDATE entries SET fingerprint = ?, reset = ?, answer = ?, gate = ?, provider = ?, data = ?,"
                " version = version + 1 WHERE id = ? RETURNING seq, version"
            )
            row = self._run(query, columns).fetchone()
        seq, version = row
        self._put_names(seq, entry, before)
        known = before.deliveries if before else ()
        self._run_many(
            "INSERT INTO deliveries (seq, destination, status, generation, webhook_id, next_try_ms, ended_ms, waits,"
            " owner, lease_until_ms, is_accepted) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET"
            " status = excluded.status, generation = excluded.generation, webhook_id = excluded.webhook_id,"
            " next_try_ms = excluded.next_try_ms, ended_ms = excluded.ended_ms, waits = excluded.waits,"
            " owner = excluded.owner, lease_until_ms = excluded.lease_until_ms, is_accepted = excluded.is_accepted",
            [(seq, *_delivery_columns(each)) for each in entry.deliveries if each not in known],
        )
        if not is_news:
            self._run("INSERT OR REPLACE INTO outbox VALUES (?, ?)", (seq, version))

    def _put_names(self, seq: int, entry: Entry, before: Entry | None) -> None:
        old, new = self._name_rows(before) if before else {}, self._name_rows(entry)
        if gone := [(label, seq) for label in old if label not in new]:
            self._run_many("DELETE FROM names WHERE reference = ? AND seq = ?", gone)
        if changes := [(label, seq, *row) for label, row in new.items() if old.get(label) != row]:
            self._run_many(
                "INSERT INTO names VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET is_marked = excluded.is_marked,"
                " until_ms = coalesce(until_ms, excluded.until_ms)",  # a window starts with the first mark
                changes,
            )

    def _name_rows(self, entry: Entry) -> dict[str, tuple[bool, int | None]]:
        """Whether a shared name is marked, and until when. Own names are known as long as their entry."""
        rows: dict[str, tuple[bool, int | None]] = dict.fromkeys(
            (reference(name, entry.fingerprint) for name in entry.names), (False, None)
        )
        if len(rows) > len(entry.own):
            shared = (name for name in marked_names(entry) if not name.is_own)
            rows |= {name.label: (True, self._end_of(name, entry)) for name in shared}
        return rows

    def _end_of(self, name: Name, entry: Entry) -> int | None:
        """When the mark of a name ends."""
        if name.kept_ms is None:
            return None
        return (entry.settled_ms or entry.created_ms) + name.kept_ms

    def set_claim(self, entry_id: str, destination: str, owner: str, lease_until_ms: int) -> None:
        """Renews the lease of a claim, or lends a waiting delivery to its owner."""
        self._run(
            "UPDATE deliveries SET owner = ?, lease_until_ms = ? WHERE destination = ?"
            " AND seq = (SELECT seq FROM entries WHERE id = ?)",
            (owner, lease_until_ms, destination, entry_id),
        )

    def set_accepted(self, entry_id: str, destination: str) -> None:
        self._run(
            "UPDATE deliveries SET is_accepted = 1 WHERE destination = ?"
            " AND seq = (SELECT seq FROM entries WHERE id = ?)",
            (destination, entry_id),
        )

    def forget(self, entry: Entry) -> None:
        """Drops the entry and its names, as if it had never been."""
        row = self._run("DELETE FROM entries WHERE id = ? RETURNING seq", (entry.id,)).fetchone()
        if row:
            labels = [(label, row[0]) for label in self._name_rows(entry)]
            self._run_many("DELETE FROM names WHERE reference = ? AND seq = ?", labels)
            for table in ("deliveries", "payloads", "outbox"):
                self._run(f"DELETE FROM {table} WHERE seq = ?", row)  # noqa: S608

    # Stored deliveries whose home is this journal

    def take_due(self, destination: str, limit: int, owner: str, lease_ms: int) -> list[tuple[Entry, int]]:
        """Entries with a delivery there whose time has come, now its owner's, and how often each was begun before."""
        rows = self._run(
            "SELECT d.seq, e.data, d.begins FROM deliveries d JOIN entries e ON e.seq = d.seq"
            " WHERE d.status = 'waiting' AND d.destination = ? AND d.next_try_ms <= ? AND d.lease_until_ms <= ?"
            " ORDER BY d.next_try_ms LIMIT ?",
            (destination, self.now_ms, self.steady_ms, limit),
        ).fetchall()
        until_ms = self.steady_ms + lease_ms
        self._run_many(
            "UPDATE deliveries SET owner = ?, lease_until_ms = ?, begins = begins + 1"
            " WHERE seq = ? AND destination = ?",
            [(owner, until_ms, seq, destination) for seq, _, _ in rows],
        )
        return [(self._whole(seq, data), begins) for seq, data, begins in rows]

    def end_begins(self, entry_id: str, destination: str) -> None:
        """An attempt had an outcome: the count of those in which the process died starts again."""
        self._run(
            "UPDATE deliveries SET begins = 0 WHERE destination = ? AND seq = (SELECT seq FROM entries WHERE id = ?)",
            (destination, entry_id),
        )

    # Payloads

    def put_payload(self, entry_id: str, content: bytes) -> None:
        self._run(
            "INSERT OR REPLACE INTO payloads SELECT seq, ?, ? FROM entries WHERE id = ?",
            (len(content), content, entry_id),
        )

    def payload(self, entry_id: str) -> bytes | None:
        row = self._run(
            "SELECT p.content FROM payloads p JOIN entries e ON e.seq = p.seq WHERE e.id = ?", (entry_id,)
        ).fetchone()
        return row[0] if row else None

    def drop_payload(self, entry_id: str) -> None:
        self._run("DELETE FROM payloads WHERE seq = (SELECT seq FROM entries WHERE id = ?)", (entry_id,))

    # Marks and resets

    def put_mark(self, label: str, fingerprint: str | None, until_ms: int | None) -> None:
        self._run(
            "INSERT INTO marks VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET"
            " fingerprint = coalesce(fingerprint, excluded.fingerprint)",
            (label, fingerprint, until_ms),
        )

    def reset(self, label: str, number: int) -> None:
        """Forgets what is older than this reset of the name. What is open counts as newer (rule 22)."""
        self._run(
            "INSERT INTO resets VALUES (?, ?) ON CONFLICT DO UPDATE SET number = max(number, excluded.number)",
            (label, number),
        )
        self._run("DELETE FROM marks WHERE reference = ?", (label,))
        condition = "seq IN (SELECT seq FROM names WHERE reference = ?) AND reset < ?"
        for _, entry in self.read_rows(condition, (label, number)):
            name = next((each for each in entry.names if reference(each, entry.fingerprint) == label), None)
            if name is None:
                continue
            if entry.is_open:
                self.put(changed(entry, reset=number), entry, is_news=True)
            elif name.is_own:
                self.forget(entry)
            else:  # of a group, the group alone is freed
                self._run("DELETE FROM names WHERE reference = ?", (label,))
                shared = tuple(each for each in entry.shared if each != name)
                deliveries = tuple(changed(d, content=None) if d.content == name else d for d in entry.deliveries)
                self.put(changed(entry, shared=shared, deliveries=deliveries), entry, is_news=True)

    def has_open(self, label: str) -> bool:
        """Something under that name is being delivered, or is still to be."""
        query = (
            "SELECT 1 FROM names n JOIN deliveries d ON d.seq = n.seq WHERE n.reference = ?"
            " AND (d.status = 'waiting' OR (d.status = 'claimed' AND d.lease_until_ms > ?))"
        )
        return self._run(query, (label, self.steady_ms)).fetchone() is not None

    def latest_reset(self, labels: Sequence[str]) -> int:
        places = ",".join("?" * len(labels))
        row = self._run(f"SELECT max(number) FROM resets WHERE reference IN ({places})", labels).fetchone()  # noqa: S608
        return row[0] or 0

    def marks_after(self, label: str, limit: int) -> list[tuple[str, int | None]]:
        query = "SELECT reference, until_ms FROM marks WHERE reference > ? ORDER BY reference LIMIT ?"
        return self._run(query, (label, limit)).fetchall()

    def last_seq(self) -> int:
        return int(self._run("SELECT max(seq) FROM entries").fetchone()[0] or 0)

    def resets_since(self, number: int, limit: int) -> list[tuple[str, int]]:
        return self._run(
            "SELECT reference, number FROM resets WHERE number > ? ORDER BY number LIMIT ?", (number, limit)
        ).fetchall()

    def note_request(self, request_id: str) -> bool:
        """True for the first who asks: a request on the stream is executed once (rule 11)."""
        return self._run("INSERT OR IGNORE INTO requests VALUES (?, ?)", (request_id, self.now_ms)).rowcount == 1

    # Publishing and following

    def outbox(self, limit: int, entry_id: str = "") -> list[tuple[int, int, Entry]]:
        """What Redis has not heard of as it is now, oldest first: number, version, and entry. Only ``entry_id``, if it
        is given."""
        which = "WHERE e.id = ?" if entry_id else ""
        rows = self._run(
            "SELECT o.seq, o.version, e.data FROM outbox o JOIN entries e ON e.seq = o.seq"  # noqa: S608
            f" {which} ORDER BY o.seq LIMIT ?",
            (entry_id, limit) if entry_id else (limit,),
        ).fetchall()
        return [(seq, version, self._whole(seq, data)) for seq, version, data in rows]

    def end_outbox(self, rows: Iterable[tuple[int, int]]) -> None:
        """Only where the entry has not changed since it was read (rule 9)."""
        self._run_many("DELETE FROM outbox WHERE seq = ? AND version = ?", rows)

    def add_repeats(self, entry: str, machine: str, count: int, last_ms: int, *, is_sum: bool = False) -> int:
        """Counts repeats of an entry on a machine; the sum so far. ``is_sum``: another machine's own sum."""
        old = "max(count, excluded.count)" if is_sum else "count + excluded.count"
        row = self._run(
            f"INSERT INTO repeats VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET count = {old},"  # noqa: S608
            " last_ms = max(last_ms, excluded.last_ms) RETURNING count",
            (entry, machine, count, last_ms),
        ).fetchone()
        return int(row[0])

    def repeats_of(self, entry: str) -> int:
        return int(self._run("SELECT total(count) FROM repeats WHERE entry = ?", (entry,)).fetchone()[0])

    def notes(self) -> dict[str, tuple[int, str]]:
        """Small texts that all machines share, each with its time."""
        return {key: (at_ms, value) for key, value, at_ms in self._run("SELECT key, value, at_ms FROM notes")}

    def put_note(self, key: str, value: str, at_ms: int | None = None) -> None:
        """Without ``at_ms`` it is new, and later than the one that is known."""
        known = self._run("SELECT at_ms FROM notes WHERE key = ?", (key,)).fetchone()
        latest = max(self.now_ms, known[0] + 1 if known else 0) if at_ms is None else at_ms
        self._run("INSERT OR REPLACE INTO notes VALUES (?, ?, ?)", (key, value, latest))

    def meta(self, key: str) -> str:
        return _meta(self._connection, key) or ""

    def set_meta(self, key: str, value: str) -> None:
        _set_meta(self._connection, key, value)

    # Keeping it small

    def purge(self, entry_ms: int, dead_ms: int) -> int:
        """Ends entries that are kept no longer, a few at a time: their names remain as marks. How many there were."""
        rows = self.read_rows(
            "created_ms < ? AND NOT EXISTS (SELECT 1 FROM deliveries d WHERE d.seq = entries.seq AND"
            " (d.status IN ('waiting', 'claimed') OR (d.status = 'dead' AND d.ended_ms > ?)))"
            " ORDER BY created_ms LIMIT ?",
            (self.now_ms - entry_ms, self.now_ms - dead_ms, PURGED_AT_ONCE),
        )
        for _, entry in rows:
            for name in marked_names(entry):
                until_ms = self._end_of(name, entry)
                if not name.needs_agreement and (until_ms is None or until_ms > self.now_ms):
                    self.put_mark(name.label, entry.fingerprint if name.is_own else None, until_ms)
            self.forget(entry)
        for statement in (
            "DELETE FROM marks WHERE until_ms <= ?",
            "DELETE FROM proofs WHERE until_ms <= ?",
        ):
            self._run(statement, (self.now_ms,))
        self._run("DELETE FROM requests WHERE at_ms < ?", (self.now_ms - entry_ms,))
        self._run("DELETE FROM resets WHERE number < ?", ((self.now_ms - RESETS_KEPT_MS) * 1000,))
        return len(rows)


class _NameBuilder:
    """Collects the rows of one name: an entry has one for each of its deliveries."""

    def __init__(self) -> None:
        self.is_marked = False
        self.kept_fingerprint: str | None = None
        self.reset = 0
        self._entries: dict[str, tuple[list[Any], list[Delivery]]] = {}

    def add(self, is_marked: bool, row: list[Any]) -> None:
        self.is_marked = self.is_marked or bool(is_marked)
        (*head, destination, status, generation, webhook_id, waits, owner, lease, accepted) = row
        deliveries = self._entries.setdefault(head[0], (head, []))[1]
        if destination is not None:
            deliveries.append(
                Delivery(
                    destination,
                    webhook_id,
                    _STATUSES[status],
                    generation,
                    waits_for=_SOME_NAME if waits else None,
                    owner=owner,
                    lease_until_ms=lease,
                    is_accepted=bool(accepted),
                )
            )

    def build(self) -> NameState:
        entries = tuple(
            Entry(
                id=head[0],
                machine=head[1],
                own=(),
                fingerprint=head[3],
                created_ms=head[2],
                reset=head[4],
                deliveries=tuple(deliveries),
                answer=head[5],
            )
            for head, deliveries in self._entries.values()
        )
        return NameState(self.is_marked, entries, self.kept_fingerprint, self.reset)


_SOME_NAME = Name(Kind.LOCK, "", "")  # which name it waits for is read with the whole entry


def _delivery_columns(delivery: Delivery) -> tuple[Any, ...]:
    return (
        delivery.destination,
        delivery.status,
        delivery.generation,
        delivery.webhook_id,
        delivery.next_try_ms,
        delivery.ended_ms,
        delivery.waits_for is not None,
        delivery.owner,
        delivery.lease_until_ms,
        delivery.is_accepted,
    )


def _meta(connection: sqlite3.Connection, key: str) -> str | None:
    row = connection.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
    return row[0] if row else None


def _set_meta(connection: sqlite3.Connection, key: str, value: str) -> None:
    connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))


def host_id() -> str:
    """Changes when the folder is copied to another host; where the system has no such id, the host's name."""
    for path in (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id")):
        with suppress(OSError):
            if text := path.read_text().strip():
                return text
    return os.uname().nodename


def translated(error: sqlite3.Error) -> StoreUnavailable | StoreMisconfigured:
    """A damaged file is not cured by waiting; a full disk or a lock held for too long may be."""
    if isinstance(error, sqlite3.OperationalError):
        return StoreUnavailable(f"the journal cannot be used now: {error}")
    return StoreMisconfigured(f"the journal cannot be used: {error}")
