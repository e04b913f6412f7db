"""Whether the service can do its work, and what is wrong if it cannot. Nothing here waits for Redis."""

from __future__ import annotations

import logging
import resource
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr

from deduplication.errors import DeduplicationError
from deduplication.journal.coordinator import BEHIND_MS
from orchestrator.operations.alarms import CONDITIONS, Alarm, AlarmShown, diagnose
from orchestrator.operations.fleet_state import FleetState, Pause, fleet_state
from orchestrator.operations.times import shown_moment
from orchestrator.version import our_version

if TYPE_CHECKING:
    from orchestrator.build import Service

log = logging.getLogger(__name__)

NEARLY_FULL = 0.95
OF_REDIS = {"maxmemory_policy", "evicted_keys", "used_bytes", "limit_bytes"}
OF_STORAGE = {"journal_payload_bytes", "redis_payload_bytes", "redis_payload_limit_bytes"}
UNTRUSTED_PROXY = "X-Forwarded-For was sent by an address that is not in TRUSTED_PROXIES: its clients count as one"
INFO_FORBIDDEN = "Redis forbids INFO to this user: if it is set back to an older snapshot, that goes unnoticed"


class Problem(NamedTuple):
    """Its ``check`` of /health has the status ``word``; without a check, it is a warning there. ``about``: a condition,
    the name of a check, or "paused". ``is_bad`` is False for what a person asked for."""

    check: str
    word: str
    text: str
    about: str = ""
    since: str | None = None
    destination: str | None = None
    is_bad: bool = True


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
    _problems: Sequence[Problem] = PrivateAttr(())

    @property
    def problems(self) -> list[Problem]:
        """For the top of every page: each problem once, and last what a person asked for."""
        return sorted(self._problems, key=lambda problem: not problem.is_bad)


def note_untrusted_proxy(service: Service, address: str) -> None:
    """X-Forwarded-For was sent by this address. The log shows it; /health, which is public, does not."""
    if UNTRUSTED_PROXY not in service.notices:
        log.warning("WARNING: %s (%s)", UNTRUSTED_PROXY, address)
        service.notices.append(UNTRUSTED_PROXY)


def is_ready(service: Service) -> bool:
    """Whether an email can be accepted safely."""
    coordinator = service.coordinator
    try:
        with service.journal.step():
            service.journal.check_disk()
    except DeduplicationError:
        return False
    return coordinator.registry is None or coordinator.redis.status != "gone" or coordinator.may_go_alone()


def read_health(service: Service) -> Health:
    """Of the problems of a check the first one counts, and others of its condition. A check without facts is not
    configured."""
    alarms, paused = dict[str, Alarm](), dict[str, Pause]()
    try:
        with service.journal.step():
            pass  # it can be written
        state = fleet_state(service)
        alarms = service.alarms.read()
        facts, problems = _facts(service, state), list(_problems(service, state, alarms))
        paused = {name: view.paused for name, view in state.destinations.items() if view.paused}
    except DeduplicationError as error:
        facts = {"database": {"error": str(error)}}
        problems = [Problem("database", "down", f"The journal of this machine cannot be used: {error}")]
    problems += (Problem("", "", text) for text in service.notices)
    rss_mb, limit_mb = _used_mb(), service.settings.memory_limit_mb
    facts["memory"] = {"rss_mb": rss_mb, "limit_mb": limit_mb}
    if rss_mb > limit_mb:
        text = f"This process uses {rss_mb} MB, more than MEMORY_LIMIT_MB ({limit_mb})"
        problems.append(Problem("memory", "over the limit", text))
    checks = {}
    for name, known in facts.items():
        own = [problem for problem in problems if problem.check == name]
        status = "not configured" if known is None else own[0].word if own else "up"
        texts = [problem.text for problem in own if problem.is_bad and problem.about == own[0].about]
        checks[name] = HealthCheck(status=status, problem=" ".join(texts) or None, **(known or {}))
    is_well = all(check.status in ("up", "not configured") for check in checks.values())
    health = Health(
        status="down" if not is_ready(service) else "ok" if is_well else "degraded",
        checks=checks,
        warnings=[problem.text for problem in problems if problem.is_bad and not problem.check],
        paused=paused,
        alarms=sorted(alarms.values(), key=lambda alarm: alarm.since),
    )
    health._problems = problems
    return health


def _problems(service: Service, state: FleetState, alarms: Mapping[str, Alarm]) -> Iterator[Problem]:
    facts = state.facts
    if state.redis_status not in (None, "up"):
        away = f"Redis does not answer: this machine decides alone. Entries to publish: {state.unpublished:,}"
        yield Problem("redis", "down", away, since=shown_moment(state.lost_ms) if state.lost_ms else None)
    if state.redis_status and state.gap_ms:
        yield Problem("fleet", "gap", "This machine missed a part of the fleet's work: the stream was trimmed")
    elif state.redis_status == "up" and (state.behind_s is None or state.behind_s * 1000 > BEHIND_MS):
        yield Problem("fleet", "behind", "This machine has not read all of the fleet's work yet")
    is_redis_full = (facts.redis_payload_bytes or 0) > NEARLY_FULL * (facts.redis_payload_limit_bytes or 0)
    if is_redis_full or state.disk_free_bytes < service.settings.disk_free_bytes:
        yield Problem("storage", "full", "No room is left: emails are returned to their providers for retry")
    # Conditions that are true now, or whose alarm is still on
    found = {key: text for key, text in diagnose(state, service.config.alerts.off).items() if text}
    texts = {key: alarm.text for key, alarm in alarms.items()} | found
    for condition, (key, text) in product(CONDITIONS, texts.items()):
        name, _, destination = key.partition(":")
        if name == condition.name:
            since = alarms[key].since if key in alarms else None
            yield Problem(condition.check, condition.word, text, name, since, destination or None)
    if facts.redis_payload_limit_bytes is not None and facts.used_bytes is None:
        yield Problem("", "", INFO_FORBIDDEN)
    for name, view in state.destinations.items():
        if view.paused:
            reason = f" ({view.paused.reason})" if view.paused.reason else ""
            queued = f"{name} is paused{reason}. New emails for it are queued"
            check = "destinations" if view.enabled is not None else ""
            yield Problem(check, "in trouble", queued, "paused", view.paused.since, name, is_bad=False)


def _facts(service: Service, state: FleetState) -> dict[str, dict[str, Any] | None]:
    facts: dict[str, dict[str, Any] | None] = {
        "redis": None,
        "fleet": None,
        "database": {},
        "storage": {
            "disk_free_bytes": state.disk_free_bytes,
            "disk_needed_bytes": service.settings.disk_free_bytes,
            **state.facts.model_dump(include=OF_STORAGE),
        },
        "workers": None if state.workers is None else {"alive": state.workers},
        "destinations": {
            "breakers": {name: view.breaker for name, view in state.active.items()},
            "states": {name: view.status for name, view in state.destinations.items()},
        },
        "deliveries": {
            "oldest_waiting_s": {name: view.oldest_s for name, view in state.active.items() if view.oldest_s}
        },
    }
    if state.redis_status:
        facts["redis"] = {
            "state": state.redis_status,
            "since": state.lost_ms and shown_moment(state.lost_ms),
            "era": state.era,
            "unpublished": state.unpublished,
            **state.facts.model_dump(include=OF_REDIS),
        }
        facts["fleet"] = {
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
    return facts


def _used_mb() -> float:
    """Memory of this process, now; where the system does not say, the most it ever used."""
    try:
        used_bytes = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    except OSError:
        used_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return round(used_bytes / 1024 / 1024, 1)
