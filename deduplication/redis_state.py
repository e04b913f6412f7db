"""Whether Redis answers, as one process sees it (rule 8 of docs/architecture.md)."""

import logging
import threading
from collections.abc import Callable
from typing import Any

from deduplication.errors import NoAnswer, StoreUnavailable

log = logging.getLogger(__name__)

REDIS_STEPS, REDIS_ERRORS = "redis_steps", "redis_errors"  # names of metrics; errors are counted by class


class RedisGone(StoreUnavailable):
    """Redis is gone; the journal of this machine decides if it may."""


class RedisState:
    """``status`` is up, suspected after a first missing answer, or gone after a second (rule 8).

    While Redis is suspected, only the next probe asks it. The only member of a fleet continues without Redis at once.
    """

    def __init__(self) -> None:
        self.status = "suspected"  # until the first probe, so a start needs no Redis
        self.is_only_member = False
        self.wake = threading.Event()
        self.count: Callable[[Any], object] = lambda _: None  # events for orchestrator/metrics/meter.py

    def check(self) -> None:
        """Call this before asking Redis. Raises RedisGone, or StoreUnavailable if the caller should retry later."""
        if self.status == "gone":
            raise RedisGone("Redis is gone")
        if self.status == "suspected":
            raise StoreUnavailable("Redis did not answer a moment ago")
        self.count((1, REDIS_STEPS))

    def without_answer(self, error: NoAnswer, kind: str) -> StoreUnavailable:
        """Records a missing answer, and returns the error to raise, as in ``check``. ``kind`` is the class of the
        client's error."""
        self.count((1, REDIS_ERRORS, kind))
        self.suspect()
        return RedisGone(str(error)) if self.status == "gone" else StoreUnavailable(str(error))

    def suspect(self) -> None:
        """Records a first missing answer. Other requests that miss their answers at the same time have no effect."""
        if self.status == "up":
            self.status = "suspected"
            if self.is_only_member:
                self.give_up()
        self.wake.set()

    def give_up(self) -> None:
        """Records that the next probe was not answered either."""
        if self.status != "gone":
            log.warning("Redis is gone: the journal of this machine decides")
        self.status = "gone"

    def note_answer(self) -> None:
        if self.status == "gone":
            log.warning("Redis is back")
        self.status = "up"
