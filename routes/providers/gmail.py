"""Gmail, pushed by an Apps Script of the user's own: JSON {subject, sender, date, body} and whatever else it sends.

The body is best sent as ``html`` and ``plain``, or either; for one ``body``, ``body_type`` says which of the two it is.
``attachments``, a list of {name, content_type, size, sha256}, says which files it has; without it nobody knows.
"""

from __future__ import annotations

from typing import Any

from deduplication.email import Attachment, Email, address_of
from routes.auth import require_bearer
from routes.providers.base import BEARER, InvalidPayload, Parsed, Provider, ProviderRequest, json_object, text_field
from routes.providers.fields import BODY_TYPES, addresses, html_and_plain, objects, text_of
from routes.providers.options import NoOptions

FIELDS = ("subject", "sender", "date", "html", "plain", "body", "body_type", "recipient", "to", "attachments")


class Gmail(Provider[NoOptions]):
    """Open to whoever has the ingress token. Only 200 makes the script take the label off."""

    options_type = NoOptions
    challenge = BEARER

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
        attachments=tuple(map(_attachment, objects(files))),
        tells_files=isinstance(files, list),
        tells_body=any(document.get(part) is not None for part in ("html", "plain", "body")),
        recipients=addresses(document.get("recipient"), document.get("to")),
        extra={name: value for name, value in document.items() if name not in FIELDS},
    )


def _attachment(given: dict[str, Any]) -> Attachment:
    size = given.get("size")
    sha256 = text_of(given, "sha256").strip().lower()
    return Attachment(
        text_of(given, "name"), text_of(given, "content_type"), size if isinstance(size, int) else 0, sha256
    )
