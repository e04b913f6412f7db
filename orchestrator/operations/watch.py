"""The thread of each process that looks after the figures, behind the requests."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable

from deduplication.errors import DeduplicationError
from deduplication.journal.coordinator import Coordinator
from orchestrator.metrics.counts import Counts
from orchestrator.metrics.meter import Meter
from orchestrator.operations.alarms import Alarms
from orchestrator.operations.fleet_state import Observer
from orchestrator.operations.providers import ProvidersSeen

log = logging.getLogger(__name__)

TICK_S = 1.0
TURN_EVERY_S = 5.0
TURN_MS = 15_000
_TURN = "figures_turn"


class Watch:
    """Every second a process writes what it has counted. Every five seconds one process of the machine asks the other
    servers, shares the counts and judges the alarms; if it falls silent, another one does."""

    def __init__(
        self,
        coordinator: Coordinator,
        meter: Meter,
        counts: Counts,
        providers: ProvidersSeen,
        observer: Observer,
        alarms: Alarms,
    ) -> None:
        self._coordinator = coordinator
        self._redis = coordinator.redis if coordinator.registry else None
        self._journal = coordinator.journal
        self._meter = meter
        self._counts = counts
        self._providers = providers
        self._observer = observer
        self._alarms = alarms
        self._id = secrets.token_hex(6)
        self._ticked_at = time.monotonic()
        self._turn_at = float("-inf")
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="figures", daemon=True)
        coordinator.redis.count_step = meter.count_redis_step

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """What was counted is written; another process may take the turn at once."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        for last in (self._counts.flush, self._providers.flush, self._observer.end, self._give_up_turn):
            self._try_to(last)

    def tick(self) -> None:
        now = time.monotonic()
        if self._redis:
            self._meter.time_redis(self._redis.status, now - self._ticked_at)
        else:  # the fleet's thread does it otherwise
            self._try_to(self._coordinator.tend)
        self._ticked_at = now
        for each in (self._counts.flush, self._providers.flush, self._observer.beat):
            self._try_to(each)
        if now - self._turn_at >= TURN_EVERY_S:
            self._turn_at = now
            self._try_to(self.take_turn)

    def take_turn(self) -> None:
        """What one process does for its machine, if it is this one."""
        if not self._has_turn():
            return
        self._try_to(self._observer.observe)
        shared = self._observer.shared
        if shared and self._redis and self._redis.status == "up":
            self._try_to(lambda: self._counts.share(shared))
        self._try_to(lambda: self._alarms.look(self._observer.fleet_state()))
        self._try_to(self._counts.purge)

    def _has_turn(self) -> bool:
        with self._journal.step() as step:
            holder, _, until_ms = step.meta(_TURN).partition(" ")
            is_valid = step.now_ms < int(until_ms or 0) <= step.now_ms + 2 * TURN_MS  # a clock may have been set back
            if holder != self._id and is_valid:
                return False
            step.set_meta(_TURN, f"{self._id} {step.now_ms + TURN_MS}")
            return True

    def _give_up_turn(self) -> None:
        with self._journal.step() as step:
            if step.meta(_TURN).startswith(self._id):
                step.set_meta(_TURN, "")

    def _run(self) -> None:
        self.tick()
        while not self._stop.wait(TICK_S):
            self.tick()

    def _try_to(self, do: Callable[[], object]) -> None:
        try:
            do()
        except DeduplicationError as error:
            log.info("figures: tried again later: %s", error)
        except Exception:  # a thread that ends would leave the figures of this process behind for good
            log.exception("figures: tried again later")
