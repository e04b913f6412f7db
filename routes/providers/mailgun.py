"""Mailgun, a route with forward("https://host/api/ingress/mailgun"); with /mime at its end, the raw email.

Mailgun signs its timestamp and token, not the body, and retries for eight hours with the same ones.
"""

import hashlib
import hmac
import json
import secrets
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlencode

from pydantic import Field

from deduplication.authentication import Result
from deduplication.email import Attachment
from routes.auth import Unauthorized, equals_any
from routes.payload import InvalidPayload, parse_json
from routes.providers.base import Options, Parsed, Provider, ProviderRequest, Secrets
from routes.providers.fields import Document, MailHeaders
from routes.providers.samples import BOUNCES, URLENCODED, Letter, Rendered, multipart

TEXTS = {"subject": "subject", "sender": "from", "html": "body-html", "plain": "body-plain"}
FIELDS = (
    *TEXTS.values(), "recipient", "sender", "body-mime", "message-headers", "stripped-text", "content-id-map",
    "attachment-count", "timestamp", "token", "signature",
)  # fmt: skip
"""Those that have a place in the email, and the proof, which nobody else needs."""
SPAM_HEADERS = ("X-Mailgun-Sflag", "X-Mailgun-Sscore", "X-Mailgun-Spf", "X-Mailgun-Dkim-Check-Result")


class MailgunOptions(Options):
    signing_key: Secrets
    """The HTTP webhook signing key of the account."""
    freshness_hours: float = Field(default=12, gt=0, le=7 * 24, description="hours")
    """How old a signed request may be; Mailgun tries for eight hours."""


class Mailgun(Provider[MailgunOptions]):
    options_type = MailgunOptions
    rejected_status = 406
    endings = ("", "/mime")
    media_types = ("application/x-www-form-urlencoded", "multipart/form-data")

    def verify(self, request: ProviderRequest) -> str:
        timestamp, token, signature = map(request.form.last, ("timestamp", "token", "signature"))
        if not equals_any(signature, (_signature(key, timestamp + token) for key in self.options.signing_key)):
            raise Unauthorized
        request.require_recent(timestamp.decode("latin-1"), timedelta(hours=self.options.freshness_hours))
        return f"mailgun-token:{token.decode('latin-1')}"  # at every endpoint: others may have the same key

    def parse(self, request: ProviderRequest) -> list[Parsed]:
        form = request.form
        common: dict[str, Any] = {
            "recipients": [form.text("recipient")],
            "return_path": form.text("sender") if "sender" in form else None,
            "reply_text": form.text("stripped-text"),
        }
        if "body-mime" in form:
            return [self.email(raw=form.content("body-mime"), **common, extra=form.besides(FIELDS))]
        if "message-headers" not in form:
            raise InvalidPayload("message-headers is needed, as forward() sends it", field="message-headers")
        headers = MailHeaders(parse_json(form.first("message-headers")))
        email = self.email(
            headers=headers,
            **form.texts(TEXTS),
            files=[_file(*upload, form.object("content-id-map")) for upload in form.uploads],
            spam=headers.named(SPAM_HEADERS),
            verdicts=self._verdicts(headers),
            **common,
            extra={name: text for name, text in form.besides(FIELDS).items() if not headers[name]},
        )
        return [email]

    def _verdicts(self, headers: MailHeaders) -> list[Result]:
        """Mailgun adds these only for a domain with its spam filter, and passes a sender's own ones on without it."""
        names = {"spf": "X-Mailgun-Spf", "dkim": "X-Mailgun-Dkim-Check-Result"}
        return [Result(method, headers[name]) for method, name in names.items() if "mailgun" in self._trusted]

    def _sample(self, letter: Letter, now: datetime) -> Rendered:
        timestamp, token = str(int(now.timestamp())), secrets.token_hex(25)
        fields = {
            **letter.texts(TEXTS),
            "recipient": letter.recipients[0],
            "sender": BOUNCES,
            "stripped-text": letter.text,
            "message-headers": json.dumps([["X-Mailgun-Sflag", "No"], *letter.headers.items()]),
            "timestamp": timestamp,
            "token": token,
            "signature": _signature(self.options.signing_key[0], f"{timestamp}{token}".encode()).decode(),
        }
        if not letter.enclosures:
            return URLENCODED, urlencode({name: value for name, value in fields.items() if value}).encode()
        files = {f"attachment-{place}": file for place, file in enumerate(letter.enclosures, 1)}
        ids = {file.content_id: field for field, file in files.items() if file.content_id}
        return multipart({**fields, "attachment-count": str(len(files)), "content-id-map": json.dumps(ids)}, files)


def _file(field: str, file: Attachment, ids: Document) -> Attachment:
    """``ids``: the field of the attachment, by its Content-ID."""
    content_id = next((name for name, other in ids.items() if other == field), "")
    return replace(file, content_id=content_id, inline=bool(content_id))


def _signature(key: str, message: bytes) -> bytes:
    return hmac.new(key.encode(), message, hashlib.sha256).hexdigest().encode()
