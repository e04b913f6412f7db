"""Alarms over time: when each began and ended, as a note that the fleet shares, and the webhooks that report it.

With Redis, one machine at a time does this for all; without it, each machine does it alone.
"""

from __future__ import annotations

import logging
import secrets
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, Field

from deduplication import members
from deduplication.errors import DeduplicationError
from deduplication.journal.coordinator import Coordinator
from orchestrator.delivery.webhook import DeliveryFailed, Destination, EventType, Webhook, shown_timestamp
from orchestrator.operations.conditions import AlertCondition, diagnose
from orchestrator.operations.times import shown_duration, shown_moment

if TYPE_CHECKING:
    from orchestrator.config.model import AlertsConfig
    from orchestrator.operations.fleet_state import FleetState

log = logging.getLogger(__name__)

SEND_WITHIN_S = 8.0
RETRY_AFTER_MS = 15_000
TURN_MS = 30_000
_NOTE = "alarm:"

Phase = Literal["begun", "ended"]


class AlarmShown(BaseModel):
    condition: AlertCondition
    destination: str | None
    since: str = Field(json_schema_extra={"format": "date-time"})
    text: str

    @property
    def key(self) -> str:
        return f"{self.condition}:{self.destination}" if self.destination else self.condition.value


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
        payload = {"type": EventType.ALERT, "timestamp": shown_timestamp(at), **data, "data": data}
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

    def read(self, state: FleetState) -> list[Alarm]:
        """Current alarms, oldest first, with up-to-date texts."""
        texts, current = diagnose(state, self._off), [alarm for alarm in self._read().values() if not alarm.until]
        for alarm in current:
            if alarm.key not in texts:
                over = f"This is no longer so; the alarm ends after {shown_duration(self._after_ms // 1000)}."
                alarm.text = f"{alarm.text} {over}"
            alarm.text = texts.get(alarm.key) or alarm.text
        return sorted(current, key=lambda alarm: alarm.since)

    def evaluate(self, state: FleetState) -> None:
        """Begins and ends alarms, and sends what the receiver does not know yet, if it is this machine's turn."""
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
                try:
                    if self._receiver:
                        self._receiver.deliver(alarm.webhook(), SEND_WITHIN_S)
                    alarm.sent = alarm.phase
                    self._write(key, alarm)
                except DeliveryFailed as error:
                    log.warning("alarm %s %s: not sent: %s", key, alarm.phase, error)
                    self._next_send_ms = now_ms + RETRY_AFTER_MS  # of all alarms: they have the same receiver

    def _has_turn(self) -> bool:
        """One machine of the fleet; each one while Redis is away."""
        registry, machine = self._coordinator.registry, self._journal.machine

        def take(client: Any, prefix: str) -> bool:
            key = f"{prefix}turn:alarms"  # renewed if it is ours, taken only if it is nobody's
            return bool(client.set(key, machine, px=TURN_MS, nx=client.get(key) != machine.encode()))

        try:
            return registry is None or self._coordinator.redis.status != "up" or bool(registry.ask(take))
        except DeduplicationError as error:
            log.info("alarms: this machine evaluates them alone: %s", error)
            return True

    def _read(self) -> dict[str, Alarm]:
        """Without those of conditions that only a newer version knows."""
        with self._journal.reading() as step:
            notes = members.notes(step)
        found = {key.removeprefix(_NOTE): value for key, (_, value) in notes.items() if key.startswith(_NOTE)}
        known = set(AlertCondition)
        return {key: Alarm.model_validate_json(text) for key, text in found.items() if key.partition(":")[0] in known}

    def _write(self, key: str, alarm: Alarm) -> None:
        with self._journal.step() as step:
            members.put_note(step, f"{_NOTE}{key}", alarm.model_dump_json())
