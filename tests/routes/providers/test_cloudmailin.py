"""POST /api/ingress/cloudmailin."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Iterable, Mapping
from dataclasses import replace
from hashlib import sha256
from typing import Any

import pytest

from routes.providers.samples import Enclosure, SampleRequest
from tests.routes.providers.conftest import Serve, email_in, provider_of, with_body
from tests.routes.providers.contract import BasicAuthContract, json_with
from tests.routes.providers.test_mime import LATIN_1

# As in http://docs.cloudmailin.com/http_post_formats/json_normalized/
DOCUMENTED: dict[str, Any] = {
    "headers": {
        "return_path": "from@example.com",
        "received": ["by 10.52.90.229 with SMTP id bz5cs75582vdb", "by 10.216.131.153 with SMTP id m25mr5479776wei.9"],
        "date": "Mon, 16 Jan 2012 17:00:01 +0000",
        "from": "Message Sender <sender@example.com>",
        "to": "Message Recipient<to@example.co.uk>",
        "message_id": "<4F145791.8040802@example.com>",
        "subject": "=?ISO-8859-1?Q?Rapport_d'=E9t=E9?=",
        "mime_version": "1.0",
        "content_type": "multipart/alternative; boundary=------------090409040602000601080801",
        "delivered_to": "to@example.com",
        "references": "<earlier@example.com>",
        "user_agent": "Postbox 3.0.2 (Macintosh/20111203)",
    },
    "envelope": {
        "to": "to@example.com",
        "recipients": ["to@example.com", "another@example.com"],
        "from": "from@example.com",
        "helo_domain": "localhost",
        "remote_ip": "127.0.0.1",
        "spf": {"result": "pass", "domain": "example.com"},
        "spamd": {"score": "-0.4", "success": True, "symbols": ["HTML_MESSAGE"]},
    },
    "plain": "Test with HTML.",
    "html": '<html><head>\n<meta http-equiv="content-type"></head><body>Test with HTML.</body></html>',
    "reply_plain": "Message reply if found.",
    "attachments": [
        {
            "content": "dGVzdGZpbGU=",
            "file_name": "file.txt",
            "content_type": "text/plain",
            "size": 8,
            "disposition": "attachment",
        },
        {
            "content": "dGVzdGZpbGU=",
            "file_name": "pixel.png",
            "content_type": "image/png",
            "size": "8",
            "disposition": "inline",
            "content_id": "pixel",
        },
        {
            "url": "https://bucket.s3.example/big.pdf",
            "file_name": "big.pdf",
            "content_type": "application/pdf",
            "size": "9000000",
        },
    ],
}


BOUNDARY = b"----cloudmailinboundry"


def multipart(
    request: SampleRequest, fields: Mapping[str, str | bytes], files: Iterable[Enclosure] = ()
) -> SampleRequest:
    """The same proof, over a form as CloudMailin writes it."""
    parts = [
        (f'name="{name}"'.encode(), value if isinstance(value, bytes) else value.encode("utf-8", "surrogatepass"))
        for name, value in fields.items()
    ]
    parts += [
        (
            f'name="attachments[{place}]"; filename="{each.name}"\r\nContent-Type: {each.content_type}'.encode(),
            each.content,
        )
        for place, each in enumerate(files)
    ]
    head = b"--" + BOUNDARY + b"\r\nContent-Disposition: form-data; "
    body = b"".join(head + which + b"\r\n\r\n" + content + b"\r\n" for which, content in parts)
    headers = {**request.headers, "Content-Type": f"multipart/form-data; boundary={BOUNDARY.decode()}"}
    return replace(request, headers=headers, body=body + b"--" + BOUNDARY + b"--\r\n")


def flat(value: Any, name: str = "") -> dict[str, str | bytes]:
    """{"headers": {"received": ["a"]}} is headers[received][0]=a."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    if not isinstance(value, dict | list):
        return {name: str(value)}
    found: dict[str, str | bytes] = {}
    for key, each in inner:
        found |= flat(each, f"{name}[{key}]" if name else str(key))
    return found


def as_multipart(request: SampleRequest) -> SampleRequest:
    """The same email as in a request in JSON."""
    document = json.loads(request.body)
    given = document.pop("attachments", [])
    files = [Enclosure(e["file_name"], e["content_type"], b64decode(e["content"])) for e in given if "url" not in e]
    stored = [each for each in given if "url" in each]
    return multipart(request, flat(document | ({"attachments": stored} if stored else {})), files)


def as_raw(request: SampleRequest, raw: bytes) -> SampleRequest:
    fields: dict[str, str | bytes] = {"message": raw}
    return multipart(request, fields | flat({"envelope": json.loads(request.body)["envelope"]}))


