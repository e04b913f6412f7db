"""What Redis granted to this machine and what became of it: two small appends an email, no transaction.

Each process appends to files of its own; any process of the machine can read them, also after kill -9. What a provider
is told 200 for before it is delivered is appended with its payload, and synced. Behind the requests all of it is
drained into the local journal, lines and position in one transaction.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deduplication.errors import StoreUnavailable
from deduplication.journal.codec import in_json
from deduplication.journal.shared_sync import SharedSync

ROTATE_AT_BYTES = 4 << 20
PIECE_BYTES = 64 << 10


@dataclass(frozen=True)
class Line:
    """``told``: entries whose delivery Redis has confirmed since the line before."""

    kind: str
    value: Any
    told: tuple[str, ...] = ()

    @property
    def flat(self) -> Any:
        """The entry that it is about; None where it only confirms."""
        return self.value[0] if self.kind in ("delivered", "stored") else self.value

    @property
    def grant(self) -> tuple[str, int]:
        """Which entry, and by which number it was granted."""
        return self.flat[0], self.flat[3]


@dataclass(frozen=True)
class Piece:
    """Complete lines of one file from a position on, and where they end."""

    file: str
    end: int
    lines: tuple[Line, ...]

    @property
    def entries(self) -> set[str]:
        return {line.flat[0] for line in self.lines if line.flat}


class SpoolFile:
    """It stays open as long as somebody writes to it, or waits for what stands there. It is locked by the process that
    writes it, so that the others can tell when that one is gone."""

    def __init__(self, folder: Path) -> None:
        path = folder / f"{os.getpid()}-{secrets.token_hex(4)}.spool"
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._fd, fcntl.LOCK_EX)
        self._folder = folder
        self._is_in_folder = False
        self._synced = SharedSync()
        self.size = 0

    def append(self, text: bytes) -> bool:
        """One call: a process that is killed leaves whole lines, one cut off. False: the disk is full, and has cut it
        off; what follows must not be read as the rest of that line."""
        try:
            written = os.write(self._fd, text)
        except OSError as error:
            raise StoreUnavailable(f"DATA_DIR cannot be written: {error}") from error
        self.size += written
        self._synced.writes += 1
        return written == len(text)

    def sync(self) -> None:
        """Returns once all that was appended before the call is on the disk."""
        self._synced.wait(self._fsync)

    def _fsync(self) -> None:
        os.fsync(self._fd)
        if not self._is_in_folder:
            _sync_folder(self._folder)
            self._is_in_folder = True

    def __del__(self) -> None:
        with suppress(AttributeError):  # it could not be opened
            os.close(self._fd)


def _sync_folder(folder: Path) -> None:
    """A file that is on the disk, and in no folder there, would be lost all the same."""
    fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


class Spool:
    """What one process appends, to one file after the other."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._folder.mkdir(mode=0o700, exist_ok=True)
        self._lock = threading.Lock()
        self._told: list[str] = []
        self._file = SpoolFile(folder)

    def append(self, kind: str, *values: Any) -> SpoolFile:
        """A line for each value, or one without. Whoever needs them on the disk syncs the file that they are in."""
        with self._lock:
            told, self._told = self._told, []
            lines = [in_json([kind, value, told if position == 0 else ()]) for position, value in enumerate(values)]
            text = "\n".join(lines or [in_json([kind, None, told])]).encode() + b"\n"
            if self._file.size >= ROTATE_AT_BYTES:
                self._file = SpoolFile(self._folder)
            file = self._file
            if not file.append(text):
                self._file = SpoolFile(self._folder)
                raise StoreUnavailable("DATA_DIR cannot be written: no space left")
            return file

    def confirm(self, entry: str) -> None:
        """Goes with the next line, or with ``flush``: that Redis knows is not worth a line of its own."""
        with self._lock:
            self._told.append(entry)

    def flush(self) -> None:
        if self._told:
            self.append("told")

    def close(self) -> None:
        self.flush()
        del self._file


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


def remove_drained(folder: Path, positions: dict[str, int], keep_for_sure: Callable[[], None]) -> list[str]:
    """Files that nobody writes any more and that are drained to their end. A neighbour may be at the same.

    ``keep_for_sure`` is called before one goes: from then on what it held must outlast a power cut elsewhere.
    """
    removed = []
    for path in folder.glob("*.spool"):
        with suppress(FileNotFoundError, BlockingIOError), path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            file.seek(positions.get(path.name, 0))
            if not file.readline().endswith(b"\n"):  # a line that was cut off: nobody has relied on it
                keep_for_sure()
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
