"""One picture of the fleet, which /health, alarms, /metrics and the page all show.

It is read from the journal. What another server has to be asked for (Redis, the queue) is asked behind the requests, by
one process of each machine, and noted in the journal.
"""

from __future__ import annotations

import logging
import secrets
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from deduplication.errors import DeduplicationError, StoreUnavailable
from deduplication.journal.coordinator import Coordinator
from deduplication.journal.entry import Delivery, Entry
from deduplication.journal.sqlite import Step
from orchestrator.config.model import Config
from orchestrator.config.settings import Settings
from orchestrator.delivery.destination_states import DestinationState, DestinationStates
from orchestrator.delivery.guard import Guard
from orchestrator.delivery.queue import Queue, QueueMisconfigured, QueueUnavailable
from orchestrator.metrics.counts import DAY_S, HOUR_S, MINUTE_S, read_points
from orchestrator.metrics.meter import DEAD, DELIVERIES, REDIS_ERRORS, REDIS_S, REDIS_STEPS
from orchestrator.metrics.shared import RedisFacts, SharedFigures
from orchestrator.metrics.sums import Sums
from orchestrator.version import our_version

log = logging.getLogger(__name__)

LATELY_S = 10 * MINUTE_S
FRESH_MS = 20_000  # a process, a machine or a note that is older says nothing about now
OLDEST_LOOKED_AT = 50
_OUTSIDE, _WORKER = "outside", "worker:"


class Outside(BaseModel):
    """What was asked of other servers, and when. ``depths`` is None if the queue does not say."""

    at_ms: int = 0
    redis: RedisFacts | None = None
    members: dict[str, dict[str, Any]] = {}
    payload_bytes: int = 0
    queue_error: str = ""
    depths: dict[str, int] | None = None

    def fresh_members(self, now_ms: int, within_ms: int) -> dict[str, dict[str, Any]]:
        """Machines with a heartbeat since then."""
        return {name: each for name, each in self.members.items() if now_ms - each.get("at_ms", 0) < within_ms}


@dataclass(frozen=True)
class DestinationView:
    """``is_enabled`` and ``breaker`` are None for a destination that is no longer configured. ``oldest_s`` is the age
    of the delivery that has waited longest, None if none waits."""

    is_enabled: bool | None = None
    breaker: str | None = None
    paused: DestinationState = DestinationState()
    waiting: int = 0
    dead: int = 0
    oldest_s: int | None = None

    @property
    def is_active(self) -> bool:
        """Whether deliveries are meant to go there now."""
        return bool(self.is_enabled) and not self.paused.is_paused


@dataclass(frozen=True)
class Lately:
    """Counts of the fleet that alarms judge by. None if there is nothing to compute a share from."""

    redis_error_share: float | None  # of ten minutes
    redis_gone_share: float | None  # of ten minutes
    received: int  # of a day
    stopped: int
    died: Mapping[str, int]  # of an hour, by destination


@dataclass(frozen=True)
class FleetState:
    """``redis_status`` is None without a REDIS_URL, else up, suspected or gone (rule 8); ``lost_ms`` is when Redis was
    lost. ``behind_s``: how long ago this machine had read all of the stream, None if it never has.

    ``known_since_ms``: since when this machine knows the fleet's work; ``gap_ms``: when it missed a part of that.
    ``outside`` is None if nobody has asked lately, ``workers`` without a queue.
    """

    now_ms: int
    machine: str
    redis_status: str | None
    lost_ms: int | None
    era: str
    behind_s: int | None
    unpublished: int
    known_since_ms: int | None
    gap_ms: int | None
    destinations: Mapping[str, DestinationView]
    lately: Lately
    disk_free_bytes: int
    outside: Outside | None
    workers: int | None

    @property
    def members(self) -> dict[str, dict[str, Any]]:
        return self.outside.fresh_members(self.now_ms, 3 * FRESH_MS) if self.outside else {}

    @property
    def redis(self) -> RedisFacts | None:
        """What Redis says of itself; None without one, or while it does not answer."""
        return self.outside.redis if self.outside and self.redis_status == "up" else None


