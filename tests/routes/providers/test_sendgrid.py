"""POST /api/ingress/sendgrid."""

import base64
import json
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, ClassVar

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, SECP256R1, EllipticCurvePrivateKey, generate_private_key
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key as generate_rsa_key
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from orchestrator.config.settings import SettingsError
from routes.auth import Unauthorized
from routes.providers.samples import Letter, SampleRequest
from routes.providers.sendgrid import SIGNATURE, TIMESTAMP
from tests.routes.providers.conftest import (
    LETTER,
    NOW,
    Serve,
    email_in,
    provider_of,
    request_of,
    with_body,
    with_headers,
)
from tests.routes.providers.contract import DOCUMENTED, BasicAuthContract, DocumentedContract, TimedContract

BASIC = "[providers.sendgrid]\nusername = 'sender'\npassword = 'first password'"

# Captured (and made anonymous) from a real request, by django-anymail: five charsets in one email.
CHARSETS = (DOCUMENTED / "sendgrid.bin").read_bytes()


def _with_field(name: str, value: bytes) -> bytes:
    field = b'\r\n--xYzZY\r\nContent-Disposition: form-data; name="' + name.encode() + b'"\r\n\r\n' + value
    verdicts = b"".join(
        b'--xYzZY\r\nContent-Disposition: form-data; name="' + verdict + b'"\r\n\r\npass\r\n'
        for verdict in (b"SPF", b"dkim")
    )
    body = CHARSETS.replace(b"Como usted pidi\xa2\r\n--", b"Como usted pidi\xa2" + field + b"\r\n--", 1)
    return body.replace(b"--xYzZY--", verdicts + b"--xYzZY--")


class TestSendgrid(DocumentedContract, BasicAuthContract):
    name = "sendgrid"
    wrong_content_type = 400

    padding = b"-"

    def documented(self, **changes: Any) -> SampleRequest:
        return with_body(self.request(BASIC), CHARSETS)

    def test_unreadable_charsets_do_not_reject_the_email(self) -> None:
        provider, head = provider_of(BASIC, self.name), CHARSETS[: CHARSETS.index(b'{"to"')]
        for charsets in (b"", b"{", b"[]", b'{"subject":5}', b'{"subject":"punycode"}', b'{"subject":"x-none"}'):
            request = with_body(self.request(BASIC), head + charsets + b"\r\n--xYzZY--\r\n")
            assert email_in(provider, request).sender_email == "sender@example.com"

    def test_without_headers_the_fields_are_used(self) -> None:
        body = CHARSETS.replace(b"From: =", b"X-From: =").replace(b"Subject: =", b"X-Subject: =")
        email = self.read(with_body(self.request(BASIC), body))
        assert email.subject == "Como usted pidió"
        assert email.sender == "Opérateur de test <sender@example.com>"

    def test_its_verdicts_are_passed_on(self) -> None:
        email = self.read(self.request(BASIC))
        assert email.spam == {"spam_score": "0.1", "SPF": "pass", "dkim": "{@example.org : pass}"}

    def test_attachments_without_a_readable_description_have_their_own_name(self) -> None:
        request = self.request(BASIC)
        start = request.body.index(b'{"attachment1"')
        end = request.body.index(b"\r\n", start)
        for info in (b"{", b"[]", b'{"attachment1":5}', b'{"attachment1":{"filename":5}}'):
            changed = with_body(request, request.body[:start] + info + request.body[end:])
            email = self.read(changed)
            assert [each.name for each in email.attachments] == ["liste.csv", "photo.png"]

    def test_a_field_that_a_sender_wrote_into_the_text_is_noticed(self, serve: Serve) -> None:
        """The boundary is always the same: a sender who knows it can end the text and add fields."""
        ingress = serve(BASIC)
        for field in ("headers", "from", "subject", "charsets", "SPF", "dkim"):
            answer = ingress.post(with_body(self.request(BASIC), _with_field(field, b"From: forged@example.com")))
            assert (answer.status_code, answer.get_json()["field"]) == (400, field)
        assert ingress.delivered == []
        raw = _with_field("email", b"From: forged@example.com\r\nSubject: forged\r\n\r\nforged")
        email = self.read(with_body(self.request(BASIC), raw))
        assert email.sender_email == "sender@example.com"

    def invalid_requests(self) -> Iterable[tuple[SampleRequest, str | None]]:
        body = b'--xYzZY\r\nContent-Disposition: form-data; name="text"\r\n\r\nhello\r\n--xYzZY--\r\n'
        return [(self.with_proof_of(body), "headers")]


def public(key: EllipticCurvePrivateKey | RSAPrivateKey) -> str:
    return base64.b64encode(key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).decode()


KEYS = [generate_private_key(SECP256R1()) for _ in range(2)]
SIGNED_AT = str(int(NOW.timestamp()))


def signed(request: SampleRequest, key: EllipticCurvePrivateKey, timestamp: str = SIGNED_AT) -> SampleRequest:
    signature = key.sign(timestamp.encode() + request.body, ECDSA(SHA256()))
    headers = {SIGNATURE: base64.b64encode(signature).decode(), TIMESTAMP: timestamp}
    return replace(request, headers={**request.headers, **headers})


