"""Cursors: where the next page of a list begins, as text for an address. Anybody can write one, so none is trusted."""

from __future__ import annotations

import base64

_BETWEEN = "\n"
_MOST = (1 << 63) - 1  # what a store takes for a number


def write_cursor(*place: str | int) -> str:
    text = _BETWEEN.join(map(str, place))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def read_cursor(cursor: str, length: int) -> list[str]:
    """The parts that it was made of. Raises ValueError if there are not so many, or one that no store would take."""
    packed = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
    place = packed.decode().split(_BETWEEN)
    if len(place) != length or not "".join(place).isprintable():
        raise ValueError("no cursor, or one of another list")
    return place


def read_number(part: str) -> int:
    """Raises ValueError."""
    if not (part.isascii() and part.isdigit() and len(part) < 20 and int(part) <= _MOST):
        raise ValueError("no number of a cursor")
    return int(part)
