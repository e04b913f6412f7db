"""SendGrid Inbound Parse, with its raw option or without.

Its fields are in the charsets that ``charsets`` lists field by field; Date and Message-ID are in ``headers`` only.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator
from werkzeug.http import parse_options_header

from deduplication.authentication import Result
from deduplication.email import Attachment
from deduplication.spool import Blob, chunks_of
from deduplication.text import decoded
from orchestrator.config.words import reason
from routes.auth import Unauthorized
from routes.payload import InvalidPayload
from routes.providers.base import LoginOptions, Options, Parsed, Provider, ProviderRequest, Surroundings, as_list
from routes.providers.fields import Document, FileFields
from routes.providers.forms import Form
from routes.providers.samples import BOUNCES, INBOX, Letter, Rendered, multipart

if TYPE_CHECKING:  # imported only if there is a key: it takes 8 MB of each process
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey

SIGNATURE = "X-Twilio-Email-Event-Webhook-Signature"
TIMESTAMP = "X-Twilio-Email-Event-Webhook-Timestamp"
TEXTS = {"subject": "subject", "sender": "from", "html": "html", "plain": "text"}
FIELDS = (*TEXTS.values(), "headers", "email", "charsets", "envelope", "attachment-info", "SPF", "dkim")
OTHER_FIELDS = ("to", "cc", "spam_score", "attachments", "content-ids")
SIGNED = re.compile(r"@([\w.-]+)\s*:\s*(\w+)")


def _keys(texts: tuple[str, ...]) -> tuple[str, ...]:
    for text in texts:
        _public_key(text)
    return texts


class SendgridOptions(Options, LoginOptions):
    """Basic auth, a signature, or both; never neither."""

    verification_key: Annotated[tuple[str, ...], BeforeValidator(as_list), AfterValidator(_keys)] = ()
    """The public key of a signed Inbound Parse webhook, instead of username and password or in addition."""
    freshness_hours: float = Field(default=96, gt=0, le=30 * 24, description="hours")
    """How old a signed request may be; SendGrid retries for three days."""

    @model_validator(mode="after")
    def _check_there_is_a_proof(self) -> Self:
        if not (self.username or self.verification_key):
            raise reason("needs username and password, or verification_key")
        return self


class Sendgrid(Provider[SendgridOptions]):
    options_type = SendgridOptions
    media_types = ("multipart/form-data", "application/x-www-form-urlencoded")
    security = ("login", "sendgridSignature")

    def __init__(self, name: str, options: SendgridOptions, surroundings: Surroundings) -> None:
        super().__init__(name, options, surroundings)
        self._public_keys = [_public_key(text) for text in options.verification_key]
        if self._public_keys:
            self.no_sample = "with verification_key SendGrid signs with a key of its own: send an email instead"

    def verify(self, request: ProviderRequest) -> None:
        """The signature covers timestamp and body: the timestamp must be digits, so that no bytes move between them."""
        if self.options.username:
            super().verify(request)
        if self._public_keys:
            timestamp = request.headers.get(TIMESTAMP, "")
            request.require_recent(timestamp, timedelta(hours=self.options.freshness_hours))
            digest, signature = hashlib.sha256(timestamp.encode()), request.headers.get(SIGNATURE, "")
            for chunk in chunks_of(request.content()):
                digest.update(chunk)
            if not any(_is_signed(signature, digest.digest(), key) for key in self._public_keys):
                raise Unauthorized

    def parse(self, request: ProviderRequest) -> list[Parsed]:
        if self._public_keys:
            _require_own_boundary(request)
        form = request.form
        if "email" not in form and "headers" not in form:
            raise InvalidPayload("headers is needed, or email with the raw option", field="headers")
        _require_each_field_once(form)
        envelope = form.object("envelope")
        signed = [Result("dkim", result, domain.lower()) for domain, result in SIGNED.findall(form.text("dkim"))]
        common: dict[str, Any] = {
            "recipients": [envelope.get("to")],
            "return_path": envelope.optional("from") if "from" in envelope else None,
            "spam": {name: form.text(name) for name in ("spam_score", "SPF", "dkim")},
            "verdicts": (Result("spf", form.text("SPF")), *(signed or [Result("dkim", form.text("dkim"))])),
            "extra": form.besides((*FIELDS, *OTHER_FIELDS)),
        }
        if "headers" not in form:
            return [self.email(raw=form.content("email"), **common)]
        charsets, described = form.object("charsets"), form.object("attachment-info")
        common |= {part: decoded(form.first(field), charsets.optional(field)) for part, field in TEXTS.items()}
        email = self.email(
            raw=form.first("headers").strip() + b"\r\n\r\n",
            original=None,
            first_html=None,
            files=[_file(upload, described.object(field)) for field, upload in form.uploads],
            **common,
        )
        return [email]

    def _sample(self, letter: Letter, now: datetime) -> Rendered:
        files = {f"attachment{place}": file for place, file in enumerate(letter.enclosures, 1)}
        names = FileFields("filename", "type", content_id="content-id")
        described = dict(zip(files, letter.attachments(names), strict=True))
        fields = {
            **letter.texts(TEXTS),
            "headers": letter.mime.as_bytes().partition(b"\r\n\r\n")[0].decode() + "\r\n",
            "to": letter.to,
            "charsets": json.dumps(dict.fromkeys(("to", *TEXTS.values()), "UTF-8")),
            "envelope": json.dumps({"to": [INBOX], "from": BOUNCES}),
            "attachments": str(len(files)),
            "attachment-info": json.dumps(described),
            "spam_score": "0.1",
            "SPF": "pass",
            "dkim": "{@example.org : pass}",
        }
        return multipart(fields, files)


def _require_each_field_once(form: Form) -> None:
    """SendGrid's boundary is always the same, so a sender can write further fields into the text of an email. Fields
    that SendGrid sends itself are then there twice; and with ``headers``, which it sends too, ``email`` is not read."""
    for name in FIELDS:
        count = len(form.fields.get(name, ()))
        if count > 1:
            raise InvalidPayload(f"{name} must be given once, got {count} times", field=name)


def _require_own_boundary(request: ProviderRequest) -> None:
    """Content-Type is not signed: the same body with another boundary, or as urlencoded, would be another email."""
    media_type, parameters = parse_options_header(request.content_type)
    line = b"--" + parameters.get("boundary", "").encode()
    closing, body = b"\r\n" + line + b"--", request.content()
    if isinstance(body, Blob):  # of a large one, what is between its first line and the first closing one is left out
        found = body.search(re.compile(re.escape(closing)), longest=len(closing))
        body = body.read(0, len(line) + 2) + body.read(found[0] if found else len(body))
    head, is_closed, epilogue = body.partition(closing)
    is_whole = head.startswith(line + b"\r\n") and is_closed and epilogue in (b"", b"\r\n")
    if media_type != "multipart/form-data" or not is_whole:
        text = "Content-Type must be multipart/form-data with the boundary of the body's first and last line"
        raise InvalidPayload(f"{text}, got {request.content_type[:200]!r}", field="Content-Type")


def _file(upload: Attachment, described: Document) -> Attachment:
    name = described.optional("filename") or described.optional("name") or upload.name
    content_type, content_id = described.optional("type") or upload.content_type, described.optional("content-id")
    return replace(upload, name=name, content_type=content_type, content_id=content_id, inline=bool(content_id))


def _public_key(text: str) -> EllipticCurvePublicKey:
    """Raises ValueError unless it is a key in Base64, as SendGrid shows it."""
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from cryptography.hazmat.primitives.serialization import load_der_public_key

    try:
        key = load_der_public_key(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError) as error:
        raise reason("must be the public key that SendGrid shows, in Base64") from error
    if not isinstance(key, EllipticCurvePublicKey):
        raise reason("must be an ECDSA key")
    return key


def _is_signed(signature: str, digest: bytes, key: EllipticCurvePublicKey) -> bool:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ec import ECDSA
    from cryptography.hazmat.primitives.asymmetric.utils import Prehashed
    from cryptography.hazmat.primitives.hashes import SHA256

    try:
        key.verify(base64.b64decode(signature, validate=True), digest, ECDSA(Prehashed(SHA256())))
    except (InvalidSignature, ValueError):  # or it is not Base64
        return False
    return True
