"""Damaged, hostile and huge raw emails: what can be read is read, within bounds of memory, and nothing is raised."""

from __future__ import annotations

import base64
import os
import tracemalloc
from collections.abc import Callable
from dataclasses import astuple
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from deduplication.identity import compute_canonical_id, compute_fingerprint, compute_post_keys
from deduplication.mime import parse_mime
from tests.deduplication.test_mime import HTML, PLAIN, REPORT, nested, parts, raw

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

Damage = Callable[[bytes], bytes]


def texts(value: Any) -> list[str]:
    """Every text in it, however deep."""
    if isinstance(value, str):
        return [value]
    inner = [*value.keys(), *value.values()] if isinstance(value, dict) else value
    return [text for each in inner for text in texts(each)] if isinstance(inner, list | tuple) else []


def assert_it_is_read(message: bytes) -> None:
    email = parse_mime(message, recipients=["inbox@example.org"], inline_attachment_bytes=100)
    for text in texts(astuple(email)):
        text.encode()
    assert email.recipients[0] == "inbox@example.org"
    assert compute_canonical_id(email)
    compute_fingerprint(email)
    compute_post_keys(email)


def truncated(at: float) -> Damage:
    return lambda message: message[: int(len(message) * at)]


def beheaded(at: float) -> Damage:
    return lambda message: message[int(len(message) * at) :]


def overwritten(at: float, junk: bytes) -> Damage:
    return lambda message: message[: (place := int(len(message) * at))] + junk + message[place + len(junk) :]


def spliced(at: float, junk: bytes) -> Damage:
    return lambda message: message[: (place := int(len(message) * at))] + junk + message[place:]


def repeated(start: float, end: float) -> Damage:
    """A stretch of it twice: boundaries, headers, half a line."""
    return lambda message: (
        message[: int(len(message) * max(start, end))] + message[int(len(message) * min(start, end)) :]
    )


def replaced(old: bytes, new: bytes) -> Damage:
    return lambda message: message.replace(old, new)


_PLACES = st.floats(0, 1)
_MEANINGFUL = st.sampled_from(
    [
        b"\0",
        b"\r",
        b"\n",
        b"\r\n\r\n",
        b"--inner\r\n",
        b"--outer--\r\n",
        b"=?",
        b"?=",
        b'"',
        b";",
        b"*",
        b"(",
        b"<",
        b"@",
    ]
    + [
        b"\xff",
        b"\xed\xa0\x80",
        b"charset=utf-7\r\n",
        b"=?utf-7?Q?+2AA-?=",
        b"; boundary=x",
        b"name*0*=",
        b"\xef\xbb\xbf",
    ]
)
_JUNK = st.one_of(_MEANINGFUL, st.binary(min_size=1, max_size=8))
_DAMAGES = st.one_of(
    st.builds(truncated, _PLACES),
    st.builds(beheaded, _PLACES),
    st.builds(overwritten, _PLACES, _JUNK),
    st.builds(spliced, _PLACES, _JUNK),
    st.builds(repeated, _PLACES, _PLACES),
    st.builds(replaced, st.sampled_from([b"\r\n", b"--", b"=", b":", b"boundary", b"base64", b"utf-8"]), _JUNK),
)


@given(st.sampled_from(VALID), st.lists(_DAMAGES, min_size=1, max_size=6))
@settings(max_examples=500, deadline=None)
def test_a_damaged_email_is_read_as_far_as_it_goes(message: bytes, damages: list[Damage]) -> None:
    for damage in damages:
        message = damage(message)
    assert_it_is_read(message)


@given(st.binary(max_size=500))
@example(b"")
@example(b"\r")
@example(b"Content-Type: multipart/mixed; boundary=x\n\n--x")
@example(b"Content-Type: multipart/mixed; boundary=x\n\n--x\nA")
@example(b"Content-Type: multipart/mixed; boundary=x\n--x")
@settings(deadline=None)
def test_any_bytes_are_read(message: bytes) -> None:
    assert_it_is_read(message)


_HEADER_NAMES = st.sampled_from(
    [b"From", b"To", b"Subject", b"Date", b"Message-ID", b"Content-Type", b"Content-Disposition", b"References"]
)
_HEADER_TEXT = st.lists(
    st.one_of(_MEANINGFUL, st.sampled_from([b"a", b"1", b"%", b"'", b"text/plain", b"multipart/mixed", b"a@b", b" "])),
    max_size=12,
).map(b"".join)


