"""Whether the service can do its work, and what stands in the way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

import psutil

from deduplication.errors import DeduplicationError
from deduplication.journal.base import Journal
from deduplication.journal.failover import FailoverJournal
from deduplication.journal.side import Side
from orchestrator.delivery.queue import Queue, QueueMisconfigured, QueueUnavailable

Check = dict[str, Any]


@dataclass(frozen=True)
class Health:
    """``ok``; ``degraded``: emails are taken, but something is wrong; ``down``: none can be taken."""

    status: str
    checks: dict[str, Check]
    warnings: list[str]


@dataclass(frozen=True)
class HealthChecks:
    journal: Journal
    memory_limit_mb: int
    queue: Queue | None = None
    rss_bytes: Callable[[], int] = lambda: psutil.Process().memory_info().rss

    def is_ready(self) -> bool:
        """Can an email be taken safely?"""
        return "error" not in _is_up(self.journal)

    def report(self) -> Health:
        redis: Check = {"status": "not configured"}
        if isinstance(self.journal, FailoverJournal):
            redis, database = _redis(self.journal), _is_up(self.journal.local)
        else:
            database = _is_up(self.journal)
        checks = {"redis": redis, "database": database, "queue": self._queue(), "memory": self._memory()}
        is_well = all(check["status"] in ("up", "not configured") for check in checks.values())
        status = "down" if not self.is_ready() else "ok" if is_well else "degraded"
        return Health(status, checks, _eviction_warnings(redis))

    def _queue(self) -> Check:
        if self.queue is None:
            return {"status": "not configured"}
        try:
            self.queue.check()
        except (QueueUnavailable, QueueMisconfigured) as error:
            return {"status": "down", "error": str(error)}
        return {"status": "up"}

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
    since = datetime.fromtimestamp(standing.since_s, UTC).isoformat(timespec="seconds")
    known = {
        "side": standing.side,
        "generation": standing.generation,
        "since": since,
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
    if policy in (None, "noeviction"):
        return []
    return [f"Redis maxmemory-policy is {policy}: it silently forgets names; set it to noeviction"]
