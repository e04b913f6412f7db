"""POST /api/ingress/mailgun and /api/ingress/mailgun/mime."""

from __future__ import annotations

import hashlib
import hmac
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from hashlib import sha256
from typing import Any
from urllib.parse import urlencode

import pytest

from deduplication.journal.coordinator import Claimed
from deduplication.journal.entry import DeliveryStatus
from orchestrator.config.settings import SettingsError
from orchestrator.item import email_item
from routes.providers.base import ProviderRequest
from routes.providers.samples import Letter, SampleRequest
from tests.routes.providers.conftest import (
    LETTER,
    NOW,
    Ingress,
    Serve,
    email_in,
    provider_of,
    request_of,
    with_body,
)
from tests.routes.providers.contract import ProviderContract
from tests.support.redis_server import RedisServer

KEY = "key-3ax6xnjp29jd6fds4gc373sgvjxteol0"
OTHER_KEY = "key-another"
PLAIN_LETTER = replace(LETTER, enclosures=())


def signed(fields: dict[str, str], token: str = "a" * 50, key: str = KEY) -> dict[str, str]:
    timestamp = str(int(NOW.timestamp()))
    signature = hmac.new(key.encode(), f"{timestamp}{token}".encode(), hashlib.sha256).hexdigest()
    return fields | {"timestamp": timestamp, "token": token, "signature": signature}


def form(fields: dict[str, str]) -> SampleRequest:
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    return SampleRequest("/api/ingress/mailgun", headers, urlencode(fields).encode())


def part(disposition: str, value: str = "") -> bytes:
    return f"--b\r\nContent-Disposition: form-data; {disposition}\r\n\r\n{value}\r\n".encode()


# As in https://documentation.mailgun.com/docs/mailgun/user-manual/receive-forward-store/receive-http
DOCUMENTED = {
    "recipient": "test@inbound.example.com",
    "sender": "envelope-from@example.org",
    "from": "Displayed From <from+test@example.org>",
    "subject": "Test subject",
    "message-headers": json.dumps(
        [
            ["X-Mailgun-Spf", "Pass"],
            ["X-Mailgun-Dkim-Check-Result", "Pass"],
            ["X-Mailgun-Sscore", "1.7"],
            ["X-Mailgun-Sflag", "No"],
            ["Received", "from mail.example.org by mxa.mailgun.org"],
            ["Received", "by mail.example.org for <test@inbound.example.com>"],
            ["From", '"Displayed From" <from+test@example.org>'],
            ["Date", "Wed, 11 Oct 2017 18:31:04 -0700"],
            ["Message-Id", "<CAEPk3R+4Zr@mail.example.org>"],
            ["Subject", "=?utf-8?q?Test_subject_=C3=A9?="],
            ["To", '"Test, Inbound" <test@inbound.example.com>, other@example.com'],
            ["Cc", "cc@example.com"],
        ]
    ),
    "body-plain": "Test body plain é",
    "body-html": "<div>Test body html é</div>",
    "stripped-text": "stripped plaintext body",
}


