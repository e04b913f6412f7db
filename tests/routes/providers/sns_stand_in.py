"""Amazon SNS, with a key and a certificate of our own."""

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

from routes.providers.samples import Letter, SampleRequest
from tests.routes.providers.conftest import NOW, raw
from tests.support.surroundings import ROOT

TOPIC = "arn:aws:sns:eu-west-1:123456789012:inbound"
HOST = "https://sns.eu-west-1.amazonaws.com"
NOTIFIED = ("Message", "MessageId", "Subject", "Timestamp", "TopicArn", "Type")
DOCUMENTED = ROOT / "tests/fixtures/providers"
MESSAGES: dict[str, dict[str, Any]] = json.loads((DOCUMENTED / "sns.json").read_text())
CONFIRMED = ("Message", "MessageId", "SubscribeURL", "Timestamp", "Token", "TopicArn", "Type")


@dataclass(frozen=True)
class Sns:
    certificate_url: str = f"{HOST}/SimpleNotificationService-0123456789abcdef.pem"
    key: RSAPrivateKey = field(default_factory=lambda: generate_private_key(65537, 2048), repr=False)

    @property
    def certificate(self) -> bytes:
        """Valid from 100 days before NOW to 300 days after."""
        nobody = x509.Name([])
        builder = x509.CertificateBuilder(nobody, nobody, self.key.public_key(), x509.random_serial_number())
        builder = builder.not_valid_before(NOW - timedelta(days=100)).not_valid_after(NOW + timedelta(days=300))
        return builder.sign(self.key, SHA256()).public_bytes(Encoding.PEM)

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
    content = base64.b64encode(raw(letter)) if in_base64 else raw(letter)
    return notification | {"content": content.decode()}


def in_s3(letter: Letter, bucket: str, key: str) -> dict[str, Any]:
    """As the action "Deliver to S3 bucket" with a topic tells it."""
    notification = received(letter)
    del notification["content"]
    action = {"type": "S3", "topicArn": TOPIC, "bucketName": bucket, "objectKey": key}
    notification["receipt"]["action"] = action
    return notification
