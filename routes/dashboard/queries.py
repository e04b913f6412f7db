"""Filters as they stand in an address: a link can be shared, and a form leaves out what is empty."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

LAST = {"hour": 3600, "day": 24 * 3600, "week": 7 * 24 * 3600}
PAGE_LENGTH = 50


def asked_for(given: Mapping[str, str], names: Iterable[str]) -> dict[str, str]:
    """The filter as it stands in the address, for a link to the same; whatever else stands there is left out."""
    return {name: given[name] for name in (*names, "last") if given.get(name)}


def filters_of(given: Mapping[str, str], names: Iterable[str]) -> dict[str, str]:
    """Those that say something; ``last`` (hour, day, week) says since when."""
    chosen = {name: given[name] for name in names if given.get(name)}
    length_s = LAST.get(given.get("last", ""))
    if length_s and "since" not in chosen:
        since = datetime.fromtimestamp(time.time() - length_s, UTC)
        chosen["since"] = since.isoformat(timespec="seconds")
    return chosen


def local_path(text: str) -> str:
    """Only within this service: a link to the sign-in must not lead to somebody else's."""
    is_local = text.startswith("/") and not text.startswith(("//", "/\\")) and text.isprintable()
    return text if is_local else ""
