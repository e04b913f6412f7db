"""The conditions that raise an alarm: one table, from which deploy/prometheus/alerts.yml is generated as well.

python -m orchestrator.operations.alerts > deploy/prometheus/alerts.yml
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from orchestrator.metrics.sums import NOT_RECEIVED
from orchestrator.operations.words import shown_duration

if TYPE_CHECKING:  # config/model.py needs the names of the conditions
    from orchestrator.operations.fleet_state import FleetState

LEAST_RECEIVED = 1000  # in a day; with fewer emails the rate means nothing
OLDEST_WAITING_S = 15 * 60
GOOD_POLICY = "noeviction"


class AlertCondition(StrEnum):
    REDIS_ERRORS = "redis_errors"
    LOCAL_JOURNAL = "local_journal"
    LOW_HIT_RATE = "low_hit_rate"
    DEAD_LETTERS = "dead_letters"
    BREAKER_OPEN = "breaker_open"
    OLDEST_WAITING = "oldest_waiting"
    NO_WORKER = "no_worker"
    EVICTION_POLICY = "eviction_policy"


Values = Mapping[str, float] | None  # by destination, "" for the whole fleet; None if it cannot be known now


@dataclass(frozen=True)
class Condition:
    """Wrong where a value is over the threshold, or ``below`` it. Both texts are for a person and may name the
    {destination} and the {value}. ``expr``, ``after`` and ``severity`` are for Prometheus."""

    name: AlertCondition
    read: Callable[[FleetState], Values]
    threshold: float
    summary: str
    description: str
    expr: str
    after: str = ""
    severity: str = "critical"
    below: bool = False

    @property
    def alert(self) -> str:
        return "Mailonce" + self.name.title().replace("_", "")

    def is_wrong(self, value: float) -> bool:
        return value < self.threshold if self.below else value > self.threshold


def _of_redis(value: float | None, state: FleetState) -> Values:
    if state.redis_status is None:
        return {}
    return None if value is None else {"": value}


def _hit_rate(state: FleetState) -> Values:
    lately = state.lately
    return {"": lately.stopped / lately.received} if lately.received >= LEAST_RECEIVED else {}


def _active(state: FleetState, read: Callable[[str | None, int | None], float]) -> Values:
    """By destination that deliveries are meant to go to: the others wait on purpose."""
    return {name: read(each.breaker, each.oldest_s) for name, each in state.destinations.items() if each.is_active}


_RECEIVED = f'mailonce_emails_total{{status!~"{"|".join(NOT_RECEIVED)}"}}'
CONDITIONS = (
    Condition(
        AlertCondition.REDIS_ERRORS,
        lambda state: _of_redis(state.lately.redis_error_share, state),
        0.05,
        "Redis fails {value:share} of the steps asked of it",
        "Emails are returned to their providers for retry, or decided by each machine alone. See the log of Redis.",
        "sum(rate(mailonce_redis_errors_total[10m])) / sum(rate(mailonce_redis_steps_total[10m])) > $threshold",
        after="5m",
    ),
    Condition(
        AlertCondition.LOCAL_JOURNAL,
        lambda state: _of_redis(state.lately.redis_gone_share, state),
        0.1,
        "Redis was gone for {value:share} of the last ten minutes",
        "Each machine decides alone. An email that reaches two machines at the same time is delivered twice.",
        'sum by (job, instance) (increase(mailonce_redis_seconds_total{status="gone"}[10m]))\n'
        "  / sum by (job, instance) (increase(mailonce_redis_seconds_total[10m])) > $threshold",
        after="5m",
    ),
    Condition(
        AlertCondition.LOW_HIT_RATE,
        _hit_rate,
        0.01,
        "Only {value:share} of the emails of a day were recognised as duplicates",
        "Names may have been forgotten (PROCESSED_IDS_DAYS, resets, eviction), or dates may change.",
        f"sum(increase(mailonce_duplicates_total[1d])) / sum(increase({_RECEIVED}[1d])) < $threshold\n"
        f"and sum(increase(mailonce_emails_total[1d])) >= {LEAST_RECEIVED}",
        after="1h",
        severity="warning",
        below=True,
    ),
    Condition(
        AlertCondition.DEAD_LETTERS,
        lambda state: {name: float(count) for name, count in state.lately.died.items()},
        0,
        "New dead letters at {destination}: {value:count}",
        "It kept failing until the last attempt. See mailonce deliveries --status dead, then mailonce replay.",
        "max by (destination) (mailonce_dead_letters)\n"
        "  - max by (destination) (mailonce_dead_letters offset 15m) > $threshold",
    ),
    Condition(
        AlertCondition.BREAKER_OPEN,
        lambda state: _active(state, lambda breaker, _: float(breaker != "closed")),
        0,
        "{destination} keeps failing",
        "Its circuit breaker is open. New emails for it are queued and sent once it works again.",
        'max by (destination) (mailonce_breaker_state{state=~"open|half-open"}) == 1',
        after="2m",
        severity="warning",
    ),
    Condition(
        AlertCondition.OLDEST_WAITING,
        lambda state: _active(state, lambda _, oldest_s: oldest_s or 0),
        OLDEST_WAITING_S,
        "An email has waited for {value:age} to be delivered to {destination}",
        "The destination is down or over its rate. See mailonce deliveries --status waiting.",
        "max by (destination) (mailonce_oldest_waiting_seconds) > $threshold",
        severity="warning",
    ),
    Condition(
        AlertCondition.NO_WORKER,
        lambda state: {} if state.workers is None else {"": state.workers},
        1,
        "The queue has no worker",
        "Queued emails wait until mailonce worker runs with the same settings.",
        "max(mailonce_workers_alive) < $threshold",
        after="1m",
        below=True,
    ),
    Condition(
        AlertCondition.EVICTION_POLICY,
        lambda state: _of_redis(float(state.redis.has_bad_policy) if state.redis else None, state),
        0,
        "Redis may forget names",
        f"When it is full, it drops keys, and duplicates are delivered. Set maxmemory-policy to {GOOD_POLICY}.",
        f'max(mailonce_redis_maxmemory_policy{{policy!="{GOOD_POLICY}"}}) == 1',
    ),
)


class _Value(float):
    def __format__(self, unit: str) -> str:
        return {"share": f"{float(self):.1%}", "age": shown_duration(int(self)), "count": str(int(self))}[unit]


_FOR_PROMETHEUS = {
    "{destination}": "{{ $labels.destination }}",
    "{value:share}": "{{ $value | humanizePercentage }}",
    "{value:age}": "{{ $value | humanizeDuration }}",
    "{value:count}": "{{ $value }}",
}


@dataclass(frozen=True)
class Diagnosis:
    """``wrong``: a text for each key (a condition, with a destination behind a colon where it has one).

    ``unknown``: conditions that cannot be judged now; what was found before stays.
    """

    wrong: Mapping[str, str]
    unknown: frozenset[AlertCondition] = frozenset()


def diagnose(state: FleetState, off: Collection[AlertCondition] = ()) -> Diagnosis:
    """``off``: conditions that are switched off."""
    wrong, unknown = {}, set()
    for condition in CONDITIONS:
        values = condition.read(state) if condition.name not in off else {}
        if values is None:
            unknown.add(condition.name)
        for destination, value in (values or {}).items():
            if condition.is_wrong(value):
                key = f"{condition.name}:{destination}" if destination else condition.name.value
                summary = condition.summary.format(value=_Value(value), destination=destination)
                wrong[key] = f"{summary}. {condition.description}"
    return Diagnosis(wrong, frozenset(unknown))


def alert_rules() -> str:
    """deploy/prometheus/alerts.yml."""
    lines = [
        "# Generated from orchestrator/operations/alerts.py, which the service judges by as well.",
        "# Counters are summed over servers. Gauges say the same on all of them, so they are never summed.",
        "groups:",
        "  - name: mailonce",
        "    rules:",
    ]
    for each in CONDITIONS:
        summary = each.summary
        for ours, theirs in _FOR_PROMETHEUS.items():
            summary = summary.replace(ours, theirs)
        lines += [f"      - alert: {each.alert}", "        expr: |"]
        lines += [f"          {line}" for line in each.expr.replace("$threshold", f"{each.threshold:g}").splitlines()]
        lines += [f"        for: {each.after}"] if each.after else []
        lines += [f"        labels: {{severity: {each.severity}}}", "        annotations:"]
        lines += [f'          summary: "{summary}"', f'          description: "{each.description}"']
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(alert_rules(), end="")
