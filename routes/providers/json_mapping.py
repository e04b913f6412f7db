"""Anything else that sends JSON: mailonce.toml says where the parts of the email stand in it.

[providers.helpdesk]
type = "json"
fields = { subject = "mail.subject", sender = "mail.from", date = "mail.headers.date", body = "mail.html" }
"""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from deduplication.email import Email, address_of
from routes.auth import require_basic, require_bearer
from routes.providers.base import (
    BASIC,
    BEARER,
    InvalidPayload,
    Parsed,
    Provider,
    ProviderRequest,
    Surroundings,
    each,
    json_value,
)
from routes.providers.fields import addresses, html_and_plain
from routes.providers.options import NoOptions, as_list

PARTS = ("subject", "sender", "date", "html", "plain", "body", "message_id", "event_id", "recipient")
MOST = 1000
_Secrets = Annotated[tuple[str, ...], BeforeValidator(as_list), Field(repr=False)]


class JsonOptions(NoOptions):
    """Open to the ingress token, unless it has a token, or a username and password, of its own.

    ``fields`` are dotted paths; a part that is not named stands under its own name. Where any is named, the sender is:
    an email without one is refused. ``items`` is the path of the list of emails, where the list is not the whole body.
    """

    fields: dict[str, str] = Field(default_factory=dict)
    items: str = ""
    token: _Secrets = ()
    username: str = ""
    password: _Secrets = ()

    @field_validator("fields")
    @classmethod
    def _check_parts(cls, value: dict[str, str]) -> dict[str, str]:
        unknown = sorted(set(value) - set(PARTS))
        if unknown:
            raise ValueError(f"takes {', '.join(PARTS)}; not {unknown[0]}")
        if value and not value.get("sender"):
            raise ValueError('takes where the sender stands, such as { sender = "mail.from" }')
        return value

    @model_validator(mode="after")
    def _check_no_empty_secret(self) -> Self:
        if not all(secret.strip() for secret in (*self.token, *self.password)):
            raise ValueError("takes no empty token or password")
        if bool(self.username) != bool(self.password):
            raise ValueError("needs username and password together")
        return self


class JsonMapping(Provider[JsonOptions]):
    options_type = JsonOptions
    security = ("ingressToken", "login")
    answers_probes = True  # many look with HEAD or GET before they send

    def __init__(self, name: str, options: JsonOptions, surroundings: Surroundings) -> None:
        super().__init__(name, options, surroundings)
        self.challenge = BASIC if options.username else BEARER

    def verify(self, request: ProviderRequest) -> None:
        authorization = request.header("Authorization")
        if self.options.username:
            require_basic(authorization, self.options.username, self.options.password)
        else:
            require_bearer(authorization, self.options.token or self.surroundings.ingress_tokens)

    def parse(self, request: ProviderRequest) -> list[Parsed]:
        document = json_value(request.header("Content-Type"), request.body)
        found = at(document, self.options.items) if self.options.items else document
        items = found if isinstance(found, list) else [found]
        if not 0 < len(items) <= MOST:
            raise InvalidPayload(f"the body takes 1 to {MOST} emails", field=self.options.items)
        return each(self._email, items)

    def _email(self, document: Any) -> Email:
        sender = self._text(document, "sender")
        if not address_of(sender):
            path = self._path("sender")
            raise InvalidPayload(f"{path} takes an email address, such as Name <name@example.org>", field=path)
        html, plain = html_and_plain(*(self._text(document, part) for part in ("html", "plain", "body")))
        return Email(
            subject=self._text(document, "subject"),
            sender=sender,
            date=self._text(document, "date"),
            html=html,
            plain=plain,
            message_id=self._text(document, "message_id"),
            event_id=self.own_id(self._text(document, "event_id")),
            provider=self.name,
            tells_files=False,
            tells_body=any(at(document, self._path(part)) is not None for part in ("html", "plain", "body")),
            recipients=addresses(at(document, self._path("recipient"))),
        )

    def _path(self, part: str) -> str:
        return self.options.fields.get(part, part)

    def _text(self, document: Any, part: str) -> str:
        """A number, such as an id or seconds since 1970, is taken as it is written."""
        path = self._path(part)
        value = at(document, path)
        if value is None:
            return ""
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise InvalidPayload(f"{path} takes a string", field=path)
        return str(value)


def at(document: Any, path: str) -> Any:
    """What stands at a dotted path, where a number counts in a list from 0; None if nothing does."""
    for step in path.split("."):
        if isinstance(document, dict):
            document = document.get(step)
        elif isinstance(document, list) and step.isdecimal() and step.isascii() and int(step) < len(document):
            document = document[int(step)]
        else:
            return None
    return document
