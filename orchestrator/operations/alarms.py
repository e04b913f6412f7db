"""Alarms over time: when each began and ended, as a note that the fleet shares, and the webhooks that report it.

With Redis, one machine at a time does this for all; without it, each machine does it alone.
"""

from __future__ import annotations

import logging
import secrets
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any

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
RETRY_AFTER_S = (10, 60, 300, 1800)  # after the last one, a webhook is given up
TURN_MS = 30_000
_NOTE = "alarm:"


class Phase(StrEnum):
    BEGUN = "begun"
    ENDED = "ended"


class AlarmShown(BaseModel):
    condition: AlertCondition
    destination: str | None
    since: str = Field(json_schema_extra={"format": "date-time"})
    text: str


class Alarm(AlarmShown):
    """``until`` is None while it lasts. ``pending``: webhooks still to be sent, in order; ``tries`` and ``next_ms``
    belong to the first of them."""

    id: str
    until: str | None = None
    pending: tuple[Phase, ...] = ()
    tries: int = 0
    next_ms: int = 0

    def webhook(self) -> Webhook:
        """The first pending one. Its id is the same for every attempt and on every machine."""
        status, at = self.pending[0], datetime.fromisoformat(self.since)
        data: dict[str, Any] = {
            **self.model_dump(include=set(AlarmShown.model_fields)),
            "status": status,
            "until": None,
        }
        if status is Phase.ENDED and self.until:
            began, at = at, datetime.fromisoformat(self.until)
            lasted = shown_duration(int((at - began).total_seconds()))
            data |= {"text": f"Over after {lasted}: {self.text}", "until": self.until}
        payload = {"type": EventType.ALERT, "timestamp": shown_timestamp(at), **data, "data": data}
        return Webhook(f"alert_{self.id}_{status}", payload)


class Alarms:
    """``receiver`` is None if alarms are only shown. Keys are those of ``diagnose``."""

    def __init__(self, coordinator: Coordinator, config: AlertsConfig, receiver: Destination | None = None) -> None:
        self._coordinator = coordinator
        self._journal = coordinator.journal
        self._after_ms = int(config.after_s * 1000)
        self._off = config.off
        self._receiver = receiver
        self._changing: dict[str, int] = {}  # since when a condition differs from its alarm

    def read(self, state: FleetState) -> list[Alarm]:
        """Current alarms, oldest first, with up-to-date texts."""
        texts, alarms = diagnose(state, self._off), self._read().items()
        current = [alarm.model_copy(update={"text": texts.get(key) or alarm.text}) for key, alarm in alarms]
        return sorted((alarm for alarm in current if not alarm.until), key=lambda alarm: alarm.since)

    def evaluate(self, state: FleetState) -> None:
        """Begins and ends alarms, and sends pending webhooks, if it is this machine's turn."""
        if not self._has_turn():
            self._changing.clear()
            return
        texts, alarms = diagnose(state, self._off), self._read()
        for key in {**alarms, **texts, **self._changing}:
            text = texts.get(key, "")
            if text is not None:
                self._begin_or_end(key, alarms.get(key), text, state.now_ms)
        for key, alarm in self._read().items():
            if alarm.pending and alarm.next_ms <= state.now_ms and not self._notify(key, alarm, state.now_ms):
                return  # the receiver does not answer: the others can wait for the next turn

    def _has_turn(self) -> bool:
        """One machine of the fleet; each one while Redis is away."""
        registry, machine = self._coordinator.registry, self._journal.machine

        def take(client: Any, prefix: str) -> bool:
            key = f"{prefix}turn:alarms"
            if client.set(key, machine, px=TURN_MS, nx=True):
                return True
            return client.get(key) == machine.encode() and bool(client.pexpire(key, TURN_MS))

        try:
            return registry is None or self._coordinator.redis.status != "up" or bool(registry.ask(take))
        except DeduplicationError as error:
            log.info("alarms: this machine evaluates them alone: %s", error)
            return True

    def _begin_or_end(self, key: str, alarm: Alarm | None, text: str, now_ms: int) -> None:
        """Once the condition has differed from its alarm for long enough. ``text`` is "" if it is not true."""
        lasting = alarm if alarm and not alarm.until else None
        since_ms = self._changing.setdefault(key, now_ms)
        if bool(text) == bool(lasting):
            del self._changing[key]
        elif now_ms - since_ms >= self._after_ms:
            del self._changing[key]
            if lasting:
                log.warning("ALARM %s is over", key)
                pending = (*lasting.pending, Phase.ENDED) if self._receiver else ()
                self._write(key, lasting, until=shown_moment(now_ms), pending=pending)
                return
            log.error("ALARM %s: %s", key, text)
            condition, _, destination = key.partition(":")
            begun = Alarm(
                condition=AlertCondition(condition),
                destination=destination or None,
                since=shown_moment(since_ms),
                text=text,
                id=secrets.token_hex(12),
                pending=(Phase.BEGUN,) if self._receiver else (),
            )
            self._write(key, begun)

    def _notify(self, key: str, alarm: Alarm, now_ms: int) -> bool:
        """An attempt is recorded before it is made: a process that dies of it must not repeat it in a loop."""
        done = {"pending": alarm.pending[1:], "tries": 0, "next_ms": 0}
        if alarm.tries < len(RETRY_AFTER_S):
            self._write(key, alarm, tries=alarm.tries + 1, next_ms=now_ms + RETRY_AFTER_S[alarm.tries] * 1000)
        else:
            self._write(key, alarm, **done)
        try:
            if self._receiver:
                self._receiver.deliver(alarm.webhook(), SEND_WITHIN_S)
        except DeliveryFailed as error:
            log.warning("alarm %s %s: not sent: %s", key, alarm.pending[0], error)
            return False
        self._write(key, alarm, **done)
        return True

    def _read(self) -> dict[str, Alarm]:
        """Without those of conditions that only a newer version knows."""
        with self._journal.reading() as step:
            notes = members.notes(step)
        found = {key.removeprefix(_NOTE): value for key, (_, value) in notes.items() if key.startswith(_NOTE)}
        known = set(AlertCondition)
        return {key: Alarm.model_validate_json(text) for key, text in found.items() if key.partition(":")[0] in known}

    def _write(self, key: str, alarm: Alarm, **changes: Any) -> None:
        with self._journal.step() as step:
            members.put_note(step, f"{_NOTE}{key}", alarm.model_copy(update=changes).model_dump_json())
