"""Whether the service can do its work, and what is wrong if it cannot."""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from deduplication.errors import DeduplicationError
from deduplication.journal.coordinator import BEHIND_MS
from orchestrator.config.settings import Settings
from orchestrator.delivery.destination_states import shown_pause
from orchestrator.operations.alarms import Alarms
from orchestrator.operations.alerts import GOOD_POLICY, OLDEST_WAITING_S, AlertCondition
from orchestrator.operations.destinations import Pause
from orchestrator.operations.fleet_state import FleetState, Observer
from orchestrator.operations.proxy_watch import ProxyWatch
from orchestrator.operations.words import shown_moment
from orchestrator.version import our_version

NEARLY = 0.95


class HealthCheck(BaseModel):
    """``status`` is "up", "not configured", or a word for what is wrong; then ``problem`` is a sentence about it."""

    model_config = ConfigDict(extra="allow")

    status: str
    problem: str | None = None

    @property
    def is_well(self) -> bool:
        return self.status in ("up", "not configured")


class AlarmShown(BaseModel):
    condition: AlertCondition
    destination: str | None
    since: str = Field(json_schema_extra={"format": "date-time"})
    text: str


class Health(BaseModel):
    """`degraded`: emails are accepted, but something is wrong; `down`: none can be accepted.

    ``paused``: destinations that nothing is sent to until they are resumed. ``alarms``: those of the fleet.
    """

    status: Literal["ok", "degraded", "down"]
    version: str = Field(default_factory=our_version)
    checks: dict[str, HealthCheck]
    warnings: list[str]
    paused: dict[str, Pause] = {}
    alarms: list[AlarmShown] = []


class HealthChecks:
    """Anyone may ask, as often as they like: nothing here waits for Redis or the queue."""

    def __init__(
        self, settings: Settings, observer: Observer, alarms: Alarms, rss_bytes: Callable[[], int] | None = None
    ) -> None:
        self._settings = settings
        self._observer = observer
        self._alarms = alarms
        self._rss_bytes = rss_bytes or _rss_bytes
        self.proxies = ProxyWatch()

    def is_ready(self) -> bool:
        """Whether an email can be accepted safely."""
        try:
            return self._observer.is_ready()
        except DeduplicationError:
            return False

    def report(self) -> Health:
        try:
            is_ready, state = self._observer.is_ready(), self._observer.fleet_state()
            alarms = self._alarms.read(state)
        except DeduplicationError as error:
            problem = f"The journal of this machine cannot be used: {error}"
            checks = {"database": _check("down", problem, error=str(error)), "memory": self._memory()}
            return Health(status="down", checks=checks, warnings=self.proxies.warnings())
        checks = {
            "redis": _redis(state),
            "fleet": _fleet(state),
            "database": _check("up"),
            "storage": self._storage(state),
            "queue": _queue(state),
            "destinations": _destinations(state),
            "deliveries": _deliveries(state),
            "memory": self._memory(),
        }
        is_well = all(each.is_well for each in checks.values())
        paused = {name: shown_pause(each.paused) for name, each in state.destinations.items() if each.paused.is_paused}
        return Health(
            status="down" if not is_ready else "ok" if is_well else "degraded",
            checks=checks,
            warnings=[*_redis_warnings(state), *self.proxies.warnings()],
            paused={name: Pause.model_validate(each) for name, each in paused.items()},
            alarms=[AlarmShown.model_validate(each.shown()) for each in alarms],
        )

    def _storage(self, state: FleetState) -> HealthCheck:
        """Room on the disk for the journal, and in Redis for the payloads of stored deliveries."""
        facts: dict[str, Any] = {
            "disk_free_bytes": state.disk_free_bytes,
            "disk_needed_bytes": self._settings.disk_free_bytes,
        }
        is_full = state.disk_free_bytes < self._settings.disk_free_bytes
        if state.outside:
            facts["journal_payload_bytes"] = state.outside.payload_bytes
        if state.redis:
            used, most = state.redis.payload_bytes, state.redis.most_payload_bytes
            facts |= {"redis_payload_bytes": used, "redis_payload_limit_bytes": most}
            is_full = is_full or used > NEARLY * most
        if is_full:
            return _check("full", "No room is left: emails are returned to their providers for retry", **facts)
        return _check("up", **facts)

    def _memory(self) -> HealthCheck:
        rss_mb, limit_mb = round(self._rss_bytes() / 1024 / 1024, 1), self._settings.memory_limit_mb
        if rss_mb <= limit_mb:
            return _check("up", rss_mb=rss_mb, limit_mb=limit_mb)
        problem = f"This process uses {rss_mb} MB, more than MEMORY_LIMIT_MB ({limit_mb})"
        return _check("over the limit", problem, rss_mb=rss_mb, limit_mb=limit_mb)


