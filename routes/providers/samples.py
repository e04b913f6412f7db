"""A sample email as each provider would send it, with a proof that the running service takes."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime
from typing import Any
from urllib.parse import urlencode

from routes.providers.brevo import Brevo
from routes.providers.cloudmailin import Cloudmailin
from routes.providers.gmail import Gmail
from routes.providers.json_mapping import PARTS, JsonMapping
from routes.providers.mailgun import Mailgun
from routes.providers.mailjet import Mailjet
from routes.providers.mandrill import EVENTS, SIGNATURE, Mandrill
from routes.providers.mime import Mime
from routes.providers.postmark import Postmark
from routes.providers.proofs import webhook_key
from routes.providers.registry import AnyProvider
from routes.providers.resend import Resend
from routes.providers.sendgrid import Sendgrid
from routes.providers.ses import Ses

BOUNDARY = "xYzZY"
JSON = {"Content-Type": "application/json"}


class SampleUnavailable(Exception):
    """Only the provider itself can make such a request; the message says why."""


@dataclass(frozen=True)
class Enclosure:
    name: str
    content_type: str
    content: bytes

    @property
    def base64(self) -> str:
        return base64.b64encode(self.content).decode()


@dataclass(frozen=True)
class Letter:
    """An email, before any provider has put it into its own form."""

    subject: str
    sender: str
    recipients: tuple[str, ...]
    date: str
    message_id: str
    text: str = ""
    html: str = ""
    enclosures: tuple[Enclosure, ...] = ()

    @property
    def to(self) -> str:
        return ", ".join(self.recipients)

    @property
    def mime(self) -> EmailMessage:
        message = EmailMessage(policy=SMTP)
        for name, value in self.headers:
            message[name] = value
        message.set_content(self.text)
        if self.html:
            message.add_alternative(self.html, subtype="html")
        for each in self.enclosures:
            maintype, _, subtype = each.content_type.partition("/")
            message.add_attachment(each.content, maintype=maintype, subtype=subtype, filename=each.name)
        return message

    @property
    def headers(self) -> list[tuple[str, str]]:
        named = ("Date", self.date), ("Message-ID", self.message_id), ("Subject", self.subject)
        return [*named, ("From", self.sender), ("To", self.to)]

    @property
    def event_id(self) -> str:
        """As a provider would make one up for it."""
        digest = hashlib.sha256(self.message_id.encode()).hexdigest()
        return f"{digest[:8]}-{digest[8:12]}-{digest[12:16]}-{digest[16:20]}-{digest[20:32]}"


@dataclass(frozen=True)
class SampleRequest:
    """``path`` begins at the service's root."""

    path: str
    headers: Mapping[str, str]
    body: bytes


def sample_letter(now: datetime) -> Letter:
    """A new one each second, also to the gate of subject groups."""
    lot = int(now.timestamp())
    return Letter(
        subject=f"Lot {lot} - Documents d'été",
        sender="Ada Lovelace <ada@example.org>",
        recipients=("Inbox <inbox@in.example.com>",),
        date=format_datetime(now),
        message_id=f"<{lot}.sample@mail.example.org>",
        text=f"Two files, as promised: https://files.example/lot/{lot}\n",
        html=f'<p>Two files, as promised: <a href="https://files.example/lot/{lot}">lot {lot}</a></p>\n',
        enclosures=(Enclosure("lot.txt", "text/plain", b"456\n"),),
    )


def sample(provider: AnyProvider, now: datetime) -> SampleRequest:
    """Raises SampleUnavailable where only the provider has the key, or the email."""
    if isinstance(provider, Ses):
        raise SampleUnavailable("Amazon SNS signs with a key of its own: send an email to an address of the SES rule")
    if isinstance(provider, Sendgrid) and provider.options.verification_key:
        raise SampleUnavailable("with verification_key SendGrid signs with a key of its own: send an email instead")
    if isinstance(provider, Resend) and provider.options.api_key:
        raise SampleUnavailable("with api_key the email is fetched from Resend, which has no sample: send an email")
    return rendered(provider, sample_letter(now), now)


def rendered(provider: AnyProvider, letter: Letter, now: datetime) -> SampleRequest:
    headers, body = _FORMS[type(provider)](provider, letter, now)
    return SampleRequest(f"/api/ingress/{provider.name}", headers, body)


