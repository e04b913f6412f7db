"""Whether the service can do its work, and what is wrong if it cannot. Nothing here waits for Redis or the queue."""

from __future__ import annotations

import logging
import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from deduplication.errors import DeduplicationError
from deduplication.journal.coordinator import BEHIND_MS
from orchestrator.operations.alarms import AlarmShown
from orchestrator.operations.conditions import CONDITIONS
from orchestrator.operations.fleet_state import FleetState, Pause, fleet_state
from orchestrator.operations.times import shown_moment
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


class Health(BaseModel):
    """`degraded`: emails are accepted, but something is wrong; `down`: none can be accepted. It is `ok` only if no
    condition of an alarm is true and no alarm is on, but for those that are only warnings.

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


def read_health(service: Service) -> Health:
    memory = _check_memory(service.settings.memory_limit_mb)
    try:
        with service.journal.step():
            pass  # it can be written
        state = fleet_state(service)
        alarms = service.alarms.read(state)
    except DeduplicationError as error:
        problem = f"The journal of this machine cannot be used: {error}"
        checks = {"database": _check({"error": str(error)}, (True, "down", problem)), "memory": memory}
        return Health(status="down", checks=checks, warnings=service.proxies.warnings() + service.notices)
    troubles = _troubles(service.alarms.diagnose(state), alarms)
    checks = _checks(state, troubles, service.settings.disk_free_bytes) | {"memory": memory}
    is_well = all(check.status in ("up", "not configured") for check in checks.values())
    warnings = [text for _, _, text in troubles[""] if text]
    if state.redis and state.redis.used_bytes is None:
        warnings.append("Redis forbids INFO to this user: if it is set back to an older snapshot, that goes unnoticed")
    return Health(
        status="down" if not is_ready(service) else "ok" if is_well else "degraded",
        checks=checks,
        warnings=warnings + service.proxies.warnings() + service.notices,
        paused={name: view.paused for name, view in state.destinations.items() if view.paused},
        alarms=alarms,
    )


Trouble = tuple[object, str, str | None]
"""Whether it is so, a word, and a sentence about it."""


def _troubles(diagnosis: Mapping[str, str | None], alarms: Sequence[AlarmShown]) -> dict[str, list[Trouble]]:
    """For each check, the conditions that are true now or whose alarm is still on, in the words of the alarm."""
    texts = {f"{alarm.condition}:{alarm.destination or ''}": alarm.text for alarm in alarms}
    texts |= {key if ":" in key else f"{key}:": text for key, text in diagnosis.items() if text}
    found: dict[str, list[Trouble]] = {}
    for condition in CONDITIONS:
        own = [text for key, text in texts.items() if key.partition(":")[0] == condition.name]
        found.setdefault(condition.check, []).append((own, condition.word, " ".join(own)))
    return found


def _check(facts: Mapping[str, Any] | None, *troubles: Trouble) -> HealthCheck:
    """``facts`` is None if it is not configured. Of the ``troubles``, the first that is so counts."""
    if facts is None:
        return HealthCheck(status="not configured")
    status, problem = next(((word, text) for is_so, word, text in troubles if is_so), ("up", None))
    return HealthCheck.model_validate({"status": status, "problem": problem, **facts})


def _redis_checks(state: FleetState, troubles: Sequence[Trouble]) -> dict[str, HealthCheck]:
    if state.redis_status is None:
        return {"redis": _check(None), "fleet": _check(None)}
    redis = {
        "state": state.redis_status,
        "since": state.lost_ms and shown_moment(state.lost_ms),
        "era": state.era,
        "unpublished": state.unpublished,
        **(state.redis.model_dump(exclude={"payload_bytes", "most_payload_bytes"}) if state.redis else {}),
    }
    fleet = {
        "machine": state.machine,
        "behind_s": state.behind_s,
        # This machine does not know emails that the fleet received before.
        "known_since": state.known_since_ms and shown_moment(state.known_since_ms),
        "gap_since": state.gap_ms and shown_moment(state.gap_ms),
        "members": {
            name: {"version": about.get("version"), "seen": shown_moment(about["at_ms"])}
            for name, about in state.members.items()
        },
    }
    away = "Redis does not answer: this machine decides by what it knows of the fleet."
    unpublished = f"Entries to publish when Redis is back: {state.unpublished:,}"
    gap = "This machine missed a part of the fleet's work: the stream was trimmed"
    is_behind = state.redis_status == "up" and (state.behind_s is None or state.behind_s * 1000 > BEHIND_MS)
    behind = "This machine has not read all of the fleet's work yet"
    return {
        "redis": _check(redis, (state.redis_status != "up", "down", f"{away} {unpublished}"), *troubles),
        "fleet": _check(fleet, (state.gap_ms, "gap", gap), (is_behind, "behind", behind)),
    }


def _checks(
    state: FleetState, troubles: Mapping[str, Sequence[Trouble]], disk_needed_bytes: int
) -> dict[str, HealthCheck]:
    storage = {
        "disk_free_bytes": state.disk_free_bytes,
        "disk_needed_bytes": disk_needed_bytes,
        "journal_payload_bytes": state.outside.payload_bytes,
    }
    is_full = state.disk_free_bytes < disk_needed_bytes
    if redis := state.redis:
        storage["redis_payload_bytes"] = redis.payload_bytes
        storage["redis_payload_limit_bytes"] = redis.most_payload_bytes
        is_full = is_full or redis.payload_bytes > NEARLY_FULL * redis.most_payload_bytes
    queue = {"workers": state.workers, "error": state.outside.queue_error or None}
    is_paused = any(view.paused for view in state.destinations.values() if view.enabled is not None)
    full = "No room is left: emails are returned to their providers for retry"
    queue_down = "The queue does not answer: requests deliver emails themselves meanwhile"
    destinations = {
        "breakers": {name: view.breaker for name, view in state.active.items()},
        "states": {name: view.status for name, view in state.destinations.items()},
    }
    late = {"oldest_waiting_s": {name: view.oldest_s for name, view in state.active.items() if view.oldest_s}}
    has_queue = state.workers is not None
    return _redis_checks(state, troubles["redis"]) | {
        "database": _check({}),
        "storage": _check(storage, (is_full, "full", full)),
        "queue": _check(queue if has_queue else None, (queue["error"], "down", queue_down), *troubles["queue"]),
        # Health.paused says which
        "destinations": _check(destinations, *troubles["destinations"], (is_paused, "in trouble", None)),
        "deliveries": _check(late, *troubles["deliveries"]),
    }


def _check_memory(limit_mb: int) -> HealthCheck:
    """Of this process, now; where the system does not say, the most it ever used."""
    try:
        rss_bytes = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    except OSError:
        rss_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    rss_mb = round(rss_bytes / 1024 / 1024, 1)
    problem = f"This process uses {rss_mb} MB, more than MEMORY_LIMIT_MB ({limit_mb})"
    return _check({"rss_mb": rss_mb, "limit_mb": limit_mb}, (rss_mb > limit_mb, "over the limit", problem))


@dataclass(frozen=True)
class Banner:
    """For the top of every page. ``about``: the condition of an alarm, the name of a check, or "paused". ``is_bad`` is
    False for what a person asked for."""

    text: str
    since: str | None = None
    about: str = ""
    destination: str | None = None
    is_bad: bool = True


def banners(health: Health) -> Iterator[Banner]:
    """Each problem once: an alarm replaces the check or warning that says the same."""
    alarms = [alarm.text for alarm in health.alarms]
    problems = [(each.problem, (each.model_extra or {}).get("since"), name) for name, each in health.checks.items()]
    for text, since, about in (*problems, *((warning, None, "") for warning in health.warnings)):
        for alarm in alarms:
            text = text and text.replace(alarm, "").strip()
        if text:
            yield Banner(text, since, about)
    for on in health.alarms:
        yield Banner(f"Alarm: {on.text}", on.since, on.condition, on.destination)
    for name, pause in health.paused.items():
        reason = f" ({pause.reason})" if pause.reason else ""
        text = f"{name} is paused{reason}. New emails for it are queued"
        yield Banner(text, pause.since, "paused", name, is_bad=False)
