"""What is sent to destinations: the fields of each webhook, by its type."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, Field
from pydantic.json_schema import SkipJsonSchema

from orchestrator.delivery.webhook import EventType
from orchestrator.operations.alerts import AlertCondition

Absent = SkipJsonSchema[None]
"""A field that may be missing, and is never null."""


def absent(description: str = "") -> Any:
    return Field(default_factory=lambda: None, description=description or None)


class Attachment(BaseModel):
    name: str
    content_type: str
    size_bytes: int
    sha256: str = Field(description="Empty where the provider hands over no contents.")
    content: str | Absent = absent('In Base64, with `attachments = "inline"`.')


class _Event(BaseModel):
    timestamp: datetime = Field(description="When the event happened, in UTC: the same over all attempts.")


class _Email(_Event):
    email_id: str = Field(description="MD5 of subject|sender|date as received.")
    subject: str
    sender: str
    sender_email: str
    date: str = Field(description="As the email has it; empty if it has none.")
    message_id: str
    recipients: list[str]
    body: str = Field(description="HTML where there is some, else the text.")
    plain: str = Field(description="The text beside HTML.")
    body_preview: str = Field(description="The first 200 characters of the text.")
    links: list[str]
    attachments: list[Attachment]
    spam: dict[str, str] = Field(description="What the provider says of it.")
    extra: dict[str, Any] = Field(description="What else the provider sent.")
    received_at: datetime
    subject_group: str | None


class EmailReceived(_Email):
    """An email came, and no gate stopped it."""

    type: Literal[EventType.EMAIL_RECEIVED]


class EmailReleased(_Email):
    """A gate stopped the email, and a person let it go. `timestamp` is when they did."""

    type: Literal[EventType.EMAIL_RELEASED]


class MessageReceived(_Event):
    """A post or chat message came in by /api/ingress/message."""

    type: Literal[EventType.MESSAGE_RECEIVED]
    message_key: str
    source: str
    id: str
    title: str
    text: str
    date: str
    url: str
    permalink: str
    media: list[str]
    links: list[str]
    received_at: datetime
    subject_group: str | None


class AlarmSaid(BaseModel):
    condition: AlertCondition
    destination: str | None
    status: Literal["begun", "ended"]
    text: str
    since: datetime
    until: datetime | None


class Alert(AlarmSaid, _Event):
    """An alarm begins or ends. Goes to the `url` of `[alerts]` in mailonce.toml."""

    type: Literal[EventType.ALERT]
    data: AlarmSaid = Field(description="The same fields once more.")


class TestEvent(_Event):
    """An operator tests a destination. There is no email behind it."""

    type: Literal[EventType.TEST]
    destination: str
    note: str


WEBHOOKS: Mapping[EventType, type[BaseModel]] = {
    EventType.EMAIL_RECEIVED: EmailReceived,
    EventType.EMAIL_RELEASED: EmailReleased,
    EventType.MESSAGE_RECEIVED: MessageReceived,
    EventType.ALERT: Alert,
    EventType.TEST: TestEvent,
}
