"""Requests of operators as models: each field is checked, described in /api/openapi.json, and named if it is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StrictBool, ValidationError, model_validator

from deduplication.again import Refusal
from orchestrator.operations.cursors import InvalidCursor
from orchestrator.operations.decisions import RELEASED, WOULD_RELEASE, Release
from orchestrator.operations.deliveries import REPLAYED, WOULD_REPLAY, Replay
from orchestrator.operations.destinations import MOST_REASON_CHARACTERS
from orchestrator.operations.figures import Span
from orchestrator.operations.reset import Reset, Scope
from orchestrator.operations.search import FIELDS, DecisionFilter, DeliveryFilter
from routes.providers.base import InvalidPayload

MOST_LISTED = 1000
Model = TypeVar("Model", bound=BaseModel)

REPLAY_ANSWERS: Mapping[str, tuple[int, str]] = {
    REPLAYED: (200, "sent again"),
    WOULD_REPLAY: (200, "would be sent again"),
    Refusal.ALREADY_DELIVERED: (409, "the destination has received it; force sends it again"),
    Refusal.UNDER_WAY: (409, "being delivered at the moment"),
    Refusal.NO_PAYLOAD: (409, "its payload is not stored on this machine; reset the email and have it sent again"),
    Refusal.UNKNOWN: (404, "unknown, or no longer stored"),
}
RELEASE_ANSWERS: Mapping[str, tuple[int, str]] = {
    RELEASED: (200, "released"),
    WOULD_RELEASE: (200, "would be released"),
    Refusal.ALREADY_RELEASED: (409, "already released"),
    Refusal.NOT_SUPPRESSED: (409, "not stopped by any gate"),
    Refusal.ALREADY_DELIVERED: (409, "the same email was delivered; force sends this one as well"),
    Refusal.UNDER_WAY: (409, "being delivered at the moment"),
    Refusal.NO_PAYLOAD: (409, "its payload is not stored on this machine; reset the email and have it sent again"),
    Refusal.UNKNOWN: (404, "unknown, or no longer stored"),
}


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Page(_Strict):
    limit: int = Field(default=100, ge=1, le=MOST_LISTED)
    cursor: str | None = Field(default=None, description="`next` of an earlier answer to the same question.")


class DecisionQuery(DecisionFilter, _Page):
    pass


class DeliveryQuery(DeliveryFilter, _Page):
    pass


class StatsQuery(_Strict):
    span: Span = Field(default=Span.DAY, description="How far back.")


class PauseRequest(_Strict):
    reason: str | None = Field(default=None, json_schema_extra={"maxLength": MOST_REASON_CHARACTERS})


class Nothing(_Strict):
    """An empty object, or no body at all."""


class _Many(_Strict):
    """Without a filter, ``all`` is needed: `{}` is what a program sends that has lost its filter."""

    all: StrictBool = Field(default=False, description="Everything. Otherwise a filter or `dry_run` is needed.")

    @model_validator(mode="after")
    def check_aim(self) -> Self:
        has_filter = any(getattr(self, field) is not None for field in FIELDS)
        if self.all and has_filter:
            raise ValueError("all must not be combined with a filter")
        if not (self.all or has_filter or getattr(self, "dry_run", False)):
            raise ValueError(f"all must be true to include everything; otherwise give a filter: {', '.join(FIELDS)}")
        return self


class ReleaseMany(DecisionFilter, Release, _Many):
    pass


class ReplayMany(DeliveryFilter, Replay, _Many):
    pass


class ResetRequest(Reset):
    confirm: Literal["all"] | None = Field(default=None, description="Needed for the scope `all`.")

    @model_validator(mode="after")
    def check_confirmation(self) -> Self:
        if self.scope is Scope.ALL and not self.dry_run and self.confirm is None:
            raise ValueError('confirm must be "all" for the scope all')
        return self


def read(model: type[Model], given: Mapping[str, Any], what: str = "query") -> Model:
    """Raises InvalidPayload, which names the first field that is wrong."""
    try:
        return model.model_validate(dict(given))
    except ValidationError as error:
        raise in_words(model, error, what) from error


def in_words(model: type[BaseModel], error: ValidationError, what: str) -> InvalidPayload:
    first = error.errors(include_url=False)[0]
    field, kind, context = str(first["loc"][0]) if first["loc"] else "", first["type"], first.get("ctx", {})
    words = {
        "bool_type": "must be true or false",
        "string_type": "must be a string",
        "enum": f"must be one of {context.get('expected')}",
        "literal_error": f"must be {context.get('expected')}",
        "missing": f"is missing: {model.model_fields[field].description or 'it is required'}"
        if kind == "missing"
        else "",
    }
    if kind == "extra_forbidden":
        return InvalidPayload(f"the {what} accepts {', '.join(model.model_fields) or 'no fields'}", field=field)
    if kind == "value_error":
        text = str(context["error"])
        return InvalidPayload(f"{field} {text}" if field else text, field=field or text.partition(" ")[0])
    if field == "limit":
        return InvalidPayload(f"limit must be a number from 1 to {MOST_LISTED}", field=field)
    return InvalidPayload(f"{field} {words.get(kind) or first['msg']}", field=field)


def wrong_cursor(_: InvalidCursor) -> InvalidPayload:
    return InvalidPayload("cursor must be the `next` of an earlier answer to the same question", field="cursor")


def only(model: type[Model], asked: BaseModel) -> Model:
    """As a model that has less fields, such as the filter of a request."""
    return model(**{name: getattr(asked, name) for name in model.model_fields})
