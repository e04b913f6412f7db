"""POST /api/ingress/mailjet."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any

import pytest

from routes.providers.samples import SampleRequest
from tests.routes.providers.conftest import Serve, email_in, provider_of, with_body
from tests.routes.providers.contract import BasicAuthContract, json_with

# As in https://dev.mailjet.com/email/guides/parse-api/
DOCUMENTED: dict[str, Any] = {
    "Sender": "pilot@mailjet.com",
    "Recipient": "passenger@mailjet.com",
    "Date": "20150410T160638",
    "From": "Pilot <pilot@mailjet.com>",
    "Subject": "Hey! It's Friday!",
    "Headers": {
        "Return-Path": ["<pilot@mailjet.com>"],
        "Received": ["by 10.107.134.160 with HTTP; Fri, 10 Apr 2015 09:06:38 -0700 (PDT)"],
        "MIME-Version": ["1.0"],
        "Date": "Fri, 10 Apr 2015 18:06:38 +0200",
        "Message-ID": "<CAE5Zh0ZpHZ6G5DC@mail.gmail.com>",
        "Subject": "Hey! It's Friday!",
        "From": "Pilot <pilot@mailjet.com>",
        "To": "passenger@mailjet.com, Crew <crew@mailjet.com>",
        "Cc": "tower@mailjet.com",
    },
    "Parts": [
        {"Headers": {"Content-Type": "text/plain; charset=UTF-8"}, "ContentRef": "Text-part"},
        {"Headers": {"Content-Type": "text/html; charset=UTF-8"}, "ContentRef": "Html-part"},
        {
            "Headers": {
                "Content-Type": "text/plain; charset=utf-8; name=helloworld.txt",
                "Content-Transfer-Encoding": "base64",
                "Content-Disposition": "attachment; filename=helloworld.txt",
            },
            "ContentRef": "Attachment1",
        },
        {
            "Headers": {
                "Content-Type": ['image/png; name="image.png"'],
                "Content-Disposition": ["inline; filename*=utf-8''%C3%A9t%C3%A9.png"],
            },
            "ContentRef": "InlineAttachment1",
        },
    ],
    "Text-part": "Hi,\n\nImportant notice: it's Friday.\n",
    "Html-part": '<div dir="ltr">Hi,<div>Important notice: it&#39;s Friday.</div></div>\n',
    "Attachment1": "SGVsbG8gV29ybGQh",
    "InlineAttachment1": "AAEC",
    "SpamAssassinScore": "0.602",
    "CustomID": "helloworld",
}


class TestMailjet(BasicAuthContract):
    name = "mailjet"
    probed = 200

    def documented(self, **changes: Any) -> SampleRequest:
        return json_with(with_body(self.request(self.settings), json.dumps(DOCUMENTED).encode()), **changes)

    def test_the_documented_email_is_parsed(self) -> None:
        email = email_in(provider_of(self.settings, self.name), self.documented())
        assert (email.subject, email.sender) == ("Hey! It's Friday!", "Pilot <pilot@mailjet.com>")
        assert email.date == "Fri, 10 Apr 2015 18:06:38 +0200"
        assert email.message_id == "<CAE5Zh0ZpHZ6G5DC@mail.gmail.com>"
        assert email.recipients == ("passenger@mailjet.com", "crew@mailjet.com", "tower@mailjet.com")
        assert email.text == "Hi, Important notice: it's Friday."
        assert email.plain == "Hi,\n\nImportant notice: it's Friday.\n"
        hello, image = email.attachments
        assert (hello.name, hello.content_type, hello.size_bytes) == ("helloworld.txt", "text/plain", 12)
        assert hello.sha256 == sha256(b"Hello World!").hexdigest()
        assert (image.name, image.content_type, image.size_bytes) == ("été.png", "image/png", 3)
        assert email.spam == {"SpamAssassinScore": "0.602"}

    def test_without_the_header_its_own_date_is_the_same_moment_in_utc(self) -> None:
        provider = provider_of(self.settings, self.name)
        headers = {name: value for name, value in DOCUMENTED["Headers"].items() if name != "Date"}
        own = email_in(provider, self.documented(Headers=headers))
        assert own.date == "20150410T160638"
        assert own.date_utc == email_in(provider, self.documented()).date_utc

    @pytest.mark.parametrize("odd", [5, "x", {}, [5], [{}], [{"ContentRef": "Attachment9"}], [{"ContentRef": 5}]])
    @pytest.mark.parametrize("field", ["Parts", "Recipient", "SpamAssassinScore", "Attachment1"])
    def test_invalid_optional_parts_do_not_reject_the_email(self, serve: Serve, field: str, odd: Any) -> None:
        assert serve(self.settings).post(self.documented(**{field: odd})).status_code == 200
