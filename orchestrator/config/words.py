"""What is wrong with a value, in words: pydantic's errors as sentences that show no value."""

from collections.abc import Iterable, Mapping
from enum import EnumType
from types import NoneType
from typing import Any, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, PydanticCustomError

Loc = tuple[str | int, ...]
"""Where a value is, as pydantic says it: keys, and numbers of list entries."""

_KINDS: Mapping[Any, str] = {str: "a text", bool: "true or false", tuple: "a text, or a list of texts", dict: "a table"}


def reason(text: str) -> PydanticCustomError:
    """For a validator that can say more than ``must_be``. The text must not show a secret."""
    return PydanticCustomError("reason", "{text}", {"text": text})


def must_be(field: FieldInfo) -> str:
    """Its bounds and its description. Without both, the words that it may be, or its type."""
    limits = {name: getattr(rule, name) for rule in field.metadata for name in ("ge", "le") if hasattr(rule, name)}
    bounds = f"{limits.get('ge', 'up')} to {limits['le']}" if "le" in limits else ""
    if bounds or field.description:
        return f"{bounds} {field.description or ''}".strip()
    kinds = [kind for kind in get_args(field.annotation) or (field.annotation,) if kind is not NoneType]
    words = list(kinds[0]) if isinstance(kinds[0], EnumType) else kinds
    if isinstance(words[0], str):
        return listed(words)
    return _KINDS[kinds[0] if len(kinds) == 1 else get_origin(field.annotation)]


def listed(words: Iterable[str]) -> str:
    *first, last = (f'"{word}"' for word in words)
    return f"{', '.join(first)} or {last}"


def problem(model: type[BaseModel], error: ErrorDetails) -> tuple[Loc, str]:
    """The place of the innermost field that is described, and how a sentence about it goes on."""
    loc, position = error["loc"], 0
    fields: Mapping[str, FieldInfo] = model.model_fields
    field, length = None, 0
    while position < len(loc) and loc[position] in fields:
        field, length = fields[str(loc[position])], position + 1
        inner = _model_in(field.annotation)
        fields = inner.model_fields if inner else {}
        position = length if inner is field.annotation else length + 1  # behind the name or number of an entry
    if error["type"] == "extra_forbidden":
        return loc, f"is unknown; known are {', '.join(fields)}"
    if error["type"] == "reason" or field is None:
        return loc, error["msg"]
    return loc[:length], f"{'is required; it ' if error['type'] == 'missing' else ''}must be {must_be(field)}"


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The model of a table, of each entry of a list, or of each value of a table of tables."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for inner in get_args(annotation) if (found := _model_in(inner))), None)
