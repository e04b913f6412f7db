"""Limits how many wrong tokens an address may send, counted across all processes and servers."""

from __future__ import annotations

import hashlib
import ipaddress
import math
import time

import limits
from limits.storage import Storage
from limits.strategies import FixedWindowRateLimiter

from orchestrator.delivery.counters import Clock, FallbackCounters

LIMIT = limits.parse("20 per minute")
NETWORK_OF_ONE = 64  # bits: whoever has one IPv6 address has a whole network of them


class GuessLimit:
    """For the page, the admin API and the metrics. Only time lifts it, a correct token does not.

    Ingress is never limited: behind a shared proxy, one guesser would stop all emails.
    """

    def __init__(self, shared: Storage, fallback: Storage, clock: Clock = time.time) -> None:
        self._counters = FallbackCounters(shared, fallback, lambda: None, clock)
        self._clock = clock

    def wait_s(self, address: str) -> int:
        """0 if the address may send a token, otherwise the seconds until it may."""
        key = _key(address)

        def ask(counters: Storage) -> int:
            limiter = FixedWindowRateLimiter(counters)
            if limiter.test(LIMIT, key):
                return 0
            left_s = limiter.get_window_stats(LIMIT, key).reset_time - self._clock()
            return max(1, min(math.ceil(left_s), LIMIT.get_expiry()))

        return self._counters.ask(ask)

    def count(self, address: str) -> None:
        """Counts a wrong token. The minute begins with the first one."""
        self._counters.ask(lambda counters: FixedWindowRateLimiter(counters).hit(LIMIT, _key(address)))


def _key(address: str) -> str:
    """A digest, because an address is personal data."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        network = address
    else:
        bits = NETWORK_OF_ONE if parsed.version == 6 else parsed.max_prefixlen
        network = str(ipaddress.ip_network(f"{parsed}/{bits}", strict=False))
    return f"guesses/{hashlib.sha256(network.encode()).hexdigest()[:16]}"
