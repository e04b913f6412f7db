"""From the bytes of mail to its text: Base64 and charsets, damaged and wrongly declared as they come."""

from __future__ import annotations

import binascii
import codecs
import re

import webencodings

_CHARSET = re.compile(r"[\w.:-]{1,40}", re.ASCII)
_NOT_BASE64 = bytes(set(range(256)) - set(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/="))
_NOT_CHARSETS = {"idna", "punycode", "unicode-escape", "raw-unicode-escape", "undefined"}  # but Python decodes them
_NOT_AS_BROWSERS_DO = {"ascii", "utf-16", "hz", "iso2022_kr"}  # of these Python makes more
_NO_CODECS = {"replacement", "x-user-defined"}
# What is declared is often the smaller relative of what was written.
_READ_AS = {"ascii": "utf-8", "gbk": "gb18030", "iso2022_jp": "iso2022_jp_ext"}
_WINDOWS_1252 = "".join(bytes([byte]).decode("cp1252", "ignore") or chr(byte) for byte in range(256))


def base64_decoded(content: bytes) -> bytes:
    """As far as the padding; what is no Base64 before it does not count, nor does half a byte at the end."""
    letters = content.translate(None, _NOT_BASE64).partition(b"=")[0]
    return binascii.a2b_base64(letters[: len(letters) - (len(letters) % 4 == 1)] + b"==")


def decoded(content: bytes, charset: str) -> str:
    """In the charset declared if that can be, else in the one that it looks like. UTF-7 may yield half a surrogate."""
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
    """As browsers read its label (ISO-8859-1 is Windows-1252 to them); UTF-8 for one that is unknown or none at all."""
    name = charset.strip(" '\"").lower()
    if not _CHARSET.fullmatch(name):
        return "utf-8"
    try:
        known = codecs.lookup(name).name
        b"\0\0\0\0".decode(known, "replace")  # rot13 and its like are codecs, but no charsets
    except (LookupError, ValueError):
        known = "undefined"
    label = webencodings.lookup(name)
    if label is not None and label.name not in _NO_CODECS and known not in _NOT_AS_BROWSERS_DO:
        known = label.codec_info.name
    return "utf-8" if known in _NOT_CHARSETS else _READ_AS.get(known, known)


def _loosely_decoded(content: bytes, codec: str) -> str:
    """Damaged multi-byte text is still shorter than its bytes by more than what is lost; else it was never that."""
    damaged = content.decode(codec, "replace")
    if len(content) - len(damaged) > damaged.count("\ufffd"):
        return damaged
    return codecs.charmap_decode(content, "strict", _WINDOWS_1252)[0]
