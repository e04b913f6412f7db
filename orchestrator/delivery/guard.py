"""Whether a destination may be sent to now: its pause, its circuit breaker and its rate."""

import json
import logging
import time
from collections.abc import Mapping
from enum import StrEnum
from typing import Literal

from deduplication import members
from deduplication.errors import StoreUnavailable, try_to
from deduplication.journal.sqlite import Step
from deduplication.values import frozen
from orchestrator.audit import audit
from orchestrator.config.model import DestinationConfig
from orchestrator.delivery.counters import Counters, parse_rate

log = logging.getLogger(__name__)

BreakerState = Literal["closed", "open", "half-open"]

ANSWERED_GONE, BY_410 = "answered 410 Gone", "410"
MOST_HASTENED = 10_000
_PAUSE, _FAILING = "destination:", "failing:"  # notes, which all machines share (rule 12)


class Blocker(StrEnum):
    """Why nothing is sent to a destination, in the words that an operator reads."""

    NO_DESTINATION = "no such destination in mailonce.toml"
    DISABLED = "disabled"
    PAUSED = "paused"
    BREAKER_OPEN = "circuit breaker open"


@frozen
class PauseState:
    """``since_ms``: when it was paused or resumed, by an operator or by its own 410."""

    is_paused: bool = False
    since_ms: int = 0
    reason: str = ""
    by: str = ""


_NEVER_PAUSED = PauseState()


