"""On which side this machine is, Redis or its own journal: one answer for all processes that share a DATA_DIR.

A claim holds a shared lock from before it reads the side until what it was granted is noted; changing the side takes
the lock alone. The kernel frees the lock of a process that dies; one that is stopped inside is ended by whoever waits.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import secrets
import select
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

from deduplication.errors import StoreUnavailable
from deduplication.private_files import write_private

log = logging.getLogger(__name__)

LOCK_PATIENCE_S = 5.0
_POLL_S = 0.005
_ENDS_WITHIN_S = 5.0


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

    def shared(self) -> Shared:
        """The side cannot change inside. Raises StoreUnavailable while a change takes its time."""
        return Shared(self, self._fd("gate", self._gate), self._fd("lock", self._lock))

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
        fd: int | None = getattr(self._threads, name, None)
        if fd is None:
            fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            setattr(self._threads, name, fd)
        return fd


class Shared:
    """Every step of the journal is taken inside of one: a generator in its place took as long as the locks."""

    def __init__(self, side: MachineSide, gate: int, lock: int) -> None:
        self._side, self._gate, self._lock = side, gate, lock

    def __enter__(self) -> Standing:
        _take(self._gate, fcntl.LOCK_SH)
        try:
            _take(self._lock, fcntl.LOCK_SH)
        finally:
            fcntl.flock(self._gate, fcntl.LOCK_UN)
        try:
            return self._side.read()
        except BaseException:
            fcntl.flock(self._lock, fcntl.LOCK_UN)
            raise

    def __exit__(self, *_: object) -> None:
        fcntl.flock(self._lock, fcntl.LOCK_UN)


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
    deadline = 0.0
    while True:
        try:
            fcntl.flock(fd, how | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            deadline = deadline or time.monotonic() + LOCK_PATIENCE_S
            if time.monotonic() > deadline:
                if not _end_stopped_holders(fd):
                    raise StoreUnavailable("this machine is changing between Redis and its own journal") from None
                deadline = time.monotonic() + LOCK_PATIENCE_S
            time.sleep(_POLL_S)


def _end_stopped_holders(fd: int) -> bool:
    """By SIGKILL, which is safe at any moment here: stopped for ever, one would keep its machine from changing sides.

    Linux only, and only processes that are seen from here and may be ended. One that a debugger holds is left alone.
    """
    is_any_ended = False
    for pid in _holders(fd):
        with suppress(OSError):
            handle = os.pidfd_open(pid)  # from here on the number cannot come to mean another process
            try:
                stat = Path(f"/proc/{pid}/stat").read_text()
                if _holds(pid, fd) and stat.rpartition(")")[2].split()[0] == "T":
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
                    select.select([handle], [], [], _ENDS_WITHIN_S)  # its locks are free from then on
                    is_any_ended = True
                    log.error("process %d was stopped while it held the lock of this machine's side: ended", pid)
            finally:
                os.close(handle)
    return is_any_ended


def _holders(fd: int) -> set[int]:
    """Of a lock on a file with this inode number, in whichever file system."""
    inode, locks = str(os.fstat(fd).st_ino), Path("/proc/locks")
    lines = [line.split() for line in locks.read_text().splitlines()] if locks.exists() else []
    # 1: FLOCK ADVISORY READ 4711 fd:01:131074 0 EOF; who waits has an arrow behind the number
    return {int(line[4]) for line in lines if line[1] == "FLOCK" and line[5].endswith(f":{inode}")}


def _holds(pid: int, fd: int) -> bool:
    """It has this very file open, with a lock on it."""
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            is_this_file = os.path.samestat(link.stat(), os.fstat(fd))
            if is_this_file and "lock:" in Path(f"/proc/{pid}/fdinfo/{link.name}").read_text():
                return True
    return False
