"""What is answered, by the API and to the providers at the doors."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from deduplication.claims import Gate
from deduplication.journal.entry import DeliveryStatus
from deduplication.journal.listing import PayloadPlace
from orchestrator.intake import Status
from orchestrator.operations.alerts import AlertCondition
from orchestrator.operations.figures import OverTime, Totals
from orchestrator.operations.reset import Scope
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


class _Listed(Done):
    more: bool
    next: str | None = Field(description="`cursor` of the following page.")


class DeliveryBrief(BaseModel):
    id: str
    destination: str
    status: DeliveryStatus
    reason: str | None
    tries: int
    max_attempts: int | None
    next_try: datetime | None
    delivered: datetime | None
    receiver_id: str | None


class _Decision(BaseModel):
    id: str
    email_id: str
    status: Status
    gate: Gate | None
    reason: str = Field(description="What became of it and why, in one sentence.")
    name: str | None
    original: str | None
    first_seen: datetime | None
    follows: bool
    repeats: int
    last_repeat: datetime | None
    provider: str
    route: str
    sender: str
    subject: str
    received_at: datetime
    settled_at: datetime | None
    took_ms: int | None
    store: str
    released_at: datetime | None
    releasable_until: datetime | None


class Decision(_Decision):
    deliveries: list[DeliveryBrief]


class Decisions(_Listed):
    decisions: list[Decision]


class Attempt(BaseModel):
    at: datetime
    latency_ms: int
    status_code: int | None
    error: str | None


class Delivery(DeliveryBrief):
    email_id: str
    provider: str
    webhook_id: str
    created: datetime
    age_s: int
    attempts: list[Attempt]
    storage: PayloadPlace
    payload_bytes: int
    payload_machine: str | None


class NameShown(BaseModel):
    gate: Gate
    name: str
    is_own: bool


class GateSaid(BaseModel):
    gate: Gate
    said: str


class DecisionInFull(_Decision, Done):
    server: str
    is_trial: bool
    names: list[NameShown]
    gates: list[GateSaid]
    original_email: Decision | None
    deliveries: list[Delivery]
    payload_bytes: int
    payload_machine: str | None
    payload: dict[str, Any] | None = Field(description="What is sent, while it is kept.")


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


class Deliveries(_Listed):
    deliveries: list[Delivery]


class DeliveryInFull(Delivery, Done):
    payload: dict[str, Any] | None = Field(description="What is sent, while it is kept.")


class ReplayAnswer(Done):
    status: Literal["replayed", "would_replay"]
    id: str
    message: str
    dry_run: bool
    delivery: Delivery | None


class Paused(BaseModel):
    since: datetime
    reason: str
    by: str


class _Standing(BaseModel):
    enabled: bool | None
    breaker: Literal["closed", "open", "half-open"] | None
    paused: Paused | None


class DestinationCounts(_Standing):
    deliveries: dict[DeliveryStatus, int]


class Stats(Done):
    totals: Totals
    over_time: OverTime
    destinations: dict[str, DestinationCounts]


# Destinations


class DestinationShown(_Standing):
    waiting: int
    public_keys: list[str] = Field(description="What its receiver verifies ed25519 signatures (v1a) with.")


class Destinations(Done):
    destinations: dict[str, DestinationShown]


class PauseAnswer(Done):
    status: Literal["paused"]
    destination: str
    paused: Paused


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


class ResetAnswer(Done):
    status: Literal["reset"]
    scope: Scope
    dry_run: bool
    names: int = Field(description="How many are forgotten.")
    kept: list[str] = Field(description="Emails that are still to be delivered.")


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


class HealthCheck(BaseModel):
    model_config = ConfigDict(extra="allow")

    status: str
    error: str | Absent = absent()


class AlarmShown(BaseModel):
    condition: AlertCondition
    destination: str | None
    since: datetime
    text: str


class HealthReport(BaseModel):
    """`degraded`: emails are taken, but something is wrong; `down`: none can be taken."""

    status: Literal["ok", "degraded", "down"]
    version: str
    checks: dict[str, HealthCheck]
    warnings: list[str]
    paused: dict[str, Paused]
    alarms: list[AlarmShown]
