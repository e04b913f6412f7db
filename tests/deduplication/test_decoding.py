"""From bytes to text. How whole emails in many charsets are read stands in test_mime.py."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deduplication.decoding import base64_decoded, decoded

QUOTES = b"10 \x80 \x96 \x93so\x94"


@pytest.mark.parametrize(
    "charset", ["iso-8859-1", "ISO8859-1", "latin1", "l1", "us-ascii", "ascii", "windows-1252", ""]
)
def test_what_is_between_80_and_9f_in_latin_1_is_what_windows_writes_there(charset: str) -> None:
    assert decoded(QUOTES, charset) == "10 € – “so”"
    assert decoded(QUOTES + b" \x81\x9d", charset) == "10 € – “so” \x81\x9d", (
        "two bytes it does not have change no other"
    )


@pytest.mark.parametrize(
    ("charset", "content", "text"),
    [
        ("us-ascii", "été".encode(), "été"),
        ("x-mac-roman", b"\x8et\x8e", "été"),
        ("x-cp1251", "Привет".encode("cp1251"), "Привет"),
        ("ks_c_5601-1989", "회의".encode("cp949"), "회의"),
        ("x-x-big5", "會議".encode("big5"), "會議"),
        ("hz-gb-2312", "会议".encode("hz"), "会议"),
        ("iso-2022-kr", "회의".encode("iso2022_kr"), "회의"),
        ("utf-16", "\ufeffété".encode("utf-16-be"), "été"),
        ("replacement", "été".encode(), "été"),
        ("x-user-defined", "été".encode(), "été"),
    ],
)
def test_a_charset_is_known_by_every_name_that_browsers_know(charset: str, content: bytes, text: str) -> None:
    assert decoded(content, charset) == text


@given(st.binary(max_size=40), st.text(max_size=12) | st.sampled_from(["utf-7", "idna", "utf-16", "hz", "x-sjis"]))
def test_no_bytes_in_no_charset_break_the_reading(content: bytes, charset: str) -> None:
    assert isinstance(decoded(content, charset), str)
    assert len(base64_decoded(content)) <= len(content)
