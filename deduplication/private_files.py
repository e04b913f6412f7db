"""Files that hold what emails say are for this user alone, whatever the umask and whoever made them before."""

from __future__ import annotations

import logging
import sqlite3
from contextlib import suppress
from pathlib import Path

log = logging.getLogger(__name__)

PRIVATE = 0o600


def write_private(path: Path, text: str) -> None:
    path.touch(mode=PRIVATE)
    path.write_text(text, encoding="utf-8")


def open_private(path: Path, timeout_s: float) -> sqlite3.Connection:
    """SQLite gives the files beside it (-wal, -shm) the same mode, and complains of a path that cannot be used."""
    if str(path) != ":memory:":
        with suppress(OSError):
            if not path.exists():  # a file that is open elsewhere in this process must not be opened and closed again
                path.touch(mode=PRIVATE)
        for each in (path, path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")):
            make_private(each)
    return sqlite3.connect(path, timeout=timeout_s, isolation_level=None, check_same_thread=False)


def make_private(path: Path) -> None:
    try:
        if path.stat().st_mode & 0o777 != PRIVATE:
            path.chmod(PRIVATE)
    except PermissionError:
        log.warning("%s belongs to another user, who decides who may read it", path)
    except OSError:
        return
