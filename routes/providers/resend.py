"""Resend's email.received, which has neither the date nor the body; with an API key, the email itself is fetched.

Resend retries after any answer but 2xx, for 27 hours in all.
"""

import json
import re
from datetime import datetime, timedelta
from typing import Annotated, Any
from urllib.parse import quote

from pydantic import AfterValidator, Field

from deduplication.email import Email
from deduplication.spool import Content
from orchestrator.delivery.signing import SHARED, sign_with
from routes.auth import Unauthorized, equals_any
from routes.payload import InvalidPayload, parse_json
from routes.providers.base import Handshake, Options, Parsed, Provider, ProviderRequest, Secrets, Surroundings
from routes.providers.fields import Document, FileFields, MailHeaders
from routes.providers.samples import Letter, Rendered

API = "https://api.resend.com/emails/receiving/"
API_TIMEOUT_S = 5.0  # Resend waits 15 s, and the destinations want theirs
TEXTS = {"subject": "subject", "sender": "from", "message_id": "message_id"}
FILE = FileFields("filename", "content_type", content_id="content_id", disposition="content_disposition")
MORE_TEXTS, WITH_SIZE = {"html": "html", "plain": "text"}, FILE._replace(size="size")  # only with an API key
TOLERANCE = timedelta(minutes=5)
_RESENDS_URL = re.compile(r"https://[a-z0-9-]+(?:\.[a-z0-9-]+)*\.resend\.com/")


def _shared(secrets: tuple[str, ...]) -> tuple[str, ...]:
    """With their prefix. Raises ValueError for a private key too: Resend signs with a secret that both sides know."""
    shared = tuple(f"{SHARED}{secret.removeprefix(SHARED)}" for secret in secrets)
    for secret in shared:
        sign_with(secret)
    return shared


class ResendOptions(Options):
    secret: Annotated[Secrets, AfterValidator(_shared)] = Field(
        description='a Standard Webhooks secret ("whsec_..."), or a list of them'
    )
    """The signing secret of the webhook."""
    api_key: Annotated[str, Field(repr=False)] = ""
    """Fetches text and date, which Resend does not send."""


class Resend(Provider[ResendOptions]):
    options_type = ResendOptions
    security = ("resendSignature",)

    def __init__(self, name: str, options: ResendOptions, surroundings: Surroundings) -> None:
        super().__init__(name, options, surroundings)
        if options.api_key:
            self.no_sample = "with api_key the email is fetched from Resend, which has no sample: send an email"

    def verify(self, request: ProviderRequest) -> None:
        """Standard Webhooks, with the standard's or Svix's names of the headers."""
        prefix = "svix" if "svix-id" in request.headers else "webhook"
        names = (f"{prefix}-{name}" for name in ("id", "timestamp", "signature"))
        event_id, timestamp, signatures = (request.headers.get(name, "") for name in names)
        request.require_recent(timestamp, TOLERANCE)
        expected = self._signatures(event_id, timestamp, request.read_body())
        if not any([equals_any(signature, expected) for signature in signatures.split()]):
            raise Unauthorized

    def _signatures(self, event_id: str, timestamp: str, body: bytes) -> list[str]:
        message = f"{event_id}.{timestamp}.".encode() + body
        return [sign_with(secret)(message) for secret in self.options.secret]

    def parse(self, request: ProviderRequest) -> list[Parsed]:
        event = Document.of(request.json())
        kind = event.text("type")
        if kind not in ("", "email.received"):
            raise Handshake(f"{kind[:80]!r} is no email")
        data = Document.of(event.get("data"))
        email_id = data.text("email_id")
        if not email_id:
            raise InvalidPayload("data.email_id is needed", field="data.email_id")
        return [self._fetch(email_id) if self.options.api_key else self._email(data, email_id)]

    def _fetch(self, email_id: str) -> Email:
        """The raw email where Resend offers it, else as Resend parsed it."""
        authorization = {"Authorization": f"Bearer {self.options.api_key}"}
        limits = API_TIMEOUT_S, self.surroundings.max_email_bytes
        url = f"{API}{quote(email_id, safe='')}?html_format=cid"
        stored = Document.of(parse_json(self.surroundings.fetch(url, authorization, *limits)))
        raw_url = stored.object("raw").optional("download_url")
        raw = self.surroundings.fetch(raw_url, {}, *limits) if _RESENDS_URL.match(raw_url) else None
        return self._email(stored, email_id, raw)

    def _email(self, data: Document, email_id: str, raw: Content | None = None) -> Email:
        """``created_at`` is when Resend received it, not the email's date. Which of the addresses it was delivered to,
        Resend does not say."""
        to, cc = [data.get("to")], [data.get("cc"), data.get("bcc")]
        common: dict[str, Any] = {"event_id": email_id, "to": to, "cc": cc, "reply_to": [data.get("reply_to")]}
        data.skip("id", "object", "headers", "subject", "from", "html", "text", "message_id", "raw")
        if raw is not None:
            data.skip("attachments")
            return self.email(raw=raw, **common, extra=data.unread)
        return self.email(
            headers=MailHeaders(data.get("headers")),
            **data.texts(TEXTS | MORE_TEXTS),
            tells_body="html" in data or "text" in data,
            files=data.files("attachments", WITH_SIZE),
            **common,
            extra=data.unread,
        )

    def _sample(self, letter: Letter, now: datetime) -> Rendered:
        data = {
            **letter.texts(TEXTS),
            "email_id": letter.event_id,
            "created_at": now.isoformat(),
            "to": letter.recipients,
            "attachments": letter.attachments(FILE),
        }
        body = json.dumps({"type": "email.received", "created_at": now.isoformat(), "data": data}).encode()
        event_id, timestamp = f"msg_{letter.event_id}", str(int(now.timestamp()))
        signature, *_ = self._signatures(event_id, timestamp, body)
        proof = {"svix-id": event_id, "svix-timestamp": timestamp, "svix-signature": signature}
        return {"Content-Type": "application/json", **proof}, body
