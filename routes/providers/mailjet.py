"""Mailjet's Parse API. It names no id of its own, so the email's Message-ID counts."""

from __future__ import annotations

from typing import Any

from werkzeug.http import parse_options_header

from deduplication.email import Email
from routes.providers.base import text_field
from routes.providers.basic import OneEmailAsJson
from routes.providers.fields import (
    File,
    addresses,
    attachments_of,
    from_base64,
    header,
    header_pairs,
    objects,
    scores,
    text_of,
    thread_of,
)


class Mailjet(OneEmailAsJson):
    """What it does on 4xx and whether it looks at the URL first is not documented: both are let be."""

    answers_probes = True

    def _email(self, document: dict[str, Any]) -> Email:
        headers = header_pairs(document.get("Headers"))
        return Email(
            subject=text_field(document, "Subject"),
            sender=text_field(document, "From"),
            date=header(headers, "Date") or text_field(document, "Date"),
            html=text_field(document, "Html-part"),
            plain=text_field(document, "Text-part"),
            message_id=header(headers, "Message-ID"),
            provider=self.name,
            recipients=addresses(document.get("Recipient"), header(headers, "To"), header(headers, "Cc")),
            attachments=attachments_of(_files(document), self.options.inline_attachment_bytes),
            spam=scores({"SpamAssassinScore": document.get("SpamAssassinScore")}),
            extra=thread_of(headers),
        )


def _files(document: dict[str, Any]) -> list[File]:
    """Attachment1, InlineAttachment1 and so on; what each is stands in Parts."""
    parts = objects(document.get("Parts"))
    return [_file(part, document) for part in parts if "Attachment" in text_of(part, "ContentRef")]


def _file(part: dict[str, Any], document: dict[str, Any]) -> File:
    headers = header_pairs(part.get("Headers"))
    content_type, parameters = parse_options_header(header(headers, "Content-Type"))
    _, disposition = parse_options_header(header(headers, "Content-Disposition"))
    name = disposition.get("filename") or parameters.get("name") or ""
    return File(name, content_type, from_base64(document.get(text_of(part, "ContentRef"))))
