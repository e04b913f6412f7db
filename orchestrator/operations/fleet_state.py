"""One picture of the fleet, which /health, alarms, /metrics and the page all show.

It is read from the journal, which orchestrator/watch.py keeps up to date behind the requests.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, Self
from urllib.parse import parse_qsl, urlsplit, urlunsplit

from pydantic import BaseModel, Field, model_validator

from deduplication.journal.sqlite import Step
from deduplication.values import frozen
from orchestrator.delivery.guard import BreakerState, PauseState
from orchestrator.delivery.signing import public_keys
from orchestrator.metrics.meter import DAY_S, HOUR_S, MINUTE_S, Sums, read_recent
from orchestrator.operations.search import LATE_S
from orchestrator.operations.times import shown_moment

if TYPE_CHECKING:
    from orchestrator.build import Service

FRESH_MS = 20_000  # an older heartbeat or answer says nothing about now
OLDEST_LOOKED_AT = 50
WORKER = "worker:"  # heartbeats of this machine's workers in the journal's meta table
FACTS = "facts"


class Facts(BaseModel):
    """What was found out last behind the requests; None where it is not known, as if Redis was not asked recently, or
    forbids INFO. ``suppressed_share``: what the suppressed emails of one sender domain take of their room here, at
    most."""

    at_ms: int = 0
    members: dict[str, dict[str, Any]] = {}
    suppressed_share: float | None = None
    journal_payload_bytes: int | None = None
    redis_payload_bytes: int | None = None
    redis_payload_limit_bytes: int | None = None
    maxmemory_policy: str | None = None
    evicted_keys: int | None = None
    used_bytes: int | None = None
    limit_bytes: int | None = None


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
    breaker: BreakerState | None
    paused: Pause | None
    waiting: int = 0
    dead: int = 0
    oldest_s: int | None = None
    failing: bool = False
    next_probe: str | None = Field(default=None, json_schema_extra={"format": "date-time"})
    url: str = Field(default="", description="Where it is, without what may be a secret.")
    public_keys: list[str] = Field(default=[], description="What its receiver verifies ed25519 signatures with.")
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
    a recent heartbeat. ``suppressed_share`` is that of the machine with the highest one. ``workers`` is None if
    requests deliver.
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
    facts: Facts
    members: Mapping[str, Mapping[str, Any]]
    suppressed_share: float | None
    workers: int | None

    @property
    def active(self) -> dict[str, DestinationView]:
        """Where deliveries are meant to go now: a destination that is paused or disabled lets them wait on purpose."""
        return {name: view for name, view in self.destinations.items() if view.enabled and not view.paused}


def fleet_state(service: Service) -> FleetState:
    """Raises StoreUnavailable if the journal cannot be read."""
    status = service.coordinator.redis.status if service.coordinator.registry else None
    service.guard.refresh()
    with service.journal.reading() as step:
        now_ms = step.now_ms
        asked = Facts.model_validate_json(step.meta(FACTS) or "{}")
        facts = asked if now_ms - asked.at_ms <= FRESH_MS else Facts()
        members = {name: about for name, about in facts.members.items() if now_ms - about["at_ms"] < FRESH_MS}
        others = [about for name, about in members.items() if name != step.machine]  # this machine is read directly
        lost_ms = int(step.meta("lost_ms") or 0)
        if lost_ms and status == "suspected":
            status = "gone"  # a command line does not ask Redis: it uses what the service has recorded
        tripped = {name for about in others for name in about.get("tripped", ())}
        workers = own_workers(step) + sum(int(about.get("workers", 0)) for about in others)
        shares = [facts.suppressed_share, *(about.get("suppressed_share") for about in others)]
        return FleetState(
            now_ms=now_ms,
            machine=step.machine,
            redis_status=status,
            lost_ms=lost_ms or None,
            era=step.meta("era"),
            **read_progress(step),
            destinations=_read_destinations(service, step, tripped),
            ten_minutes=read_recent(step, MINUTE_S, 10 * MINUTE_S),
            hour=read_recent(step, MINUTE_S, HOUR_S),
            day=read_recent(step, HOUR_S, DAY_S),
            disk_free_bytes=shutil.disk_usage(service.settings.data_dir).free,
            facts=facts,
            members=members,
            suppressed_share=max((share for share in shares if share is not None), default=None),
            workers=workers if service.settings.deliver_by == "workers" else None,
        )


def read_progress(step: Step) -> dict[str, Any]:
    """How much this machine knows of the fleet's work, and the fleet of its own."""
    read_ms, gap_ms = (int(step.meta(key) or 0) for key in ("read_ms", "gap_ms"))
    (known_since_ms,) = step.query("SELECT min(created_ms) FROM entries")[0]
    return {
        "behind_s": max(0, step.now_ms - read_ms) // 1000 if read_ms else None,
        "unpublished": step.query("SELECT count(*) FROM entries WHERE unpublished")[0][0],
        "known_since_ms": max(known_since_ms or 0, gap_ms) or None,
        "gap_ms": gap_ms or None,
    }


