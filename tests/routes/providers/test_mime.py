"""POST /api/ingress/mime: what is in a raw email is tested in tests/routes/test_mime.py."""

from typing import Any

import pytest

from routes.providers.samples import SampleRequest
from tests.routes.providers.conftest import Serve, email_in, provider_of, with_headers
from tests.routes.providers.contract import DocumentedContract
from tests.routes.providers.test_gmail import TokenContract

LATIN_1 = b"""Received: by mx.example.org; Mon, 16 Nov 2026 09:00:07 +0000
From: =?iso-8859-1?q?Andr=E9?= <andre@example.org>
To: "Doe, Jane" <jane@in.example.com>, team@in.example.com
Cc: boss@example.org
Subject: =?iso-8859-1?q?D=E9j=E0?=
 =?utf-8?b?IHZ1?=
Date: Mon, 16 Nov 2026 10:00:00 +0100 (CET)
Message-ID: <latin@example.org>
Content-Type: text/plain; charset=iso-8859-1
Content-Transfer-Encoding: 8bit

\xc7a va \xe9t\xe9
"""


class TestMime(DocumentedContract, TokenContract):
    name = "mime"

    def documented(self, **changes: Any) -> SampleRequest:
        return self.with_proof_of(LATIN_1)

    @pytest.mark.parametrize(
        ("given", "sender", "recipients"),
        [
            ({}, None, ()),
            ({"x_envelope_from": "<Bounce@Mail.example.org>"}, "bounce@mail.example.org", ()),
            ({"x_envelope_from": "<>", "x_envelope_to": "<a@x.example>"}, "", ("a@x.example",)),
            ({"x_envelope_from": ""}, "", ()),
            ({"x_envelope_to": "a@x.example, <b@x.example>,a@x.example"}, None, ("a@x.example", "b@x.example")),
            ({"x_envelope_to": "<jürgen@x.example>".encode().decode("latin-1")}, None, ("jürgen@x.example",)),
            ({"x_envelope_to": "nobody"}, None, ()),
        ],
    )
    def test_the_envelope_is_in_headers_of_the_request(
        self, given: dict[str, str], sender: str | None, recipients: tuple[str, ...]
    ) -> None:
        email = email_in(provider_of("", "mime"), with_headers(self.with_proof_of(LATIN_1), **given))
        assert (email.return_path, email.recipients, email.tells_recipients) == (sender, recipients, bool(recipients))

    def test_the_default_content_type_of_curl_is_refused_with_a_hint(self, serve: Serve) -> None:
        request = with_headers(self.request(self.settings), content_type="application/x-www-form-urlencoded")
        answer = serve().post(request)
        assert answer.status_code == 415
        assert answer.get_json()["error"].startswith("Content-Type must be message/rfc822, got 'application/x-www")