class Observer:
    """``members``: those that Fleet knows. ``queue`` is None without one."""

    def __init__(
        self,
        settings: Settings,
        config: Config,
        coordinator: Coordinator,
        guard: Guard,
        states: DestinationStates,
        queue: Queue | None = None,
        members: Callable[[], dict[str, Any]] = dict,
        *,
        is_worker: bool = False,
    ) -> None:
        self._settings = settings
        self._config = config
        self._coordinator = coordinator
        self._journal = coordinator.journal
        self._guard = guard
        self._states = states
        self._queue = queue
        self._members = members
        self._worker = f"{_WORKER}{secrets.token_hex(4)}" if is_worker else ""
        registry = coordinator.registry
        self.shared = SharedFigures(registry, self._journal.machine) if registry else None

    # Behind the requests

    def observe(self) -> None:
        """Asks the other servers and notes the answers, for all processes of this machine."""
        redis, queue_error, depths = None, "", None
        if self.shared and self._coordinator.redis.status == "up":
            try:
                redis = self.shared.facts()
            except DeduplicationError as error:
                log.info("Redis says nothing of itself: %s", error)
        if self._queue:
            try:
                self._queue.check()
                depths = {name: self._queue.depth(name) for name in self._config.destinations}
            except (QueueUnavailable, QueueMisconfigured) as error:
                queue_error = str(error)
        with self._journal.reading() as step:
            payload_bytes = int(step.query("SELECT total(length(content)) FROM payloads")[0][0])
        outside = Outside(
            at_ms=self._journal.clock.now_ms(),
            redis=redis,
            members=self._members(),
            payload_bytes=payload_bytes,
            queue_error=queue_error,
            depths=depths,
        )
        with self._journal.step() as step:
            step.set_meta(_OUTSIDE, outside.model_dump_json())
            dead = "DELETE FROM meta WHERE key >= ? AND key < ? AND CAST(value AS INTEGER) < ?"
            step.query(dead, (_WORKER, f"{_WORKER}~", step.now_ms - 3 * FRESH_MS))

    def about(self) -> dict[str, Any]:
        """What the other machines learn of this one with its heartbeat."""
        tripped = [name for name in self._config.destinations if self._guard.state(name) != "closed"]
        with self._journal.reading() as step:
            return {"version": our_version(), "workers": len(_workers(step)), "tripped": tripped}

    def beat(self) -> None:
        """Says that this process is alive, if it is a worker of the queue."""
        if self._worker:
            with self._journal.step() as step:
                step.set_meta(self._worker, str(step.now_ms))

    def end(self) -> None:
        if self._worker:
            with self._journal.step() as step:
                step.query("DELETE FROM meta WHERE key = ?", (self._worker,))

    # For whoever asks

    def fleet_state(self) -> FleetState:
        """Raises StoreUnavailable if the journal cannot be read."""
        has_redis = self._coordinator.registry is not None
        self._states.refresh()
        with self._journal.reading() as step:
            outside = _read_outside(step)
            read_ms, lost_ms = int(step.meta("read_ms") or 0), int(step.meta("lost_ms") or 0)
            (known_since_ms,) = step.query("SELECT min(created_ms) FROM entries")[0]
            gap_ms = int(step.meta("gap_ms") or 0)
            return FleetState(
                now_ms=step.now_ms,
                machine=step.machine,
                redis_status=self._redis_status(lost_ms) if has_redis else None,
                lost_ms=lost_ms or None,
                era=step.meta("era"),
                behind_s=max(0, step.now_ms - read_ms) // 1000 if read_ms else None,
                unpublished=step.query("SELECT count(*) FROM outbox")[0][0] if has_redis else 0,
                known_since_ms=max(known_since_ms or 0, gap_ms) or None,
                gap_ms=gap_ms or None,
                destinations=self._destinations(step, outside),
                lately=_read_lately(step),
                disk_free_bytes=shutil.disk_usage(self._settings.data_dir).free,
                outside=outside,
                workers=_count_workers(step, outside) if self._settings.queue_url else None,
            )

    def is_ready(self) -> bool:
        """Whether an email can be accepted. Raises StoreUnavailable if the journal cannot be written."""
        with self._journal.step():
            pass
        try:
            self._journal.disk.check()
        except StoreUnavailable:
            return False
        is_gone = self._coordinator.registry is not None and self._coordinator.redis.status == "gone"
        return not is_gone or self._coordinator.may_go_alone()

    def _redis_status(self, lost_ms: int) -> str:
        """A command line asks nobody, and goes by what the service has noted."""
        status = self._coordinator.redis.status
        return "gone" if lost_ms and status != "up" else status

    def _destinations(self, step: Step, outside: Outside | None) -> dict[str, DestinationView]:
        count = "SELECT destination, count(*) FROM deliveries WHERE status = '{}' AND destination != '' GROUP BY 1"
        waiting, dead = dict(step.query(count.format("waiting"))), dict(step.query(count.format("dead")))
        members = outside.fresh_members(step.now_ms, FRESH_MS) if outside else {}
        members.pop(step.machine, None)  # whose breakers are asked directly
        tripped = {name for each in members.values() for name in each.get("tripped", ())}
        views = {}
        for name in (*self._config.destinations, *sorted({*waiting, *dead} - self._config.destinations.keys())):
            config = self._config.destinations.get(name)
            breaker = self._guard.state(name) if config else None
            views[name] = DestinationView(
                is_enabled=config.enabled if config else None,
                breaker="open" if breaker == "closed" and name in tripped else breaker,
                paused=self._states.of(name),
                waiting=waiting.get(name, 0),
                dead=dead.get(name, 0),
                oldest_s=_oldest_s(step, name) if name in waiting else None,
            )
        return views


