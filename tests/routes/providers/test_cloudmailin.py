"""POST /api/ingress/cloudmailin."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any

import pytest

from routes.providers.samples import SampleRequest
from tests.routes.providers.conftest import OpenDoor, email_in, provider_of, with_body
from tests.routes.providers.contract import BasicAuthContract, json_with

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


class TestCloudmailin(BasicAuthContract):
    """Its rejections bounce to the sender, so that a damaged email is at least not lost without anyone knowing."""

    name = "cloudmailin"
    rejected = 422
    wrong_content_type = 422

    def documented(self, **changes: Any) -> SampleRequest:
        return json_with(with_body(self.request(self.settings), json.dumps(DOCUMENTED).encode()), **changes)

    def test_the_documented_email_is_read_whole(self) -> None:
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
    def test_what_the_email_can_do_without_does_not_spoil_it(self, open_door: OpenDoor, field: str, odd: Any) -> None:
        assert open_door(self.settings).post(self.documented(**{field: odd})).status_code == 200

    def test_headers_that_cannot_be_read_are_no_email(self, open_door: OpenDoor) -> None:
        assert open_door(self.settings).post(self.documented(headers="Subject: x")).status_code == 422
