"""Whether the service can do its work, and what is wrong if it cannot. Nothing here waits for Redis or the queue."""

from __future__ import annotations

import logging
import resource
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from deduplication.errors import DeduplicationError
from deduplication.journal.coordinator import BEHIND_MS
from orchestrator.operations.alarms import AlarmShown
from orchestrator.operations.alerts import AlertCondition, diagnose
from orchestrator.operations.fleet_state import FleetState, Pause, fleet_state
from orchestrator.operations.words import shown_moment
from orchestrator.version import our_version

if TYPE_CHECKING:
    from orchestrator.build import Service

log = logging.getLogger(__name__)

NEARLY_FULL = 0.95
UNTRUSTED_PROXY = (
    "X-Forwarded-For was sent by an address that is not in TRUSTED_PROXIES: all clients behind that proxy count as "
    "one, and the wrong tokens of one lock out all"
)
SHOWN_FOR_S = 3600.0


class HealthCheck(BaseModel):
    """``status`` is "up", "not configured", or a word for what is wrong; then ``problem`` is a sentence about it."""

    model_config = ConfigDict(extra="allow")

    status: str
    problem: str | None = None

    @property
    def is_well(self) -> bool:
        return self.status in ("up", "not configured")


class Health(BaseModel):
    """`degraded`: emails are accepted, but something is wrong; `down`: none can be accepted.

    ``paused``: destinations that nothing is sent to until they are resumed. ``alarms``: those of the fleet.
    """

    status: Literal["ok", "degraded", "down"]
    version: str = Field(default_factory=our_version)
    checks: dict[str, HealthCheck]
    warnings: list[str]
    paused: dict[str, Pause] = {}
    alarms: Sequence[AlarmShown] = []


