"""POST /api/ingress/mandrill."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from copy import deepcopy
from dataclasses import replace
from hashlib import sha256
from typing import Any
from urllib.parse import urlencode

import pytest

from orchestrator.config.settings import SettingsError
from routes.providers.samples import SampleRequest
from tests.routes.providers.conftest import Serve, email_in, provider_of, with_body, with_headers
from tests.routes.providers.contract import ProviderContract

KEY, OTHER_KEY = "mandrill-key-7QkKvYyv", "mandrill-key-another"
URL = "https://mail.example.com/api/ingress/mandrill"
CHECK_KEY = "test-webhook"

# As in https://mailchimp.com/developer/transactional/docs/webhooks/#inbound-messages, and as its test button sends it
RAW = """Received: from mail115.us4.mandrillapp.com by mail.example.com (Postfix); Fri, 10 May 2013 19:28:20 +0000 (UTC)
From: =?utf-8?q?Ren=C3=A9?= <example.sender@mandrillapp.com>
Sender: <example.sender@mail115.us4.mandrillapp.com>
Subject: This is an example webhook message
To: <inbox@in.example.com>
Message-Id: <999.20130510192820.aaaaaaaa@mail115.us4.mandrillapp.com>
In-Reply-To: <earlier@mail.example.org>
Date: Fri, 10 May 2013 19:28:20 +0000
MIME-Version: 1.0
Content-Type: multipart/alternative; boundary="_av-7r7zDhHxVEAo2yMWasfuFw"

--_av-7r7zDhHxVEAo2yMWasfuFw
Content-Type: text/plain; charset=utf-8
Content-Transfer-Encoding: 7bit

This is an example inbound message.
--_av-7r7zDhHxVEAo2yMWasfuFw
Content-Type: text/html; charset=utf-8
Content-Transfer-Encoding: 7bit