@given(st.lists(st.tuples(_HEADER_NAMES, _HEADER_TEXT), max_size=6), st.binary(max_size=50))
@settings(max_examples=500, deadline=None)
def test_no_value_of_a_header_breaks_the_reading(headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    assert_it_is_read(b"".join(name + b": " + value + b"\r\n" for name, value in headers) + b"\r\n" + body)


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


MB = 1_000_000
HEAD = b"From: a@example.org\r\nSubject: Weekly report\r\n"
MULTIPART = HEAD + b"Content-Type: multipart/mixed; boundary=x\r\n\r\n"
QUOTED_PRINTABLE = b"Content-Transfer-Encoding: quoted-printable\r\n\r\n"
FILE = b"--x\r\nContent-Type: application/pdf\r\nContent-Transfer-Encoding: base64\r\n\r\n"
LONG_PARAMETERS = b"--x\r\nContent-Type: text/plain; " + b'a="' + b";" * 60_000 + b"\r\n\r\nhi\r\n"

HUGE = {
    "one big attachment": lambda: MULTIPART + FILE + base64.encodebytes(os.urandom(6 * MB)) + b"--x--",
    "one line": lambda: HEAD + b"\r\n" + b"x" * 10 * MB,
    "one line of 8-bit text": lambda: HEAD + b"\r\n" + b"\xe9" * 10 * MB,
    "text with one emoji": lambda: HEAD + b"\r\n" + b"x" * 8 * MB + "🎉".encode(),
    "damaged text with emoji": lambda: HEAD + b"\r\n" + b"x" * 8 * MB + "🎉".encode() * 9 + b"\xff",
    "encoded text with one emoji": lambda: HEAD + QUOTED_PRINTABLE + b"x" * 8 * MB + "🎉".encode(),
    "short lines": lambda: HEAD + b"\r\n" + b"ab\n" * 2 * MB,
    "one header": lambda: HEAD + b"X-Long: " + b"x" * 10 * MB + b"\r\n\r\nhi",
    "one subject": lambda: b"Subject: " + b"=?utf-8?Q?a?= " * 400_000 + b"\r\n\r\nhi",
    "a header folded into nothing": lambda: HEAD + b"X-Folded:" + b"\n " * MB + b"\r\n\r\nhi",
    "one folded header": lambda: HEAD + b"To: a@example.org" + b",\r\n b@example.org" * 300_000 + b"\r\n\r\nhi",
    "ten thousand headers": lambda: HEAD + b"X-Many: " + b"X-Many: ".join([b"y" * 500 + b"\r\n"] * 10_000) + b"\r\nhi",
    "tiny headers": lambda: b"a:\n" * 200_000 + HEAD + b"\r\nhi",
    "tiny recipients": lambda: b"To:a@b\n" * 200_000 + HEAD + b"\r\nhi",
    "a hundred levels": lambda: nested(100, PLAIN + "\r\nline of text" * 400_000),
    "more levels than are read": lambda: nested(60_000, PLAIN),
    "empty parts": lambda: MULTIPART + b"--x\r\n\r\na\r\n" * 500_000,
    "lines like boundaries": lambda: MULTIPART + b"--y\r\n" * 200_000,
    "boundaries only": lambda: MULTIPART + b"--x\r\n" * MB,
    "one content type": lambda: HEAD + b"Content-Type: text/plain; " + b"a " * 2 * MB + b"\r\n\r\nhi",
    "long parameters": lambda: MULTIPART + LONG_PARAMETERS * 100,
    "open quotes": lambda: b"To: " + b'"\\' * 3 * MB + b"\r\n\r\nhi",
    "open brackets": lambda: b"From: " + b"<(" * 3 * MB + b"\r\nDate: " + b"(" * MB + b"\r\n\r\nhi",
    "carriage returns": lambda: HEAD.replace(b"\r\n", b"\r") + b"\r" + b"x\r" * 3 * MB,
    "zeros": lambda: bytes(10 * MB),
    "garbage": lambda: os.urandom(10 * MB),
}


@pytest.mark.parametrize("name", HUGE)
@pytest.mark.timeout(60)
def test_memory_stays_below_ten_times_the_size(name: str) -> None:
    message = HUGE[name]()
    tracemalloc.start()
    try:
        parse_mime(message)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 10 * len(message)


def test_a_big_attachment_may_be_handed_on_within_that_memory() -> None:
    message = HUGE["one big attachment"]()
    tracemalloc.start()
    try:
        (attachment,) = parse_mime(message, inline_attachment_bytes=len(message)).attachments
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert attachment.content is not None
    assert len(base64.b64decode(attachment.content)) == attachment.size_bytes == 6 * MB
    assert peak_bytes < 10 * len(message)
