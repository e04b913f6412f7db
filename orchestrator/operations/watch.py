"""The thread of each process that keeps counts, the search index and alarms up to date, behind the requests."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from deduplication.errors import try_to
from orchestrator.audit import share_actions
from orchestrator.metrics.meter import REDIS_S
from orchestrator.operations.fleet_state import WORKER, ask_other_servers, fleet_state
from orchestrator.operations.search import index_new

if TYPE_CHECKING:
    from orchestrator.build import Service

TICK_S = 1.0
INDEX_S = 0.5  # of each tick, at most
TURN_EVERY_S = 5.0
TURN_MS = 15_000
_TURN = "figures_turn"


class Watch:
    """Every second each process writes what it has counted. One process of the machine has the turn: it fills the
    search index and deletes expired files, and every five seconds asks the other servers, shares the counts and
    evaluates the alarms. If it is silent for 15 seconds, another one takes over."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._id = secrets.token_hex(6)
        self._has_turn = False
        self._ticked_at = time.monotonic()
        self._turn_at = float("-inf")
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        service.coordinator.redis.count = service.meter.count

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Writes what was counted. Another process may take the turn at once."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        _try_all(self._service.meter.flush, self._sign_off)

    def tick(self) -> None:
        service, now = self._service, time.monotonic()
        if service.coordinator.registry:
            service.meter.count((now - self._ticked_at, REDIS_S, service.coordinator.redis.status))
        else:  # otherwise the fleet's thread does it
            _try_all(service.coordinator.tend)
        self._ticked_at = now
        _try_all(service.meter.flush, self._beat)
        if now - self._turn_at >= TURN_EVERY_S:
            self._turn_at = now
            _try_all(self.take_turn)
        if self._has_turn:
            _try_all(lambda: index_new(service.journal, INDEX_S), service.files.sweep)

    def take_turn(self) -> None:
        """Does what one process does for its machine, if it is this one."""
        with self._service.journal.step() as step:
            self._has_turn = step.lead(_TURN, self._id, TURN_MS)
        if not self._has_turn:
            return
        service, registry = self._service, self._service.coordinator.registry
        _try_all(lambda: ask_other_servers(service))
        if registry and service.coordinator.redis.status == "up":
            data_dir = service.settings.data_dir
            _try_all(lambda: service.meter.share(registry), lambda: share_actions(service.journal, data_dir))
        _try_all(lambda: service.alarms.evaluate(fleet_state(service)), service.meter.purge)

    def _beat(self) -> None:
        if self._service.is_worker:
            with self._service.journal.step() as step:
                step.set_meta(f"{WORKER}{self._id}", str(step.now_ms))

    def _sign_off(self) -> None:
        with self._service.journal.step() as step:
            step.query("DELETE FROM meta WHERE key = ?", (f"{WORKER}{self._id}",))
            if step.meta(_TURN).startswith(self._id):
                step.set_meta(_TURN, "")

    def _run(self) -> None:
        self.tick()
        while not self._stop.wait(TICK_S):
            self.tick()


def _try_all(*work: Callable[[], object]) -> None:
    """What fails is logged, and tried again with the next tick."""
    for task in work:
        try_to(task, "background work")
