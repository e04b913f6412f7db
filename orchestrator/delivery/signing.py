"""Signatures by the Standard Webhooks scheme, so that a receiver knows who sent a webhook and that it is unchanged.

Two kinds of secret: ``whsec_``, which both sides know (``v1``, HMAC-SHA256), and ``whsk_``, a private key of which the
receiver has the public one, ``whpk_`` (``v1a``, ed25519). A list may mix them, while one is replaced by the other.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol

from standardwebhooks import Webhook as SharedKey

if TYPE_CHECKING:  # loaded where there is a private key: it is 8 MB of a process, and most have none
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

SHARED, PRIVATE, PUBLIC = "whsec_", "whsk_", "whpk_"
KEY_BYTES = range(24, 64 + 1)
SEED_BYTES = 32


def check_secret(text: str) -> str:
    """The secret as it was given, with or without its prefix; ValueError if it is none."""
    if text.startswith(PRIVATE):
        _private_key(text)
    elif len(_decoded(text.removeprefix(SHARED))) not in KEY_BYTES:
        raise ValueError("takes a Standard Webhooks secret such as whsec_ and Base64 of 24 to 64 bytes")
    return text


def new_secret(*, is_private: bool) -> str:
    if not is_private:
        return SHARED + base64.b64encode(secrets.token_bytes(32)).decode()
    seed = secrets.token_bytes(SEED_BYTES)
    return PRIVATE + base64.b64encode(seed + _public_bytes(_key_of(seed))).decode()


def public_keys(given: Iterable[str]) -> list[str]:
    """What a receiver verifies with, of each private key among the secrets."""
    keys = [_private_key(secret) for secret in given if secret.startswith(PRIVATE)]
    return [PUBLIC + base64.b64encode(_public_bytes(key)).decode() for key in keys]


class _Key(Protocol):
    def sign(self, msg_id: str, timestamp: datetime, data: str) -> str: ...


class _PrivateKey:
    """``v1a``, which the library of Standard Webhooks does not sign."""

    def __init__(self, secret: str) -> None:
        self._key = _private_key(secret)

    def sign(self, msg_id: str, timestamp: datetime, data: str) -> str:
        signature = self._key.sign(f"{msg_id}.{int(timestamp.timestamp())}.{data}".encode())
        return f"v1a,{base64.b64encode(signature).decode()}"


class Signer:
    """Signs with every secret it has: while one is being rotated, a receiver may know the old one or the new one."""

    def __init__(self, secrets: Sequence[str]) -> None:
        self._keys: list[_Key] = [
            _PrivateKey(secret) if secret.startswith(PRIVATE) else SharedKey(check_secret(secret)) for secret in secrets
        ]

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


def _decoded(encoded: str) -> bytes:
    """Empty where it is no Base64. Decoding skips what is none and forgives stray last bits; another library may make
    another key of it."""
    try:
        decoded = base64.b64decode(encoded)
    except ValueError:
        return b""
    return decoded if base64.b64encode(decoded).decode() == encoded else b""


def _private_key(secret: str) -> Ed25519PrivateKey:
    """Of 32 bytes, or of these and the public key's 32, as most tools write it."""
    decoded = _decoded(secret.removeprefix(PRIVATE))
    key = _key_of(decoded[:SEED_BYTES]) if len(decoded) in (SEED_BYTES, 2 * SEED_BYTES) else None
    if key is None or decoded[SEED_BYTES:] not in (b"", _public_bytes(key)):
        raise ValueError("takes an ed25519 key such as whsk_ and Base64 of its 32 bytes, or of these and the public 32")
    return key


def _key_of(seed: bytes) -> Ed25519PrivateKey:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.from_private_bytes(seed)


def _public_bytes(key: Ed25519PrivateKey) -> bytes:
    return key.public_key().public_bytes_raw()
