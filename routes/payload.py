"""The body of a request: JSON that is safe to keep and to send on, and models that say what is wrong with it."""

import codecs
import json
import math
import re
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from deduplication.spool import CHUNK_BYTES, Blob, Content, Outline, transformed
from deduplication.text import well_formed

MAX_NESTING = 100  # deeper than any real payload, and safe to write out again
MOST_VALUES = 200_000  # a thousand messages have a tenth of that; millions of them take seconds to read
MOST_DIGITS = 1000  # Python reads and writes numbers of up to 4,300
_TEXT = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_HALF_A_PAIR = re.compile(r"\\u[dD][89a-fA-F]")  # maybe: the other half may follow
_REST_OF_TEXT = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)
_WHOLE_ESCAPES = re.compile(r"(?:[^\\]++|\\[^u]|\\u(?![dD][89abAB])....|\\u....(?=[^\\]|\\[^u]|\\u....))*+", re.DOTALL)
MAX_KEY_BYTES = 100  # from the beginning of the name of a field with a file to its value
# Numbers too big to be written out again stay texts: of several items in a request, one must not spoil the others.
_HOOKS: dict[str, Any] = {
    "parse_int": lambda digits: int(digits) if len(digits) <= MOST_DIGITS else digits,
    "parse_float": lambda digits: digits if math.isinf(float(digits)) else float(digits),
    "parse_constant": int,  # raises ValueError: NaN and Infinity are not JSON
}
_DECODER = json.JSONDecoder(**_HOOKS)

Model = TypeVar("Model", bound=BaseModel)


class InvalidPayload(Exception):
    """The request can never be accepted as it is; ``field`` names the invalid part, if it is a single one."""

    def __init__(self, message: str, *, field: str = "", http_status: int = 400) -> None:
        super().__init__(message)
        self.field = field
        self.http_status = http_status


def parse_json(content: Content, content_type: str = "application/json", files: str = "") -> Any:
    """Every text in it can be hashed, stored and sent. Raises InvalidPayload.

    Of a body on the disk, long values of fields whose names match ``files`` are left there: they become a Blob.
    """
    media_type = content_type.partition(";")[0].strip().lower()
    if media_type != "application/json" and not media_type.endswith("+json"):
        raise InvalidPayload(f"Content-Type must be application/json, got {media_type[:200]!r}", http_status=415)
    if isinstance(content, Blob):
        outline = Outline(content, lambda body: _find_values(body, files))
        body, decoder = outline.text, json.JSONDecoder(object_hook=lambda found: _restored(found, outline), **_HOOKS)
    else:
        body, decoder = content, _DECODER
    encoding = json.detect_encoding(body)
    try:
        text = well_formed(body.decode(encoding, "surrogatepass"))
        if text.count(",") > MOST_VALUES and _TEXT.sub("", text).count(",") > MOST_VALUES:
            raise InvalidPayload(f"the body must have at most {MOST_VALUES} values")
        document = decoder.decode(text)
        if text.count("{") + text.count("[") > MAX_NESTING and _depth(document) > MAX_NESTING:
            raise InvalidPayload(f"the body must have at most {MAX_NESTING} levels of nesting")
    except (ValueError, RecursionError) as error:
        raise InvalidPayload("the body is not valid JSON") from error
    return _repaired(document) if _HALF_A_PAIR.search(text) else document


def _find_values(body: Blob, files: str) -> Iterator[tuple[int, int]]:
    """The texts of fields with these names. A quote in a text is escaped, so what looks like such a field is one."""
    field = re.compile(rb'"(?:%s)"\s{0,9}:\s{0,9}"' % files.encode())
    end = 0
    while files and (found := body.search(field, end, longest=MAX_KEY_BYTES)):
        start = end = found[1]
        while chunk := body.read(end, end + CHUNK_BYTES):
            rest = _REST_OF_TEXT.match(chunk)
            length = rest.end() if rest else 0
            end += length
            if not length or chunk[length : length + 2] not in (b"", b"\\"):  # a backslash at the end escapes more
                break
        yield start, end


def _restored(found: dict[str, Any], outline: Outline) -> dict[str, Any]:
    for name, value in found.items():
        if isinstance(value, str) and isinstance(raw := outline.restored(value.encode(errors="replace")), Blob):
            found[name] = transformed(raw, _unescaped)
    return found


def _repaired(value: Any) -> Any:
    """The same with all names and texts well-formed."""
    if isinstance(value, dict):
        return {well_formed(name): _repaired(each) for name, each in value.items()}
    if isinstance(value, list):
        return list(map(_repaired, value))
    return well_formed(value) if isinstance(value, str) else value


def with_texts(value: Any) -> Any:
    """The same with the texts of such fields, where they are no files after all."""
    if isinstance(value, dict):
        return {name: with_texts(each) for name, each in value.items()}
    if isinstance(value, list):
        return list(map(with_texts, value))
    return value.read().decode("utf-8", "replace") if isinstance(value, Blob) else value


def _unescaped(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The text of a JSON string, in UTF-8."""
    left = ""
    for chunk in chain(codecs.iterdecode(chunks, "utf-8", "surrogatepass"), ("",)):
        text = left + chunk
        found = _WHOLE_ESCAPES.match(text) if chunk else None
        end = found.end() if found else len(text)
        yield json.loads(f'"{text[:end]}"').encode("utf-8", "replace")
        left = text[end:]


def _depth(value: Any) -> int:
    if not isinstance(value, dict | list):
        return 0
    return 1 + max(map(_depth, value.values() if isinstance(value, dict) else value), default=0)


def read(model: type[Model], given: Any, what: str = "query") -> Model:
    """Raises InvalidPayload, which names the first field that is wrong. ``what`` is ``given`` in a sentence."""
    try:
        return model.model_validate(given)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = str(first["loc"][0]) if first["loc"] else ""
        match first["type"]:
            case "model_type":
                text = f"the {what} must be a JSON object, got {type(first['input']).__name__}"
            case "extra_forbidden":
                text = f"the {what} accepts {', '.join(model.model_fields) or 'no fields'}"
            case "value_error":  # one of a model, not of a field, begins with the name of the field
                text = f"{field} {first['msg'].removeprefix('Value error, ')}".lstrip()
                field = field or text.partition(" ")[0]
            case "missing":
                text = f"{field} is required: {model.model_fields[field].description}"
            case _:
                text = f"{field} {first['msg'].replace('Input should be', 'must be')}"
        raise InvalidPayload(text, field=field) from error
