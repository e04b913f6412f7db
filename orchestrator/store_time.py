"""The store's time without asking it each time: servers whose clocks differ share one schedule."""

from __future__ import annotations

import time
from collections.abc import Callable

from deduplication.errors import DeduplicationError

SYNC_EVERY_S = 60.0


class StoreTime:
    def __init__(self, store_now_ms: Callable[[], int], local_ms: Callable[[], int] | None = None) -> None:
        self._store_now_ms = store_now_ms
        self._local_ms = local_ms or (lambda: time.time_ns() // 1_000_000)
        self._ahead_ms = 0
        self.sync()

    def now_ms(self) -> int:
        return self._local_ms() + self._ahead_ms

    def sync(self) -> None:
        """How far the store's clock is ahead of ours; as before where it cannot say."""
        try:
            self._ahead_ms = self._store_now_ms() - self._local_ms()
        except DeduplicationError:
            return
