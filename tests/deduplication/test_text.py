"""From bytes to well-formed text in its normal form. How whole emails are read is in tests/routes/test_mime.py."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deduplication.text import BadRegex, base64_chunks, check_regex, decoded, search

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
    ("charset", "encoding", "text"),
    [
        ("utf-8", "utf-8-sig", "À bientôt 🎉"),
        ("'utf-8'", "utf-8", "À bientôt"),
        ("\x00\xff", "utf-8", "À bientôt"),
        ("shift_jis", "cp932", "①会議"),
        ("gb2312", "gb18030", "镕基𠀀"),
        ("iso-8859-8-i", "iso8859-8", "שלום"),
        ("utf-16", "utf-16", "Привет 🎉"),
        ("utf-16", "utf-16-be", "\ufeffété"),
        ("x-mac-roman", "mac-roman", "été"),
        ("x-cp1251", "cp1251", "Привет"),
        ("ks_c_5601-1989", "cp949", "회의"),
        ("x-x-big5", "big5", "會議"),
        ("hz-gb-2312", "hz", "会议"),
        ("iso-2022-kr", "iso2022_kr", "회의"),
        # Declared wrongly, or not a charset.
        ("us-ascii", "utf-8", "À bientôt"),
        ("shift_jis", "utf-8", "会議の件を話しましょう"),
        ("utf-8", "cp1252", "À bientôt"),
        ("no-such-charset", "utf-8", "À bientôt"),
        ("no-such-charset", "cp1252", "À bientôt"),
        ("rot13", "utf-8", "À bientôt"),
        ("unicode_escape", "utf-8", "C:\\dir \\x41"),
        ("replacement", "utf-8", "été"),
        ("x-user-defined", "utf-8", "été"),
    ],
)
def test_a_text_is_decoded_by_its_charset_or_a_better_guess(charset: str, encoding: str, text: str) -> None:
    assert decoded(text.encode(encoding), charset) == text.removeprefix("\ufeff")


@pytest.mark.parametrize(
    ("charset", "content", "text"),
    [
        ("utf-8", "Déjà vu, élève".encode()[:-1] + b"\xc3", "Déjà vu, élèv\ufffd"),
        ("iso-2022-jp", "会議の件".encode("iso2022_jp").replace(b"\x1b(B", b"\x1b"), "会議の件"),
        ("utf-16-le", "Привет".encode("utf-16-le") + b"\x00", "Привет\ufffd"),
    ],
)
def test_a_damaged_text_keeps_its_charset(charset: str, content: bytes, text: str) -> None:
    assert decoded(content, charset).startswith(text)


@given(st.binary(max_size=40), st.text(max_size=12) | st.sampled_from(["utf-7", "idna", "utf-16", "hz", "x-sjis"]))
def test_no_bytes_in_no_charset_break_the_reading(content: bytes, charset: str) -> None:
    assert isinstance(decoded(content, charset), str)
    assert len(b"".join(base64_chunks([content]))) <= len(content)


# Regular expressions of mailonce.toml


@pytest.mark.timeout(60)
@pytest.mark.parametrize("regex", ["(a|a)*b", "(a+)+b", "(a*)*b", "(.*)(.*)(.*)(.*)c$", r"(\w+\s?)+!"])
def test_no_text_makes_one_slow(regex: str) -> None:
    assert not search(regex, "a" * 100_000)


@pytest.mark.parametrize(
    ("regex", "groups"), [("lot", 0), (r"lot (\d+)", 1), ("(?P<a>x)(y)", 2), (r"\pL+", 0), ("été", 0)]
)
def test_how_many_values_it_captures(regex: str, groups: int) -> None:
    assert check_regex(regex) == groups


@pytest.mark.parametrize(
    ("regex", "complaint"),
    [
        ("(", r"missing \)"),
        ("a(?=b)", r"invalid perl operator.*no lookaround"),
        ("(?<!a)b", r"no lookaround"),
        (r"(a)\1", r"no backreferences"),
        (r"\bété\b", "beside letters other than ASCII"),
    ],
)
def test_what_it_has_not_is_said(regex: str, complaint: str) -> None:
    with pytest.raises(BadRegex, match=complaint):
        check_regex(regex)


def test_case_matters_only_where_it_is_asked_for() -> None:
    assert search("ÉTÉ", "été")
    assert not search("ÉTÉ", "été", ignore_case=False)
    assert search("ÉTÉ", "half a pair \ud800, été")


@pytest.mark.parametrize(
    ("regex", "text", "captured"),
    [
        (r"lot (\S+)", "ÉTÉ: Lot №42 é", "№42".encode()),
        (r"lot (\d+)", "lot x", None),
        (r"lot(?: (\d+))?", "lot x", None),
        (r"(\d+)", "a\ud800 7", b"7"),
    ],
)
def test_the_first_group_that_a_regex_captures(regex: str, text: str, captured: bytes | None) -> None:
    match = search(regex, text)
    assert (match and match[1]) == captured