class TestSignedSendgrid(TimedContract):
    """With a security policy: https://www.twilio.com/docs/sendgrid/for-developers/parsing-email/securing-your-parse-webhooks"""

    name = "sendgrid"
    settings = f"[providers.sendgrid]\nverification_key = '{public(KEYS[0])}'"
    other_secret = f"[providers.sendgrid]\nverification_key = '{public(KEYS[1])}'"
    rotated = f"[providers.sendgrid]\nverification_key = ['{public(KEYS[1])}', '{public(KEYS[0])}']"
    invalid = {"[providers.sendgrid]": r"needs username and password, or verification_key$"}
    padding = b"-"
    wrong_content_type = 400
    fresh_for = timedelta(hours=96)
    key_of: ClassVar[dict[str, EllipticCurvePrivateKey]] = {settings: KEYS[0], other_secret: KEYS[1]}

    def request(self, settings: str, letter: Letter = LETTER) -> SampleRequest:
        return signed(request_of(settings, self.name, letter), self.key_of[settings])

    def request_at(self, moment: datetime) -> SampleRequest:
        return signed(request_of(self.settings, self.name), KEYS[0], str(int(moment.timestamp())))

    def without_proof(self, request: SampleRequest) -> SampleRequest:
        return with_headers(request, **{SIGNATURE.replace("-", "_"): None})

    def with_proof_of(self, body: bytes) -> SampleRequest:
        return signed(with_body(self.request(self.settings), body), KEYS[0])

    def test_a_changed_body_or_time_is_refused(self, serve: Serve) -> None:
        ingress = serve(self.settings)
        request = self.request(self.settings)
        self.assert_unauthorized(ingress, ingress.post(with_body(request, request.body.replace(b"456", b"457"))))
        later = {TIMESTAMP.replace("-", "_"): f"{int(SIGNED_AT) + 1}"}
        self.assert_unauthorized(ingress, ingress.post(with_headers(request, **later)))
        self.assert_unauthorized(ingress, ingress.post(with_headers(request, **{SIGNATURE.replace("-", "_"): "!"})))

    def test_the_head_of_the_body_cannot_be_moved_into_the_timestamp(self, serve: Serve) -> None:
        ingress, request = serve(self.settings), self.request(self.settings)
        for moved in (1, len(b"--xYzZY")):
            timestamp = {TIMESTAMP.replace("-", "_"): SIGNED_AT + request.body[:moved].decode()}
            shifted = with_headers(with_body(request, request.body[moved:]), **timestamp)
            self.assert_unauthorized(ingress, ingress.post(shifted))

    @pytest.mark.parametrize("timestamp", ["", " ", f"{SIGNED_AT} ", f"+{SIGNED_AT}", f"{SIGNED_AT}.0", "\u0661"])
    def test_the_timestamp_is_digits_even_if_it_is_signed(self, timestamp: str) -> None:
        request = signed(request_of(self.settings, self.name), KEYS[0], timestamp)
        with pytest.raises(Unauthorized):
            self.read(request)

    def test_signed_bytes_mean_one_email_whatever_content_type_they_come_with(self, serve: Serve) -> None:
        """An email that quotes a form of its own, which another boundary would make the request's."""
        forged = "From: boss@example.org\r\nDate: Mon, 16 Nov 2026 10:00:00 +0100"
        part = f'--inner\r\nContent-Disposition: form-data; name="headers"\r\n\r\n{forged}\r\n--inner--\r\n'
        request = self.request(self.settings, replace(LETTER, text=f"\r\n{part}\r\n&headers={forged}&"))
        ingress = serve(self.settings)
        for content_type in (
            "multipart/form-data; boundary=inner",
            "multipart/form-data; boundary=xYzZ",
            "multipart/form-data; boundary=",
            "multipart/form-data",
            "application/x-www-form-urlencoded",
            "application/x-www-form-urlencoded; boundary=xYzZY",
        ):
            answer = ingress.post(with_headers(request, content_type=content_type))
            assert (answer.status_code, answer.get_json()["field"]) == (400, "Content-Type")
            assert (ingress.recorded, ingress.delivered) == ([], [])
        assert ingress.status_of(request) == "processed"
        assert ingress.delivered[0]["sender_email"] == "ada@example.org"

    def test_a_signed_form_is_the_whole_body(self, serve: Serve) -> None:
        ingress, body = serve(self.settings), self.request(self.settings).body
        for before in (b"preamble\r\n", b"\r\n", b"--xYzZY--\r\n"):
            assert ingress.post(self.with_proof_of(before + body)).status_code == 400
        for after in (b"\r\nepilogue", b"--xYzZY--"):
            assert ingress.post(self.with_proof_of(body + after)).status_code == 400

    def test_with_a_password_as_well_both_are_needed(self, serve: Serve) -> None:
        both = f"{BASIC}\nverification_key = '{public(KEYS[0])}'"
        ingress = serve(both)
        request = request_of(both, self.name)
        self.assert_unauthorized(ingress, ingress.post(request))
        self.assert_unauthorized(ingress, ingress.post(self.request(self.settings)))
        assert ingress.post(signed(request, KEYS[0])).status_code == 200

    def test_an_invalid_key_stops_the_start_and_is_not_shown(self, serve: Serve) -> None:
        for key in ("!", "AAAA", public(KEYS[0])[:-8], public(generate_rsa_key(65537, 2048))):
            with pytest.raises(SettingsError, match=r"providers\.sendgrid\.verification_key must be") as raised:
                serve(f"[providers.sendgrid]\nverification_key = {json.dumps(key)}")
            assert key not in str(raised.value) or key == "!"
