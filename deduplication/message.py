"""A post or chat message, and the name by which it is recognised."""

import hashlib
from datetime import datetime

from deduplication.body import MAX_LINKS, plain_links, plain_text
from deduplication.dates import parse_date
from deduplication.media import canonical_url
from deduplication.names import Fingerprint, digest, digest_of_all
from deduplication.reservations import compute_post_key
from deduplication.values import frozen, kept_property


@frozen
class Message:
    """A message as received. Any part may be empty, except that the message must have a key."""

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
        """The key from compute_post_key, with the source before an id: every channel has a message 1."""
        scoped_id = f"{self.source}:{self.id}" if self.source and self.id else self.id
        return compute_post_key({**vars(self), "id": scoped_id})

    @kept_property
    def item_id(self) -> str:
        """The id in log lines and records, because the key may be a title or contain anything."""
        return f"msg_{hashlib.sha256(self.key.encode()).hexdigest()[:32]}"

    @kept_property
    def fingerprint(self) -> Fingerprint:
        """The digests of text and media. An empty part is unknown, because many APIs for posts return only one part.

        The queries of media URLs do not count: they often have a new signature each time.
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
