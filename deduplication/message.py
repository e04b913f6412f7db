"""A post or chat message, and the name it is recognised by."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

from deduplication.body import plain_links, plain_text
from deduplication.claims import Name
from deduplication.dates import parse_date
from deduplication.reservations import compute_post_key, post_name


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

    @cached_property
    def key(self) -> str:
        """As compute_post_key; a bare id counts within its source only: every channel has a message 1."""
        known = {field: getattr(self, field) for field in ("name", "permalink", "url", "title", "created_utc")}
        scoped = f"{self.source}:{self.id}" if self.source and self.id else self.id
        return compute_post_key({**known, "id": scoped})

    @property
    def name_to_claim(self) -> Name:
        return post_name(self.key)

    @cached_property
    def fingerprint(self) -> str:
        """Of the text alone; empty (unknown) without one."""
        text = plain_text(self.text)
        return hashlib.sha256(text.encode()).hexdigest() if text else ""

    @cached_property
    def moment(self) -> datetime | None:
        return parse_date(self.date or self.created_utc)

    @cached_property
    def links(self) -> tuple[str, ...]:
        return plain_links(self.text)
