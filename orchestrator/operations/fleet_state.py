"""One picture of the fleet, which /health, alarms, /metrics and the page all show.

It is read from the journal. Behind the requests, a thread of each process keeps that up to date: counts, the search
index and alarms, and what Redis reports about itself, which one process of the machine asks for all.
"""

from __future__ import annotations

import logging
import secrets
import shutil
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import BaseModel, Field, model_validator

from deduplication.errors import DeduplicationError, try_to
from deduplication.journal.registry import Registry
from deduplication.journal.sqlite import Step
from deduplication.room import most_payload_bytes
from deduplication.values import frozen
from orchestrator.audit import share_actions
from orchestrator.delivery.guard import PauseState
from orchestrator.metrics.meter import DAY_S, HOUR_S, MINUTE_S, REDIS_S, Sums, read_recent
from orchestrator.operations.alarms import LATE_S
from orchestrator.operations.search import index_new
from orchestrator.operations.times import shown_moment
from orchestrator.version import our_version

if TYPE_CHECKING:
    from orchestrator.build import Service

log = logging.getLogger(__name__)

FRESH_MS = 20_000  # an older heartbeat or answer says nothing about now
OLDEST_LOOKED_AT = 50
WORKER = "worker:"  # heartbeats of this machine's workers in the journal's meta table
_OUTSIDE = "outside"
TICK_S = 1.0
INDEX_S = 0.5  # of each tick, at most
TURN_EVERY_S = 5.0
TURN_MS = 15_000
_TURN = "figures_turn"

# A script, because on a Cluster the node with our keys answers it. INFO may be forbidden.
_FACTS = """
local function info(section)
  local text = redis.pcall('INFO', section)
  return type(text) == 'string' and text or ''
end
return {info('memory') .. info('stats'), redis.call('HVALS', KEYS[1])}
"""


class RedisFacts(BaseModel):
    """What Redis reports about itself, None where INFO is forbidden."""

    maxmemory_policy: str | None = None
    evicted_keys: int | None = None
    used_bytes: int | None = None
    limit_bytes: int | None = None
    payload_bytes: int = 0
    most_payload_bytes: int = 0


class Outside(BaseModel):
    """What was found out last, empty if that was not recently. ``suppressed_share``: what the suppressed emails of one
    sender domain take of their room here, at most."""

    at_ms: int = 0
    redis: RedisFacts | None = None
    members: dict[str, dict[str, Any]] = {}
    payload_bytes: int | None = None
    suppressed_share: float | None = None


class Pause(BaseModel):
    since: str = Field(json_schema_extra={"format": "date-time"})
    reason: str
    by: str

    @classmethod
    def of(cls, state: PauseState) -> Pause | None:
        """None if it is not paused."""
        return cls(since=shown_moment(state.since_ms), reason=state.reason, by=state.by) if state.is_paused else None


class DestinationView(BaseModel):
    """``enabled`` and ``breaker`` are None for a destination that is no longer configured. ``oldest_s`` is the age of
    the delivery that has waited longest, None if none waits. ``failing``: nothing was delivered since a failure.
    ``next_probe``: when this machine tries it again meanwhile, if a delivery waits. ``status`` is the judgement in one
    word, the same wherever the destination is shown."""

    enabled: bool | None
    breaker: Literal["closed", "open", "half-open"] | None
    paused: Pause | None
    waiting: int = 0
    dead: int = 0
    oldest_s: int | None = None
    failing: bool = False
    next_probe: str | None = Field(default=None, json_schema_extra={"format": "date-time"})
    status: Literal["removed", "disabled", "paused", "failing", "late", "dead letters", "ok"] = "ok"

    @model_validator(mode="after")
    def _judge(self) -> Self:
        if not self.enabled:
            self.status = "removed" if self.enabled is None else "disabled"
        elif self.paused:
            self.status = "paused"
        elif self.breaker != "closed" or (self.failing and self.waiting):
            self.status = "failing"
        elif (self.oldest_s or 0) > LATE_S:
            self.status = "late"
        else:
            self.status = "dead letters" if self.dead else "ok"
        return self


