"""Amazon SNS, with keys, certificates and a certificate authority of our own."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, generate_private_key
from cryptography.hazmat.primitives.hashes import SHA1, SHA256, HashAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from routes.providers.samples import Letter, SampleRequest
from tests.routes.providers.conftest import NOW
from tests.support.surroundings import ROOT

TOPIC = "arn:aws:sns:eu-west-1:123456789012:inbound"
HOST = "https://sns.eu-west-1.amazonaws.com"
NOTIFIED = ("Message", "MessageId", "Subject", "Timestamp", "TopicArn", "Type")
KEY_USAGES = (
    "digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
    "key_cert_sign", "crl_sign", "encipher_only", "decipher_only",
)  # fmt: skip
DOCUMENTED = ROOT / "tests/fixtures/providers"
MESSAGES: dict[str, dict[str, Any]] = json.loads((DOCUMENTED / "sns.json").read_text())
CONFIRMED = ("Message", "MessageId", "SubscribeURL", "Timestamp", "Token", "TopicArn", "Type")


@dataclass(frozen=True)
class Authority:
    name: str
    key: RSAPrivateKey = field(default_factory=lambda: generate_private_key(65537, 2048), repr=False)

    @property
    def certificate(self) -> bytes:
        builder = _builder(self.name, self.name, self.key, self.key, timedelta(days=300))
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        usage = dict.fromkeys(KEY_USAGES, False) | {"key_cert_sign": True}
        builder = builder.add_extension(x509.KeyUsage(**usage), critical=True)
        return builder.sign(self.key, SHA256()).public_bytes(Encoding.PEM)


AMAZON = Authority("Test CA of Amazon")


@dataclass(frozen=True)
class Sns:
    """``valid`` is how long its certificate still is, from NOW. Without ``authority``, it is self-signed."""

    certificate_url: str = f"{HOST}/SimpleNotificationService-0123456789abcdef.pem"
    valid: timedelta = timedelta(days=300)
    key: RSAPrivateKey = field(default_factory=lambda: generate_private_key(65537, 2048), repr=False)
    authority: Authority | None = AMAZON
    dns_name: str = "sns.amazonaws.com"

    @property
    def certificate(self) -> bytes:
        issuer, issuer_key = (self.authority.name, self.authority.key) if self.authority else (self.dns_name, self.key)
        builder = _builder(self.dns_name, issuer, self.key, issuer_key, self.valid)
        builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(self.dns_name)]), critical=False)
        builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        return builder.sign(issuer_key, SHA256()).public_bytes(Encoding.PEM)

    def signed(self, message: dict[str, Any], version: str = "1") -> SampleRequest:
        names = NOTIFIED if message["Type"] == "Notification" else CONFIRMED
        text = "".join(f"{name}\n{message[name]}\n" for name in names if name in message)
        algorithm: HashAlgorithm = SHA1() if version == "1" else SHA256()  # noqa: S303
        signature = base64.b64encode(self.key.sign(text.encode(), PKCS1v15(), algorithm)).decode()
        proof = {"SignatureVersion": version, "Signature": signature, "SigningCertURL": self.certificate_url}
        headers = {"Content-Type": "text/plain; charset=UTF-8", "x-amz-sns-message-type": message["Type"]}
        return SampleRequest("/api/ingress/ses", headers, json.dumps(message | proof).encode())

    def notification(self, inner: Any, version: str = "1", **changes: str) -> SampleRequest:
        text = inner if isinstance(inner, str) else json.dumps(inner)
        return self.signed(MESSAGES["Notification"] | {"Message": text} | changes, version)

    def confirmation(self, kind: str = "SubscriptionConfirmation", **changes: str) -> SampleRequest:
        return self.signed(MESSAGES["SubscriptionConfirmation"] | {"Type": kind} | changes)


def received(letter: Letter, *, in_base64: bool = False) -> dict[str, Any]:
    """As in https://docs.aws.amazon.com/ses/latest/dg/receiving-email-notifications-examples.html"""
    notification: dict[str, Any] = json.loads((DOCUMENTED / "ses.json").read_text())
    notification["mail"]["messageId"] = letter.event_id
    raw = letter.mime.as_bytes()
    return notification | {"content": base64.b64encode(raw).decode() if in_base64 else raw.decode()}


def in_s3(letter: Letter, bucket: str, key: str) -> dict[str, Any]:
    """As the action "Deliver to S3 bucket" with a topic tells it."""
    notification = received(letter)
    del notification["content"]
    action = {"type": "S3", "topicArn": TOPIC, "bucketName": bucket, "objectKey": key}
    notification["receipt"]["action"] = action
    return notification


def _builder(
    name: str, issuer: str, key: RSAPrivateKey, issuer_key: RSAPrivateKey, valid: timedelta
) -> x509.CertificateBuilder:
    subject, issued_by = (x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, each)]) for each in (name, issuer))
    builder = x509.CertificateBuilder(issued_by, subject, key.public_key(), x509.random_serial_number())
    ends = (NOW + valid).replace(tzinfo=None)
    builder = builder.not_valid_before(ends - timedelta(days=400)).not_valid_after(ends)
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    known_by = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key())
    return builder.add_extension(known_by, critical=False)
