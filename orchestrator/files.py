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
import shutil
import struct
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from deduplication.email import Email
from deduplication.errors import StoreUnavailable
from deduplication.journal.sqlite import Journal, Step
from deduplication.spool import LARGE_BYTES, Content, chunks_of, read_all
from deduplication.values import frozen
from orchestrator.config.settings import DAY_MS, MB, Settings
from orchestrator.item import described
from orchestrator.metrics.meter import FILES, Meter
from orchestrator.sessions import known_key, shared_key

if TYPE_CHECKING:
    from orchestrator.delivery.s3 import Bucket

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
_SAME = """UPDATE files SET until_ms = max(until_ms, ?) WHERE sha256 = ? AND is_stored AND until_ms > 0
    RETURNING key, content IS NULL"""
_DUE = "SELECT key FROM files WHERE until_ms <= ? ORDER BY until_ms LIMIT ?"
_LINK = struct.Struct("5s36s5s16s")  # machine, key of the file, expiry in seconds, and a proof that covers the name too


class Invalid(Exception):
    """It is not a link of this service, or was changed."""


@frozen
class Folder:
    """``reserve_bytes`` of the disk are left free, so that files never stop emails (DISK_FREE_MB)."""

    path: Path
    reserve_bytes: int

    def has_room(self, size_bytes: int) -> bool:
        with suppress(OSError):
            return shutil.disk_usage(self.path.parent).free >= self.reserve_bytes + size_bytes
        return False

    def at(self, key: str) -> Path:
        return self.path / key[:2] / key

    def put(self, key: str, content: Content) -> None:
        path = self.at(key)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                file.writelines(chunks_of(content))
                file.flush()
                os.fsync(file.fileno())
        except OSError:
            path.unlink(missing_ok=True)
            raise


