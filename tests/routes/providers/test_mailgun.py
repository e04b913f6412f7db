"""POST /api/ingress/mailgun and /api/ingress/mailgun/mime.

https://documentation.mailgun.com/docs/mailgun/user-manual/receive-forward-store/receive-http
"""

import hashlib
import hmac
import json
import time
from dataclasses import replace
from datetime import timedelta
from typing import Any
from urllib.parse import urlencode

import pytest

from routes.providers.samples import SampleRequest
from tests.routes.providers.conftest import LETTER, NOW, Ingress, Serve, email_in, provider_of, request_of, with_body
from tests.routes.providers.contract import DOCUMENTED, DocumentedContract, TimedContract

KEY, OTHER_KEY = "key-3ax6xnjp29jd6fds4gc373sgvjxteol0", "key-another"
SETTINGS = f"[providers.mailgun]\nsigning_key = '{KEY}'"
FIELDS: dict[str, Any] = json.loads((DOCUMENTED / "mailgun.json").read_text())
FIELDS["message-headers"] = json.dumps(FIELDS["message-headers"])


def signed(fields: dict[str, str], token: str = "a" * 50, timestamp: str = str(int(NOW.timestamp()))) -> dict[str, str]:
    signature = hmac.new(KEY.encode(), f"{timestamp}{token}".encode(), hashlib.sha256).hexdigest()
    return fields | {"timestamp": timestamp, "token": token, "signature": signature}


def form(fields: dict[str, str], path: str = "/api/ingress/mailgun") -> SampleRequest:
    """The values are bytes, written as Latin-1 where they are not ASCII."""
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    return SampleRequest(path, headers, urlencode(fields, encoding="latin-1").encode())


def part(disposition: str, value: str = "") -> bytes:
    return f"--b\r\nContent-Disposition: form-data; {disposition}\r\n\r\n{value}\r\n".encode()


class TestMailgun(DocumentedContract, TimedContract):
    name = "mailgun"
    settings = SETTINGS
    other_secret = f"[providers.mailgun]\nsigning_key = '{OTHER_KEY}'"
    rotated = f"[providers.mailgun]\nsigning_key = ['{OTHER_KEY}', '{KEY}']"
    invalid = {
        "[providers.mailgun]": r"providers\.mailgun\.signing_key is required",
        "[providers.mailgun]\nsinging_key = 'x'": r"singing_key is unknown; known are .*signing_key",
        **{f"[providers.mailgun]\nsigning_key = {each}": r"signing_key must not be empty" for each in ("''", "[]")},
        "[providers.mailgun]\nsigning_key = ['a', '']": r"providers\.mailgun\.signing_key must not be empty",
        **{
            f"{SETTINGS}\nfreshness_hours = {each}": r"providers\.mailgun\.freshness_hours "
            for each in ("0", "-1", "169", "'x'", "nan")
        },
    }
    rejected = too_large = 406
    fresh_for = timedelta(hours=12)
    wrong_content_type = 401

    def documented(self, **changes: Any) -> SampleRequest:
        return with_body(form({}), urlencode(signed(FIELDS | changes)).encode())

    def without_proof(self, request: SampleRequest) -> SampleRequest:
        return with_body(request, request.body.replace(b'"signature"', b'"other"'))

    def with_proof_of(self, body: bytes) -> SampleRequest:
        """Under a token of its own: one that has served another email is refused."""
        token = hashlib.sha256(body).hexdigest()[:50]
        return form(signed({"message-headers": body.decode("latin-1")}, token))

    def words(self) -> bytes:
        return str(FIELDS["message-headers"]).encode()

    # What it reads

    @pytest.mark.parametrize("between", ["", "\n", "<br>"])
    def test_html_in_several_parts_is_one_text_parsed_and_raw(self, between: str) -> None:
        pieces = [f"<html><head><title>no</title></head><body>Lot {each}</body></html>" for each in (1, 2)]
        head = "".join(f"{name}: {value}\r\n" for name, value in json.loads(FIELDS["message-headers"]))
        parts = [f"Content-Type: text/html\r\n\r\n{each}\r\n" for each in pieces]
        parts.insert(1, "Content-Type: application/pdf; name=a.pdf\r\n\r\n%PDF\r\n")
        raw = f"{head}Content-Type: multipart/mixed; boundary=x\r\n\r\n--x\r\n" + "--x\r\n".join(parts) + "--x--"
        parsed = self.documented(**{"body-html": between.join(pieces), "body-plain": ""})
        provider = provider_of(self.settings, self.name)
        emails = [email_in(provider, each) for each in (form(signed({"body-mime": raw})), parsed)]
        assert [email.text for email in emails] == ["Lot 1 Lot 2"] * 2

    def test_a_file_name_that_is_not_utf_8_does_not_reject_the_email(self, serve: Serve) -> None:
        request = self.request(self.settings)
        ingress = serve(self.settings)
        assert ingress.post(with_body(request, request.body.replace(b"liste.csv", b"\xe9t\xe9.csv"))).status_code == 200
        assert ingress.delivered[0]["attachments"][0]["name"] == "été.csv"

    def test_a_header_of_the_email_is_not_used_as_the_proof(self, serve: Serve) -> None:
        """Mailgun makes a field of every header; its own come after those."""
        request = form({"token": "b", "signature": "c", "timestamp": "d"})
        ingress = serve(self.settings)
        assert ingress.post(with_body(request, request.body + b"&" + self.documented().body)).status_code == 200

    @pytest.mark.parametrize(
        ("content_type", "before"),
        [
            ("application/x-www-form-urlencoded", b"a&" * 10_001),
            ("multipart/form-data; boundary=b", part('name="' + 'x" ' * 400_000)),
            ("multipart/form-data; boundary=b", part('name="a"') * 10_001),
        ],
    )
    def test_a_form_with_too_many_fields_is_refused(self, serve: Serve, content_type: str, before: bytes) -> None:
        proof = self.documented().body
        if content_type.startswith("multipart"):
            proof = b"".join(part(f'name="{name}"', value) for name, value in signed(FIELDS).items()) + b"--b--\r\n"
        ingress = serve(self.settings)
        request = SampleRequest("/api/ingress/mailgun", {"Content-Type": content_type}, before + proof)
        self.assert_unauthorized(ingress, ingress.post(request))
        assert ingress.post(with_body(request, proof)).status_code == 200

    # How old it may be

    def test_an_invalid_timestamp_is_refused_even_if_signed(self, serve: Serve) -> None:
        ingress = serve(self.settings)
        for timestamp in ("", "x", "-5", "１７", "1e9", "9" * 5000):
            request = with_body(form({}), urlencode(signed(FIELDS, timestamp=timestamp)).encode())
            self.assert_unauthorized(ingress, ingress.post(request))


