"""Whether a destination may be sent to now: its breaker and its rate, counted together by all processes."""

from __future__ import annotations

import logging
import math
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import limits
from limits import RateLimitItem
from limits.storage import Storage
from limits.strategies import MovingWindowRateLimiter

from orchestrator.delivery.counters import Clock, FallbackCounters

log = logging.getLogger(__name__)

State = Literal["closed", "open", "half-open"]

FAILURES_KEPT_S = 24 * 3600
PROBE_WAIT_S = 3.0
KNOWN_WELL_S = 1.0
MARGIN_S = 0.01  # a window is full up to and including its last instant

_RATE = re.compile(r"\s*([1-9][0-9]{0,8})\s*(?:/|\sper\s)\s*([1-9][0-9]{0,3})?\s*([a-z]+)\s*", re.IGNORECASE)
_UNITS = {"s": "second", "sec": "second", "min": "minute", "h": "hour", "d": "day"}
_NAMES = frozenset(_UNITS.values())


def parse_rate(text: str) -> RateLimitItem:
    """So many in any second, minute, hour or day, or in so many of them. Raises ValueError that says what it takes."""
    found = _RATE.fullmatch(text)
    unit = found[3].lower() if found else ""
    name = _UNITS.get(unit, unit.removesuffix("s"))
    if found is None or name not in _NAMES:
        raise ValueError('takes a rate such as "10/s", "600/min" or "1000/hour"')
    return limits.parse(f"{found[1]} per {found[2] or 1} {name}")


@dataclass(frozen=True)
class Limits:
    """Of one destination. ``breaker_failures`` 0: no breaker. The pause is in whole seconds, rounded up.

    ``probe_lease_s`` must be longer than a delivery attempt: a probe not heard of by then is taken for dead.
    """

    rate: RateLimitItem | None = None
    breaker_failures: int = 5
    breaker_pause_s: float = 30
    probe_lease_s: float = 15


class Guard:
    """Closed: everything goes. Open: nothing for the pause. Then half-open: one probe decides.

    All processes count together in ``shared``; while that fails, each alone in ``fallback``. ``clock`` is the
    time in seconds that both count by. While the shared ones are known to be gone (``is_gone``), nobody waits for them.
    """

    def __init__(
        self,
        shared: Storage,
        fallback: Storage,
        limits: Mapping[str, Limits],
        clock: Clock = time.time,
        is_gone: Callable[[], bool] = lambda: False,
    ) -> None:
        self._counters = FallbackCounters(shared, fallback, self._forget_outage, clock, is_gone)
        self._fallback = fallback
        self._limits = limits
        self._clock = clock
        self._well_until_s: dict[str, float] = {}
        self._ailing: set[str] = set()  # destinations whose failures this process knows of
        self._probes: dict[str, int] = {}  # at which count of failures it probes which destination

    def wait_s(self, destination: str) -> float:
        """0.0: go ahead, which has been counted; otherwise how long to wait before asking again.

        Whoever goes ahead says afterwards how it went, by ``succeeded`` or ``failed``. That a destination without a
        rate is well is asked once a second, not for each email.
        """
        is_asked = self._limits[destination].rate is not None or destination in self._ailing
        if not is_asked and self._clock() < self._well_until_s.get(destination, 0.0):
            return 0.0
        wait_s = self._counters.ask(lambda counters: self._wait_s(counters, destination))
        if wait_s == 0.0:
            self._well_until_s[destination] = self._clock() + KNOWN_WELL_S
        return wait_s

    def succeeded(self, destination: str) -> bool:
        """The destination is at work, even if it refused this one webhook: the breaker closes, failures are forgotten.

        True: until then it was not well.

        Nothing is asked where this process knows of no failures. It learns of those that others counted when it asks
        for its go-ahead; of those counted after that, the next success.
        """
        self._probes.pop(destination, None)
        if destination not in self._ailing:
            return False
        self._ailing.discard(destination)
        was_tripped = self._counters.ask(lambda counters: self._breaker(counters, destination).close())
        if was_tripped:
            log.info("destination %s: works again, breaker closed", destination)
        return was_tripped

    def failed(self, destination: str) -> None:
        """The destination did not answer, or is not well: one more failure in a row.

        While the breaker is not closed only the probe's failure counts. A process cannot tell its own probe's from that
        of a request it had under way before; one such request may take the probe's place, which costs one pause.
        """
        if not self._limits[destination].breaker_failures:
            return
        probed_at = self._probes.pop(destination, None)
        self._ailing.add(destination)
        self._counters.ask(lambda counters: self._breaker(counters, destination).count_failure(probed_at))

    def state(self, destination: str) -> State:
        return self._counters.ask(lambda counters: self._breaker(counters, destination).state())

    def _breaker(self, counters: Storage, destination: str) -> _Breaker:
        return _Breaker(counters, destination, self._limits[destination])

    def _wait_s(self, counters: Storage, destination: str) -> float:
        """The breaker is asked first, so that a closed door uses up no rate."""
        breaker = self._breaker(counters, destination)
        failures = breaker.failures()
        if failures:
            self._ailing.add(destination)
        if not breaker.is_tripped(failures):
            return self._rate_wait_s(counters, destination)
        return breaker.pause_left_s(self._clock()) or self._probe_wait_s(breaker, failures)

    def _probe_wait_s(self, breaker: _Breaker, failures: int) -> float:
        if not breaker.take_probe(failures):
            return PROBE_WAIT_S
        wait_s = self._rate_wait_s(breaker.counters, breaker.destination)
        if wait_s:
            breaker.give_back_probe(failures)
        else:
            self._probes[breaker.destination] = failures
        return wait_s

    def _rate_wait_s(self, counters: Storage, destination: str) -> float:
        rate = self._limits[destination].rate
        if rate is None:
            return 0.0
        limiter = MovingWindowRateLimiter(counters)
        if limiter.hit(rate, destination):
            return 0.0
        room_at_s = limiter.get_window_stats(rate, destination).reset_time
        return _wait_s(room_at_s - self._clock(), rate.get_expiry())

    def _forget_outage(self) -> None:
        """What this process counted alone must not count again when the shared counters fail once more."""
        for destination in self._limits:
            self._breaker(self._fallback, destination).close()


