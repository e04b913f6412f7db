"""CloudMailin, format "JSON (Normalized)"; the older JSON, with the headers' own names, is read as well.

Any 4xx bounces the email to its sender, who so learns of it; 5xx makes the sender's server try again.
"""

from __future__ import annotations

from typing import Any

from deduplication.email import Attachment, Email
from routes.providers.base import Statuses, text_field
from routes.providers.basic import OneEmailAsJson
from routes.providers.fields import (
    File,
    addresses,
    attachments_of,
    from_base64,
    header,
    header_pairs,
    object_of,
    objects,
    scores,
    text_of,
    thread_of,
)


class Cloudmailin(OneEmailAsJson):
    statuses = Statuses(rejected=422)

    def _email(self, document: dict[str, Any]) -> Email:
        headers = header_pairs(document.get("headers"))
        envelope = object_of(document, "envelope")
        return Email(
            subject=header(headers, "Subject"),
            sender=header(headers, "From"),
            date=header(headers, "Date"),
            html=text_field(document, "html"),
            plain=text_field(document, "plain"),
            message_id=header(headers, "Message-ID"),
            provider=self.name,
            recipients=addresses(
                envelope.get("to"), envelope.get("recipients"), header(headers, "To"), header(headers, "Cc")
            ),
            attachments=self._attachments(document),
            spam=scores(
                {"spf": object_of(envelope, "spf").get("result"), "spamd": object_of(envelope, "spamd").get("score")}
            ),
            extra=thread_of(headers),
        )

    def _attachments(self, document: dict[str, Any]) -> tuple[Attachment, ...]:
        files = objects(document.get("attachments"))
        here = (_file(each) for each in files if not each.get("url"))
        elsewhere = (_stored(each) for each in files if each.get("url"))
        return (*attachments_of(here, self.options.inline_attachment_bytes), *elsewhere)


def _file(given: dict[str, Any]) -> File:
    return File(text_of(given, "file_name"), text_of(given, "content_type"), from_base64(given.get("content")))


def _stored(given: dict[str, Any]) -> Attachment:
    """CloudMailin was told to put it into the user's own storage: its contents are not known here."""
    size = given.get("size")
    size_bytes = int(size) if isinstance(size, int | str) and str(size).isascii() and str(size).isdigit() else 0
    return Attachment(text_of(given, "file_name"), text_of(given, "content_type"), size_bytes, "")
