"""Alarms: the table of the conditions that raise them, from which make docs-reference writes the rules of Prometheus;
when each began and ended, as a note that the fleet shares; and the webhooks that report it.

With Redis, one machine at a time evaluates them for all; without it, each machine does it alone.
"""

import logging
import secrets
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Literal

from pydantic import BaseModel, Field

from deduplication import members
from deduplication.errors import DeduplicationError
from deduplication.journal.coordinator import Coordinator
from deduplication.journal.entry import DeliveryStatus
from deduplication.redis_state import REDIS_ERRORS, REDIS_STEPS
from deduplication.values import frozen
from orchestrator.config.model import AlertCondition, AlertsConfig
from orchestrator.delivery.webhook import TIMESTAMP, Destination, EventType, Webhook
from orchestrator.metrics.meter import DELIVERIES, NOT_RECEIVED, REDIS_S
from orchestrator.operations.fleet_state import FleetState
from orchestrator.operations.search import LATE_S
from orchestrator.operations.times import shown_duration, shown_moment

log = logging.getLogger(__name__)

LEAST_RECEIVED = 1000  # in a day; with fewer emails the rate means nothing
GOOD_POLICY = "noeviction"
SEND_WITHIN_S = 8.0
RETRY_AFTER_MS = 15_000
TURN_MS = 30_000
_NOTE = "alarm:"

Values = Mapping[str, float | None]
"""By destination, "" for the whole fleet; None if it cannot be known now. Empty if the condition does not apply."""


@frozen
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
    policy = state.facts.maxmemory_policy
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
        "workers",
        lambda state: {} if state.workers is None else {"": state.workers},
        1,
        "No worker is running",
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
            elif value < condition.threshold if condition.below else value > condition.threshold:
                summary = condition.summary.format(
                    destination=destination, share=f"{value:.1%}", age=shown_duration(int(value)), count=int(value)
                )
                found[key] = f"{summary}. {condition.description}"
    return found


Phase = Literal["begun", "ended"]


class AlarmShown(BaseModel):
    condition: AlertCondition
    destination: str | None
    since: str = Field(json_schema_extra={"format": "date-time"})
    text: str


class Alarm(AlarmShown):
    """``until`` is None while it lasts. ``sent``: the phase that the receiver knows. Whenever that differs from the
    present one, the present one is sent, so no list of unsent webhooks is needed."""

    id: str
    until: str | None = None
    sent: Phase | None = None

    @property
    def phase(self) -> Phase:
        return "ended" if self.until else "begun"

    def webhook(self) -> Webhook:
        """Its id is the same for every attempt and on every machine."""
        at = began = datetime.fromisoformat(self.since)
        shown = self.model_dump(include={*AlarmShown.model_fields, "until"})
        if self.until:
            at = datetime.fromisoformat(self.until)
            lasted = shown_duration(int((at - began).total_seconds()))
            shown["text"] = f"Over after {lasted}: {self.text}"
        data = {**shown, "status": self.phase}
        payload = {"type": EventType.ALERT, "timestamp": f"{at.astimezone(UTC):{TIMESTAMP}}", **data, "data": data}
        return Webhook(f"alert_{self.id}_{self.phase}", payload)


class Alarms:
    """``receiver`` is None if alarms are only shown. Keys are those of ``diagnose``."""

    def __init__(self, coordinator: Coordinator, config: AlertsConfig, receiver: Destination | None = None) -> None:
        self._coordinator = coordinator
        self._journal = coordinator.journal
        self._after_ms = int(config.after_s * 1000)
        self._off = config.off
        self._receiver = receiver
        self._changing: dict[str, int] = {}  # since when a condition differs from its alarm
        self._next_send_ms = 0

    def read(self) -> dict[str, Alarm]:
        """Current alarms."""
        return {key: alarm for key, alarm in self._read().items() if not alarm.until}

    def evaluate(self, state: FleetState) -> None:
        """Begins and ends alarms, and sends what the receiver does not know yet. Of a fleet, one machine does."""
        if not self._has_turn():
            self._changing.clear()
            return
        texts, alarms, now_ms = diagnose(state, self._off), self._read(), state.now_ms
        for key in {**alarms, **texts, **self._changing}:
            text, alarm = texts.get(key, ""), alarms.get(key)
            lasting = alarm if alarm and not alarm.until else None
            if text is None or bool(text) == bool(lasting):  # None: it cannot be known now
                self._changing.pop(key, None)
            elif now_ms - self._changing.setdefault(key, now_ms) >= self._after_ms:
                since_ms = self._changing.pop(key)
                if lasting:
                    log.warning("ALARM %s is over", key)
                    lasting.until = shown_moment(now_ms)
                else:
                    log.error("ALARM %s: %s", key, text)
                    condition, _, destination = key.partition(":")
                    alarms[key] = Alarm(
                        condition=AlertCondition(condition),
                        destination=destination or None,
                        since=shown_moment(since_ms),
                        text=text,
                        id=secrets.token_hex(12),
                    )
                self._write(key, alarms[key])
        for key, alarm in alarms.items():
            if alarm.sent != alarm.phase and now_ms >= self._next_send_ms:
                if self._receiver and (error := self._receiver.deliver(alarm.webhook(), SEND_WITHIN_S).error):
                    log.warning("alarm %s %s: not sent: %s", key, alarm.phase, error)
                    self._next_send_ms = now_ms + RETRY_AFTER_MS  # of all alarms: they have the same receiver
                    continue
                alarm.sent = alarm.phase
                self._write(key, alarm)

    def _has_turn(self) -> bool:
        """One machine of the fleet at a time, and each one while Redis is away."""
        registry, machine = self._coordinator.registry, self._journal.machine

        def take(client: Any, prefix: str) -> object:
            key = f"{prefix}turn:alarms"  # renewed if it is this machine's, taken if it is free
            return client.set(key, machine, px=TURN_MS, nx=client.get(key) != machine.encode())

        with suppress(DeduplicationError):
            return registry is None or bool(registry.ask(take))
        return True

    def _read(self) -> dict[str, Alarm]:
        """Without those of conditions that only a newer version knows."""
        with self._journal.reading() as step:
            notes, known = members.notes(step, _NOTE), set(AlertCondition)
        found = {key: text for key, (_, text) in notes.items() if key.partition(":")[0] in known}
        return {key: Alarm.model_validate_json(text) for key, text in found.items()}

    def _write(self, key: str, alarm: Alarm) -> None:
        with self._journal.step() as step:
            members.put_note(step, f"{_NOTE}{key}", alarm.model_dump_json())