def curl_line(request: SampleRequest, base_url: str) -> str:
    """A line for any shell; bodies with line ends of their own go through Base64."""
    headers = " ".join(f"-H {shlex.quote(f'{name}: {value}')}" for name, value in request.headers.items())
    command = f"curl -sS {shlex.quote(base_url.rstrip('/') + request.path)} {headers} --data-binary"
    if b"\r" in request.body or not request.body.isascii():
        return f"echo {base64.b64encode(request.body).decode()} | base64 -d | {command} @-"
    return f"{command} {shlex.quote(request.body.decode())}"


Rendered = tuple[dict[str, str], bytes]


def _gmail(provider: Gmail, letter: Letter, _: datetime) -> Rendered:
    document = {
        "subject": letter.subject,
        "sender": letter.sender,
        "date": letter.date,
        "html": letter.html,
        "plain": letter.text,
        "message_id": letter.message_id,
        "recipient": letter.to,
    }
    return JSON | _bearer(provider.surroundings.ingress_tokens), json.dumps(document).encode()


def _mime(provider: Mime, letter: Letter, _: datetime) -> Rendered:
    headers = {"Content-Type": "message/rfc822"} | _bearer(provider.surroundings.ingress_tokens)
    return headers, letter.mime.as_bytes()


def _json(provider: JsonMapping, letter: Letter, _: datetime) -> Rendered:
    options = provider.options
    values = dict.fromkeys(PARTS, "") | {
        "subject": letter.subject,
        "sender": letter.sender,
        "date": letter.date,
        "html": letter.html,
        "body": letter.html,
        "plain": letter.text,
        "message_id": letter.message_id,
        "recipient": letter.to,
    }
    document: dict[str, Any] = {}
    for part, value in values.items():
        _place(document, options.fields.get(part, part).split("."), value)
    wrapped: dict[str, Any] = {}
    if options.items:
        _place(wrapped, options.items.split("."), [_listed(document)])
    proof = _basic(options.username, options.password) if options.username else None
    proof = proof or _bearer(options.token or provider.surroundings.ingress_tokens)
    return JSON | proof, json.dumps(_listed(wrapped or document)).encode()


def _place(document: dict[str, Any], path: list[str], value: Any) -> None:
    *steps, last = path
    for step in steps:
        document = document.setdefault(step, {})
    document[last] = value


def _listed(value: Any) -> Any:
    """Where the path counts, there is a list."""
    if not isinstance(value, dict):
        return value
    if value and all(key.isdecimal() for key in value):
        return [_listed(value.get(str(place))) for place in range(1 + max(map(int, value)))]
    return {key: _listed(inner) for key, inner in value.items()}


def _mailgun(provider: Mailgun, letter: Letter, now: datetime) -> Rendered:
    timestamp, token = str(int(now.timestamp())), secrets.token_hex(25)
    key = provider.options.signing_key[0].encode()
    fields = {
        "recipient": letter.recipients[0],
        "sender": "bounces@mail.example.org",
        "from": letter.sender,
        "subject": letter.subject,
        "body-plain": letter.text,
        "body-html": letter.html,
        "message-headers": json.dumps([["X-Mailgun-Sflag", "No"], *letter.headers]),
        "timestamp": timestamp,
        "token": token,
        "signature": hmac.new(key, f"{timestamp}{token}".encode(), hashlib.sha256).hexdigest(),
    }
    given = {name: value for name, value in fields.items() if value}
    if not letter.enclosures:
        return {"Content-Type": "application/x-www-form-urlencoded"}, urlencode(given).encode()
    counted = given | {"attachment-count": str(len(letter.enclosures))}
    files = {f"attachment-{place}": each for place, each in enumerate(letter.enclosures, 1)}
    return _multipart(counted, files)


