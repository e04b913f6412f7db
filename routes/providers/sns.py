"""Amazon SNS: whether a message is really from one of our topics.

https://docs.aws.amazon.com/sns/latest/dg/sns-verify-signature-of-message.html
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection
from datetime import datetime
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.hashes import SHA1, SHA256, HashAlgorithm
from cryptography.x509 import Certificate, DNSName, load_pem_x509_certificates
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from orchestrator.delivery.fetching import FetchFailed
from routes.auth import Unauthorized
from routes.providers.base import Fetch
from routes.providers.fields import Document
from routes.providers.ses import FETCH_TIMEOUT_S, is_sns_url, region_of

log = logging.getLogger(__name__)

FETCH_PAUSE_S = 1.0
MAX_CERTIFICATE_BYTES = 64 * 1024
AMAZON_CA = Path(__file__).with_name("amazon_ca.pem")  # SNS serves its own certificate without the intermediate one
# Version 1, still the default, is SHA-1: enough to tell who sent it, as no sender chooses what is hashed.
_ALGORITHMS: dict[str, HashAlgorithm] = {"1": SHA1(), "2": SHA256()}  # noqa: S303
_CONFIRMATION = ("Message", "MessageId", "SubscribeURL", "Timestamp", "Token", "TopicArn", "Type")
_SIGNED = {
    "Notification": ("Message", "MessageId", "Subject", "Timestamp", "TopicArn", "Type"),
    "SubscriptionConfirmation": _CONFIRMATION,
    "UnsubscribeConfirmation": _CONFIRMATION,
}


class SnsVerifier:
    """``ca_file`` holds issuers beside those of AMAZON_CA.

    Raises OSError, and ValueError if a file does not hold certificates in PEM.
    """

    def __init__(self, fetch: Fetch, ca_file: str = "", clock: Callable[[], float] = time.monotonic) -> None:
        files = [AMAZON_CA, Path(ca_file)] if ca_file else [AMAZON_CA]
        self._authorities = [each for file in files for each in load_pem_x509_certificates(file.read_bytes())]
        self._fetch = fetch
        self._clock = clock
        self._chains: dict[str, list[Certificate]] = {}
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
        if not text or not signature or algorithm is None:
            raise Unauthorized
        chain = self._chains.get(url) or self._fetch_chain(url)
        self._require_amazon(chain, topic, now)
        key = chain[0].public_key()
        try:
            if not isinstance(key, RSAPublicKey):
                raise Unauthorized
            key.verify(signature, text.encode(), PKCS1v15(), algorithm)
        except InvalidSignature:
            raise Unauthorized from None

    def _fetch_chain(self, url: str) -> list[Certificate]:
        """One fetch at a time. After a failure, requests that waited for it and those of the next second fail too."""
        with self._fetching:
            if url in self._chains:
                return self._chains[url]
            if self._clock() < self._paused_until_s:
                raise FetchFailed("the certificate of SNS could not be fetched a moment ago")
            try:
                chain = load_pem_x509_certificates(self._fetch(url, {}, FETCH_TIMEOUT_S, MAX_CERTIFICATE_BYTES))
                self._chains[url] = chain  # kept for good: Amazon has published only a few at these URLs
            except ValueError:  # it is not a certificate
                raise Unauthorized from None
            finally:
                if url not in self._chains:
                    self._paused_until_s = self._clock() + FETCH_PAUSE_S
            return chain

    def _require_amazon(self, chain: list[Certificate], topic: str, now: datetime) -> None:
        """An issuer that is not known here may be Amazon's next one: SNS drops the email after a 401, so it is 503."""
        policy = PolicyBuilder().store(Store(self._authorities)).time(now)
        (certificate, *others), reasons = chain, {}
        for name in _certificate_names(topic):
            try:
                policy.build_server_verifier(DNSName(name)).verify(certificate, others)
                return
            except VerificationError as error:
                reasons[name] = str(error)
        issuer = certificate.issuer
        if issuer not in [certificate.subject, *(each.subject for each in self._authorities + others)]:
            raise FetchFailed(f"ca_file must hold the issuer of the certificate of SNS, {issuer.rfc4514_string()!r}")
        log.warning("the certificate of SNS for %s is not valid: %s", topic, reasons)
        raise Unauthorized


def _certificate_names(topic: str) -> list[str]:
    """DNS names of SNS's certificates: most regions share the first one.

    https://github.com/aws/aws-sdk-java-v2, SnsHostProvider.java, lists them.
    """
    region, domain = region_of(topic)
    shared = "sns-us-gov-west-1.amazonaws.com" if region.startswith("us-gov-") else "sns.amazonaws.com"
    return [shared, f"sns.{region}.{domain}", f"sns-signing.{region}.{domain}", f"sns-{region}.{domain}"]
