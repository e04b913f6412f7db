"""Amazon SNS: whether a message is really from one of our topics.

https://docs.aws.amazon.com/sns/latest/dg/sns-verify-signature-of-message.html

The certificate is fetched from SNS itself by https, so TLS proves that it is Amazon's.
"""

import threading
import time
from collections.abc import Callable, Collection
from datetime import datetime

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.hashes import SHA1, SHA256, HashAlgorithm
from cryptography.x509 import Certificate, load_pem_x509_certificate

from deduplication.spool import read_all
from orchestrator.delivery.fetching import FetchFailed
from routes.auth import Unauthorized
from routes.providers.base import Fetch
from routes.providers.fields import Document
from routes.providers.ses import FETCH_TIMEOUT_S, is_sns_url

FETCH_PAUSE_S = 1.0
MAX_CERTIFICATE_BYTES = 64 * 1024
# Version 1, still the default, is SHA-1: enough to tell who sent it, as no sender chooses what is hashed.
_ALGORITHMS: dict[str, HashAlgorithm] = {"1": SHA1(), "2": SHA256()}  # noqa: S303
_CONFIRMATION = ("Message", "MessageId", "SubscribeURL", "Timestamp", "Token", "TopicArn", "Type")
_SIGNED = {
    "Notification": ("Message", "MessageId", "Subject", "Timestamp", "TopicArn", "Type"),
    "SubscriptionConfirmation": _CONFIRMATION,
    "UnsubscribeConfirmation": _CONFIRMATION,
}


class SnsVerifier:
    def __init__(self, fetch: Fetch, clock: Callable[[], float] = time.monotonic) -> None:
        self._fetch = fetch
        self._clock = clock
        self._certificates: dict[str, Certificate] = {}
        self._paused_until_s = clock()
        self._fetching = threading.Lock()

    def verify(self, message: Document, topics: Collection[str], now: datetime) -> None:
        """Raises Unauthorized or InvalidPayload, and FetchFailed while a certificate is unavailable.

        The topic is checked first: a message of any other topic causes no fetch.
        """
        topic, url = message.optional("TopicArn"), message.optional("SigningCertURL")
        if topic not in topics or not is_sns_url(url, topic, r"SimpleNotificationService-[0-9a-f]+\.pem"):
            raise Unauthorized
        names = [name for name in _SIGNED.get(message.optional("Type"), ()) if message.get(name) is not None]
        text = "".join(f"{name}\n{message.text(name)}\n" for name in names)
        signature, algorithm = message.base64("Signature"), _ALGORITHMS.get(message.optional("SignatureVersion"))
        if not text or not isinstance(signature, bytes) or algorithm is None:
            raise Unauthorized
        certificate = self._certificates.get(url) or self._fetch_certificate(url)
        is_valid_now = certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc
        key = certificate.public_key()
        if not is_valid_now or not isinstance(key, RSAPublicKey):
            raise Unauthorized
        try:
            key.verify(signature, text.encode(), PKCS1v15(), algorithm)
        except InvalidSignature:
            raise Unauthorized from None

    def _fetch_certificate(self, url: str) -> Certificate:
        """One fetch at a time. After a failure, requests that waited for it and those of the next second fail too."""
        with self._fetching:
            if url in self._certificates:
                return self._certificates[url]
            if self._clock() < self._paused_until_s:
                raise FetchFailed("the certificate of SNS could not be fetched a moment ago")
            try:
                fetched = self._fetch(url, {}, FETCH_TIMEOUT_S, MAX_CERTIFICATE_BYTES)
                certificate = load_pem_x509_certificate(read_all(fetched))
                self._certificates[url] = certificate  # kept for good: Amazon has published only a few at these URLs
            except ValueError:  # it is not a certificate
                raise Unauthorized from None
            finally:
                if url not in self._certificates:
                    self._paused_until_s = self._clock() + FETCH_PAUSE_S
            return certificate