def _rss_bytes() -> int:
    """Memory of this process now; where the system does not say, the most it ever had."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _check(status: str, problem: str | None = None, **facts: Any) -> HealthCheck:
    return HealthCheck.model_validate({"status": status, "problem": problem, **facts})


def _redis(state: FleetState) -> HealthCheck:
    if state.redis_status is None:
        return _check("not configured")
    facts: dict[str, Any] = {"state": state.redis_status, "era": state.era, "unpublished": state.unpublished}
    if state.redis_status == "up":
        known = state.redis.model_dump(exclude={"payload_bytes", "most_payload_bytes"}) if state.redis else {}
        return _check("up", **facts, **known)
    since = shown_moment(state.lost_ms) if state.lost_ms else None
    problem = (
        "Redis does not answer: this machine decides by what it knows of the fleet."
        f" Entries to publish when Redis is back: {state.unpublished:,}"
    )
    return _check("down", problem, since=since, **facts)


def _fleet(state: FleetState) -> HealthCheck:
    """``known_since``: emails that the fleet received before are not known to this machine."""
    if state.redis_status is None:
        return _check("not configured")
    facts: dict[str, Any] = {
        "machine": state.machine,
        "behind_s": state.behind_s,
        "known_since": shown_moment(state.known_since_ms) if state.known_since_ms else None,
        "gap_since": shown_moment(state.gap_ms) if state.gap_ms else None,
        "members": {
            name: {"version": each.get("version"), "seen": shown_moment(each["at_ms"])}
            for name, each in state.members.items()
        },
    }
    if state.gap_ms:
        return _check("gap", "This machine missed a part of the fleet's work: the stream was trimmed", **facts)
    if state.redis_status == "up" and (state.behind_s is None or state.behind_s * 1000 > BEHIND_MS):
        return _check("behind", "This machine has not read all of the fleet's work yet", **facts)
    return _check("up", **facts)


def _queue(state: FleetState) -> HealthCheck:
    if state.workers is None:
        return _check("not configured")
    if state.outside and state.outside.queue_error:
        problem = "The queue does not answer: requests deliver emails themselves meanwhile"
        return _check("down", problem, error=state.outside.queue_error)
    problem = "The queue has no worker: queued emails wait until one is started (mailonce worker)"
    return _check("up" if state.workers else "no worker", None if state.workers else problem, workers=state.workers)


def _destinations(state: FleetState) -> HealthCheck:
    """In trouble: one is paused, or its circuit breaker is open. A disabled one is disabled on purpose."""
    breakers = {name: each.breaker for name, each in state.destinations.items() if each.is_active}
    is_paused = any(each.paused.is_paused for each in state.destinations.values() if each.is_enabled is not None)
    failing = [name for name, breaker in breakers.items() if breaker != "closed"]
    problem = f"Circuit breaker open: {', '.join(failing)}. New emails are queued" if failing else None
    return _check("in trouble" if failing or is_paused else "up", problem, breakers=breakers)


def _deliveries(state: FleetState) -> HealthCheck:
    """Late: one has waited too long for an active destination."""
    ages_s = {name: each.oldest_s for name, each in state.destinations.items() if each.is_active and each.oldest_s}
    is_late = max(ages_s.values(), default=0) > OLDEST_WAITING_S
    return _check("late" if is_late else "up", oldest_waiting_s=ages_s)


def _redis_warnings(state: FleetState) -> Iterator[str]:
    if state.redis and state.redis.has_bad_policy:
        policy = state.redis.maxmemory_policy
        yield f"Redis maxmemory-policy is {policy}: when Redis is full, it forgets names; set it to {GOOD_POLICY}"
    if state.redis and not state.redis.detects_rollback:
        yield "Redis forbids INFO to this user: if it is set back to an older snapshot, that goes unnoticed"


@dataclass(frozen=True)
class Banner:
    """For the top of every page. ``is_bad`` is False for what a person asked for."""

    text: str
    since: str | None = None
    is_bad: bool = True


_ALARM_OF = {"destinations": AlertCondition.BREAKER_OPEN, "queue": AlertCondition.NO_WORKER}


def banners(health: Health) -> Iterator[Banner]:
    """What is wrong, each once: an alarm says more than the check."""
    alarms = {each.condition for each in health.alarms}
    for name, check in health.checks.items():
        if check.problem and _ALARM_OF.get(name) not in alarms:
            yield Banner(check.problem, (check.model_extra or {}).get("since"))
    for alarm in health.alarms:
        yield Banner(f"Alarm: {alarm.text}", alarm.since)
    for name, pause in health.paused.items():
        reason = f" ({pause.reason})" if pause.reason else ""
        yield Banner(f"{name} is paused{reason}. New emails for it are queued", pause.since, is_bad=False)
    for warning in health.warnings:
        yield Banner(warning)
