"""What is wrong, in words for whoever looks at the page: alarms of the fleet, and what this machine sees right now."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from deduplication.journal.side import Side
from deduplication.journal.storage import Stage
from orchestrator.operations.health import Health

WRONG = {
    "database": "The journal of this machine cannot be used",
    "memory": "This process takes more memory than MEMORY_LIMIT_MB",
}


@dataclass(frozen=True)
class Banner:
    """``since``: ISO text, where that is known. ``is_bad`` False: somebody wanted it so."""

    headline: str
    text: str
    since: str | None = None
    is_bad: bool = True


def banners(health: Health) -> list[Banner]:
    return [*_redis(health), *_alarms(health), *_destinations(health), *_others(health)]


def _redis(health: Health) -> Iterator[Banner]:
    redis = health.checks["redis"]
    if _is_redis_away(health):
        told = f"; {redis['unmerged']:,} of its decisions will be told to Redis when it is back"
        knows = f"This machine decides by what it knows{told if redis['unmerged'] else ''}."
        yield Banner("Redis is away", knows, redis["since"])
    elif redis["status"] == "down":
        yield Banner("Redis does not answer", str(redis.get("error", "")))


def _is_redis_away(health: Health) -> bool:
    return health.checks["redis"].get("side") not in (None, Side.REDIS)


def _alarms(health: Health) -> Iterator[Banner]:
    for alarm in health.alarms:
        yield Banner("Alarm", str(alarm["text"]), alarm["since"])


def _destinations(health: Health) -> Iterator[Banner]:
    for name, paused in health.paused.items():
        why = f"Why: {paused['reason']}. " if paused["reason"] else ""
        yield Banner(f"{name} is paused", f"{why}What comes for it waits.", paused["since"], is_bad=False)
    known = {alarm["destination"] for alarm in health.alarms}
    for name, breaker in health.checks["destinations"]["breakers"].items():
        if breaker != "closed" and name not in known:
            yield Banner(
                f"{name} keeps failing", "It is left alone for a while, then tried again. What comes for it waits."
            )


def _others(health: Health) -> Iterator[Banner]:
    for name, headline in WRONG.items():
        check = health.checks[name]
        if check["status"] != "up":
            yield Banner(headline, str(check.get("error") or check["status"]))
    storage = health.checks["storage"]
    if storage.get("stage") == Stage.FULL:
        yield Banner("There is no room for payloads", "What cannot be delivered at once is left to its provider.")
    elif storage["status"] == "over the limit" and not _is_redis_away(health):
        yield Banner("Redis has no room for payloads", "They go to this machine's disk, and are delivered from here.")
    queue = health.checks["queue"]
    if queue["status"] == "down":
        yield Banner("The queue is away", "Requests deliver meanwhile.")
    elif queue["status"] == "no worker":
        yield Banner("The queue has no worker", "What is queued waits until one is started: mailonce worker.")
    for warning in health.warnings:
        yield Banner("The configuration needs attention", warning)
