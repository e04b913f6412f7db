"""The scripts of lua/ as Redis gets them: each with what it needs of entry.lua, and nothing else.

Redis runs a script from its first line each time. To define all functions of entry.lua took a quarter of the time of a
claim, most of it for the positions of an entry's fields, which functions refer to: these are put in as numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from importlib import resources

_ALSO_NEEDS = {"claim": "fingerprint", "release": "fingerprint", "list": "indexes", "count": "indexes"}
_NUMBERS = re.compile(r"^local ([A-Z_]+(?:, [A-Z_]+)*) =\s+(\d+(?:, \d+)*)$", re.MULTILINE)
_STRING_OR_CAPITALS = re.compile(r"'[^'\n]*'|\b[A-Z][A-Z_]*\b")
_FUNCTION = re.compile(r"^local function (\w+)\((?:.*\bend$|(?:.|\n)*?\nend$)", re.MULTILINE)
_REST = "-- Most calls end above. What only the rest needs is defined here (lua_source.py)."
_COMMENT = re.compile(r"--.*")
_WORD = re.compile(r"\w+")


@cache
def source(step: str) -> str:
    """It is the same text each time, so that Redis knows it by its digest."""
    library = "\n".join(_read(file) for file in ("entry", _ALSO_NEEDS.get(step)) if file)
    return _with_numbers(_assembled(library, _read(step)))


def _read(file: str) -> str:
    return (resources.files("deduplication.journal") / "lua" / f"{file}.lua").read_text()


def _assembled(library: str, script: str) -> str:
    """The functions of the library stand in front of the first half of the script that needs them; those that it needs
    not at all are left out."""
    parts = list(_parts(library))
    text = ""
    for half in script.split(_REST):
        needed = _needed(parts, half)
        text += "\n".join([*needed, half])
        parts = [part for part in parts if part not in needed]
    return text


def _needed(parts: list[str], script: str) -> list[str]:
    """Each function stands behind those that it needs, so that one look from the end finds them all. What is no
    function is needed in any case."""
    words = _words(script)
    kept: list[str] = []
    for part in reversed(parts):
        function = _FUNCTION.match(part)
        if function is None or function[1] in words:
            words |= _words(part)
            kept.append(part)
    return kept[::-1]


def _words(text: str) -> set[str]:
    return set(_WORD.findall(_COMMENT.sub("", text)))


def _parts(library: str) -> Iterator[str]:
    """Each function, and what stands between two of them."""
    last = 0
    for function in _FUNCTION.finditer(library):
        yield library[last : function.start()]
        yield function[0]
        last = function.end()
    yield library[last:]


def _with_numbers(text: str) -> str:
    numbers: dict[str, str] = {}
    for names, values in _NUMBERS.findall(text):
        numbers.update(zip(names.split(", "), values.split(", "), strict=True))
    return _STRING_OR_CAPITALS.sub(lambda found: numbers.get(found[0], found[0]), _NUMBERS.sub("", text))
