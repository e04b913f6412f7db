"""Attachments and raw emails behind links: kept once for each content, for FILES_DAYS and within FILES_MB.

Rows are in the journal of the machine that received the email, small contents too; large ones are files in DATA_DIR or,
with FILES_URL, objects in S3. Each has a key of its own, so that deleting one can never hit a newer copy.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import logging
import os
import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

from deduplication import members
from deduplication.errors import StoreUnavailable
from deduplication.journal.sqlite import Journal, Step
from deduplication.spool import LARGE_BYTES, Content, chunks_of, read_all
from orchestrator.item import Item
from orchestrator.metrics.meter import FILES, Meter

log = logging.getLogger(__name__)

KEY_NOTE = "files_key:"
PATH = "files"  # of the links, and of the folder in DATA_DIR
STORED, OVER_QUOTA, NO_ROOM, UNAVAILABLE = RESULTS = "stored", "over quota", "no room", "storage unavailable"
RAW_NAME, UNNAMED = "email.eml", "file"
MAX_NAME_CHARS = 100  # in a link: longer ones would not fit into the first line of a request
SWEPT_AT_ONCE = 50
WRITTEN_WITHIN_MS = 3_600_000
AWAY_S = 10.0  # after a failure, S3 is not asked again for so long
_ROOM = "*"  # in place of a domain: all of them
_SAME = "UPDATE files SET until_ms = max(until_ms, ?) WHERE sha256 = ? AND is_stored AND until_ms > 0 RETURNING key"
_MACHINE_BYTES, _KEY_BYTES, _TIME_BYTES, _PROOF_BYTES = 5, 36, 5, 16


class NotStored(Exception):
    """The message is one of RESULTS."""


class Invalid(Exception):
    """It is not a link of this service, or was changed."""


class Gone(Exception):
    """The link has expired, or its file was deleted."""


class Storage(Protocol):
    """Where large contents are. ``is_shared``: all machines of the fleet reach it."""

    is_shared: bool

    def put(self, key: str, content: Content, size_bytes: int) -> None:
        """Returns once it is safe; raises NotStored."""
        ...

    def delete(self, key: str) -> None:
        """One that is not there counts as deleted. Raises OSError if that is impossible for now."""
        ...


@dataclass(frozen=True)
class Folder:
    """``reserve_bytes`` of the disk are left free, so that files never stop emails (DISK_FREE_MB)."""

    path: Path
    reserve_bytes: int
    is_shared = False

    def check(self, size_bytes: int) -> None:
        found = os.statvfs(self.path.parent)
        if found.f_bavail * found.f_frsize < self.reserve_bytes + size_bytes:
            raise NotStored(NO_ROOM)

    def at(self, key: str) -> Path:
        return self.path / key[:2] / key

    def put(self, key: str, content: Content, size_bytes: int) -> None:
        path = self.at(key)
        try:
            self.check(size_bytes)
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                for chunk in chunks_of(content):
                    file.write(chunk)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            log.error("a file cannot be stored in %s: %s", self.path, error)
            with suppress(OSError):
                path.unlink(missing_ok=True)
            raise NotStored(NO_ROOM) from error

    def delete(self, key: str) -> None:
        self.at(key).unlink(missing_ok=True)


@dataclass(frozen=True)
class _Wanted:
    name: str
    content: Content
    sha256: str
    size_bytes: int


@dataclass(frozen=True)
class Found:
    """What a link leads to: contents, a file, or (a text) what S3 calls it."""

    sha256: str
    source: bytes | Path | str


@dataclass(frozen=True)
class Terms:
    """The address of links, and FILES_DAYS and FILES_MB."""

    address: str
    kept_ms: int
    room_bytes: int


class Files:
    """``storage``: S3, or ``folder`` too. Raises StoreUnavailable if the journal cannot be read or written."""

    def __init__(self, journal: Journal, storage: Storage, folder: Folder, terms: Terms, meter: Meter) -> None:
        self.storage = storage
        self._folder = folder
        self._journal = journal
        self._terms = terms
        self._count = meter.count
        self._away_until = 0.0
        self._keys: dict[str, bytes] = {}

    # An email on its way

    def link(self, item: Item, entry: str, domain: str) -> dict[str, Any]:
        """The parts of its payload that have links, once everything they lead to is safe. What cannot be stored is
        ``missing``, which says why; the email does not wait for it."""
        described: Sequence[Mapping[str, Any]] = item.payload["attachments"]
        wanted = [
            _Wanted(each["name"], data, each["sha256"], each["size_bytes"])
            for each, data in zip(described, item.contents, strict=True)
            if data is not None
        ]
        if item.original is not None:
            digest, size_bytes = hashlib.sha256(), 0
            for chunk in chunks_of(item.original):
                digest.update(chunk)
                size_bytes += len(chunk)
            wanted.append(_Wanted(RAW_NAME, item.original, digest.hexdigest(), size_bytes))
        try:
            links = self._keep(wanted, entry, domain)
        except StoreUnavailable as error:
            log.error("entry %s: its files are not stored: %s", entry, error)
            links = [{"missing": UNAVAILABLE} for _ in wanted]
        parts: dict[str, Any] = {}
        if item.original is not None:
            raw = links.pop()
            parts = {"raw_url": raw.get("url"), **({"raw_missing": raw["missing"]} if "missing" in raw else {})}
        left = iter(links)
        attachments = [
            {**each, **(next(left) if data is not None else {})}
            for each, data in zip(described, item.contents, strict=True)
        ]
        return {**parts, "attachments": attachments}

    def _keep(self, wanted: Sequence[_Wanted], entry: str, domain: str) -> list[dict[str, str]]:
        signing_key = self._signing_key(self._journal.machine)
        with self._journal.step() as step:
            until_ms = step.now_ms + self._terms.kept_ms
            rows = [self._reserve(step, each, domain, until_ms) for each in wanted]
            if all(result for _, result in rows):
                self._note(step, entry, wanted, rows)
        if not all(result for _, result in rows):
            written = [self._write(each, *row) for each, row in zip(wanted, rows, strict=True)]
            with self._journal.step() as step:
                ended = zip(wanted, rows, written, strict=True)
                rows = [
                    self._settle(step, each.sha256, row, until_ms) if not before[1] else row
                    for each, before, row in ended
                ]
                self._note(step, entry, wanted, rows)
        return [
            {"url": self._url(signing_key, key, each.name, until_ms)} if result == STORED else {"missing": result}
            for each, (key, result) in zip(wanted, rows, strict=True)
        ]

    def _note(self, step: Step, entry: str, wanted: Sequence[_Wanted], rows: Sequence[tuple[str, str]]) -> None:
        for each, (key, result) in zip(wanted, rows, strict=True):
            values = (entry, each.sha256, *((key, None) if result == STORED else (None, result)))
            step.query("INSERT OR REPLACE INTO file_links VALUES (?, ?, ?, ?)", values)
            self._count((1, FILES, result))

    def _reserve(self, step: Step, file: _Wanted, domain: str, until_ms: int) -> tuple[str, str]:
        """The key of its row, and STORED, or what is in the way; "" if it is to be written."""
        for (key,) in step.query(_SAME, (until_ms, file.sha256)):
            if self._is_in_place(step, key):
                return key, STORED
            step.query("UPDATE files SET is_stored = 0 WHERE key = ?", (key,))  # its links go on working
        used = dict(step.query("SELECT domain, bytes FROM file_room WHERE domain IN (?, ?)", (_ROOM, domain)))
        left = self._terms.room_bytes - used.get(_ROOM, 0) - file.size_bytes
        # As payloads in Redis (rule 19): whoever sends much leaves room for others.
        if used.get(domain, 0) + file.size_bytes > 4 * left:
            return "", OVER_QUOTA
        is_here = file.size_bytes <= LARGE_BYTES and not self.storage.is_shared
        if is_here:
            try:
                self._folder.check(file.size_bytes)
            except (NotStored, OSError):
                return "", NO_ROOM
        key = f"{file.sha256}{secrets.token_hex(4)}"
        content = read_all(file.content) if is_here else None
        ends_ms = until_ms if is_here else step.now_ms + WRITTEN_WITHIN_MS
        row = (key, file.sha256, file.size_bytes, domain, ends_ms, is_here, content)
        step.query("INSERT INTO files VALUES (?, ?, ?, ?, ?, ?, ?)", row)
        return key, STORED if is_here else ""

    def _is_in_place(self, step: Step, key: str) -> bool:
        """FILES_URL may have changed since it was stored, or a file may be lost."""
        is_outside = step.query("SELECT content IS NULL FROM files WHERE key = ?", (key,))[0][0]
        is_on_disk = bool(is_outside) and self._folder.at(key).exists()
        return bool(is_outside) and not is_on_disk if self.storage.is_shared else is_on_disk or not is_outside

    def _write(self, file: _Wanted, key: str, result: str) -> tuple[str, str]:
        if result:
            return key, result
        if time.monotonic() < self._away_until:
            return key, UNAVAILABLE
        try:
            self.storage.put(key, file.content, file.size_bytes)
        except NotStored as error:
            if str(error) == UNAVAILABLE:
                self._away_until = time.monotonic() + AWAY_S
            return key, str(error)
        return key, STORED

    def _settle(self, step: Step, sha256: str, row: tuple[str, str], until_ms: int) -> tuple[str, str]:
        """If another request has stored the same meanwhile, that one counts."""
        key, result = row
        others = step.query(_SAME, (until_ms, sha256))
        if others or result != STORED:
            step.query("UPDATE files SET until_ms = 0 WHERE key = ?", (key,))
        else:
            step.query("UPDATE files SET is_stored = 1, until_ms = ? WHERE key = ?", (until_ms, key))
        return (others[0][0], STORED) if others else row

    # Links: machine, key and expiry, with a proof that covers the name too

    def _signing_key(self, machine: str) -> bytes:
        """Each machine has its own for ever, and all others know it a second later. b"" if it is unknown."""
        if machine in self._keys:
            return self._keys[machine]
        note = f"{KEY_NOTE}{machine}"
        with self._journal.reading() as step:
            known = members.notes(step).get(note)
        if known is None and machine == self._journal.machine:
            with self._journal.step() as step:
                if not (known := members.notes(step).get(note)):
                    members.put_note(step, note, secrets.token_hex(32))
            return self._signing_key(machine)
        if known is None:
            return b""
        self._keys[machine] = bytes.fromhex(known[1])
        return self._keys[machine]

    def _url(self, signing_key: bytes, key: str, name: str, until_ms: int) -> str:
        shown = name.strip(". ")[-MAX_NAME_CHARS:] or UNNAMED
        text = bytes.fromhex(self._journal.machine + key) + (until_ms // 1000).to_bytes(_TIME_BYTES)
        token = base64.urlsafe_b64encode(text + _proof(signing_key, text, shown)).decode().rstrip("=")
        return f"{self._terms.address}/{PATH}/{token}/{quote(shown, safe='')}"

    def find(self, token: str, name: str) -> Found:
        """Raises Invalid or Gone."""
        try:
            given = base64.b64decode(f"{token}{'=' * (-len(token) % 4)}".encode(), altchars=b"-_", validate=True)
        except ValueError:
            raise Invalid from None
        text, proof = given[:-_PROOF_BYTES], given[-_PROOF_BYTES:]
        machine, key = text[:_MACHINE_BYTES].hex(), text[_MACHINE_BYTES:-_TIME_BYTES].hex()
        is_whole = len(text) == _MACHINE_BYTES + _KEY_BYTES + _TIME_BYTES
        signing_key = self._signing_key(machine) if is_whole else b""
        if not signing_key or not hmac.compare_digest(proof, _proof(signing_key, text, name)):
            raise Invalid
        sha256, expires_s = key[:64], int.from_bytes(text[-_TIME_BYTES:])
        with self._journal.reading() as step:
            if expires_s * 1000 <= step.now_ms:
                raise Gone
            rows = step.query("SELECT content FROM files WHERE key = ? AND until_ms > 0", (key,))
        if not rows and (machine == self._journal.machine or not self.storage.is_shared):
            raise Gone
        content, path = rows[0][0] if rows else None, self._folder.at(key)
        elsewhere = f"{machine}/{key}" if self.storage.is_shared and not path.exists() else path
        return Found(sha256, elsewhere if content is None else content)

    # Behind the requests

    def sweep(self) -> None:
        """Deletes some of what has expired or was erased. What cannot be deleted now is tried again."""
        with self._journal.reading() as step:
            is_due = step.query("SELECT 1 FROM files WHERE until_ms <= ? LIMIT 1", (step.now_ms,))
            if not is_due or time.monotonic() < self._away_until:
                return
        with self._journal.step() as step:
            due = "SELECT key FROM files WHERE until_ms <= ? ORDER BY until_ms LIMIT ?"
            step.query(f"UPDATE files SET until_ms = 0 WHERE key IN ({due})", (step.now_ms, SWEPT_AT_ONCE))  # noqa: S608
            rows = step.query("SELECT key, content IS NULL FROM files WHERE until_ms = 0 LIMIT ?", (SWEPT_AT_ONCE,))
        gone = list(self._delete(rows))
        with self._journal.step() as step:
            for key in gone:
                step.query("DELETE FROM files WHERE key = ?", (key,))
                step.query("DELETE FROM file_links WHERE key = ?", (key,))

    def _delete(self, rows: Iterable[tuple[Any, ...]]) -> Iterable[str]:
        for key, is_outside in rows:
            try:
                if is_outside:
                    self._folder.delete(key)  # it may be older than FILES_URL
                    self.storage.delete(key)
            except OSError as error:
                log.warning("files are deleted later: %s", error)
                self._away_until = time.monotonic() + AWAY_S
                return
            yield key


def disposition(name: str) -> str:
    """Content-Disposition: never shown by a browser, always saved."""
    plain = "".join(each if each.isascii() and each.isprintable() and each not in '"\\' else "_" for each in name)
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe='')}"


def _proof(signing_key: bytes, text: bytes, name: str) -> bytes:
    return hmac.digest(signing_key, text + name.encode(errors="replace"), "sha256")[:_PROOF_BYTES]


def missing_files(step: Step, entry: str) -> list[tuple[str, str]]:
    """SHA-256 and reason of each file of an email that could not be stored."""
    query = "SELECT sha256, missing FROM file_links WHERE entry = ? AND missing IS NOT NULL"
    return [(sha256, missing) for sha256, missing in step.query(query, (entry,))]