def _read_outside(step: Step) -> Outside | None:
    """None if it is not of now."""
    outside = Outside.model_validate_json(step.meta(_OUTSIDE) or "{}")
    return outside if step.now_ms - outside.at_ms <= FRESH_MS else None


def _workers(step: Step) -> list[str]:
    """Worker processes of this machine that were alive a moment ago."""
    rows = step.query("SELECT key, value FROM meta WHERE key >= ? AND key < ?", (_WORKER, f"{_WORKER}~"))
    return [key for key, beat_ms in rows if abs(step.now_ms - int(beat_ms)) < FRESH_MS]


def _count_workers(step: Step, outside: Outside | None) -> int:
    others = outside.fresh_members(step.now_ms, FRESH_MS) if outside else {}
    others.pop(step.machine, None)
    return len(_workers(step)) + sum(int(each.get("workers", 0)) for each in others.values())


def _oldest_s(step: Step, destination: str) -> int:
    """Of the entries that are longest in this journal, the delivery that has waited longest."""
    rows = step.query(
        "SELECT seq FROM deliveries WHERE status = 'waiting' AND destination = ? ORDER BY seq LIMIT ?",
        (destination, OLDEST_LOOKED_AT),
    )
    places = ",".join("?" * len(rows))
    entries = [entry for _, entry in step.read_rows(f"seq IN ({places})", [seq for (seq,) in rows])]
    since = [_waits_since_ms(entry, entry.delivery_to(destination)) for entry in entries]
    return max(0, step.now_ms - min(since, default=step.now_ms)) // 1000


def _waits_since_ms(entry: Entry, delivery: Delivery | None) -> int:
    """When it came, or, for one that was replayed or released, when it was tried first since then."""
    if delivery is None or not delivery.generation:
        return entry.created_ms
    if delivery.tries and delivery.attempts:
        return delivery.attempts[-min(delivery.tries, len(delivery.attempts))].at_ms
    return delivery.next_try_ms or entry.created_ms


def _read_lately(step: Step) -> Lately:
    now_s = step.now_ms // 1000

    def sums(step_s: int, length_s: int) -> Sums:
        first = now_s // step_s * step_s - length_s + step_s
        return Sums(read_points(step, step_s, [first], length_s)[0])

    lately, hour, day = sums(MINUTE_S, LATELY_S), sums(MINUTE_S, HOUR_S), sums(HOUR_S, DAY_S)
    asked, errors = lately.counts.get(REDIS_STEPS, 0), sum(lately.labelled(REDIS_ERRORS).values())
    seconds = {labels[0]: value for labels, value in lately.labelled(REDIS_S).items()}
    died = {labels[0]: int(count) for labels, count in hour.labelled(DELIVERIES).items() if labels[1] == DEAD}
    return Lately(
        redis_error_share=errors / asked if asked else None,
        redis_gone_share=seconds.get("gone", 0) / sum(seconds.values()) if seconds else None,
        received=day.received,
        stopped=day.stopped,
        died=died,
    )
