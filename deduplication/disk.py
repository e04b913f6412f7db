"""The disk under a folder: what kind it is, how much of it is free, and how SQLite writes to it."""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import suppress
from pathlib import Path

from deduplication.errors import StoreUnavailable

MOUNTS = Path("/proc/self/mounts")
NETWORK = ("nfs", "cifs", "smb", "afs", "ceph", "lustre", "gpfs", "glusterfs", "9p", "sshfs", "s3fs", "davfs", "ncpfs")
LOOK_EVERY_S = 1.0
OPEN_WITHIN_S = 5.0


def network_disk(folder: Path) -> str:
    """The kind of network disk that the folder is on, "" if it is a local one or the system does not say."""
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
    ends_at = time.monotonic() + OPEN_WITHIN_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > ends_at:
                raise
            time.sleep(0.02)


class FreeSpace:
    """Whether at least so many bytes are free in a folder; the system is asked once a second."""

    def __init__(self, folder: Path, least_bytes: int) -> None:
        self._folder = folder
        self._least_bytes = least_bytes
        self._asked_at = float("-inf")
        self._is_enough = True

    def check(self) -> None:
        """Raises StoreUnavailable if not: what is noted after a POST must still find room."""
        now = time.monotonic()
        if self._least_bytes and now - self._asked_at > LOOK_EVERY_S:
            with suppress(OSError):
                found = os.statvfs(self._folder)
                self._is_enough = found.f_bavail * found.f_frsize >= self._least_bytes
            self._asked_at = now
        if not self._is_enough:
            raise StoreUnavailable("the disk of DATA_DIR is nearly full (DISK_FREE_MB)")
