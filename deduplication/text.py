"""Decodes the bytes of mail (Base64, charsets, which are often declared wrongly, and Unicode's normal form), and runs
the regular expressions of mailonce.toml.

These use RE2, because senders choose the text: RE2 takes linear time, while Python's own engine takes hours for
``(a|a)*b`` and forty letters a. RE2 has no lookaround and no backreferences, and its \\b, \\w, \\d and \\s only match
ASCII.
"""

import binascii
import codecs
import re
import unicodedata
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

import re2
import webencodings

_MORE_THAN_THIRTY_MARKS = re2.compile(r"\pM{31}")
_ASCII_ONLY = re.compile(r"\\[bBwW]")
_C1 = re.compile(r"[\x80-\x9f]")
_CHARSET = re.compile(r"[\w.:-]{1,40}", re.ASCII)
QUOTED = r'"(?:[^"\\]|\\.)*+"'
# Comments may be nested. What is never closed is consumed too, so that each character is read a fixed number of times.
_QUOTED_OR_COMMENT = re.compile(
    r'"(?:[^"\\]|\\.)*+(?P<quoted>"?)'
    r"|\((?:[^()\\]|\\.|\((?:[^()\\]|\\.|\((?:[^()\\]|\\.)*+\))*+\))*+(?P<comment>\)?)",
    re.DOTALL,
)
_NOT_BASE64 = bytes(set(range(256)) - set(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/="))
_NOT_CHARSETS = {"idna", "punycode", "unicode-escape", "raw-unicode-escape", "undefined"}  # codecs of Python
_PYTHON_CODECS = {"ascii", "utf-16", "hz", "iso2022_kr"}  # Python decodes more texts in these than browsers do
_NO_CODECS = {"replacement", "x-user-defined"}
# The declared charset is often a subset of the charset that was used.
_READ_AS = {"ascii": "utf-8", "gbk": "gb18030", "iso2022_jp": "iso2022_jp_ext"}
WINDOWS_1252 = "".join(bytes([byte]).decode("cp1252", "ignore") or chr(byte) for byte in range(256))


def well_formed(text: str) -> str:
    """Replaces unpaired surrogates, which JSON can contain, but which cannot be hashed, stored or sent."""
    if text.isascii():
        return text
    try:
        text.encode()
        return text
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def nfc(text: str) -> str:
    """Unicode's normal form in linear time. A text with more than 30 marks on one letter (UAX 15, 13) is not changed,
    because marks are sorted in quadratic time: 160,000 of them took more than a minute."""
    try:
        text.encode("latin-1")  # a fast check: all letters of Latin-1 are in NFC
        return text
    except UnicodeEncodeError:
        has_many = _MORE_THAN_THIRTY_MARKS.search(text.encode("utf-8", "surrogatepass"))
        return text if has_many else unicodedata.normalize("NFC", text)


def replace_c1(text: str) -> str:
    """Replaces the control characters of ISO-8859-1, which do not occur in mail, by the letters of Windows-1252: many
    senders declare the former and write the latter."""
    return _C1.sub(lambda match: WINDOWS_1252[ord(match[0])], text)


def without_comments(header: str, open_quote: str) -> str:
    """The header without comments in parentheses, nested up to three levels deep. Quoted text is kept. Text after a
    quote or comment that is never closed is kept too, with ``open_quote`` in place of its quotes."""

    def kept(match: re.Match[str]) -> str:
        return match[0] if match["quoted"] else " " if match["comment"] else match[0].replace('"', open_quote)

    return _QUOTED_OR_COMMENT.sub(kept, header)


def base64_chunks(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Decodes Base64 up to the padding. Ignores characters outside the alphabet and an incomplete byte at the end."""
    pending = b""
    for chunk in chunks:
        letters, padding, _ = (pending + chunk.translate(None, _NOT_BASE64)).partition(b"=")
        end = len(letters) - len(letters) % 4
        yield binascii.a2b_base64(letters[:end])
        pending = letters[end:]
        if padding:
            break
    if len(pending) > 1:
        yield binascii.a2b_base64(pending + b"==")


def quoted_printable_chunks(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Decodes whole lines at a time."""
    pending = b""
    for chunk in chunks:
        lines, line_end, pending = (pending + chunk).rpartition(b"\n")
        yield binascii.a2b_qp(lines + line_end)
    yield binascii.a2b_qp(pending)


def decoded(content: bytes, charset: str) -> str:
    """Decodes with the declared charset if possible, else with the most likely one. UTF-7 may yield unpaired
    surrogates."""
    declared = _find_codec(charset)
    text = decode_strictly(content, declared)
    if text is None and not content.isascii():
        text = decode_strictly(content, "utf-8")
    return (_decode_loosely(content, declared) if text is None else text).removeprefix("\ufeff")


def decode_strictly(content: bytes, codec: str) -> str | None:
    try:
        return content.decode(codec)
    except ValueError:
        return None


def _find_codec(charset: str) -> str:
    """The codec that browsers use for a charset (Windows-1252 for ISO-8859-1); UTF-8 if it is unknown or missing."""
    name = charset.strip(" '\"").lower()
    if not _CHARSET.fullmatch(name):
        return "utf-8"
    try:
        codec = codecs.lookup(name).name
        b"\0\0\0\0".decode(codec, "replace")  # raises for rot13 and other codecs that are no charsets
    except (LookupError, ValueError):
        codec = "undefined"
    label = webencodings.lookup(name)
    if label is not None and label.name not in _NO_CODECS and codec not in _PYTHON_CODECS:
        codec = label.codec_info.name
    return "utf-8" if codec in _NOT_CHARSETS else _READ_AS.get(codec, codec)


def _decode_loosely(content: bytes, codec: str) -> str:
    """Decodes with the codec if most multi-byte characters are intact, which make a text shorter than its bytes; else
    the text is in Windows-1252."""
    text = content.decode(codec, "replace")
    saved, lost = len(content) - len(text), text.count("\ufffd")
    if saved > lost or (saved == lost and codec == "utf-8"):  # text in other charsets is hardly ever valid UTF-8
        return text
    return codecs.charmap_decode(content, "strict", WINDOWS_1252)[0]


class BadRegex(ValueError):
    """A regular expression is invalid; the message says why."""


def check_regex(regex: str) -> int:
    """Returns the number of groups. Raises BadRegex."""
    if not regex.isascii() and _ASCII_ONLY.search(regex):
        raise BadRegex(r"must not have \b or \w beside letters other than ASCII; \pL is any letter")
    try:
        groups: int = _compile(regex, ignore_case=True).groups
    except re2.error as error:
        message = error.args[0].decode("utf-8", "replace")
        raise BadRegex(f"{' '.join(message.split())} (RE2: no lookaround, no backreferences)") from None
    return groups


def search(regex: str, text: str, *, ignore_case: bool = True) -> Any:
    """The first match of a valid regex, or None. Its groups are bytes: RE2 itself searches UTF-8, and converting the
    position in bytes takes longer than the search."""
    return _compile(regex, ignore_case=ignore_case).search(well_formed(text).encode())


@lru_cache(maxsize=1000)
def _compile(regex: str, *, ignore_case: bool) -> Any:
    options = re2.Options()
    options.case_sensitive = not ignore_case
    options.log_errors = False
    return re2.compile(regex, options)
