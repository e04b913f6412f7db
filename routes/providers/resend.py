"""Resend's email.received: it tells that an email came; with an API key, the email itself is fetched.

Without one there is neither date nor body. Any answer but 2xx is tried again, for 27 hours in all.
"""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote, urlsplit

from pydantic import AfterValidator, Field

from deduplication.email import Attachment, Email
from deduplication.mime import parse_mime
from routes.providers.base import (
    InvalidPayload,
    Parsed,
    Provider,
    ProviderRequest,
    Surroundings,
    as_object,
    json_object,
    parse_json,
    sound,
    text_field,
)
from routes.providers.fields import addresses, header, header_pairs, objects, size_of, text_of, thread_of
from routes.providers.options import MB, Options, Several
from routes.providers.proofs import require_standard_webhook, webhook_key

API = "https://api.resend.com/emails/receiving/"
API_TIMEOUT_S = 5.0  # Resend waits 15 s, and the destinations want theirs
MAX_EMAIL_BYTES = 60 * MB


def _keys(secrets: tuple[str, ...]) -> tuple[str, ...]:
    for secret in secrets:
        webhook_key(secret)
    return secrets


class ResendOptions(Options):
    secret: Annotated[Several, AfterValidator(_keys)]
    """The signing secret of the webhook."""
    api_key: Annotated[str, Field(repr=False)] = ""
    """Fetches text and date, which Resend does not send."""


class Resend(Provider[ResendOptions]):
    options_type = ResendOptions
    needs = "secret"
    security = ("resendSignature",)

    def __init__(self, name: str, options: ResendOptions, surroundings: Surroundings) -> None:
        super().__init__(name, options, surroundings)
        self._keys = [webhook_key(secret) for secret in options.secret]

    def verify(self, request: ProviderRequest) -> None:
        require_standard_webhook(request, self._keys)

    def handshake(self, request: ProviderRequest) -> str | None:
        kind = text_field(_event(request), "type")
        return None if kind in ("", "email.received") else f"{kind[:80]!r} is no email"

    def parse(self, request: ProviderRequest) -> list[Parsed]:
        data = as_object(_event(request).get("data"))
        email_id = text_field(data, "email_id")
        if not email_id:
            raise InvalidPayload("data.email_id is needed", field="data.email_id")
        return [sound(self._fetched(email_id) if self.options.api_key else self._email(data, email_id))]

    def _fetched(self, email_id: str) -> Email:
        """As it came in where Resend offers that, else as Resend read it."""
        bearer = {"Authorization": f"Bearer {self.options.api_key}"}
        url = f"{API}{quote(email_id, safe='')}?html_format=cid"
        stored = as_object(parse_json(self.surroundings.fetch(url, bearer, API_TIMEOUT_S, MAX_EMAIL_BYTES)))
        raw = stored.get("raw")
        raw_url = text_of(raw, "download_url") if isinstance(raw, dict) else ""
        if not _is_resends(raw_url):
            return self._email(stored, email_id)
        return parse_mime(
            self.surroundings.fetch(raw_url, {}, API_TIMEOUT_S, MAX_EMAIL_BYTES),
            provider=self.name,
            event_id=self.own_id(email_id),
            recipients=addresses(stored.get("to"), stored.get("cc"), stored.get("bcc")),
            inline_attachment_bytes=self.options.inline_attachment_bytes,
        )

    def _email(self, data: dict[str, Any], email_id: str) -> Email:
        """``created_at`` is when Resend got it, not the email's date, so it is no date of ours."""
        headers = header_pairs(data.get("headers"))
        return Email(
            subject=text_field(data, "subject"),
            sender=header(headers, "From") or text_field(data, "from"),
            date=header(headers, "Date"),
            html=text_field(data, "html"),
            plain=text_field(data, "text"),
            tells_body="html" in data or "text" in data,
            message_id=text_field(data, "message_id"),
            event_id=self.own_id(email_id),
            provider=self.name,
            recipients=addresses(data.get("to"), data.get("cc"), data.get("bcc")),
            attachments=tuple(map(_attachment, objects(data.get("attachments")))),
            extra=thread_of(headers),
        )


def _event(request: ProviderRequest) -> dict[str, Any]:
    return json_object(request.header("Content-Type"), request.body)


def _is_resends(url: str) -> bool:
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.scheme == "https" and (parts.hostname or "").endswith(".resend.com")


def _attachment(given: dict[str, Any]) -> Attachment:
    return Attachment(text_of(given, "filename"), text_of(given, "content_type"), size_of(given, "size"), "")
