"""A sample email for `mailonce sample`, and helpers to put it into a provider's form."""

import base64
import shlex
import uuid
from collections.abc import Mapping
from datetime import datetime
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime
from io import BytesIO
from typing import Any

from werkzeug.datastructures import FileStorage

from deduplication.values import frozen
from routes.providers.fields import FileFields

INBOX = "inbox@in.example.com"
BOUNCES = "bounces@mail.example.org"
BOUNDARY = "xYzZY"
URLENCODED = {"Content-Type": "application/x-www-form-urlencoded"}

Rendered = tuple[dict[str, str], bytes]  # headers and body


@frozen
class Enclosure:
    name: str
    content_type: str
    content: bytes
    content_id: str = ""

    @property
    def disposition(self) -> str:
        return "inline" if self.content_id else "attachment"

    @property
    def base64(self) -> str:
        return base64.b64encode(self.content).decode()

    @property
    def size(self) -> int:
        return len(self.content)


@frozen
class Letter:
    """An email, before a provider has put it into its own form. ``more``: headers beside the usual ones."""

    subject: str
    sender: str
    recipients: tuple[str, ...]
    date: str
    message_id: str
    text: str = ""
    html: str = ""
    enclosures: tuple[Enclosure, ...] = ()
    more: tuple[tuple[str, str], ...] = ()

    @property
    def to(self) -> str:
        return ", ".join(self.recipients)

    @property
    def mime(self) -> EmailMessage:
        message = EmailMessage(policy=SMTP)
        for name, value in self.headers.items():
            message[name] = value
        message.set_content(self.text)
        if self.html:
            message.add_alternative(self.html, subtype="html")
        for each in self.enclosures:
            maintype, _, subtype = each.content_type.partition("/")
            shown: dict[str, Any] = {"filename": each.name, "disposition": each.disposition}
            if each.content_id:
                shown["cid"] = f"<{each.content_id}>"
            message.add_attachment(each.content, maintype=maintype, subtype=subtype, **shown)
        return message

    @property
    def headers(self) -> dict[str, str]:
        named = {"Date": self.date, "Message-ID": self.message_id, "Subject": self.subject}
        return {**named, "From": self.sender, "To": self.to, **dict(self.more)}

    @property
    def fields(self) -> dict[str, Any]:
        """Under our own names, as gmail and json have them."""
        named = {"subject": self.subject, "sender": self.sender, "date": self.date, "message_id": self.message_id}
        more = {"to": self.to, "cc": self.headers.get("Cc", ""), "headers": self.headers} if self.more else {}
        return {**named, "html": self.html, "plain": self.text, "recipient": self.to, **more}

    @property
    def event_id(self) -> str:
        """As a provider would generate one for it."""
        return str(uuid.uuid5(uuid.NAMESPACE_URL, self.message_id))

    def texts(self, fields: Mapping[str, str]) -> dict[str, str]:
        """In the fields that the provider reads by the same table."""
        return {field: self.fields[part] for part, field in fields.items()}

    def attachments(self, names: FileFields) -> list[dict[str, Any]]:
        """As JSON, without the fields that the provider does not have."""
        fields = names._asdict() | {"contents": "", "base64": "".join(names.contents[:1])}
        return [{name: getattr(file, part) for part, name in fields.items() if name} for file in self.enclosures]


@frozen
class SampleRequest:
    """``path`` begins at the service's root."""

    path: str
    headers: Mapping[str, str]
    body: bytes


def sample_letter(now: datetime) -> Letter:
    """A new one each second, even for the gate of subject groups."""
    lot = int(now.timestamp())
    return Letter(
        subject=f"Lot {lot} - Documents d'été",
        sender="Ada Lovelace <ada@example.org>",
        recipients=(f"Inbox <{INBOX}>",),
        date=format_datetime(now),
        message_id=f"<{lot}.sample@mail.example.org>",
        text=f"Two files, as promised: https://files.example/lot/{lot}\n",
        html=f'<p>Two files, as promised: <a href="https://files.example/lot/{lot}">lot {lot}</a></p>\n',
        enclosures=(Enclosure("lot.txt", "text/plain", b"456\n"),),
    )


def curl_line(request: SampleRequest, base_url: str) -> str:
    """A line for any shell; bodies with line ends of their own go through Base64."""
    headers = " ".join(f"-H {shlex.quote(f'{name}: {value}')}" for name, value in request.headers.items())
    command = f"curl -sS {shlex.quote(base_url.rstrip('/') + request.path)} {headers} --data-binary"
    if b"\r" in request.body or not request.body.isascii():
        return f"echo {base64.b64encode(request.body).decode()} | base64 -d | {command} @-"
    return f"{command} {shlex.quote(request.body.decode())}"


def multipart(fields: Mapping[str, str], files: Mapping[str, Enclosure]) -> Rendered:
    """A form without its empty fields."""
    from werkzeug.test import encode_multipart  # brings a test client, which a service does not need

    values: dict[str, Any] = {name: value for name, value in fields.items() if value}
    for name, file in files.items():
        values[name] = FileStorage(BytesIO(file.content), file.name, name, file.content_type)
    _, body = encode_multipart(values, BOUNDARY)
    return {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}, body.removeprefix(b"\r\n")
