"""Whether the service can do its work, and what stands in the way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import psutil

from deduplication.errors import DeduplicationError
from deduplication.journal.base import Journal
from deduplication.journal.failover import FailoverJournal
from deduplication.journal.side import Side
from deduplication.silence import waiting_once
from orchestrator.delivery.queue import Queue, QueueMisconfigured, QueueUnavailable
from orchestrator.delivery.sender import Sender
from orchestrator.operations.alert_watch import AlertWatch
from orchestrator.operations.alerts import GOOD_POLICY, OLDEST_WAITING_S, eviction_warning
from orchestrator.operations.proxy_watch import ProxyWatch
from orchestrator.operations.storage import StorageWatch
from orchestrator.operations.words import shown_moment
from orchestrator.version import our_version

Check = dict[str, Any]


@dataclass(frozen=True)
class Health:
    """``ok``; ``degraded``: emails are taken, but something is wrong; ``down``: none can be taken.

    ``paused``: the destinations that nothing is sent to until someone resumes them. ``alarms``: those of the fleet.
    """

    status: str
    version: str
    checks: dict[str, Check]
    warnings: list[str]
    paused: dict[str, dict[str, str]]
    alarms: list[dict[str, str | None]]


@dataclass(frozen=True)
class HealthChecks:
    """Anybody may ask, as often as they like: what takes long to find out is known from who judges the fleet."""

    sender: Sender
    memory_limit_mb: int
    storage: StorageWatch
    watch: AlertWatch
    queue: Queue | None = None
    proxies: ProxyWatch = field(default_factory=ProxyWatch)
    rss_bytes: Callable[[], int] = lambda: psutil.Process().memory_info().rss

    @property
    def journal(self) -> Journal:
        return self.sender.journal

    def is_ready(self) -> bool:
        """Can an email be taken safely?"""
        return "error" not in _is_up(self.journal)

    def report(self) -> Health:
        """A Redis that keeps silent is waited for once: whoever probes has little patience."""
        with waiting_once():
            return self._report()

    def _report(self) -> Health:
        redis: Check = {"status": "not configured"}
        taking = database = _is_up(self.journal)
        if isinstance(self.journal, FailoverJournal):
            redis, database = _redis(self.journal), _is_up(self.journal.local)
        checks = {
            "redis": redis,
            "database": database,
            "storage": self._storage(),
            "queue": self._queue(),
            "destinations": self._destinations(),
            "deliveries": self._deliveries(),
            "memory": self._memory(),
        }
        is_well = all(check["status"] in ("up", "not configured") for check in checks.values())
        status = "down" if "error" in taking else "ok" if is_well else "degraded"
        alarms = [each.shown() for each in self.watch.alarms()]
        warnings = [*_eviction_warnings(redis), *self.proxies.warnings()]
        return Health(status, our_version(), checks, warnings, self.sender.paused(), alarms)

    def _queue(self) -> Check:
        if self.queue is None:
            return {"status": "not configured"}
        try:
            self.queue.check()
        except (QueueUnavailable, QueueMisconfigured) as error:
            return {"status": "down", "error": str(error)}
        workers = self.watch.findings.workers if self.watch.findings else None
        return {"status": "no worker" if workers == 0 else "up", "workers": workers}

    def _destinations(self) -> Check:
        """In trouble: one is paused, or fails so often that it is left alone. One that is disabled is so on purpose."""
        paused, breakers = self.sender.paused(), {}
        for name, policy in self.sender.policies.items():
            if policy.is_enabled and name not in paused:
                breakers[name] = self.sender.guard.state(name)
        is_well = not paused and set(breakers.values()) <= {"closed"}
        return {"status": "up" if is_well else "in trouble", "breakers": breakers}

    def _deliveries(self) -> Check:
        """Late: one waits for too long. What waits for a destination that is paused or disabled waits on purpose."""
        found, now_ms = self.watch.findings, self.sender.clock.now_ms()
        ages_s = {name: max(0, now_ms - since) // 1000 for name, since in (found.oldest_ms if found else {}).items()}
        is_late = max(ages_s.values(), default=0) > OLDEST_WAITING_S
        return {"status": "late" if is_late else "up", "oldest_waiting_s": ages_s}

    def _storage(self) -> Check:
        """Where payloads go by now; over the limit from the first that has no room where it should be."""
        try:
            stage, storage = self.storage.look()
        except DeduplicationError as error:
            return {"status": "down", "error": str(error)}
        status = "up" if stage is self.storage.first else "over the limit"
        return {"status": status, "stage": stage} | asdict(storage)

    def _memory(self) -> Check:
        rss_mb = self.rss_bytes() / 1024 / 1024
        within = rss_mb <= self.memory_limit_mb
        return {
            "status": "up" if within else "over the limit",
            "rss_mb": round(rss_mb, 1),
            "limit_mb": self.memory_limit_mb,
        }


def _is_up(journal: Journal) -> Check:
    try:
        journal.check()
    except DeduplicationError as error:
        return {"status": "down", "error": str(error)}
    return {"status": "up"}


def _redis(journal: FailoverJournal) -> Check:
    """On which side this machine is and since when, and what Redis has yet to be told."""
    standing, told = journal.standing, journal.untold()
    known = {
        "side": standing.side,
        "generation": standing.generation,
        "since": shown_moment(int(standing.since_s * 1000)),
        "unmerged": told.entries,
        "spool_bytes": told.spool_bytes,
        "numbers": vars(journal.numbers),
    }
    if standing.side is not Side.REDIS:
        return {"status": "down"} | known
    try:
        return {"status": "up"} | known | asdict(journal.redis_facts())
    except DeduplicationError as error:
        return {"status": "down", "error": str(error)} | known


def _eviction_warnings(redis: Check) -> list[str]:
    policy = redis.get("maxmemory_policy")
    return [] if policy in (None, GOOD_POLICY) else [eviction_warning(policy)]
