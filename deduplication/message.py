"""A post or chat message, and the name that it is recognised by."""

from __future__ import annotations

import hashlib
from datetime import datetime

from deduplication.body import MAX_LINKS, plain_links, plain_text
from deduplication.dates import parse_date
from deduplication.media import canonical_url
from deduplication.names import Fingerprint, Name, digest, digest_of_all
from deduplication.reservations import compute_post_key, post_name
from deduplication.values import frozen, kept_property

ITEM_ID_PREFIX = "msg_"


@frozen
class Message:
    """As received; all parts may be empty except one that makes a key."""

    source: str = ""
    id: str = ""
    text: str = ""
    date: str = ""
    title: str = ""
    name: str = ""
    url: str = ""
    permalink: str = ""
    created_utc: str = ""
    media: tuple[str, ...] = ()
    destinations: tuple[str, ...] | None = None

    @kept_property
    def key(self) -> str:
        """As compute_post_key; an id is unique within its source only, because every channel has a message 1."""
        known = {field: getattr(self, field) for field in ("name", "permalink", "url", "title", "created_utc")}
        scoped = f"{self.source}:{self.id}" if self.source and self.id else self.id
        return compute_post_key({**known, "id": scoped})

    @kept_property
    def item_id(self) -> str:
        """Its id in log lines and records: the key itself may be a title, or contain anything."""
        return f"{ITEM_ID_PREFIX}{hashlib.sha256(self.key.encode()).hexdigest()[:32]}"

    @property
    def is_known_by_title(self) -> bool:
        """Because it has neither an id nor a URL."""
        return self.key == compute_post_key({"title": self.title, "created_utc": self.created_utc})

    @property
    def name_to_claim(self) -> Name:
        return post_name(self.key)

    @kept_property
    def fingerprint(self) -> Fingerprint:
        """Of text and media, each unknown if it is empty: APIs for posts often return only one of them.

        Media count without their query, which is often a new signature each time.
        """
        text = plain_text(self.text)
        return Fingerprint(
            text=digest(text) if text else None,
            links=digest_of_all({canonical_url(url) for url in self.media[:MAX_LINKS]}) if self.media else None,
        )

    @kept_property
    def moment(self) -> datetime | None:
        return parse_date(self.date or self.created_utc)

    @kept_property
    def links(self) -> tuple[str, ...]:
        return plain_links(self.text)
