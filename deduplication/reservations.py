"""Posts and their media, reserved before they are published: the words of a feed publisher for the one claim.

A post is ``pending`` while someone is at it, ``0`` once it is through, and a number while retries are left. A medium is
``pending``, and ``1`` once published. A post whose media are published is through itself.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlunsplit

from deduplication.claims import WEEK_MS, Claim, Claimed, Duplicate, Gate, Kind, Name, Verdict
from deduplication.identity import bounded_key, log_id
from deduplication.media import media_name, split_url
from deduplication.stores.base import State, Store

log = logging.getLogger(__name__)

PENDING = "pending"
PROCESSED = "0"


def compute_post_key(post: Mapping[str, Any]) -> str:
    """The first present of name, id, permalink, url and ``title::created_utc``; empty if there is none."""
    for field_ in ("name", "id"):
        if _text(post, field_):
            return bounded_key(_text(post, field_))
    for field_ in ("permalink", "url"):
        if _text(post, field_):
            return bounded_key(_without_query(_text(post, field_)))
    title, created = _text(post, "title"), _text(post, "created_utc")
    return bounded_key(f"{title}::{created}") if title and created else ""


def post_name(key: str) -> Name:
    return Name(Kind.POST, "", key, WEEK_MS)


def _text(post: Mapping[str, Any], field_: str) -> str:
    value = post.get(field_)
    return "" if value is None else str(value).strip()


def _without_query(url: str) -> str:
    try:
        parts = split_url(url)
    except ValueError:  # such as http://[::1, which names a post all the same
        return re.split("[?#]", url, maxsplit=1)[0]
    return urlunsplit((parts.scheme, parts.netloc, parts.path, "", ""))


@dataclass
class Batch:
    """What one run has seen: the same post or medium twice in it is known without asking the store."""

    posts: set[Name] = field(default_factory=set)
    media: set[Name] = field(default_factory=set)


@dataclass(frozen=True)
class Reserved:
    """Publish it, then say ``published`` or ``failed``. ``retries_left`` is None on a first try."""

    claim: Claim
    retries_left: int | None


@dataclass(frozen=True)
class Skipped:
    """``state`` is what stands in the store for the name that stopped the post; ``settled``: never ask again."""

    name: Name
    state: str
    settled: bool


class Reservations:
    """``resolve`` gives the final URL of a link, or the link itself."""

    def __init__(
        self,
        store: Store,
        new_token: Callable[[], str],
        lease_ms: int,
        resolve: Callable[[str], str] = lambda url: url,
    ) -> None:
        self._store = store
        self._new_token = new_token
        self._lease_ms = lease_ms
        self._resolve = resolve

    def reserve(self, key: str, media: Iterable[str] = (), batch: Batch | None = None) -> Reserved | Skipped:
        """Post and media in one step, by their raw links first and by their final ones where they differ."""
        batch = batch or Batch()
        links = list(media)
        post, raw = post_name(key), tuple(map(media_name, links))
        if post in batch.posts:
            return _skipped(post, "seen in this batch", settled=False)
        batch.posts.add(post)
        known = next((name for name in raw if name in batch.media), None)
        if known:
            return self._settle(post, known)
        claim = Claim(key, (post, *raw), "", self._new_token(), self._lease_ms)
        outcome = self._outcome(claim, self._store.claim(claim))
        if isinstance(outcome, Reserved):
            outcome = self._resolved(outcome, links, batch)
        if isinstance(outcome, Reserved):
            batch.media.update(name for name in outcome.claim.names if name.kind is Kind.MEDIA)
        return outcome

    def _resolved(self, reserved: Reserved, links: list[str], batch: Batch) -> Reserved | Skipped:
        claim = reserved.claim
        final = tuple(media_name(self._resolve(link)) for link in links)
        known = next((name for name in final if name in batch.media), None)
        if known:
            self._store.release(claim, None)
            return self._settle(claim.names[0], known)
        moved = replace(claim, names=(claim.names[0], *final))
        if set(claim.names) <= set(moved.names):
            return reserved
        outcome = self._outcome(moved, self._store.move(claim, moved))
        if isinstance(outcome, Reserved):
            log.info("post %s: reservation moved from the raw links to the final ones", log_id(claim.item))
            return replace(outcome, retries_left=reserved.retries_left)
        if not outcome.settled:
            self._store.release(claim, reserved.retries_left)
        return outcome

    def published(self, reserved: Reserved) -> bool:
        """The post is ``0`` and its media are ``1`` for seven days. False if another took over meanwhile."""
        return self._store.commit(reserved.claim)

    def failed(self, reserved: Reserved, retries_left: int | None = None) -> bool:
        """Both are given back; with 0 retries left the post is through."""
        return self._store.release(reserved.claim, retries_left)

    def state_of(self, key: str) -> str | None:
        """``pending``, ``0``, the retries left, or None if nobody knows the post."""
        records = list(self._store.read([post_name(key)]))
        if any(record.state is State.DONE for record in records):
            return PROCESSED
        if any(record.state is State.PENDING for record in records):
            return PENDING
        return next((str(record.retries_left) for record in records), None)

    def _settle(self, post: Name, known: Name) -> Skipped:
        """Its medium is in this batch already: the post is through."""
        claim = Claim(post.value, (post,), "", self._new_token(), self._lease_ms)
        if isinstance(self._store.claim(claim), Claimed):
            self._store.commit(claim)
        return _skipped(known, "seen in this batch", settled=True)

    def _outcome(self, claim: Claim, verdict: Verdict) -> Reserved | Skipped:
        if isinstance(verdict, Claimed):
            return Reserved(claim.without(verdict.left_out), verdict.retries_left)
        name = Name.from_label(verdict.name)
        if not isinstance(verdict, Duplicate):
            return _skipped(name, PENDING, settled=False)
        return _skipped(name, PROCESSED if verdict.gate is Gate.IDENTITY else "1", settled=True)


def _skipped(name: Name, state: str, *, settled: bool) -> Skipped:
    log.info("%s:%s is %s: skipped", name.kind, log_id(name.value), state)
    return Skipped(name, state, settled)
