"""Signatures that prove where a request comes from; the Authorization header is read in routes/auth.py.

Each takes several keys, so that a new one can be let in before the old one is gone.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from routes.auth import Unauthorized, equals_any
from routes.providers.base import ProviderRequest

if TYPE_CHECKING:  # loaded where there is a key: it is 8 MB of a process, and most have none
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey

CLOCKS_DIFFER_BY = timedelta(minutes=5)
WEBHOOK_TOLERANCE = timedelta(minutes=5)


def require_hmac_hex(signature: bytes, message: bytes, keys: Iterable[str]) -> None:
    """Hexadecimal HMAC-SHA256."""
    if not equals_any(
        signature, (hmac.new(key.encode(), message, hashlib.sha256).hexdigest().encode() for key in keys)
    ):
        raise Unauthorized


def require_hmac_sha1(signature: str, message: bytes, keys: Iterable[str]) -> None:
    """HMAC-SHA1 in Base64."""
    expected = (base64.b64encode(hmac.new(key.encode(), message, hashlib.sha1).digest()) for key in keys)
    if not equals_any(signature.encode(), expected):
        raise Unauthorized


def require_recent(timestamp: str, now: datetime, at_most: timedelta) -> None:
    """Seconds since 1970, which the signature covers."""
    if not (timestamp.isascii() and timestamp.isdigit() and len(timestamp) <= 11):
        raise Unauthorized
    age_s = now.timestamp() - int(timestamp)
    if not -CLOCKS_DIFFER_BY.total_seconds() <= age_s <= at_most.total_seconds():
        raise Unauthorized


def require_standard_webhook(request: ProviderRequest, keys: Iterable[bytes]) -> None:
    """Standard Webhooks, also under Svix's names of the headers."""
    prefix = "svix" if request.header("svix-id") else "webhook"
    event_id, timestamp, signatures = (request.header(f"{prefix}-{part}") for part in ("id", "timestamp", "signature"))
    require_recent(timestamp, request.now, WEBHOOK_TOLERANCE)
    message = f"{event_id}.{timestamp}.".encode() + request.body
    expected = [base64.b64encode(hmac.new(key, message, hashlib.sha256).digest()) for key in keys]
    given = [each.removeprefix("v1,").encode() for each in signatures.split() if each.startswith("v1,")]
    if not any([equals_any(each, expected) for each in given]):
        raise Unauthorized


def webhook_key(secret: str) -> bytes:
    """Of whsec_ and Base64; raises ValueError if it is not that."""
    text = secret.removeprefix("whsec_").rstrip("=")
    try:
        key = base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError("takes the signing secret, whsec_...") from error
    if not key:
        raise ValueError("takes the signing secret, whsec_...")
    return key


def require_ecdsa(signature: str, message: bytes, keys: Iterable[EllipticCurvePublicKey]) -> None:
    try:
        raw = base64.b64decode(signature, validate=True)
    except (binascii.Error, ValueError):
        raise Unauthorized from None
    if not any(_is_signed(raw, message, key) for key in keys):
        raise Unauthorized


def _is_signed(signature: bytes, message: bytes, key: EllipticCurvePublicKey) -> bool:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ec import ECDSA
    from cryptography.hazmat.primitives.hashes import SHA256

    try:
        key.verify(signature, message, ECDSA(SHA256()))
    except InvalidSignature:
        return False
    return True


def ecdsa_key(text: str) -> EllipticCurvePublicKey:
    """Of Base64, as SendGrid shows it; raises ValueError if it is not that."""
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from cryptography.hazmat.primitives.serialization import load_der_public_key

    try:
        key = load_der_public_key(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError) as error:
        raise ValueError("takes the public key that SendGrid shows, in Base64") from error
    if not isinstance(key, EllipticCurvePublicKey):
        raise ValueError("takes an ECDSA key")
    return key
