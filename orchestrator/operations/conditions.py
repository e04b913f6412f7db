"""The conditions that raise an alarm: one table, from which make docs-reference writes deploy/prometheus/alerts.yml."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from deduplication.journal.entry import DeliveryStatus
from deduplication.redis_state import REDIS_ERRORS, REDIS_STEPS
from orchestrator.metrics.meter import DELIVERIES, NOT_RECEIVED, REDIS_S
from orchestrator.operations.times import shown_duration

if TYPE_CHECKING:  # config/model.py needs the names of the conditions
    from orchestrator.operations.fleet_state import FleetState

LEAST_RECEIVED = 1000  # in a day; with fewer emails the rate means nothing
GOOD_POLICY = "noeviction"
LATE_S = 15 * 60


class AlertCondition(StrEnum):
    REDIS_ERRORS = "redis_errors"
    LOCAL_JOURNAL = "local_journal"
    LOW_HIT_RATE = "low_hit_rate"
    DEAD_LETTERS = "dead_letters"
    BREAKER_OPEN = "breaker_open"
    OLDEST_WAITING = "oldest_waiting"
    NO_WORKER = "no_worker"
    EVICTION_POLICY = "eviction_policy"
    SUPPRESSED_ROOM = "suppressed_room"


Values = Mapping[str, float | None]
"""By destination, "" for the whole fleet; None if it cannot be known now. Empty if the condition does not apply."""


@dataclass(frozen=True)
class Condition:
    """True where a value is over the threshold, or ``below`` it. ``summary`` may show the {destination} and the value
    as {share}, {age} or {count}. ``check`` of /health then has the status ``word``; without a check, it is a warning
    there. ``expr``, ``after`` and ``severity`` are for Prometheus."""

    name: AlertCondition
    check: str
    values: Callable[[FleetState], Values]
    threshold: float
    summary: str
    description: str
    expr: str
    after: str = ""
    severity: str = "critical"
    below: bool = False
    word: str = "in trouble"

    def is_wrong(self, value: float) -> bool:
        return value < self.threshold if self.below else value > self.threshold


def _redis_errors(state: FleetState) -> Values:
    asked, failed = (sum(state.ten_minutes.by(metric).values()) for metric in (REDIS_STEPS, REDIS_ERRORS))
    return {"": failed / asked if asked else None} if state.redis_status else {}


def _redis_gone(state: FleetState) -> Values:
    seconds = state.ten_minutes.by(REDIS_S, 0)
    return {"": seconds.get(("gone",), 0) / sum(seconds.values()) if seconds else None} if state.redis_status else {}


def _died(state: FleetState) -> Values:
    attempts = state.hour.by(DELIVERIES, 0, 1).items()
    return {name: count for (name, outcome), count in attempts if outcome == DeliveryStatus.DEAD}


def _eviction(state: FleetState) -> Values:
    policy = state.redis.maxmemory_policy if state.redis else None
    return {"": policy != GOOD_POLICY if policy else None} if state.redis_status else {}


_RECEIVED = f'mailonce_emails_total{{status!~"{"|".join(NOT_RECEIVED)}"}}'
CONDITIONS = (
    Condition(
        AlertCondition.REDIS_ERRORS,
        "redis",
        _redis_errors,
        0.05,
        "{share} of the steps that Redis is asked for fail",
        "Emails are returned to their providers for retry, or decided by each machine alone. See the log of Redis.",
        "sum(rate(mailonce_redis_errors_total[10m])) / sum(rate(mailonce_redis_steps_total[10m])) > $threshold",
        after="5m",
    ),
    Condition(
        AlertCondition.LOCAL_JOURNAL,
        "redis",
        _redis_gone,
        0.1,
        "Redis was gone for {share} of the last ten minutes",
        "Each machine decides alone. An email that reaches two machines at the same time is delivered twice.",
        'sum by (job, instance) (increase(mailonce_redis_seconds_total{status="gone"}[10m]))\n'
        "  / sum by (job, instance) (increase(mailonce_redis_seconds_total[10m])) > $threshold",
        after="5m",
    ),
    Condition(
        AlertCondition.LOW_HIT_RATE,
        "",
        lambda state: {"": state.day.hit_rate} if state.day.received >= LEAST_RECEIVED else {},
        0.01,
        "Only {share} of the emails of a day were recognised as duplicates",
        "Names may have been forgotten (PROCESSED_IDS_DAYS, resets, eviction), or dates may change.",
        f"sum(increase(mailonce_duplicates_total[1d])) / sum(increase({_RECEIVED}[1d])) < $threshold\n"
        f"and sum(increase(mailonce_emails_total[1d])) >= {LEAST_RECEIVED}",
        after="1h",
        severity="warning",
        below=True,
    ),
    Condition(
        AlertCondition.DEAD_LETTERS,
        "destinations",
        _died,
        0,
        "New dead letters at {destination}: {count}",
        "It kept failing until the last attempt. See mailonce deliveries --status dead, then mailonce replay.",
        "max by (destination) (mailonce_dead_letters)\n"
        "  - max by (destination) (mailonce_dead_letters offset 15m) > $threshold",
    ),
    Condition(
        AlertCondition.BREAKER_OPEN,
        "destinations",
        lambda state: {name: view.breaker != "closed" for name, view in state.active.items()},
        0,
        "{destination} keeps failing",
        "Its circuit breaker is open. New emails for it are queued and sent once it works again.",
        'max by (destination) (mailonce_breaker_state{state=~"open|half-open"}) == 1',
        after="2m",
        severity="warning",
    ),
    Condition(
        AlertCondition.OLDEST_WAITING,
        "deliveries",
        lambda state: {name: view.oldest_s or 0 for name, view in state.active.items()},
        LATE_S,
        "An email has waited for {age} to be delivered to {destination}",
        "The destination is down or over its rate. See mailonce deliveries --status waiting.",
        "max by (destination) (mailonce_oldest_waiting_seconds) > $threshold",
        severity="warning",
        word="late",
    ),
    Condition(
        AlertCondition.NO_WORKER,
        "queue",
        lambda state: {} if state.workers is None else {"": state.workers},
        1,
        "The queue has no worker",
        "Queued emails wait until mailonce worker runs with the same settings.",
        "max(mailonce_workers_alive) < $threshold",
        after="1m",
        below=True,
        word="no worker",
    ),
    Condition(
        AlertCondition.EVICTION_POLICY,
        "redis",
        _eviction,
        0,
        "Redis may forget names",
        f"When it is full, it drops keys, and duplicates are delivered. Set maxmemory-policy to {GOOD_POLICY}.",
        f'max(mailonce_redis_maxmemory_policy{{policy!="{GOOD_POLICY}"}}) == 1',
    ),
    Condition(
        AlertCondition.SUPPRESSED_ROOM,
        "",
        lambda state: {"": state.suppressed_share},
        0.8,
        "The suppressed emails of one sender domain take {share} of their room",
        "When it is full, the oldest emails of that domain can no longer be released. Release those you need.",
        "max(mailonce_suppressed_room_ratio) > $threshold",
        severity="warning",
    ),
)


def diagnose(state: FleetState, off: Collection[AlertCondition] = ()) -> dict[str, str | None]:
    """A text for each condition that is true, None for one that cannot be evaluated now: its alarm stays as it is.

    The key is the condition, or the condition and its destination with a colon between them. ``off``: conditions that
    are switched off.
    """
    found: dict[str, str | None] = {}
    for condition in CONDITIONS:
        for destination, value in condition.values(state).items() if condition.name not in off else ():
            key = f"{condition.name}:{destination}" if destination else condition.name.value
            if value is None:
                found[key] = None
            elif condition.is_wrong(value):
                summary = condition.summary.format(
                    destination=destination, share=f"{value:.1%}", age=shown_duration(int(value)), count=int(value)
                )
                found[key] = f"{summary}. {condition.description}"
    return found
