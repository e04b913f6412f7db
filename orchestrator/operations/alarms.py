"""Alarms over time: when each began and ended, as a note that the fleet shares, and the webhooks that say so.

One process of each machine looks. With Redis one machine does it for all; without, each machine for itself.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from datetime import UTC, datetime
from enum import StrEnum

from pydantic import BaseModel

from deduplication.errors import DeduplicationError
from deduplication.journal.sqlite import Journal
from orchestrator.delivery.webhook import DeliveryFailed, Destination, EventType, Webhook, shown_timestamp
from orchestrator.metrics.shared import SharedFigures
from orchestrator.operations.alerts import AlertCondition, diagnose
from orchestrator.operations.fleet_state import FleetState
from orchestrator.operations.words import shown_duration, shown_moment

log = logging.getLogger(__name__)

SEND_WITHIN_S = 8.0
RETRY_AFTER_S = (10, 60, 300, 1800)  # after that, a webhook that nobody accepts is given up
TURN_MS = 30_000
_NOTE = "alarm:"


class Phase(StrEnum):
    BEGUN = "begun"
    ENDED = "ended"


class Alarm(BaseModel):
    """``key``: the condition, and behind a colon its destination. ``ended_ms`` is 0 while it lasts.

    ``pending``: webhooks still to be sent, in order; ``tries`` and ``next_ms`` are of the first of them.
    """

    key: str
    text: str
    began_ms: int
    id: str = ""
    ended_ms: int = 0
    pending: tuple[Phase, ...] = ()
    tries: int = 0
    next_ms: int = 0

    @property
    def condition(self) -> AlertCondition:
        return AlertCondition(self.key.partition(":")[0])

    @property
    def destination(self) -> str | None:
        return self.key.partition(":")[2] or None

    def shown(self) -> dict[str, str | None]:
        return {
            "condition": self.condition,
            "destination": self.destination,
            "since": shown_moment(self.began_ms),
            "text": self.text,
        }

    def webhook(self) -> Webhook:
        """The first pending one. Its id is the same however often and by whichever machine it is sent."""
        status = self.pending[0]
        is_over = status is Phase.ENDED
        lasted = f"Over after {shown_duration((self.ended_ms - self.began_ms) // 1000)}: " if is_over else ""
        data = {
            "condition": self.condition,
            "destination": self.destination,
            "status": status,
            "text": lasted + self.text,
            "since": shown_moment(self.began_ms),
            "until": shown_moment(self.ended_ms) if is_over else None,
        }
        happened = datetime.fromtimestamp((self.ended_ms if is_over else self.began_ms) / 1000, UTC)
        head = {"type": EventType.ALERT, "timestamp": shown_timestamp(happened)}
        return Webhook(f"alert_{self.id}_{status}", {**head, **data, "data": data})


class Alarms:
    """``send`` is None if alarms are only shown. ``after_ms``: how long something has to be wrong, or right again."""

    def __init__(
        self,
        journal: Journal,
        send: Destination | None = None,
        *,
        after_ms: int = 60_000,
        off: frozenset[AlertCondition] = frozenset(),
        shared: SharedFigures | None = None,
        is_redis_up: Callable[[], bool] = lambda: True,
    ) -> None:
        self._journal = journal
        self._send = send
        self._after_ms = after_ms
        self._off = off
        self._shared = shared
        self._is_redis_up = is_redis_up
        self._turning: dict[str, int] = {}  # since when a condition is other than its alarm says

    def read(self, state: FleetState) -> list[Alarm]:
        """Alarms that last, oldest first, in the words of now."""
        wrong = diagnose(state, self._off).wrong
        lasting = (each for each in self._noted().values() if not each.ended_ms)
        oldest_first = sorted(lasting, key=lambda each: each.began_ms)
        return [each.model_copy(update={"text": wrong.get(each.key, each.text)}) for each in oldest_first]

    def look(self, state: FleetState) -> None:
        """Begins and ends alarms, and sends what is pending."""
        if not self._has_turn():
            self._turning.clear()
            return
        diagnosis, noted = diagnose(state, self._off), self._noted()
        for key in {**noted, **diagnosis.wrong, **self._turning}:
            if AlertCondition(key.partition(":")[0]) not in diagnosis.unknown:
                self._judge(key, noted.get(key), diagnosis.wrong.get(key), state.now_ms)
        for alarm in self._noted().values():
            if alarm.pending and alarm.next_ms <= state.now_ms and not self._notify(alarm, state.now_ms):
                return  # the receiver does not answer: the others can wait for the next look

    def _has_turn(self) -> bool:
        if self._shared and self._is_redis_up():
            try:
                return self._shared.take_turn("alarms", TURN_MS)
            except DeduplicationError as error:
                log.info("alarms: judged by this machine alone: %s", error)
        return True

    def _judge(self, key: str, alarm: Alarm | None, wrong: str | None, now_ms: int) -> None:
        lasts = alarm is not None and not alarm.ended_ms
        if (wrong is not None) == lasts:
            self._turning.pop(key, None)
            return
        since_ms = self._turning.setdefault(key, now_ms)
        if now_ms - since_ms < self._after_ms:
            return
        del self._turning[key]
        if wrong is not None:
            log.error("ALARM %s: %s", key, wrong)
            begun = (Phase.BEGUN,) if self._send else ()
            self._write(Alarm(key=key, text=wrong, began_ms=since_ms, id=secrets.token_hex(12), pending=begun))
        elif alarm:
            log.warning("ALARM %s is over", key)
            pending = (*alarm.pending, Phase.ENDED) if self._send else ()
            self._write(alarm.model_copy(update={"ended_ms": now_ms, "pending": pending}))

    def _notify(self, alarm: Alarm, now_ms: int) -> bool:
        """A try is noted before it is made, so that a process that dies of it does not make a loop of it."""
        done = alarm.model_copy(update={"pending": alarm.pending[1:], "tries": 0, "next_ms": 0})
        if alarm.tries < len(RETRY_AFTER_S):
            next_ms = now_ms + RETRY_AFTER_S[alarm.tries] * 1000
            self._write(alarm.model_copy(update={"tries": alarm.tries + 1, "next_ms": next_ms}))
        else:
            self._write(done)
        try:
            if self._send:
                self._send.deliver(alarm.webhook(), SEND_WITHIN_S)
        except DeliveryFailed as error:
            log.warning("alarm %s %s: not sent: %s", alarm.key, alarm.pending[0], error)
            return False
        self._write(done)
        return True

    def _noted(self) -> dict[str, Alarm]:
        with self._journal.reading() as step:
            notes = step.notes()
        alarms = (Alarm.model_validate_json(value) for key, (_, value) in notes.items() if key.startswith(_NOTE))
        return {each.key: each for each in alarms if each.key.partition(":")[0] in set(AlertCondition)}

    def _write(self, alarm: Alarm) -> None:
        with self._journal.step() as step:
            step.put_note(f"{_NOTE}{alarm.key}", alarm.model_dump_json())
