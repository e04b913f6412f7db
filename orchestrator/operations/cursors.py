"""Cursors: where the next page of a list begins, as text for a URL. Anybody can write one, so none is trusted."""

from __future__ import annotations

import base64


class InvalidCursor(ValueError):
    """Not a cursor of the list that was asked for."""


_SEPARATOR = "\n"
_MOST = (1 << 63) - 1  # what SQLite accepts as a number


def write_cursor(*place: str | int) -> str:
    text = _SEPARATOR.join(map(str, place))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def read_cursor(cursor: str, length: int) -> list[str]:
    """Its parts. Raises InvalidCursor if it has another number of parts, or text that SQLite would refuse."""
    try:
        packed = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        place = packed.decode().split(_SEPARATOR)
    except ValueError as error:
        raise InvalidCursor(str(error)) from error
    if len(place) != length or not "".join(place).isprintable():
        raise InvalidCursor("not a cursor of this list")
    return place


def read_number(part: str) -> int:
    """Raises InvalidCursor."""
    if not (part.isascii() and part.isdigit() and len(part) < 20 and int(part) <= _MOST):
        raise InvalidCursor("not a number of a cursor")
    return int(part)
