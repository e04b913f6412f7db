"""Which destinations are paused: by a person, or by their own 410. A note that all machines share (rule 12)."""

from __future__ import annotations

import json
import logging
import threading
import time
from dataclasses import dataclass
from datetime import UTC, datetime

from deduplication.errors import StoreUnavailable
from deduplication.journal.sqlite import Journal
from orchestrator.audit import audit

log = logging.getLogger(__name__)

ANSWERED_GONE = "answered 410 Gone"

READ_EVERY_S = 1.0
_KEY = "destination:"


@dataclass(frozen=True)
class DestinationState:
    """``since_ms``: when it was paused, or resumed."""

    is_paused: bool = False
    since_ms: int = 0
    reason: str = ""
    by: str = ""


_RUNNING = DestinationState()


class DestinationStates:
    """Reads the journal at most once a second: the way of an email does not wait for it."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._states: dict[str, DestinationState] = {}
        self._read_at = float("-inf")
        self._deciding = threading.Lock()

    def of(self, destination: str) -> DestinationState:
        if time.monotonic() - self._read_at > READ_EVERY_S:
            self.refresh()
        return self._states.get(destination, _RUNNING)

    def refresh(self) -> None:
        self._read_at = time.monotonic()
        try:
            with self._journal.reading() as step:
                notes = step.notes()
        except StoreUnavailable as error:
            log.warning("paused destinations are those known before: %s", error)
            return
        self._states = {
            key.removeprefix(_KEY): DestinationState(value != "", at_ms, **(json.loads(value) if value else {}))
            for key, (at_ms, value) in notes.items()
            if key.startswith(_KEY)
        }

    def decide(self, destination: str, *, is_paused: bool, reason: str, by: str) -> DestinationState:
        """Pauses or resumes it, on this machine at once and on the others within a second or two."""
        with self._journal.step() as step:
            value = json.dumps({"reason": reason, "by": by}) if is_paused else ""
            step.put_note(f"{_KEY}{destination}", value)
        self.refresh()
        action = "pause" if is_paused else "resume"
        audit.warning("AUDIT %s destination=%s by=%s reason=%s", action, destination, by, reason)
        return self.of(destination)

    def pause_gone(self, destination: str) -> None:
        """It answered 410: nothing more is sent there until a person resumes it."""
        with self._deciding:
            self.refresh()
            if self.of(destination).is_paused:
                return
            log.warning("destination %s: %s, paused until it is resumed", destination, ANSWERED_GONE)
            try:
                self.decide(destination, is_paused=True, reason=ANSWERED_GONE, by="410")
            except StoreUnavailable as error:
                log.error("destination %s: not paused: %s", destination, error)


def shown_pause(state: DestinationState) -> dict[str, str] | None:
    """As a person reads it; None if it is not paused."""
    if not state.is_paused:
        return None
    since = datetime.fromtimestamp(state.since_ms / 1000, UTC).isoformat(timespec="seconds")
    return {"since": since, "reason": state.reason, "by": state.by}
