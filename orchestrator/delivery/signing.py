"""Signatures by the Standard Webhooks scheme, so that a receiver knows who sent a webhook and that it is unchanged."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from datetime import UTC, datetime

from standardwebhooks import Webhook as SigningKey

PREFIX = "whsec_"
KEY_BYTES = range(24, 64 + 1)


def check_secret(text: str) -> str:
    """The secret as it was given, with or without its prefix; ValueError if it is none."""
    encoded = text.removeprefix(PREFIX)
    try:
        key = base64.b64decode(encoded)
    except ValueError:
        key = b""
    # Decoding skips what is no Base64 and forgives stray last bits; another library may make another key of it.
    if len(key) not in KEY_BYTES or base64.b64encode(key).decode() != encoded:
        raise ValueError("takes a Standard Webhooks secret such as whsec_ and Base64 of 24 to 64 bytes")
    return text


class Signer:
    """Signs with every secret it has: while one is being rotated, a receiver may know the old one or the new one."""

    def __init__(self, secrets: Sequence[str]) -> None:
        self._keys = [SigningKey(check_secret(secret)) for secret in secrets]

    def headers(self, webhook_id: str, moment: datetime, body: str) -> dict[str, str]:
        """For exactly this body, sent at this moment (which knows its time zone). Empty if there are no secrets."""
        if not self._keys:
            return {}
        # The library takes the digits of the moment for UTC, whatever time zone they are in.
        moment_utc = moment.astimezone(UTC)
        return {
            "webhook-timestamp": str(int(moment_utc.timestamp())),
            "webhook-signature": " ".join(key.sign(webhook_id, moment_utc, body) for key in self._keys),
        }
