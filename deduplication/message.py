"""A post or chat message, and the name it is recognised by."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime

from deduplication.body import plain_links, plain_text
from deduplication.dates import parse_date
from deduplication.fingerprint import Fingerprint, digest, digest_of_all
from deduplication.kept_property import kept_property
from deduplication.limits import MOST_LINKS
from deduplication.media import canonical_url
from deduplication.names import Name
from deduplication.reservations import compute_post_key, post_name

ITEM_ID_PREFIX = "msg_"


@dataclass(frozen=True)
class Message:
    """As it was handed over; every part but one that makes a key may be empty."""

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
        """As compute_post_key; a bare id counts within its source only: every channel has a message 1."""
        known = {field: getattr(self, field) for field in ("name", "permalink", "url", "title", "created_utc")}
        scoped = f"{self.source}:{self.id}" if self.source and self.id else self.id
        return compute_post_key({**known, "id": scoped})

    @kept_property
    def item_id(self) -> str:
        """By which log lines and records call it: the key itself may be a title, or hold anything else."""
        return f"{ITEM_ID_PREFIX}{hashlib.sha256(self.key.encode()).hexdigest()[:32]}"

    @property
    def is_known_by_title(self) -> bool:
        """For want of an id and an address."""
        return self.key == compute_post_key({"title": self.title, "created_utc": self.created_utc})

    @property
    def name_to_claim(self) -> Name:
        return post_name(self.key)

    @kept_property
    def fingerprint(self) -> Fingerprint:
        """Of text and media, each unknown where there is none: who asks for posts often gets only some of them.

        Of a medium's address what stays: what is behind the question mark is signed anew each time it is asked for.
        """
        text = plain_text(self.text)
        return Fingerprint(
            text=digest(text) if text else None,
            links=digest_of_all({canonical_url(each) for each in self.media[:MOST_LINKS]}) if self.media else None,
        )

    @kept_property
    def moment(self) -> datetime | None:
        return parse_date(self.date or self.created_utc)

    @kept_property
    def links(self) -> tuple[str, ...]:
        return plain_links(self.text)
