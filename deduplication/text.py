"""Text: from the bytes of mail to well-formed text (Base64, charsets, which are often declared wrongly, and Unicode's
normal form), and the regular expressions of mailonce.toml.

Those use an engine (RE2) that no text can slow down: Python's own takes hours for ``(a|a)*b`` and forty letters a, and
senders choose the text. RE2 takes linear time, but has no lookaround and no backreferences, and its \\b, \\w, \\d and
\\s match ASCII only.
"""

from __future__ import annotations

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
_NOT_BASE64 = bytes(set(range(256)) - set(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/="))
_NOT_CHARSETS = {"idna", "punycode", "unicode-escape", "raw-unicode-escape", "undefined"}  # but Python decodes them
_BETTER_IN_PYTHON = {"ascii", "utf-16", "hz", "iso2022_kr"}  # Python decodes more of these than browsers do
_NO_CODECS = {"replacement", "x-user-defined"}
# The declared charset is often a subset of the one that was used.
_READ_AS = {"ascii": "utf-8", "gbk": "gb18030", "iso2022_jp": "iso2022_jp_ext"}
WINDOWS_1252 = "".join(bytes([byte]).decode("cp1252", "ignore") or chr(byte) for byte in range(256))


def well_formed(text: str) -> str:
    """Without halves of surrogate pairs, which JSON may carry but which cannot be hashed, stored or sent."""
    if text.isascii():
        return text
    for charset in ("latin-1", "utf-8"):  # the first takes a tenth of the time, and suffices for many languages
        try:
            text.encode(charset)
        except UnicodeEncodeError:
            continue
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def nfc(text: str) -> str:
    """Unicode's normal form in linear time: a text with more than 30 marks on one letter (UAX 15, 13) is not changed.

    Marks are sorted in quadratic time: 160,000 of them took more than a minute.
    """
    try:
        text.encode("latin-1")  # all these letters are in their normal form, and this check is fast
        return text
    except UnicodeEncodeError:
        has_many = _MORE_THAN_THIRTY_MARKS.search(text.encode("utf-8", "surrogatepass"))
        return text if has_many else unicodedata.normalize("NFC", text)


def without_c1(text: str) -> str:
    """With letters of Windows-1252 in place of control characters of ISO-8859-1, which do not occur in mail: senders
    declare the latter and write the former, and some programs decode as declared."""
    return _C1.sub(lambda found: WINDOWS_1252[ord(found[0])], text)


def base64_decoded(content: bytes) -> bytes:
    """Up to the padding. Characters outside the alphabet are ignored, and so is half a byte at the end."""
    return b"".join(base64_chunks((content,)))


def base64_chunks(chunks: Iterable[bytes]) -> Iterator[bytes]:
    left = b""
    for chunk in chunks:
        letters, padding, _ = (left + chunk.translate(None, _NOT_BASE64)).partition(b"=")
        whole = len(letters) - len(letters) % 4
        yield binascii.a2b_base64(letters[:whole])
        left = letters[whole:]
        if padding:
            break
    if len(left) > 1:
        yield binascii.a2b_base64(left + b"==")


def quoted_printable_chunks(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Cut at line ends: a line is decoded as a whole."""
    left = b""
    for chunk in chunks:
        lines, line_end, left = (left + chunk).rpartition(b"\n")
        yield binascii.a2b_qp(lines + line_end)
    yield binascii.a2b_qp(left)


def decoded(content: bytes, charset: str) -> str:
    """In the declared charset if possible, else in the most likely one. UTF-7 may yield half a surrogate pair."""
    declared = _codec(charset)
    text = strictly_decoded(content, declared)
    if text is None and not content.isascii():
        text = strictly_decoded(content, "utf-8")
    return (_loosely_decoded(content, declared) if text is None else text).removeprefix("\ufeff")


def strictly_decoded(content: bytes, codec: str) -> str | None:
    try:
        return content.decode(codec)
    except ValueError:
        return None


def _codec(charset: str) -> str:
    """By the label as browsers read it (ISO-8859-1 is Windows-1252); UTF-8 for an unknown or missing one."""
    name = charset.strip(" '\"").lower()
    if not _CHARSET.fullmatch(name):
        return "utf-8"
    try:
        known = codecs.lookup(name).name
        b"\0\0\0\0".decode(known, "replace")  # raises for rot13 and others that are codecs, but not charsets
    except (LookupError, ValueError):
        known = "undefined"
    label = webencodings.lookup(name)
    if label is not None and label.name not in _NO_CODECS and known not in _BETTER_IN_PYTHON:
        known = label.codec_info.name
    return "utf-8" if known in _NOT_CHARSETS else _READ_AS.get(known, known)


def _loosely_decoded(content: bytes, codec: str) -> str:
    """Damaged multi-byte text is still shorter than its bytes by more than what is lost; else it was never that."""
    damaged = content.decode(codec, "replace")
    saved, lost = len(content) - len(damaged), damaged.count("\ufffd")
    if saved > lost or (saved == lost and codec == "utf-8"):  # other text is hardly ever valid UTF-8
        return damaged
    return codecs.charmap_decode(content, "strict", WINDOWS_1252)[0]


class BadRegex(ValueError):
    """The message says what is wrong."""


def check_regex(regex: str) -> int:
    """How many values it captures. Raises BadRegex."""
    if not regex.isascii() and _ASCII_ONLY.search(regex):
        raise BadRegex(r"must not have \b or \w beside letters other than ASCII; \pL is any letter")
    try:
        groups: int = _compiled(regex, ignore_case=True).groups
    except (re2.error, UnicodeEncodeError) as error:
        said = error.args[0].decode("utf-8", "replace") if isinstance(error, re2.error) else str(error)
        raise BadRegex(f"{' '.join(said.split())} (RE2: no lookaround, no backreferences)") from None
    return groups


# On bytes, as RE2 itself works: converting the position of a match into that of a str takes longer than to find it.


def is_in(regex: str, text: str, *, ignore_case: bool = True) -> bool:
    """Whether it matches anywhere."""
    return _compiled(regex, ignore_case=ignore_case).search(well_formed(text).encode()) is not None


def first_captured(regex: str, text: str) -> str:
    """The first group of the match; empty without a match, or if the group is not part of it."""
    match = _compiled(regex, ignore_case=True).search(well_formed(text).encode())
    return (match[1] or b"").decode() if match else ""


@lru_cache(maxsize=1000)
def _compiled(regex: str, *, ignore_case: bool) -> Any:
    options = re2.Options()
    options.case_sensitive = not ignore_case
    options.log_errors = False
    return re2.compile(regex, options)
