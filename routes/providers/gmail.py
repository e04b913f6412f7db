"""Gmail, pushed by an Apps Script of the user's own: JSON {subject, sender, date, body} and whatever else it sends.

The body is best sent as ``html`` and ``plain``, or either; for one ``body``, ``body_type`` says which of the two it is.
"""

from __future__ import annotations

from typing import Any

from deduplication.email import Email, address_of
from routes.auth import require_bearer
from routes.providers.base import BEARER, InvalidPayload, Parsed, Provider, ProviderRequest, json_object, text_field
from routes.providers.fields import BODY_TYPES, addresses, html_and_plain, text_of
from routes.providers.options import NoOptions

FIELDS = ("subject", "sender", "date", "html", "plain", "body", "body_type", "recipient", "to")


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
    return Email(
        subject=text_field(document, "subject"),
        sender=sender,
        date=text_field(document, "date"),
        html=html,
        plain=plain,
        message_id=text_of(document, "message_id"),
        provider=provider,
        recipients=addresses(document.get("recipient"), document.get("to")),
        extra={name: value for name, value in document.items() if name not in FIELDS},
    )
