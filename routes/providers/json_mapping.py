"""Anything else that sends JSON: mailonce.toml maps the parts of the email to its fields.

[providers.helpdesk]
type = "json"
fields = { subject = "mail.subject", sender = "mail.from", date = "mail.headers.date", body = "mail.html" }
"""

from collections.abc import Sequence
from typing import Any

from pydantic import Field, field_validator

from deduplication.email import Email, address_of
from orchestrator.config.words import reason
from routes.payload import InvalidPayload
from routes.providers.base import HeaderOptions, LoginOptions, Parsed, Provider, ProviderRequest, Secrets, parse_all
from routes.providers.fields import MailHeaders, nested
from routes.providers.gmail import no_sender
from routes.providers.samples import Letter

PARTS = ("subject", "sender", "date", "html", "plain", "body", "message_id", "event_id")
MORE_TEXTS = ("in_reply_to", "references", "return_path", "reply_text", "provider_thread")
ADDRESSES = ("to", "cc", "reply_to")
ALL_PARTS = (*PARTS, *MORE_TEXTS, "recipient", *ADDRESSES, "headers")
BODY_PARTS = ("html", "plain", "body")
MOST = 1000


class JsonOptions(LoginOptions, HeaderOptions):
    """Accepts the ingress token, unless it has a token, or a username and password, of its own.

    If any of ``fields`` is mapped, the sender must be, and the body or an event id. An email without a sender is
    refused.
    """

    fields: dict[str, str] = Field(default_factory=dict)
    """Where the parts are, as dotted paths; a part that is not listed has its own name."""
    items: str = ""
    """The path of the list of emails, if the list is not the whole body."""
    token: Secrets = ()
    """A Bearer token of its own, instead of INGRESS_TOKEN or a username and password."""

    @field_validator("fields")
    @classmethod
    def _check_parts(cls, value: dict[str, str]) -> dict[str, str]:
        unknown = sorted(set(value) - set(ALL_PARTS))
        if unknown:
            raise reason(f"must be some of {', '.join(ALL_PARTS)}, got {unknown[0]!r}")
        if value and not value.get("sender"):
            raise reason('must say where the sender is, such as { sender = "mail.from" }')
        if value and not any(map(value.get, (*BODY_PARTS, "event_id"))):
            # Otherwise anyone who guesses subject, sender and date could suppress an email by sending another one.
            raise reason('must say where the body or an event id is, such as { body = "mail.html" }')
        return value


class Json(Provider[JsonOptions]):
    options_type = JsonOptions
    security = ("ingressToken", "login")
    body_type = dict[str, Any] | list[Any]  # one email or several
    answers_probes = True  # many check with HEAD or GET before they send

    def parse(self, request: ProviderRequest) -> list[Parsed]:
        sent = request.json()
        found = at(sent, self.options.items) if self.options.items else sent
        items = found if isinstance(found, list) else [found]
        if not 0 < len(items) <= MOST:
            raise InvalidPayload(f"the body must have 1 to {MOST} emails, got {len(items)}", field=self.options.items)
        return parse_all(self._email, items)

    def _email(self, document: Any) -> Email:
        found = {part: at(document, self._path(part)) for part in ALL_PARTS}
        fields: dict[str, Any] = {part: self._text(part, found[part]) for part in PARTS}
        if not address_of(fields["sender"]):
            raise no_sender(fields["sender"], self._path("sender"))
        fields |= {part: found[part] for part in MORE_TEXTS if isinstance(found[part], str)}
        fields |= {part: [found[part]] for part in ADDRESSES}
        return self.email(
            **fields,
            recipients=[found["recipient"]],
            headers=MailHeaders(found["headers"], decide=False),
            date_source=self.name,
            tells_files=False,
            tells_body=any(part in self.options.fields or found[part] is not None for part in BODY_PARTS),
            extra=_without(document, [self._path(part).split(".") for part in ALL_PARTS]),
        )

    def _path(self, part: str) -> str:
        return self.options.fields.get(part, part)

    def _text(self, part: str, value: Any) -> str:
        """A number, such as an id or seconds since 1970, becomes text as it is written."""
        if value is None:
            return ""
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            path = self._path(part)
            raise InvalidPayload(f"{path} must be a string, got {type(value).__name__}", field=path)
        return str(value)

    def _document(self, letter: Letter) -> dict[str, Any]:
        """With objects in place of lists, which ``at`` reads alike."""
        values = {**letter.fields, "body": letter.html}
        document = nested((self._path(part).split("."), value) for part, value in values.items())
        return nested([(self.options.items.split("."), [document])]) if self.options.items else document


def _without(document: Any, paths: Sequence[Sequence[str]]) -> Any:
    """The document, but for what is at these paths, and what is empty then."""
    if not isinstance(document, dict):
        return {}
    kept: dict[str, Any] = {}
    for name, value in document.items():
        inner = [path[1:] for path in paths if path[0] == name]
        if [] not in inner and (rest := _without(value, inner) if inner else value) not in (None, "", [], {}):
            kept[name] = rest
    return kept


def at(document: Any, path: str) -> Any:
    """The value at a dotted path, in which a number counts in a list from 0; None if there is none."""
    for step in path.split("."):
        if isinstance(document, dict):
            document = document.get(step)
        elif isinstance(document, list) and step.isdecimal() and step.isascii() and int(step) < len(document):
            document = document[int(step)]
        else:
            return None
    return document
