"""SendGrid Inbound Parse, with its raw option or without.

Its fields are in the charsets that ``charsets`` says, field by field; Date and Message-ID stand in ``headers`` only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator
from werkzeug.http import parse_options_header

from deduplication.decoding import decoded
from deduplication.email import Email
from deduplication.mime import parse_mime
from routes.auth import require_basic
from routes.providers.base import (
    BASIC,
    InvalidPayload,
    Parsed,
    Provider,
    ProviderRequest,
    Surroundings,
    parse_json,
    sound,
)
from routes.providers.fields import File, addresses, attachments_of, scores, text_of
from routes.providers.forms import Form, Upload
from routes.providers.options import Options, as_list
from routes.providers.proofs import ecdsa_key, require_ecdsa, require_recent

SIGNATURE = "X-Twilio-Email-Event-Webhook-Signature"
TIMESTAMP = "X-Twilio-Email-Event-Webhook-Timestamp"
FIELDS = ("headers", "email", "from", "subject", "html", "text", "charsets", "envelope", "attachment-info")


def _keys(texts: tuple[str, ...]) -> tuple[str, ...]:
    for text in texts:
        ecdsa_key(text)
    return texts


class SendgridOptions(Options):
    """Basic auth, a signature, or both; never neither."""

    username: str = ""
    """The user in the URL that SendGrid is given."""
    password: Annotated[tuple[str, ...], BeforeValidator(as_list), Field(repr=False)] = ()
    """The password in that URL."""
    verification_key: Annotated[tuple[str, ...], BeforeValidator(as_list), AfterValidator(_keys)] = ()
    """The public key of a signed Inbound Parse webhook; instead of username and password, or beside them."""
    freshness_hours: Annotated[float, Field(gt=0, le=30 * 24)] = 96
    """How old a signed request may be; SendGrid retries for three days."""

    @model_validator(mode="after")
    def _check_there_is_a_proof(self) -> Self:
        if not all(secret.strip() for secret in self.password) or bool(self.username) != bool(self.password):
            raise ValueError("needs username and password together, and neither empty")
        if not (self.username or self.verification_key):
            raise ValueError("needs username and password, or verification_key")
        return self


class Sendgrid(Provider[SendgridOptions]):
    options_type = SendgridOptions
    needs = "username and password, or verification_key"
    media_types = ("multipart/form-data", "application/x-www-form-urlencoded")
    security = ("login", "sendgridSignature")

    def __init__(self, name: str, options: SendgridOptions, surroundings: Surroundings) -> None:
        super().__init__(name, options, surroundings)
        self.challenge = BASIC if options.username else ""
        self._public_keys = [ecdsa_key(text) for text in options.verification_key]

    def verify(self, request: ProviderRequest) -> None:
        """The signature covers the timestamp and the body: with digits only, neither can take bytes from the other."""
        if self.options.username:
            require_basic(request.header("Authorization"), self.options.username, self.options.password)
        if self._public_keys:
            timestamp = request.header(TIMESTAMP)
            require_recent(timestamp, request.now, timedelta(hours=self.options.freshness_hours))
            require_ecdsa(request.header(SIGNATURE), timestamp.encode() + request.body, self._public_keys)

    def parse(self, request: ProviderRequest) -> list[Parsed]:
        if self._public_keys:
            _require_own_boundary(request)
        form = request.form
        if "email" not in form and "headers" not in form:
            raise InvalidPayload("headers is needed, or email with the raw option", field="headers")
        _require_each_field_once(form)
        email = self._parsed(form) if "headers" in form else self._raw(form)
        verdicts = scores({name: form.text(name) for name in ("spam_score", "SPF", "dkim")})
        return [sound(replace(email, spam={**email.spam, **verdicts}))]

    def _raw(self, form: Form) -> Email:
        return parse_mime(
            form.first("email"),
            provider=self.name,
            recipients=_recipients(form),
            inline_attachment_bytes=self.options.inline_attachment_bytes,
        )

    def _parsed(self, form: Form) -> Email:
        charsets = _object(form, "charsets")
        subject, sender, html, text = (
            decoded(form.first(field), text_of(charsets, field)) for field in ("subject", "from", "html", "text")
        )
        from_headers = parse_mime(form.first("headers").strip() + b"\r\n\r\n", recipients=_recipients(form))
        return replace(
            from_headers,
            provider=self.name,
            subject=from_headers.subject or subject,
            sender=from_headers.sender or sender,
            html=html,
            plain=text,
            attachments=attachments_of(_files(form), self.options.inline_attachment_bytes),
        )


def _require_each_field_once(form: Form) -> None:
    """SendGrid's boundary is always the same, so a sender can write further fields into the text of an email. Fields
    that SendGrid sends itself are then there twice; and with ``headers``, which it sends too, ``email`` is not read."""
    for name in FIELDS:
        count = len(form.fields.get(name, ()))
        if count > 1:
            raise InvalidPayload(f"{name} must be given once, got {count} times", field=name)


def _require_own_boundary(request: ProviderRequest) -> None:
    """Content-Type is not signed: the same body with another boundary, or as urlencoded, would be another email."""
    media_type, parameters = parse_options_header(request.header("Content-Type"))
    line = b"--" + parameters.get("boundary", "").encode()
    begins = request.body.startswith(line + b"\r\n")
    _, closing, epilogue = request.body.partition(b"\r\n" + line + b"--")
    ends = closing and epilogue in (b"", b"\r\n")
    if media_type != "multipart/form-data" or not (begins and ends):
        raise InvalidPayload(
            "Content-Type must be multipart/form-data with the boundary of the body's first and last line, "
            f"got {request.header('Content-Type')[:200]!r}",
            field="Content-Type",
        )


def _recipients(form: Form) -> tuple[str, ...]:
    """Of the envelope: whom SendGrid had it for."""
    return addresses(_object(form, "envelope").get("to"))


def _files(form: Form) -> list[File]:
    described = _object(form, "attachment-info")
    return [_file(upload, described.get(upload.field)) for upload in form.uploads]


def _file(upload: Upload, described: Any) -> File:
    known = described if isinstance(described, dict) else {}
    name = text_of(known, "filename") or text_of(known, "name") or upload.name
    return File(name, text_of(known, "type") or upload.content_type, upload.content)


def _object(form: Form, field: str) -> Mapping[str, Any]:
    """Of a field that is JSON; without it, or if it is damaged, the email can still be read."""
    try:
        value = parse_json(form.first(field))
    except InvalidPayload:
        return {}
    return value if isinstance(value, dict) else {}
