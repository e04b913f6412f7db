"""The first start after the version before the journal: what that one kept on this disk or on Redis is taken over.

docs/architecture-old.md, "Upgrading", says what an operator does, and what becomes of which record.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar, cast

from deduplication.claims import WEEK_MS, Kind, Name
from deduplication.errors import StoreUnavailable
from deduplication.journal.clock import Clock
from deduplication.journal.entry import DeliveryStatus, Entry, State
from deduplication.journal.old_version import OWN_KINDS, Kept, Record, TakenOver, read_kept, take_over
from deduplication.journal.redis import RedisJournal, translated_errors
from deduplication.journal.sqlite import BUSY_TIMEOUT_S, SqliteJournal
from deduplication.private_files import open_private
from deduplication.redis_client import Client

log = logging.getLogger(__name__)

T = TypeVar("T")

OLD_FILES = ("mailonce.db", "deliveries.db")
_PAGE = 200
_MOST_PAYLOAD_BYTES = 4 << 20  # in one step: Redis serves nobody else meanwhile


def upgrade_folder(data_dir: Path, journal: SqliteJournal) -> int:
    """Takes over what the older version kept in DATA_DIR, and renames its files to ``*.old``. Returns how many entries.

    Everything is taken over in one transaction, or nothing. Several processes that start at once do it once. Raises
    StoreUnavailable while the older version still has its files open.
    """
    trial = data_dir / "trial"  # where it kept what was only printed
    if not _old_files(data_dir) and not _old_files(trial):
        return 0
    with _alone_in(data_dir):
        return _take_over_folder(data_dir, journal) + _take_over_folder(trial, journal, is_trial=True)


def _old_files(folder: Path) -> list[Path]:
    return [folder / name for name in OLD_FILES if (folder / name).exists()]


def _take_over_folder(folder: Path, journal: SqliteJournal, *, is_trial: bool = False) -> int:
    files = _old_files(folder)
    if not files:
        return 0
    note = "upgrade of trial" if is_trial else "upgrade"
    count = 0
    if not journal.memo(note):
        with closing(_OldFolder(folder, journal.now_ms())) as old:
            taken = _with_payloads(take_over(old, journal.now_ms(), is_trial=is_trial), old.payload)
            told = ((each.entry, payload, each.told) for each, payload in taken)
            count = journal.take_over(note, told, () if is_trial else old.marks(), old.fence())
        log.warning("%s: %d entries taken over from the version before", folder, count)
    for file in files:
        file.replace(file.with_name(f"{file.name}.old"))
    journal.set_memo(note, "")  # that it was done is what the names of the files say from now on
    return count


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """The folder itself is locked: no file is left behind."""
    fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _with_payloads(
    taken: Iterable[TakenOver], payload: Callable[[str], bytes | None]
) -> Iterator[tuple[TakenOver, bytes | None]]:
    for each in taken:
        document = payload(each.payload_of) if each.payload_of else None
        yield (replace(each, entry=_described(each.entry, document)) if document else each), document


def _described(entry: Entry, document: bytes) -> Entry:
    told: dict[str, Any] = json.loads(document)
    subject, sender = told.get("subject") or told.get("title"), told.get("sender_email")
    return replace(entry, about=replace(entry.about, subject=subject or "", sender=sender or ""))


# On this disk

_ALIVE = "(expires_ms IS NULL OR expires_ms > :now)"
_COLUMNS = (
    "kind, scope, value, fingerprint, state, owner, item, fence, lease_until_ms, retries_left, first_seen_ms, "
    "stopped_by, original, original_seen_ms, siblings, expires_ms, mirrored_ms"
)
# Of what was settled more than a week ago: only what shares a name with others, or is still to be seen to
_FIRSTS = f"""
SELECT {_COLUMNS} FROM names WHERE siblings <> '[]' AND kind IN ('email_id', 'post') AND {_ALIVE} AND (
    state <> 'done' OR first_seen_ms > :week_ago
    OR item IN (SELECT item FROM names WHERE kind IN ('subject_group', 'media') AND {_ALIVE})
    OR item IN (SELECT json_extract(record, '$.item') FROM deliveries WHERE status IN ('waiting', 'delivering', 'dead'))
) ORDER BY state
"""  # noqa: S608 - constant text
_RECORDS = f"SELECT {_COLUMNS} FROM names WHERE (kind, scope, value) = (:kind, :scope, :value) AND {_ALIVE}"  # noqa: S608
_MARKS = f"""
SELECT kind, scope, value, expires_ms FROM names
WHERE state = 'done' AND kind IN ('email_id', 'post', 'subject_group', 'media', 'content') AND {_ALIVE}
"""  # noqa: S608
_KEPT = f"""
SELECT d.id, record, status, next_try_ms, p.id IS NOT NULL, is_at_redis
FROM deliveries AS d LEFT JOIN payloads AS p ON p.id = d.id WHERE {_ALIVE}
"""  # noqa: S608
# What Redis has too is taken over there, together with its names: a worker's machine knows none of these.
_LEFT_OVER = f"{_KEPT} AND NOT is_at_redis AND (p.id IS NOT NULL OR status = 'delivered')"
_EMPTY = """
CREATE TABLE IF NOT EXISTS names.names (kind, scope, value, fingerprint, state, owner, item, fence, lease_until_ms,
    retries_left, first_seen_ms, stopped_by, original, original_seen_ms, siblings, expires_ms, mirrored_ms);
