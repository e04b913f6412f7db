"""What Redis granted to this machine and what was delivered under it: two small appends an email, no transaction.

Each process appends to files of its own; any process of the machine can read them, also after kill -9. Behind the
requests they are drained into the local journal, lines and position in one transaction.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deduplication.errors import StoreUnavailable
from deduplication.journal.codec import in_json

ROTATE_AT_BYTES = 4 << 20


@dataclass(frozen=True)
class Line:
    """``told``: entries whose delivery Redis has confirmed since the line before."""

    kind: str
    value: Any
    told: tuple[str, ...] = ()


@dataclass(frozen=True)
class Piece:
    """The complete lines of one file from a position on, and where they end."""

    file: str
    end: int
    lines: tuple[Line, ...]


class Spool:
    """The file is locked by the process that writes it, so that the others can tell when that one is gone."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._folder.mkdir(mode=0o700, exist_ok=True)
        self._lock = threading.Lock()
        self._told: list[str] = []
        self._fd, self._size = self._open(), 0

    def append(self, kind: str, value: Any = None) -> None:
        with self._lock:
            told, self._told = self._told, []
            line = in_json([kind, value, told]).encode() + b"\n"
            if self._size >= ROTATE_AT_BYTES:
                os.close(self._fd)
                self._fd, self._size = self._open(), 0
            try:
                self._size += os.write(self._fd, line)  # one call: a process that is killed leaves a whole line or none
            except OSError as error:
                raise StoreUnavailable(f"DATA_DIR cannot be written: {error}") from error

    def confirm(self, entry: str) -> None:
        """Goes with the next line, or with ``flush``: that Redis knows is not worth a line of its own."""
        with self._lock:
            self._told.append(entry)

    def flush(self) -> None:
        if self._told:
            self.append("told")

    def close(self) -> None:
        self.flush()
        os.close(self._fd)

    def _open(self) -> int:
        path = self._folder / f"{os.getpid()}-{secrets.token_hex(4)}.spool"
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        fcntl.flock(fd, fcntl.LOCK_EX)
        return fd


def read_spools(folder: Path, positions: dict[str, int]) -> Iterator[Piece]:
    """What all files hold beyond these positions; a line that is still being written is left for later."""
    for path in sorted(folder.glob("*.spool")):
        start = positions.get(path.name, 0)
        with path.open("rb") as file:
            file.seek(start)
            text = file.read()
        complete = text[: text.rfind(b"\n") + 1]
        if complete:
            lines = tuple(Line(*json.loads(line)) for line in complete.splitlines())
            yield Piece(path.name, start + len(complete), lines)


def remove_drained(folder: Path, positions: dict[str, int]) -> list[str]:
    """Files that nobody writes any more and that are drained to their end."""
    removed = []
    for path in folder.glob("*.spool"):
        with path.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            if positions.get(path.name, 0) >= path.stat().st_size:
                path.unlink()
                removed.append(path.name)
    return removed


class Note:
    """The last number Redis gave to this machine, kept over restarts; it never goes down by itself."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._lock = threading.Lock()

    def read(self) -> int:
        return int(os.pread(self._fd, 32, 0) or b"0")

    def raise_to(self, number: int) -> None:
        with self._lock:
            fcntl.lockf(self._fd, fcntl.LOCK_EX)
            try:
                if number > self.read():
                    os.pwrite(self._fd, b"%-20d" % number, 0)
            finally:
                fcntl.lockf(self._fd, fcntl.LOCK_UN)

    def close(self) -> None:
        os.close(self._fd)
