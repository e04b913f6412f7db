"""Whether a message is really from Amazon SNS: its signature, and the certificate for it."""

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from threading import Event, Thread
from typing import Any

import pytest

from orchestrator.delivery.fetching import FetchFailed
from routes.auth import Unauthorized
from routes.payload import InvalidPayload
from routes.providers.fields import Document
from routes.providers.samples import SampleRequest
from routes.providers.sns import SnsVerifier
from tests.routes.providers.conftest import LETTER, NOW, Fetches
from tests.routes.providers.sns_stand_in import HOST, TOPIC, Sns, received

SNS = Sns()
FORGER = Sns()  # under the address of the real one, but with another key
NAME = "SimpleNotificationService-"
OTHER_PATHS = (f"other/{NAME}0a.pem", f"{NAME}.pem", f"{NAME}0a.pem?x", f"{NAME}0a.pem\n", "?Action=x&x=.pem")
OTHER_HOSTS = ("s3.amazonaws.com", "us-west-2.amazonaws.com", "eu-west-1.amazonaws.com.cn")
REFUSED = (Unauthorized, InvalidPayload)
Verify = Callable[..., None]


@pytest.fixture
def verify(fetches: Fetches) -> Verify:
    """By one verifier for the whole test."""
    fetches.pages[SNS.certificate_url] = SNS.certificate
    verifier = SnsVerifier(fetches)

    def verify_(request: SampleRequest, topic: str = TOPIC, now: datetime = NOW, **changes: Any) -> None:
        verifier.verify(Document(json.loads(request.body) | changes), [topic], now)

    return verify_


def notification(signer: Sns = SNS, **changes: Any) -> SampleRequest:
    return signer.notification(received(LETTER), **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"Message": json.dumps(received(replace(LETTER, subject="forged")))},
        {"Message": {"a": 1}},
        *({name: "x"} for name in ("MessageId", "Subject", "Timestamp")),
        *({"Type": each} for each in ("SubscriptionConfirmation", "Other", None, 5, ["Notification"])),
        *({"SignatureVersion": each} for each in ("2", "3", None, 1, ["1"])),
        *({"Signature": each} for each in ("AAAA", "!", 5, None)),
        *({"TopicArn": each} for each in (TOPIC.replace("1234", "9999"), None, [TOPIC])),
    ],
)
def test_any_later_change_is_detected(verify: Verify, changes: dict[str, Any]) -> None:
    for version in ("1", "2"):
        verify(SNS.notification(received(LETTER), version))
    with pytest.raises(REFUSED):
        verify(notification(), **changes)


@pytest.mark.parametrize(
    "url",
    [
        "http://sns.eu-west-1.amazonaws.com/SimpleNotificationService-0a.pem",
        "https://sns.eu-west-1.amazonaws.com.evil.example/x.pem",
        "https://sns.eu-west-1.amazonaws.com@evil.example/x.pem",
        "https://evil.example\\@sns.eu-west-1.amazonaws.com/x.pem",
        "https://evil.example#.sns.eu-west-1.amazonaws.com/x.pem",
        "https://sns.eu-west-1.amazonaws.com:8443/x.pem",
        *(f"https://sns.{host}/SimpleNotificationService-0a.pem" for host in OTHER_HOSTS),
        *(f"{HOST}/{path}" for path in OTHER_PATHS),
        *("https://[/x.pem", "", None, 5),
    ],
)
def test_a_certificate_comes_from_sns_itself_or_not_at_all(verify: Verify, fetches: Fetches, url: Any) -> None:
    fetches.pages |= {str(url): FORGER.certificate}
    with pytest.raises(Unauthorized):
        verify(notification(FORGER), SigningCertURL=url)
    assert fetches.asked == []


@pytest.mark.parametrize(
    ("topic", "host"),
    [
        ("aws:sns:us-east-1", "sns.us-east-1.amazonaws.com"),
        ("aws-us-gov:sns:us-gov-east-1", "sns.us-gov-east-1.amazonaws.com"),
        ("aws-cn:sns:cn-north-1", "sns.cn-north-1.amazonaws.com.cn"),
    ],
)
def test_every_region_of_sns_is_known(verify: Verify, fetches: Fetches, topic: str, host: str) -> None:
    arn = f"arn:{topic}:123456789012:inbound"
    regional = Sns(f"https://{host}/SimpleNotificationService-0a.pem")
    fetches.pages[regional.certificate_url] = regional.certificate
    verify(notification(regional, TopicArn=arn), arn)


@pytest.mark.parametrize(
    "page", [FORGER.certificate, b"", b"<html>", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----"]
)
def test_the_certificate_must_be_that_of_the_key_that_signed(verify: Verify, fetches: Fetches, page: bytes) -> None:
    fetches.pages[SNS.certificate_url] = page
    with pytest.raises(Unauthorized):
        verify(notification())


def test_a_certificate_proves_nothing_outside_its_time(verify: Verify) -> None:
    """Even if it is already known."""
    verify(notification())
    for moment in (NOW - timedelta(days=101), NOW + timedelta(days=301)):
        with pytest.raises(Unauthorized):
            verify(notification(), now=moment)


def test_after_a_failure_no_certificate_is_fetched_for_a_second(fetches: Fetches) -> None:
    """Whatever its address: a stranger who knows the topic can make up any number of them."""
    clock = [0.0]
    verifier = SnsVerifier(fetches, clock=lambda: clock[0])
    fetches.pages[SNS.certificate_url] = SNS.certificate
    message = Document(json.loads(notification().body))
    unknown = Document(message | {"SigningCertURL": f"{HOST}/SimpleNotificationService-0.pem"})
    for clock[0], each in [(0, unknown), (0, unknown), (0.9, unknown), (0.9, message)]:
        with pytest.raises(FetchFailed):
            verifier.verify(each, [TOPIC], NOW)
    assert len(fetches.asked) == 1
    clock[0] = 1
    verifier.verify(message, [TOPIC], NOW)
    with pytest.raises(FetchFailed):
        verifier.verify(unknown, [TOPIC], NOW)
    verifier.verify(message, [TOPIC], NOW)  # it is kept


def test_requests_that_wait_for_a_fetch_share_its_failure() -> None:
    """While SNS does not answer, they would wait for five seconds each, one after the other."""
    asked, errors, fetching, may_fail = list[str](), list[FetchFailed](), Event(), Event()

    def fetch(url: str, headers: object, timeout_s: float, max_bytes: int) -> bytes:
        asked.append(url)
        fetching.set()
        may_fail.wait()
        raise FetchFailed("no answer")

    verifier = SnsVerifier(fetch)

    def verify() -> None:
        try:
            verifier.verify(Document(json.loads(notification().body)), [TOPIC], NOW)
        except FetchFailed as error:
            errors.append(error)

    threads = [Thread(target=verify) for _ in range(3)]
    for thread in threads:
        thread.start()
    fetching.wait()
    may_fail.set()
    for thread in threads:
        thread.join()
    assert (len(errors), len(asked)) == (3, 1)
