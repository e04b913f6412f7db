"""Signatures of the Standard Webhooks scheme: a receiver can verify who sent a webhook and that it is unchanged.

There are two kinds of secret: ``whsec_``, which both sides know (``v1``, HMAC-SHA256), and ``whsk_``, a private key
whose public key ``whpk_`` the receiver has (``v1a``, ed25519). A list may mix them.
"""

from __future__ import annotations

import base64
import hmac
import secrets
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from functools import lru_cache, partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # imported where there is a private key: it takes 8 MB of a process, and most have none
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

SHARED, PRIVATE, PUBLIC = "whsec_", "whsk_", "whpk_"
KEY_BYTES = range(24, 64 + 1)
SEED_BYTES = 32


def check_secret(text: str) -> str:
    """The secret unchanged, with or without its prefix. Raises ValueError if it is invalid."""
    sign_with(text)
    return text


def new_secret(*, is_private: bool) -> str:
    if not is_private:
        return SHARED + base64.b64encode(secrets.token_bytes(32)).decode()
    seed = secrets.token_bytes(SEED_BYTES)
    return PRIVATE + base64.b64encode(seed + _key_of(seed).public_key().public_bytes_raw()).decode()


def public_keys(secrets: Iterable[str]) -> list[str]:
    """The public key of each private key among the secrets."""
    keys = [_private_key(secret).public_key() for secret in secrets if secret.startswith(PRIVATE)]
    return [PUBLIC + base64.b64encode(key.public_bytes_raw()).decode() for key in keys]


def signature_headers(secrets: Sequence[str], webhook_id: str, moment: datetime, body: str) -> dict[str, str]:
    """For exactly this body, sent at this moment. Signed with every secret: during a rotation, a receiver may know the
    old one or the new one."""
    timestamp = int(moment.timestamp())
    message = f"{webhook_id}.{timestamp}.{body}".encode()
    signatures = [sign_with(secret)(message) for secret in secrets]
    return {"webhook-timestamp": str(timestamp), "webhook-signature": " ".join(signatures)}


@lru_cache
def sign_with(secret: str) -> Callable[[bytes], str]:
    """Makes the signature of a message, with its version. Raises ValueError if the secret is invalid."""
    sign: Callable[[bytes], bytes]
    if secret.startswith(PRIVATE):
        version, sign = "v1a", _private_key(secret).sign
    else:
        key = _decoded(secret.removeprefix(SHARED))
        if len(key) not in KEY_BYTES:
            raise ValueError("must be a Standard Webhooks secret such as whsec_ and Base64 of 24 to 64 bytes")
        version, sign = "v1", partial(hmac.digest, key, digest="sha256")
    return lambda message: f"{version},{base64.b64encode(sign(message)).decode()}"


def _decoded(encoded: str) -> bytes:
    """Empty if it is not strictly Base64. b64decode skips other characters and ignores stray last bits; another library
    might read another key."""
    try:
        decoded = base64.b64decode(encoded)
    except ValueError:
        return b""
    return decoded if base64.b64encode(decoded).decode() == encoded else b""


def _private_key(secret: str) -> Ed25519PrivateKey:
    """From 32 bytes, or from these and the 32 of the public key, as most tools write it."""
    decoded = _decoded(secret.removeprefix(PRIVATE))
    if len(decoded) in (SEED_BYTES, 2 * SEED_BYTES):
        key = _key_of(decoded[:SEED_BYTES])
        if decoded[SEED_BYTES:] in (b"", key.public_key().public_bytes_raw()):
            return key
    raise ValueError("must be an ed25519 key: whsk_ and Base64 of its 32 bytes, or of these and the 32 public ones")


def _key_of(seed: bytes) -> Ed25519PrivateKey:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.from_private_bytes(seed)
