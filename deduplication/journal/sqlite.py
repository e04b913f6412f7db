"""The journal of one machine: one SQLite file, used by all its processes. It stores data; rules.py decides.

Transactions that write hold one lock and are short. Readers never wait. A ``Step`` is an open transaction.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache, partial
from importlib import resources
from operator import attrgetter
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from deduplication.clock import Clock, boot_id, host_id, system_clock
from deduplication.errors import StoreMisconfigured, StoreUnavailable
from deduplication.files import DAY_MS, Retention, check_free_space, make_private, network_disk, run_when_unlocked
from deduplication.journal.entry import DeliveryStatus, Entry, decode, encode
from deduplication.journal.rules import HELD, Known, NameState, names_to_mark, references, without_name
from deduplication.names import WEEK_MS, Name, shortened
from deduplication.subject_group import GroupScope, scope_of

BUSY_TIMEOUT_S = 5.0
SCHEMA_VERSION = "11"
PURGED_AT_ONCE = 200
PACED_S, FIRST_AFTER_OUTAGE = 12, 2  # deliveries in the first second; twice as many in each second after it
MOST_ROWS, MOST_COMPARED = 1_000, 100  # rows of names, and entries, that one item is compared with
RESETS_KEPT_MS = 32 * DAY_MS
Values = Sequence[Any] | Mapping[str, Any]  # of parameters, by position or by name
_COLUMNS = (
    *("destination", "status", "generation", "webhook_id", "next_try_ms", "ended_ms"),
    *("owner", "lease_until_ms"),
)
_columns_of = attrgetter(*_COLUMNS)
_ENTRY_COLUMNS = (
    *("id", "machine", "created_ms", "fingerprint", "reset", "answer"),
    *("gate", "provider", "route", "outcome", "outcomes", "data"),
)
_PUT_ENTRY = (
    f"INSERT INTO entries ({', '.join(_ENTRY_COLUMNS)}, unpublished, version)"  # noqa: S608
    f" VALUES ({'?, ' * len(_ENTRY_COLUMNS)}?, 1) ON CONFLICT (id) DO UPDATE SET"
    f" {', '.join(f'{column} = excluded.{column}' for column in _ENTRY_COLUMNS[3:])}, version = version + 1,"
    " unpublished = iif(excluded.unpublished, version + 1, unpublished) RETURNING seq, version"
)
_PUT_DELIVERY = (
    f"INSERT INTO deliveries (seq, {', '.join(_COLUMNS)}) VALUES (?{', ?' * len(_COLUMNS)}) ON CONFLICT DO"  # noqa: S608
    f" UPDATE SET {', '.join(f'{column} = excluded.{column}' for column in _COLUMNS[1:])}"
)


class Journal:
    """``machine`` is the random name of this journal. A copy on another host gets a new name. ``publishes``: it has an
    outbox, for a fleet."""

    publishes = False

    def __init__(
        self, path: Path | str, clock: Clock | None = None, host: str | None = None, retention: Retention | None = None
    ) -> None:
        self._path = str(path)
        self.retention = retention or Retention()
        self.check_disk = partial(check_free_space, Path(path).parent, self.retention.disk_free_bytes)
        self._writer_lock = threading.Lock()
        self._readers: list[sqlite3.Connection] = []
        self._sync_lock = threading.Lock()
        self._written = self._synced = 0
        self._is_memory = self._path == ":memory:"
        self._is_closed = False
        try:
            if not self._is_memory:
                if kind := network_disk(Path(path).parent):
                    raise StoreMisconfigured(f"DATA_DIR must be on a disk of this machine, not on {kind}")
                with suppress(FileExistsError):
                    os.close(os.open(self._path, os.O_CREAT | os.O_EXCL, 0o600))
                for suffix in ("", "-wal", "-shm"):
                    make_private(Path(f"{self._path}{suffix}"))
            self._writer = self._connect()
            self._writer.execute("PRAGMA busy_timeout = 0")  # because run_when_unlocked waits
            self.machine, self.clock = "", clock or system_clock()
            boot = self._prepare(host or host_id())
        except sqlite3.Error as error:
            raise translate_error(error) from error
        self.clock = clock or system_clock(boot)

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self._path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False, cached_statements=256
        )
        # SQLite does not wait for the lock of this change: of processes that created a file at once, some failed.
        run_when_unlocked(connection, "PRAGMA journal_mode = WAL", pause_s=0.02)
        connection.execute(
            "PRAGMA synchronous = NORMAL"
        )  # survives a crash of the process; ``sync`` survives a power cut
        connection.execute("PRAGMA cache_size = -256")  # in KB, for each of a dozen connections; the system caches too
        connection.execute("PRAGMA wal_autocheckpoint = 8000")  # 32 MB, as a checkpoint waits for the disk
        return connection

    def _prepare(self, host: str) -> int:
        """Creates the tables, names the machine, and counts its boots. Leases of an earlier boot have ended."""
        run = self._writer.execute
        run_when_unlocked(self._writer, "BEGIN IMMEDIATE")
        tables = {name for (name,) in run("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if not tables:
            statement = ""
            for line in resources.files(__package__).joinpath("schema.sql").read_text().splitlines(keepends=True):
                statement += line
                if sqlite3.complete_statement(statement):
                    run(statement)
                    statement = ""
            run("INSERT INTO meta VALUES ('schema', ?)", (SCHEMA_VERSION,))
        step = Step(self._writer, self)
        if "meta" not in (tables or ("meta",)) or step.meta("schema") != SCHEMA_VERSION:
            self._writer.close()
            raise StoreMisconfigured(
                f"{self._path} was written by another version of Mailonce; set DATA_DIR to a new folder"
            )
        if step.meta("host") != host:
            step.set_meta("host", host)
            step.set_meta("machine", secrets.token_hex(5))
        boot = int(step.meta("boot_count") or 0)
        if step.meta("boot") != boot_id():
            boot += 1
            step.set_meta("boot", boot_id())
            step.set_meta("boot_count", str(boot))
        self.machine = step.meta("machine")
        run("COMMIT")
        return boot

    @contextmanager
    def step(self) -> Iterator[Step]:
        """A transaction that may write. Raises StoreUnavailable if that is impossible; then nothing has changed."""
        with self._writer_lock:
            try:
                if self._is_closed:
                    raise sqlite3.OperationalError("it is closed")
                run_when_unlocked(self._writer, "BEGIN IMMEDIATE")
                yield Step(self._writer, self)
                self._writer.execute("COMMIT")
                self._written += 1
            except BaseException as error:
                if not self._is_closed and self._writer.in_transaction:
                    with suppress(sqlite3.Error):
                        self._writer.execute("ROLLBACK")
                if isinstance(error, sqlite3.Error):
                    raise translate_error(error) from error
                raise

    @contextmanager
    def reading(self) -> Iterator[Step]:
        """A transaction that sees what was committed when it began. Keep it short: a long read stops checkpoints."""
        if self._is_memory:
            with self._writer_lock:
                yield Step(self._writer, self)
            return
        try:
            if self._is_closed:
                raise sqlite3.OperationalError("it is closed")
            try:
                connection = self._readers.pop()  # another thread may take the last one after a check
            except IndexError:
                connection = self._connect()
            try:
                yield Step(connection, self)
            finally:
                connection.close() if self._is_closed else self._readers.append(connection)
        except sqlite3.Error as error:
            raise translate_error(error) from error

    def sync(self) -> None:
        """Returns once everything committed before the call is on the disk. Concurrent callers share one fsync."""
        if self._is_memory:
            return
        wanted = self._written
        with self._sync_lock:
            if self._synced >= wanted:
                return
            reached = self._written
            try:
                # Never open the database file itself: closing it would drop SQLite's locks on it.
                log = os.open(f"{self._path}-wal", os.O_RDONLY)
                try:
                    os.fsync(log)
                finally:
                    os.close(log)
            except OSError as error:
                raise StoreUnavailable(f"DATA_DIR cannot be written: {error}") from error
            self._synced = reached

    def close(self) -> None:
        """May be called twice, and while other threads read or write: they finish first."""
        self._is_closed = True
        with suppress(IndexError):
            while True:
                self._readers.pop().close()
        with self._writer_lock:
            self._writer.close()


class Step:
    """An open transaction, and everything that can be read or written in it."""

    def __init__(self, connection: sqlite3.Connection, journal: Journal) -> None:
        self._run = connection.execute
        self._run_many = connection.executemany
        self._retention = journal.retention
        self._has_outbox = journal.publishes
        self.machine = journal.machine
        self.now_ms = journal.clock.now_ms()
        self.steady_ms = journal.clock.steady_ms()

    def query(self, sql: str, values: Values = ()) -> list[tuple[Any, ...]]:
        """All rows of a query, which must bound their number."""
        return self._run(sql, values).fetchall()

    # What is known of names

    def known(self, names: Sequence[Name], fingerprint: str = "", proof: str = "") -> Known:
        """Everything that a judgement of an item with these names is based on."""
        labels = references(names, fingerprint)
        rows = self._run(_names_sql(len(labels)), (*labels,)).fetchall()
        if len(rows) == MOST_ROWS:  # a sender uses one name for many emails
            rows = self._run(_names_sql(len(labels), is_crowded=True), (*labels, *labels, fingerprint)).fetchall()
        seqs = {seq for _, seq, *_ in rows if seq > 0}
        entries = dict(self.read_rows(_one_of("seq", len(seqs)), (*seqs,))) if seqs else {}
        found: dict[str, dict[str, Any]] = {}
        for label, seq, short, is_marked, until_ms, id_, created_ms in rows:
            state = found.setdefault(labels[label].label, {"entries": (), "is_marked": False, "ended": ()})
            is_valid = bool(is_marked) and (until_ms is None or until_ms > self.now_ms)
            state["is_marked"] = state["is_marked"] or is_valid
            if seq > 0:
                state["entries"] += (entries[seq],)
            elif seq < 0:
                state["reset"] = until_ms
            elif is_valid:
                state["ended"] += (Entry(id_, "", (), created_ms, short),) if id_ or short else ()
                state["is_foreign"] = not short or state.get("is_foreign", False)
        states = {label: NameState(**state) for label, state in found.items()}
        return Known(states, self.steady_ms, self.proven(proof) if proof else "")

    def proven(self, proof: str) -> str:
        """The key of the email that a proof of origin was used with; "" if there is none (28)."""
        rows = self.query("SELECT key FROM proofs WHERE proof = ? AND until_ms > ?", (proof, self.now_ms))
        return str(rows[0][0]) if rows else ""

    def put_proof(self, proof: str, key: str, until_ms: int) -> bool:
        """False if it was used with another email; then nothing is written."""
        rows = self.query(
            "INSERT INTO proofs VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET key = excluded.key,"
            " until_ms = max(until_ms, excluded.until_ms) WHERE until_ms <= ? OR ltrim(key, ?) = ? RETURNING 1",
            (proof, key, until_ms, self.now_ms, HELD, key.removeprefix(HELD)),
        )
        return bool(rows)

    # Entries

    def read(self, entry_id: str) -> Entry | None:
        rows = self.read_rows("id = ?", (entry_id,))
        return rows[0][1] if rows else None

    def read_rows(self, where: str, values: Values) -> list[tuple[int, Entry]]:
        """Entries by a condition (never from outside), with their numbers. The caller bounds their number."""
        rows = self._run(f"SELECT seq, data FROM entries WHERE {where}", values).fetchall()  # noqa: S608
        return [(seq, decode(data)) for seq, data in rows]

    def put(self, entry: Entry, before: Entry | None, *, publishes: bool = True) -> tuple[int, int]:
        """Writes an entry. ``before`` is the entry as it is in the journal, None if it is new. If it ``publishes``, the
        entry goes to the outbox of the journal, if that has one. Returns its number and its version."""
        gate = entry.stop.gate.value if entry.stop else ""
        outcomes = "".join(f" {delivery.destination}={delivery.status}" for delivery in entry.deliveries)
        found_by = (gate, entry.about.provider, entry.about.route, entry.outcome, f"{outcomes} ")
        columns = (entry.id, entry.machine, entry.created_ms, entry.fingerprint, entry.reset, entry.answer, *found_by)
        seq, version = self._run(_PUT_ENTRY, (*columns, encode(entry), publishes and self._has_outbox)).fetchone()
        if before is None or before.own != entry.own or len(before.names) + len(entry.names) > 2 * len(entry.own):
            self._put_names(seq, entry, before)
        if before is None and entry.stop and entry.stop.name.is_own:
            self.put_mark(entry.stop.name.label, self.end_of(entry.stop.name, entry))
        if entry.proof and entry.settled_ms:
            proof, key = entry.proof.split("=")
            self.put_proof(proof, key, entry.settled_ms + WEEK_MS)
        known = before.deliveries if before else ()
        self._run_many(
            _PUT_DELIVERY,
            [(seq, *_columns_of(delivery)) for delivery in entry.deliveries if delivery not in known],
        )
        return seq, version

    def _put_names(self, seq: int, entry: Entry, before: Entry | None) -> None:
        old, new = self._name_rows(before) if before else {}, self._name_rows(entry)
        if gone := [(label, seq) for label in old if label not in new]:
            self._run_many("DELETE FROM names WHERE reference = ? AND seq = ?", gone)
        if changes := [(label, seq, *row) for label, row in new.items() if old.get(label) != row]:
            self._run_many(
                "INSERT INTO names VALUES (?, ?, '', ?, ?, '', 0) ON CONFLICT DO UPDATE SET"
                # The first mark starts the window.
                " is_marked = excluded.is_marked, until_ms = coalesce(until_ms, excluded.until_ms)",
                changes,
            )

    def _name_rows(self, entry: Entry) -> dict[str, tuple[bool, int | None]]:
        """Whether a shared name is marked, and until when. Own names are kept as long as their entry."""
        rows: dict[str, tuple[bool, int | None]] = dict.fromkeys(
            references(entry.names, entry.fingerprint), (False, None)
        )
        if len(rows) > len(entry.own):
            shared = (name for name in names_to_mark(entry) if not name.is_own)
            rows |= {name.label: (True, self.end_of(name, entry)) for name in shared}
        return rows

    def end_of(self, name: Name, entry: Entry) -> int | None:
        """When the mark of a name ends."""
        return None if name.kept_ms is None else (entry.settled_ms or entry.created_ms) + name.kept_ms

    def forget(self, entry: Entry) -> None:
        """Deletes the entry and its names."""
        row = self._run("DELETE FROM entries WHERE id = ? RETURNING seq", (entry.id,)).fetchone()
        if row:
            labels = [(label, row[0]) for label in self._name_rows(entry)]
            self._run_many("DELETE FROM names WHERE reference = ? AND seq = ?", labels)
            for table in ("deliveries", "payloads"):
                self._run(f"DELETE FROM {table} WHERE seq = ?", row)  # noqa: S608

    # Deliveries that are stored in this journal

    def take_due(self, destination: str, limit: int, owner: str, lease_ms: int) -> list[Entry]:
        """Lends due deliveries to an owner. Returns their entries, which count the attempt that begins now."""
        started, given = map(int, (self.meta(f"pace:{destination}") or "0 0").split())
        if (seconds := (self.steady_ms - started) // 1000) <= PACED_S:
            limit = max(0, min(limit, FIRST_AFTER_OUTAGE * ((2 << seconds) - 1) - given))
        rows = self._run(
            "SELECT d.seq, d.next_try_ms, e.data FROM deliveries d JOIN entries e ON e.seq = d.seq"
            " WHERE d.status = 'waiting' AND d.destination = ? AND d.next_try_ms <= ? AND d.lease_until_ms <= ?"
            " ORDER BY d.next_try_ms LIMIT ?",
            (destination, self.now_ms, self.steady_ms, limit),
        ).fetchall()
        if rows and seconds <= PACED_S:
            self.set_meta(f"pace:{destination}", f"{started} {given + len(rows)}")
        lent = []
        for seq, next_try_ms, data in rows:
            entry = decode(data)
            delivery = entry.by_destination[destination]
            lease = {"owner": owner, "lease_until_ms": self.steady_ms + lease_ms, "begins": delivery.begins + 1}
            lent.append(entry.with_delivery(replace(delivery, **lease)))
            self.put(lent[-1], entry, publishes=False)
            hastened = "UPDATE deliveries SET next_try_ms = ? WHERE seq = ? AND destination = ?"
            self._run(hastened, (next_try_ms, seq, destination))  # if the process dies, it is due as before
        return lent

    def hasten(self, destination: str, limit: int) -> int:
        """Makes waiting deliveries due now, in the order of their time, except lent ones, and returns how many. For
        twelve seconds they are handed out at a growing pace."""
        self.set_meta(f"pace:{destination}", f"{self.steady_ms} 0")
        return self._run(
            "UPDATE deliveries SET next_try_ms = ? WHERE destination = ? AND seq IN (SELECT seq FROM deliveries"
            " WHERE status = 'waiting' AND destination = ? AND next_try_ms > ? AND lease_until_ms <= ?"
            " ORDER BY next_try_ms LIMIT ?)",
            (self.now_ms, destination, destination, self.now_ms, self.steady_ms, limit),
        ).rowcount

    def make_due(self, entry_id: str, destination: str) -> bool:
        """Makes it the next one that is handed out. False if it is lent, or does not wait."""
        rows = self.query(
            "UPDATE deliveries SET next_try_ms = 0 WHERE destination = ? AND seq = (SELECT seq FROM entries WHERE"
            " id = ?) AND status = 'waiting' AND lease_until_ms <= ? RETURNING 1",
            (destination, entry_id, self.steady_ms),
        )
        return bool(rows)

    # Payloads

    def put_payload(self, entry: Entry, content: bytes) -> None:
        """Keeps the payload until it is delivered. Of suppressed emails, the newest of each sender domain are kept
        within a quota, and all machines learn which ones can no longer be released."""
        is_ended = entry.is_delivered_everywhere
        ends_ms = self.now_ms + self._retention.delivered_payload_ms if is_ended else None
        is_suppressed = entry.statuses <= {DeliveryStatus.SKIPPED}
        domain = scope_of(entry.about.sender.lower(), GroupScope.DOMAIN) if is_suppressed else ""
        self._run(
            "INSERT OR REPLACE INTO payloads SELECT seq, ?, ?, ?, ? FROM entries WHERE id = ?",
            (len(content), ends_ms, domain, content, entry.id),
        )
        if domain:
            evicted = self.query(
                "DELETE FROM payloads WHERE seq IN (SELECT seq FROM (SELECT seq, sum(size) OVER (ORDER BY seq DESC)"
                " AS used FROM payloads WHERE domain = ?) WHERE used > ?) AND EXISTS (SELECT 1 FROM entries e"
                " WHERE e.seq = payloads.seq AND outcome = 'skipped') RETURNING seq",  # unless it was released since
                (domain, self._retention.suppressed_bytes),
            )
            for row in evicted:
                for _, before in self.read_rows("seq = ?", row):
                    self.put(replace(before, is_evicted=True), before)

    def payload(self, entry_id: str) -> bytes | None:
        query = "SELECT content FROM payloads WHERE seq = (SELECT seq FROM entries WHERE id = ?)"
        rows = self.query(query, (entry_id,))
        return rows[0][0] if rows else None

    def end_payload(self, entry_id: str) -> None:
        """Ends the payload of an entry that was delivered everywhere."""
        kept_ms, where = self._retention.delivered_payload_ms, "WHERE seq = (SELECT seq FROM entries WHERE id = ?)"
        if kept_ms:
            self._run(f"UPDATE payloads SET ends_ms = ? {where}", (self.now_ms + kept_ms, entry_id))  # noqa: S608
        else:
            self._run(f"DELETE FROM payloads {where}", (entry_id,))  # noqa: S608

    # Marks and resets

    def put_mark(
        self, label: str, until_ms: int | None, fingerprint: str = "", entry_id: str = "", created_ms: int = 0
    ) -> None:
        """Marks a name for an email with that fingerprint. Shared names and foreign marks have no fingerprint."""
        if fingerprint:  # the foreign mark is now explained
            self._run("DELETE FROM names WHERE reference = ? AND seq = 0 AND fingerprint = ''", (label,))
        self._run(
            "INSERT INTO names VALUES (?, 0, ?, 1, ?, ?, ?) ON CONFLICT DO UPDATE SET"
            " until_ms = iif(until_ms <= ?, excluded.until_ms, until_ms)",
            (label, shortened(fingerprint), until_ms, entry_id, created_ms, self.now_ms),
        )

    def put_foreign_mark(self, label: str, until_ms: int | None) -> None:
        """A mark by another program or an import. It changes nothing if an email is known to have the name."""
        known = "SELECT 1 FROM names WHERE reference = ? AND (seq > 0 OR seq = 0 AND coalesce(until_ms, ?) >= ?)"
        if not self.query(known, (label, self.now_ms, self.now_ms)):
            self.put_mark(label, until_ms)

    def note_reset(self, label: str, number: int) -> None:
        """Entries older than this reset of the name are not accepted any more (rule 22)."""
        self._run(
            "INSERT INTO names VALUES (?, -1, '', 0, ?, '', 0)"
            " ON CONFLICT DO UPDATE SET until_ms = max(until_ms, excluded.until_ms)",
            (label, number),
        )

    def latest_reset(self, labels: Sequence[str]) -> int:
        resets = f"SELECT max(until_ms) FROM names WHERE {_one_of('reference', len(labels))} AND seq = -1"  # noqa: S608
        return self.query(resets, labels)[0][0] or 0

    def reset(self, label: str, number: int) -> None:
        """Forgets entries older than this reset of the name. Busy ones count as newer (rule 22)."""
        self.note_reset(label, number)
        self._run("DELETE FROM names WHERE reference = ? AND seq = 0", (label,))
        condition = "seq IN (SELECT seq FROM names WHERE reference = ?) AND reset < ?"
        for _, entry in self.read_rows(condition, (label, number)):
            name = references(entry.names, entry.fingerprint).get(label)
            if name is None:
                continue
            if entry.is_busy(self.steady_ms):
                self.put(replace(entry, reset=number), entry, publishes=False)
            elif name.is_own:
                self.forget(entry)
            else:
                self._run("DELETE FROM names WHERE reference = ? AND seq > 0", (label,))
                self.put(without_name(entry, name), entry, publishes=False)

    def last_seq(self) -> int:
        return int(self.query("SELECT max(seq) FROM entries")[0][0] or 0)

    # Publishing and following

    def outbox(self, limit: int, entry_id: str = "") -> list[tuple[int, int, Entry]]:
        """Entries to publish, oldest first: number, version, and entry. Only that of ``entry_id``, if it is given."""
        which = "WHERE unpublished AND id = ?" if entry_id else "INDEXED BY entries_unpublished WHERE unpublished"
        rows = self._run(
            f"SELECT seq, unpublished, data FROM entries {which} ORDER BY seq LIMIT ?",  # noqa: S608
            (entry_id, limit) if entry_id else (limit,),
        ).fetchall()
        return [(seq, version, decode(data)) for seq, version, data in rows]

    def end_outbox(self, rows: Iterable[tuple[int, int]]) -> None:
        """Removes entries that have not changed since they were read (rule 9)."""
        self._run_many("UPDATE entries SET unpublished = 0 WHERE seq = ? AND unpublished = ?", rows)

    def add_repeats(self, entry: str, machine: str, count: int, last_ms: int, *, is_sum: bool = False) -> int:
        """Adds to the repeats of an entry on a machine, and returns the sum. ``is_sum``: ``count`` is another machine's
        sum."""
        old = "max(count, excluded.count)" if is_sum else "count + excluded.count"
        row = self._run(
            f"INSERT INTO repeats VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET count = {old},"  # noqa: S608
            " last_ms = max(last_ms, excluded.last_ms) RETURNING count",
            (entry, machine, count, last_ms),
        ).fetchone()
        return int(row[0])

    def meta(self, key: str) -> str:
        row = self._run("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return row[0] if row else ""

    def set_meta(self, key: str, value: str) -> None:
        self._run("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))

    def lead(self, task: str, process: str, length_ms: int) -> bool:
        """Whether this process does a task for its machine. Another one takes over if it does not renew that in
        time."""
        leader, _, until_ms = self.meta(task).partition(" ")
        if leader != process and int(until_ms or 0) > self.steady_ms:
            return False
        self.set_meta(task, f"{process} {self.steady_ms + length_ms}")
        return True

    # Keeping it small

    def purge(self) -> int:
        """Deletes expired entries, a few at a time, and returns how many. Their names remain as marks."""
        rows = self.read_rows(
            "created_ms < ? AND NOT EXISTS (SELECT 1 FROM deliveries d WHERE d.seq = entries.seq AND"
            " (d.status IN ('waiting', 'claimed') OR (d.status = 'dead' AND d.ended_ms > ?)))"
            " ORDER BY created_ms LIMIT ?",
            (self.now_ms - self._retention.entry_ms, self.now_ms - self._retention.dead_ms, PURGED_AT_ONCE),
        )
        for _, entry in rows:
            for name in names_to_mark(entry):
                until_ms = self.end_of(name, entry)
                if entry.stop and entry.stop.name == name:
                    continue  # the foreign mark that stopped it, which it does not explain
                if not name.needs_agreement and (until_ms is None or until_ms > self.now_ms):
                    fingerprint = entry.fingerprint if name.is_own else ""
                    self.put_mark(name.label, until_ms, fingerprint, entry.id, entry.created_ms)
            self.forget(entry)
        for ended in ("names WHERE seq = 0 AND until_ms", "proofs WHERE until_ms", "payloads WHERE ends_ms"):
            self._run(f"DELETE FROM {ended} <= ?", (self.now_ms,))  # noqa: S608
        self._run("DELETE FROM requests WHERE at_ms < ?", (self.now_ms - DAY_MS,))
        resets_before = (self.now_ms - RESETS_KEPT_MS) * 1000
        self._run("DELETE FROM names WHERE seq = -1 AND until_ms < ?", (resets_before,))
        return len(rows)


@lru_cache
def _names_sql(count: int, is_crowded: bool = False) -> str:
    """Of many entries under own names, those with the same fingerprint are compared first, then delivered ones (23).
    Marks, resets, and entries under shared names are all read."""
    names = _one_of("reference", count)
    best = (
        f"SELECT n.seq FROM names n JOIN entries e ON e.seq = n.seq WHERE {names}"  # noqa: S608
        f" ORDER BY e.fingerprint = ? DESC, e.outcome = 'delivered' DESC, n.seq DESC LIMIT {MOST_COMPARED}"
    )
    is_shared = "reference NOT GLOB 'email_id:*' AND reference NOT GLOB 'post:*'"
    return f"SELECT * FROM names WHERE {names}" + (  # noqa: S608
        f" AND (seq <= 0 OR seq IN ({best}) OR {is_shared})" if is_crowded else f" LIMIT {MOST_ROWS}"
    )


def _one_of(column: str, count: int) -> str:
    return f"{column} IN ({','.join('?' * count)})"


def translate_error(error: sqlite3.Error) -> StoreUnavailable | StoreMisconfigured:
    """Waiting does not repair a damaged file, but may help with a full disk or a lock that is held for too long."""
    if isinstance(error, sqlite3.OperationalError):
        return StoreUnavailable(f"the journal cannot be used now: {error}")
    return StoreMisconfigured(f"the journal cannot be used: {error}")
