"""The files of DATA_DIR: their mode, the disk they are on, locks of SQLite, free space, and how long data is kept."""

import shutil
import sqlite3
import time
from contextlib import suppress
from pathlib import Path

from deduplication.errors import StoreUnavailable
from deduplication.values import frozen

PRIVATE = 0o600
DAY_MS = 24 * 3_600_000
MOUNTS = Path("/proc/self/mounts")
NETWORK = ("nfs", "cifs", "smb", "afs", "ceph", "lustre", "gpfs", "glusterfs", "9p", "sshfs", "s3fs", "davfs", "ncpfs")
LOCK_TIMEOUT_S = 5.0


def make_private(path: Path) -> None:
    """Makes a file readable by its owner only, whatever the umask was when it was created."""
    with suppress(OSError):  # it may belong to another user, who decides who may read it
        path.chmod(PRIVATE)


def network_disk(folder: Path) -> str:
    """The type of the network file system that the folder is on; empty if it is local or unknown."""
    with suppress(OSError):
        target = folder.resolve()
        mounts = [line.split() for line in MOUNTS.read_text().splitlines()]
        types = {fields[1].replace("\\040", " "): fields[2] for fields in mounts}  # a later mount hides an earlier one
        parents = [point for point in types if target.is_relative_to(point)]
        file_system = types[max(parents, key=len)] if parents else ""
        return file_system if file_system.removeprefix("fuse.").startswith(NETWORK) else ""
    return ""


def run_when_unlocked(connection: sqlite3.Connection, statement: str, pause_s: float = 0.0002) -> None:
    """Runs a statement as soon as other processes release their locks. SQLite itself would sleep for milliseconds, ten
    times as long as a step of the journal, and no thread of this process could write meanwhile."""
    ends_at = time.monotonic() + LOCK_TIMEOUT_S
    while True:
        try:
            connection.execute(statement)
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > ends_at:
                raise
            time.sleep(pause_s)


def check_free_space(folder: Path, min_bytes: int) -> None:
    """Raises StoreUnavailable if less is free: the outcome of a POST must fit on the disk."""
    with suppress(OSError):
        if min_bytes and shutil.disk_usage(folder).free < min_bytes:
            raise StoreUnavailable("the disk of DATA_DIR is nearly full (DISK_FREE_MB)")


@frozen
class Retention:
    """How long entries and events, dead letters and payloads of delivered items are kept, how many bytes of suppressed
    payloads for each sender domain and of the stream, and how many bytes must be free on the disk for a claim."""

    entry_ms: int = 7 * DAY_MS
    dead_ms: int = 30 * DAY_MS
    delivered_payload_ms: int = 0
    suppressed_bytes: int = 64 << 20
    stream_bytes: int = 256 << 20
    disk_free_bytes: int = 0
