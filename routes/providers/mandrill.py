"""Mandrill (Mailchimp Transactional), an inbound route: a form whose one field is a JSON list of events.

Mandrill retries until it gets a 200, and queues later events until an operator drops the failing one in Mandrill.
"""

import base64
import hashlib
import hmac
import json
from collections.abc import Iterable
from datetime import datetime
from itertools import chain
from typing import Annotated, Any
from urllib.parse import urlencode

from pydantic import AfterValidator

from deduplication.authentication import Result
from deduplication.email import Email
from deduplication.spool import chunks_of
from orchestrator.config.words import reason
from routes.auth import Unauthorized, equals_any
from routes.payload import InvalidPayload, parse_json
from routes.providers.base import Handshake, NonEmpty, Options, Parsed, Provider, ProviderRequest, Secrets, parse_all
from routes.providers.fields import Document, FileFields, MailHeaders, mailbox
from routes.providers.samples import INBOX, URLENCODED, Letter, Rendered

TEXTS = {"subject": "subject", "html": "html", "plain": "text"}
FILE = FileFields("name", "type", ("content",))
IMAGE = FILE._replace(content_id="name")  # shown within the HTML, always in Base64
SIGNATURE = "X-Mandrill-Signature"
EVENTS = "mandrill_events"
CHECK, CHECK_KEY, MAX_CHECK_BYTES = b"[]", "test-webhook", 100
"""The body that Mandrill sends before a webhook has a key, and the public key that it is signed with."""


def _own(keys: tuple[str, ...]) -> tuple[str, ...]:
    if CHECK_KEY in keys:
        raise reason(f"must be the key that Mandrill shows for the webhook; {CHECK_KEY} is public")
    return keys


class MandrillOptions(Options):
    webhook_key: Annotated[Secrets, AfterValidator(_own)]
    """The key that Mandrill shows for the webhook."""
    url: NonEmpty
    """The whole URL exactly as it was entered at Mandrill: it is part of what is signed."""


class Mandrill(Provider[MandrillOptions]):
    options_type = MandrillOptions
    media_types = ("application/x-www-form-urlencoded", "multipart/form-data")
    security = ("mandrillSignature",)
    answers_probes = True

    def verify(self, request: ProviderRequest) -> None:
        form = request.form
        fields = [(name.encode(), value) for name, values in form.fields.items() for value in values]
        is_alone = len(form.fields) == len(fields)
        # By name; of those with the same name, by value. A large one is read only if there are several.
        fields.sort(key=lambda field: (field[0], b"" if is_alone else b"".join(form.chunks(field[1]))))
        chunks = chain.from_iterable(((name,), form.chunks(value)) for name, value in fields)
        is_short = len(form.fields.get(EVENTS, [b""])[0]) <= MAX_CHECK_BYTES
        is_check = is_short and form.first(EVENTS).strip() == CHECK
        keys = (*self.options.webhook_key, CHECK_KEY) if is_check else self.options.webhook_key
        message = chain((self.options.url.encode(),), chain.from_iterable(chunks))
        if not equals_any(request.headers.get(SIGNATURE, "").encode(), _signatures(keys, message)):
            raise Unauthorized

    def parse(self, request: ProviderRequest) -> list[Parsed]:
        events = parse_json(request.form.content(EVENTS), files="content|raw_msg")
        if not isinstance(events, list):
            raise InvalidPayload(f"{EVENTS} must be a list, got {type(events).__name__}", field=EVENTS)
        messages = [event.get("msg") for event in events if isinstance(event, dict) and event.get("event") == "inbound"]
        if not messages:
            raise Handshake("no inbound email among the events")
        return parse_all(lambda msg: self._email(Document.of(msg)), messages)

    def _email(self, msg: Document) -> Email:
        """The raw email, unless it has bytes beyond ASCII, which JSON cannot carry: then as Mandrill parsed it."""
        author = mailbox(msg.optional("from_name"), msg.optional("from_email"))
        dkim, raw = msg.object("dkim"), msg.content("raw_msg")
        signed = "none" if not dkim.get("signed") else "pass" if dkim.get("valid") is True else "fail"
        spf = msg.object("spf").optional("result")
        common: dict[str, Any] = {
            "sender": author,
            "recipients": [msg.get("email")],
            "spam": {"spam_score": msg.object("spam_report").get("score"), "spf": spf},
            "verdicts": [Result("spf", spf), *([Result("dkim", signed)] if dkim else ())],
        }
        msg.skip("headers", "subject", "html", "text", "to", "cc", "attachments", "images")
        common["extra"] = msg.unread
        if raw and all(chunk.isascii() for chunk in chunks_of(raw)):
            return self.email(raw=raw, **common)
        return self.email(
            headers=MailHeaders(msg.get("headers")),
            **msg.texts(TEXTS),
            files=[*msg.files("attachments", FILE), *msg.files("images", IMAGE)],
            **common,
        )

    def _sample(self, letter: Letter, now: datetime) -> Rendered:
        files = letter.attachments(FILE)
        ids = {file.name: file.content_id for file in letter.enclosures if file.content_id}
        images = {ids[file["name"]]: {**file, "name": ids[file["name"]]} for file in files if file["name"] in ids}
        msg = {
            **letter.texts(TEXTS),
            "raw_msg": letter.mime.as_bytes().decode(),
            "headers": {name.title(): value for name, value in letter.headers.items()},
            "from_email": "ada@example.org",
            "from_name": None,
            "to": [[INBOX, None]],
            "email": INBOX,
            "spam_report": {"score": 0.1, "matched_rules": []},
            "dkim": {"signed": True, "valid": True},
            "spf": {"result": "pass", "detail": "sender SPF authorized"},
            **({"attachments": {file["name"]: file for file in files if file["name"] not in ids}} if files else {}),
            **({"images": images} if images else {}),
        }
        events = json.dumps([{"ts": int(now.timestamp()), "event": "inbound", "msg": msg}])
        (signature,) = _signatures(self.options.webhook_key[:1], [f"{self.options.url}{EVENTS}{events}".encode()])
        return {**URLENCODED, SIGNATURE: signature.decode()}, urlencode({EVENTS: events}).encode()


def _signatures(keys: Iterable[str], message: Iterable[bytes]) -> list[bytes]:
    proofs = [hmac.new(key.encode(), digestmod=hashlib.sha1) for key in keys]
    for chunk in message:
        for proof in proofs:
            proof.update(chunk)
    return [base64.b64encode(proof.digest()) for proof in proofs]
