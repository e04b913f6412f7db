"""Gmail, pushed by an Apps Script of the user's own: JSON {subject, sender, date, body} and whatever else it sends.

The body is best sent as ``html`` and ``plain``, or one of them; if it is sent as ``body``, ``body_type`` says which of
the two it is. ``attachments`` is a list of {name, content_type, size, sha256}, or with ``content`` in Base64; without
it the files are unknown. ``text_sha256`` is that of a text whose lines, the last one included, all end in LF.
"""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field

from deduplication.email import Attachment, Email, File
from routes.payload import InvalidPayload, read, with_texts
from routes.providers.base import Parsed, Provider, ProviderRequest
from routes.providers.fields import Document
from routes.providers.options import Options
from routes.providers.samples import Letter

# A script may send what it likes here: anything but a text is ignored.
Lenient = Annotated[str | None, BeforeValidator(lambda value: value if isinstance(value, str) else None)]


class EmailIn(BaseModel):
    """An email as a script of your own sends it. Other fields are passed on under `extra`."""

    sender: str = Field(description="An address, or Name <address>.", examples=["Ada Lovelace <ada@example.org>"])
    subject: str | None = Field(default=None, examples=["Lot 456"])
    date: str | None = Field(default=None, examples=["2026-11-16T09:00:00.000Z"])
    html: str | None = None
    plain: Lenient = Field(default=None, examples=["Hello"])
    body: str | None = Field(default=None, description="For a script that does not know which of the two it is.")
    body_type: Literal["html", "text", ""] | None = None
    message_id: Lenient = None
    recipient: Any = Field(default=None, description="An address or a list of them: who received it.")
    to: Any = Field(default=None, description="An address or a list of them, as in the email.")
    cc: Any = Field(default=None, description="An address or a list of them, as in the email.")
    attachments: Any = Field(default=None, description="A list; without it, its files are unknown.")


TEXTS = ("sender", "subject", "date", "html", "plain", "body", "body_type", "message_id")
NOT_EXTRA = EmailIn.model_fields.keys() - {"message_id"}


class Gmail(Provider[Options]):
    """The script removes the label only after a 200."""

    options_type = Options
    security = ("ingressToken",)
    body_type = EmailIn

    def parse(self, request: ProviderRequest) -> list[Parsed]:
        return [parse(request.json_with_files("content"), self.name, **self._files)]

    def _document(self, letter: Letter) -> dict[str, Any]:
        files = letter.attachments(name="name", content_type="content_type", size="size", content="base64")
        return {**letter.fields, "attachments": files}


def parse(given: Any, provider: str = "gmail", **how: Any) -> Email:
    """``how``: what Email.received is told of files. Raises InvalidPayload."""
    sent = read(EmailIn, given, "body")
    texts: dict[str, Any] = {name: getattr(sent, name) or "" for name in TEXTS}
    files = sent.attachments if isinstance(sent.attachments, list) else [sent.attachments]
    email = Email.received(
        **texts,
        provider=provider,
        date_source=provider,
        files=[_file(file) for file in files if file is not None],
        **how,
        tells_files=sent.attachments is not None,
        tells_body=any(part is not None for part in (sent.html, sent.plain, sent.body)),
        recipients=[sent.recipient],
        to=[sent.to],
        cc=[sent.cc],
        extra=with_texts({name: value for name, value in given.items() if name not in NOT_EXTRA}),
    )
    if not email.sender_email:
        raise no_sender(email.sender, "sender")
    return email


def no_sender(sender: str, field: str) -> InvalidPayload:
    return InvalidPayload(
        f"{field} must be an address such as Name <name@example.org>, got {sender[:80]!r}", field=field
    )


def _file(given: Any) -> Attachment | File:
    """Users write their own scripts: a file described in another way is still told apart by its description."""
    file = Document(given if isinstance(given, dict) else {"name": str(given)})
    name = file.optional("name") or file.optional("filename")
    content_type, content = file.optional("content_type"), file.base64("content")
    if content is not None:
        return File(name, content_type, content)
    sha256, text_sha256 = (file.optional(field).strip().lower() for field in ("sha256", "text_sha256"))
    if not sha256 and file.keys() - {"name", "content_type", "size"}:
        text_sha256 = hashlib.sha256(json.dumps(file, sort_keys=True).encode()).hexdigest()
    return Attachment(name, content_type, file.size("size"), sha256, text_sha256=text_sha256)