@frozen
class FleetState:
    """``redis_status`` is None without a REDIS_URL, else up, suspected or gone (rule 8); ``lost_ms`` is when Redis was
    lost. ``behind_s``: how long ago this machine had read the whole stream, None if it never has.

    ``known_since_ms``: since when this machine knows the fleet's work; ``gap_ms``: when it missed a part of that.
    ``ten_minutes``, ``hour`` and ``day``: what the fleet has counted over the last of them. ``members``: machines with
    a recent heartbeat. ``workers`` is None if requests deliver.
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
    ten_minutes: Sums
    hour: Sums
    day: Sums
    disk_free_bytes: int
    outside: Outside
    members: Mapping[str, Mapping[str, Any]]
    workers: int | None

    @property
    def active(self) -> dict[str, DestinationView]:
        """Where deliveries are meant to go now: a destination that is paused or disabled lets them wait on purpose."""
        return {name: view for name, view in self.destinations.items() if view.enabled and not view.paused}

    @property
    def redis(self) -> RedisFacts | None:
        """None without a Redis, or while it does not answer."""
        return self.outside.redis if self.redis_status == "up" else None

    @property
    def suppressed_share(self) -> float | None:
        """What the suppressed emails of one sender domain take of their room, on the machine with the most of them."""
        here = self.outside.suppressed_share
        elsewhere = [about.get("suppressed_share") or 0 for about in self.members.values()]
        return None if here is None else max(here, *elsewhere, 0)

    @property
    def is_whole(self) -> bool:
        """Whether the counts of the other machines are up to date."""
        return self.redis_status in (None, "up")


def fleet_state(service: Service) -> FleetState:
    """Raises StoreUnavailable if the journal cannot be read."""
    has_redis, status = service.coordinator.registry is not None, service.coordinator.redis.status
    service.guard.refresh()
    with service.journal.reading() as step:
        now_ms = step.now_ms
        asked = Outside.model_validate_json(step.meta(_OUTSIDE) or "{}")
        outside = asked if now_ms - asked.at_ms <= FRESH_MS else Outside()
        members = {name: about for name, about in outside.members.items() if now_ms - about["at_ms"] < FRESH_MS}
        others = [about for name, about in members.items() if name != step.machine]  # this machine is read directly
        lost_ms = int(step.meta("lost_ms") or 0)
        if lost_ms and status != "up":
            status = "gone"  # a command line does not ask Redis: it uses what the service has recorded
        tripped = {name for about in others for name in about.get("tripped", ())}
        workers = _own_workers(step) + sum(int(about.get("workers", 0)) for about in others)
        return FleetState(
            now_ms=now_ms,
            machine=step.machine,
            redis_status=status if has_redis else None,
            lost_ms=lost_ms or None,
            era=step.meta("era"),
            **_read_progress(step, has_redis),
            destinations=_read_destinations(service, step, tripped),
            ten_minutes=read_recent(step, MINUTE_S, 10 * MINUTE_S),
            hour=read_recent(step, MINUTE_S, HOUR_S),
            day=read_recent(step, HOUR_S, DAY_S),
            disk_free_bytes=shutil.disk_usage(service.settings.data_dir).free,
            outside=outside,
            members=members,
            workers=workers if service.settings.deliver_by == "workers" else None,
        )


def _read_progress(step: Step, has_redis: bool) -> dict[str, Any]:
    """How much this machine knows of the fleet's work, and the fleet of its own."""
    read_ms, gap_ms = (int(step.meta(key) or 0) for key in ("read_ms", "gap_ms"))
    (known_since_ms,) = step.query("SELECT min(created_ms) FROM entries")[0]
    return {
        "behind_s": max(0, step.now_ms - read_ms) // 1000 if read_ms else None,
        "unpublished": step.query("SELECT count(*) FROM entries WHERE unpublished")[0][0] if has_redis else 0,
        "known_since_ms": max(known_since_ms or 0, gap_ms) or None,
        "gap_ms": gap_ms or None,
    }


def _read_destinations(service: Service, step: Step, tripped: set[str]) -> dict[str, DestinationView]:
    """``tripped``: where other machines have an open circuit breaker."""
    count = "SELECT destination, count(*) FROM deliveries WHERE status = '{}' AND destination != '' GROUP BY 1"
    waiting, dead = dict(step.query(count.format("waiting"))), dict(step.query(count.format("dead")))
    configured, failed_ms = service.config.destinations, dict(step.query("SELECT destination, failed_ms FROM breakers"))
    views = {}
    for name in (*configured, *sorted({*waiting, *dead} - configured.keys())):
        breaker, next_probe = service.guard.breaker(name) if name in configured else None, None
        failing = service.guard.is_failing(name)  # another machine's heartbeat may be older than its recovery
        if name in configured and name in waiting and name in failed_ms:
            left_ms = failed_ms[name] - step.steady_ms + int(configured[name].breaker_pause_s * 1000)
            next_probe = shown_moment(step.now_ms + max(0, left_ms))
        views[name] = DestinationView(
            enabled=configured[name].enabled if name in configured else None,
            breaker="open" if breaker == "closed" and failing and name in tripped else breaker,
            paused=Pause.of(service.guard.pause_of(name)),
            waiting=waiting.get(name, 0),
            dead=dead.get(name, 0),
            oldest_s=_oldest_s(step, name) if name in waiting else None,
            failing=failing,
            next_probe=next_probe,
        )
    return views


