"""POST /api/ingress/cloudmailin, as in http://docs.cloudmailin.com/http_post_formats/json_normalized/"""

import json
from base64 import b64decode
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from urllib3.filepost import encode_multipart_formdata

from routes.providers.samples import Enclosure, SampleRequest
from tests.routes.providers.conftest import email_in, provider_of, with_body
from tests.routes.providers.contract import BasicAuthContract, DocumentedContract
from tests.routes.providers.test_mime import LATIN_1

BOUNDARY = "----cloudmailinboundry"


def multipart(
    request: SampleRequest, fields: Mapping[str, str | bytes], files: Iterable[Enclosure] = ()
) -> SampleRequest:
    """The same proof, over a form as CloudMailin writes it."""
    parts: dict[str, Any] = {
        name: value if isinstance(value, bytes) else value.encode("utf-8", "surrogatepass")
        for name, value in fields.items()
    }
    parts |= {f"attachments[{n}]": (file.name, file.content, file.content_type) for n, file in enumerate(files)}
    body, content_type = encode_multipart_formdata(parts, BOUNDARY)
    return replace(request, headers={**request.headers, "Content-Type": content_type}, body=body)


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
    return multipart(request, {"message": raw, **flat({"envelope": json.loads(request.body)["envelope"]})})


class TestCloudmailin(DocumentedContract, BasicAuthContract):
    """Its rejections bounce to the sender, so that a damaged email is at least not lost without anyone knowing."""

    name = "cloudmailin"
    rejected = too_large = 422
    wrong_content_type = 422
    optional = ("envelope", "attachments")

    @pytest.mark.parametrize("normalized", [True, False])
    def test_as_multipart_it_is_the_same_email(self, normalized: bool) -> None:
        headers = self.documented_email["headers"]
        if not normalized:
            headers = {name.replace("_", "-").title(): value for name, value in headers.items()}
        provider = provider_of(self.settings, self.name)
        request = self.documented(headers=headers)
        one, other = (email_in(provider, each) for each in (as_multipart(request), request))
        contents = [[replace(file, content_id="", inline=False) for file in each.attachments] for each in (one, other)]
        assert contents[0] == contents[1]
        assert replace(one, attachments=(), extra={}) == replace(other, attachments=(), extra={})

    def test_raw_it_is_taken_byte_for_byte(self) -> None:
        email = self.read(as_raw(self.documented(), LATIN_1))
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
        forged = multipart(sent, fields).body.removesuffix(f"--{BOUNDARY}--\r\n".encode())
        email = self.read(with_body(sent, forged + sent.body))
        assert email.sender == "Message Sender <sender@example.com>"
        assert (email.recipients, email.to) == (("to@example.com", "another@example.com"), ("to@example.co.uk",))

    def invalid_requests(self) -> Iterable[tuple[SampleRequest, str | None]]:
        """Forms without an email."""
        without: list[dict[str, str | bytes]] = [
            {},
            {"message": ""},
            {"message": "text"},
            {"headers": "Subject: x"},
            {"headers": "x", "headers[from]": "ada@example.org"},
            {"plain": "x", "[": "x", "]": "x", "[[[[[[": "x", "a[b][c][d][e][f]": "x", "envelope": "x"},
        ]
        requests = [multipart(self.documented(), fields) for fields in without]
        return [(request, None) for request in (*requests, self.documented(headers="Subject: x"))]

    def test_a_size_of_any_length_does_not_reject_the_email(self) -> None:
        stored = [{"url": "https://bucket.s3.example/a", "file_name": "a", "size": "9" * 5000}]
        assert self.read(self.documented(attachments=stored)).attachments[0].size_bytes == 0