class TestTokens:
    """The signature does not cover the body, so a token is good for one email."""

    @pytest.fixture
    def ingress(self, serve: Serve, redis_url: str) -> Ingress:
        return serve(SETTINGS, redis_url=redis_url)

    def request(self) -> SampleRequest:
        return request_of(SETTINGS, "mailgun", replace(LETTER, enclosures=()))

    def test_an_accepted_token_proves_no_other_email(self, ingress: Ingress) -> None:
        request = self.request()
        assert ingress.post(request).status_code == 200
        for old, new in (
            (b"Voil%C3%A0", b"Autre+chose"),
            (b"lot+456", b"lot+457"),
            (b"Ada%40Example.org", b"eve%40example.net"),
        ):
            forged = with_body(request, request.body.replace(old, new).replace(old.replace(b"+", b"%20"), new))
            assert forged.body != request.body
            answer = ingress.post(forged)
            assert (answer.status_code, answer.get_json()["status"]) == (401, "unauthorized")
        assert len(ingress.delivered) == 1
        assert ingress.status_of(request) == "already_processed", "the email itself may come as often as it likes"

    def test_an_accepted_token_proves_no_other_email_at_a_second_endpoint_with_the_same_key(self, serve: Serve) -> None:
        ingress = serve(f"{SETTINGS}\n[providers.second]\ntype = 'mailgun'\nsigning_key = '{KEY}'")
        request = self.request()
        assert ingress.status_of(request) == "processed"
        forged = with_body(request, request.body.replace(b"Voil%C3%A0", b"Autre+chose"))
        for path, body, status in (
            ("/api/ingress/second", forged.body, 401),
            ("/api/ingress/second", request.body, 200),
            ("/api/ingress/mailgun", forged.body, 401),
        ):
            assert ingress.post(replace(request, path=path, body=body)).status_code == status
        assert len(ingress.delivered) == 1

    def test_a_rejected_request_uses_no_token_up(self, ingress: Ingress) -> None:
        """Nor is it retried."""
        for headers in (None, "{", '["x"]', "5"):
            fields = {"from": ""} if headers is None else {"from": "", "message-headers": headers}
            answer = ingress.post(form(signed(fields)))
            assert (answer.status_code, answer.get_json()["status"]) == (406, "invalid")
        assert (ingress.recorded, ingress.delivered) == ([], [])
        assert ingress.status_of(with_body(form({}), urlencode(signed(FIELDS)).encode())) == "processed"

    def test_an_accepted_token_is_remembered_for_longer_than_it_can_be_fresh(self, ingress: Ingress) -> None:
        before_ms = time.time() * 1000
        ingress.post(self.request())
        with ingress.app.service.journal.reading() as step:
            ((until_ms,),) = step.query("SELECT until_ms FROM proofs")
        assert until_ms >= before_ms + 7 * 24 * 3600 * 1000
