"""Mailgun, a route with forward("https://host/api/ingress/mailgun"); with /mime at its end, the raw email.

Mailgun signs its timestamp and token, not the body, and retries for eight hours with the same ones.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from pydantic import Field

from deduplication.email import Email
from deduplication.mime import parse_mime
from routes.auth import Unauthorized
from routes.providers.base import InvalidPayload, Parsed, Provider, ProviderRequest, Statuses, parse_json, sound
from routes.providers.fields import (
    File,
    HeaderPairs,
    addresses,
    attachments_of,
    header,
    header_pairs,
    headers_named,
    thread_of,
)
from routes.providers.forms import Form
from routes.providers.options import Options, Several
from routes.providers.proofs import require_hmac_hex, require_recent

SPAM_HEADERS = ("X-Mailgun-Sflag", "X-Mailgun-Sscore", "X-Mailgun-Spf", "X-Mailgun-Dkim-Check-Result")


class MailgunOptions(Options):
    signing_key: Several
    freshness_hours: Annotated[float, Field(gt=0, le=7 * 24)] = 12


class Mailgun(Provider[MailgunOptions]):
    options_type = MailgunOptions
    needs = "signing_key"
    statuses = Statuses(rejected=406)
    endings = ("", "/mime")
    media_types = ("application/x-www-form-urlencoded", "multipart/form-data")

    def verify(self, request: ProviderRequest) -> None:
        try:
            form = request.form
        except InvalidPayload:
            raise Unauthorized from None
        timestamp, token, signature = (form.last(field) for field in ("timestamp", "token", "signature"))
        require_hmac_hex(signature, timestamp + token, self.options.signing_key)
        freshness = timedelta(hours=self.options.freshness_hours)
        require_recent(timestamp.decode("latin-1"), request.now, freshness)

    def once(self, request: ProviderRequest) -> str | None:
        return f"{self.name}-token:{request.form.last('token').decode('latin-1')}"

    def parse(self, request: ProviderRequest) -> list[Parsed]:
        form = request.form
        return [sound(self._raw(form) if "body-mime" in form else self._parsed(form))]

    def _raw(self, form: Form) -> Email:
        return parse_mime(
            form.first("body-mime"),
            provider=self.name,
            recipients=addresses(form.text("recipient")),
            inline_attachment_bytes=self.options.inline_attachment_bytes,
        )

    def _parsed(self, form: Form) -> Email:
        headers = _headers(form)
        files = (File(each.name, each.content_type, each.content) for each in form.uploads)
        return Email(
            subject=header(headers, "Subject") or form.text("subject"),
            sender=header(headers, "From") or form.text("from"),
            date=header(headers, "Date"),
            html=form.text("body-html"),
            plain=form.text("body-plain"),
            message_id=header(headers, "Message-Id"),
            provider=self.name,
            recipients=addresses(form.text("recipient"), header(headers, "To"), header(headers, "Cc")),
            attachments=attachments_of(files, self.options.inline_attachment_bytes),
            spam=headers_named(headers, SPAM_HEADERS),
            extra=thread_of(headers),
        )


def _headers(form: Form) -> HeaderPairs:
    if "message-headers" not in form:
        raise InvalidPayload("message-headers is needed, as forward() sends it", field="message-headers")
    return header_pairs(parse_json(form.first("message-headers")))
