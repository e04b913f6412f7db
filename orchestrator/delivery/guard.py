"""Whether a destination may be sent to now: its circuit breaker and its rate."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import limits
from limits import RateLimitItem

from deduplication.errors import StoreUnavailable
from deduplication.journal.sqlite import Step
from orchestrator.delivery.counters import Counters

log = logging.getLogger(__name__)

State = Literal["closed", "open", "half-open"]

PROBE_WAIT_S = 3.0
READ_EVERY_S = 1.0

_RATE = re.compile(r"\s*([1-9][0-9]{0,8})\s*(?:/|\sper\s)\s*([1-9][0-9]{0,3})?\s*([a-z]+)\s*", re.IGNORECASE)
_UNITS = {"s": "second", "sec": "second", "min": "minute", "h": "hour", "d": "day"}


def parse_rate(text: str) -> RateLimitItem:
    """A number per second, minute, hour or day, or per several of them. Raises ValueError."""
    found = _RATE.fullmatch(text)
    unit = found[3].lower() if found else ""
    name = _UNITS.get(unit, unit.removesuffix("s"))
    if found is None or name not in _UNITS.values():
        raise ValueError('must be a rate such as "10/s", "600/min" or "1000/hour"')
    return limits.parse(f"{found[1]} per {found[2] or 1} {name}")


@dataclass(frozen=True)
class Limits:
    """The limits of one destination. With ``breaker_failures`` 0 it has no circuit breaker.

    ``probe_lease_s`` must be longer than a delivery attempt: after that, another process may probe.
    """

    rate: RateLimitItem | None = None
    breaker_failures: int = 5
    breaker_pause_s: float = 30
    probe_lease_s: float = 15


@dataclass(frozen=True)
class _Breaker:
    """A circuit breaker at one moment. ``wait_s``: 0.0 if the caller may send, or be the probe."""

    failures: int = 0
    state: State = "closed"
    wait_s: float = 0.0


class Guard:
    """Closed: everything is sent. Open: nothing for the pause. Then half-open: one delivery, the probe, decides.

    All processes of a machine share its circuit breakers, in the journal, and all processes of the fleet the rates.
    Whether a destination is failing is read once a second, not for each email.
    """

    def __init__(self, counters: Counters, limits: Mapping[str, Limits]) -> None:
        self._counters = counters
        self._journal = counters.journal
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
        rate, is_failing = self._limits[destination].rate, destination in self._failing
        wait_s = 0.0
        if is_failing and rate:  # a destination that is down uses up no rate
            wait_s = self._breaker_wait_s(destination, probes=False)
        if rate and not wait_s:
            wait_s = self._counters.hit(rate, destination)
        if is_failing and not wait_s:
            wait_s = self._breaker_wait_s(destination, probes=True)
        return wait_s

    def succeeded(self, destination: str) -> bool:
        """The destination works, even if it refused this webhook. True if that closes its circuit breaker."""
        if destination not in self._failing:
            return False
        try:
            with self._journal.step() as step:
                was_tripped = self._read(step, destination).state != "closed"
                step.query("DELETE FROM breakers WHERE destination = ?", (destination,))
        except StoreUnavailable as error:
            log.warning("destination %s: works, but its failures are not cleared: %s", destination, error)
            return False
        self._failing.discard(destination)
        if was_tripped:
            log.info("destination %s: works again, breaker closed", destination)
        return was_tripped

    def failed(self, destination: str) -> None:
        """One more failure in a row. A request that began before the breaker opened does not lengthen the pause."""
        limits = self._limits[destination]
        if not limits.breaker_failures:
            return
        try:
            with self._journal.step() as step:
                breaker = self._read(step, destination)
                if breaker.state == "open":
                    return
                row = (destination, breaker.failures + 1, step.steady_ms, 0)
                step.query("INSERT OR REPLACE INTO breakers VALUES (?, ?, ?, ?)", row)
        except StoreUnavailable as error:
            log.warning("destination %s: failed, which is not counted: %s", destination, error)
            return
        self._failing.add(destination)
        if breaker.failures + 1 >= limits.breaker_failures:
            log.warning("destination %s: keeps failing, breaker open for %g s", destination, limits.breaker_pause_s)

    def state(self, destination: str) -> State:
        with self._journal.reading() as step:
            return self._read(step, destination).state

    def _breaker_wait_s(self, destination: str, *, probes: bool) -> float:
        """Of those who would probe, exactly one gets 0.0 after each pause, and another once its lease is over."""
        with self._journal.step() as step:
            breaker = self._read(step, destination)
            if probes and breaker.state == "half-open" and not breaker.wait_s:
                step.query("UPDATE breakers SET probed_ms = ? WHERE destination = ?", (step.steady_ms, destination))
            return breaker.wait_s

    def _read(self, step: Step, destination: str) -> _Breaker:
        limits = self._limits[destination]
        rows = step.query("SELECT failures, failed_ms, probed_ms FROM breakers WHERE destination = ?", (destination,))
        failures, failed_ms, probed_ms = rows[0] if rows else (0, 0, 0)
        if not 0 < limits.breaker_failures <= failures:
            return _Breaker(failures)
        pause_left_s = limits.breaker_pause_s - (step.steady_ms - failed_ms) / 1000
        if pause_left_s > 0:
            return _Breaker(failures, "open", pause_left_s)
        is_probed = (step.steady_ms - probed_ms) / 1000 < limits.probe_lease_s
        return _Breaker(failures, "half-open", PROBE_WAIT_S if is_probed else 0.0)
