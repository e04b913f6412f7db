"""Gmail, pushed by an Apps Script of the user's own: JSON {subject, sender, date, body} and whatever else it sends."""

from __future__ import annotations

from typing import Any

from deduplication.email import Email, address_of
from routes.auth import require_bearer
from routes.providers.base import BEARER, InvalidPayload, Parsed, Provider, ProviderRequest, json_object, text_field
from routes.providers.fields import addresses, body_and_plain, text_of
from routes.providers.options import NoOptions

FIELDS = ("subject", "sender", "date", "body", "plain", "recipient", "to")


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
    body, plain = body_and_plain(text_field(document, "body"), text_of(document, "plain"))
    return Email(
        subject=text_field(document, "subject"),
        sender=sender,
        date=text_field(document, "date"),
        body=body,
        plain=plain,
        message_id=text_of(document, "message_id"),
        provider=provider,
        recipients=addresses(document.get("recipient"), document.get("to")),
        extra={name: value for name, value in document.items() if name not in FIELDS},
    )
