"""A webhook, and the possible results of sending it."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from deduplication.journal.entry import Delivery, Entry

GONE = 410  # the destination accepts no webhooks any more
MISPLACED = (401, 403, 404, 405)  # whatever is sent there: wrong credentials, a wrong address, a bad deploy


class EventType(StrEnum):
    """``email.released``: a gate suppressed the email, and an operator released it."""

    EMAIL_RECEIVED = "email.received"
    EMAIL_RELEASED = "email.released"
    MESSAGE_RECEIVED = "message.received"
    ALERT = "mailonce.alert"
    TEST = "mailonce.test"


class DeliveryFailed(Exception):
    """The destination did not accept the webhook. It is tried again, whatever the answer was."""

    def __init__(self, reason: str, *, status_code: int | None = None, retry_after_s: int | None = None) -> None:
        super().__init__(reason)
        self.status_code = status_code
        self.retry_after_s = retry_after_s

    @property
    def is_about_this_webhook(self) -> bool:
        """The destination works, and refused this one: others may be accepted, so its circuit breaker stays closed."""
        return self.status_code is not None and 400 <= self.status_code < 500 and self.status_code not in MISPLACED


@dataclass(frozen=True)
class Webhook:
    """One (item, destination). The id is the same for all attempts, so that a receiver can recognise it.

    ``traceparent`` is that of the request that brought the item (W3C Trace Context), if it had one.
    """

    webhook_id: str
    payload: Mapping[str, Any]
    traceparent: str = ""


@dataclass(frozen=True)
class Receipt:
    """The destination accepted it. ``receiver_id`` is its own id for it, if its answer has one."""

    status_code: int | None = None
    receiver_id: str | None = None


Payload = Mapping[str, Any]


def pack(payload: Payload, traceparent: str = "") -> bytes:
    """For storage. Mail is text, and shrinks to a fraction."""
    return zlib.compress(json.dumps([payload, traceparent]).encode(), level=1)


def unpack(stored: bytes) -> Payload:
    payload: Payload = json.loads(zlib.decompress(stored))[0]
    return payload


def stored_event(stored: bytes, entry: Entry, delivery: Delivery) -> tuple[Payload, str]:
    """The stored payload as it is sent now, and the traceparent of its request. An email that an operator has released
    is of another type."""
    payload, traceparent = json.loads(zlib.decompress(stored))
    if entry.released_ms and delivery.generation and payload["type"] == EventType.EMAIL_RECEIVED:
        released_at = datetime.fromtimestamp(entry.released_ms / 1000, UTC)
        payload |= {"type": EventType.EMAIL_RELEASED, "timestamp": shown_timestamp(released_at)}
    return payload, traceparent


def shown_timestamp(moment: datetime) -> str:
    """When the event happened, in the format of webhooks."""
    return f"{moment.astimezone(UTC).replace(tzinfo=None).isoformat(timespec='seconds')}Z"


def webhook_id(destination: str, key: str, fingerprint: str = "") -> str:
    """The same for every attempt, replay and machine; ``key`` does not depend on how a provider formats the email."""
    digest = hashlib.sha256(json.dumps([destination, key, fingerprint]).encode()).hexdigest()
    return f"msg_{digest[:32]}"