CREATE TABLE IF NOT EXISTS names.fence (number);
CREATE TABLE IF NOT EXISTS deliveries.deliveries (id, record, status, next_try_ms, expires_ms, is_at_redis);
CREATE TABLE IF NOT EXISTS deliveries.payloads (id, payload);
"""


class _OldFolder:
    """Both files behind one connection, each alone in its file: the older version must not run any more."""

    def __init__(self, folder: Path, now_ms: int) -> None:
        self._times = {"now": now_ms, "week_ago": now_ms - WEEK_MS}
        self._db = open_private(Path(":memory:"), BUSY_TIMEOUT_S)
        for name, schema in zip(OLD_FILES, ("names", "deliveries"), strict=True):
            path = folder / name
            self._db.execute(f"ATTACH ? AS {schema}", (str(path) if path.exists() else ":memory:",))
            try:
                self._db.execute(f"PRAGMA {schema}.journal_mode=DELETE")  # one file, which can be renamed
            except sqlite3.OperationalError as error:
                self._db.close()
                raise StoreUnavailable(f"{path} is in use: stop the older version first ({error})") from error
        self._db.executescript(_EMPTY)

    def pages_of_firsts(self) -> Iterator[list[Record]]:
        rows = self._db.execute(_FIRSTS, self._times)
        while page := rows.fetchmany(_PAGE):
            yield list(map(_record_of_row, page))

    def records(self, names: Iterable[Name]) -> dict[Name, list[Record]]:
        return {name: [_record_of_row(row) for row in self._db.execute(_RECORDS, self._key(name))] for name in names}

    def _key(self, name: Name) -> dict[str, Any]:
        return {"kind": name.kind, "scope": name.scope, "value": name.value, **self._times}

    def kept(self, ids: Iterable[str]) -> dict[str, Kept]:
        query = f"{_KEPT} AND d.id = :id"
        rows = (self._db.execute(query, {"id": each, **self._times}).fetchone() for each in ids)
        return {row[0]: _kept_of_row(row) for row in rows if row}

    def left_over(self, reached: set[str]) -> Iterator[Kept]:
        rows = self._db.execute(_LEFT_OVER, self._times)
        yield from (_kept_of_row(row) for row in rows if row[0] not in reached)

    def payload(self, delivery: str) -> bytes | None:
        row = self._db.execute("SELECT payload FROM payloads WHERE id = ?", (delivery,)).fetchone()
        return str(row[0]).encode() if row else None

    def marks(self) -> Iterator[tuple[Name, int | None]]:
        for kind, scope, value, expires_ms in self._db.execute(_MARKS, self._times):
            yield Name(Kind(kind), scope, value), expires_ms

    def fence(self) -> int:
        return int(self._db.execute("SELECT max(number) FROM fence").fetchone()[0] or 0)

    def close(self) -> None:
        self._db.close()


def _record_of_row(row: Sequence[Any]) -> Record:
    kind, scope, value, fingerprint, state, owner, item, fence, lease, retries, seen, *rest = row
    by, original, original_seen, siblings, expires, mirrored = rest
    return Record(
        name=Name(Kind(kind), scope, value),
        fingerprint=fingerprint,
        state=State(state),
        owner=owner,
        item=item or "",
        fence=fence,
        lease_until_ms=lease,
        retries_left=retries,
        first_seen_ms=seen or 0,
        by=by,
        original=original,
        original_seen_ms=original_seen,
        siblings=tuple(json.loads(siblings)),
        expires_ms=expires,
        is_told=mirrored is not None,
    )


def _kept_of_row(row: Sequence[Any]) -> Kept:
    _, record, status, next_try_ms, has_payload, is_at_redis = row
    return read_kept(record, status, next_try_ms, has_payload=bool(has_payload), is_told=bool(is_at_redis))


# On Redis


def upgrade_redis(client: Client, prefix: str, journal: RedisJournal) -> int:
    """Takes over what the older version kept on Redis, then deletes it; the marks stay. Returns how many entries.

    For the fleet once, which the key ``upgraded`` says; again where an older server has stored a delivery since. Taking
    over twice changes nothing, so it may be cut off or run on two machines at once. ``client`` hands out bytes.
    """
    places = ((prefix, False), (f"{prefix}trial:", True))
    count = 0
    with translated_errors():
        is_new = any(client.exists(f"{where}deliveries:expiring") for where, _ in places)
        if client.exists(f"{prefix}upgraded") and not is_new:
            return 0
        for where, is_trial in places:
            if not client.exists(f"{where}fence"):  # nothing was ever claimed here
                continue
            old = _OldRedis(client, where, journal)
            for page in _pages_by_size(_with_payloads(take_over(old, old.now_ms, is_trial=is_trial), old.payload)):
                journal.merge(page, old.clock, seen=0, names_say_what_is_left=True)
                count += len(page)
            old.delete()
        client.set(f"{prefix}upgraded", 1)
    if count:
        log.warning("Redis: %d entries taken over from the version before", count)
    return count


def _pages_by_size(told: Iterable[tuple[TakenOver, bytes | None]]) -> Iterator[list[tuple[Entry, bytes | None]]]:
    page: list[tuple[Entry, bytes | None]] = []
    size = 0
    for taken, payload in told:
        page.append((taken.entry, payload))
        size += len(payload or b"")
        if len(page) == _PAGE or size > _MOST_PAYLOAD_BYTES:
            yield page
            page, size = [], 0
    if page:
        yield page


class _OldRedis:
    """The keys of the older version under this prefix. What it adds from now on is not touched."""

    def __init__(self, client: Client, prefix: str, journal: RedisJournal) -> None:
        self._client, self._prefix, self._journal = client, prefix, journal
        self.now_ms = journal.now_ms()
        listed = client.zscan_iter(f"{prefix}deliveries:expiring", count=_PAGE)
        self._members = {member.decode().partition(":")[2]: member for member, _ in listed}
        due = client.zscan_iter(f"{prefix}deliveries:due", count=_PAGE)
        self._due = {member.decode().partition(":")[2]: int(next_try_ms) for member, next_try_ms in due}

    @property
    def clock(self) -> Clock:
        """What is taken over has its leases counted from now."""
        return Clock(now_ms=lambda: self.now_ms, steady_ms=lambda: 0)

    def _names(self) -> Iterator[tuple[bytes, Name]]:
        start = f"{self._prefix}claim:"
        for key in self._client.scan_iter(match=re.sub(r"([\\*?\[\]])", r"\\\1", start) + "*", count=_PAGE):
            try:
                yield key, Name.from_label(key.decode().removeprefix(start))
            except ValueError:  # another program's
                continue

    def pages_of_firsts(self) -> Iterator[list[Record]]:
        for page in _pages(name for _, name in self._names() if name.kind in OWN_KINDS):
            yield [record for records in self.records(page).values() for record in records if record.siblings]

    def records(self, names: Iterable[Name]) -> dict[Name, list[Record]]:
        """A name is done only if its mark says so, too."""
        found = {}
        for page in _pages(names):
            for name, (is_marked, stored) in zip(page, self._journal.old_names(page, self._prefix), strict=True):
                records = [_record_of_hash(name, *each) for each in stored.items()]
                counting = [each for each in records if not each.is_over(self.now_ms)]
                found[name] = [each for each in counting if is_marked or each.state is not State.DONE]
        return found

    def kept(self, ids: Iterable[str]) -> dict[str, Kept]:
        found = {}
        for page in _pages(ids):
            with self._client.pipeline(transaction=False) as pipeline:
                for each in page:
                    pipeline.hmget(f"{self._prefix}delivery:{each}", "record", "status")
                    pipeline.exists(f"{self._prefix}delivery_payload:{each}")
                answers = iter(pipeline.execute())
            for each in page:
                (record, status), has_payload = next(answers), next(answers)
                if record:
                    next_try_ms = self._due.get(each)
                    found[each] = read_kept(record, status.decode(), next_try_ms, has_payload=bool(has_payload))
        return found

    def left_over(self, reached: set[str]) -> Iterator[Kept]:
        for page in _pages(each for each in self._members if each not in reached):
            for kept in self.kept(page).values():
                status = kept.delivery.status
                if kept.has_payload and (status.is_open or status is DeliveryStatus.DEAD):
                    yield kept

    def payload(self, delivery: str) -> bytes | None:
        return cast(bytes | None, self._client.get(f"{self._prefix}delivery_payload:{delivery}"))

    def delete(self) -> None:
        """Deliveries before names: without its names, a delivery would be taken for another one if this is cut off and
        done again. The list of them goes last, it says that there is something to do."""
        of_deliveries = (
            self._prefix + key for each in self._members for key in (f"delivery:{each}", f"delivery_payload:{each}")
        )
        for page in _pages(of_deliveries):
            self._client.unlink(*page)
        for keys in _pages(key for key, _ in self._names()):
            self._client.unlink(*keys)
        destinations = cast(set[bytes], self._client.smembers(f"{self._prefix}deliveries:destinations"))
        indexes = [f"{destination.decode()}:{status}" for destination in destinations for status in DeliveryStatus]
        for members in _pages(self._members.values()):
            for index in (*indexes, "due", "expiring"):
                self._client.zrem(f"{self._prefix}deliveries:{index}", *members)
        for key in ("memory", "resets", "deliveries:destinations"):  # an older server that runs on would miss them
            self._client.pexpire(self._prefix + key, WEEK_MS)


def _record_of_hash(name: Name, fingerprint: bytes, stored: bytes) -> Record:
    detail: dict[str, Any] = json.loads(stored)
    return Record(
        name=name,
        fingerprint="" if fingerprint == b"-" else fingerprint.decode(),
        state=State(detail["state"]),
        owner=detail.get("owner", ""),
        item=detail.get("item", ""),
        fence=detail.get("fence", 0),
        lease_until_ms=detail.get("lease_until_ms", 0),
        retries_left=detail.get("retries_left"),
        first_seen_ms=detail.get("first_seen_ms", 0),
        by=detail.get("by"),
        original=detail.get("original"),
        original_seen_ms=detail.get("original_seen_ms"),
        siblings=tuple(detail.get("siblings", ())),
        expires_ms=detail.get("expires_ms"),
    )


def _pages(items: Iterable[T]) -> Iterator[list[T]]:
    remaining = iter(items)
    while page := list(islice(remaining, _PAGE)):
        yield page
