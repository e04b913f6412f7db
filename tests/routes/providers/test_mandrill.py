"""POST /api/ingress/mandrill: https://mailchimp.com/developer/transactional/docs/webhooks/#inbound-messages"""

import base64
import hashlib
import hmac
import json
from collections.abc import Iterable
from typing import Any
from urllib.parse import urlencode

import pytest

from routes.providers.samples import SampleRequest
from tests.routes.providers.conftest import Serve, email_in, provider_of, with_body, with_headers
from tests.routes.providers.contract import DOCUMENTED, DocumentedContract

KEY, OTHER_KEY, CHECK_KEY = "mandrill-key-7QkKvYyv", "mandrill-key-another", "test-webhook"
URL = "https://mail.example.com/api/ingress/mandrill"
EVENT: dict[str, Any] = json.loads((DOCUMENTED / "mandrill.json").read_text())
SENT = {"event": "send", "ts": 1365109999, "_id": "exampleaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "msg": {"state": "sent"}}


def signed(fields: dict[str, bytes], key: str = KEY, url: str = URL) -> SampleRequest:
    message = url.encode() + b"".join(name.encode() + value for name, value in sorted(fields.items()))
    signature = base64.b64encode(hmac.new(key.encode(), message, hashlib.sha1).digest()).decode()
    headers = {"Content-Type": "application/x-www-form-urlencoded", "X-Mandrill-Signature": signature}
    return SampleRequest("/api/ingress/mandrill", headers, urlencode(fields).encode())


def events(*several: Any, key: str = KEY, url: str = URL) -> SampleRequest:
    return signed({"mandrill_events": json.dumps(several).encode()}, key, url)


def changed(**changes: Any) -> dict[str, Any]:
    """The event with other values in its msg; None takes one away."""
    msg = {name: value for name, value in (EVENT["msg"] | changes).items() if value is not None}
    return EVENT | {"msg": msg}


def section(key: str, url: str = URL) -> str:
    return f"[providers.mandrill]\nwebhook_key = {key!r}\nurl = '{url}'"


class TestMandrill(DocumentedContract):
    name = "mandrill"
    settings = section(KEY)
    other_secret = section(OTHER_KEY)
    rotated = settings.replace(repr(KEY), repr([OTHER_KEY, KEY]))
    invalid = {
        f"[providers.mandrill]\nurl = '{URL}'": r"providers\.mandrill\.webhook_key is required",
        f"[providers.mandrill]\nwebhook_key = '{KEY}'": r"providers\.mandrill\.url is required",
        section(CHECK_KEY): r"\.webhook_key must be the key that Mandrill shows",
    }
    wrong_content_type = 401
    probed = 200
    optional = ("attachments", "images", "spam_report", "spf", "to", "email")

    def documented(self, **changes: Any) -> SampleRequest:
        """As Mandrill reads it: the raw email would say all of that itself."""
        return events(changed(**{"raw_msg": None} | changes))

    def without_proof(self, request: SampleRequest) -> SampleRequest:
        return with_headers(request, x_mandrill_signature=None)

    def with_proof_of(self, body: bytes) -> SampleRequest:
        return signed({"mandrill_events": b"{}" if body == b"[]" else body})

    def words(self) -> bytes:
        return json.dumps([EVENT]).encode()

    # The proof

    def test_the_signature_covers_the_url_and_every_field_in_the_order_of_their_names(self, serve: Serve) -> None:
        ingress = serve(self.settings)
        request = signed({"zone": b"eu", "mandrill_events": json.dumps([EVENT]).encode(), "also": b"1"})
        for forged in (
            events(EVENT, url=f"{URL}/"),
            with_body(request, request.body.replace(b"zone=eu", b"zone=us")),
            with_body(request, request.body + b"&more=1"),
            *(with_headers(request, x_mandrill_signature=each) for each in ("", "x", "é", "AAAA", "=" * 5000)),
        ):
            self.assert_unauthorized(ingress, ingress.post(forged))
        assert ingress.post(request).status_code == 200
        url = f"{URL}?team=sales"
        assert serve(section(KEY, url)).post(events(EVENT, url=url)).status_code == 200

    def test_a_form_with_parts_is_signed_alike(self, serve: Serve) -> None:
        part = b'--b\r\nContent-Disposition: form-data; name="mandrill_events"\r\n\r\n'
        body = part + json.dumps([EVENT]).encode() + b"\r\n--b--\r\n"
        request = with_body(with_headers(events(EVENT), content_type="multipart/form-data; boundary=b"), body)
        assert serve(self.settings).status_of(request) == "processed"

    def ignored(self) -> Iterable[SampleRequest]:
        """The check before there is a key, and other events."""
        several = ([SENT], [SENT, {"type": "blacklist", "action": "add"}], [5, None])
        return [events(key=CHECK_KEY), events(), *(events(*each) for each in several)]

    def test_the_public_key_of_the_check_proves_nothing_else(self, serve: Serve) -> None:
        ingress = serve(self.settings)
        for more in (EVENT, SENT, None):
            self.assert_unauthorized(ingress, ingress.post(events(more, key=CHECK_KEY)))

    # What it reads

    @pytest.mark.parametrize("raw", ["", 5, "From: caf\u00e9 <a@example.org>\n\nx", "\ud800"])
    def test_the_raw_email_counts_unless_its_bytes_did_not_survive_as_json(self, raw: Any) -> None:
        provider = provider_of(self.settings, self.name)
        email, as_it_came = (email_in(provider, events(each)) for each in (changed(raw_msg=raw), EVENT))
        for part in ("subject", "date", "message_id", "recipients", "text", "sender_email", "spam", "extra"):
            assert getattr(email, part) == getattr(as_it_came, part)
        assert email.sender == "René <example.sender@mandrillapp.com>"

    def test_text_attachments_come_as_they_are_and_images_in_base64(self) -> None:
        attachments = {
            "a.txt": {"name": "a.txt", "type": "text/plain", "content": "déjà vu", "base64": False},
            "b.pdf": {"name": "b.pdf", "type": "application/pdf", "content": "AAEC", "base64": True},
        }
        images = {"cid1": {"name": "cid1", "type": "image/png", "content": "AAEC"}}
        request = self.documented(attachments=attachments, images=images)
        email = self.read(request)
        assert [(each.name, each.content_type, each.sha256) for each in email.attachments] == [
            ("a.txt", "text/plain", hashlib.sha256("déjà vu".encode()).hexdigest()),
            ("b.pdf", "application/pdf", hashlib.sha256(b"\x00\x01\x02").hexdigest()),
            ("cid1", "image/png", hashlib.sha256(b"\x00\x01\x02").hexdigest()),
        ]

    def test_an_email_without_any_header_of_use_still_has_the_sender_of_its_envelope(self, serve: Serve) -> None:
        """One that is never accepted would hold up all that come after it."""
        ingress = serve(self.settings)
        assert ingress.post(events(changed(raw_msg="X: y\n\ntext"))).status_code == 200
        assert ingress.delivered[0]["sender"] == "René <example.sender@mandrillapp.com>"

    def test_every_email_of_a_request_is_accepted(self, serve: Serve) -> None:
        ingress = serve(self.settings)
        raws = [EVENT["msg"]["raw_msg"].replace("999.2013", f"{n}.2013").replace("28:20", f"28:{n}") for n in (11, 12)]
        request = events(changed(raw_msg=raws[0]), SENT, changed(raw_msg=raws[1]))
        for status in ("processed", "already_processed"):
            assert [each["status"] for each in ingress.post(request).get_json()["results"]] == [status] * 2
        assert len(ingress.delivered) == 2