def _sendgrid(provider: Sendgrid, letter: Letter, _: datetime) -> Rendered:
    files = {f"attachment{place}": each for place, each in enumerate(letter.enclosures, 1)}
    fields = {
        "headers": letter.mime.as_bytes().partition(b"\r\n\r\n")[0].decode() + "\r\n",
        "from": letter.sender,
        "to": letter.to,
        "subject": letter.subject,
        "text": letter.text,
        "html": letter.html,
        "charsets": json.dumps(dict.fromkeys(("to", "from", "subject", "text", "html"), "UTF-8")),
        "envelope": json.dumps({"to": ["inbox@in.example.com"], "from": "bounces@mail.example.org"}),
        "attachments": str(len(files)),
        "attachment-info": json.dumps(
            {field: {"filename": each.name, "type": each.content_type} for field, each in files.items()}
        ),
        "spam_score": "0.1",
        "SPF": "pass",
    }
    headers, body = _multipart({name: value for name, value in fields.items() if value}, files)
    options = provider.options
    return headers | (_basic(options.username, options.password) if options.username else {}), body


def _postmark(provider: Postmark, letter: Letter, _: datetime) -> Rendered:
    document = {
        "From": letter.sender,
        "To": letter.to,
        "OriginalRecipient": "inbox@in.example.com",
        "Subject": letter.subject,
        "MessageID": letter.event_id,
        "Date": letter.date,
        "TextBody": letter.text,
        "HtmlBody": letter.html,
        "Headers": [
            {"Name": "X-Spam-Status", "Value": "No"},
            {"Name": "X-Spam-Score", "Value": "-0.1"},
            {"Name": "Message-ID", "Value": letter.message_id},
        ],
        "Attachments": [
            {
                "Name": each.name,
                "Content": each.base64,
                "ContentType": each.content_type,
                "ContentLength": len(each.content),
            }
            for each in letter.enclosures
        ],
    }
    return JSON | _basic(provider.options.username, provider.options.password), json.dumps(document).encode()


def _cloudmailin(provider: Cloudmailin, letter: Letter, _: datetime) -> Rendered:
    document = {
        "headers": {name.lower().replace("-", "_"): value for name, value in letter.headers},
        "envelope": {
            "to": "inbox@in.example.com",
            "from": "bounces@mail.example.org",
            "recipients": ["inbox@in.example.com"],
            "spf": {"result": "pass", "domain": "mail.example.org"},
        },
        "plain": letter.text,
        "html": letter.html,
        "reply_plain": "",
        "attachments": [
            {
                "content": each.base64,
                "file_name": each.name,
                "content_type": each.content_type,
                "size": len(each.content),
                "disposition": "attachment",
            }
            for each in letter.enclosures
        ],
    }
    return JSON | _basic(provider.options.username, provider.options.password), json.dumps(document).encode()


def _brevo(provider: Brevo, letter: Letter, _: datetime) -> Rendered:
    name, address = letter.sender.rpartition(" ")[::2]
    item = {
        "Uuid": [letter.event_id],
        "MessageId": letter.message_id,
        "From": {"Name": name or None, "Address": address.strip("<>")},
        "To": [{"Name": None, "Address": "inbox@in.example.com"}],
        "Cc": [],
        "SentAtDate": letter.date,
        "Subject": letter.subject,
        "RawTextBody": letter.text,
        "RawHtmlBody": letter.html or None,
        "Headers": dict(letter.headers),
        "SpamScore": 0.1,
        "Attachments": [
            {
                "Name": each.name,
                "ContentType": each.content_type,
                "ContentLength": len(each.content),
                "ContentID": None,
                "DownloadToken": "sample-token",
            }
            for each in letter.enclosures
        ],
    }
    proof = _basic(provider.options.username, provider.options.password)
    return JSON | proof, json.dumps({"items": [item]}).encode()


def _mailjet(provider: Mailjet, letter: Letter, _: datetime) -> Rendered:
    parts = [
        {
            "Headers": {
                "Content-Type": [each.content_type],
                "Content-Disposition": [f'attachment; filename="{each.name}"'],
                "Content-Transfer-Encoding": ["base64"],
            },
            "ContentRef": f"Attachment{place}",
        }
        for place, each in enumerate(letter.enclosures, 1)
    ]
    document = {
        "Sender": "bounces@mail.example.org",
        "Recipient": "inbox@in.example.com",
        "From": letter.sender,
        "Subject": letter.subject,
        "Headers": dict(letter.headers),
        "Parts": parts,
        "Text-part": letter.text,
        "Html-part": letter.html,
        "SpamAssassinScore": "0.1",
    }
    document |= {f"Attachment{place}": each.base64 for place, each in enumerate(letter.enclosures, 1)}
    return JSON | _basic(provider.options.username, provider.options.password), json.dumps(document).encode()


