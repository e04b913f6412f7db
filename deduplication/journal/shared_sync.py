"""One fsync for all who wait for it: whoever comes while one is under way waits for the next, with all the others."""

from __future__ import annotations

import threading
from collections.abc import Callable

from deduplication.errors import StoreUnavailable


class SharedSync:
    """``writes`` is raised with each write by whoever makes it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._synced = 0
        self.writes = 0

    def wait(self, fsync: Callable[[], None]) -> None:
        """Returns once all that was written before the call is on the disk."""
        wanted = self.writes
        with self._lock:
            if self._synced >= wanted:
                return
            reached = self.writes
            try:
                fsync()
            except OSError as error:
                raise StoreUnavailable(f"DATA_DIR cannot be written: {error}") from error
            self._synced = reached
