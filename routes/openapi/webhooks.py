"""The webhooks that destinations receive."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, Field

from orchestrator.delivery.webhook import EventType
from orchestrator.operations.alarms import AlarmShown, Phase


class Attachment(BaseModel):
    name: str
    content_type: str
    size_bytes: int
    sha256: str = Field(description="Empty if the provider does not send the content.")
    content: str = Field(default="", description='In Base64, with `attachments = "inline"`.')


class _Event(BaseModel):
    timestamp: datetime = Field(description="When the event happened, in UTC: the same for all attempts.")


class _Item(_Event):
    links: list[str]
    received_at: datetime
    subject_group: str | None


class Email(_Item):
    type: Literal[EventType.EMAIL_RECEIVED, EventType.EMAIL_RELEASED]
    email_id: str = Field(description="MD5 of subject|sender|date as received.")
    subject: str
    sender: str
    sender_email: str
    date: str = Field(description="As in the email; empty if it has none.")
    message_id: str
    delivered_to: list[str] = Field(description="Your addresses that it was delivered to, as far as that is known.")
    recipients: list[str] = Field(description="The same, and all addresses of To and Cc.")
    body: str = Field(description="HTML if there is any, otherwise the text.")
    plain: str = Field(description="The text that came with HTML.")
    body_preview: str = Field(description="The first 200 characters of the text.")
    attachments: list[Attachment]
    spam: dict[str, str] = Field(description="The provider's spam verdict.")
    extra: dict[str, Any] = Field(description="Other fields that the provider sent.")


class Message(_Item):
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


class AlertData(AlarmShown):
    status: Phase
    until: datetime | None


class Alert(AlertData, _Event):
    type: Literal[EventType.ALERT]
    data: AlertData = Field(description="The same fields again.")


class Test(_Event):
    type: Literal[EventType.TEST]
    destination: str
    note: str


WEBHOOKS: Mapping[EventType, tuple[type[BaseModel], str]] = {
    EventType.EMAIL_RECEIVED: (Email, "An email was received, and no gate stopped it."),
    EventType.EMAIL_RELEASED: (
        Email,
        "A gate had stopped the email, and an operator released it. `timestamp` is the time of the release.",
    ),
    EventType.MESSAGE_RECEIVED: (Message, "A post or chat message was received by /api/ingress/message."),
    EventType.ALERT: (Alert, "An alarm began or ended. Sent to the `url` of `[alerts]` in mailonce.toml."),
    EventType.TEST: (Test, "An operator tests a destination. There is no email behind it."),
}
