"""The files of DATA_DIR: readable by their owner only, on a disk of this machine with enough space; what they keep."""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from contextlib import suppress
from pathlib import Path

from deduplication.errors import StoreUnavailable
from deduplication.values import frozen

log = logging.getLogger(__name__)

PRIVATE = 0o600
DAY_MS = 24 * 3_600_000
MOUNTS = Path("/proc/self/mounts")
NETWORK = ("nfs", "cifs", "smb", "afs", "ceph", "lustre", "gpfs", "glusterfs", "9p", "sshfs", "s3fs", "davfs", "ncpfs")
LOOK_EVERY_S = 1.0
UNLOCKED_WITHIN_S = 5.0


def make_private(path: Path) -> None:
    """Sets the mode whatever the umask was when it was created."""
    try:
        if path.stat().st_mode & 0o777 != PRIVATE:
            path.chmod(PRIVATE)
    except PermissionError:
        log.warning("%s belongs to another user, who decides who may read it", path)
    except OSError:
        return


def network_disk(folder: Path) -> str:
    """The kind of network disk that the folder is on; empty if it is a local one or the system does not say."""
    with suppress(OSError):
        target = str(folder.resolve())
        mounts = [line.split() for line in MOUNTS.read_text().splitlines()]
        places = {fields[1].replace("\\040", " "): fields[2] for fields in mounts}  # a later mount hides an earlier one
        over = [place for place in places if place == "/" or target == place or target.startswith(f"{place}/")]
        kind = places[max(over, key=len)] if over else ""
        return kind if kind.removeprefix("fuse.").startswith(NETWORK) else ""
    return ""


def use_write_ahead_log(connection: sqlite3.Connection) -> None:
    """SQLite does not wait for the lock of this change: of processes that create a file at once, some would fail."""
    run_when_unlocked(connection, "PRAGMA journal_mode = WAL", pause_s=0.02)


def run_when_unlocked(connection: sqlite3.Connection, statement: str, pause_s: float = 0.0002) -> None:
    """Waits for the lock of other processes. SQLite itself would sleep for milliseconds, ten times as long as a step of
    the journal takes; meanwhile no thread of this process could write."""
    ends_at = time.monotonic() + UNLOCKED_WITHIN_S
    while True:
        try:
            connection.execute(statement)
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > ends_at:
                raise
            time.sleep(pause_s)


class FreeSpace:
    """Whether at least so many bytes are free in a folder; the system is asked once a second."""

    def __init__(self, folder: Path, least_bytes: int) -> None:
        self._folder = folder
        self._least_bytes = least_bytes
        self._asked_at = float("-inf")
        self._is_enough = True

    def check(self) -> None:
        """Raises StoreUnavailable if not: there must be room for what is recorded after a POST."""
        now = time.monotonic()
        if self._least_bytes and now - self._asked_at > LOOK_EVERY_S:
            with suppress(OSError):
                found = os.statvfs(self._folder)
                self._is_enough = found.f_bavail * found.f_frsize >= self._least_bytes
            self._asked_at = now
        if not self._is_enough:
            raise StoreUnavailable("the disk of DATA_DIR is nearly full (DISK_FREE_MB)")


@frozen
class Retention:
    """How long entries, dead letters and payloads of delivered items are kept, how many bytes of suppressed payloads
    for each sender domain, and how many bytes of the disk must stay free for a claim."""

    entry_ms: int = 7 * DAY_MS
    dead_ms: int = 30 * DAY_MS
    delivered_payload_ms: int = 0
    suppressed_bytes: int = 64 << 20
    disk_free_bytes: int = 0