def _mandrill(provider: Mandrill, letter: Letter, now: datetime) -> Rendered:
    attachments = {
        each.name: {"name": each.name, "type": each.content_type, "content": each.base64, "base64": True}
        for each in letter.enclosures
    }
    msg = {
        "raw_msg": letter.mime.as_bytes().decode(),
        "headers": {name.title(): value for name, value in letter.headers},
        "text": letter.text,
        "html": letter.html or None,
        "from_email": "ada@example.org",
        "from_name": None,
        "to": [["inbox@in.example.com", None]],
        "email": "inbox@in.example.com",
        "subject": letter.subject,
        "tags": [],
        "sender": None,
        "spam_report": {"score": 0.1, "matched_rules": []},
        "dkim": {"signed": True, "valid": True},
        "spf": {"result": "pass", "detail": "sender SPF authorized"},
        **({"attachments": attachments} if attachments else {}),
    }
    events = json.dumps([{"ts": int(now.timestamp()), "event": "inbound", "msg": msg}])
    message = f"{provider.options.url}{EVENTS}{events}".encode()
    signature = base64.b64encode(hmac.new(provider.options.webhook_key[0].encode(), message, hashlib.sha1).digest())
    headers = {"Content-Type": "application/x-www-form-urlencoded", SIGNATURE: signature.decode()}
    return headers, urlencode({EVENTS: events}).encode()


def _resend(provider: Resend, letter: Letter, now: datetime) -> Rendered:
    document = {
        "type": "email.received",
        "created_at": now.isoformat(),
        "data": {
            "email_id": letter.event_id,
            "created_at": now.isoformat(),
            "from": letter.sender,
            "to": list(letter.recipients),
            "cc": [],
            "bcc": [],
            "message_id": letter.message_id,
            "subject": letter.subject,
            "attachments": [
                {"id": letter.event_id, "filename": each.name, "content_type": each.content_type}
                for each in letter.enclosures
            ],
        },
    }
    body, event_id = json.dumps(document).encode(), f"msg_{letter.event_id}"
    timestamp = str(int(now.timestamp()))
    message = f"{event_id}.{timestamp}.".encode() + body
    signed = hmac.new(webhook_key(provider.options.secret[0]), message, hashlib.sha256).digest()
    signature = f"v1,{base64.b64encode(signed).decode()}"
    return JSON | {"svix-id": event_id, "svix-timestamp": timestamp, "svix-signature": signature}, body


_FORMS: Mapping[type, Callable[[Any, Letter, datetime], Rendered]] = {
    Brevo: _brevo,
    Cloudmailin: _cloudmailin,
    Gmail: _gmail,
    JsonMapping: _json,
    Mailgun: _mailgun,
    Mailjet: _mailjet,
    Mandrill: _mandrill,
    Mime: _mime,
    Postmark: _postmark,
    Resend: _resend,
    Sendgrid: _sendgrid,
}


def _bearer(tokens: Iterable[str]) -> dict[str, str]:
    return {"Authorization": f"Bearer {next(iter(tokens), '')}"}


def _basic(username: str, passwords: Iterable[str]) -> dict[str, str]:
    credentials = f"{username}:{next(iter(passwords), '')}".encode()
    return {"Authorization": f"Basic {base64.b64encode(credentials).decode()}"}


def _multipart(fields: Mapping[str, str], files: Mapping[str, Enclosure]) -> Rendered:
    parts = [(f'name="{name}"', "", value.encode()) for name, value in fields.items()]
    parts += [
        (f'name="{name}"; filename="{each.name}"', f"Content-Type: {each.content_type}\r\n", each.content)
        for name, each in files.items()
    ]
    body = b"".join(
        f"--{BOUNDARY}\r\nContent-Disposition: form-data; {which}\r\n{described}\r\n".encode() + content + b"\r\n"
        for which, described, content in parts
    )
    return {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}, body + f"--{BOUNDARY}--\r\n".encode()
