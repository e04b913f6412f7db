"""Which destinations are paused, and which became well again: what this process knows, and how the others learn."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime

from deduplication.errors import DeduplicationError
from deduplication.journal.base import Journal
from deduplication.journal.destination_state import DestinationState
from orchestrator.audit import audit

log = logging.getLogger(__name__)

# Whoever looks after what is due asks every second. Where nobody does, whoever sends asks, this often at most.
KNOWN_FOR_S = 2.0
ANSWERED_GONE = "answered 410 Gone"

_UNKNOWN = DestinationState()


class DestinationStates:
    """The journal's, kept at hand: an email on its way asks nobody.

    What this process finds out counts here at once, and for the others as soon as the journal can be told.
    """

    def __init__(self, journal: Journal, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._journal = journal
        self._monotonic = monotonic
        self._known: dict[str, DestinationState] = {}
        self._untold: dict[str, DestinationState] = {}
        self._asked_at: float | None = None
        self._asking = threading.Lock()
        self._deciding = threading.Lock()
        self._lock = threading.Lock()

    def of(self, destination: str) -> DestinationState:
        if self._asked_at is None or self._monotonic() - self._asked_at > KNOWN_FOR_S:
            self.refresh()
        return self._known.get(destination, _UNKNOWN)

    def refresh(self) -> None:
        """Tells what the journal does not know yet, and asks it. While it cannot answer, what is known counts."""
        if not self._asking.acquire(blocking=self._asked_at is None):
            return  # another thread is at it
        try:
            with self._lock:
                untold = dict(self._untold)
            known = self._journal.put_states(untold) if untold else self._journal.states()
        except DeduplicationError as error:
            log.info("states of destinations: what is known counts: %s", error)
        else:
            with self._lock:
                self._untold = {name: each for name, each in self._untold.items() if untold.get(name) != each}
                for name, each in self._untold.items():
                    known[name] = known.get(name, _UNKNOWN).with_news(each)
                self._known = known
        finally:
            self._asked_at = self._monotonic()
            self._asking.release()

    def decide(self, destination: str, *, is_paused: bool, reason: str, by: str) -> DestinationState:
        """What an operator says holds once this returns: it is later than all that is known, whatever clocks say."""
        known = self._journal.states().get(destination, _UNKNOWN)
        now_ms = max(self._journal.now_ms(), known.since_ms + 1)
        decided = DestinationState(is_paused, now_ms, reason, by, well_since_ms=0 if is_paused else now_ms)
        known = self._journal.put_states({destination: decided})[destination]
        self._learn(destination, known)
        audit.warning(
            "AUDIT %s destination=%s by=%s reason=%s", "pause" if is_paused else "resume", destination, by, reason
        )
        return known

    def note_gone(self, destination: str) -> None:
        """It answered 410: nothing more is sent there until a person says so. The first to hear it says so to all."""
        with self._deciding:
            self.refresh()
            if self.of(destination).is_paused:
                return
            log.warning("destination %s: %s, paused until it is resumed", destination, ANSWERED_GONE)
            try:
                self.decide(destination, is_paused=True, reason=ANSWERED_GONE, by="410")
            except DeduplicationError as error:
                log.error("destination %s: that it is paused is told later: %s", destination, error)
                self._tell_later(destination, DestinationState(True, self._now_ms(), ANSWERED_GONE, "410"))

    def note_well(self, destination: str) -> None:
        """Its breaker has closed: what waits for it need not wait any longer, in whichever process."""
        self._tell_later(destination, DestinationState(well_since_ms=self._now_ms()))
        self.refresh()

    def _tell_later(self, destination: str, news: DestinationState) -> None:
        with self._lock:
            self._untold[destination] = self._untold.get(destination, _UNKNOWN).with_news(news)
        self._learn(destination, news)

    def _learn(self, destination: str, news: DestinationState) -> None:
        with self._lock:
            self._known = {**self._known, destination: self._known.get(destination, _UNKNOWN).with_news(news)}

    def _now_ms(self) -> int:
        try:
            return self._journal.now_ms()
        except DeduplicationError:  # on Redis alone, that is its time
            return time.time_ns() // 1_000_000


def shown_pause(state: DestinationState | None) -> dict[str, str] | None:
    """As a person reads it; None: it is not paused."""
    if state is None or not state.is_paused:
        return None
    since = datetime.fromtimestamp(state.since_ms / 1000, UTC).isoformat(timespec="seconds")
    return {"since": since, "reason": state.reason, "by": state.by}
