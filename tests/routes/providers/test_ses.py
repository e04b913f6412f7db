"""POST /api/ingress/ses: Amazon SES by way of SNS."""

from __future__ import annotations

import base64
import json
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any, ClassVar

import pytest

from orchestrator.config.settings import SettingsError
from orchestrator.delivery.fetching import FetchFailed
from routes.auth import Unauthorized
from routes.providers.samples import Letter, SampleRequest
from routes.providers.sns import MOST_CERTIFICATES, SnsVerifier
from tests.routes.providers.conftest import LETTER, NOW, Fetches, Serve, email_in, provider_of, with_body
from tests.routes.providers.contract import ProviderContract
from tests.routes.providers.sns_stand_in import AMAZON, HOST, TOPIC, Authority, Sns, in_s3, received
from tests.routes.providers.test_mime import LATIN_1
from tests.support.s3_server import BUCKET, S3Server, aim_at, s3_error, s3_server, s3_that_answers

SETTINGS = f"[providers.ses]\ntopics = ['{TOPIC}']"
STRANGER_TOPIC = "arn:aws:sns:eu-west-1:999999999999:inbound"
SNS, NEXT_SNS = Sns(), Sns(f"{HOST}/SimpleNotificationService-fedcba9876543210.pem")
FORGER = Sns()  # under the address of the real one, but with another key


def tampered(request: SampleRequest, **changes: Any) -> SampleRequest:
    return with_body(request, json.dumps(json.loads(request.body) | changes).encode())


