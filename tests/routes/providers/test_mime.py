"""POST /api/ingress/mime: what is in a raw email is tested in tests/deduplication/test_mime.py."""

from __future__ import annotations

from typing import Any

import pytest

from routes.providers.samples import SampleRequest
from tests.routes.providers.conftest import Serve, with_body, with_headers
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
        "changed",
        [
            (b"by mx.example.org; Mon, 16 Nov 2026 09:00:07", b"by mx2.example.org; Mon, 16 Nov 2026 11:30:00"),
            (b"10:00:00 +0100 (CET)", b"09:00:00 -0000"),
            (b"\n", b"\r\n"),
        ],
    )
    def test_the_path_of_the_email_does_not_matter(self, serve: Serve, changed: tuple[bytes, bytes]) -> None:
        ingress = serve()
        request = with_body(self.request(self.settings), LATIN_1)
        again = with_body(request, LATIN_1.replace(*changed))
        assert again.body != request.body
        assert [ingress.status_of(each) for each in (request, again)] == ["processed", "already_processed"]

    def test_the_default_content_type_of_curl_is_refused_with_a_hint(self, serve: Serve) -> None:
        request = with_headers(self.request(self.settings), content_type="application/x-www-form-urlencoded")
        answer = serve().post(request)
        assert answer.status_code == 415
        assert answer.get_json()["error"].startswith("Content-Type must be message/rfc822, got 'application/x-www")
