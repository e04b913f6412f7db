"""The body of a request: JSON that is safe to keep and to send on, and models that say what is wrong with it."""

from __future__ import annotations

import json
import math
import re
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from deduplication.text import well_formed

MAX_NESTING = 100  # deeper than any real payload, and safe to write out again
MOST_VALUES = 200_000  # a thousand messages have a tenth of that; millions of them take seconds to read
MOST_DIGITS = 1000  # Python reads and writes numbers of up to 4,300
_TEXT = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_HALF_A_PAIR = re.compile(r"\\u[dD][89a-fA-F]")  # maybe: the other half may follow
# Numbers too big to be written out again stay texts: of several items in a request, one must not spoil the others.
_DECODER = json.JSONDecoder(
    parse_int=lambda digits: int(digits) if len(digits) <= MOST_DIGITS else digits,
    parse_float=lambda digits: digits if math.isinf(float(digits)) else float(digits),
    parse_constant=int,  # raises ValueError: NaN and Infinity are not JSON
)

Model = TypeVar("Model", bound=BaseModel)


class InvalidPayload(Exception):
    """The request can never be accepted as it is; ``field`` names the invalid part, if it is a single one."""

    def __init__(self, message: str, *, field: str = "", http_status: int = 400) -> None:
        super().__init__(message)
        self.field = field
        self.http_status = http_status


def parse_json(body: bytes, content_type: str = "application/json") -> Any:
    """Every text in it can be hashed, stored and sent. Raises InvalidPayload."""
    media_type = content_type.partition(";")[0].strip().lower()
    if media_type != "application/json" and not media_type.endswith("+json"):
        raise InvalidPayload(f"Content-Type must be application/json, got {media_type[:200]!r}", http_status=415)
    encoding = json.detect_encoding(body)
    try:
        try:
            text = body.decode(encoding)
        except UnicodeDecodeError:
            text = well_formed(body.decode(encoding, "surrogatepass"))
        if text.count(",") > MOST_VALUES and _TEXT.sub("", text).count(",") > MOST_VALUES:
            raise InvalidPayload(f"the body must have at most {MOST_VALUES} values")
        document = _DECODER.decode(text)
        if text.count("{") + text.count("[") > MAX_NESTING and _depth(document) > MAX_NESTING:
            raise InvalidPayload(f"the body must have at most {MAX_NESTING} levels of nesting")
    except (ValueError, RecursionError) as error:
        raise InvalidPayload("the body is not valid JSON") from error
    if _HALF_A_PAIR.search(text):
        return json.loads(well_formed(json.dumps(document, ensure_ascii=False)))
    return document


def _depth(value: Any) -> int:
    if not isinstance(value, dict | list):
        return 0
    return 1 + max(map(_depth, value.values() if isinstance(value, dict) else value), default=0)


def read(model: type[Model], given: Any, what: str = "query") -> Model:
    """Raises InvalidPayload, which names the first field that is wrong. ``what`` is ``given`` in a sentence."""
    try:
        return model.model_validate(given)
    except ValidationError as error:
        raise _in_words(model, error, what) from error


def _in_words(model: type[BaseModel], error: ValidationError, what: str) -> InvalidPayload:
    first = error.errors(include_url=False)[0]
    field = str(first["loc"][0]) if first["loc"] else ""
    match first["type"]:
        case "model_type":
            return InvalidPayload(f"the {what} must be a JSON object, got {type(first['input']).__name__}")
        case "extra_forbidden":
            return InvalidPayload(f"the {what} accepts {', '.join(model.model_fields) or 'no fields'}", field=field)
        case "value_error":  # one of a model, not of a field, begins with the name of the field
            text = first["msg"].removeprefix("Value error, ")
            return InvalidPayload(f"{field} {text}" if field else text, field=field or text.partition(" ")[0])
        case "missing":
            return InvalidPayload(f"{field} is required: {model.model_fields[field].description}", field=field)
    return InvalidPayload(f"{field} {first['msg'].replace('Input should be', 'must be')}", field=field)
