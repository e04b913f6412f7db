"""What is answered, by the API and to the providers at the doors."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from deduplication.journal.entry import DeliveryStatus
from deduplication.names import Gate
from orchestrator.operations.decisions import Decision, DecisionInFull, DecisionPage
from orchestrator.operations.deliveries import DeliveryInFull, DeliveryPage, DeliveryView
from orchestrator.operations.destinations import DestinationShown, Pause
from orchestrator.operations.figures import OverTime, Totals
from orchestrator.operations.reset import Forgotten, Scope
from orchestrator.pipeline import Status
from routes.openapi.webhooks import Absent, absent

# Errors


class Problem(BaseModel):
    """What went wrong, by RFC 9457 (application/problem+json)."""

    type: Literal["about:blank"]
    title: str = Field(description="The words of the HTTP status.")
    status: int
    detail: str = Field(description="What is wrong with this request, for a person.")
    instance: str = Field(description="The path that was asked for.", json_schema_extra={"format": "uri-reference"})
    code: str = Field(description="The same for a program, where one HTTP status has several reasons.")
    field: str | Absent = absent("The part of the request that is wrong, if it is one.")
    id: str | Absent = absent("Of the email or delivery that was asked for.")


# At the doors


class Refusal(BaseModel):
    success: Literal[False]
    status: Literal["invalid", "unauthorized", "retry_later"]
    error: str
    field: str | Absent = absent("The part of the request that is wrong, if it is one.")


class Reason(BaseModel):
    """Why an email was not sent: the gate, the name it met there, and the email that has it."""

    gate: Gate
    name: str
    original: str | None
    first_seen: datetime | None


class DeliveryStub(BaseModel):
    id: str
    status: DeliveryStatus


class _Verdict(BaseModel):
    success: bool = Field(description="Whether the sender may forget it.")
    status: Status
    subject_group: str | Absent = absent()
    reason: Reason | Absent = absent()
    error: str | Absent = absent("Why it has to be sent again.")
    retry_after_s: int | Absent = absent()
    warnings: list[str] | Absent = absent("What of it could not be read.")
    deliveries: dict[str, DeliveryStub] | Absent = absent("By destination.")


class EmailVerdict(_Verdict):
    """What became of an email."""

    email_id: str
    id: str | Absent = absent("Of its entry in the journal.")


class EmailVerdicts(BaseModel):
    """Of several emails in one request, each with its own, in order."""

    success: bool
    results: list[EmailVerdict | Refusal]


class NoEmail(BaseModel):
    """The provider wanted to know or to tell something else."""

    success: Literal[True]
    status: Literal["no_email"]
    note: str


class Here(BaseModel):
    success: Literal[True]


class MessageVerdict(_Verdict):
    key: str
    source: str
    id: str = Field(description="Of its entry in the journal; the message's own where it has none.")
    item_id: str = Field(description="By which log lines and records call it.")


class MessageVerdicts(BaseModel):
    success: bool
    results: list[MessageVerdict | Refusal]


# Decisions


class Done(BaseModel):
    success: Literal[True]


class Decisions(Done, DecisionPage):
    pass


class DecisionAnswer(Done, DecisionInFull):
    pass


class ReleaseAnswer(Done):
    status: Literal["released", "would_release"]
    id: str
    message: str
    dry_run: bool
    decision: Decision | None


class Matched(Done):
    """How many matched, and of these how many by what came of them (`released`, `replayed`, `no_payload`...)."""

    model_config = ConfigDict(json_schema_extra={"additionalProperties": {"type": "integer"}})

    dry_run: bool
    matched: int


# Deliveries and figures


class Deliveries(Done, DeliveryPage):
    pass


class DeliveryAnswer(Done, DeliveryInFull):
    pass


class ReplayAnswer(Done):
    status: Literal["replayed", "would_replay"]
    id: str
    message: str
    dry_run: bool
    delivery: DeliveryView | None


class DestinationCounts(BaseModel):
    enabled: bool | None
    breaker: Literal["closed", "open", "half-open"] | None
    paused: Pause | None
    deliveries: dict[DeliveryStatus, int] = Field(
        description="Those that wait or are dead now; delivered and skipped ones since counting began."
    )


class Stats(Done):
    totals: Totals
    over_time: OverTime
    destinations: dict[str, DestinationCounts]


# Destinations


class Destinations(Done):
    destinations: dict[str, DestinationShown]


class PauseAnswer(Done):
    status: Literal["paused"]
    destination: str
    paused: Pause


class ResumeAnswer(Done):
    status: Literal["resumed", "not_paused"]
    destination: str
    paused: None


class TestAnswer(BaseModel):
    success: bool
    status: Literal["taken", "refused"]
    destination: str
    latency_ms: int
    status_code: int | None
    error: str | None


# The rest


class ResetAnswer(Done, Forgotten):
    status: Literal["reset"]
    scope: Scope
    dry_run: bool


class Lock(BaseModel):
    id: str
    content_id: str
    platform: str
    server_id: str
    fence: int
    created: datetime
    expires: datetime


class Locks(Done):
    locks: list[Lock]


class Alive(BaseModel):
    status: Literal["ok"]


class Ready(BaseModel):
    status: Literal["ok", "down"]
