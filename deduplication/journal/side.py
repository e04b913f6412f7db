"""On which side this machine is, Redis or its own journal: one answer for all processes that share a DATA_DIR.

A claim holds a shared lock from before it reads the side until what it was granted is noted; changing the side takes
the lock alone. The kernel frees the lock of a process that dies.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

from deduplication.errors import StoreUnavailable
from deduplication.private_files import write_private

LOCK_PATIENCE_S = 5.0
_POLL_S = 0.005


class Side(StrEnum):
    REDIS = "redis"
    LOCAL = "local"


@dataclass(frozen=True)
class Standing:
    """``generation`` rises with every change."""

    side: Side = Side.LOCAL
    generation: int = 0
    since_s: float = 0.0


class _Seen:
    """What a file said. It stays open for as long as that is remembered: its inode cannot become another file's."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.stat = os.fstat(self._fd)
        written = json.loads(os.read(self._fd, self.stat.st_size))
        self.standing = Standing(Side(written["side"]), written["generation"], written["since_s"])

    def __del__(self) -> None:
        with suppress(AttributeError):  # there was no such file
            os.close(self._fd)


class MachineSide:
    """Newcomers pass a gate first: flock is not fair, and whoever wants the lock alone would otherwise starve."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "side.json"
        self._gate = folder / "side.gate"
        self._lock = folder / "side.lock"
        self._threads = threading.local()
        self._seen: _Seen | None = None

    def read(self) -> Standing:
        """The file is a new one after each change, and as long as the old one is open none can be taken for it."""
        seen = self._seen
        try:
            if seen and os.path.samestat(self._file.stat(), seen.stat):
                return seen.standing
            seen = _Seen(self._file)
        except FileNotFoundError:
            return Standing()
        self._seen = seen
        return seen.standing

    @contextmanager
    def shared(self) -> Iterator[Standing]:
        """The side cannot change inside. Raises StoreUnavailable while a change takes its time."""
        gate, lock = self._fd("gate", self._gate), self._fd("lock", self._lock)
        _take(gate, fcntl.LOCK_SH)
        try:
            _take(lock, fcntl.LOCK_SH)
        finally:
            fcntl.flock(gate, fcntl.LOCK_UN)
        try:
            yield self.read()
        finally:
            fcntl.flock(lock, fcntl.LOCK_UN)

    @contextmanager
    def alone(self) -> Iterator[Standing]:
        """Nobody on this machine is inside a claim."""
        with (
            _flock(self._fd("gate", self._gate), fcntl.LOCK_EX),
            _flock(self._fd("lock", self._lock), fcntl.LOCK_EX),
        ):
            yield self.read()

    def change_to(self, side: Side) -> Standing:
        """Only inside ``alone``."""
        standing = Standing(side, self.read().generation + 1, time.time())
        written = self._file.with_suffix(".new")
        write_private(written, json.dumps(asdict(standing)))
        written.replace(self._file)
        return standing

    def _fd(self, name: str, path: Path) -> int:
        """One for each thread: a lock belongs to the open file, and threads must not unlock for each other."""
        if not hasattr(self._threads, name):
            setattr(self._threads, name, os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        return int(getattr(self._threads, name))


def machine_name(folder: Path) -> str:
    """By which Redis knows the processes that share this folder; made by the first of them."""
    file = folder / "machine"
    fresh = folder / f".machine-{secrets.token_hex(8)}"
    with suppress(FileExistsError):
        write_private(fresh, secrets.token_hex(8))
        try:
            os.link(fresh, file)  # whole or not at all, and by one of several
        finally:
            fresh.unlink()
    return file.read_text()


@contextmanager
def _flock(fd: int, how: int) -> Iterator[None]:
    _take(fd, how)
    try:
        yield
    finally:
        fcntl.flock(fd, fcntl.LOCK_UN)


def _take(fd: int, how: int) -> None:
    deadline = time.monotonic() + LOCK_PATIENCE_S
    while True:
        try:
            fcntl.flock(fd, how | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise StoreUnavailable("this machine is changing between Redis and its own journal") from None
            time.sleep(_POLL_S)
