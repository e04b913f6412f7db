"""Whether the service can do its work, and what stands in the way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import psutil

from deduplication.errors import DeduplicationError
from deduplication.stores.base import Store
from deduplication.stores.redis import RedisStore


@dataclass(frozen=True)
class Health:
    status: str
    checks: dict[str, dict[str, Any]]
    warnings: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class HealthChecks:
    """``redis`` and ``database`` are the stores in use, None where not configured."""

    redis: RedisStore | None
    database: Store | None
    memory_limit_mb: int
    rss_bytes: Callable[[], int] = lambda: psutil.Process().memory_info().rss

    def is_ready(self) -> bool:
        """Can an email be taken safely?"""
        return all(_check(store)["status"] == "up" for store in (self.redis, self.database) if store)

    def report(self) -> Health:
        checks = {
            "redis": _check(self.redis),
            "database": _check(self.database),
            "memory": self._memory(),
        }
        status = "ok"
        if checks["memory"]["status"] != "up":
            status = "degraded"
        if not self.is_ready():
            status = "down"
        return Health(status, checks, self.warnings())

    def warnings(self) -> list[str]:
        if self.redis is None:
            return []
        try:
            policy = self.redis.eviction_policy()
        except DeduplicationError:
            return []
        if policy in (None, "noeviction"):
            return []
        return [f"Redis maxmemory-policy is {policy}: it silently forgets names; set it to noeviction"]

    def _memory(self) -> dict[str, Any]:
        rss_mb = self.rss_bytes() / 1024 / 1024
        within = rss_mb <= self.memory_limit_mb
        return {
            "status": "up" if within else "over the limit",
            "rss_mb": round(rss_mb, 1),
            "limit_mb": self.memory_limit_mb,
        }


def _check(store: Store | None) -> dict[str, Any]:
    if store is None:
        return {"status": "not configured"}
    try:
        store.check()
    except DeduplicationError as error:
        return {"status": "down", "error": str(error)}
    return {"status": "up"}
