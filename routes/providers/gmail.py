"""Gmail, pushed by an Apps Script of the user's own: JSON {subject, sender, date, body} and whatever else it sends.

The body is best sent as ``html`` and ``plain``, or either; for one ``body``, ``body_type`` says which of the two it is.
``attachments``, a list of {name, content_type, size, sha256}, or with ``content`` in Base64, says which files it has;
without it nobody knows.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from deduplication.email import Attachment, Email, address_of
from routes.auth import require_bearer
from routes.providers.base import BEARER, InvalidPayload, Parsed, Provider, ProviderRequest, json_object, text_field
from routes.providers.fields import BODY_TYPES, addresses, from_base64, html_and_plain, size_of, text_of
from routes.providers.options import NoOptions

FIELDS = ("subject", "sender", "date", "html", "plain", "body", "body_type", "recipient", "to", "attachments")


class Gmail(Provider[NoOptions]):
    """Open to whoever has the ingress token. Only 200 makes the script take the label off."""

    options_type = NoOptions
    challenge = BEARER
    security = ("ingressToken",)

    def verify(self, request: ProviderRequest) -> None:
        require_bearer(request.header("Authorization"), self.surroundings.ingress_tokens)

    def parse(self, request: ProviderRequest) -> list[Parsed]:
        return [parse(json_object(request.header("Content-Type"), request.body), self.name)]


def parse(document: dict[str, Any], provider: str = "gmail") -> Email:
    """Raises InvalidPayload."""
    sender = text_field(document, "sender")
    if not address_of(sender):
        raise InvalidPayload("sender takes an email address, such as Name <name@example.org>", field="sender")
    body_type = text_field(document, "body_type")
    if body_type not in ("", *BODY_TYPES):
        raise InvalidPayload(f"body_type takes {' or '.join(BODY_TYPES)}", field="body_type")
    html, plain = html_and_plain(
        text_field(document, "html"), text_of(document, "plain"), text_field(document, "body"), body_type
    )
    files = document.get("attachments")
    return Email(
        subject=text_field(document, "subject"),
        sender=sender,
        date=text_field(document, "date"),
        html=html,
        plain=plain,
        message_id=text_of(document, "message_id"),
        provider=provider,
        attachments=tuple(map(_attachment, files if isinstance(files, list) else [] if files is None else [files])),
        tells_files=files is not None,
        tells_body=any(document.get(part) is not None for part in ("html", "plain", "body")),
        recipients=addresses(document.get("recipient"), document.get("to")),
        extra={name: value for name, value in document.items() if name not in FIELDS},
    )


def _attachment(given: Any) -> Attachment:
    """Scripts are people's own: what a file is described by in another way still tells it from another file."""
    file = given if isinstance(given, dict) else {"name": str(given)}
    name, content_type = text_of(file, "name") or text_of(file, "filename"), text_of(file, "content_type")
    content = from_base64(file.get("content"))
    if content is not None:
        return Attachment.of(name, content_type, content, inline=False)
    sha256 = text_of(file, "sha256").strip().lower()
    is_told_otherwise = not sha256 and file.keys() - {"name", "content_type", "size"}
    described = hashlib.sha256(json.dumps(file, sort_keys=True).encode()).hexdigest() if is_told_otherwise else ""
    return Attachment(name, content_type, size_of(file, "size"), sha256, text_sha256=described)
