"""Postmark's inbound webhook. MessageID is its own id, the same over its retries; the email's stands in Headers."""

from __future__ import annotations

from typing import Any

from deduplication.email import Email
from routes.providers.base import Statuses, text_field
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

SPAM_HEADERS = ("X-Spam-Status", "X-Spam-Score", "X-Spam-Tests")


class Postmark(OneEmailAsJson):
    statuses = Statuses(rejected=403)

    def _email(self, document: dict[str, Any]) -> Email:
        headers = header_pairs(document.get("Headers"))
        author = object_of(document, "FromFull")
        sender = text_field(document, "From") or text_of(author, "Email")
        return Email(
            subject=text_field(document, "Subject"),
            sender=sender if "<" in sender else mailbox(text_of(author, "Name"), sender),
            date=text_field(document, "Date"),
            html=text_field(document, "HtmlBody"),
            plain=text_field(document, "TextBody"),
            message_id=header(headers, "Message-ID"),
            event_id=self.own_id(text_field(document, "MessageID")),
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