<p>This is an example inbound message.</p>
--_av-7r7zDhHxVEAo2yMWasfuFw--"""
DOCUMENTED: dict[str, Any] = {
    "event": "inbound",
    "ts": 1368214102,
    "msg": {
        "raw_msg": RAW,
        "headers": {
            "Received": ["from mail115.us4.mandrillapp.com", "from localhost (127.0.0.1)"],
            "Date": "Fri, 10 May 2013 19:28:20 +0000",
            "From": "René <example.sender@mandrillapp.com>",
            "In-Reply-To": "<earlier@mail.example.org>",
            "Message-Id": "<999.20130510192820.aaaaaaaa@mail115.us4.mandrillapp.com>",
            "Subject": "This is an example webhook message",
            "To": "<inbox@in.example.com>",
        },
        "text": "This is an example inbound message.\n",
        "text_flowed": False,
        "html": "<p>This is an example inbound message.</p>\n",
        "from_email": "example.sender@mandrillapp.com",
        "from_name": "René",
        "to": [["inbox@in.example.com", None]],
        "email": "hook@in.example.com",
        "subject": "This is an example webhook message",
        "tags": [],
        "template": None,
        "sender": None,
        "spam_report": {"score": -2.6, "matched_rules": [{"name": "SPF_HELO_PASS", "score": 0, "description": None}]},
        "dkim": {"signed": True, "valid": True},
        "spf": {"result": "pass", "detail": "sender SPF authorized"},
    },
}
SENT = {"event": "send", "ts": 1365109999, "_id": "exampleaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "msg": {"state": "sent"}}


def signed(fields: dict[str, bytes], key: str = KEY, url: str = URL) -> SampleRequest:
    message = url.encode() + b"".join(name.encode() + value for name, value in sorted(fields.items()))
    signature = base64.b64encode(hmac.new(key.encode(), message, hashlib.sha1).digest()).decode()
    headers = {"Content-Type": "application/x-www-form-urlencoded", "X-Mandrill-Signature": signature}
    return SampleRequest("/api/ingress/mandrill", headers, urlencode(fields).encode())


def events(*several: Any, key: str = KEY, url: str = URL) -> SampleRequest:
    return signed({"mandrill_events": json.dumps(several).encode()}, key, url)


def documented(**changes: Any) -> dict[str, Any]:
    """The event with other values in its msg; None takes one away."""
    event = deepcopy(DOCUMENTED)
    event["msg"] = {name: value for name, value in (event["msg"] | changes).items() if value is not None}
    return event


def another(number: int) -> dict[str, Any]:
    return documented(raw_msg=RAW.replace("999.2013", f"{number}.2013").replace("19:28:20", f"19:28:{number}"))


class TestMandrill(ProviderContract):
    name = "mandrill"
    settings = f"[providers.mandrill]\nwebhook_key = '{KEY}'\nurl = '{URL}'"
    other_secret = f"[providers.mandrill]\nwebhook_key = '{OTHER_KEY}'\nurl = '{URL}'"
    rotated = f"[providers.mandrill]\nwebhook_key = ['{OTHER_KEY}', '{KEY}']\nurl = '{URL}'"
    without_secret = f"[providers.mandrill]\nurl = '{URL}'"
    complaint = r"providers\.mandrill\.webhook_key is needed"
    proof_is_in_the_body = True
    probed = 200

    def without_proof(self, request: SampleRequest) -> SampleRequest:
        return with_headers(request, x_mandrill_signature=None)

    def with_proof_of(self, body: bytes) -> SampleRequest:
        return signed({"mandrill_events": b"{}" if body == b"[]" else body})

    # The proof

    def test_the_signature_covers_the_url_that_was_entered(self, serve: Serve) -> None:
        ingress = serve(self.settings)
        self.assert_unauthorized(ingress, ingress.post(events(DOCUMENTED, url=f"{URL}/")))
        assert (
            serve(f"{self.settings[:-1]}?team=sales'").post(events(DOCUMENTED, url=f"{URL}?team=sales")).status_code
            == 200
        )

    def test_the_url_is_needed(self, serve: Serve) -> None:
        with pytest.raises(SettingsError, match=r"providers\.mandrill\.url is needed"):
            serve(f"[providers.mandrill]\nwebhook_key = '{KEY}'")

    def test_the_signature_covers_every_field_in_the_order_of_their_names(self, serve: Serve) -> None:
        fields = {"zone": b"eu", "mandrill_events": json.dumps([DOCUMENTED]).encode(), "also": b"1"}
        ingress = serve(self.settings)
        request = signed(fields)
        self.assert_unauthorized(
            ingress, ingress.post(with_body(request, request.body.replace(b"zone=eu", b"zone=us")))
        )
        self.assert_unauthorized(ingress, ingress.post(with_body(request, request.body + b"&more=1")))
        assert ingress.post(request).status_code == 200

    def test_a_form_with_parts_is_signed_alike(self, serve: Serve) -> None:
        request = events(DOCUMENTED)
        part = b'--b\r\nContent-Disposition: form-data; name="mandrill_events"\r\n\r\n'
        body = part + json.dumps([DOCUMENTED]).encode() + b"\r\n--b--\r\n"
        request = with_body(with_headers(request, content_type="multipart/form-data; boundary=b"), body)
        assert serve(self.settings).status_of(request) == "processed"

    @pytest.mark.parametrize("signature", ["", "x", "é", "AAAA", "=" * 5000])
    def test_another_signature_is_refused(self, serve: Serve, signature: str) -> None:
        ingress = serve(self.settings)
        self.assert_unauthorized(
            ingress, ingress.post(with_headers(events(DOCUMENTED), x_mandrill_signature=signature))
        )

    # When it is set up

    def test_the_check_before_there_is_a_key_is_answered(self, serve: Serve) -> None:
        ingress = serve(self.settings)
        for check in (events(key=CHECK_KEY), events()):
            answer = ingress.post(check)
            assert (answer.status_code, answer.get_json()["status"]) == (200, "no_email")
        assert (ingress.recorded, ingress.delivered) == ([], [])

    @pytest.mark.parametrize("more", [[DOCUMENTED], [SENT], [None]])
    def test_the_key_of_the_check_that_everybody_knows_proves_nothing_else(self, serve: Serve, more: list[Any]) -> None:
        ingress = serve(self.settings)
        self.assert_unauthorized(ingress, ingress.post(events(*more, key=CHECK_KEY)))

    def test_the_key_of_the_check_cannot_be_configured(self, serve: Serve) -> None:
        with pytest.raises(SettingsError, match=r"providers\.mandrill\.webhook_key takes the key that Mandrill shows"):
            serve(f"[providers.mandrill]\nwebhook_key = ['{KEY}', '{CHECK_KEY}']\nurl = '{URL}'")

    def test_a_probe_is_answered_before_it_is_configured(self, serve: Serve) -> None:
        """Only then does Mandrill show the key that opens it; what comes meanwhile is tried again."""
        ingress = serve()
        assert ingress.app.http.head("/api/ingress/mandrill").status_code == 200
        assert ingress.post(events(DOCUMENTED)).status_code == 404

    # What it reads

    def test_the_documented_email_is_parsed(self) -> None:
        email = email_in(provider_of(self.settings, self.name), events(DOCUMENTED))
        assert email.subject == "This is an example webhook message"
        assert email.sender_email == "example.sender@mandrillapp.com"
        assert email.date == "Fri, 10 May 2013 19:28:20 +0000"
        assert email.message_id == "<999.20130510192820.aaaaaaaa@mail115.us4.mandrillapp.com>"
        assert email.html.strip() == "<p>This is an example inbound message.</p>"
        assert email.plain.strip() == "This is an example inbound message."
        assert email.recipients == ("hook@in.example.com", "inbox@in.example.com")
        assert email.spam == {"spam_score": "-2.6", "spf": "pass"}
        assert email.extra == {"in_reply_to": "<earlier@mail.example.org>"}

    @pytest.mark.parametrize("raw", [None, "", 5, "From: caf\u00e9 <a@example.org>\n\nx", "\ud800"])
    def test_where_its_bytes_did_not_survive_as_json_mandrills_own_reading_counts(self, raw: Any) -> None:
        provider = provider_of(self.settings, self.name)
        email, as_it_came = (email_in(provider, events(each)) for each in (documented(raw_msg=raw), DOCUMENTED))
        for part in ("subject", "date", "message_id", "recipients", "text", "sender_email", "spam", "extra"):
            assert getattr(email, part) == getattr(as_it_came, part)
        assert email.sender == "René <example.sender@mandrillapp.com>"

    def test_so_are_its_attachments_and_images(self) -> None:
        changes = {
            "raw_msg": None,
            "attachments": {
                "a.txt": {"name": "a.txt", "type": "text/plain", "content": "déjà vu", "base64": False},
                "b.pdf": {"name": "b.pdf", "type": "application/pdf", "content": "AAEC", "base64": True},
            },
            "images": {"cid1": {"name": "cid1", "type": "image/png", "content": "AAEC"}},
        }
        email = email_in(provider_of(self.settings, self.name), events(documented(**changes)))
        assert [(each.name, each.content_type, each.sha256) for each in email.attachments or ()] == [
            ("a.txt", "text/plain", sha256("déjà vu".encode()).hexdigest()),
            ("b.pdf", "application/pdf", sha256(b"\x00\x01\x02").hexdigest()),
            ("cid1", "image/png", sha256(b"\x00\x01\x02").hexdigest()),
        ]

    def test_an_email_without_any_header_of_use_still_has_the_sender_of_its_envelope(self, serve: Serve) -> None:
        """One that is never taken would hold up all that come after it."""
        ingress = serve(self.settings)
        assert ingress.post(events(documented(raw_msg="X: y\n\ntext"))).status_code == 200
        assert ingress.delivered[0]["sender"] == "René <example.sender@mandrillapp.com>"

    @pytest.mark.parametrize("odd", [5, "x", [], [5], {"a": 5}, {"a": {"content": 5, "name": []}}, {"score": {}}])
    @pytest.mark.parametrize("field", ["attachments", "images", "spam_report", "spf", "to", "email"])
    def test_invalid_optional_parts_do_not_reject_the_email(self, serve: Serve, field: str, odd: Any) -> None:
        event = documented(**{"raw_msg": None, field: odd})
        assert serve(self.settings).post(events(event)).status_code == 200

    # Several in one

    def test_every_email_of_a_request_is_taken_and_a_repeated_request_repeats_nothing(self, serve: Serve) -> None:
        ingress = serve(self.settings)
        request = events(another(11), SENT, another(12))
        assert [each["status"] for each in ingress.post(request).get_json()["results"]] == ["processed"] * 2
        again = ingress.post(request)
        assert (again.status_code, len(ingress.delivered)) == (200, 2)
        assert {each["status"] for each in again.get_json()["results"]} == {"already_processed"}

    def test_a_bad_one_does_not_stop_the_others(self, serve: Serve) -> None:
        ingress = serve(self.settings)
        answer = ingress.post(events(another(11), {"event": "inbound", "msg": 5}, another(12)))
        assert answer.status_code == 400
        assert [each["status"] for each in answer.get_json()["results"]] == ["processed", "invalid", "processed"]

    @pytest.mark.parametrize("several", [[SENT], [SENT, {"type": "blacklist", "action": "add"}], [5, None]])
    def test_other_events_are_answered_200_and_ignored(self, serve: Serve, several: list[Any]) -> None:
        ingress = serve(self.settings)
        answer = ingress.post(events(*several))
        assert (answer.status_code, answer.get_json()["status"]) == (200, "no_email")
        assert ingress.recorded == []

    def test_two_routes_have_urls_and_keys_of_their_own(self, serve: Serve) -> None:
        section = self.other_secret.replace("[providers.mandrill]", "[providers.sales]\ntype = 'mandrill'")
        ingress = serve(f"{self.settings}\n{section.replace(URL, URL + '-sales')}")
        request = replace(events(DOCUMENTED, key=OTHER_KEY, url=f"{URL}-sales"), path="/api/ingress/sales")
        assert ingress.post(request).status_code == 200
        assert ingress.post(replace(request, path="/api/ingress/mandrill")).status_code == 401
