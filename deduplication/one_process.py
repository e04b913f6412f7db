"""What one process of the machine does for all of them."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from deduplication.private_files import PRIVATE


@contextmanager
def one_process(lock: Path) -> Iterator[bool]:
    """True for one at a time, who has the file locked meanwhile; False for all who come while that one is at it."""
    fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        yield False
    else:
        yield True
    finally:
        os.close(fd)
