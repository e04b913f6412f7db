"""Posts and chat messages: JSON of our own, one object or a list of them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from deduplication.message import Message
from routes.providers.base import InvalidPayload, text_field

MOST = 1000
TEXTS = ("source", "text", "title", "name", "url", "permalink")
TEXTS_OR_NUMBERS = ("id", "date", "created_utc")


def documents(value: Any) -> list[Any]:
    """The items of a request."""
    items = value if isinstance(value, list) else [value]
    if len(items) > MOST:
        raise InvalidPayload(f"the body takes at most {MOST} messages")
    return items


def parse(document: Any, destinations: Collection[str]) -> Message:
    if not isinstance(document, dict):
        raise InvalidPayload("a message takes a JSON object")
    message = Message(
        **{field: text_field(document, field) for field in TEXTS},
        **{field: _text_or_number(document, field) for field in TEXTS_OR_NUMBERS},
        media=_texts(document, "media") or (),
        destinations=_destinations(document, destinations),
    )
    if not message.key:
        raise InvalidPayload(
            "id takes the message's id; or give name, permalink, url, or title and created_utc", field="id"
        )
    return message


def _text_or_number(document: dict[str, Any], field: str) -> str:
    value = document.get(field)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(int(value)) if isinstance(value, int) or value.is_integer() else str(value)
    if value is not None and not isinstance(value, str):
        raise InvalidPayload(f"{field} takes a string or a number", field=field)
    return text_field(document, field)


def _texts(document: dict[str, Any], field: str) -> tuple[str, ...] | None:
    value = document.get(field)
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise InvalidPayload(f"{field} takes a list of strings", field=field)
    return tuple(value)


def _destinations(document: dict[str, Any], known: Collection[str]) -> tuple[str, ...] | None:
    wanted = _texts(document, "destinations")
    unknown = [each for each in wanted or () if each not in known]
    if unknown:
        raise InvalidPayload(f"destinations takes some of {', '.join(sorted(known))}", field="destinations")
    return wanted
