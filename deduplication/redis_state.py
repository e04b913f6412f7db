"""What a process knows of Redis: whether it answers (rule 8 of docs/architecture.md)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from deduplication.errors import NoAnswer, NotNow, StoreUnavailable

log = logging.getLogger(__name__)

REDIS_STEPS, REDIS_ERRORS = "redis_steps", "redis_errors"  # what is counted; errors by their class


class RedisGone(StoreUnavailable):
    """Redis is not there; the journal of this machine decides, if it may."""


class RedisState:
    """What this process knows of Redis (rule 8): up, suspected after a first missing answer, or gone after a second.

    While it is suspected, only the next probe waits for it. The only member of a fleet goes on without it at once.
    """

    def __init__(self, *, is_always_asked: bool = False) -> None:
        """``is_always_asked``: for scripts without a journal that is kept, no answer is no answer, each time."""
        self._is_always_asked = is_always_asked
        self.status = "up" if is_always_asked else "suspected"  # until the first probe: a start never depends on Redis
        self.is_only_member = False
        self.wake = threading.Event()
        self.count: Callable[[Any], object] = lambda _: None  # events for orchestrator/metrics/meter.py

    def check(self) -> None:
        """Before Redis is asked. Raises RedisGone, or NotNow where the answer is "retry later"."""
        if self.status == "gone":
            raise RedisGone("Redis is gone")
        if self.status == "suspected":
            raise NotNow("Redis did not answer a moment ago")
        self.count((1, REDIS_STEPS))

    def without_answer(self, error: NoAnswer, kind: str) -> StoreUnavailable:
        """What it means that an answer is missing: the same errors. ``kind``: the class of the client's own error."""
        self.count((1, REDIS_ERRORS, kind))
        self.suspect()
        return RedisGone(str(error)) if self.status == "gone" else NotNow(str(error))

    def suspect(self) -> None:
        """A first answer is missing. More missing answers of the same moment change nothing."""
        if self.status == "up" and not self._is_always_asked:
            self.status = "suspected"
            if self.is_only_member:
                self.give_up()
        self.wake.set()

    def give_up(self) -> None:
        """The next probe was not answered either."""
        if self.status != "gone":
            log.warning("Redis is gone: the journal of this machine decides")
        self.status = "gone"

    def note_answer(self) -> None:
        if self.status == "gone":
            log.warning("Redis is back")
        self.status = "up"
