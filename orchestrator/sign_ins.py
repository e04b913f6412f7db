"""How often somebody may try to sign in: counted for each address, by all processes and servers together."""

from __future__ import annotations

import hashlib
import ipaddress
import math
import time

import limits
from limits.storage import Storage
from limits.strategies import MovingWindowRateLimiter

from orchestrator.delivery.counters import Clock, FallbackCounters

TRIES = limits.parse("10 per minute")
NETWORK_OF_ONE = 64  # bits: who has one IPv6 address has as many as they like


class SignIns:
    def __init__(self, shared: Storage, fallback: Storage, clock: Clock = time.time) -> None:
        self._counters = FallbackCounters(shared, fallback, lambda: None, clock)
        self._clock = clock

    def wait_s(self, address: str) -> int:
        """0: go ahead, which has been counted; otherwise in how many seconds to try again.

        A try is counted before the token is looked at: of many at once, no more than the limit are looked at.
        """
        key = _key(address)

        def ask(counters: Storage) -> int:
            limiter = MovingWindowRateLimiter(counters)
            if limiter.hit(TRIES, key):
                return 0
            left_s = limiter.get_window_stats(TRIES, key).reset_time - self._clock()
            return max(1, min(math.ceil(left_s), TRIES.get_expiry()))

        return self._counters.ask(ask)

    def succeeded(self, address: str) -> None:
        """Whoever has a token is no guesser: their slips of the pen are forgotten."""
        self._counters.ask(lambda counters: MovingWindowRateLimiter(counters).clear(TRIES, _key(address)))


def _key(address: str) -> str:
    """A digest: an address is personal data, and the counters are no place for it."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        network = address
    else:
        bits = NETWORK_OF_ONE if parsed.version == 6 else parsed.max_prefixlen
        network = str(ipaddress.ip_network(f"{parsed}/{bits}", strict=False))
    return f"sign-in/{hashlib.sha256(network.encode()).hexdigest()[:16]}"
