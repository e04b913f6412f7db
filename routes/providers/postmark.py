"""Postmark's inbound webhook. MessageID is its own id, the same over its retries; the email's stands in Headers.

Its other webhooks (bounces, deliveries, opens...) say in RecordType what they are; a bounce has a sender and a subject,
but it is no email.
"""

from __future__ import annotations

from typing import Any

from deduplication.email import Email
from routes.providers.base import ProviderRequest, Statuses, json_object, text_field
from routes.providers.basic import OneEmailAsJson
from routes.providers.fields import (
    File,
    addresses,
    attachments_of,
    from_base64,
    header,
    header_pairs,
    headers_named,
    mailbox,
    object_of,
    objects,
    text_of,
    thread_of,
)

OF_EVERY_TEST = (
    "73e6d360-66eb-11e1-8e72-a8904824019b",
    "22c74902-a0c1-4511-804f-341342852c90",
    "22c74902-a0c1-4511-804f2-341342852c90",
    "00000000-0000-0000-0000-000000000000",
)
"""The MessageIDs of its "Check" button and of the documentation's examples: always the same, so they tell nothing."""
SPAM_HEADERS = ("X-Spam-Status", "X-Spam-Score", "X-Spam-Tests")


class Postmark(OneEmailAsJson):
    statuses = Statuses(rejected=403)

    def handshake(self, request: ProviderRequest) -> str | None:
        document = json_object(request.header("Content-Type"), request.body)
        kind = text_of(document, "RecordType") or ("Bounce" if "BouncedAt" in document else "Inbound")
        return None if kind == "Inbound" else f"{kind[:80]!r} is no email"

    def _email(self, document: dict[str, Any]) -> Email:
        headers = header_pairs(document.get("Headers"))
        author = object_of(document, "FromFull")
        sender = text_field(document, "From") or text_of(author, "Email")
        message_id = text_field(document, "MessageID")
        return Email(
            subject=text_field(document, "Subject"),
            sender=sender if "<" in sender else mailbox(text_of(author, "Name"), sender),
            date=text_field(document, "Date"),
            html=text_field(document, "HtmlBody"),
            plain=text_field(document, "TextBody"),
            message_id=header(headers, "Message-ID"),
            event_id="" if message_id in OF_EVERY_TEST else self.own_id(message_id),
            provider=self.name,
            recipients=addresses(*(document.get(field) for field in ("OriginalRecipient", "To", "Cc", "Bcc"))),
            attachments=attachments_of(_files(document), self.options.inline_attachment_bytes),
            spam=headers_named(headers, SPAM_HEADERS),
            extra=thread_of(headers),
        )


def _files(document: dict[str, Any]) -> list[File]:
    """Its dashboard's "Check" button writes Data where its emails write Content."""
    return [
        File(text_of(each, "Name"), text_of(each, "ContentType"), from_base64(each.get("Content", each.get("Data"))))
        for each in objects(document.get("Attachments"))
    ]
