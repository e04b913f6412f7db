"""Background work of each process: counts, pauses and breakers; and, once for each machine, the search index, expired
files, alarms, and what Redis reports about itself."""

from __future__ import annotations

import logging
import secrets
import socket
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from deduplication.background import Threads
from deduplication.errors import DeduplicationError, try_to
from deduplication.room import most_payload_bytes, read_info
from orchestrator.audit import share_actions
from orchestrator.metrics.meter import REDIS_S
from orchestrator.operations.fleet_state import FACTS, FRESH_MS, WORKER, Facts, fleet_state, own_workers, read_progress
from orchestrator.operations.search import catch_up
from orchestrator.version import our_version

if TYPE_CHECKING:
    from orchestrator.build import Service

log = logging.getLogger(__name__)

TICK_S = 1.0
INDEX_S = 0.5  # of each tick, at most
LONG_TICK = 5  # in ticks
TURN_MS = 15_000
_TURN = "figures_turn"


def find_facts(service: Service) -> None:
    """Asks Redis, measures stored payloads, and records both for all processes of this machine."""
    facts = Facts(members=service.fleet.members if service.fleet else {})
    registry = service.coordinator.registry
    if registry and service.coordinator.redis.status == "up":
        try:
            info = read_info(registry, "memory") | read_info(registry, "stats")
            sizes = registry.ask(lambda client, prefix: client.hvals(f"{prefix}room"))
            facts.redis_payload_bytes = sum(map(int, sizes))
            facts.redis_payload_limit_bytes = most_payload_bytes(registry, info.get("maxmemory", 0))
            facts.maxmemory_policy, facts.evicted_keys = info.get("maxmemory_policy"), info.get("evicted_keys")
            facts.used_bytes, facts.limit_bytes = info.get("used_memory"), info.get("maxmemory") or None
        except DeduplicationError as error:
            log.info("Redis did not report its state: %s", error)
    with service.journal.reading() as step:
        facts.journal_payload_bytes = int(step.query("SELECT total(length(content)) FROM payloads")[0][0])
        used = step.query("SELECT sum(size) FROM payloads WHERE domain <> '' GROUP BY domain ORDER BY 1 DESC LIMIT 1")
        facts.suppressed_share = used[0][0] / service.journal.retention.suppressed_bytes if used else 0
    with service.journal.step() as step:
        facts.at_ms = step.now_ms
        step.set_meta(FACTS, facts.model_dump_json())
        silent = "DELETE FROM meta WHERE key GLOB ? AND CAST(value AS INTEGER) < ?"
        step.query(silent, (f"{WORKER}*", step.now_ms - 3 * FRESH_MS))


def describe_machine(service: Service) -> dict[str, Any]:
    """What the other machines learn about this one from its heartbeat."""
    tripped = [name for name in service.config.destinations if service.guard.breaker(name) != "closed"]
    with service.journal.reading() as step:
        workers = own_workers(step)
        share = Facts.model_validate_json(step.meta(FACTS) or "{}").suppressed_share
        about = {"version": our_version(), "host": socket.gethostname(), **read_progress(step)}
    return {**about, "workers": workers, "tripped": tripped, "suppressed_share": share}


class Watch:
    """Every second each process reads pauses and breakers, and writes what it has counted. One process of the machine
    has the turn: it fills the search index and deletes expired files, and every five seconds asks Redis, shares the
    counts and evaluates the alarms. If it is silent for 15 seconds, another one takes over. Pauses are read by a thread
    of their own, because alarms and files wait for other servers."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._id = secrets.token_hex(6)
        self._has_turn = False
        self._ticks = 0
        self._threads = Threads("watch", self._tick_on, self._refresh_guard)
        self.start = self._threads.start
        service.coordinator.redis.count = service.meter.count

    def close(self) -> None:
        """Writes what was counted. Another process may take the turn at once."""
        self._threads.close()
        for task in (self._service.meter.flush, self._sign_off):
            try_to(task, "background work")

    def tick(self) -> None:
        """What fails is logged, and tried again with the next tick."""
        for task in self._tasks():
            try_to(task, "background work")
        self._ticks += 1

    def _tasks(self) -> Iterator[Callable[[], object]]:
        service, registry = self._service, self._service.coordinator.registry
        if registry:
            service.meter.count((TICK_S, REDIS_S, service.coordinator.redis.status))
        else:  # otherwise the fleet's thread does it
            yield service.coordinator.tend
        yield service.meter.flush
        yield self._sign_in
        if self._has_turn and self._ticks % LONG_TICK == 0:
            yield partial(find_facts, service)
            if registry and service.coordinator.redis.status == "up":
                yield partial(service.meter.share, registry)
                yield partial(share_actions, service.journal, service.settings.data_dir)
            yield lambda: service.alarms.evaluate(fleet_state(service))
            yield service.meter.purge
        if self._has_turn:
            yield partial(catch_up, service.journal, INDEX_S)
            yield service.files.sweep

    def _sign_in(self) -> None:
        """Takes or keeps the turn, if it is free. A worker is counted as long as it does this."""
        with self._service.journal.step() as step:
            self._has_turn = step.lead(_TURN, self._id, TURN_MS)
            if self._service.is_worker:
                step.set_meta(f"{WORKER}{self._id}", str(step.now_ms))

    def _sign_off(self) -> None:
        with self._service.journal.step() as step:
            own = "DELETE FROM meta WHERE key = ? OR (key = ? AND value GLOB ?)"
            step.query(own, (f"{WORKER}{self._id}", _TURN, f"{self._id}*"))

    def _tick_on(self) -> None:
        self.tick()
        self._threads.stop.wait(TICK_S)

    def _refresh_guard(self) -> None:
        self._service.guard.refresh()
        self._threads.stop.wait(TICK_S)