def _oldest_s(step: Step, destination: str) -> int:
    """The longest wait among the entries that have been in this journal longest."""
    rows = step.read_rows(
        "seq IN (SELECT seq FROM deliveries WHERE status = 'waiting' AND destination = ? ORDER BY seq LIMIT ?)",
        (destination, OLDEST_LOOKED_AT),
    )
    since = [step.now_ms]
    for _, entry in rows:
        delivery, since_ms = entry.delivery_to(destination), entry.created_ms
        if delivery and delivery.generation:  # replayed or released: since the first attempt after that
            attempts = delivery.attempts[-delivery.tries :] if delivery.tries else ()
            since_ms = attempts[0].at_ms if attempts else delivery.next_try_ms or since_ms
        since.append(since_ms)
    return (step.now_ms - min(since)) // 1000


def _own_workers(step: Step) -> int:
    """Worker processes of this machine with a recent heartbeat."""
    rows = step.query("SELECT value FROM meta WHERE key GLOB ?", (f"{WORKER}*",))
    return sum(abs(step.now_ms - int(beat_ms)) < FRESH_MS for (beat_ms,) in rows)


# Behind the requests


def ask_redis(service: Service) -> None:
    """Asks Redis, measures stored payloads, and records both for all processes of this machine."""
    outside = Outside(members=service.fleet.members if service.fleet else {})
    registry = service.coordinator.registry
    if registry and service.coordinator.redis.status == "up":
        try:
            outside.redis = _read_redis(registry)
        except DeduplicationError as error:
            log.info("Redis did not report its state: %s", error)
    with service.journal.reading() as step:
        outside.payload_bytes = int(step.query("SELECT total(length(content)) FROM payloads")[0][0])
        used = step.query("SELECT sum(size) FROM payloads WHERE domain <> '' GROUP BY domain ORDER BY 1 DESC LIMIT 1")
        outside.suppressed_share = used[0][0] / service.journal.retention.suppressed_bytes if used else 0
    with service.journal.step() as step:
        outside.at_ms = step.now_ms
        step.set_meta(_OUTSIDE, outside.model_dump_json())
        silent = "DELETE FROM meta WHERE key GLOB ? AND CAST(value AS INTEGER) < ?"
        step.query(silent, (f"{WORKER}*", step.now_ms - 3 * FRESH_MS))


def _read_redis(registry: Registry) -> RedisFacts:
    text, room = registry.ask(lambda client, prefix: client.eval(_FACTS, 1, f"{prefix}room"))
    info = dict(line.split(":", 1) for line in text.decode().splitlines() if ":" in line)
    limit = int(info.get("maxmemory", 0))
    return RedisFacts(
        maxmemory_policy=info.get("maxmemory_policy"),
        evicted_keys=int(info["evicted_keys"]) if "evicted_keys" in info else None,
        used_bytes=int(info.get("used_memory", 0)) or None,
        limit_bytes=limit or None,
        payload_bytes=sum(map(int, room)),
        most_payload_bytes=most_payload_bytes(registry, limit),
    )


def describe_machine(service: Service) -> dict[str, Any]:
    """What the other machines learn about this one from its heartbeat."""
    tripped = [name for name in service.config.destinations if service.guard.breaker(name) != "closed"]
    with service.journal.reading() as step:
        workers = _own_workers(step)
        share = Outside.model_validate_json(step.meta(_OUTSIDE) or "{}").suppressed_share
        about = {"version": our_version(), "host": socket.gethostname(), **_read_progress(step, has_redis=True)}
    return {**about, "workers": workers, "tripped": tripped, "suppressed_share": share}


class Watch:
    """Every second each process reads pauses and breakers, and writes what it has counted. One process of the machine
    has the turn: it fills the search index and deletes expired files, and every five seconds asks Redis, shares the
    counts and evaluates the alarms. If it is silent for 15 seconds, another one takes over."""

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
        _try_all(service.guard.refresh, service.meter.flush, self._beat)
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
        _try_all(lambda: ask_redis(service))
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
