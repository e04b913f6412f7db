"""Whether a destination may be sent to now: its circuit breaker and its rate."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from deduplication.errors import StoreUnavailable
from deduplication.journal.sqlite import Step
from orchestrator.delivery.counters import Counters, Rate

log = logging.getLogger(__name__)

State = Literal["closed", "open", "half-open"]

READ_EVERY_S = 1.0


@dataclass(frozen=True)
class Limits:
    """The limits of one destination. With ``breaker_failures`` 0 it has no circuit breaker."""

    rate: Rate | None = None
    breaker_failures: int = 5
    breaker_pause_s: float = 30


class Guard:
    """Closed: everything is sent. Open: nothing for the pause. Then half-open: one delivery, the probe, may try, and
    the next one after another pause, unless that one has succeeded.

    All processes of a machine share its circuit breakers, in the journal, and all processes of the fleet the rates.
    Whether a destination is failing is read once a second, not for each email.
    """

    def __init__(self, counters: Counters, limits: Mapping[str, Limits]) -> None:
        self._counters = counters
        self._journal = counters.coordinator.journal
        self._limits = limits
        self._failing: set[str] = set()  # destinations whose last attempt failed
        self._read_at = float("-inf")

    def wait_s(self, destination: str) -> float:
        """0.0 if the caller may send, which is counted; otherwise the seconds to wait before asking again.

        After sending, the caller reports ``succeeded`` or ``failed``.
        """
        if time.monotonic() - self._read_at > READ_EVERY_S:
            with self._journal.reading() as step:
                self._failing = {name for (name,) in step.query("SELECT destination FROM breakers")}
            self._read_at = time.monotonic()
        # The breaker first: a destination that is down uses up no rate.
        if destination in self._failing and (wait_s := self._breaker_wait_s(destination)):
            return wait_s
        rate = self._limits[destination].rate
        return self._counters.wait_s(rate, destination) if rate else 0.0

    def succeeded(self, destination: str) -> bool:
        """The destination works, even if it refused this webhook. True if that closes its circuit breaker."""
        if destination not in self._failing:
            return False
        try:
            with self._journal.step() as step:
                was_closed = self._read(step, destination)[0] == "closed"
                step.query("DELETE FROM breakers WHERE destination = ?", (destination,))
        except StoreUnavailable as error:
            log.warning("destination %s: works, but its failures are not cleared: %s", destination, error)
            return False
        self._failing.discard(destination)
        if not was_closed:
            log.info("destination %s: works again, breaker closed", destination)
        return not was_closed

    def failed(self, destination: str) -> None:
        """One more failure in a row. The pause counts from the latest one."""
        limits = self._limits[destination]
        if not limits.breaker_failures:
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
        if failures == limits.breaker_failures:
            log.warning("destination %s: keeps failing, breaker open for %g s", destination, limits.breaker_pause_s)

    def state(self, destination: str) -> State:
        with self._journal.reading() as step:
            return self._read(step, destination)[0]

    def _breaker_wait_s(self, destination: str) -> float:
        """If it is half-open, exactly one caller gets 0.0: it counts as failed until it has succeeded."""
        with self._journal.step() as step:
            state, wait_s = self._read(step, destination)
            if state == "half-open":
                step.query("UPDATE breakers SET failed_ms = ? WHERE destination = ?", (step.steady_ms, destination))
            return wait_s

    def _read(self, step: Step, destination: str) -> tuple[State, float]:
        """The state of its circuit breaker, and how much is left of the pause."""
        limits = self._limits[destination]
        rows = step.query("SELECT failures, failed_ms FROM breakers WHERE destination = ?", (destination,))
        if not rows or not 0 < limits.breaker_failures <= rows[0][0]:
            return "closed", 0.0
        left_s = limits.breaker_pause_s - (step.steady_ms - rows[0][1]) / 1000
        return ("open", left_s) if left_s > 0 else ("half-open", 0.0)
