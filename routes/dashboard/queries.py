"""Filters in the URL of a page: links can be shared, and forms omit empty fields."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime

from orchestrator.operations.search import FIELDS

LAST = {"hour": 3600, "day": 24 * 3600, "week": 7 * 24 * 3600}
PAGE_LENGTH = 50


def asked_for(given: Mapping[str, str]) -> dict[str, str]:
    """The filter as it is in the URL, for links to the same."""
    return {name: given[name] for name in (*FIELDS, "last") if given.get(name)}


def filters_of(given: Mapping[str, str]) -> dict[str, str]:
    """The fields that are not empty; ``last`` (hour, day, week) becomes ``since``."""
    chosen = {name: given[name] for name in FIELDS if given.get(name)}
    length_s = LAST.get(given.get("last", ""))
    if length_s and "since" not in chosen:
        chosen["since"] = datetime.fromtimestamp(time.time() - length_s, UTC).isoformat(timespec="seconds")
    return chosen


def local_path(text: str) -> str:
    """Only paths of this service: a link to the sign-in must not lead to another site."""
    is_local = text.startswith("/") and not text.startswith(("//", "/\\")) and text.isprintable()
    return text if is_local else ""
