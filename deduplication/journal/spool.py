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
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deduplication.errors import StoreUnavailable
from deduplication.journal.codec import in_json

ROTATE_AT_BYTES = 4 << 20
PIECE_BYTES = 64 << 10


@dataclass(frozen=True)
class Line:
    """``told``: entries whose delivery Redis has confirmed since the line before."""

    kind: str
    value: Any
    told: tuple[str, ...] = ()


@dataclass(frozen=True)
class Piece:
    """Complete lines of one file from a position on, and where they end."""

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

    def append(self, kind: str, *values: Any) -> None:
        """A line for each value, or one without."""
        with self._lock:
            told, self._told = self._told, []
            lines = [in_json([kind, value, told if position == 0 else ()]) for position, value in enumerate(values)]
            text = "\n".join(lines or [in_json([kind, None, told])]).encode() + b"\n"
            if self._size >= ROTATE_AT_BYTES:
                os.close(self._fd)
                self._fd, self._size = self._open(), 0
            try:
                written = os.write(self._fd, text)  # one call: a process that is killed leaves whole lines, one cut off
            except OSError as error:
                raise StoreUnavailable(f"DATA_DIR cannot be written: {error}") from error
            self._size += written
            if written < len(text):  # the disk is full; what follows must not be read as the rest of that line
                os.close(self._fd)
                self._fd, self._size = self._open(), 0
                raise StoreUnavailable("DATA_DIR cannot be written: no space left")

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
    """What all files hold beyond these positions; a line that is still being written is left for later.

    Piece by piece: the lines of a busy second, read at once, were the largest thing in a process.
    """
    for path in sorted(folder.glob("*.spool")):
        try:
            file = path.open("rb")
        except FileNotFoundError:  # a neighbour has drained and removed it
            continue
        with file:
            size, end = os.fstat(file.fileno()).st_size, file.seek(positions.get(path.name, 0))
            while end < size:
                lines = [line for line in file.readlines(PIECE_BYTES) if line.endswith(b"\n")]
                if not lines:
                    break
                end = file.seek(end + sum(map(len, lines)))
                yield Piece(path.name, end, tuple(Line(*json.loads(line)) for line in lines))


def remove_drained(folder: Path, positions: dict[str, int]) -> list[str]:
    """Files that nobody writes any more and that are drained to their end. A neighbour may be at the same."""
    removed = []
    for path in folder.glob("*.spool"):
        with suppress(FileNotFoundError, BlockingIOError), path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            file.seek(positions.get(path.name, 0))
            if not file.readline().endswith(b"\n"):  # a line that was cut off: nobody has relied on it
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
