"""What requests take: bodies and queries. The views read them in their own words; tests hold both together."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from deduplication.journal.entry import DeliveryStatus
from orchestrator.intake import Status
from orchestrator.operations.destinations import MOST_REASON_CHARACTERS
from orchestrator.operations.figures import Span
from orchestrator.operations.reset import Scope
from routes.openapi.webhooks import Absent, absent
from routes.providers.message import MOST
from routes.questions import MOST_LISTED

Gates = Literal["identity", "subject_group", "media", "content"]


class _Strict(BaseModel):
    """Whatever else is given is refused, by its name."""

    model_config = ConfigDict(extra="forbid")


class _Period(_Strict):
    since: datetime | None = Field(default=None, description="Only those that came in at this time or later.")
    until: datetime | None = Field(default=None, description="Only those that came in before this time.")


class _Page(_Strict):
    limit: int = Field(default=100, ge=1, le=MOST_LISTED)
    cursor: str | None = Field(default=None, description="`next` of an earlier answer to the same question.")


class DecisionFilter(_Period):
    status: Status | None = None
    gate: Gates | None = Field(default=None, description="Where it was stopped.")
    provider: str | None = None
    destination: str | None = None
    q: str | None = Field(
        default=None, description="A part of the sender or subject; or the whole of an id, email id or Message-ID."
    )


class DeliveryFilter(_Period):
    status: DeliveryStatus | None = None
    destination: str | None = None


class DecisionQuery(DecisionFilter, _Page):
    pass


class DeliveryQuery(DeliveryFilter, _Page):
    pass


class StatsQuery(_Strict):
    span: Span = Field(default=Span.DAY, description="So far back.")


class _Many(_Strict):
    all: bool | Absent = absent("All of them. Without it a filter is needed, unless it is a `dry_run`.")


class ReleaseOne(_Strict):
    force: bool | Absent = absent("Also where the same email was delivered under another id.")
    dry_run: bool | Absent = absent("Only say what would be released.")


class ReleaseMany(ReleaseOne, DecisionFilter, _Many):
    pass


class ReplayOne(_Strict):
    force: bool | Absent = absent("Also what the destination has already.")
    new_id: bool | Absent = absent("Under a new webhook-id: the receiver takes it for another one.")
    dry_run: bool | Absent = absent("Only say what would be sent again.")


class ReplayMany(ReplayOne, DeliveryFilter, _Many):
    pass


class Pause(_Strict):
    reason: str | None = Field(default=None, max_length=MOST_REASON_CHARACTERS)


class Nothing(_Strict):
    """An empty object, or no body at all."""


class ResetRequest(_Strict):
    scope: Scope
    value: str | None = Field(default=None, description="What of the scope; all but `all` need one.")
    dry_run: bool | Absent = absent()
    confirm: Literal["all"] | Absent = absent("Needed for the scope `all`.")


class AttachmentIn(BaseModel):
    name: str | Absent = absent()
    content_type: str | Absent = absent()
    size: int | Absent = absent()
    sha256: str | Absent = absent()
    content: str | Absent = absent("In Base64, instead of size and sha256.")


class EmailIn(BaseModel):
    """An email as a script of your own sends it. Other fields are handed on under `extra`."""

    sender: str = Field(description="An address, or Name <address>.", examples=["Ada Lovelace <ada@example.org>"])
    subject: str | None = Field(default=None, examples=["Lot 456"])
    date: str | None = Field(default=None, examples=["2026-11-16T09:00:00.000Z"])
    html: str | None = None
    plain: str | None = Field(default=None, examples=["Hello"])
    body: str | None = Field(default=None, description="For a script that does not know which of the two it is.")
    body_type: Literal["html", "text", ""] | None = None
    message_id: str | None = None
    recipient: str | None = None
    to: str | None = None
    attachments: list[AttachmentIn] | None = None


class MessageIn(BaseModel):
    """Known by `id` (within its `source`), or `name`, `permalink`, `url`, or `title` and `created_utc`."""

    source: str | None = Field(default=None, examples=["tg:news"])
    id: str | int | float | None = Field(default=None, examples=[1])
    text: str | None = Field(default=None, examples=["Hello"])
    date: str | int | float | None = None
    title: str | None = None
    name: str | None = None
    url: str | None = None
    permalink: str | None = None
    created_utc: str | int | float | None = None
    media: list[str] | None = None
    destinations: list[str] | None = Field(default=None, description="Only these, of those that its route has.")


def one_or_many(schema: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [schema, {"type": "array", "items": schema, "maxItems": MOST}]}
