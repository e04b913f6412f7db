"""Gmail, pushed by an Apps Script of the user's own: JSON {subject, sender, date, body} and whatever else it sends."""

from __future__ import annotations

from typing import Any

from deduplication.email import Email, address_of
from routes.providers.base import InvalidPayload, text_field

FIELDS = ("subject", "sender", "date", "body")


def parse(document: dict[str, Any]) -> Email:
    subject, sender, date, body = (text_field(document, field) for field in FIELDS)
    if not address_of(sender):
        raise InvalidPayload("sender takes an email address, such as Name <name@example.org>", field="sender")
    message_id = document.get("message_id")
    return Email(
        subject=subject,
        sender=sender,
        date=date,
        body=body,
        message_id=message_id if isinstance(message_id, str) else "",
        provider="gmail",
        extra={name: value for name, value in document.items() if name not in FIELDS},
    )
