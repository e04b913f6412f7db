"""The certificate authorities that the service ships, and a certificate that SNS itself signs with."""

from __future__ import annotations

import json
import warnings
from datetime import UTC, datetime
from pathlib import Path

import certifi
import pytest
from cryptography.x509 import Certificate

from routes.auth import Unauthorized
from routes.providers import sns
from tests.routes.providers.conftest import LETTER
from tests.routes.providers.sns_stand_in import Sns, received

AMAZON_CA = Path(sns.__file__).with_name("amazon_ca.pem")
# As SNS served it in us-west-2, without the intermediate certificate (from the tests of aws-sdk-java-v2).
GENUINE = Path(__file__).parents[2] / "fixtures/sns/SimpleNotificationService-7506a1e35b36ef5a444dd1a8e7cc3ed8.pem"
TOPIC = "arn:aws:sns:us-west-2:123456789012:inbound"


def authorities() -> list[Certificate]:
    return sns.read_authorities(AMAZON_CA)


def test_the_authorities_are_a_public_root_of_amazon_and_what_it_issued() -> None:
    with warnings.catch_warnings(action="ignore"):  # about other roots
        public = sns.read_authorities(certifi.where())
    root, *intermediates = authorities()
    assert root in public
    assert [each.subject.rfc4514_string()[:22] for each in intermediates] == [
        f"CN=Amazon RSA 2048 M0{number}" for number in (1, 2, 3, 4)
    ]
    for each in intermediates:
        each.verify_directly_issued_by(root)


@pytest.mark.parametrize(
    ("now", "complaint"),
    [(datetime(2026, 3, 7, tzinfo=UTC), None), (datetime(2026, 10, 15, tzinfo=UTC), "not valid at validation time")],
)
def test_a_genuine_certificate_is_trusted_in_its_time(
    now: datetime, complaint: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """The signature is refused either way: only SNS has the key."""
    verifier = sns.SnsVerifier(lambda *_, **__: GENUINE.read_bytes(), authorities())
    request = Sns(f"https://sns.us-west-2.amazonaws.com/{GENUINE.name}").notification(received(LETTER), TopicArn=TOPIC)
    with pytest.raises(Unauthorized):
        verifier.verify(json.loads(request.body), [TOPIC], now)
    assert (complaint in caplog.text) if complaint else not caplog.records