class TestMailgun(ProviderContract):
    name = "mailgun"
    settings = f"[providers.mailgun]\nsigning_key = '{KEY}'"
    other_secret = f"[providers.mailgun]\nsigning_key = '{OTHER_KEY}'"
    rotated = f"[providers.mailgun]\nsigning_key = ['{OTHER_KEY}', '{KEY}']"
    without_secret = "[providers.mailgun]"
    complaint = r"providers\.mailgun\.signing_key is needed"
    rejected = 406
    proof_is_in_the_body = True

    def without_proof(self, request: SampleRequest) -> SampleRequest:
        return with_body(request, request.body.replace(b'"signature"', b'"other"'))

    def with_proof_of(self, body: bytes) -> SampleRequest:
        return form(signed({"message-headers": body.decode("latin-1")}))

    # What it reads

    def test_the_documented_email_is_parsed(self) -> None:
        email = email_in(provider_of(self.settings, self.name), form(signed(DOCUMENTED)))
        assert email.clean_subject == "Test subject é"
        assert email.sender == '"Displayed From" <from+test@example.org>'
        assert email.date == "Wed, 11 Oct 2017 18:31:04 -0700"
        assert email.message_id == "<CAEPk3R+4Zr@mail.example.org>"
        assert (email.body, email.plain) == ("<div>Test body html é</div>", "Test body plain é")
        assert email.recipients == ("test@inbound.example.com", "other@example.com", "cc@example.com")
        assert email.spam == {
            "X-Mailgun-Sflag": "No",
            "X-Mailgun-Sscore": "1.7",
            "X-Mailgun-Spf": "Pass",
            "X-Mailgun-Dkim-Check-Result": "Pass",
        }

    @pytest.mark.parametrize("between", ["", "\n", "<br>"])
    def test_html_in_several_parts_is_one_text_parsed_and_raw(self, between: str) -> None:
        pieces = [f"<html><head><title>no</title></head><body>Lot {each}</body></html>" for each in (1, 2)]
        head = "".join(f"{name}: {value}\r\n" for name, value in json.loads(DOCUMENTED["message-headers"]))
        parts = [f"Content-Type: text/html\r\n\r\n{each}\r\n" for each in pieces]
        parts.insert(1, "Content-Type: application/pdf; name=a.pdf\r\n\r\n%PDF\r\n")
        raw = f"{head}Content-Type: multipart/mixed; boundary=x\r\n\r\n--x\r\n" + "--x\r\n".join(parts) + "--x--"
        fields = {name: value for name, value in DOCUMENTED.items() if name != "body-plain"}
        parsed = signed(fields | {"body-html": between.join(pieces)}, token="b" * 50)
        provider = provider_of(self.settings, self.name)
        emails = [email_in(provider, form(each)) for each in (signed({"body-mime": raw}), parsed)]
        assert [email.text for email in emails] == ["Lot 1 Lot 2"] * 2

    def test_attachments_are_described(self) -> None:
        request = self.request(self.settings)
        assert request.headers["Content-Type"].startswith("multipart/form-data")
        email = email_in(provider_of(self.settings, self.name), request)
        assert [(each.name, each.content_type, each.size_bytes) for each in email.attachments] == [
            ("liste.csv", "text/csv", 8),
            ("photo.png", "image/png", 1024),
        ]
        assert email.attachments[1].sha256 == sha256(LETTER.enclosures[1].content).hexdigest()

    def test_a_file_name_that_is_not_utf_8_does_not_reject_the_email(self, serve: Serve) -> None:
        request = self.request(self.settings)
        request = with_body(request, request.body.replace(b"liste.csv", b"\xe9t\xe9.csv"))
        ingress = serve(self.settings)
        assert ingress.post(request).status_code == 200
        assert ingress.delivered[0]["attachments"][0]["name"] == "\ufffdt\ufffd.csv"

    @pytest.mark.parametrize("path", ["/api/ingress/mailgun/mime", "/api/ingress/mailgun"])
    def test_the_raw_email_is_taken_as_it_is(self, serve: Serve, path: str) -> None:
        raw = LETTER.mime.as_bytes().replace(b"iso-8859-1", b"utf-8")
        fields = {"recipient": "inbox@in.example.com", "body-mime": raw.decode("latin-1")}
        request = replace(form({}), path=path, body=urlencode(signed(fields), encoding="latin-1").encode())
        ingress = serve(self.settings)
        assert ingress.post(request).status_code == 200
        (payload,) = ingress.delivered
        assert payload["subject"] == LETTER.subject
        assert payload["recipients"] == ["inbox@in.example.com", "bob@example.org"]
        assert [each["name"] for each in payload["attachments"]] == ["liste.csv", "photo.png"]

    @pytest.mark.parametrize(
        ("field", "value"),
        [("message-headers", None), ("message-headers", "{"), ("message-headers", '["x"]'), ("message-headers", "5")],
    )
    def test_a_request_without_an_email_is_not_retried(self, serve: Serve, field: str, value: str | None) -> None:
        fields = {name: text for name, text in DOCUMENTED.items() if name not in (field, "from")}
        ingress = serve(self.settings)
        answer = ingress.post(form(signed(fields | ({field: value} if value else {}))))
        assert (answer.status_code, answer.get_json()["status"]) == (406, "invalid")
        assert (ingress.recorded, ingress.delivered) == ([], [])

    def test_a_header_of_the_email_is_not_used_as_the_proof(self, serve: Serve) -> None:
        """Mailgun makes a field of every header; its own come after those."""
        request = form({"token": "b", "signature": "c", "timestamp": "d"})
        proven = form(signed(DOCUMENTED))
        assert serve(self.settings).post(with_body(request, request.body + b"&" + proven.body)).status_code == 200

    @pytest.mark.parametrize(
        ("content_type", "before"),
        [
            ("application/x-www-form-urlencoded", b"a&" * 10_001),
            ("multipart/form-data; boundary=b", part('name="' + 'x" ' * 400_000)),
            ("multipart/form-data; boundary=b", part('name="a"') * 10_001),
        ],
    )
    def test_a_form_with_too_many_fields_is_refused(self, serve: Serve, content_type: str, before: bytes) -> None:
        fields = signed(DOCUMENTED)
        proof = form(fields).body
        if content_type.startswith("multipart"):
            proof = b"".join(part(f'name="{name}"', value) for name, value in fields.items()) + b"--b--\r\n"
        ingress = serve(self.settings)
        request = SampleRequest("/api/ingress/mailgun", {"Content-Type": content_type}, before + proof)
        self.assert_unauthorized(ingress, ingress.post(request))
        assert ingress.post(with_body(request, proof)).status_code == 200

    # How old it may be

    @pytest.mark.parametrize(
        ("age", "settings", "http_status"),
        [
            (timedelta(hours=11, minutes=59), "", 200),
            (timedelta(hours=12, minutes=1), "", 401),
            (timedelta(minutes=-4), "", 200),
            (timedelta(minutes=-6), "", 401),
            (timedelta(minutes=59), "freshness_hours = 1", 200),
            (timedelta(minutes=61), "freshness_hours = 1", 401),
            (timedelta(hours=47), "freshness_hours = 48", 200),
        ],
    )
    def test_a_signature_is_accepted_until_its_last_retry(
        self, serve: Serve, age: timedelta, settings: str, http_status: int
    ) -> None:
        ingress = serve(f"{self.settings}\n{settings}")
        assert ingress.post(request_of(self.settings, self.name, now=NOW - age)).status_code == http_status

    @pytest.mark.parametrize("freshness", ["0", "-1", "169", "'x'", "nan"])
    def test_freshness_takes_hours_up_to_a_week(self, serve: Serve, freshness: str) -> None:
        with pytest.raises(SettingsError, match=r"providers\.mailgun\.freshness_hours "):
            serve(f"{self.settings}\nfreshness_hours = {freshness}")

    @pytest.mark.parametrize("timestamp", ["", "x", "-5", "１７", "1e9", "9" * 5000])
    def test_an_invalid_timestamp_is_refused_even_if_signed(self, serve: Serve, timestamp: str) -> None:
        signature = hmac.new(KEY.encode(), f"{timestamp}t".encode(), hashlib.sha256).hexdigest()
        fields = DOCUMENTED | {"timestamp": timestamp, "token": "t", "signature": signature}
        ingress = serve(self.settings)
        self.assert_unauthorized(ingress, ingress.post(form(fields)))

    def test_a_misspelt_setting_is_reported_before_a_missing_one(self, serve: Serve) -> None:
        with pytest.raises(SettingsError, match=r"singing_key is not one of .*; did you mean signing_key\?"):
            serve("[providers.mailgun]\nsinging_key = 'x'")

    @pytest.mark.parametrize("key", ["signing_key = ''", "signing_key = []", "signing_key = ['a', '']"])
    def test_an_empty_key_stops_the_start(self, serve: Serve, key: str) -> None:
        with pytest.raises(SettingsError, match=self.complaint):
            serve(f"[providers.mailgun]\n{key}")


