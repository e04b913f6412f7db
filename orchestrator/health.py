"""Whether the service can do its work, and what stands in the way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

import psutil

from deduplication.errors import DeduplicationError
from deduplication.stores.base import Store
from deduplication.stores.failover import FailoverStore, Mode, Situation
from deduplication.stores.redis import Facts
from orchestrator.delivery.outbox import Queue, QueueMisconfigured, QueueUnavailable

Check = dict[str, Any]


@dataclass(frozen=True)
class Health:
    """``ok``; ``degraded``: emails are taken, but something is wrong; ``down``: none can be taken."""

    status: str
    checks: dict[str, Check]
    warnings: list[str]


@dataclass(frozen=True)
class HealthChecks:
    store: Store
    memory_limit_mb: int
    queue: Queue | None = None
    rss_bytes: Callable[[], int] = lambda: psutil.Process().memory_info().rss

    def is_ready(self) -> bool:
        """Can an email be taken safely?"""
        return "error" not in _is_up(self.store)

    def report(self) -> Health:
        if isinstance(self.store, FailoverStore):
            redis, warnings = _redis(self.store)
            database = _is_up(self.store.local)
        else:
            redis, warnings = {"status": "not configured"}, []
            database = _is_up(self.store)
        checks = {"redis": redis, "database": database, "queue": self._queue(), "memory": self._memory()}
        is_well = all(check["status"] in ("up", "not configured") for check in checks.values())
        status = "down" if not self.is_ready() else "ok" if is_well else "degraded"
        return Health(status, checks, warnings)

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


def _is_up(store: Store) -> Check:
    try:
        store.check()
    except DeduplicationError as error:
        return {"status": "down", "error": str(error)}
    return {"status": "up"}


def _redis(store: FailoverStore) -> tuple[Check, list[str]]:
    situation = store.situation()
    if situation.mode is not Mode.REDIS:
        return {"status": "down"} | _situation(situation), []
    try:
        facts = store.facts()
    except DeduplicationError as error:
        return {"status": "down", "error": str(error)} | _situation(situation), []
    return {"status": "up"} | _situation(situation) | asdict(facts), _eviction_warnings(facts)


def _situation(situation: Situation) -> Check:
    return {
        "mode": situation.mode,
        "since": datetime.fromtimestamp(situation.since, UTC).isoformat(timespec="seconds"),
        "names_waiting_to_be_merged": situation.waiting,
        "numbers": vars(situation.numbers),
    }


def _eviction_warnings(facts: Facts) -> list[str]:
    if facts.maxmemory_policy in (None, "noeviction"):
        return []
    return [f"Redis maxmemory-policy is {facts.maxmemory_policy}: it silently forgets names; set it to noeviction"]
