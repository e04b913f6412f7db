"""Gmail, pushed by an Apps Script of the user's own: JSON {subject, sender, date, body} and whatever else it sends.

The body is best sent as ``html`` and ``plain``, or one of them; if it is sent as ``body``, ``body_type`` says which of
the two it is. ``attachments`` is a list of {name, content_type, size, sha256}, or with ``content`` in Base64; without
it the files are unknown.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from deduplication.email import BODY_TYPES, Attachment, Email
from routes.providers.base import InvalidPayload, Parsed, Provider, ProviderRequest
from routes.providers.fields import Document
from routes.providers.options import NoOptions
from routes.providers.samples import Letter

FIELDS = ("subject", "sender", "date", "html", "plain", "body", "body_type", "recipient", "to", "attachments")


class Gmail(Provider[NoOptions]):
    """The script removes the label only after a 200."""

    options_type = NoOptions
    security = ("ingressToken",)

    def parse(self, request: ProviderRequest) -> list[Parsed]:
        return [parse(request.json, self.name)]

    def _document(self, letter: Letter) -> dict[str, Any]:
        return dict(letter.fields)


def parse(given: Any, provider: str = "gmail") -> Email:
    """Raises InvalidPayload."""
    document = Document.of(given)
    body_type = document.text("body_type")
    if body_type not in ("", *BODY_TYPES):
        raise InvalidPayload(f"body_type must be {' or '.join(BODY_TYPES)}, got {body_type[:80]!r}", field="body_type")
    files = document.get("attachments")
    email = Email.received(
        subject=document.text("subject"),
        sender=document.text("sender"),
        date=document.text("date"),
        html=document.text("html"),
        plain=document.optional("plain"),
        body=document.text("body"),
        body_type=body_type,
        message_id=document.optional("message_id"),
        provider=provider,
        files=[_attachment(file) for file in (files if isinstance(files, list) else [] if files is None else [files])],
        tells_files=files is not None,
        tells_body=any(document.get(part) is not None for part in ("html", "plain", "body")),
        recipients=(document.get("recipient"), document.get("to")),
        extra={name: value for name, value in document.items() if name not in FIELDS},
    )
    if not email.sender_email:
        raise no_sender(email.sender, "sender")
    return email


def no_sender(sender: str, field: str) -> InvalidPayload:
    return InvalidPayload(
        f"{field} must be an address such as Name <name@example.org>, got {sender[:80]!r}", field=field
    )


def _attachment(given: Any) -> Attachment:
    """Users write their own scripts: a file described in another way is still told apart by its description."""
    file = Document(given if isinstance(given, dict) else {"name": str(given)})
    name = file.optional("name") or file.optional("filename")
    content_type, content = file.optional("content_type"), file.base64("content")
    if content is not None:
        return Attachment.of(name, content_type, content, inline=False)
    sha256 = file.optional("sha256").strip().lower()
    has_other_fields = not sha256 and file.keys() - {"name", "content_type", "size"}
    description = hashlib.sha256(json.dumps(file, sort_keys=True).encode()).hexdigest() if has_other_fields else ""
    return Attachment(name, content_type, file.size("size"), sha256, text_sha256=description)