class TestTokens:
    """The signature does not cover the body, so a token is good for one email."""

    settings = TestMailgun.settings

    @pytest.fixture(params=["sqlite", "redis"])
    def ingress(self, request: pytest.FixtureRequest, serve: Serve) -> Iterator[Ingress]:
        store = {}
        if request.param == "redis":
            redis_server: RedisServer = request.getfixturevalue("redis_server")
            store = {"redis_url": redis_server.url}
        yield serve(self.settings, **store)

    def request(self, letter: Letter = PLAIN_LETTER) -> SampleRequest:
        return request_of(self.settings, "mailgun", letter)

    @pytest.mark.parametrize(
        "change",
        [(b"Voil%C3%A0", b"Autre+chose"), (b"lot+456", b"lot+457"), (b"Ada%40Example.org", b"eve%40example.net")],
    )
    def test_an_accepted_token_proves_no_other_email(self, ingress: Ingress, change: tuple[bytes, bytes]) -> None:
        request = self.request()
        forged = with_body(request, request.body.replace(*change).replace(change[0].replace(b"+", b"%20"), change[1]))
        assert forged.body != request.body
        assert ingress.post(request).status_code == 200
        answer = ingress.post(forged)
        assert (answer.status_code, answer.get_json()["status"]) == (401, "unauthorized")
        assert len(ingress.delivered) == 1
        assert ingress.status_of(request) == "already_processed", "the email itself may come as often as it likes"

    @pytest.mark.parametrize("with_token", [True, False])
    def test_a_token_that_is_held_but_not_accepted_is_still_free(self, ingress: Ingress, with_token: bool) -> None:
        """While another request delivers that email, its retry is put off; so is another email with its token."""
        request = self.request()
        claimed = self.claim(ingress, request, with_token=with_token)
        other = with_body(request, request.body.replace(b"Voil%C3%A0", b"Autre+chose"))
        waits = [ingress.post(each) for each in ((request, other) if with_token else (request,))]
        assert {(each.status_code, each.get_json()["status"]) for each in waits} == {(503, "already_processing")}
        assert ingress.delivered == []
        if not with_token:
            assert ingress.status_of(other) == "processed"
            assert ingress.post(request).status_code == 401
            return
        returned = [replace(each, status=DeliveryStatus.RETURNED) for each in claimed.plan]
        ingress.app.service.coordinator.settle(claimed, returned)
        ingress.app.settle()
        assert [ingress.status_of(each) for each in (request, other)] == ["processed", "unauthorized"]
        assert len(ingress.delivered) == 1

    def test_a_rejected_request_uses_no_token_up(self, ingress: Ingress) -> None:
        fields = signed({"from": ""}, token="t" * 50)
        assert ingress.post(form(fields)).status_code == 406
        assert ingress.status_of(form(signed(DOCUMENTED, token="t" * 50))) == "processed"

    def test_an_accepted_token_is_remembered_for_longer_than_it_can_be_fresh(self, ingress: Ingress) -> None:
        before_ms = time.time() * 1000
        ingress.post(self.request())
        with ingress.app.service.journal.reading() as step:
            ((until_ms,),) = step.query("SELECT until_ms FROM proofs")
        assert until_ms >= before_ms + 7 * 24 * 3600 * 1000

    def claim(self, ingress: Ingress, request: SampleRequest, *, with_token: bool) -> Claimed:
        """As another request does that is delivering the same email just now."""
        provider, pipeline = provider_of(self.settings, "mailgun"), ingress.app.service.pipeline
        headers = {name.lower(): value for name, value in request.headers.items()}
        proof = provider.once(ProviderRequest(headers, lambda: request.body, NOW)) or ""
        item = replace(email_item(email_in(provider, request), None), proof=proof if with_token else "")
        claimed = pipeline.coordinator.claim(pipeline.prepare(item, pipeline.router.pick(item)).claim)
        assert isinstance(claimed, Claimed)
        return claimed

    def test_two_accounts_have_keys_of_their_own(self, serve: Serve) -> None:
        both = f"{self.settings}\n[providers.mailgun-eu]\ntype = 'mailgun'\nsigning_key = '{OTHER_KEY}'"
        ingress = serve(both)
        requests: list[Any] = [request_of(both, name) for name in ("mailgun", "mailgun-eu")]
        assert [ingress.post(each).status_code for each in requests] == [200, 200]
        assert ingress.post(replace(requests[0], path="/api/ingress/mailgun-eu")).status_code == 401
