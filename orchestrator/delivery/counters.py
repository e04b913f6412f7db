"""How many events there were in the last seconds: counted in Redis for the fleet, or else in the journal."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar, cast

from limits import RateLimitItem
from limits.storage import RedisStorage
from limits.typing import RedisClient

from deduplication.errors import StoreMisconfigured, StoreUnavailable
from deduplication.journal.coordinator import Coordinator

log = logging.getLogger(__name__)

T = TypeVar("T")

MARGIN_S = 0.01  # a window is full up to and including its last instant
_BY_THE_TIME_OF_REDIS = b"local time = redis.call('TIME')\nARGV[1] = time[1] + time[2] / 1000000\n"


class Counters:
    """Counts in the moving windows of limits: in Redis, or in the journal of this machine while Redis does not answer
    or there is none. All processes of the fleet, or of the machine, count together."""

    def __init__(self, coordinator: Coordinator) -> None:
        self.journal = coordinator.journal
        self._coordinator = coordinator
        registry = coordinator.registry
        self._redis = registry and RedisWindows(*registry.ask(lambda client, prefix: (client, prefix)))

    def hit(self, rate: RateLimitItem, name: str) -> float:
        """Counts one more and returns 0.0 if the rate allows it; otherwise the seconds until it may."""
        window = (rate.key_for(name), rate.amount, rate.get_expiry())
        if self._ask(lambda windows: windows.acquire_entry(*window)):
            return 0.0
        return self.wait_s(rate, name) or MARGIN_S

    def wait_s(self, rate: RateLimitItem, name: str) -> float:
        """How long until the rate allows one more. Nothing is counted."""
        window = (rate.key_for(name), rate.amount, rate.get_expiry())
        oldest_s, count = self._ask(lambda windows: windows.get_moving_window(*window))
        if count < rate.amount:
            return 0.0
        left_s = oldest_s + rate.get_expiry() - self.journal.clock.now_ms() / 1000
        return max(0.0, min(left_s, rate.get_expiry())) + MARGIN_S  # the clock of Redis may differ from ours

    def _ask(self, question: Callable[[RedisWindows | Counters], T]) -> T:
        registry, windows, state = self._coordinator.registry, self._redis, self._coordinator.redis
        if registry and windows and state.status != "gone":
            try:
                return cast(T, registry.ask(lambda *_: question(windows)))
            except StoreUnavailable:
                state.suspect()  # its probe finds out, and logs it
            except StoreMisconfigured as error:
                log.error("rates are counted on this machine alone: %s", error)
        return question(self)

    # The moving windows in the journal, as limits' storages have them

    def acquire_entry(self, key: str, limit: int, expiry: int) -> bool:
        """True if there were fewer than ``limit`` entries in the last ``expiry`` seconds; then there is one more."""
        with self.journal.step() as step:
            step.query("DELETE FROM windows WHERE ends_ms < ?", (step.steady_ms,))
            ((count,),) = step.query("SELECT count(*) FROM windows WHERE key = ?", (key,))
            if count >= limit:
                return False
            step.query("INSERT INTO windows VALUES (?, ?)", (key, step.steady_ms + expiry * 1000))
            return True

    def get_moving_window(self, key: str, limit: int, expiry: int) -> tuple[float, int]:
        """When the oldest entry was made, by the time of day, and how many there are."""
        wanted = "SELECT coalesce(min(ends_ms), 0), count(*) FROM windows WHERE key = ? AND ends_ms >= ?"
        with self.journal.reading() as step:
            ((ends_ms, count),) = step.query(wanted, (key, step.steady_ms))
            return (step.now_ms + ends_ms - step.steady_ms) / 1000 - expiry, count


class RedisWindows(RedisStorage):
    """limits' storage on the client of the registry, whatever kind of Redis that is.

    Entries carry the time of Redis. limits sends that of the machine: machines whose clocks differ would not see each
    other's entries.
    """

    SCRIPT_ACQUIRE_MOVING_WINDOW = _BY_THE_TIME_OF_REDIS + RedisStorage.SCRIPT_ACQUIRE_MOVING_WINDOW

    def __init__(self, client: RedisClient, key_prefix: str) -> None:
        self._client = client
        super().__init__("redis://", key_prefix=f"{key_prefix}limits")  # the client it makes of this never connects

    def get_connection(self, readonly: bool = False) -> RedisClient:
        return self._client
