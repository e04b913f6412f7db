"""Gmail, pushed by an Apps Script of the user's own: JSON {subject, sender, date, body} and whatever else it sends.

With ``headers``, nothing else of the envelope has to be sent. The body is best sent as ``html`` and ``plain``, or one
of them; if it is sent as ``body``, ``body_type`` says which of the two it is. ``attachments`` is a list of {name,
content_type, size, sha256, content_id, inline}, or with ``content`` in Base64; without it the files are unknown.
``text_sha256`` is that of a text whose lines, the last one included, all end in LF.
"""

import hashlib
import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field

from deduplication.email import Attachment, Email
from routes.payload import InvalidPayload, read, with_texts
from routes.providers.base import Options, Parsed, Provider, ProviderRequest
from routes.providers.fields import Document, FileFields, MailHeaders
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
    reply_to: Any = Field(default=None, description="An address or a list of them, as in the email.")
    return_path: Lenient = Field(default=None, description="The sender of the envelope.")
    in_reply_to: Lenient = None
    references: Lenient = None
    headers: Any = Field(default=None, description='All headers of the email, such as `[["Date", "..."], ...]`.')
    thread_id: Lenient = Field(default=None, description="Gmail's own id of the conversation.")
    attachments: Any = Field(default=None, description="A list; without it, its files are unknown.")


FILE = FileFields("name", "content_type", ("content",), "size", "content_id")
TEXTS = ("sender", "subject", "date", "html", "plain", "body", "body_type", "message_id")
ENVELOPE = ("return_path", "in_reply_to", "references")
NOT_EXTRA = EmailIn.model_fields.keys() - {"message_id", "in_reply_to", "references"}


class Gmail(Provider[Options]):
    """The script removes the label only after a 200."""

    options_type = Options
    security = ("ingressToken",)
    body_type = EmailIn
    own_authserv_ids = ("mx.google.com",)  # Gmail removes such a header of the sender's own

    def parse(self, request: ProviderRequest) -> list[Parsed]:
        return [parse(request.json("content"), **self._common)]

    def _document(self, letter: Letter) -> dict[str, Any]:
        files = [{**file, "inline": bool(file["content_id"])} for file in letter.attachments(FILE)]
        headers = [list(each) for each in letter.headers.items()]
        return {**letter.fields, "headers": headers, "thread_id": letter.event_id, "attachments": files}


def parse(given: Any, provider: str = "gmail", **more: Any) -> Email:
    """Raises InvalidPayload."""
    sent = read(EmailIn, given, "body")
    files = sent.attachments if isinstance(sent.attachments, list) else [sent.attachments]
    fields = {
        **{name: getattr(sent, name) or "" for name in TEXTS},
        **{name: value for name in ENVELOPE if (value := getattr(sent, name))},
        "provider": provider,
        "date_source": provider,
        "files": [_file(file) for file in files if file is not None],
        "tells_files": sent.attachments is not None,
        "tells_body": any(part is not None for part in (sent.html, sent.plain, sent.body)),
        "recipients": [sent.recipient],
        **{name: [getattr(sent, name)] for name in ("to", "cc", "reply_to")},
        "provider_thread": sent.thread_id or "",
        "extra": with_texts({name: value for name, value in given.items() if name not in NOT_EXTRA}),
        **more,
    }
    if sent.headers:
        # The script's own fields count before these: it sent them before it sent headers, and ids are made of them.
        own = {name: text for name in TEXTS if (text := fields[name])}
        fields = MailHeaders(sent.headers).added_to(fields) | own
    email = Email.received(**fields)
    if not email.sender_email:
        raise no_sender(email.sender, "sender")
    return email


def no_sender(sender: str, field: str) -> InvalidPayload:
    text = f"{field} must be an address such as Name <name@example.org>, got {sender[:80]!r}"
    return InvalidPayload(text, field=field)


def _file(given: Any) -> Attachment:
    """Users write their own scripts: a file described in another way is still told apart by its description."""
    file = Document(given if isinstance(given, dict) else {"name": str(given)})
    name = file.optional("name") or file.optional("filename")
    content_type, content = file.optional("content_type"), file.base64("content")
    shown: dict[str, Any] = {"content_id": file.optional("content_id"), "inline": file.get("inline") is True}
    if content is not None:
        return Attachment(name, content_type, data=content, **shown)
    sha256, text_sha256 = (file.optional(field).strip().lower() for field in ("sha256", "text_sha256"))
    if not sha256 and file.keys() - {"name", "content_type", "size", "content_id", "inline"}:
        text_sha256 = hashlib.sha256(json.dumps(file, sort_keys=True).encode()).hexdigest()
    return Attachment(name, content_type, file.size("size"), sha256, text_sha256=text_sha256, **shown)