def _read_destinations(service: Service, step: Step, tripped: set[str]) -> dict[str, DestinationView]:
    """``tripped``: where other machines have an open circuit breaker."""
    count = "SELECT destination, count(*) FROM deliveries WHERE status = '{}' AND destination != '' GROUP BY 1"
    waiting, dead = dict(step.query(count.format("waiting"))), dict(step.query(count.format("dead")))
    configured, views = service.config.destinations, {}
    for name in (*configured, *sorted({*waiting, *dead} - configured.keys())):
        config, failing = configured.get(name), service.guard.is_failing(name)
        breaker, left_s = service.guard.read_breaker(step, name) if config else (None, math.inf)
        if breaker == "closed" and failing and name in tripped:  # a heartbeat may be older than the recovery
            breaker = "open"
        is_probed = name in waiting and left_s < math.inf
        views[name] = DestinationView(
            enabled=config.enabled if config else None,
            breaker=breaker,
            paused=Pause.of(service.guard.pause_of(name)),
            waiting=waiting.get(name, 0),
            dead=dead.get(name, 0),
            oldest_s=_oldest_s(step, name) if name in waiting else None,
            failing=failing,
            next_probe=shown_moment(step.now_ms + int(max(0, left_s) * 1000)) if is_probed else None,
            url=_masked(config.url) if config else "",
            public_keys=public_keys(config.secret) if config else [],
        )
    return views


def _masked(url: str) -> str:
    """Without user, password, values of the query, and parts of the path that may be tokens."""
    parts = urlsplit(url)
    path = "/".join("…" if len(part) > 15 and any(map(str.isdigit, part)) else part for part in parts.path.split("/"))
    query = "&".join(f"{name}=…" for name, _ in parse_qsl(parts.query, keep_blank_values=True))
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], path, query, ""))


def _oldest_s(step: Step, destination: str) -> int:
    """The longest wait among the entries that have been in this journal longest. One that was replayed or released
    waits since its first attempt after that: its next try is in the future after each failure."""
    oldest = "SELECT seq FROM deliveries WHERE status = 'waiting' AND destination = ? ORDER BY seq LIMIT ?"
    since = [step.now_ms]
    for _, entry in step.read_rows(f"seq IN ({oldest})", (destination, OLDEST_LOOKED_AT)):
        delivery, since_ms = entry.delivery_to(destination), entry.created_ms
        if delivery and delivery.generation:
            attempts = delivery.attempts[-delivery.tries :] if delivery.tries else ()
            since_ms = attempts[0].at_ms if attempts else delivery.next_try_ms or since_ms
        since.append(since_ms)
    return (step.now_ms - min(since)) // 1000


def own_workers(step: Step) -> int:
    """Worker processes of this machine with a recent heartbeat."""
    rows = step.query("SELECT value FROM meta WHERE key GLOB ?", (f"{WORKER}*",))
    return sum(abs(step.now_ms - int(beat_ms)) < FRESH_MS for (beat_ms,) in rows)
