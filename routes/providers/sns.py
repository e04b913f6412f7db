"""Amazon SNS: whether a message is really from one of our topics.

https://docs.aws.amazon.com/sns/latest/dg/sns-verify-signature-of-message.html
"""

from __future__ import annotations

import base64
import binascii
import re
import threading
from collections import OrderedDict
from collections.abc import Collection
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.hashes import SHA1, SHA256, HashAlgorithm
from cryptography.x509 import Certificate, load_pem_x509_certificate

from routes.auth import Unauthorized
from routes.providers.base import Fetch

FETCH_TIMEOUT_S = 5.0  # SNS waits 15 s for the whole answer
MAX_CERTIFICATE_BYTES = 64 * 1024
MOST_CERTIFICATES = 16
_HOST = re.compile(r"sns\.[a-z0-9-]+\.amazonaws\.com(\.cn)?")
_NOTIFICATION = ("Message", "MessageId", "Subject", "Timestamp", "TopicArn", "Type")
_CONFIRMATION = ("Message", "MessageId", "SubscribeURL", "Timestamp", "Token", "TopicArn", "Type")
_SIGNED = {
    "Notification": _NOTIFICATION,
    "SubscriptionConfirmation": _CONFIRMATION,
    "UnsubscribeConfirmation": _CONFIRMATION,
}


def is_sns_address(url: str) -> bool:
    """https on a host of SNS itself, of any region, and nothing else of note in it."""
    try:
        parts = urlsplit(url)
        plain = parts.scheme == "https" and parts.port in (None, 443) and "@" not in parts.netloc
    except ValueError:
        return False
    return plain and bool(_HOST.fullmatch(parts.hostname or "")) and not re.search(r"[\s\\]", url)


class SnsVerifier:
    """Keeps the few certificates in use; what is out of reach for now raises FetchFailed."""

    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch
        self._certificates: OrderedDict[str, Certificate] = OrderedDict()
        self._lock = threading.Lock()

    def verify(self, message: dict[str, Any], topics: Collection[str], now: datetime) -> None:
        """Raises Unauthorized. The topic is looked at first: nobody else makes us fetch anything."""
        signature, algorithm = _signature(message), _algorithm(message)
        if message.get("TopicArn") not in topics or signature is None or algorithm is None:
            raise Unauthorized
        certificate = self._certificate(message.get("SigningCertURL"))
        key = certificate.public_key()
        if not certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc:
            raise Unauthorized
        try:
            if not isinstance(key, RSAPublicKey):
                raise Unauthorized
            key.verify(signature, _signed_text(message), PKCS1v15(), algorithm)
        except InvalidSignature:
            raise Unauthorized from None

    def _certificate(self, url: Any) -> Certificate:
        if not isinstance(url, str) or not is_sns_address(url) or not url.endswith(".pem"):
            raise Unauthorized
        with self._lock:
            known = self._certificates.get(url)
        if known is not None:
            return known
        raw = self._fetch(url, {}, FETCH_TIMEOUT_S, MAX_CERTIFICATE_BYTES)
        try:
            certificate = load_pem_x509_certificate(raw)
        except ValueError:
            raise Unauthorized from None
        self._keep(url, certificate)
        return certificate

    def _keep(self, url: str, certificate: Certificate) -> None:
        with self._lock:
            self._certificates[url] = certificate
            while len(self._certificates) > MOST_CERTIFICATES:
                self._certificates.popitem(last=False)


def _signature(message: dict[str, Any]) -> bytes | None:
    try:
        return base64.b64decode(message.get("Signature", ""), validate=True) or None
    except (binascii.Error, ValueError, TypeError):
        return None


def _algorithm(message: dict[str, Any]) -> HashAlgorithm | None:
    """SNS's version 1, still its default, is SHA-1: enough to tell who sent it, as no sender chooses what is hashed."""
    match message.get("SignatureVersion"):
        case "1":
            return SHA1()  # noqa: S303
        case "2":
            return SHA256()
    return None


def _signed_text(message: dict[str, Any]) -> bytes:
    names = _SIGNED.get(str(message.get("Type")), ())
    signed = [(name, message[name]) for name in names if message.get(name) is not None]
    if not signed or not all(isinstance(value, str) for _, value in signed):
        raise Unauthorized
    return "".join(f"{name}\n{value}\n" for name, value in signed).encode("utf-8", "surrogatepass")
