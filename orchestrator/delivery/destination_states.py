"""Which destinations are paused, by an operator or by their own 410: notes that all machines share (rule 12)."""

from __future__ import annotations

import json
import logging
import threading
import time
from dataclasses import dataclass

from deduplication import members
from deduplication.errors import StoreUnavailable
from deduplication.journal.sqlite import Journal
from orchestrator.audit import audit

log = logging.getLogger(__name__)

ANSWERED_GONE = "answered 410 Gone"
READ_EVERY_S = 1.0
_KEY = "destination:"


@dataclass(frozen=True)
class DestinationState:
    """``since_ms``: when it was paused or resumed."""

    is_paused: bool = False
    since_ms: int = 0
    reason: str = ""
    by: str = ""


_NEVER_PAUSED = DestinationState()


class DestinationStates:
    """Reads the journal at most once a second, so that an email does not wait for it."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._states: dict[str, DestinationState] = {}
        self._read_at = float("-inf")
        self._pausing = threading.Lock()

    def of(self, destination: str) -> DestinationState:
        if time.monotonic() - self._read_at > READ_EVERY_S:
            self.refresh()
        return self._states.get(destination, _NEVER_PAUSED)

    def refresh(self) -> None:
        self._read_at = time.monotonic()
        try:
            with self._journal.reading() as step:
                notes = members.notes(step)
        except StoreUnavailable as error:
            log.warning("paused destinations are not read again: %s", error)
            return
        self._states = {
            key.removeprefix(_KEY): DestinationState(value != "", at_ms, **json.loads(value or "{}"))
            for key, (at_ms, value) in notes.items()
            if key.startswith(_KEY)
        }

    def decide(self, destination: str, *, is_paused: bool, reason: str, by: str) -> DestinationState:
        """Pauses or resumes it: on this machine at once, on the others within a second or two."""
        note = json.dumps({"reason": reason, "by": by}) if is_paused else ""
        with self._journal.step() as step:
            members.put_note(step, f"{_KEY}{destination}", note)
        self.refresh()
        action = "pause" if is_paused else "resume"
        audit.warning("AUDIT %s destination=%s by=%s reason=%s", action, destination, by, reason)
        return self.of(destination)

    def pause_gone(self, destination: str) -> None:
        """After a 410, nothing more is sent there until an operator resumes it."""
        with self._pausing:  # of several threads that get a 410, one pauses
            self.refresh()
            if self.of(destination).is_paused:
                return
            log.warning("destination %s: %s, paused until it is resumed", destination, ANSWERED_GONE)
            try:
                self.decide(destination, is_paused=True, reason=ANSWERED_GONE, by="410")
            except StoreUnavailable as error:
                log.error("destination %s: not paused: %s", destination, error)
