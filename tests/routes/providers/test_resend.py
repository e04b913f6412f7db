"""POST /api/ingress/resend."""

import base64
import hashlib
import hmac
import json
from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from standardwebhooks import Webhook

from orchestrator.delivery.signing import new_secret
from routes.auth import Unauthorized
from routes.providers.samples import SampleRequest
from tests.routes.providers.conftest import LETTER, NOW, Fetches, Serve, email_in, provider_of, request_of, with_headers
from tests.routes.providers.contract import DOCUMENTED, DocumentedContract, TimedContract

SECRET, OTHER_SECRET = (f"whsec_{base64.b64encode(bytes([each]) * 24).decode()}" for each in (1, 2))
WITHOUT_KEY = f"[providers.resend]\nsecret = '{SECRET}'"
WITH_KEY = f"{WITHOUT_KEY}\napi_key = 're_123456789'"
API_URL = f"https://api.resend.com/emails/receiving/{LETTER.event_id}?html_format=cid"
RAW_URL = "https://inbound-cdn.resend.com/raw/email?signature=sig-123"

# As in https://resend.com/docs/api-reference/emails/retrieve-received-email
STORED: dict[str, Any] = json.loads((DOCUMENTED / "resend.json").read_text())


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


class TestResend(DocumentedContract, TimedContract):
    """Without an API key: metadata only, the email's own date not among them."""

    name = "resend"
    fresh_for = timedelta(minutes=5)
    settings = WITHOUT_KEY
    other_secret = f"[providers.resend]\nsecret = '{OTHER_SECRET}'"
    rotated = f"[providers.resend]\nsecret = ['{OTHER_SECRET}', '{SECRET}']"
    invalid = {
        "[providers.resend]\napi_key = 're_123456789'": r"providers\.resend\.secret is required",
        "[providers.resend]\nsecret = ''": r"providers\.resend\.secret must not be empty",
        **{
            f"[providers.resend]\nsecret = '{each}'": r"\.secret must be a Standard Webhooks secret"
            for each in ("whsec_", "whsec_!!!!", "not base 64", new_secret(is_private=True))
        },
    }

    def without_proof(self, request: SampleRequest) -> SampleRequest:
        return with_headers(request, svix_signature=None)

    def with_proof_of(self, body: bytes) -> SampleRequest:
        return signed(body)

    def documented(self, **changes: Any) -> SampleRequest:
        return self.request(self.settings)

    # The proof

    def test_the_reference_librarys_signature_is_accepted_alone_or_beside_others(self) -> None:
        provider = provider_of(self.settings, self.name)
        for prefix in ("svix", "webhook"):
            request = signed(self.request(self.settings).body, prefix=prefix)
            good = Webhook(SECRET).sign("msg_1", NOW, request.body.decode())
            for signatures in (good, f"v1,AAAA {good}", f"v1a,{good} {good}"):
                headers = {**request.headers, f"{prefix}-signature": signatures}
                assert email_in(provider, replace(request, headers=headers)).sender

    def test_every_part_of_the_proof_counts(self) -> None:
        request = self.request(self.settings)
        bare = request.headers["svix-signature"].removeprefix("v1,")
        wrong: dict[str, list[str | None]] = {
            "svix_signature": [f"v2,{bare}", bare, "", ", , v1, v1,"],
            "svix_id": ["msg_2", None],
            "svix_timestamp": [None, "x", "\xb2"],
        }
        for name, values in wrong.items():
            for value in values:
                with pytest.raises(Unauthorized):
                    self.read(with_headers(request, **{name: value}))

    # What it reads

    def ignored(self) -> Iterable[SampleRequest]:
        kinds = ("email.delivered", "email.bounced", "contact.created")
        return [signed(json.dumps({"type": kind, "data": {"email_id": "x"}}).encode()) for kind in kinds]

    def invalid_requests(self) -> Iterable[tuple[SampleRequest, str | None]]:
        """An event without its email."""
        named: list[tuple[Any, str | None]] = [
            (None, None),
            (5, None),
            ([], None),
            ({}, "data.email_id"),
            ({"email_id": ""}, "data.email_id"),
            ({"email_id": 5}, "email_id"),
            ({"email_id": "x"}, None),
        ]
        events = [({"type": "email.received", "data": data}, field) for data, field in named]
        return [(signed(json.dumps(event).encode()), field) for event, field in events]


class TestResendWithAnApiKey:
    def stored(self, fetches: Fetches, **changes: Any) -> None:
        fetches.pages = {API_URL: json.dumps(STORED | changes).encode()}

    @pytest.mark.parametrize(
        "url",
        [
            None,
            "http://inbound-cdn.resend.com/x",
            "https://evil.example/x",
            "https://cdn.resend.com.evil.example/x",
            "https://cdn.resend.com@evil.example/x",
            "https://evil.example/.resend.com/x",
            "https://notresend.com/x",
            "https://[",
        ],
    )
    def test_without_a_raw_email_the_parsed_fields_are_used(self, fetches: Fetches, url: str | None) -> None:
        self.stored(fetches, raw={"download_url": url})
        email = email_in(provider_of(WITH_KEY, "resend", fetches), request_of(WITH_KEY, "resend"))
        assert (email.sender, email.date) == (LETTER.sender, LETTER.date)
        assert (email.body, email.plain) == (LETTER.html, LETTER.text)
        assert (email.to, email.cc) == (("inbox@in.example.com",), ("carla@example.org",))
        assert [(each.name, each.size_bytes) for each in email.attachments] == [("liste.csv", 8)]
        assert email.in_reply_to == email.thread == "earlier@example.org"
        assert fetches.urls == [API_URL], "the API key goes nowhere else"

    def test_without_its_api_a_retry_is_asked(
        self, serve: Serve, fetches: Fetches, caplog: pytest.LogCaptureFixture
    ) -> None:
        fetches.pages = {}
        ingress = serve(WITH_KEY)
        answer = ingress.post(request_of(WITH_KEY, "resend"))
        assert (answer.status_code, answer.get_json()["status"]) == (503, "retry_later")
        assert "nobody is there" in caplog.text
        self.stored(fetches)
        assert ingress.status_of(request_of(WITH_KEY, "resend")) == "processed"

    def test_an_email_over_max_body_mb_is_rejected(self, serve: Serve, fetches: Fetches) -> None:
        self.stored(fetches, raw={"download_url": RAW_URL})
        fetches.pages[RAW_URL] = LETTER.mime.as_bytes()
        size_mb = len(fetches.pages[RAW_URL]) / 1024 / 1024
        statuses = [
            serve(WITH_KEY, max_body_mb=most_mb).status_of(request_of(WITH_KEY, "resend"))
            for most_mb in (size_mb - 0.00001, size_mb + 0.00001)
        ]
        assert statuses == ["invalid", "processed"]

    def test_an_id_that_is_an_address_stays_within_the_api(self, serve: Serve, fetches: Fetches) -> None:
        event = {"type": "email.received", "data": {"email_id": "../../domains?x=@evil.example/"}}
        fetches.pages = {}
        serve(WITH_KEY).post(signed(json.dumps(event).encode()))
        assert fetches.urls == [
            "https://api.resend.com/emails/receiving/..%2F..%2Fdomains%3Fx%3D%40evil.example%2F?html_format=cid"
        ]
