"""The body of a request: JSON that is safe to keep and to send on, and models that say what is wrong with it."""

from __future__ import annotations

import json
import math
import re
import secrets
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from deduplication.spool import LARGE_BYTES, Blob, Content, spooled
from deduplication.text import well_formed

MAX_NESTING = 100  # deeper than any real payload, and safe to write out again
MOST_VALUES = 200_000  # a thousand messages have a tenth of that; millions of them take seconds to read
MOST_DIGITS = 1000  # Python reads and writes numbers of up to 4,300
_TEXT = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_HALF_A_PAIR = re.compile(r"\\u[dD][89a-fA-F]")  # maybe: the other half may follow
_WITHIN_TEXT = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)
_WHOLE_ESCAPES = re.compile(rb"(?:[^\\]++|\\u[dD][89abAB]..\\u....|\\u(?![dD][89abAB])....|\\[^u])*+", re.DOTALL)
_UNICODE_ESCAPES = re.compile(rb"(?:\\u[0-9a-fA-F]{4})+|\\[^u]", re.DOTALL)
MAX_KEY_BYTES = 100  # from the beginning of a lifted field's name to its value
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
    decoder = _DECODER
    if isinstance(content, Blob) and files:
        body, lifted = _lift(content, re.compile(rb'"(?:%s)"\s*:\s*"\Z' % files.encode()))
        decoder = json.JSONDecoder(object_hook=lambda found: _restored(found, lifted), **_HOOKS)
    else:
        body = content.read() if isinstance(content, Blob) else content
    encoding = json.detect_encoding(body)
    try:
        try:
            text = body.decode(encoding)
        except UnicodeDecodeError:
            text = well_formed(body.decode(encoding, "surrogatepass"))
        if text.count(",") > MOST_VALUES and _TEXT.sub("", text).count(",") > MOST_VALUES:
            raise InvalidPayload(f"the body must have at most {MOST_VALUES} values")
        document = decoder.decode(text)
        if text.count("{") + text.count("[") > MAX_NESTING and _depth(document) > MAX_NESTING:
            raise InvalidPayload(f"the body must have at most {MAX_NESTING} levels of nesting")
    except (ValueError, RecursionError) as error:
        raise InvalidPayload("the body is not valid JSON") from error
    if _HALF_A_PAIR.search(text) and decoder is _DECODER:
        return json.loads(well_formed(json.dumps(document, ensure_ascii=False)))
    return document


def _lift(raw: Blob, field: re.Pattern[bytes]) -> tuple[bytes, dict[str, Blob]]:
    """The document with marks in place of long values of such fields, and these by their marks."""
    mark, lifted = secrets.token_hex(16), dict[str, Blob]()
    kept, copied, opened, is_inside, place, chunk_start = b"", 0, 0, False, 0, 0
    for chunk in raw.chunks():
        while place < len(chunk):
            if not is_inside:
                quote = chunk.find(b'"', place)
                is_inside, place, opened = quote >= 0, quote + 1 or len(chunk), chunk_start + quote + 1
                continue
            found = _WITHIN_TEXT.match(chunk, place)
            place = found.end() if found else place
            if place == len(chunk):
                break
            if chunk[place] != ord('"'):  # a backslash at the end: what it escapes is in the next chunk
                place += 2
                break
            is_inside, closed, place = False, chunk_start + place, place + 1
            if closed - opened > LARGE_BYTES and field.search(raw.read(max(0, opened - MAX_KEY_BYTES), opened)):
                name = f"{mark}{len(lifted)}"
                lifted[name] = spooled(_unescaped(raw.part(opened, closed).chunks()), raw.spool)
                kept, copied = kept + raw.read(copied, opened) + name.encode(), closed
        place -= len(chunk)
        chunk_start += len(chunk)
    return kept + raw.read(copied), lifted


def _restored(found: dict[str, Any], lifted: dict[str, Blob]) -> dict[str, Any]:
    return {name: lifted.get(value, value) if isinstance(value, str) else value for name, value in found.items()}


def with_texts(value: Any) -> Any:
    """The same with the texts of such fields, where they are no files after all."""
    if isinstance(value, dict):
        return {name: with_texts(each) for name, each in value.items()}
    if isinstance(value, list):
        return list(map(with_texts, value))
    return value.read().decode("utf-8", "replace") if isinstance(value, Blob) else value


def _unescaped(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The text of a JSON string, in UTF-8. An invalid escape stays as it is."""
    left = b""
    for chunk in chunks:
        text = left + chunk
        found = _WHOLE_ESCAPES.match(text) if b"\\" in text else None
        end = found.end() if found else len(text)
        yield _unescape(text[:end])
        left = text[end:]
    yield _unescape(left)


def _unescape(text: bytes) -> bytes:
    if b"\\" not in text:
        return text
    try:
        if b"\\u" not in text:  # Latin-1 keeps all bytes as they are
            return str(json.loads(f'"{text.decode("latin-1")}"', strict=False)).encode("latin-1")
        return _UNICODE_ESCAPES.sub(lambda found: _character(found[0]), text)
    except ValueError:
        return text


def _character(escapes: bytes) -> bytes:
    return str(json.loads(f'"{escapes.decode("latin-1")}"')).encode("utf-8", "replace")


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