def _waits_for_a_fetch(thread: Thread) -> bool:
    frame = sys._current_frames()[thread.ident or 0]
    return frame.f_code.co_name == "_fetch_chain" and "failed_at" in frame.f_locals


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

    def test_both_secrets_of_a_rotation_are_accepted(self, serve: Serve) -> None:  # type: ignore[override]
        ingress = serve(SETTINGS)
        requests = [each.notification(received(LETTER)) for each in (SNS, NEXT_SNS)]
        assert [ingress.post(each).status_code for each in requests] == [200, 200]

    def test_another_content_type_is_refused(self, serve: Serve) -> None:  # type: ignore[override]
        """SNS says text/plain of its JSON; what it says does not count."""
        request = replace(self.request(SETTINGS), headers={"Content-Type": "application/xml"})
        assert serve(SETTINGS).post(request).status_code == 200

    # The proof

    @pytest.mark.parametrize("version", ["1", "2"])
    def test_both_versions_of_the_signature_are_taken(self, serve: Serve, version: str) -> None:
        request = SNS.notification(received(LETTER), version)
        ingress = serve(SETTINGS)
        assert ingress.status_of(request) == "processed"
        other = "2" if version == "1" else "1"
        assert ingress.post(tampered(request, SignatureVersion=other)).status_code == 401

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
    def test_any_later_change_is_detected(self, serve: Serve, changes: dict[str, Any]) -> None:
        ingress = serve(SETTINGS)
        self.assert_unauthorized(ingress, ingress.post(tampered(self.request(SETTINGS), **changes)))

    def test_an_unknown_topic_is_refused_before_anything_is_fetched(self, serve: Serve, fetches: Fetches) -> None:
        """Anybody may subscribe our address to a topic of theirs, and SNS signs for them as it does for us."""
        ingress = serve(SETTINGS)
        for request in (
            SNS.notification(received(LETTER), TopicArn=STRANGER_TOPIC),
            SNS.confirmation(TopicArn=STRANGER_TOPIC),
        ):
            self.assert_unauthorized(ingress, ingress.post(request))
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
            "https://sns.s3.amazonaws.com/SimpleNotificationService-0a.pem",
            "https://sns.s3-us-west-2.amazonaws.com/SimpleNotificationService-0a.pem",
            "https://sns.us-west-2.amazonaws.com/SimpleNotificationService-0a.pem",
            "https://sns.eu-west-1.amazonaws.com.cn/SimpleNotificationService-0a.pem",
            "https://sns-eu-west-1.amazonaws.com/SimpleNotificationService-0a.pem",
            "https://sns.eu-west-1.amazonaws.com/other/SimpleNotificationService-0a.pem",
            "https://sns.eu-west-1.amazonaws.com/SimpleNotificationService-.pem",
            "https://sns.eu-west-1.amazonaws.com/SimpleNotificationService-0a.pem?x",
            "https://sns.eu-west-1.amazonaws.com/SimpleNotificationService-0a.pem\n",
            "https://sns.eu-west-1.amazonaws.com/SimpleNotificationService-x.pem",
            "https://sns.eu-west-1.amazonaws.com/?Action=GetTopicAttributes&x=.pem",
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
    def test_a_certificate_comes_from_sns_itself_or_not_at_all(self, serve: Serve, fetches: Fetches, url: Any) -> None:
        fetches.pages |= {str(url): FORGER.certificate}
        ingress = serve(SETTINGS)
        self.assert_unauthorized(ingress, ingress.post(tampered(self.request("forged"), SigningCertURL=url)))
        assert fetches.asked == []

    @pytest.mark.parametrize(
        ("topic", "host", "dns_name"),
        [
            ("aws:sns:us-east-1", "sns.us-east-1.amazonaws.com", "sns.amazonaws.com"),
            ("aws:sns:af-south-1", "sns.af-south-1.amazonaws.com", "sns-signing.af-south-1.amazonaws.com"),
            ("aws:sns:af-south-1", "sns.af-south-1.amazonaws.com", "sns.af-south-1.amazonaws.com"),
            ("aws-us-gov:sns:us-gov-east-1", "sns.us-gov-east-1.amazonaws.com", "sns-us-gov-west-1.amazonaws.com"),
            ("aws-cn:sns:cn-north-1", "sns.cn-north-1.amazonaws.com.cn", "sns-cn-north-1.amazonaws.com.cn"),
        ],
    )
    def test_every_region_of_sns_is_known(
        self, serve: Serve, fetches: Fetches, topic: str, host: str, dns_name: str
    ) -> None:
        arn = f"arn:{topic}:123456789012:inbound"
        regional = Sns(f"https://{host}/SimpleNotificationService-0a.pem", dns_name=dns_name)
        fetches.pages[regional.certificate_url] = regional.certificate
        ingress = serve(f"[providers.ses]\ntopics = '{arn}'")
        assert ingress.post(regional.notification(received(LETTER), TopicArn=arn)).status_code == 200

    @pytest.mark.parametrize(
        ("valid", "http_status"),
        [(timedelta(minutes=1), 200), (timedelta(minutes=-1), 401), (timedelta(days=401), 401)],
    )
    def test_a_certificate_is_good_in_its_time(
        self, serve: Serve, fetches: Fetches, valid: timedelta, http_status: int
    ) -> None:
        aged = Sns(valid=valid)
        fetches.pages[aged.certificate_url] = aged.certificate
        assert serve(SETTINGS).post(aged.notification(received(LETTER))).status_code == http_status

    def test_a_certificate_that_expires_while_it_is_kept_proves_nothing(self, fetches: Fetches) -> None:
        sns = Sns(valid=timedelta(minutes=1))
        fetches.pages[sns.certificate_url] = sns.certificate
        provider, request = provider_of(SETTINGS, "ses", fetches), sns.notification(received(LETTER))
        email_in(provider, request)
        with pytest.raises(Unauthorized):
            email_in(provider, request, NOW + timedelta(minutes=2))

    @pytest.mark.parametrize(
        "forged",
        [
            Sns(authority=None),
            Sns(authority=Authority(AMAZON.name)),
            Sns(dns_name="sns.evil.example"),
            Sns(dns_name="sns.us-east-1.amazonaws.com"),
        ],
        ids=["self-signed", "signed with another key", "for another host", "for another region"],
    )
    def test_a_certificate_that_amazon_did_not_issue_for_sns_proves_nothing(
        self, serve: Serve, fetches: Fetches, forged: Sns
    ) -> None:
        fetches.pages[forged.certificate_url] = forged.certificate
        ingress = serve(SETTINGS)
        self.assert_unauthorized(ingress, ingress.post(forged.notification(received(LETTER))))

    def test_an_issuer_that_is_not_known_here_is_named_until_ca_file_holds_it(
        self, serve: Serve, fetches: Fetches, tmp_path: Path
    ) -> None:
        """Amazon may issue from a new one any day, and SNS gives an email up after a 401."""
        new = Authority("Amazon RSA 2048 M05")
        sns, ca_file = Sns(authority=new), tmp_path / "ca.pem"
        ca_file.write_bytes(new.certificate)
        fetches.pages[sns.certificate_url] = sns.certificate
        ingress = serve(SETTINGS)
        answer = ingress.post(sns.notification(received(LETTER)))
        assert (answer.status_code, ingress.recorded, ingress.delivered) == (503, [], [])
        assert "ca_file must hold the issuer" in answer.get_json()["error"]
        assert new.name in answer.get_json()["error"]
        provider = provider_of(f"{SETTINGS}\nca_file = '{ca_file}'", "ses", fetches)
        assert email_in(provider, sns.notification(received(LETTER))).subject == LETTER.subject
        assert email_in(provider, NEXT_SNS.notification(received(LETTER))).subject == LETTER.subject, "it adds to ours"

    @pytest.mark.parametrize("content", [None, b"", b"no certificate"])
    def test_ca_file_takes_certificates(self, serve: Serve, tmp_path: Path, content: bytes | None) -> None:
        path = tmp_path / "ca.pem"
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(SettingsError, match=rf"providers\.ses\.ca_file must be a file .* in PEM, got '{path}'"):
            serve(f"{SETTINGS}\nca_file = '{path}'")

    @pytest.mark.parametrize("page", [b"", b"<html>", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----"])
    def test_a_page_that_is_no_certificate_proves_nothing(self, serve: Serve, fetches: Fetches, page: bytes) -> None:
        fetches.pages[SNS.certificate_url] = page
        ingress = serve(SETTINGS)
        self.assert_unauthorized(ingress, ingress.post(self.request(SETTINGS)))

    def test_while_the_certificate_is_unreachable_a_retry_is_requested(
        self, serve: Serve, fetches: Fetches, caplog: pytest.LogCaptureFixture
    ) -> None:
        fetches.pages = {}
        ingress = serve(SETTINGS)
        answer = ingress.post(self.request(SETTINGS))
        assert (answer.status_code, answer.get_json()["status"]) == (503, "retry_later")
        assert "nobody is there" in caplog.text
        assert ingress.recorded == []

    def test_after_a_failure_no_certificate_is_fetched_for_a_second(self, fetches: Fetches) -> None:
        """Whatever its address: a stranger who knows the topic can make up any number of them."""
        provider, request = provider_of(SETTINGS, "ses", fetches), self.request(SETTINGS)
        unknown = tampered(request, SigningCertURL=f"{HOST}/SimpleNotificationService-0.pem")
        for after_s, each in [(0, unknown), (0, unknown), (0.9, unknown), (0.9, request)]:
            with pytest.raises(FetchFailed):
                email_in(provider, each, NOW + timedelta(seconds=after_s))
        assert len(fetches.asked) == 1
        assert email_in(provider, request, NOW + timedelta(seconds=1)).subject == LETTER.subject
        with pytest.raises(FetchFailed):
            email_in(provider, unknown, NOW + timedelta(seconds=2))
        assert email_in(provider, request, NOW + timedelta(seconds=2)).subject == LETTER.subject, "it is kept"

    def test_requests_that_wait_for_a_fetch_share_its_failure(self) -> None:
        """While SNS does not answer, they would wait for five seconds each, one after the other."""
        asked, may_fail, errors = SimpleQueue[str](), Event(), SimpleQueue[Exception]()

        def fetch(url: str, headers: Mapping[str, str], timeout_s: float, max_bytes: int) -> bytes:
            asked.put(url)
            may_fail.wait()
            raise FetchFailed("no answer")

        verifier = SnsVerifier(fetch, [])
        message = json.loads(self.request(SETTINGS).body)

        def verify(after_s: int) -> None:
            try:
                verifier.verify(message, [TOPIC], NOW + timedelta(seconds=after_s))
            except FetchFailed as error:
                errors.put(error)

        first, *others = threads = [Thread(target=verify, args=(after_s,)) for after_s in (0, 2, 4)]
        first.start()
        asked.get()
        for thread in others:
            thread.start()
        while not all(_waits_for_a_fetch(thread) for thread in others):
            time.sleep(0.01)
        may_fail.set()
        for thread in threads:
            thread.join()
        assert (errors.qsize(), asked.qsize()) == (3, 0)

    def test_a_certificate_is_fetched_once_and_only_a_few_are_kept(self, serve: Serve, fetches: Fetches) -> None:
        ingress = serve(SETTINGS)
        for _ in range(3):
            ingress.post(self.request(SETTINGS))
        assert fetches.urls == [SNS.certificate_url]
        for each in range(MOST_CERTIFICATES):
            other = replace(SNS, certificate_url=f"{HOST}/SimpleNotificationService-{each}.pem")
            fetches.pages[other.certificate_url] = SNS.certificate
            assert ingress.post(other.notification(received(LETTER))).status_code == 200
        ingress.post(self.request(SETTINGS))
        assert fetches.urls.count(SNS.certificate_url) == 2, "the oldest made room"

    @pytest.mark.parametrize("topics", ["''", "[]", "[' ']", "5"])
    def test_topics_takes_at_least_one(self, serve: Serve, topics: str) -> None:
        with pytest.raises(SettingsError, match=r"providers\.ses\.topics is"):
            serve(f"[providers.ses]\ntopics = {topics}")

    def test_a_notification_over_the_limit_of_sns_is_refused(self, serve: Serve) -> None:
        ingress = serve(SETTINGS)
        too_long, long = (replace(LETTER, text="x" * size, html="", enclosures=()) for size in (2_100_000, 200_000))
        self.assert_unauthorized(ingress, ingress.post(self.request(SETTINGS, too_long)))
        assert ingress.post(self.request(SETTINGS, long)).status_code == 200

    # The handshake

    def test_a_subscription_is_confirmed(self, serve: Serve, fetches: Fetches) -> None:
        request = SNS.confirmation()
        url = json.loads(request.body)["SubscribeURL"]
        fetches.pages[url] = b"<ConfirmSubscriptionResponse/>"
        ingress = serve(SETTINGS)
        answer = ingress.post(request)
        assert (answer.status_code, answer.get_json()["status"]) == (200, "no_email")
        assert fetches.urls == [SNS.certificate_url, url]
        assert (ingress.recorded, ingress.delivered) == ([], [])

    def test_a_failed_confirmation_is_retried(self, serve: Serve) -> None:
        assert serve(SETTINGS).post(SNS.confirmation()).status_code == 503

    @pytest.mark.parametrize("topic", ["inbound", "arn:aws:sqs:eu-west-1:123456789012:inbound", f"{TOPIC}\\n"])
    def test_topics_takes_arns_of_sns(self, serve: Serve, topic: str) -> None:
        with pytest.raises(SettingsError, match=r"providers\.ses\.topics must be ARNs such as .*, got '"):
            serve(f'[providers.ses]\ntopics = "{topic}"')

    @pytest.mark.parametrize(
        "url",
        [
            "https://evil.example/",
            "http://sns.eu-west-1.amazonaws.com/",
            "https://sns.s3.amazonaws.com/",
            "https://sns.eu-west-1.amazonaws.com",
            "https://sns.us-east-1.amazonaws.com/?Action=ConfirmSubscription",
            "",
        ],
    )
    def test_it_is_confirmed_at_sns_itself_or_not_at_all(self, serve: Serve, fetches: Fetches, url: str) -> None:
        fetches.pages[url] = b"ok"
        assert serve(SETTINGS).post(SNS.confirmation(SubscribeURL=url)).status_code == 400
        assert fetches.urls == [SNS.certificate_url]

    def test_a_forged_confirmation_is_not_followed(self, serve: Serve, fetches: Fetches) -> None:
        ingress = serve(SETTINGS)
        self.assert_unauthorized(ingress, ingress.post(FORGER.confirmation()))
        assert fetches.urls == [SNS.certificate_url]

    def test_the_end_of_a_subscription_is_noted(
        self, serve: Serve, fetches: Fetches, caplog: pytest.LogCaptureFixture
    ) -> None:
        answer = serve(SETTINGS).post(SNS.confirmation("UnsubscribeConfirmation"))
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
    def test_a_notification_without_the_email_is_rejected_and_logged(
        self, serve: Serve, caplog: pytest.LogCaptureFixture, content: Any
    ) -> None:
        """As other actions send it: nobody would ever see that email."""
        answer = serve(SETTINGS).post(SNS.notification(received(LETTER) | {"content": content}))
        assert (answer.status_code, answer.get_json()["field"]) == (400, "content")
        assert "Publish to Amazon SNS topic" in answer.get_json()["error"]
        assert LETTER.event_id in caplog.text
        assert any(record.levelname == "ERROR" for record in caplog.records)

    @pytest.mark.parametrize("kind", ["Bounce", "Complaint", "Delivery", "AmazonSnsSubscriptionSucceeded"])
    def test_other_notifications_are_answered_200_and_ignored(self, serve: Serve, kind: str) -> None:
        ingress = serve(SETTINGS)
        answer = ingress.post(SNS.notification({"notificationType": kind, "message": "x"}))
        assert (answer.status_code, answer.get_json()["status"]) == (200, "no_email")
        assert ingress.recorded == []

    @pytest.mark.parametrize("odd", [None, 5, [], {"recipients": 5}, {"spamVerdict": "PASS"}, {"messageId": 5}])
    @pytest.mark.parametrize("field", ["mail", "receipt"])
    def test_invalid_optional_parts_do_not_reject_the_email(self, serve: Serve, field: str, odd: Any) -> None:
        assert serve(SETTINGS).post(SNS.notification(received(LETTER) | {field: odd})).status_code == 200


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

    def test_the_email_is_fetched_from_its_bucket(self, serve: Serve) -> None:
        ingress = serve(self.settings)
        assert [ingress.status_of(self.request()) for _ in range(2)] == ["processed", "already_processed"]
        (payload,) = ingress.delivered
        assert payload["subject"] == LETTER.subject
        assert payload["recipients"] == ["inbox@in.example.com", "in-bcc@in.example.com", "bob@example.org"]
        assert [each["name"] for each in payload["attachments"]] == ["liste.csv", "photo.png"]
        assert payload["spam"]["virusVerdict"] == "PASS"

    def test_by_the_topic_as_well_it_is_the_same_email(self, serve: Serve) -> None:
        ingress = serve(self.settings)
        requests = [self.request(), SNS.notification(received(LETTER))]
        assert [ingress.status_of(each) for each in requests] == ["processed", "already_processed"]

    def test_a_missing_object_is_rejected_and_logged(self, serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
        ingress = serve(self.settings)
        answer = ingress.post(self.request(key="inbox/gone"))
        assert (answer.status_code, answer.get_json()["status"]) == (400, "invalid")
        assert "not in S3" in answer.get_json()["error"]
        assert any(record.levelname == "ERROR" and LETTER.event_id in record.message for record in caplog.records)
        assert ingress.recorded == []

    def test_an_email_over_the_limit_of_requests_is_too_big_here_too(self, serve: Serve) -> None:
        size_mb = len(LETTER.mime.as_bytes()) / 1024 / 1024
        assert serve(self.settings, max_body_mb=size_mb + 0.001).post(self.request()).status_code == 200
        answer = serve(self.settings, max_body_mb=size_mb - 0.00001).post(self.request())
        assert answer.status_code == 400
        assert "larger than" in answer.get_json()["error"]

    @pytest.mark.parametrize(("status", "code"), [(403, "AccessDenied"), (503, "SlowDown")])
    def test_while_s3_is_away_a_retry_is_requested(
        self,
        serve: Serve,
        server: S3Server,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
        status: int,
        code: str,
    ) -> None:
        with s3_that_answers(*s3_error(status, code)) as url:
            aim_at(url, monkeypatch)
            answer = serve(self.settings).post(self.request())
        assert (answer.status_code, answer.get_json()["status"]) == (503, "retry_later")
        assert code in caplog.text
        assert LETTER.event_id in caplog.text
        aim_at(server.url, monkeypatch)
        assert serve(self.settings).status_of(self.request()) == "processed"

    @pytest.mark.parametrize("buckets", ["", "buckets = 'other-emails'"])
    def test_an_unlisted_bucket_is_not_read_and_the_setting_is_named(
        self, serve: Serve, caplog: pytest.LogCaptureFixture, buckets: str
    ) -> None:
        """For the hour that SNS tries, the setting can still be mended."""
        ingress = serve(f"{SETTINGS}\n{buckets}")
        assert ingress.post(self.request()).status_code == 503
        assert "[providers.ses] buckets" in caplog.text

    @pytest.mark.parametrize(
        "action", [None, 5, {}, {"type": "S3"}, {"type": "Lambda"}, {"type": "S3", "objectKey": 5}]
    )
    def test_an_action_that_says_nothing_of_an_object_is_rejected(self, serve: Serve, action: Any) -> None:
        notification = in_s3(LETTER, BUCKET, "x")
        notification["receipt"]["action"] = action
        answer = serve(self.settings).post(SNS.notification(notification))
        assert (answer.status_code, answer.get_json()["field"]) == (400, "content")

    def test_without_the_extra_the_start_fails_and_names_it(
        self, serve: Serve, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "boto3", None)
        monkeypatch.delitem(sys.modules, "orchestrator.delivery.s3", raising=False)
        with pytest.raises(
            SettingsError, match=r"providers\.ses\.buckets takes the extra ses: \.venv/bin/pip install"
        ) as raised:
            serve(self.settings)
        assert "\n" not in str(raised.value)
        assert serve(SETTINGS).status_of(SNS.notification(received(LETTER))) == "processed", "needed for S3 only"