class Files:
    """``bucket``: in place of the folder. Raises StoreUnavailable if the journal cannot be read or written."""

    def __init__(
        self, journal: Journal, folder: Folder, bucket: Bucket | None, settings: Settings, meter: Meter
    ) -> None:
        self._journal = journal
        self._folder = folder
        self._bucket = bucket
        self._address = settings.public_url or settings.address
        self._kept_ms = int(settings.files_days * DAY_MS)
        self._room_bytes = int(settings.files_mb * MB)
        self._count = meter.count
        self._away_until = 0.0

    # An email on its way

    def link(self, email: Email, entry: str, domain: str) -> dict[str, Any]:
        """The parts of its payload that have links, once everything they lead to is safe. What cannot be stored is
        ``missing``, which says why; the email does not wait for it."""
        attachments = [described(each) for each in email.attachments]
        files = zip(attachments, email.attachments, strict=True)
        linked = [(part, file.data) for part, file in files if file.data is not None]
        raw: dict[str, Any] = {"name": RAW_NAME}
        if email.original is not None:
            digest = hashlib.sha256()
            for chunk in chunks_of(email.original):
                digest.update(chunk)
            raw |= {"size_bytes": len(email.original), "sha256": digest.hexdigest()}
            linked.append((raw, email.original))
        until_ms = self._journal.clock.now_ms() + self._kept_ms
        kept: dict[str, tuple[str | None, str | None]] = {}  # by SHA-256: its key, or why it is missing
        try:
            signing_key = self._own_key
            for part, data in linked:
                if part["sha256"] not in kept:
                    kept[part["sha256"]] = self._keep(part["sha256"], part["size_bytes"], data, domain, until_ms)
            with self._journal.step() as step:
                for sha256, found in kept.items():
                    step.query("INSERT OR REPLACE INTO file_links VALUES (?, ?, ?, ?)", (entry, sha256, *found))
        except StoreUnavailable as error:
            log.error("entry %s: its files are not stored: %s", entry, error)
            signing_key, kept = b"", {part["sha256"]: (None, UNAVAILABLE) for part, _ in linked}
        for _, missing in kept.values():
            self._count((1, FILES, missing or STORED))
        for part, _ in linked:
            key, missing = kept[part["sha256"]]
            if key:
                part["url"] = self._url(signing_key, key, part["name"], until_ms)
            else:
                part["missing"] = missing
        return {f"raw_{name}": raw[name] for name in ("url", "missing") if name in raw} | {"attachments": attachments}

    def _keep(
        self, sha256: str, size_bytes: int, content: Content, domain: str, until_ms: int
    ) -> tuple[str | None, str | None]:
        """The key under which it is kept, or why it is not: one of RESULTS."""
        is_here = size_bytes <= LARGE_BYTES and not self._bucket
        key, failure = f"{sha256}{secrets.token_hex(4)}", None
        with self._journal.step() as step:
            if same := self._find_same(step, sha256, until_ms):
                return same, None
            used = dict(step.query("SELECT domain, bytes FROM file_room WHERE domain IN (?, ?)", (_ROOM, domain)))
            left = self._room_bytes - used.get(_ROOM, 0) - size_bytes
            # As payloads in Redis (rule 19): whoever sends much leaves room for others.
            if used.get(domain, 0) + size_bytes > 4 * left:
                return None, OVER_QUOTA
            if self._bucket and time.monotonic() < self._away_until:
                return None, UNAVAILABLE
            if not self._bucket and not self._folder.has_room(size_bytes):
                return None, NO_ROOM
            ends_ms = until_ms if is_here else step.now_ms + WRITTEN_WITHIN_MS
            row = (key, sha256, size_bytes, domain, ends_ms, is_here, read_all(content) if is_here else None)
            step.query("INSERT INTO files VALUES (?, ?, ?, ?, ?, ?, ?)", row)
        if is_here:
            return key, None
        try:
            (self._bucket or self._folder).put(key, content)
        except OSError as error:
            log.error("a file cannot be stored: %s", error)
            failure = UNAVAILABLE if self._bucket else NO_ROOM
            self._away_until = time.monotonic() + AWAY_S
        with self._journal.step() as step:
            same = self._find_same(step, sha256, until_ms)  # another request may have stored it meanwhile
            is_kept = not (same or failure)
            kept = (is_kept, until_ms if is_kept else 0, key)
            step.query("UPDATE files SET is_stored = ?, until_ms = ? WHERE key = ?", kept)
        return (None, failure) if failure and not same else (same or key, None)

    def _find_same(self, step: Step, sha256: str, until_ms: int) -> str | None:
        """The key of that content if it is kept already, now until then."""
        for key, is_outside in step.query(_SAME, (until_ms, sha256)):
            # FILES_URL may have changed since it was stored, or a file may be lost.
            is_in_s3 = bool(is_outside) and not self._folder.at(key).exists()
            if is_in_s3 == (self._bucket is not None):
                return str(key)
            step.query("UPDATE files SET is_stored = 0 WHERE key = ?", (key,))  # its links go on working
        return None

    # Links

    @cached_property
    def _own_key(self) -> bytes:
        """Each machine signs with one of its own for ever, and all others know it a second later."""
        return shared_key(self._journal, f"{KEY_NOTE}{self._journal.machine}")

    def _url(self, signing_key: bytes, key: str, name: str, until_ms: int) -> str:
        shown = name.strip(". ")[-MAX_NAME_CHARS:] or UNNAMED
        parts = (bytes.fromhex(self._journal.machine), bytes.fromhex(key), (until_ms // 1000).to_bytes(5))
        token = base64.urlsafe_b64encode(_LINK.pack(*parts, _proof(signing_key, parts, shown))).decode().rstrip("=")
        return f"{self._address}/{PATH}/{token}/{quote(shown, safe='')}"

    def find(self, token: str, name: str) -> tuple[str, bytes | Path | str]:
        """What a link leads to: its SHA-256, and the contents, a file, or (a text) an address of S3.

        Raises Invalid, FileNotFoundError if it has expired or was deleted, and OSError while S3 does not answer.
        """
        try:
            given = base64.b64decode(f"{token}{'=' * (-len(token) % 4)}".encode(), altchars=b"-_", validate=True)
            *parts, proof = _LINK.unpack(given)
        except (ValueError, struct.error):
            raise Invalid from None
        machine, key, expires_s = parts[0].hex(), parts[1].hex(), int.from_bytes(parts[2])
        signing_key = known_key(self._journal, f"{KEY_NOTE}{machine}")
        if not signing_key or not hmac.compare_digest(proof, _proof(signing_key, parts, name)):
            raise Invalid
        with self._journal.reading() as step:
            rows = step.query("SELECT content FROM files WHERE key = ? AND until_ms > 0", (key,))
            is_gone = expires_s * 1000 <= step.now_ms
        if is_gone or (not rows and (machine == self._journal.machine or not self._bucket)):
            raise FileNotFoundError(key)
        content, path = rows[0][0] if rows else None, self._folder.at(key)
        if content is None and self._bucket and not path.exists():
            return key[:64], self._bucket.url(machine, key, disposition(name))
        return key[:64], path if content is None else content

    # Behind the requests

    def sweep(self) -> None:
        """Deletes some of what has expired or was erased. What cannot be deleted now is tried again."""
        with self._journal.reading() as step:
            if not step.query(_DUE, (step.now_ms, 1)) or time.monotonic() < self._away_until:
                return
        with self._journal.step() as step:  # from now on no email shares them
            mark = f"UPDATE files SET until_ms = 0 WHERE key IN ({_DUE}) RETURNING key, content IS NULL"  # noqa: S608
            rows = step.query(mark, (step.now_ms, SWEPT_AT_ONCE))
        gone = []
        try:
            for key, is_outside in rows:
                if is_outside:
                    self._folder.at(key).unlink(missing_ok=True)  # it may be older than FILES_URL
                    if self._bucket:
                        self._bucket.delete(key)
                gone.append((key,))
        except OSError as error:
            log.warning("files are deleted later: %s", error)
            self._away_until = time.monotonic() + AWAY_S
        with self._journal.step() as step:
            for key in gone:
                step.query("DELETE FROM files WHERE key = ?", key)
                step.query("DELETE FROM file_links WHERE key = ?", key)


def disposition(name: str) -> str:
    """Content-Disposition: never shown by a browser, always saved."""
    plain = "".join(each if each.isascii() and each.isprintable() and each not in '"\\' else "_" for each in name)
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe='')}"


def _proof(signing_key: bytes, parts: Sequence[bytes], name: str) -> bytes:
    return hmac.digest(signing_key, b"".join(parts) + name.encode(errors="replace"), "sha256")[:16]


def missing_files(step: Step, entry: str) -> list[tuple[str, str]]:
    """SHA-256 and reason of each file of an email that could not be stored."""
    query = "SELECT sha256, missing FROM file_links WHERE entry = ? AND missing IS NOT NULL"
    return [(sha256, missing) for sha256, missing in step.query(query, (entry,))]