class TestCloudmailin(BasicAuthContract):
    """Its rejections bounce to the sender, so that a damaged email is at least not lost without anyone knowing."""

    name = "cloudmailin"
    rejected = 422
    wrong_content_type = 422

    def documented(self, **changes: Any) -> SampleRequest:
        return json_with(with_body(self.request(self.settings), json.dumps(DOCUMENTED).encode()), **changes)

    def test_the_documented_email_is_parsed(self) -> None:
        email = email_in(provider_of(self.settings, self.name), self.documented())
        assert email.clean_subject == "Rapport d'été"
        assert email.sender == "Message Sender <sender@example.com>"
        assert email.date == "Mon, 16 Jan 2012 17:00:01 +0000"
        assert email.message_id == "<4F145791.8040802@example.com>"
        assert email.recipients == ("to@example.com", "another@example.com", "to@example.co.uk")
        assert (email.text, email.plain) == ("Test with HTML.", "Test with HTML.")
        text, image, stored = email.attachments
        assert (text.name, text.size_bytes, text.sha256) == ("file.txt", 8, sha256(b"testfile").hexdigest())
        assert (image.name, image.content_type) == ("pixel.png", "image/png")
        assert (stored.name, stored.size_bytes, stored.sha256) == ("big.pdf", 9_000_000, "")
        assert email.spam == {"spf": "pass", "spamd": "-0.4"}
        assert email.extra == {"references": "<earlier@example.com>"}

    def test_the_older_format_with_the_headers_own_names_is_the_same_email(self) -> None:
        provider = provider_of(self.settings, self.name)
        older = {name.replace("_", "-").title(): value for name, value in DOCUMENTED["headers"].items()}
        assert email_in(provider, self.documented(headers=older)) == email_in(provider, self.documented())

    @pytest.mark.parametrize("odd", [5, "x", [], [5], {"spf": 5}, {"to": 5, "recipients": {"a": "b"}}])
    @pytest.mark.parametrize("field", ["envelope", "attachments"])
    def test_invalid_optional_parts_do_not_reject_the_email(self, serve: Serve, field: str, odd: Any) -> None:
        assert serve(self.settings).post(self.documented(**{field: odd})).status_code == 200

    def test_a_size_of_any_length_does_not_reject_the_email(self, serve: Serve) -> None:
        stored = [{"url": "https://bucket.s3.example/a", "file_name": "a", "size": "9" * 5000}]
        assert serve(self.settings).post(self.documented(attachments=stored)).status_code == 200

    @pytest.mark.parametrize("normalized", [True, False])
    def test_as_multipart_it_is_the_same_email(self, normalized: bool) -> None:
        headers = DOCUMENTED["headers"]
        if not normalized:
            headers = {name.replace("_", "-").title(): value for name, value in headers.items()}
        provider = provider_of(self.settings, self.name)
        request = self.documented(headers=headers)
        assert email_in(provider, as_multipart(request)) == email_in(provider, request)

    def test_raw_it_is_taken_byte_for_byte(self) -> None:
        email = email_in(provider_of(self.settings, self.name), as_raw(self.documented(), LATIN_1))
        assert (email.clean_subject, email.text) == ("Déjà vu", "Ça va été")
        assert email.recipients[:2] == ("to@example.com", "another@example.com")
        assert email.spam == {"spf": "pass", "spamd": "-0.4"}

    def test_a_header_cannot_pass_for_the_envelope_nor_for_another_header(self) -> None:
        """Whoever wrote the email chose the names of its headers."""
        fields = {
            "headers[from][0]": "eve@example.net",
            "headers[x][to": "a",
            "headers[envelope[to]]": "eve@example.net",
        }
        sent = as_multipart(self.documented(attachments=[]))
        request = with_body(sent, multipart(sent, fields).body.removesuffix(b"--" + BOUNDARY + b"--\r\n") + sent.body)
        email = email_in(provider_of(self.settings, self.name), request)
        assert email.sender == "Message Sender <sender@example.com>"
        assert email.recipients == ("to@example.com", "another@example.com", "to@example.co.uk")

    @pytest.mark.parametrize(
        "fields",
        [
            {},
            {"message": ""},
            {"message": "text"},
            {"headers": "Subject: x"},
            {"headers": "x", "headers[from]": "ada@example.org"},
            {"plain": "x", "[": "x", "]": "x", "[[[[[[": "x", "a[b][c][d][e][f]": "x", "envelope": "x"},
        ],
    )
    def test_a_form_without_an_email_is_rejected(self, serve: Serve, fields: dict[str, str | bytes]) -> None:
        answer = serve(self.settings).post(multipart(self.documented(), fields))
        assert (answer.status_code, answer.get_json()["status"]) == (422, "invalid")

    def test_headers_that_cannot_be_read_are_no_email(self, serve: Serve) -> None:
        assert serve(self.settings).post(self.documented(headers="Subject: x")).status_code == 422
