"""Posts and chat messages: JSON of our own, one object or a list of them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from deduplication.message import Message
from routes.providers.base import InvalidPayload
from routes.providers.fields import Document

MOST = 1000
TEXTS = ("source", "text", "title", "name", "url", "permalink")
TEXTS_OR_NUMBERS = ("id", "date", "created_utc")


def documents(value: Any) -> list[Any]:
    """The items of a request."""
    items = value if isinstance(value, list) else [value]
    if len(items) > MOST:
        raise InvalidPayload(f"the body must have at most {MOST} messages, got {len(items)}")
    return items


def parse(given: Any, destinations: Collection[str]) -> Message:
    """Raises InvalidPayload."""
    if not isinstance(given, dict):
        raise InvalidPayload(f"a message must be a JSON object, got {type(given).__name__}")
    document = Document(given)
    wanted = _texts(document, "destinations")
    if not set(wanted or ()) <= set(destinations):
        raise InvalidPayload(f"destinations must be some of {', '.join(sorted(destinations))}", field="destinations")
    message = Message(
        **{field: document.text(field) for field in TEXTS},
        **{field: _text_or_number(document, field) for field in TEXTS_OR_NUMBERS},
        media=_texts(document, "media") or (),
        destinations=wanted,
    )
    if not message.key:
        raise InvalidPayload("id is needed, or name, permalink, url, or title and created_utc", field="id")
    return message


def _text_or_number(document: Document, field: str) -> str:
    value = document.get(field)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(int(value)) if isinstance(value, int) or value.is_integer() else str(value)
    return document.text(field)


def _texts(document: Document, field: str) -> tuple[str, ...] | None:
    value = document.get(field)
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise InvalidPayload(f"{field} must be a list of strings", field=field)
    return tuple(value)
