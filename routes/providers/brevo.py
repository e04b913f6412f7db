"""Brevo's inbound parsing: several emails in one request, attachments as download tokens only.

It discards an email on 5xx as on 4xx; 429 alone makes it try again.
"""

from __future__ import annotations

from typing import Any

from deduplication.email import Attachment, Email
from routes.providers.base import (
    InvalidPayload,
    Parsed,
    ProviderRequest,
    Statuses,
    as_object,
    each,
    json_object,
    sound,
    text_field,
)
from routes.providers.basic import BasicAuthProvider
from routes.providers.fields import (
    addresses,
    header,
    header_pairs,
    mailbox,
    object_of,
    objects,
    scores,
    size_of,
    text_of,
    thread_of,
)


class Brevo(BasicAuthProvider):
    statuses = Statuses(retry=429)

    def parse(self, request: ProviderRequest) -> list[Parsed]:
        items = json_object(request.header("Content-Type"), request.body).get("items")
        if not isinstance(items, list) or not items:
            raise InvalidPayload("items takes a list of emails", field="items")
        return each(lambda item: sound(self._email(as_object(item))), items)

    def _email(self, item: dict[str, Any]) -> Email:
        headers = header_pairs(item.get("Headers"))
        author = object_of(item, "From")
        return Email(
            subject=text_field(item, "Subject"),
            sender=header(headers, "From") or mailbox(text_of(author, "Name"), text_of(author, "Address")),
            date=text_field(item, "SentAtDate") or header(headers, "Date"),
            html=text_field(item, "RawHtmlBody"),
            plain=text_field(item, "RawTextBody"),
            message_id=text_field(item, "MessageId") or header(headers, "Message-ID"),
            event_id=self.own_id(_first_text(item.get("Uuid"))),
            provider=self.name,
            recipients=addresses(
                header(headers, "Delivered-To"),
                *(text_of(person, "Address") for field in ("To", "Cc") for person in objects(item.get(field))),
            ),
            attachments=tuple(map(_attachment, objects(item.get("Attachments")))),
            spam=scores({"SpamScore": item.get("SpamScore")}),
            extra={**thread_of(headers), "attachments": objects(item.get("Attachments"))},
        )


def _first_text(given: Any) -> str:
    return given[0] if isinstance(given, list) and given and isinstance(given[0], str) else ""


def _attachment(given: dict[str, Any]) -> Attachment:
    """Only described; whoever wants it downloads it with the DownloadToken that ``extra`` hands on."""
    return Attachment(text_of(given, "Name"), text_of(given, "ContentType"), size_of(given, "ContentLength"), "")
