"""An email or a message on its way through the service."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from deduplication.email import Attachment, Email
from deduplication.identity import compute_fingerprint, is_recognisable, own_names
from deduplication.message import Message
from deduplication.names import Kind, Name

BODY_PREVIEW_CHARS = 200
MESSAGE = "message"  # in place of a provider, for messages and posts
MOST_SHOWN_CHARS = 120  # of a subject or sender: a sender decides how long they are


@dataclass(frozen=True)
class Item:
    """``key`` is the same in every notation of the item: webhook ids are made of it. If it is not ``is_recognisable``,
    other items may have that key too. ``proof``: its provider's proof of origin, which may prove no other item.

    ``media`` are links known to be media, ``links`` those that may be. ``fields`` is what routes may ask about, each
    with all its values; ``destinations`` the only ones the sender wants (None: all of the route). ``recipients``: the
    addresses it was delivered to; without ``tells_recipients``, Router.split reads them from its headers.
    ``is_named_by_words``: a name of its own may be made of what somebody wrote, such as its subject. ``traceparent``:
    of the request that brought it.
    """

    id: str
    key: str
    provider: str
    own_names: tuple[Name, ...]
    fingerprint: str
    text: str
    links: tuple[str, ...]
    fields: Mapping[str, tuple[str, ...]]
    payload: Mapping[str, Any]
    media: tuple[str, ...] = ()
    moment: datetime | None = None
    source: str = ""
    subject: str = ""
    is_message: bool = False
    is_named_by_words: bool = True
    is_recognisable: bool = True
    destinations: tuple[str, ...] | None = None
    recipients: tuple[str, ...] = ()
    tells_recipients: bool = True
    proof: str = ""
    traceparent: str = ""

    def delivered_to(self, recipients: Sequence[str]) -> Item:
        """The same item, for these recipients alone."""
        payload = {**self.payload, "delivered_to": list(recipients)}
        return replace(self, recipients=tuple(recipients), tells_recipients=True, payload=payload)


def email_item(email: Email, ids_kept_ms: int | None) -> Item:
    names = own_names(email, ids_kept_ms)
    ids = [name.value for name in names if name.kind is Kind.EMAIL_ID]
    fingerprint = str(compute_fingerprint(email))
    return Item(
        id=ids[0],
        key=ids[-1] if email.date_utc else f"{names[-1].value}|{fingerprint}",  # the canonical id, or the post key
        provider=email.provider,
        own_names=tuple(names),
        fingerprint=fingerprint,
        is_recognisable=is_recognisable(email),
        text=email.text,
        links=email.links,
        fields={
            "subject": (email.clean_subject,),
            "sender": (email.sender_email,),
            "to": email.to,
            "cc": email.cc,
            "body": (email.text,),
            "provider": (email.provider,),
            "source": (),
        },
        payload={
            "email_id": ids[0],
            "subject": email.clean_subject,
            "sender": email.sender,
            "sender_email": email.sender_email,
            "date": email.date,
            "message_id": email.message_id,
            "delivered_to": list(email.recipients),
            "recipients": list(dict.fromkeys((*email.recipients, *email.to, *email.cc))),
            "body": email.body,
            "plain": email.plain if email.read_html else "",
            "body_preview": email.text[:BODY_PREVIEW_CHARS],
            "links": list(email.links),
            "attachments": [_described(attachment) for attachment in email.attachments],
            "spam": dict(email.spam),
            "extra": dict(email.extra),
        },
        moment=email.date_utc,
        subject=email.subject,
        recipients=email.recipients,
        tells_recipients=email.tells_recipients,
    )


def message_item(message: Message) -> Item:
    return Item(
        id=message.item_id,
        key=f"{message.key}|{message.fingerprint}",
        provider=MESSAGE,
        own_names=(message.name_to_claim,),
        fingerprint=str(message.fingerprint),
        text=message.text,
        links=message.links,
        media=message.media,
        fields={
            "subject": (message.title,),
            "sender": (),
            "to": (),
            "cc": (),
            "body": (message.text,),
            "provider": (MESSAGE,),
            "source": (message.source,),
        },
        payload={
            "message_key": message.key,
            "source": message.source,
            "id": message.id,
            "title": message.title,
            "text": message.text,
            "date": message.date,
            "url": message.url,
            "permalink": message.permalink,
            "media": list(message.media),
            "links": list(message.links),
        },
        moment=message.moment,
        source=message.source,
        is_message=True,
        is_named_by_words=message.is_known_by_title,
        destinations=message.destinations,
    )


def _described(attachment: Attachment) -> dict[str, Any]:
    fields = ("name", "content_type", "size_bytes", "sha256", "content")
    return {field: value for field in fields if (value := getattr(attachment, field)) is not None}
