"""POST /api/ingress/resend."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from dataclasses import replace
from datetime import timedelta
from typing import Any, ClassVar

import pytest
from standardwebhooks import Webhook

from orchestrator.config.settings import SettingsError
from routes.providers.samples import Letter, SampleRequest
from tests.routes.providers.conftest import (
    LETTER,
    NOW,
    Fetches,
    Serve,
    email_in,
    provider_of,
    request_of,
    with_body,
    with_headers,
)
from tests.routes.providers.contract import ProviderContract

SECRET, OTHER_SECRET = (f"whsec_{base64.b64encode(bytes([each]) * 24).decode()}" for each in (1, 2))
WITHOUT_KEY = f"[providers.resend]\nsecret = '{SECRET}'"
WITH_KEY = f"{WITHOUT_KEY}\napi_key = 're_123456789'"
API_URL = f"https://api.resend.com/emails/receiving/{LETTER.event_id}?html_format=cid"
RAW_URL = "https://inbound-cdn.resend.com/raw/email?signature=sig-123"

# As in https://resend.com/docs/api-reference/emails/retrieve-received-email
STORED: dict[str, Any] = {
    "object": "email",
    "id": LETTER.event_id,
    "to": ["Inbox <inbox@in.example.com>"],
    "from": "Ada@Example.org",
    "created_at": "2026-11-16T09:29:00.674981+00:00",
    "subject": LETTER.subject,
    "html": LETTER.html,
    "text": LETTER.text,
    "bcc": [],
    "cc": ["carla@example.org"],
    "headers": {"date": LETTER.date, "from": LETTER.sender, "in-reply-to": "<earlier@example.org>"},
    "message_id": LETTER.message_id,
    "attachments": [{"id": "1", "filename": "liste.csv", "content_type": "text/csv", "size": 8}],
}


def signed(body: bytes, secret: str = SECRET, prefix: str = "svix") -> SampleRequest:
    """Under Svix's names of the headers or the standard's."""
    timestamp = str(int(NOW.timestamp()))
    message = f"msg_1.{timestamp}.".encode() + body
    key = base64.b64decode(secret.removeprefix("whsec_"))
    signature = base64.b64encode(hmac.new(key, message, hashlib.sha256).digest()).decode()
    headers = {
        "Content-Type": "application/json",
        f"{prefix}-id": "msg_1",
        f"{prefix}-timestamp": timestamp,
        f"{prefix}-signature": f"v1,{signature}",
    }
    return SampleRequest("/api/ingress/resend", headers, body)


class TestResend(ProviderContract):
    """Without an API key: metadata only, the email's own date not among them."""

    name = "resend"
    settings = WITHOUT_KEY
    other_secret = f"[providers.resend]\nsecret = '{OTHER_SECRET}'"
    rotated = f"[providers.resend]\nsecret = ['{OTHER_SECRET}', '{SECRET}']"
    without_secret = "[providers.resend]\napi_key = 're_123456789'"
    complaint = r"providers\.resend\.secret is needed"

    def without_proof(self, request: SampleRequest) -> SampleRequest:
        return with_headers(request, svix_signature=None)

    def with_proof_of(self, body: bytes) -> SampleRequest:
        return signed(body)

    def too_big(self, request: SampleRequest) -> SampleRequest:
        return self.with_proof_of(request.body + b" " * 11_000)

    # The proof

    @pytest.mark.parametrize("prefix", ["svix", "webhook"])
    def test_the_reference_librarys_signature_is_taken(self, serve: Serve, prefix: str) -> None:
        request = signed(self.request(self.settings).body, prefix=prefix)
        signature = Webhook(SECRET).sign("msg_1", NOW, request.body.decode())
        headers = {**request.headers, f"{prefix}-signature": signature}
        assert serve(self.settings).post(replace(request, headers=headers)).status_code == 200

    @pytest.mark.parametrize(
        ("changes", "http_status"),
        [
            ({"svix_signature": "v1,AAAA {good}"}, 200),
            ({"svix_signature": "v1a,{good} {good}"}, 200),
            ({"svix_signature": "v2,{bare}"}, 401),
            ({"svix_signature": "{bare}"}, 401),
            ({"svix_signature": ""}, 401),
            ({"svix_signature": ", , v1, v1,"}, 401),
            ({"svix_id": "msg_2"}, 401),
            ({"svix_id": None}, 401),
            ({"svix_timestamp": None}, 401),
            ({"svix_timestamp": "x"}, 401),
            ({"svix_timestamp": "\xb2"}, 401),
        ],
    )
    def test_every_part_of_the_proof_counts(
        self, serve: Serve, changes: dict[str, str | None], http_status: int
    ) -> None:
        request = self.request(self.settings)
        good = request.headers["svix-signature"]
        filled = {
            name: value and value.replace("{good}", good).replace("{bare}", good.removeprefix("v1,"))
            for name, value in changes.items()
        }
        assert serve(self.settings).post(with_headers(request, **filled)).status_code == http_status

    @pytest.mark.parametrize(("minutes", "http_status"), [(4, 200), (6, 401), (-4, 200), (-6, 401)])
    def test_a_signature_is_good_for_five_minutes(self, serve: Serve, minutes: int, http_status: int) -> None:
        ingress = serve(self.settings)
        request = request_of(self.settings, self.name, now=NOW - timedelta(minutes=minutes))
        assert ingress.post(request).status_code == http_status

    def test_a_changed_body_is_refused(self, serve: Serve) -> None:
        ingress = serve(self.settings)
        request = self.request(self.settings)
        self.assert_unauthorized(ingress, ingress.post(with_body(request, request.body.replace(b"456", b"457"))))

    @pytest.mark.parametrize("secret", ["whsec_", "whsec_!!!!", "", "not base 64"])
    def test_an_invalid_secret_stops_the_start(self, serve: Serve, secret: str) -> None:
        with pytest.raises(SettingsError, match=r"providers\.resend\.secret (takes the signing secret|is needed)"):
            serve(f"[providers.resend]\nsecret = '{secret}'")

    # What it reads

    def test_of_the_metadata_alone_no_date_is_made_up(self) -> None:
        email = email_in(provider_of(self.settings, self.name), self.request(self.settings))
        assert (email.date, email.body) == ("", "")
        assert (email.subject, email.sender) == (LETTER.subject, LETTER.sender)
        assert (email.message_id, email.event_id) == (LETTER.message_id, f"resend:{LETTER.event_id}")
        assert email.recipients == ("inbox@in.example.com", "bob@example.org")
        assert [each.name for each in email.attachments] == ["liste.csv", "photo.png"]

    @pytest.mark.parametrize("kind", ["email.delivered", "email.bounced", "contact.created"])
    def test_other_events_are_answered_200_and_ignored(self, serve: Serve, kind: str) -> None:
        ingress = serve(self.settings)
        answer = ingress.post(signed(json.dumps({"type": kind, "data": {"email_id": "x"}}).encode()))
        assert (answer.status_code, answer.get_json()["status"]) == (200, "no_email")
        assert (ingress.recorded, ingress.delivered) == ([], [])

    @pytest.mark.parametrize("data", [None, 5, {}, [], {"email_id": ""}, {"email_id": 5}, {"email_id": "x"}])
    def test_an_event_without_its_email_is_rejected(self, serve: Serve, data: Any) -> None:
        answer = serve(self.settings).post(signed(json.dumps({"type": "email.received", "data": data}).encode()))
        assert (answer.status_code, answer.get_json()["status"]) == (400, "invalid")


