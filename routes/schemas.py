"""Requests and answers of /api/admin as models, which validate, serialise and describe them in /api/openapi.json."""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, PlainSerializer, StrictBool, model_validator

from deduplication.again import Refusal
from orchestrator.operations.decisions import Decision, DeliveryView
from orchestrator.operations.destinations import MOST_REASON_CHARACTERS
from orchestrator.operations.fleet_state import DestinationView, Pause
from orchestrator.operations.resend import RELEASED, REPLAYED, WOULD_RELEASE, WOULD_REPLAY, Release, Replay
from orchestrator.operations.reset import Erased, Forgotten, Reset, Scope
from orchestrator.operations.search import FIELDS, DecisionFilter, DeliveryFilter, Request
from orchestrator.operations.stats import Span

MOST_LISTED = 1000

RESULTS: Mapping[str, str] = {
    RELEASED: "released",
    WOULD_RELEASE: "would be released",
    REPLAYED: "sent again",
    WOULD_REPLAY: "would be sent again",
    Refusal.ALREADY_RELEASED: "already released",
    Refusal.NOT_SUPPRESSED: "not stopped by any gate",
    Refusal.ALREADY_DELIVERED: "already delivered; force sends it again",
    Refusal.UNDER_WAY: "being delivered at the moment",
    Refusal.NO_PAYLOAD: "its payload is not stored on this machine; reset the email and have it sent again",
    Refusal.UNKNOWN: "unknown, or no longer stored",
}
"""Results of releases and replays, in words."""


# Requests


class _Page(Request):
    limit: int = Field(default=100, ge=1, le=MOST_LISTED)
    cursor: str | None = Field(default=None, description="`next` of an earlier answer to the same question.")


class DecisionQuery(DecisionFilter, _Page):
    pass


class DeliveryQuery(DeliveryFilter, _Page):
    pass


class StatsQuery(Request):
    span: Span = Field(default=Span.DAY, description="How far back.")


class PauseRequest(Request):
    reason: str | None = Field(default=None, json_schema_extra={"maxLength": MOST_REASON_CHARACTERS})


class EmptyRequest(Request):
    """An empty object, or no body at all."""


class _Many(Request):
    """Without a filter, ``all`` is needed: `{}` is what a program sends that has lost its filter."""

    all: StrictBool = Field(default=False, description="Act on everything. Otherwise, give a filter or a dry run.")

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


# Answers: all of them begin with `success`, which routes/endpoints.py adds.


class _Result(BaseModel):
    id: str
    message: str
    dry_run: bool


class ReleaseAnswer(_Result):
    status: Literal["released", "would_release"]
    decision: Decision | None


class ReplayAnswer(_Result):
    status: Literal["replayed", "would_replay"]
    delivery: DeliveryView | None


class Matched(BaseModel):
    """How many matched, and how many of them had each result (`released`, `replayed`, `no_payload`...)."""

    model_config = ConfigDict(extra="allow", json_schema_extra={"additionalProperties": {"type": "integer"}})

    dry_run: bool
    matched: int


class Destinations(BaseModel):
    destinations: dict[str, DestinationView]


class PauseAnswer(BaseModel):
    status: Literal["paused", "resumed", "not_paused"]
    destination: str
    paused: Pause | None


class TestAnswer(BaseModel):
    success: bool
    status: Literal["taken", "refused"]
    destination: str
    latency_ms: int
    status_code: int | None
    error: str | None


class ResetAnswer(Forgotten):
    status: Literal["reset"]
    scope: Scope
    dry_run: bool


class EraseAnswer(Erased):
    status: Literal["erased"]
    dry_run: bool


Moment = Annotated[datetime, PlainSerializer(datetime.isoformat, return_type=str)]


class Lock(BaseModel):
    """A publication lock, without the owner's token, which would allow anyone to release it."""

    model_config = ConfigDict(from_attributes=True)

    id: str
    content_id: str
    platform: str
    server_id: str
    fence: int
    created: Moment
    expires: Moment


class Locks(BaseModel):
    locks: list[Lock]


class Probe(BaseModel):
    status: Literal["ok", "down"]
