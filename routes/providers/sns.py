"""Amazon SNS: whether a message is really from one of our topics.

https://docs.aws.amazon.com/sns/latest/dg/sns-verify-signature-of-message.html
"""

from __future__ import annotations

import base64
import binascii
import logging
import re
import threading
from collections import OrderedDict
from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.hashes import SHA1, SHA256, HashAlgorithm
from cryptography.x509 import Certificate, DNSName, load_pem_x509_certificates
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from orchestrator.delivery.fetching import FetchFailed
from routes.auth import Unauthorized
from routes.providers.base import Fetch

log = logging.getLogger(__name__)

FETCH_TIMEOUT_S = 5.0  # SNS waits 15 s for the whole answer
FETCH_PAUSE = timedelta(seconds=1)
MAX_CERTIFICATE_BYTES = 64 * 1024
MOST_CERTIFICATES = 16
AMAZON_CA = Path(__file__).with_name("amazon_ca.pem")  # SNS serves its own certificate without the intermediate one
TOPIC = re.compile(r"arn:(?:aws|aws-cn|aws-us-gov):sns:[a-z0-9-]+:\d{12}:[\w.-]+", re.ASCII)
_NOTIFICATION = ("Message", "MessageId", "Subject", "Timestamp", "TopicArn", "Type")
_CONFIRMATION = ("Message", "MessageId", "SubscribeURL", "Timestamp", "Token", "TopicArn", "Type")
_SIGNED = {
    "Notification": _NOTIFICATION,
    "SubscriptionConfirmation": _CONFIRMATION,
    "UnsubscribeConfirmation": _CONFIRMATION,
}


def read_authorities(path: str | Path) -> list[Certificate]:
    """Raises OSError, and ValueError if the file does not hold certificates in PEM."""
    return load_pem_x509_certificates(Path(path).read_bytes())


def is_sns_url(url: Any, topic: str, path: str = r"[^\s\\]*") -> bool:
    """Whether it is an https URL of SNS in the topic's region: S3 serves a bucket named sns at sns.s3.amazonaws.com."""
    region, domain = _region(topic)
    return isinstance(url, str) and bool(re.fullmatch(rf"https://sns\.{region}\.{re.escape(domain)}/{path}", url))


def _region(topic: str) -> tuple[str, str]:
    _, partition, _, region, *_ = topic.split(":")  # SesOptions has checked it
    return region, "amazonaws.com.cn" if partition == "aws-cn" else "amazonaws.com"


def _certificate_names(topic: str) -> list[str]:
    """DNS names of SNS's certificates: most regions share the first one.

    https://github.com/aws/aws-sdk-java-v2, SnsHostProvider.java, lists them.
    """
    region, domain = _region(topic)
    shared = "sns-us-gov-west-1.amazonaws.com" if region.startswith("us-gov-") else "sns.amazonaws.com"
    return [shared, f"sns.{region}.{domain}", f"sns-signing.{region}.{domain}", f"sns-{region}.{domain}"]


class SnsVerifier:
    """Keeps the few certificates in use. Raises FetchFailed while a certificate is unavailable."""

    def __init__(self, fetch: Fetch, authorities: list[Certificate]) -> None:
        self._fetch = fetch
        self._authorities = authorities
        self._chains: OrderedDict[str, list[Certificate]] = OrderedDict()
        self._failed_at = datetime.min.replace(tzinfo=UTC)
        self._fetching = threading.Lock()

    def verify(self, message: dict[str, Any], topics: Collection[str], now: datetime) -> None:
        """Raises Unauthorized. The topic is checked first: a message of any other topic causes no fetch."""
        topic: Any = message.get("TopicArn")
        url: Any = message.get("SigningCertURL")
        if topic not in topics:
            raise Unauthorized
        signature, algorithm, text = _signature(message), _algorithm(message), _signed_text(message)
        if signature is None or algorithm is None:
            raise Unauthorized
        if not is_sns_url(url, topic, r"SimpleNotificationService-[0-9a-f]+\.pem"):
            raise Unauthorized
        chain = self._chains.get(url) or self._fetch_chain(url, topic, now)
        self._require_amazon(chain, topic, now)
        key = chain[0].public_key()
        try:
            if not isinstance(key, RSAPublicKey):
                raise Unauthorized
            key.verify(signature, text, PKCS1v15(), algorithm)
        except InvalidSignature:
            raise Unauthorized from None

    def _fetch_chain(self, url: str, topic: str, now: datetime) -> list[Certificate]:
        """One fetch at a time. After a failure, requests that waited for it and those of the next second fail too."""
        failed_at = self._failed_at
        with self._fetching:
            if url in self._chains:
                return self._chains[url]
            if self._failed_at != failed_at or timedelta(0) <= now - self._failed_at < FETCH_PAUSE:
                raise FetchFailed("the certificate of SNS could not be fetched a moment ago")
            try:
                chain = load_pem_x509_certificates(self._fetch(url, {}, FETCH_TIMEOUT_S, MAX_CERTIFICATE_BYTES))
                self._require_amazon(chain, topic, now)
            except (FetchFailed, Unauthorized, ValueError) as error:
                self._failed_at = now
                if isinstance(error, ValueError):  # it is not a certificate
                    raise Unauthorized from None
                raise
            self._chains[url] = chain
            while len(self._chains) > MOST_CERTIFICATES:
                self._chains.popitem(last=False)
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
