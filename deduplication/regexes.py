"""Regular expressions that people write into mailonce.toml, on an engine that no text can slow down.

Python's own takes hours for ``(a|a)*b`` and forty letters a, and a sender decides what it meets. RE2 takes linear
time; for that it has no lookaround and no backreferences, and its \\b, \\w, \\d and \\s know ASCII only.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

import re2

from deduplication.email import well_formed

_ASCII_ONLY = re.compile(r"\\[bBwW]")


class BadRegex(ValueError):
    """Says what is wrong with it."""


def check(regex: str) -> int:
    """How many values it captures. Raises BadRegex."""
    if not regex.isascii() and _ASCII_ONLY.search(regex):
        raise BadRegex(r"beside other letters than ASCII, \b and \w do not see a word; \pL is any letter")
    try:
        groups: int = _compiled(regex, ignore_case=True).groups
    except (re2.error, UnicodeEncodeError) as error:
        said = error.args[0].decode("utf-8", "replace") if isinstance(error, re2.error) else str(error)
        raise BadRegex(f"{' '.join(said.split())} (RE2: no lookaround, no backreferences)") from None
    return groups


# On bytes, as RE2 itself works: to say where in a text a match is takes longer than to find it.


def is_in(regex: str, text: str, *, ignore_case: bool = True) -> bool:
    """Whether it matches anywhere."""
    return _compiled(regex, ignore_case=ignore_case).search(well_formed(text).encode()) is not None


def first_captured(regex: str, text: str) -> str:
    """What the first group of the match holds; empty without a match, and where the group had no part in it."""
    match = _compiled(regex, ignore_case=True).search(well_formed(text).encode())
    return (match[1] or b"").decode() if match else ""


@lru_cache(maxsize=1000)
def _compiled(regex: str, *, ignore_case: bool) -> Any:
    options = re2.Options()
    options.case_sensitive = not ignore_case
    options.log_errors = False
    return re2.compile(regex, options)