class ProxyWatch:
    """Notices a proxy that is missing from TRUSTED_PROXIES. The log shows its address; /health, which is public, does
    not."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._shown_until = float("-inf")

    def note(self, address: str) -> None:
        """X-Forwarded-For was sent by this address. Logged again only after an hour without any."""
        if not self.warnings():
            log.warning("WARNING: %s (%s)", UNTRUSTED_PROXY, address)
        self._shown_until = self._monotonic() + SHOWN_FOR_S

    def warnings(self) -> list[str]:
        return [UNTRUSTED_PROXY] if self._monotonic() < self._shown_until else []


def is_ready(service: Service) -> bool:
    """Whether an email can be accepted safely."""
    coordinator = service.coordinator
    try:
        with service.journal.step():
            service.journal.disk.check()
    except DeduplicationError:
        return False
    return coordinator.registry is None or coordinator.redis.status != "gone" or coordinator.may_go_alone()


def health(service: Service) -> Health:
    memory = _check_memory(service.settings.memory_limit_mb)
    try:
        with service.journal.step():
            pass  # it can be written
        state = fleet_state(service)
        alarms = service.alarms.read(state)
    except DeduplicationError as error:
        problem = f"The journal of this machine cannot be used: {error}"
        checks = {"database": _check("down", problem, error=str(error)), "memory": memory}
        return Health(status="down", checks=checks, warnings=service.proxies.warnings())
    disk_needed_bytes = service.settings.disk_free_bytes
    troubles: dict[str, tuple[str, str | None]] = {}
    for name, status, text in _troubles(state, disk_needed_bytes):
        troubles.setdefault(name, (status, text))
    checks = {
        name: _check("not configured") if facts is None else _check(*troubles.get(name, ("up",)), **facts)
        for name, facts in _facts(state, disk_needed_bytes).items()
    } | {"memory": memory}
    is_well = all(each.is_well for each in checks.values())
    return Health(
        status="down" if not is_ready(service) else "ok" if is_well else "degraded",
        checks=checks,
        warnings=[*_warnings(state), *service.proxies.warnings()],
        paused={name: each.paused for name, each in state.destinations.items() if each.paused},
        alarms=alarms,
    )


def _check(status: str, problem: str | None = None, **facts: Any) -> HealthCheck:
    return HealthCheck.model_validate({"status": status, "problem": problem, **facts})


def _troubles(state: FleetState, disk_needed_bytes: int) -> Iterator[tuple[str, str, str | None]]:
    """The check, a word and a sentence for everything that is wrong. Of one check, the first counts."""
    if state.redis_status not in (None, "up"):
        problem = "Redis does not answer: this machine decides by what it knows of the fleet."
        yield "redis", "down", f"{problem} Entries to publish when Redis is back: {state.unpublished:,}"
    if state.gap_ms:
        yield "fleet", "gap", "This machine missed a part of the fleet's work: the stream was trimmed"
    if state.redis_status == "up" and (state.behind_s is None or state.behind_s * 1000 > BEHIND_MS):
        yield "fleet", "behind", "This machine has not read all of the fleet's work yet"
    redis = state.redis
    is_redis_full = redis is not None and redis.payload_bytes > NEARLY_FULL * redis.most_payload_bytes
    if is_redis_full or state.disk_free_bytes < disk_needed_bytes:
        yield "storage", "full", "No room is left: emails are returned to their providers for retry"
    if state.outside and state.outside.queue_error:
        yield "queue", "down", "The queue does not answer: requests deliver emails themselves meanwhile"
    if no_worker := _in_words(state, AlertCondition.NO_WORKER):
        yield "queue", "no worker", no_worker
    if failing := _in_words(state, AlertCondition.BREAKER_OPEN):
        yield "destinations", "in trouble", failing
    if any(each.paused for each in state.destinations.values() if each.enabled is not None):
        yield "destinations", "in trouble", None  # Health.paused says which
    if late := _in_words(state, AlertCondition.OLDEST_WAITING):
        yield "deliveries", "late", late


def _in_words(state: FleetState, condition: AlertCondition) -> str:
    """In the words of the alarm that it raises if it lasts; "" if the condition is not true."""
    texts = diagnose(state, off=set(AlertCondition) - {condition}).values()
    return " ".join(text for text in texts if text)


def _facts(state: FleetState, disk_needed_bytes: int) -> dict[str, dict[str, Any] | None]:
    """What each check shows; None for what is not configured. ``known_since``: this machine does not know emails that
    the fleet received before."""
    redis: dict[str, Any] = {
        "state": state.redis_status,
        "since": _shown(state.lost_ms),
        "era": state.era,
        "unpublished": state.unpublished,
    }
    fleet = {
        "machine": state.machine,
        "behind_s": state.behind_s,
        "known_since": _shown(state.known_since_ms),
        "gap_since": _shown(state.gap_ms),
        "members": {
            name: {"version": each.get("version"), "seen": shown_moment(each["at_ms"])}
            for name, each in state.members.items()
        },
    }
    storage = {"disk_free_bytes": state.disk_free_bytes, "disk_needed_bytes": disk_needed_bytes}
    if state.redis:
        redis |= state.redis.model_dump(exclude={"payload_bytes", "most_payload_bytes"})
        storage["redis_payload_bytes"] = state.redis.payload_bytes
        storage["redis_payload_limit_bytes"] = state.redis.most_payload_bytes
    ages_s = {name: each.oldest_s for name, each in state.active.items() if each.oldest_s}
    queue: dict[str, Any] = {"workers": state.workers}
    if state.outside:
        storage["journal_payload_bytes"] = state.outside.payload_bytes
        queue["error"] = state.outside.queue_error or None
    return {
        "redis": redis if state.redis_status else None,
        "fleet": fleet if state.redis_status else None,
        "database": {},
        "storage": storage,
        "queue": queue if state.workers is not None else None,
        "destinations": {"breakers": {name: each.breaker for name, each in state.active.items()}},
        "deliveries": {"oldest_waiting_s": ages_s},
    }


def _check_memory(limit_mb: int) -> HealthCheck:
    """Of this process, now; where the system does not say, the most it ever used."""
    try:
        rss_bytes = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    except OSError:
        rss_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    rss_mb = round(rss_bytes / 1024 / 1024, 1)
    problem = f"This process uses {rss_mb} MB, more than MEMORY_LIMIT_MB ({limit_mb})" if rss_mb > limit_mb else None
    return _check("over the limit" if problem else "up", problem, rss_mb=rss_mb, limit_mb=limit_mb)


def _warnings(state: FleetState) -> Iterator[str]:
    if eviction := _in_words(state, AlertCondition.EVICTION_POLICY):
        yield eviction
    if state.redis and state.redis.used_bytes is None:
        yield "Redis forbids INFO to this user: if it is set back to an older snapshot, that goes unnoticed"


def _shown(moment_ms: int | None) -> str | None:
    return shown_moment(moment_ms) if moment_ms else None


@dataclass(frozen=True)
class Banner:
    """For the top of every page. ``is_bad`` is False for what a person asked for."""

    text: str
    since: str | None = None
    is_bad: bool = True


def banners(health: Health) -> Iterator[Banner]:
    """Each problem once: an alarm replaces the check or warning that says the same."""
    alarms = [alarm.text for alarm in health.alarms]
    problems = [(check.problem, (check.model_extra or {}).get("since")) for check in health.checks.values()]
    for text, since in (*problems, *((warning, None) for warning in health.warnings)):
        if text and not any(alarm in text for alarm in alarms):
            yield Banner(text, since)
    for alarm in health.alarms:
        yield Banner(f"Alarm: {alarm.text}", alarm.since)
    for name, pause in health.paused.items():
        reason = f" ({pause.reason})" if pause.reason else ""
        yield Banner(f"{name} is paused{reason}. New emails for it are queued", pause.since, is_bad=False)
