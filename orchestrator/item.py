"""An email or a message on its way through the service."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from datetime import datetime
from functools import partial
from typing import Any

from deduplication.email import Attachment, Email
from deduplication.identity import compute_fingerprint, own_names
from deduplication.message import Message
from deduplication.names import Kind, Name
from deduplication.reservations import compute_post_key, post_name
from deduplication.subject_group import normalize_no_accents_lower_trim
from deduplication.values import frozen
from orchestrator.config.model import AUTHENTICATION, HEADER, SIZE

BODY_PREVIEW_CHARS = 200
PAYLOAD_VERSION = 2
MESSAGE = "message"  # in place of a provider, for messages and posts
MOST_SHOWN_CHARS = 120  # of a subject or sender: a sender decides how long they are


@frozen
class Item:
    """``received`` is the email or message itself. ``key`` is the same in every notation of it: webhook ids are made of
    it. If it is not ``is_recognisable``, other items may have that key too. ``proof``: its provider's proof of origin,
    which may prove no other item.

    ``media`` are links known to be media; other links may be. ``values`` reads what routes may ask about, with all its
    values, ``folded`` has those that were read without case and accents: that takes time for a long body.
    ``destinations``: the only ones the sender wants (None: all of the route). ``recipients``: the addresses it was
    delivered to; without ``tells_recipients``, Router.split reads them from its headers. ``payload`` makes what
    webhooks say of it, as delivered to some addresses: only when it is sent or stored, since a repeat never is.
    It ``has_files`` if its attachments, or the raw email, are wanted by link.
    ``thread``: the conversation that a reply belongs to. ``is_named_by_words``: a name of its own may be made of what
    somebody wrote, such as its subject. ``traceparent``: of the request that brought it.
    """

    received: Email | Message
    id: str
    key: str
    provider: str
    own_names: tuple[Name, ...]
    fingerprint: str
    values: Callable[[str], tuple[str, ...]]
    payload: Callable[[Sequence[str]], dict[str, Any]]
    media: tuple[str, ...] = ()
    moment: datetime | None = None
    folded_subject: str = ""
    folded: dict[str, tuple[str, ...]] = field(default_factory=dict, repr=False, compare=False)
    is_message: bool = False
    is_named_by_words: bool = True
    is_recognisable: bool = True
    destinations: tuple[str, ...] | None = None
    recipients: tuple[str, ...] = ()
    tells_recipients: bool = True
    proof: str = ""
    traceparent: str = ""
    thread: str = ""
    has_files: bool = False

    def delivered_to(self, recipients: Sequence[str]) -> Item:
        """The same item, for these recipients alone."""
        return replace(self, recipients=tuple(recipients), tells_recipients=True)


_FIELDS: Mapping[str, Callable[[Email], tuple[str, ...]]] = {
    "subject": lambda email: (email.clean_subject,),
    "sender": lambda email: (email.sender_email,),
    "to": lambda email: email.to,
    "cc": lambda email: email.cc,
    "reply_to": lambda email: email.reply_to,
    "return_path": lambda email: () if email.return_path is None else (email.return_path,),
    "thread": lambda email: (email.thread,) if email.thread else (),
    "automated": lambda email: (email.automated.kind or "none",) if email.automated else (),
    "body": lambda email: (email.text,),
    "has_attachments": lambda email: ("true" if email.attachments else "false",),
    SIZE: lambda email: (
        str(len(email.html.encode()) + len(email.plain.encode()) + sum(file.size_bytes for file in email.attachments)),
    ),
    "provider": lambda email: (email.provider,),
    "source": lambda _: (),
}


def email_field(email: Email, name: str) -> tuple[str, ...]:
    if name.startswith(HEADER):
        return email.headers_named(name.removeprefix(HEADER))
    if name.startswith(AUTHENTICATION):
        verdict = getattr(email.authentication, name.removeprefix(AUTHENTICATION))
        return (verdict,) if verdict else ()
    return _FIELDS[name](email)


def email_item(email: Email, ids_kept_ms: int | None) -> Item:
    names = own_names(email, ids_kept_ms)
    ids = [name.value for name in names if name.kind is Kind.EMAIL_ID]
    has_post_key = len(names) > len(ids)
    folded_subject = normalize_no_accents_lower_trim(email.clean_subject)
    fingerprint = str(compute_fingerprint(email))
    return Item(
        email,
        id=ids[0],
        key=ids[-1] if email.date_utc else f"{names[-1].value}|{fingerprint}",  # the canonical id, or the post key
        provider=email.provider,
        own_names=tuple(names),
        fingerprint=fingerprint,
        # Not by its names alone if it has no date, event id or Message-ID; then by its text, if that was sent.
        is_recognisable=bool(email.date_utc or has_post_key or email.tells_body),
        values=partial(email_field, email),
        payload=partial(_payload, email, ids[0]),
        has_files=email.original is not None or any(file.data is not None for file in email.attachments),
        moment=email.date_utc,
        thread=email.thread if email.references or email.in_reply_to else "",
        folded_subject=folded_subject,
        folded={"subject": (folded_subject,)},
        recipients=email.recipients,
        tells_recipients=email.tells_recipients,
    )


def _payload(email: Email, email_id: str, delivered_to: Sequence[str]) -> dict[str, Any]:
    """In the fields of version 1, an absent part is empty; in the others it is null."""
    return {
        "version": PAYLOAD_VERSION,
        "email_id": email_id,
        "subject": email.clean_subject,
        "sender": email.sender,
        "sender_email": email.sender_email,
        "date": email.date,
        "delivered_to": list(delivered_to),
        "recipients": list(dict.fromkeys((*email.recipients, *email.to, *email.cc))),
        "body": email.body,
        "plain": email.plain if email.read_html else "",
        "body_preview": email.text[:BODY_PREVIEW_CHARS],
        "links": list(email.links),
        "attachments": [described(attachment) for attachment in email.attachments],
        "spam": dict(email.spam),
        "provider": email.provider,
        "envelope_recipient": next(iter(delivered_to), None) if email.tells_recipients and email.recipients else None,
        **email.envelope,
        "raw_url": None,
    }


def message_item(message: Message) -> Item:
    fields = {
        "subject": (message.title,),
        "body": (message.text,),
        SIZE: (str(len(message.text.encode())),),
        "provider": (MESSAGE,),
        "source": (message.source,),
    }
    names = ("source", "id", "title", "text", "date", "url", "permalink")
    return Item(
        message,
        id=message.item_id,
        key=f"{message.key}|{message.fingerprint}",
        provider=MESSAGE,
        own_names=(post_name(message.key),),
        fingerprint=str(message.fingerprint),
        media=message.media,
        values=lambda name: fields.get(name, ()),
        payload=lambda _: {
            "message_key": message.key,
            **{name: getattr(message, name) for name in names},
            "media": list(message.media),
            "links": list(message.links),
        },
        moment=message.moment,
        is_message=True,
        is_named_by_words=message.key == compute_post_key({"title": message.title, "created_utc": message.created_utc}),
        destinations=message.destinations,
    )


def described(attachment: Attachment) -> dict[str, Any]:
    """As webhooks describe it."""
    names = ("name", "content_type", "size_bytes", "sha256", "content")
    return {
        **{name: value for name in names if (value := getattr(attachment, name)) is not None},
        "size": attachment.size_bytes,
        "content_id": attachment.content_id or None,
        "inline": attachment.inline,
        "url": None,
    }
