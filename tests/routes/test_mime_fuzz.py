"""Damaged and hostile raw emails: what can be read is read, and nothing is raised.

Whatever an email holds, it is read in memory proportional to its length; hostile.py prints the time as well.
"""

import base64
import sys
from dataclasses import astuple
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from deduplication.identity import compute_canonical_id, compute_fingerprint, compute_post_keys
from routes.mime import parse_mime
from tests.routes.test_mime import HTML, PLAIN, REPORT, nested, parts, raw
from tests.support import programs_loaded
from tests.support.hostile import EMAILS, SIZES_BYTES
from tests.support.surroundings import ROOT, clean_environment

JAPANESE = raw(
    "From: =?iso-2022-jp?B?GyRCMnE1RBsoQg==?= <kaigi@example.jp>",
    "To: Team: a@example.org, =?koi8-r?B?8NLJ18XU?= <b@example.org>;",
    "Subject: =?iso-2022-jp?B?GyRCMnE1RBsoQg==?=\r\n =?utf-8?Q?_du_15?=",
    "Date: Thu, 12 Oct 2017 10:31:04 +0900 (JST)",
    "Message-ID: <[b378@example.jp]>",
    "X-Spam-Status: No, score=0.1",
    "Content-Type: text/plain; charset=iso-2022-jp",
    "",
    "会議の件".encode("iso2022_jp"),
)
LATIN = raw(
    b'From: "Fran\xe7ois, le grand" <f@example.org>',
    "Subject: Réunion".encode("latin-1"),
    "Content-Type: text/html; charset=iso-8859-1",
    "Content-Transfer-Encoding: quoted-printable",
    "",
    "<p>=C0 bient=F4t</p>=",
)
NAMES = raw(
    "From: a@example.org",
    "Content-Type: application/pdf; name*0*=utf-8''r%C3%A9; name*1=union.pdf",
    "Content-Disposition: attachment; filename*=koi8-r'ru'%F0%D2.pdf",
    "Content-Transfer-Encoding: base64",
    "",
    base64.b64encode(b"%PDF"),
)
VALID = [REPORT, JAPANESE, LATIN, NAMES, parts(PLAIN, HTML, kind="alternative"), nested(5, PLAIN)]


def texts(value: Any) -> list[str]:
    """Every text in it, however deep."""
    if isinstance(value, str):
        return [value]
    inner = [*value.keys(), *value.values()] if isinstance(value, dict) else value
    return [text for each in inner for text in texts(each)] if isinstance(inner, list | tuple) else []


def assert_it_is_read(message: bytes) -> None:
    email = parse_mime(message, recipients=["half\ud83c@example.org"], inline_bytes=100)
    for text in texts(astuple(email)):
        text.encode()
    assert email.recipients[0] == "half\ufffd@example.org"
    assert compute_canonical_id(email)
    compute_fingerprint(email)
    compute_post_keys(email)


_MEANINGFUL = st.sampled_from([
    b"\0", b"\r", b"\n", b"\r\n\r\n", b"--inner\r\n", b"--outer--\r\n", b"=?", b"?=", b'"', b";", b"*", b"(", b"<",
    b"@", b"\xff", b"\xed\xa0\x80", b"charset=utf-7\r\n", b"=?utf-7?Q?+2AA-?=", b"; boundary=x", b"name*0*=",
    b"\xef\xbb\xbf",
])  # fmt: skip
_JUNK = st.one_of(_MEANINGFUL, st.binary(max_size=8))
_PLACES = st.floats(0, 1)
_REPLACED = st.sampled_from([b"", b"\r\n", b"--", b"=", b":", b"boundary", b"base64", b"utf-8"])


@given(st.sampled_from(VALID), st.lists(st.tuples(_PLACES, _PLACES, _REPLACED, _JUNK), min_size=1, max_size=6))
@settings(max_examples=500, deadline=None)
def test_damaged_emails_can_be_read(message: bytes, damages: list[tuple[float, float, bytes, bytes]]) -> None:
    for start, end, old, junk in damages:
        if old:
            message = message.replace(old, junk)
        else:  # a stretch of it is missing or there twice, and junk is in its place
            message = message[: int(len(message) * start)] + junk + message[int(len(message) * end) :]
    assert_it_is_read(message)


_HEADER_NAMES = st.sampled_from(
    [b"From", b"To", b"Subject", b"Date", b"Message-ID", b"Content-Type", b"Content-Disposition", b"References"]
)
_HEADER_TEXT = st.lists(
    st.one_of(_MEANINGFUL, st.sampled_from([b"a", b"1", b"%", b"'", b"text/plain", b"multipart/mixed", b"a@b", b" "])),
    max_size=12,
).map(b"".join)


@given(st.lists(st.tuples(_HEADER_NAMES, _HEADER_TEXT), max_size=6), st.binary(max_size=500))
@example([], b"")
@example([], b"\r")
@example([(name, b"\xff +2AA- <a@b>") for name in (b"To", b"References", b"X-Spam-Flag")], b"\xff +2AA-")
@example([(b"Content-Type", b"multipart/mixed; boundary=x")], b"--x")
@example([(b"Content-Type", b"multipart/mixed; boundary=x")], b"--x\nA")
@settings(max_examples=500, deadline=None)
def test_any_headers_and_any_bytes_are_read(headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    lines = b"".join(name + b": " + value + b"\r\n" for name, value in headers)
    assert_it_is_read(lines + b"\r\n" + body)
    assert_it_is_read(lines + body)


@pytest.mark.parametrize("message", VALID)
def test_an_email_cut_off_anywhere_is_read(message: bytes) -> None:
    for length in range(len(message)):
        assert_it_is_read(message[:length])


def test_what_came_before_the_cut_is_there() -> None:
    read = parse_mime(REPORT[: REPORT.index(b"--related--")])
    assert (read.subject, read.plain, read.body) == (
        "Weekly report",
        "The engine runs.\r\n",
        "<p>The engine <b>runs</b>.</p>",
    )
    assert [each.name for each in read.attachments] == ["logo.png"]


@pytest.mark.parametrize(
    "charset", ["idna", "punycode", "undefined", "raw_unicode_escape", "hex", "zip", "utf-7", "hz"]
)
@pytest.mark.parametrize("content", [b"\\d \\ud800 xn--a +2AA- ~{", b"\xff\xfe\x00\xd8", b"a-b" * 20_000])
@pytest.mark.timeout(60)
def test_no_codec_that_python_knows_breaks_the_reading(charset: str, content: bytes) -> None:
    assert_it_is_read(f"Content-Type: text/plain; charset={charset}\n\n".encode() + content)


MAX_BASE_BYTES = 8 * 1024 * 1024
MAX_FACTOR = 20


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", EMAILS)
def test_reading_an_email_takes_memory_in_proportion_to_its_length(name: str) -> None:
    command = [sys.executable, "-c", "import sys; from tests.support import hostile; hostile.main(sys.argv[1])", name]
    run = programs_loaded.run(command, ROOT, clean_environment())
    assert run.returncode == 0, run.stdout
    peaks = {int(size): int(peak) for size, peak, _ in map(str.split, run.stdout.splitlines())}
    assert len(peaks) == len(SIZES_BYTES)
    assert {size: peak for size, peak in peaks.items() if peak > MAX_BASE_BYTES + MAX_FACTOR * size} == {}
