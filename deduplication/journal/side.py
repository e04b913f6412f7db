"""On which side this machine is, Redis or its own journal: one answer for all processes that share a DATA_DIR.

A claim holds a shared lock from before it reads the side until what it was granted is noted; changing the side takes
the lock alone. The kernel frees the lock of a process that dies.
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

from deduplication.errors import StoreUnavailable

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


class MachineSide:
    """Newcomers pass a gate first: flock is not fair, and whoever wants the lock alone would otherwise starve."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "side.json"
        self._gate = folder / "side.gate"
        self._lock = folder / "side.lock"
        self._threads = threading.local()

    def read(self) -> Standing:
        try:
            written = json.loads(self._file.read_text())
        except FileNotFoundError:
            return Standing()
        return Standing(Side(written["side"]), written["generation"], written["since_s"])

    @contextmanager
    def shared(self) -> Iterator[Standing]:
        """The side cannot change inside. Raises StoreUnavailable while a change takes its time."""
        with _flock(self._fd("gate", self._gate), fcntl.LOCK_SH):
            lock = _flock(self._fd("lock", self._lock), fcntl.LOCK_SH)
            lock.__enter__()
        try:
            yield self.read()
        finally:
            lock.__exit__(None, None, None)

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
        written.write_text(json.dumps(asdict(standing)))
        written.replace(self._file)
        return standing

    def _fd(self, name: str, path: Path) -> int:
        """One for each thread: a lock belongs to the open file, and threads must not unlock for each other."""
        if not hasattr(self._threads, name):
            setattr(self._threads, name, os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        return int(getattr(self._threads, name))


@contextmanager
def _flock(fd: int, how: int) -> Iterator[None]:
    deadline = time.monotonic() + LOCK_PATIENCE_S
    while True:
        try:
            fcntl.flock(fd, how | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise StoreUnavailable("this machine is changing between Redis and its own journal") from None
            time.sleep(_POLL_S)
    try:
        yield
    finally:
        fcntl.flock(fd, fcntl.LOCK_UN)