class TestResendWithAnApiKey(ProviderContract):
    name = "resend"
    settings = WITH_KEY
    other_secret = f"[providers.resend]\nsecret = '{OTHER_SECRET}'\napi_key = 're_123456789'"
    rotated = f"[providers.resend]\nsecret = ['{OTHER_SECRET}', '{SECRET}']\napi_key = 're_123456789'"
    without_secret = TestResend.without_secret
    complaint = TestResend.complaint
    without_proof = TestResend.without_proof
    with_proof_of = TestResend.with_proof_of
    too_big = TestResend.too_big
    letters: ClassVar[list[Letter]] = []

    @pytest.fixture
    def fetches(self, fetches: Fetches) -> Fetches:
        """Resend's API, with every email that ``request`` has told of."""

        class Api(dict[str, bytes]):
            def __contains__(self, url: object) -> bool:
                return str(url).startswith("https://api.resend.com/") or super().__contains__(url)

            def __missing__(self, url: str) -> bytes:
                letter = next(each for each in TestResendWithAnApiKey.letters if each.event_id in url)
                self[RAW_URL] = letter.mime.as_bytes()
                return json.dumps(STORED | {"raw": {"download_url": RAW_URL}}).encode()

        fetches.pages = Api()
        return fetches

    def request(self, settings: str, letter: Letter = LETTER) -> SampleRequest:
        self.letters.append(letter)
        return request_of(settings, self.name, letter)

    def stored(self, fetches: Fetches, **changes: Any) -> None:
        fetches.pages = {API_URL: json.dumps(STORED | changes).encode()}

    def test_the_email_itself_is_fetched_as_it_came_in(self, serve: Serve, fetches: Fetches) -> None:
        self.stored(fetches, raw={"download_url": RAW_URL, "expires_at": "2026-11-16T10:29:00Z"})
        fetches.pages[RAW_URL] = LETTER.mime.as_bytes()
        ingress = serve(WITH_KEY)
        assert ingress.post(self.request(WITH_KEY)).status_code == 200
        (payload,) = ingress.delivered
        assert (payload["date"], payload["body"].strip()) == (LETTER.date, LETTER.html.strip())
        assert payload["recipients"] == ["inbox@in.example.com", "carla@example.org", "bob@example.org"]
        assert [each["size_bytes"] for each in payload["attachments"]] == [8, 1024]
        assert fetches.asked == [(API_URL, {"Authorization": "Bearer re_123456789"}), (RAW_URL, {})]

    @pytest.mark.parametrize(
        "raw",
        [
            None,
            5,
            {},
            {"download_url": None},
            {"download_url": "http://inbound-cdn.resend.com/x"},
            {"download_url": "https://evil.example/x"},
            {"download_url": "https://cdn.resend.com.evil.example/x"},
            {"download_url": "https://notresend.com/x"},
            {"download_url": "https://["},
        ],
    )
    def test_without_a_raw_email_at_its_own_address_its_reading_of_it_is_taken(
        self, fetches: Fetches, raw: Any
    ) -> None:
        self.stored(fetches, raw=raw)
        email = email_in(provider_of(WITH_KEY, self.name, fetches), self.request(WITH_KEY))
        assert (email.sender, email.date) == (LETTER.sender, LETTER.date)
        assert (email.body, email.plain) == (LETTER.html, LETTER.text)
        assert email.recipients == ("inbox@in.example.com", "carla@example.org")
        assert [(each.name, each.size_bytes) for each in email.attachments] == [("liste.csv", 8)]
        assert email.extra == {"in_reply_to": "<earlier@example.org>"}
        assert fetches.urls == [API_URL], "the API key goes nowhere else"

    def test_while_its_api_is_away_a_retry_is_requested(
        self, serve: Serve, fetches: Fetches, caplog: pytest.LogCaptureFixture
    ) -> None:
        fetches.pages = {}
        ingress = serve(WITH_KEY)
        answer = ingress.post(self.request(WITH_KEY))
        assert (answer.status_code, answer.get_json()["status"]) == (503, "retry_later")
        assert "nobody is there" in caplog.text
        self.stored(fetches)
        assert ingress.status_of(self.request(WITH_KEY)) == "processed"

    def test_an_unauthenticated_request_causes_no_fetch(self, serve: Serve, fetches: Fetches) -> None:
        ingress = serve(WITH_KEY)
        self.assert_unauthorized(ingress, ingress.post(self.request(self.other_secret)))
        assert fetches.asked == []

    def test_an_id_that_is_an_address_stays_within_the_api(self, serve: Serve, fetches: Fetches) -> None:
        event = {"type": "email.received", "data": {"email_id": "../../domains?x=@evil.example/"}}
        fetches.pages = {}
        serve(WITH_KEY).post(signed(json.dumps(event).encode()))
        assert fetches.urls == [
            "https://api.resend.com/emails/receiving/..%2F..%2Fdomains%3Fx%3D%40evil.example%2F?html_format=cid"
        ]
