"""Whether a destination may be sent to now: its pause, its circuit breaker and its rate."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from deduplication import members
from deduplication.errors import StoreUnavailable
from deduplication.journal.sqlite import Step
from orchestrator.audit import audit
from orchestrator.config.model import DestinationConfig
from orchestrator.delivery.counters import Counters, parse_rate

log = logging.getLogger(__name__)

BreakerState = Literal["closed", "open", "half-open"]

ANSWERED_GONE = "answered 410 Gone"
READ_EVERY_S = 1.0
FIRST_AFTER_TROUBLE = 2  # deliveries in the first second; twice as many in each next one
_NOTE = "destination:"  # of a pause, which all machines share (rule 12)


class Blocker(StrEnum):
    """Why nothing is sent to a destination, in the words that an operator reads."""

    NO_DESTINATION = "no such destination in mailonce.toml"
    DISABLED = "disabled"
    PAUSED = "paused"
    BREAKER_OPEN = "circuit breaker open"


@dataclass(frozen=True)
class PauseState:
    """``since_ms``: when it was paused or resumed, by an operator or by its own 410."""

    is_paused: bool = False
    since_ms: int = 0
    reason: str = ""
    by: str = ""


_NEVER_PAUSED = PauseState()


class Pace:
    """How many stored deliveries a destination gets a second after trouble: 2, 4, 8, ... for twelve seconds."""

    def __init__(self) -> None:
        self._started = float("-inf")
        self._given = 0

    def restart(self) -> None:
        self._started, self._given = time.monotonic(), 0

    def allow(self, wanted: int) -> int:
        """At most ``wanted``; they count as given."""
        seconds = time.monotonic() - self._started
        if seconds > 12:
            return wanted
        limit = FIRST_AFTER_TROUBLE * ((2 << int(seconds)) - 1)
        allowed = max(0, min(wanted, limit - self._given))
        self._given += allowed
        return allowed


class Guard:
    """A pause is for the whole fleet, and so is a rate; a circuit breaker is for all processes of a machine.

    Breaker closed: everything is sent. Open: nothing for its pause. Then half-open: one delivery, the probe, may try,
    and the next one after another pause, unless that one has succeeded.

    What other processes wrote is read at most once a second, so that an email does not wait for it.
    """

    def __init__(self, counters: Counters, configs: Mapping[str, DestinationConfig]) -> None:
        self._counters = counters
        self._journal = counters.coordinator.journal
        self._configs = configs
        self._failing: set[str] = set()  # destinations whose last attempt failed
        self._pauses: dict[str, PauseState] = {}
        self._read_at = float("-inf")
        self._pausing = threading.Lock()
        self._paces = {name: Pace() for name in configs}

    def refresh(self) -> None:
        """Reads pauses and breakers now. If the journal does not answer, what is known stays."""
        try:
            with self._journal.reading() as step:
                notes = members.notes(step)
                self._failing = {name for (name,) in step.query("SELECT destination FROM breakers")}
            self._pauses = {
                key.removeprefix(_NOTE): PauseState(value != "", at_ms, **json.loads(value or "{}"))
                for key, (at_ms, value) in notes.items()
                if key.startswith(_NOTE)
            }
        except StoreUnavailable as error:
            log.warning("paused and failing destinations are not read again: %s", error)
        self._read_at = time.monotonic()  # not before: other threads would go on with what is old

    def lasting_blocker(self, destination: str) -> Blocker | None:
        """Why nothing is sent there until the configuration changes or an operator resumes it."""
        if destination not in self._configs:
            return Blocker.NO_DESTINATION
        if not self._configs[destination].enabled:
            return Blocker.DISABLED
        return Blocker.PAUSED if self.pause_of(destination).is_paused else None

    def blocker(self, destination: str) -> Blocker | None:
        """Why no stored delivery is sent there now, its breaker included; None if it works."""
        lasting = self.lasting_blocker(destination)
        return lasting or (None if self.breaker(destination) == "closed" else Blocker.BREAKER_OPEN)

    def allow(self, destination: str, wanted: int) -> int:
        """How many of these stored deliveries may be sent: after trouble a growing number, which counts as sent."""
        return self._paces[destination].allow(wanted)

    # Pauses

    def pause_of(self, destination: str) -> PauseState:
        if time.monotonic() - self._read_at > READ_EVERY_S:
            self.refresh()
        return self._pauses.get(destination, _NEVER_PAUSED)

    def set_paused(self, destination: str, is_paused: bool, *, reason: str, by: str) -> PauseState:
        """Pauses or resumes it: on this machine at once, on the others within a second or two."""
        note = json.dumps({"reason": reason, "by": by}) if is_paused else ""
        with self._journal.step() as step:
            members.put_note(step, f"{_NOTE}{destination}", note)
        self.refresh()
        self._paces[destination].restart()
        action = "pause" if is_paused else "resume"
        audit.warning("AUDIT %s destination=%s by=%s reason=%s", action, destination, by, reason)
        return self.pause_of(destination)

    def pause_gone(self, destination: str) -> None:
        """After a 410, nothing more is sent there until an operator resumes it."""
        with self._pausing:  # of several threads that get a 410, one pauses
            self.refresh()
            if self.pause_of(destination).is_paused:
                return
            log.warning("destination %s: %s, paused until it is resumed", destination, ANSWERED_GONE)
            try:
                self.set_paused(destination, True, reason=ANSWERED_GONE, by="410")
            except StoreUnavailable as error:
                log.error("destination %s: not paused: %s", destination, error)

    # Circuit breaker and rate

    def wait_s(self, destination: str) -> float:
        """0.0 if the caller may send, which is counted; otherwise the seconds to wait before asking again.

        After sending, the caller reports ``succeeded`` or ``failed``.
        """
        if time.monotonic() - self._read_at > READ_EVERY_S:
            self.refresh()
        # The breaker first: a destination that is down uses up no rate.
        if destination in self._failing and (wait_s := self._breaker_wait_s(destination)):
            return wait_s
        rate = self._configs[destination].rate
        return self._counters.wait_s(parse_rate(rate), destination) if rate else 0.0

    def succeeded(self, destination: str) -> bool:
        """The destination works, even if it refused this webhook. True if that closes its circuit breaker."""
        if destination not in self._failing:
            return False
        try:
            with self._journal.step() as step:
                was_closed = self._read_breaker(step, destination)[0] == "closed"
                step.query("DELETE FROM breakers WHERE destination = ?", (destination,))
        except StoreUnavailable as error:
            log.warning("destination %s: works, but its failures are not cleared: %s", destination, error)
            return False
        self._failing.discard(destination)
        if not was_closed:
            log.info("destination %s: works again, breaker closed", destination)
            self._paces[destination].restart()
        return not was_closed

    def failed(self, destination: str) -> None:
        """One more failure in a row. The pause of the breaker counts from the latest one."""
        config = self._configs[destination]
        if not config.breaker_failures:
            return
        count = """INSERT INTO breakers VALUES (?, 1, ?)
            ON CONFLICT DO UPDATE SET failures = failures + 1, failed_ms = excluded.failed_ms RETURNING failures"""
        try:
            with self._journal.step() as step:
                ((failures,),) = step.query(count, (destination, step.steady_ms))
        except StoreUnavailable as error:
            log.warning("destination %s: failed, which is not counted: %s", destination, error)
            return
        self._failing.add(destination)
        if failures == config.breaker_failures:
            log.warning("destination %s: keeps failing, breaker open for %g s", destination, config.breaker_pause_s)

    def breaker(self, destination: str) -> BreakerState:
        with self._journal.reading() as step:
            return self._read_breaker(step, destination)[0]

    def _breaker_wait_s(self, destination: str) -> float:
        """If it is half-open, exactly one caller gets 0.0: it counts as failed until it has succeeded."""
        with self._journal.step() as step:
            state, wait_s = self._read_breaker(step, destination)
            if state == "half-open":
                step.query("UPDATE breakers SET failed_ms = ? WHERE destination = ?", (step.steady_ms, destination))
            return wait_s

    def _read_breaker(self, step: Step, destination: str) -> tuple[BreakerState, float]:
        """The state of its circuit breaker, and how much is left of the pause."""
        config = self._configs[destination]
        rows = step.query("SELECT failures, failed_ms FROM breakers WHERE destination = ?", (destination,))
        if not rows or not 0 < config.breaker_failures <= rows[0][0]:
            return "closed", 0.0
        left_s = config.breaker_pause_s - (step.steady_ms - rows[0][1]) / 1000
        return ("open", left_s) if left_s > 0 else ("half-open", 0.0)
