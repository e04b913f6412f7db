"""How many events there were in the last seconds: counted in Redis for the fleet, or else in the journal."""

import hashlib
import ipaddress
import logging
import math
import re
from functools import lru_cache

from deduplication.errors import StoreMisconfigured, StoreUnavailable
from deduplication.journal.coordinator import Coordinator
from deduplication.values import frozen

log = logging.getLogger(__name__)

_RATE = re.compile(
    r"\s*([1-9]\d{0,8})\s*(?:/|\sper\s)\s*([1-9]\d{0,3})?\s*(s|sec|min|h|d|(?:second|minute|hour|day)s?)\s*",
    re.IGNORECASE | re.ASCII,
)
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}  # by the first letter of the unit
# A list of the times of the latest events, by the clock of Redis: those of the machines differ. As many events as the
# rate allows are kept: if the oldest of them is still in the window, the window is full.
_COUNT = """
local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local most, window_ms, counts = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3] == '1'
local oldest_ms = redis.call('LINDEX', KEYS[1], most - 1)
if oldest_ms and oldest_ms + window_ms >= now_ms then
    return oldest_ms + window_ms - now_ms + 1
end
if counts then
    redis.call('LPUSH', KEYS[1], now_ms)
    redis.call('LTRIM', KEYS[1], 0, most - 1)
    redis.call('PEXPIRE', KEYS[1], window_ms + 1)
end
return 0
"""


@frozen
class Rate:
    """At most ``amount`` events in any ``window_s`` seconds."""

    amount: int
    window_s: int


GUESS_RATE = Rate(20, 60)  # of tokens, by one address
IPV6_PREFIX_BITS = 64  # whoever has one IPv6 address has a whole network of them


@lru_cache
def parse_rate(text: str) -> Rate:
    """A number per second, minute, hour or day, or per several of them. Raises ValueError."""
    found = _RATE.fullmatch(text)
    if found is None:
        raise ValueError('must be a rate such as "10/s", "600/min" or "1000/hour"')
    return Rate(int(found[1]), int(found[2] or 1) * _SECONDS[found[3][0].lower()])


@frozen
class Counters:
    """Counts in Redis, or in the journal of this machine while Redis does not answer or there is none. All processes of
    the fleet, or of the machine, count together."""

    coordinator: Coordinator

    def wait_s(self, rate: Rate, name: str, *, counts: bool = True) -> float:
        """0.0 if the rate allows one more, which ``counts`` then; otherwise the seconds until it does."""
        registry, state, window_ms = self.coordinator.registry, self.coordinator.redis, rate.window_s * 1000
        if registry and state.status != "gone":
            values = (rate.amount, window_ms, int(counts))
            try:
                count = lambda client, prefix: client.eval(_COUNT, 1, f"{prefix}rate:{name}", *values)  # noqa: E731
                return float(registry.ask(count, always=True)) / 1000
            except StoreUnavailable:
                state.suspect()  # its probe finds out, and logs it
            except StoreMisconfigured as error:
                log.error("rates are counted on this machine alone: %s", error)
        journal = self.coordinator.journal
        with journal.step() if counts else journal.reading() as step:
            oldest = "SELECT ends_ms FROM windows WHERE key = ? AND ends_ms >= ? ORDER BY ends_ms DESC LIMIT 1 OFFSET ?"
            if full_until := step.query(oldest, (name, step.steady_ms, rate.amount - 1)):
                return float(full_until[0][0] - step.steady_ms + 1) / 1000
            if counts:
                step.query("DELETE FROM windows WHERE ends_ms < ?", (step.steady_ms,))
                step.query("INSERT INTO windows VALUES (?, ?)", (name, step.steady_ms + window_ms))
            return 0.0

    def guess_wait_s(self, address: str, *, counts: bool = False) -> int:
        """0 if the address may send a token, otherwise the seconds until it may; ``counts`` a wrong one. For the page,
        the admin API and the metrics. Only time lifts it, a correct token does not.

        Ingress is never limited: behind a shared proxy, one guesser would stop all emails.
        """
        try:
            width = f"/{IPV6_PREFIX_BITS}" if ":" in address else ""
            network = str(ipaddress.ip_network(f"{address}{width}", strict=False))
        except ValueError:
            network = address
        name = f"guesses/{hashlib.sha256(network.encode()).hexdigest()[:16]}"  # an address is personal data
        return math.ceil(self.wait_s(GUESS_RATE, name, counts=counts))
