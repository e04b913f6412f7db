"""The random key that all servers share: in Redis, with a copy in DATA_DIR, or in DATA_DIR alone."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable

from deduplication.errors import StoreUnavailable
from deduplication.journal.base import Journal

log = logging.getLogger(__name__)

KEY_BYTES = 32
ASK_EVERY_S = 60.0


class SharedKey:
    """``value`` is a key of this process alone until the journal has answered."""

    def __init__(self, journal: Journal, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.value = secrets.token_bytes(KEY_BYTES)
        self._journal = journal
        self._monotonic = monotonic
        self._ask_at = float("-inf")

    def refresh(self) -> None:
        """Asks the journal once a minute: another Redis may have another key, or has to be told ours again."""
        if self._monotonic() < self._ask_at:
            return
        try:
            self.value = self._journal.shared_key(self.value)
            self._ask_at = self._monotonic() + ASK_EVERY_S
        except StoreUnavailable as error:
            log.warning("this process uses a key of its own until the journal answers: %s", error)
