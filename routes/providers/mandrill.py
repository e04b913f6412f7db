"""Mandrill (Mailchimp Transactional), an inbound route: a form whose one field is a JSON list of events.

Whatever is not answered 200 is tried again, and holds up what comes after it until somebody gives it up in Mandrill.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

from pydantic import AfterValidator

from deduplication.email import Email, well_formed
from deduplication.mime import parse_mime
from routes.auth import Unauthorized
from routes.providers.base import (
    InvalidPayload,
    Parsed,
    Provider,
    ProviderRequest,
    as_object,
    each,
    parse_json,
    sound,
    text_field,
)
from routes.providers.fields import (
    File,
    addresses,
    attachments_of,
    from_base64,
    header,
    header_pairs,
    mailbox,
    object_of,
    objects,
    scores,
    text_of,
    thread_of,
)
from routes.providers.options import Given, Options, Several
from routes.providers.proofs import require_hmac_sha1

SIGNATURE = "X-Mandrill-Signature"
EVENTS = "mandrill_events"
CHECK, CHECK_KEY = b"[]", "test-webhook"
"""What Mandrill sends before a webhook has a key of its own, and what everybody's is signed with."""


def _own(keys: tuple[str, ...]) -> tuple[str, ...]:
    if CHECK_KEY in keys:
        raise ValueError(f"takes the key that Mandrill shows beside the webhook; {CHECK_KEY} is everybody's")
    return keys


class MandrillOptions(Options):
    """``url`` is what was entered at Mandrill, to the letter: it is part of what is signed."""

    webhook_key: Annotated[Several, AfterValidator(_own)]
    url: Given


class Mandrill(Provider[MandrillOptions]):
    options_type = MandrillOptions
    needs = "webhook_key and url"
    media_types = ("application/x-www-form-urlencoded", "multipart/form-data")
    security = ("mandrillSignature",)
    answers_probes = True

    def verify(self, request: ProviderRequest) -> None:
        try:
            form = request.form
        except InvalidPayload:
            raise Unauthorized from None
        fields = sorted((name.encode(), form.read(value)) for name, values in form.fields.items() for value in values)
        message = self.options.url.encode() + b"".join(name + value for name, value in fields)
        keys = self.options.webhook_key
        if form.first(EVENTS).strip() == CHECK:
            keys = (*keys, CHECK_KEY)
        require_hmac_sha1(request.header(SIGNATURE), message, keys)

    def handshake(self, request: ProviderRequest) -> str | None:
        return None if self._inbound(request) else "no inbound email among the events"

    def parse(self, request: ProviderRequest) -> list[Parsed]:
        return each(lambda event: sound(self._email(as_object(event.get("msg")))), self._inbound(request))

    def _inbound(self, request: ProviderRequest) -> list[dict[str, Any]]:
        events = parse_json(request.form.first(EVENTS))
        if not isinstance(events, list):
            raise InvalidPayload(f"{EVENTS} takes a list", field=EVENTS)
        return [event for event in objects(events) if event.get("event") == "inbound"]

    def _email(self, msg: dict[str, Any]) -> Email:
        """As it came in, unless it holds bytes beyond ASCII, which no JSON can: then as Mandrill read it."""
        raw = text_of(msg, "raw_msg")
        email = self._raw(raw, msg) if raw and raw.isascii() else self._parsed(msg)
        verdicts = {
            "spam_score": object_of(msg, "spam_report").get("score"),
            "spf": object_of(msg, "spf").get("result"),
        }
        sender = email.sender or mailbox(text_of(msg, "from_name"), text_of(msg, "from_email"))
        return replace(email, sender=sender, spam={**email.spam, **scores(verdicts)})

    def _raw(self, raw: str, msg: dict[str, Any]) -> Email:
        return parse_mime(
            raw.encode(),
            provider=self.name,
            recipients=addresses(msg.get("email")),
            inline_attachment_bytes=self.options.inline_attachment_bytes,
        )

    def _parsed(self, msg: dict[str, Any]) -> Email:
        headers = header_pairs(msg.get("headers"))
        files = (_file(given) for kind in ("attachments", "images") for given in object_of(msg, kind).values())
        return Email(
            subject=header(headers, "Subject") or text_field(msg, "subject"),
            sender=header(headers, "From"),
            date=header(headers, "Date"),
            html=text_field(msg, "html"),
            plain=text_field(msg, "text"),
            message_id=header(headers, "Message-Id"),
            provider=self.name,
            recipients=addresses(msg.get("email"), header(headers, "To"), header(headers, "Cc")),
            attachments=attachments_of(files, self.options.inline_attachment_bytes),
            extra=thread_of(headers),
        )


def _file(given: Any) -> File:
    """Text may come as it is; images are always in Base64, and do not say so."""
    file = given if isinstance(given, dict) else {}
    content = text_of(file, "content")
    raw = well_formed(content).encode() if file.get("base64") is False else from_base64(content)
    return File(text_of(file, "name"), text_of(file, "type"), raw)
