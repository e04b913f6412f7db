"""The webhooks that destinations receive."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, Field

from deduplication.authentication import Verdict
from deduplication.automated import AutomatedKind
from orchestrator.delivery.webhook import EventType
from orchestrator.operations.alarms import AlarmShown, Phase


class Attachment(BaseModel):
    name: str
    content_type: str
    size_bytes: int
    sha256: str = Field(description="Empty if the provider does not send the content.")
    content: str = Field(default="", description='In Base64, with `attachments = "inline"`.')
    content_id: str | None = Field(description="By which the HTML refers to it (`cid:`), without brackets.")
    inline: bool = Field(description="Whether it is shown within the HTML.")
    size: int = Field(description="The same as `size_bytes`.")
    url: str | None = Field(description='Where it is fetched, for FILES_DAYS, with `attachments = "link"`.')
    missing: str = Field(default="", description="Why there is no `url`: `over quota`, `no room` and so on.")


class Header(BaseModel):
    name: str
    value: str


class MailingList(BaseModel):
    id: str | None = Field(description="Of List-Id.", examples=["lots.example.org"])
    unsubscribe: list[str] | None = Field(description="The addresses of List-Unsubscribe.")


class AutomatedShown(BaseModel):
    kind: AutomatedKind | None = Field(description="Null if nothing marks it as sent by a program.")
    why: str | None = Field(description="The header or part that says so.", examples=["Auto-Submitted: auto-replied"])
    failed_recipient: str | None = Field(description="The address that a bounce is about.")
    status: str | None = Field(description="Of a bounce (RFC 3463).", examples=["5.1.1"])
    original_message_id: str | None = Field(description="The Message-ID of the email that bounced.")


class AuthenticationShown(BaseModel):
    """Null is unknown, which is not a pass."""

    spf: Verdict | None
    dkim: Verdict | None
    dmarc: Verdict | None
    from_aligned: bool | None = Field(description="Whether a domain that passed is that of the sender.")
    source: str | None = Field(description="The provider, or the host in `trusted_authserv_ids`, that checked it.")


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
    message_id: str = Field(description="Without brackets; empty if it has none.")
    delivered_to: list[str] = Field(description="Your addresses that it was delivered to, as far as that is known.")
    recipients: list[str] = Field(description="The same, and all addresses of To and Cc.")
    body: str = Field(description="HTML if there is any, otherwise the text.")
    plain: str = Field(description="The text that came with HTML.")
    body_preview: str = Field(description="The first 200 characters of the text.")
    attachments: list[Attachment]
    spam: dict[str, str] = Field(description="The provider's spam verdict.")
    extra: dict[str, Any] = Field(description="Everything else that the provider sent, up to 64 KB.")
    version: Literal[2] = Field(description="Of this list of fields. Those below are null if they are absent.")
    provider: str
    provider_id: str | None = Field(description="The provider's own id of the email, the same in its retries.")
    provider_thread: str | None = Field(description="The provider's own id of the conversation: that of Gmail.")
    to: list[str] | None = Field(description="The addresses of To.")
    cc: list[str] | None
    reply_to: list[str] | None
    return_path: str | None = Field(description="The envelope's sender; empty for a notification such as a bounce.")
    envelope_recipient: str | None = Field(description="The first of `delivered_to`, if the provider says it.")
    date_utc: datetime | None = Field(description="`date` in UTC.")
    in_reply_to: str | None = Field(description="A Message-ID without brackets.")
    references: list[str] | None = Field(description="Message-IDs without brackets.")
    thread: str | None = Field(description="The same for all emails of a conversation: its first Message-ID.")
    html: str | None
    text: str | None = Field(description="The text part, as received.")
    reply_text: str | None = Field(description="The text without quotes, if the provider has extracted it.")
    mailing_list: MailingList | None = Field(alias="list")
    automated: AutomatedShown | None = Field(description="Null if the provider sends no headers.")
    authentication: AuthenticationShown
    headers: list[Header] | None = Field(description="All in order, up to 200 and 64 KB.")
    headers_omitted: int = Field(description="How many headers did not fit.")
    extra_omitted: int = Field(description="How many fields of `extra` did not fit.")
    raw_url: str | None = Field(description="Where the raw email is fetched, if the provider sent it.")
    raw_missing: str = Field(default="", description="Why there is no `raw_url`, though the provider sent it.")


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
    EventType.EMAIL_RELEASED: (Email, "An operator released an email that a gate had stopped, at `timestamp`."),
    EventType.MESSAGE_RECEIVED: (Message, "A post or chat message was received by /api/ingress/message."),
    EventType.ALERT: (Alert, "An alarm began or ended. Sent to the `url` of `[alerts]` in mailonce.toml."),
    EventType.TEST: (Test, "An operator tests a destination. There is no email behind it."),
}
