"""POST /api/ingress/ses: Amazon SES by way of SNS. Signatures and certificates are tested in test_sns.py."""

import base64
import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, ClassVar

import pytest

from orchestrator.config.settings import SettingsError
from routes.providers.samples import Letter, SampleRequest
from tests.routes.providers.conftest import LETTER, Fetches, Serve, email_in, provider_of, with_body
from tests.routes.providers.contract import DocumentedContract
from tests.routes.providers.sns_stand_in import HOST, TOPIC, Sns, in_s3, received
from tests.routes.providers.test_mime import LATIN_1
from tests.support.s3_server import BUCKET, S3Server, aim_at, s3_error, s3_server, s3_that_answers

SETTINGS = f"[providers.ses]\ntopics = ['{TOPIC}']"
STRANGER_TOPIC = "arn:aws:sns:eu-west-1:999999999999:inbound"
SNS, NEXT_SNS = Sns(), Sns(f"{HOST}/SimpleNotificationService-fedcba9876543210.pem")
FORGER = Sns()  # under the address of the real one, but with another key


class TestSes(DocumentedContract):
    """Its secret is SNS's; what rotates is the certificate."""

    name = "ses"
    settings = SETTINGS
    leaves_files_on_disk = False  # a message of SNS has at most 2 MB
    other_secret = "forged"
    invalid = {
        "[providers.ses]": r"providers\.ses\.topics is required",
        **{f"[providers.ses]\ntopics = {each}": r"ses\.topics must not be empty" for each in ("''", "[]", "[' ']")},
        "[providers.ses]\ntopics = 5": r"providers\.ses\.topics must be a text, or a list of texts",
        **{
            f'[providers.ses]\ntopics = "{each}"': r"providers\.ses\.topics must be ARNs such as .*, got '"
            for each in ("inbound", "arn:aws:sqs:eu-west-1:123456789012:inbound", f"{TOPIC}\\n")
        },
    }
    wrong_content_type = 200  # SNS sends its JSON as text/plain: the Content-Type does not count
    optional = ("mail", "receipt")
    signers: ClassVar[dict[str, Sns]] = {SETTINGS: SNS, "forged": FORGER}

    @pytest.fixture(autouse=True)
    def fetches(self, fetches: Fetches) -> Fetches:
        for each in (SNS, NEXT_SNS):
            fetches.pages[each.certificate_url] = each.certificate
        return fetches

    def request(self, settings: str, letter: Letter = LETTER) -> SampleRequest:
        return self.signers[settings].notification(received(letter))

    def without_proof(self, request: SampleRequest) -> SampleRequest:
        return with_body(request, json.dumps(json.loads(request.body) | {"Signature": ""}).encode())

    def with_proof_of(self, body: bytes) -> SampleRequest:
        return SNS.notification(body.decode("latin-1"))

    def words(self) -> bytes:
        return json.dumps(received(LETTER)).encode()

    def documented(self, **changes: Any) -> SampleRequest:
        return SNS.notification(received(LETTER) | changes)

    def ignored(self) -> Iterable[SampleRequest]:
        kinds = ("Bounce", "Complaint", "Delivery", "AmazonSnsSubscriptionSucceeded")
        return [SNS.notification({"notificationType": kind, "message": "x"}) for kind in kinds]

    def invalid_requests(self) -> Iterable[tuple[SampleRequest, str | None]]:
        """Notifications without the email, whose action names no object either."""
        actions: list[Any] = [None, 5, {}, {"type": "S3"}, {"type": "Lambda"}, {"type": "S3", "objectKey": 5}]
        without = [self.documented(content=content) for content in (None, "", 5)]
        without += [self.documented(content=None, receipt={"action": action}) for action in actions]
        return [(request, None) for request in without]

    def test_both_secrets_of_a_rotation_are_accepted(self, serve: Serve) -> None:  # type: ignore[override]
        ingress = serve(SETTINGS)
        requests = [each.notification(received(LETTER)) for each in (SNS, NEXT_SNS)]
        assert [ingress.post(each).status_code for each in requests] == [200, 200]

    def test_an_unknown_topic_is_refused_before_anything_is_fetched(self, serve: Serve, fetches: Fetches) -> None:
        """Anybody may subscribe our address to a topic of theirs, and SNS signs for them as it does for us."""
        ingress = serve(SETTINGS)
        for request in (
            SNS.notification(received(LETTER), TopicArn=STRANGER_TOPIC),
            SNS.confirmation(TopicArn=STRANGER_TOPIC),
        ):
            self.assert_unauthorized(ingress, ingress.post(request))
        assert fetches.asked == []

    def test_while_the_certificate_is_unreachable_a_retry_is_requested(
        self, serve: Serve, fetches: Fetches, caplog: pytest.LogCaptureFixture
    ) -> None:
        fetches.pages = {}
        ingress = serve(SETTINGS)
        answer = ingress.post(self.request(SETTINGS))
        assert (answer.status_code, answer.get_json()["status"]) == (503, "retry_later")
        assert "nobody is there" in caplog.text
        assert ingress.recorded == []

    def test_a_notification_over_the_limit_of_sns_is_refused(self, serve: Serve) -> None:
        ingress = serve(SETTINGS)
        too_long, long = (replace(LETTER, text="x" * size, html="", enclosures=()) for size in (2_100_000, 200_000))
        self.assert_unauthorized(ingress, ingress.post(self.request(SETTINGS, too_long)))
        assert ingress.post(self.request(SETTINGS, long)).status_code == 200

    # The handshake

    def test_a_subscription_is_confirmed_and_retried_until_then(self, serve: Serve, fetches: Fetches) -> None:
        request, ingress = SNS.confirmation(), serve(SETTINGS)
        assert ingress.post(request).status_code == 503
        url = json.loads(request.body)["SubscribeURL"]
        fetches.pages[url] = b"<ConfirmSubscriptionResponse/>"
        self.assert_ignored(ingress, request)
        assert fetches.urls == [SNS.certificate_url, url, url]

    def test_it_is_confirmed_at_sns_itself_or_not_at_all(self, serve: Serve, fetches: Fetches) -> None:
        ingress = serve(SETTINGS)
        for url in (
            "https://evil.example/",
            "http://sns.eu-west-1.amazonaws.com/",
            "https://sns.s3.amazonaws.com/",
            "https://sns.eu-west-1.amazonaws.com",
            "https://sns.us-east-1.amazonaws.com/?Action=ConfirmSubscription",
            "",
        ):
            fetches.pages[url] = b"ok"
            assert ingress.post(SNS.confirmation(SubscribeURL=url)).status_code == 400
        self.assert_unauthorized(ingress, ingress.post(FORGER.confirmation()))
        assert fetches.urls == [SNS.certificate_url]

    def test_the_end_of_a_subscription_is_noted(
        self, serve: Serve, fetches: Fetches, caplog: pytest.LogCaptureFixture
    ) -> None:
        self.assert_ignored(serve(SETTINGS), SNS.confirmation("UnsubscribeConfirmation"))
        assert TOPIC in caplog.text
        assert fetches.urls == [SNS.certificate_url], "its SubscribeURL would subscribe us again"

    # What it reads

    def test_in_base64_every_byte_comes_through(self, fetches: Fetches) -> None:
        notification = received(LETTER) | {"content": base64.encodebytes(LATIN_1).decode()}
        email = email_in(provider_of(SETTINGS, "ses", fetches), SNS.notification(notification))
        assert (email.clean_subject, email.text) == ("Déjà vu", "Ça va été")

    def test_a_notification_without_the_email_is_logged_with_what_the_rule_must_have(
        self, serve: Serve, caplog: pytest.LogCaptureFixture
    ) -> None:
        """As other actions send it: nobody would ever see that email."""
        answer = serve(SETTINGS).post(self.documented(content=None))
        assert "Publish to Amazon SNS topic" in answer.get_json()["error"]
        assert f"rejected for good: SES {LETTER.event_id}" in caplog.text


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
        by_the_topic_as_well = SNS.notification(received(LETTER))
        requests = [self.request(), self.request(), by_the_topic_as_well]
        assert [ingress.status_of(each) for each in requests] == ["processed", *["already_processed"] * 2]
        (payload,) = ingress.delivered
        assert payload["subject"] == LETTER.subject
        assert payload["recipients"] == ["inbox@in.example.com", "in-bcc@in.example.com", "bob@example.org"]
        assert [each["name"] for each in payload["attachments"]] == ["liste.csv", "photo.png"]
        assert payload["spam"]["virusVerdict"] == "PASS"

    def test_a_missing_object_is_rejected_and_logged(self, serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
        ingress = serve(self.settings)
        answer = ingress.post(self.request(key="inbox/gone"))
        assert (answer.status_code, answer.get_json()["status"]) == (400, "invalid")
        assert "not in S3" in answer.get_json()["error"]
        assert f"rejected for good: SES {LETTER.event_id}" in caplog.text
        assert ingress.recorded == []

    def test_an_email_over_the_limit_of_requests_is_too_big_here_too(self, serve: Serve) -> None:
        size_mb = len(LETTER.mime.as_bytes()) / 1024 / 1024
        assert serve(self.settings, max_body_mb=size_mb + 0.001).post(self.request()).status_code == 200
        answer = serve(self.settings, max_body_mb=size_mb - 0.00001).post(self.request())
        assert answer.status_code == 400
        assert "larger than" in answer.get_json()["error"]

    def test_while_s3_is_away_a_retry_is_requested(
        self, serve: Serve, server: S3Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        for status, code in ((403, "AccessDenied"), (503, "SlowDown")):
            caplog.clear()
            with s3_that_answers(*s3_error(status, code)) as url:
                aim_at(url, monkeypatch)
                answer = serve(self.settings).post(self.request())
            assert (answer.status_code, answer.get_json()["status"]) == (503, "retry_later")
            assert code in caplog.text and LETTER.event_id in caplog.text
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

    def test_without_the_extra_the_start_fails_and_names_it(
        self, serve: Serve, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "boto3", None)
        monkeypatch.delitem(sys.modules, "orchestrator.delivery.s3", raising=False)
        complaint = r"providers\.ses\.buckets needs the extra ses: \.venv/bin/pip install"
        with pytest.raises(SettingsError, match=complaint) as raised:
            serve(self.settings)
        assert "\n" not in str(raised.value)
        assert serve(SETTINGS).status_of(SNS.notification(received(LETTER))) == "processed", "needed for S3 only"
