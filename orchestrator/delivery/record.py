"""What is known of one delivery: one (item, destination)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from deduplication.journal.entry import ATTEMPTS_KEPT, Attempt, DeliveryStatus

__all__ = ["ATTEMPTS_KEPT", "Attempt", "Delivery", "DeliveryStatus"]


@dataclass(frozen=True)
class Delivery:
    """Times are in milliseconds since 1970.

    ``id`` is made of item and destination; ``webhook_id`` is what the receiver sees, the same unless a replay asked for
    a new one. ``scheduled_ms``: when it was last asked for, by the email or by a replay. ``tries`` counts rounds
    against max_attempts, ``attempts`` are the last POSTs. ``next_try_ms`` None: nobody here tries it again by itself
    (delivered, dead, or the provider sends it again). ``reason`` says why it waits or is dead. ``content_hash`` and
    ``content_kept_ms`` name its content at the destination; empty: no content gate. ``payload`` None: not kept.
    """

    id: str
    item: str
    destination: str
    webhook_id: str
    status: DeliveryStatus
    created_ms: int
    scheduled_ms: int
    tries: int = 0
    attempts: tuple[Attempt, ...] = ()
    next_try_ms: int | None = None
    delivered_ms: int | None = None
    receiver_id: str | None = None
    reason: str | None = None
    content_hash: str = ""
    content_kept_ms: int = 0
    payload: Mapping[str, Any] | None = None

    @property
    def was_delivered_as_scheduled(self) -> bool:
        """Delivered, and not asked for again since."""
        return self.delivered_ms is not None and self.delivered_ms >= self.scheduled_ms

    @property
    def progress(self) -> tuple[int, ...]:
        """Of two states that one delivery reached on servers apart from each other, the greater one holds.

        One given back to its provider (open, without a payload) is less than any other. A delivery holds against all
        but a replay asked for after it. Else the later replay, more tries, the later attempt, and settled before open.
        """
        is_given_back = self.status.is_open and self.payload is None
        is_delivered = self.status is DeliveryStatus.DELIVERED
        replayed_ms = self.scheduled_ms if self.scheduled_ms > self.created_ms else 0
        reached_ms = (self.delivered_ms or self.scheduled_ms) if is_delivered else replayed_ms
        last_attempt_ms = self.attempts[-1].at_ms if self.attempts else 0
        is_settled = not self.status.is_open
        return (int(not is_given_back), reached_ms, int(is_delivered), self.tries, last_attempt_ms, int(is_settled))

    def to_json(self) -> str:
        """Everything but the payload, which is kept apart."""
        values = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "payload"}
        return json.dumps(values | {"attempts": [asdict(attempt) for attempt in self.attempts]})

    def payload_to_json(self) -> str | None:
        return None if self.payload is None else json.dumps(self.payload)

    @classmethod
    def from_json(cls, record: str, payload: str | None = None, **newer: Any) -> Delivery:
        """``newer`` are values that changed since it was written. What a later version wrote besides is left out."""
        written = json.loads(record) | newer
        values = {field.name: written[field.name] for field in fields(cls) if field.name in written}
        values["status"] = DeliveryStatus(values["status"])
        values["attempts"] = tuple(Attempt(**attempt) for attempt in values["attempts"])
        values["payload"] = None if payload is None else json.loads(payload)
        return cls(**values)
