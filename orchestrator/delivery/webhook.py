"""What is sent and what may come of it. How it is sent over HTTP stands in http.py."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, cast

GONE = 410


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
    """As the journal keeps it. Mail is text, and shrinks to a fraction."""
    return zlib.compress(json.dumps(payload).encode(), level=1)


def unpack(kept: bytes) -> Payload:
    plain = kept if kept.startswith(b"{") else zlib.decompress(kept)
    return cast(Payload, json.loads(plain))


def webhook_id(canonical_id: str, fingerprint: str, destination: str) -> str:
    digest = hashlib.sha256(json.dumps([canonical_id, fingerprint, destination]).encode()).hexdigest()
    return f"msg_{digest[:32]}"
