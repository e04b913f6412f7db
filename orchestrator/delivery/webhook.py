"""What is sent, and the possible results. http.py sends it."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Protocol, cast

from deduplication.journal.entry import Delivery, Entry

GONE = 410


class EventType(StrEnum):
    """What a webhook says that it is. ``email.released``: a gate stopped it, and a person let it go."""

    EMAIL_RECEIVED = "email.received"
    EMAIL_RELEASED = "email.released"
    MESSAGE_RECEIVED = "message.received"
    ALERT = "mailonce.alert"
    TEST = "mailonce.test"


class DeliveryFailed(Exception):
    """The destination did not take the webhook; ``permanent`` says that trying again will not help."""

    def __init__(
        self, reason: str, *, permanent: bool, status_code: int | None = None, retry_after_s: int | None = None
    ) -> None:
        super().__init__(reason)
        self.permanent = permanent
        self.status_code = status_code
        self.retry_after_s = retry_after_s

    @property
    def is_gone(self) -> bool:
        """The destination wants nothing more, whatever it is."""
        return self.status_code == GONE


@dataclass(frozen=True)
class Webhook:
    """One (item, destination). The id is the same over all attempts, so that a receiver can recognise it."""

    webhook_id: str
    payload: Mapping[str, Any]


@dataclass(frozen=True)
class Receipt:
    """The destination has taken it. ``receiver_id`` is its own id for it, where its answer tells one."""

    status_code: int | None = None
    receiver_id: str | None = None


class Destination(Protocol):
    def deliver(self, webhook: Webhook, within_s: float | None = None) -> Receipt:
        """Returns once the destination has taken it; raises DeliveryFailed otherwise.

        ``within_s`` is the time left for all of it, where that is less than the destination's own timeouts.
        """
        ...


Payload = Mapping[str, Any]


def pack(payload: Payload) -> bytes:
    """As it is stored. Mail is text, and shrinks to a fraction."""
    return zlib.compress(json.dumps(payload).encode(), level=1)


def unpack(stored: bytes) -> Payload:
    return cast(Payload, json.loads(zlib.decompress(stored)))


def shown_timestamp(moment: datetime) -> str:
    """When the event happened, as every webhook has it: the same over all its attempts."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def stored_event(stored: bytes, entry: Entry, delivery: Delivery) -> Payload:
    """What was stored, as it is sent now. An email that a person has released says so."""
    payload = unpack(stored)
    is_released = entry.released_ms is not None and delivery.generation > 0
    if not is_released or payload["type"] != EventType.EMAIL_RECEIVED:
        return payload
    released_at = datetime.fromtimestamp((entry.released_ms or 0) / 1000, UTC)
    return {**payload, "type": EventType.EMAIL_RELEASED, "timestamp": shown_timestamp(released_at)}


def webhook_id(destination: str, key: str, fingerprint: str = "") -> str:
    """The same for every attempt, replay and machine; ``key`` is the same in every notation of the email."""
    digest = hashlib.sha256(json.dumps([destination, key, fingerprint]).encode()).hexdigest()
    return f"msg_{digest[:32]}"