def _wait_s(left_s: float, most_s: float) -> float:
    """Never 0.0, which would mean to go ahead, and never more than a clock that was set back should cost."""
    return max(0.0, min(left_s, most_s)) + MARGIN_S


@dataclass(frozen=True)
class _Breaker:
    """One destination's breaker, in one set of counters.

    It is tripped from ``breaker_failures`` on; a failed probe adds one more failure. So each opening has a
    count of its own, which names the probe that may end it: whoever comes late with an older count changes nothing.
    """

    counters: Storage
    destination: str
    limits: Limits

    def failures(self) -> int:
        return self.counters.get(self._key("failures")) if self.limits.breaker_failures else 0

    def is_tripped(self, failures: int) -> bool:
        return 0 < self.limits.breaker_failures <= failures

    def state(self) -> State:
        if not self.is_tripped(self.failures()):
            return "closed"
        return "open" if self.counters.get(self._key("pause")) else "half-open"

    def pause_left_s(self, now_s: float) -> float:
        """0.0 if it is over."""
        if not self.counters.get(self._key("pause")):
            return 0.0
        return _wait_s(self.counters.get_expiry(self._key("pause")) - now_s, self._pause_s)

    def count_failure(self, probed_at: int | None) -> None:
        """``probed_at``: the count of failures at which the process took the probe, if it did."""
        failures = self.failures()
        if self.is_tripped(failures) and failures != probed_at:
            return  # it was under way when the breaker opened
        if self.is_tripped(failures + 1):
            self._pause()  # before the count says so, or somebody would find it half-open
        if self.is_tripped(self.counters.incr(self._key("failures"), FAILURES_KEPT_S + self._pause_s)):
            self._pause()  # others may have counted at the same time

    def close(self) -> bool:
        """Whether it was tripped."""
        failures = self.failures()
        self.counters.clear(self._key("failures"))
        self.counters.clear(self._key("pause"))
        self.give_back_probe(failures)
        return self.is_tripped(failures)

    def take_probe(self, failures: int) -> bool:
        """True for exactly one caller at each opening, or another once its lease is over."""
        return self.counters.incr(self._probe_key(failures), max(1, math.ceil(self.limits.probe_lease_s))) == 1

    def give_back_probe(self, failures: int) -> None:
        self.counters.clear(self._probe_key(failures))

    @property
    def _pause_s(self) -> int:
        return max(1, math.ceil(self.limits.breaker_pause_s))

    def _pause(self) -> None:
        """A pause under way is not lengthened: only the first increment sets when a counter ends."""
        if self.counters.incr(self._key("pause"), self._pause_s) == 1:
            log.warning("destination %s: keeps failing, breaker open for %d s", self.destination, self._pause_s)

    def _probe_key(self, failures: int) -> str:
        return self._key(f"probe/{failures}")

    def _key(self, name: str) -> str:
        return f"breaker/{self.destination}/{name}"