class Guard:
    """A pause is for the whole fleet, and so is a rate; a circuit breaker is for all processes of a machine.

    Breaker closed: everything is sent. Open: nothing for its pause. Then half-open: one delivery, the probe, may try,
    and the next one after another pause, unless that one has succeeded.

    A destination is failing from its first failure until a delivery succeeds on any machine. While it is failing, a
    probe is due after each pause without an attempt, even if the breaker is closed because few emails came.

    What other processes wrote is read every second, behind the requests (``refresh``).
    """

    def __init__(self, counters: Counters, configs: Mapping[str, DestinationConfig]) -> None:
        self._counters = counters
        self._coordinator = counters.coordinator
        self._journal = counters.coordinator.journal
        self._configs = configs
        self._failing: set[str] = set()
        self._pauses: dict[str, PauseState] = {}
        self.refresh()

    def refresh(self) -> None:
        """Reads pauses and breakers now."""
        with self._journal.reading() as step:
            pauses, fleet = members.notes(step, _PAUSE), members.notes(step, _FAILING)
            failing = {name for (name,) in step.query("SELECT destination FROM breakers")}
        self._pauses = {
            name: PauseState(value != "", at_ms, **json.loads(value or "{}")) for name, (at_ms, value) in pauses.items()
        }
        # Another machine may have found out that a destination fails, or that it works again.
        has_breaker = {name for name, config in self._configs.items() if config.breaker_failures}
        began = {name for name, (_, fails) in fleet.items() if fails} & has_breaker - failing
        ended = {name for name, (_, fails) in fleet.items() if not fails} & failing
        if began or ended:
            with self._journal.step() as step:
                for name in began:
                    step.query("INSERT OR IGNORE INTO breakers VALUES (?, 0, ?)", (name, step.steady_ms))
                for name in ended:
                    step.query("DELETE FROM breakers WHERE destination = ?", (name,))
        self._failing = (failing | began) - ended

    def lasting_blocker(self, destination: str) -> Blocker | None:
        """Why nothing is sent there until the configuration changes or an operator resumes it."""
        if destination not in self._configs:
            return Blocker.NO_DESTINATION
        if not self._configs[destination].enabled:
            return Blocker.DISABLED
        return Blocker.PAUSED if self._pauses.get(destination, _NEVER_PAUSED).is_paused else None

    def blocker(self, destination: str) -> Blocker | None:
        """Why no stored delivery is sent there now, its breaker included; None if it works."""
        lasting = self.lasting_blocker(destination)
        return lasting or (None if self.breaker(destination) == "closed" else Blocker.BREAKER_OPEN)

    # Pauses

    def pause_of(self, destination: str) -> PauseState:
        return self._pauses.get(destination, _NEVER_PAUSED)

    def set_paused(self, destination: str, is_paused: bool, *, reason: str, by: str) -> bool:
        """Pauses or resumes it: on this machine at once, on the others within a second or two. False if that changes
        nothing."""
        key, note = f"{_PAUSE}{destination}", json.dumps({"reason": reason, "by": by}) if is_paused else ""
        with self._journal.step() as step:
            _, known = members.notes(step, _PAUSE).get(destination, (0, ""))
            is_new = known != note and not (known and by == BY_410)
            if is_new:
                members.put_note(step, key, note)
        self.refresh()
        if not is_new:
            return False
        if not is_paused:
            try_to(lambda: self._coordinator.hasten(destination, MOST_HASTENED), f"destination {destination}")
        action = "pause" if is_paused else "resume"
        audit.warning("AUDIT %s destination=%s by=%s reason=%s", action, destination, by, reason)
        return True

    # Circuit breaker and rate

    def wait_s(self, destination: str, patience_s: float = 0.0) -> float:
        """0.0 if the caller may send, which is counted; otherwise the seconds to wait before asking again. Waits here
        if only the rate is in the way, and for less than ``patience_s``.

        After sending, the caller reports ``succeeded`` or ``failed``.
        """
        # The breaker first: a destination that is down uses up no rate.
        if destination in self._failing:
            with self._journal.step() as step:
                state, left_s = self.read_breaker(step, destination)
                if state == "open":
                    return left_s
                if left_s <= 0:  # exactly one caller is the probe: it counts as failed until it has succeeded
                    step.query("UPDATE breakers SET failed_ms = ? WHERE destination = ?", (step.steady_ms, destination))
        rate = self._configs[destination].rate
        wait_s = self._counters.wait_s(parse_rate(rate), destination) if rate else 0.0
        if not 0 < wait_s < patience_s:
            return wait_s
        time.sleep(wait_s)
        return self.wait_s(destination, patience_s - wait_s)

    def succeeded(self, destination: str) -> None:
        """The destination works, even if it refused this webhook. If it was failing for longer than a pause or its
        breaker was open, stored deliveries need not wait for their own next try."""
        if destination not in self._failing:
            return
        note, pause_ms = f"{_FAILING}{destination}", self._configs[destination].breaker_pause_s * 1000
        try:
            with self._journal.step() as step:
                is_closed = self.read_breaker(step, destination)[0] == "closed"
                lasted_ms = step.now_ms - members.notes(step).get(note, (step.now_ms, ""))[0]
                step.query("UPDATE breakers SET failures = 0 WHERE destination = ?", (destination,))
            if not is_closed or lasted_ms >= pause_ms:
                log.info("destination %s: works again%s", destination, "" if is_closed else ", breaker closed")
                self._coordinator.hasten(destination, MOST_HASTENED)  # if it cannot, the next probe tries that again
            with self._journal.step() as step:
                step.query("DELETE FROM breakers WHERE destination = ?", (destination,))
                members.put_note(step, note, "")
            self._failing.discard(destination)
        except StoreUnavailable as error:
            log.warning("destination %s: works, but its failures are not cleared: %s", destination, error)

    def failed(self, destination: str, *, counts: bool = True) -> None:
        """An attempt failed; if it ``counts``, that is one more failure in a row. The pause begins again."""
        config = self._configs[destination]
        if not config.breaker_failures:
            return
        count = """INSERT INTO breakers VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET
            failures = failures + excluded.failures, failed_ms = excluded.failed_ms RETURNING failures"""
        note = f"{_FAILING}{destination}"
        try:
            with self._journal.step() as step:
                ((failures,),) = step.query(count, (destination, counts, step.steady_ms))
                if not step.query("SELECT 1 FROM notes WHERE key = ? AND value <> ''", (note,)):
                    members.put_note(step, note, "1")
        except StoreUnavailable as error:
            log.warning("destination %s: failed, which is not counted: %s", destination, error)
            return
        self._failing.add(destination)
        if counts and failures == config.breaker_failures:
            log.warning("destination %s: keeps failing, breaker open for %g s", destination, config.breaker_pause_s)

    def is_failing(self, destination: str) -> bool:
        """No machine has delivered anything there since its first failure."""
        return destination in self._failing

    def breaker(self, destination: str) -> BreakerState:
        with self._journal.reading() as step:
            return self.read_breaker(step, destination)[0]

    def read_breaker(self, step: Step, destination: str) -> tuple[BreakerState, float]:
        """The state of its circuit breaker, and how much is left of the pause after a failure. If nothing is left, no
        attempt was made for a pause, and a probe is due."""
        config = self._configs[destination]
        rows = step.query("SELECT failures, failed_ms FROM breakers WHERE destination = ?", (destination,))
        if not rows:
            return "closed", float("inf")
        left_s = config.breaker_pause_s - (step.steady_ms - rows[0][1]) / 1000
        if not 0 < config.breaker_failures <= rows[0][0]:
            return "closed", left_s
        return "open" if left_s > 0 else "half-open", left_s
