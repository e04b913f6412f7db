"""What an operator's request asks for: times, limits, flags and words, each refused by its name where it is none."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from deduplication.dates import parse_date
from routes.providers.base import InvalidPayload

MOST_LISTED = 1000
OF_ANOTHER = "cursor takes the next of an earlier answer to the same question"


def check_fields(given: Iterable[str], takes: Collection[str], what: str = "query") -> None:
    unknown = sorted(set(given) - set(takes))
    if unknown:
        *others, last = takes
        listed = f"{', '.join(others)} and {last}" if others else last
        raise InvalidPayload(f"the {what} takes {listed}", field=unknown[0])


def read_limit(given: Mapping[str, str]) -> int:
    text = given.get("limit", "100")
    if not (text.isascii() and text.isdigit() and len(text) < 10 and 1 <= int(text) <= MOST_LISTED):
        raise InvalidPayload(f"limit takes 1 to {MOST_LISTED}", field="limit")
    return int(text)


def read_moment_ms(given: Mapping[str, Any], field: str) -> int | None:
    value = given.get(field)
    if value is None:
        return None
    moment = parse_date(value) if isinstance(value, str) else None
    if moment is None:
        raise InvalidPayload(f"{field} takes a time such as 2026-11-16T09:00:00Z", field=field)
    return int(moment.timestamp() * 1000)


def read_choice(given: Mapping[str, Any], field: str, choices: Iterable[str]) -> str | None:
    value, known = given.get(field), list(choices)
    if value is not None and value not in known:
        raise InvalidPayload(f"{field} takes one of {', '.join(known)}", field=field)
    return value


def read_words(given: Mapping[str, Any], field: str, takes: str) -> str | None:
    value = given.get(field)
    if value is not None and not isinstance(value, str):
        raise InvalidPayload(f"{field} takes {takes}", field=field)
    return value or None


def check_aim(document: Mapping[str, Any], filters: Collection[str], *, has_filter: bool, dry_run: bool) -> None:
    """Nothing is done to everything because a filter was forgotten: who wants that says ``all``."""
    wants_all = read_flags(document, ("all",)).get("all", False)
    if wants_all and has_filter:
        raise InvalidPayload("all takes no filter beside it", field="all")
    if not (wants_all or has_filter or dry_run):
        raise InvalidPayload(f'the body takes a filter ({", ".join(filters)}), or "all": true for all', field="all")


def read_flags(document: Mapping[str, Any], flags: Collection[str]) -> dict[str, bool]:
    """Of those that are given."""
    given = {name: value for name, value in document.items() if name in flags}
    for name, value in given.items():
        if not isinstance(value, bool):
            raise InvalidPayload(f"{name} takes true or false", field=name)
    return given
