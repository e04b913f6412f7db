"""What every provider's parser may raise, and how JSON bodies are read."""

from __future__ import annotations

import json
import math
from typing import Any

MAX_NESTING = 100  # deeper than any real payload, and safe to write out again


class InvalidPayload(Exception):
    """The request can never be taken as it is; ``field`` names the part that is wrong, if it is one."""

    def __init__(self, message: str, *, field: str = "", http_status: int = 400) -> None:
        super().__init__(message)
        self.field = field
        self.http_status = http_status


def json_object(content_type: str | None, body: bytes) -> dict[str, Any]:
    document = json_value(content_type, body)
    if not isinstance(document, dict):
        raise InvalidPayload("the body takes a JSON object")
    return document


def json_value(content_type: str | None, body: bytes) -> Any:
    media_type = (content_type or "").partition(";")[0].strip().lower()
    if media_type != "application/json" and not media_type.endswith("+json"):
        raise InvalidPayload("Content-Type takes application/json", http_status=415)
    try:
        document = json.loads(body, parse_constant=_refuse_constant, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise InvalidPayload("the body is not valid JSON") from error
    if not _is_within(document, MAX_NESTING):
        raise InvalidPayload(f"the body takes at most {MAX_NESTING} levels of nesting")
    return document


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):  # would be written out again as Infinity, which is not JSON
        raise ValueError(f"{text} is too big")
    return number


def _is_within(value: Any, levels: int) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels >= 0 and all(_is_within(each, levels - 1) for each in inner)


def text_field(document: dict[str, Any], field: str) -> str:
    """Absent and null are empty; anything else but text is refused."""
    value = document.get(field)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise InvalidPayload(f"{field} takes a string", field=field)
    return value
