"""POST /api/ingress/ses: Amazon SES by way of SNS."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any, ClassVar

import pytest

from orchestrator.config.settings import SettingsError
from routes.providers.samples import Letter, SampleRequest
from routes.providers.sns import MOST_CERTIFICATES
from tests.routes.providers.conftest import LETTER, Fetches, OpenDoor, email_in, provider_of, with_body
from tests.routes.providers.contract import ProviderContract
from tests.routes.providers.sns_stand_in import HOST, TOPIC, Sns, in_s3, received
from tests.routes.providers.test_mime import LATIN_1
from tests.support.s3_server import BUCKET, S3Server, aim_at, s3_error, s3_server, s3_that_answers

SETTINGS = f"[providers.ses]\ntopics = ['{TOPIC}']"
STRANGER_TOPIC = "arn:aws:sns:eu-west-1:999999999999:inbound"
SNS, NEXT_SNS = Sns(), Sns(f"{HOST}/SimpleNotificationService-next.pem")
FORGER = Sns()  # under the address of the real one, but with another key


def tampered(request: SampleRequest, **changes: Any) -> SampleRequest:
    return with_body(request, json.dumps(json.loads(request.body) | changes).encode())


class TestSes(ProviderContract):
    """Its secret is SNS's; what rotates is the certificate."""

    name = "ses"
    settings = SETTINGS
    other_secret = "forged"
    rotated = SETTINGS
    without_secret = "[providers.ses]"
    complaint = r"providers\.ses\.topics is needed"
    proof_is_in_the_body = True
    signers: ClassVar[dict[str, Sns]] = {SETTINGS: SNS, "forged": FORGER}

    @pytest.fixture(autouse=True)
    def fetches(self, fetches: Fetches) -> Fetches:
        for each in (SNS, NEXT_SNS):
            fetches.pages[each.certificate_url] = each.certificate
        return fetches

    def request(self, settings: str, letter: Letter = LETTER) -> SampleRequest:
        return self.signers[settings].notification(received(letter))

    def without_proof(self, request: SampleRequest) -> SampleRequest:
        return tampered(request, Signature="")

    def with_proof_of(self, body: bytes) -> SampleRequest:
        return SNS.notification(body.decode("latin-1"))

    def test_while_a_secret_is_rotated_both_are_taken(self, open_door: OpenDoor) -> None:  # type: ignore[override]
        door = open_door(SETTINGS)
        requests = [each.notification(received(LETTER)) for each in (SNS, NEXT_SNS)]
        assert [door.post(each).status_code for each in requests] == [200, 200]

    def test_another_content_type_is_rejected_for_good(self, open_door: OpenDoor) -> None:  # type: ignore[override]
        """SNS says text/plain of its JSON; what it says does not count."""
        request = replace(self.request(SETTINGS), headers={"Content-Type": "application/xml"})
        assert open_door(SETTINGS).post(request).status_code == 200

    # The proof

    @pytest.mark.parametrize("version", ["1", "2"])
    def test_both_versions_of_the_signature_are_taken(self, open_door: OpenDoor, version: str) -> None:
        request = SNS.notification(received(LETTER), version)
        door = open_door(SETTINGS)
        assert door.status_of(request) == "processed"
        other = "2" if version == "1" else "1"
        assert door.post(tampered(request, SignatureVersion=other)).status_code == 401

    @pytest.mark.parametrize(
        "changes",
        [
            {"Message": json.dumps(received(replace(LETTER, subject="forged")))},
            {"MessageId": "x"},
            {"Subject": "x"},
            {"Timestamp": "2026-11-17T09:30:00.000Z"},
            {"Type": "SubscriptionConfirmation"},
            {"Type": "Other"},
            {"Type": None},
            {"Type": 5},
            {"Type": ["Notification"]},
            {"Message": {"a": 1}},
            {"SignatureVersion": "3"},
            {"SignatureVersion": None},
            {"SignatureVersion": 1},
            {"Signature": "AAAA"},
            {"Signature": "!"},
            {"Signature": 5},
            {"Signature": None},
            {"TopicArn": STRANGER_TOPIC},
            {"TopicArn": None},
            {"TopicArn": [TOPIC]},
        ],
    )
    def test_whatever_is_changed_afterwards_is_noticed(self, open_door: OpenDoor, changes: dict[str, Any]) -> None:
        door = open_door(SETTINGS)
        self.is_unauthorized(door, door.post(tampered(self.request(SETTINGS), **changes)))

    def test_a_topic_of_somebody_else_is_refused_before_anything_is_fetched(
        self, open_door: OpenDoor, fetches: Fetches
    ) -> None:
        """Anybody may subscribe our address to a topic of theirs, and SNS signs for them as it does for us."""
        door = open_door(SETTINGS)
        for request in (
            SNS.notification(received(LETTER), TopicArn=STRANGER_TOPIC),
            SNS.confirmation(TopicArn=STRANGER_TOPIC),
        ):
            self.is_unauthorized(door, door.post(request))
        assert fetches.asked == []

    @pytest.mark.parametrize(
        "url",
        [
            "http://sns.eu-west-1.amazonaws.com/SimpleNotificationService-x.pem",
            "https://sns.eu-west-1.amazonaws.com.evil.example/x.pem",
            "https://evil.example/sns.eu-west-1.amazonaws.com/x.pem",
            "https://sns.eu-west-1.amazonaws.com@evil.example/x.pem",
            "https://user@sns.eu-west-1.amazonaws.com/x.pem",
            "https://evil.example\\@sns.eu-west-1.amazonaws.com/x.pem",
            "https://evil.example#.sns.eu-west-1.amazonaws.com/x.pem",
            "https://sns.evil.eu-west-1.amazonaws.com/x.pem",
            "https://s3.eu-west-1.amazonaws.com/bucket/x.pem",
            "https://sns.eu-west-1.amazonaws.com:8443/x.pem",
            "https://sns.eu-west-1.amazonaws.com:x/x.pem",
            "https://sns.eu-west-1.amazonaws.com/x.crt",
            "https://sns.eu-west-1.amazonaws.com/\n.pem",
            "https://SNS.eu-west-1.amazonaws.co/x.pem",
            "https://[/x.pem",
            "",
            None,
            5,
        ],
    )
    def test_a_certificate_comes_from_sns_itself_or_not_at_all(
        self, open_door: OpenDoor, fetches: Fetches, url: Any
    ) -> None:
        fetches.pages |= {str(url): FORGER.certificate}
        door = open_door(SETTINGS)
        self.is_unauthorized(door, door.post(tampered(self.request("forged"), SigningCertURL=url)))
        assert fetches.asked == []

    @pytest.mark.parametrize("host", ["sns.us-gov-west-1.amazonaws.com", "sns.cn-north-1.amazonaws.com.cn"])
    def test_every_region_of_sns_is_known(self, open_door: OpenDoor, fetches: Fetches, host: str) -> None:
        regional = Sns(f"https://{host}/SimpleNotificationService-x.pem")
        fetches.pages[regional.certificate_url] = regional.certificate
        assert open_door(SETTINGS).post(regional.notification(received(LETTER))).status_code == 200

    @pytest.mark.parametrize(
        ("valid", "http_status"),
        [(timedelta(minutes=1), 200), (timedelta(minutes=-1), 401), (timedelta(days=401), 401)],
    )
    def test_a_certificate_is_good_in_its_time(
        self, open_door: OpenDoor, fetches: Fetches, valid: timedelta, http_status: int
    ) -> None:
        aged = Sns(f"{HOST}/aged.pem", valid)
        fetches.pages[aged.certificate_url] = aged.certificate
        assert open_door(SETTINGS).post(aged.notification(received(LETTER))).status_code == http_status

    @pytest.mark.parametrize("page", [b"", b"<html>", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----"])
    def test_a_page_that_is_no_certificate_proves_nothing(
        self, open_door: OpenDoor, fetches: Fetches, page: bytes
    ) -> None:
        fetches.pages[SNS.certificate_url] = page
        door = open_door(SETTINGS)
        self.is_unauthorized(door, door.post(self.request(SETTINGS)))

    def test_while_the_certificate_is_out_of_reach_the_email_is_asked_for_again(
        self, open_door: OpenDoor, fetches: Fetches, caplog: pytest.LogCaptureFixture
    ) -> None:
        fetches.pages = {}
        door = open_door(SETTINGS)
        answer = door.post(self.request(SETTINGS))
        assert (answer.status_code, answer.get_json()["status"]) == (503, "retry_later")
        assert "nobody is there" in caplog.text
        assert door.recorded == []
        fetches.pages[SNS.certificate_url] = SNS.certificate
        assert door.status_of(self.request(SETTINGS)) == "processed"

    def test_a_certificate_is_fetched_once_and_only_a_few_are_kept(self, open_door: OpenDoor, fetches: Fetches) -> None:
        door = open_door(SETTINGS)
        for _ in range(3):
            door.post(self.request(SETTINGS))
        assert fetches.urls == [SNS.certificate_url]
        for each in range(MOST_CERTIFICATES):
            other = replace(SNS, certificate_url=f"{HOST}/{each}.pem")
            fetches.pages[other.certificate_url] = SNS.certificate
            assert door.post(other.notification(received(LETTER))).status_code == 200
        door.post(self.request(SETTINGS))
        assert fetches.urls.count(SNS.certificate_url) == 2, "the oldest made room"

    @pytest.mark.parametrize("topics", ["''", "[]", "[' ']", "5"])
    def test_topics_takes_at_least_one(self, open_door: OpenDoor, topics: str) -> None:
        with pytest.raises(SettingsError, match=r"providers\.ses\.topics is"):
            open_door(f"[providers.ses]\ntopics = {topics}")

    def test_what_is_longer_than_anything_sns_sends_is_not_even_read(self, open_door: OpenDoor) -> None:
        door = open_door(SETTINGS)
        too_long, long = (replace(LETTER, text="x" * size, html="", enclosures=()) for size in (2_100_000, 200_000))
        self.is_unauthorized(door, door.post(self.request(SETTINGS, too_long)))
        assert door.post(self.request(SETTINGS, long)).status_code == 200

    # The handshake

    def test_a_subscription_is_confirmed(self, open_door: OpenDoor, fetches: Fetches) -> None:
        request = SNS.confirmation()
        url = json.loads(request.body)["SubscribeURL"]
        fetches.pages[url] = b"<ConfirmSubscriptionResponse/>"
        door = open_door(SETTINGS)
        answer = door.post(request)
        assert (answer.status_code, answer.get_json()["status"]) == (200, "no_email")
        assert fetches.urls == [SNS.certificate_url, url]
        assert (door.recorded, door.delivered) == ([], [])

    def test_a_subscription_that_could_not_be_confirmed_comes_again(self, open_door: OpenDoor) -> None:
        assert open_door(SETTINGS).post(SNS.confirmation()).status_code == 503

    @pytest.mark.parametrize("url", ["https://evil.example/", "http://sns.eu-west-1.amazonaws.com/", ""])
    def test_it_is_confirmed_at_sns_itself_or_not_at_all(self, open_door: OpenDoor, fetches: Fetches, url: str) -> None:
        fetches.pages[url] = b"ok"
        assert open_door(SETTINGS).post(SNS.confirmation(SubscribeURL=url)).status_code == 400
        assert fetches.urls == [SNS.certificate_url]

    def test_a_forged_confirmation_is_not_followed(self, open_door: OpenDoor, fetches: Fetches) -> None:
        door = open_door(SETTINGS)
        self.is_unauthorized(door, door.post(FORGER.confirmation()))
        assert fetches.urls == [SNS.certificate_url]

    def test_the_end_of_a_subscription_is_noted(
        self, open_door: OpenDoor, fetches: Fetches, caplog: pytest.LogCaptureFixture
    ) -> None:
        answer = open_door(SETTINGS).post(SNS.confirmation("UnsubscribeConfirmation"))
        assert (answer.status_code, answer.get_json()["status"]) == (200, "no_email")
        assert TOPIC in caplog.text
        assert fetches.urls == [SNS.certificate_url], "its SubscribeURL would subscribe us again"

    # What it reads

    @pytest.mark.parametrize("in_base64", [False, True])
    def test_the_email_is_read_from_its_content(self, fetches: Fetches, in_base64: bool) -> None:
        provider = provider_of(SETTINGS, "ses", fetches)
        email = email_in(provider, SNS.notification(received(LETTER, in_base64=in_base64)))
        assert (email.subject, email.sender, email.date) == (LETTER.subject, LETTER.sender, LETTER.date)
        assert (email.body.strip(), email.plain.strip()) == (LETTER.html.strip(), LETTER.text.strip())
        assert (email.message_id, email.event_id) == (LETTER.message_id, f"ses:{LETTER.event_id}")
        assert email.recipients == ("inbox@in.example.com", "in-bcc@in.example.com", "bob@example.org")
        assert [(each.name, each.size_bytes) for each in email.attachments] == [("liste.csv", 8), ("photo.png", 1024)]
        assert email.spam == dict.fromkeys(("spamVerdict", "virusVerdict", "spfVerdict", "dkimVerdict"), "PASS")

    def test_in_base64_every_byte_comes_through(self, fetches: Fetches) -> None:
        notification = received(LETTER) | {"content": base64.encodebytes(LATIN_1).decode()}
        email = email_in(provider_of(SETTINGS, "ses", fetches), SNS.notification(notification))
        assert (email.clean_subject, email.text) == ("Déjà vu", "Ça va été")

    @pytest.mark.parametrize("content", [None, "", 5])
    def test_a_notification_without_the_email_is_rejected_and_told(
        self, open_door: OpenDoor, caplog: pytest.LogCaptureFixture, content: Any
    ) -> None:
        """As other actions send it: nobody would ever see that email."""
        answer = open_door(SETTINGS).post(SNS.notification(received(LETTER) | {"content": content}))
        assert (answer.status_code, answer.get_json()["field"]) == (400, "content")
        assert "Publish to Amazon SNS topic" in answer.get_json()["error"]
        assert LETTER.event_id in caplog.text
        assert any(record.levelname == "ERROR" for record in caplog.records)

    @pytest.mark.parametrize("kind", ["Bounce", "Complaint", "Delivery", "AmazonSnsSubscriptionSucceeded"])
    def test_other_notifications_are_let_pass(self, open_door: OpenDoor, kind: str) -> None:
        door = open_door(SETTINGS)
        answer = door.post(SNS.notification({"notificationType": kind, "message": "x"}))
        assert (answer.status_code, answer.get_json()["status"]) == (200, "no_email")
        assert door.recorded == []

    @pytest.mark.parametrize("odd", [None, 5, [], {"recipients": 5}, {"spamVerdict": "PASS"}, {"messageId": 5}])
    @pytest.mark.parametrize("field", ["mail", "receipt"])
    def test_what_the_email_can_do_without_does_not_spoil_it(self, open_door: OpenDoor, field: str, odd: Any) -> None:
        assert open_door(SETTINGS).post(SNS.notification(received(LETTER) | {field: odd})).status_code == 200


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server() as running:
        running.put("inbox/the-email", LETTER.mime.as_bytes())
        yield running


class TestByWayOfS3:
    """The action "Deliver to S3 bucket": the notification says where the email is."""

    settings = f"{SETTINGS}\nbuckets = ['other-emails', '{BUCKET}']"

    @pytest.fixture(autouse=True)
    def world(self, server: S3Server, fetches: Fetches, monkeypatch: pytest.MonkeyPatch) -> None:
        fetches.pages[SNS.certificate_url] = SNS.certificate
        aim_at(server.url, monkeypatch)

    def request(self, key: Any = "inbox/the-email", bucket: Any = BUCKET) -> SampleRequest:
        return SNS.notification(in_s3(LETTER, bucket, key))

    def test_the_email_is_fetched_from_its_bucket(self, open_door: OpenDoor) -> None:
        door = open_door(self.settings)
        assert [door.status_of(self.request()) for _ in range(2)] == ["processed", "already_processed"]
        (payload,) = door.delivered
        assert payload["subject"] == LETTER.subject
        assert payload["recipients"] == ["inbox@in.example.com", "in-bcc@in.example.com", "bob@example.org"]
        assert [each["name"] for each in payload["attachments"]] == ["liste.csv", "photo.png"]
        assert payload["spam"]["virusVerdict"] == "PASS"

    def test_by_the_topic_as_well_it_is_the_same_email(self, open_door: OpenDoor) -> None:
        door = open_door(self.settings)
        requests = [self.request(), SNS.notification(received(LETTER))]
        assert [door.status_of(each) for each in requests] == ["processed", "already_processed"]

    def test_an_object_that_is_gone_is_rejected_and_told(
        self, open_door: OpenDoor, caplog: pytest.LogCaptureFixture
    ) -> None:
        door = open_door(self.settings)
        answer = door.post(self.request(key="inbox/gone"))
        assert (answer.status_code, answer.get_json()["status"]) == (400, "invalid")
        assert "not in S3" in answer.get_json()["error"]
        assert any(record.levelname == "ERROR" and LETTER.event_id in record.message for record in caplog.records)
        assert door.recorded == []

    def test_an_email_over_the_limit_of_requests_is_too_big_here_too(self, open_door: OpenDoor) -> None:
        size_mb = len(LETTER.mime.as_bytes()) / 1024 / 1024
        assert open_door(self.settings, max_body_mb=size_mb + 0.001).post(self.request()).status_code == 200
        answer = open_door(self.settings, max_body_mb=size_mb - 0.00001).post(self.request())
        assert answer.status_code == 400
        assert "larger than" in answer.get_json()["error"]

    @pytest.mark.parametrize(("status", "code"), [(403, "AccessDenied"), (503, "SlowDown")])
    def test_while_s3_does_not_hand_it_out_the_email_is_asked_for_again(
        self,
        open_door: OpenDoor,
        server: S3Server,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
        status: int,
        code: str,
    ) -> None:
        with s3_that_answers(*s3_error(status, code)) as url:
            aim_at(url, monkeypatch)
            answer = open_door(self.settings).post(self.request())
        assert (answer.status_code, answer.get_json()["status"]) == (503, "retry_later")
        assert code in caplog.text
        assert LETTER.event_id in caplog.text
        aim_at(server.url, monkeypatch)
        assert open_door(self.settings).status_of(self.request()) == "processed"

    @pytest.mark.parametrize("buckets", ["", "buckets = 'other-emails'"])
    def test_a_bucket_that_is_not_ours_is_not_read_and_the_setting_is_named(
        self, open_door: OpenDoor, caplog: pytest.LogCaptureFixture, buckets: str
    ) -> None:
        """For the hour that SNS tries, the setting can still be mended."""
        door = open_door(f"{SETTINGS}\n{buckets}")
        assert door.post(self.request()).status_code == 503
        assert "[providers.ses] buckets" in caplog.text

    @pytest.mark.parametrize(
        "action", [None, 5, {}, {"type": "S3"}, {"type": "Lambda"}, {"type": "S3", "objectKey": 5}]
    )
    def test_an_action_that_says_nothing_of_an_object_is_rejected(self, open_door: OpenDoor, action: Any) -> None:
        notification = in_s3(LETTER, BUCKET, "x")
        notification["receipt"]["action"] = action
        answer = open_door(self.settings).post(SNS.notification(notification))
        assert (answer.status_code, answer.get_json()["field"]) == (400, "content")

    def test_without_the_extra_the_start_fails_and_names_it(
        self, open_door: OpenDoor, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "boto3", None)
        monkeypatch.delitem(sys.modules, "orchestrator.delivery.s3", raising=False)
        with pytest.raises(
            SettingsError, match=r"providers\.ses\.buckets takes the extra ses: \.venv/bin/pip install"
        ) as raised:
            open_door(self.settings)
        assert "\n" not in str(raised.value)
        assert open_door(SETTINGS).status_of(SNS.notification(received(LETTER))) == "processed", "needed for S3 only"
