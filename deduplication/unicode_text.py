"""Unicode's normal form, in linear time."""

from __future__ import annotations

import unicodedata

import re2

_MORE_THAN_THIRTY_MARKS = re2.compile(r"\pM{31}")


def nfc(text: str) -> str:
    """As it is where more than thirty marks stand on one letter, which no language does (UAX 15, 13).

    Marks are sorted in quadratic time: 160,000 of them took more than a minute.
    """
    if _is_latin_1(text) or _MORE_THAN_THIRTY_MARKS.search(text.encode("utf-8", "surrogatepass")):
        return text
    return unicodedata.normalize("NFC", text)


def _is_latin_1(text: str) -> bool:
    """Of these letters each is in its normal form; to find out takes a fraction of the time of looking for marks."""
    try:
        text.encode("latin-1")
    except UnicodeEncodeError:
        return False
    return True
