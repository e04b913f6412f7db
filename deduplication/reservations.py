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

from deduplication.claims import WEEK_MS, Gate, Kind, Name
from deduplication.identity import bounded_key, log_id
from deduplication.journal.base import Claim, Claimed, Ending, InFlight, Journal, Settlement, Verdict
from deduplication.journal.entry import About, Entry, State, new_entry_id
from deduplication.media import media_name, split_url

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
    """What one run has seen: the same post or medium twice in it is known without asking the journal."""

    posts: set[Name] = field(default_factory=set)
    media: set[Name] = field(default_factory=set)


@dataclass(frozen=True)
class Reserved:
    """Publish it, then say ``published`` or ``failed``. ``retries_left`` is None on a first try."""

    claim: Claim
    entry: Entry
    retries_left: int | None


@dataclass(frozen=True)
class Skipped:
    """``state`` is what stands in the journal for the name that stopped the post; ``settled``: never ask again."""

    name: Name
    state: str
    settled: bool


class Reservations:
    """``resolve`` gives the final URL of a link, or the link itself."""

    def __init__(
        self,
        journal: Journal,
        new_token: Callable[[], str],
        lease_ms: int,
        resolve: Callable[[str], str] = lambda url: url,
    ) -> None:
        self._journal = journal
        self._new_token = new_token
        self._lease_ms = lease_ms
        self._resolve = resolve

    def reserve(self, key: str, media: Iterable[str] = (), batch: Batch | None = None) -> Reserved | Skipped:
        """Post and media in one step, by their raw links first and by their final ones where they differ."""
        batch = batch or Batch()
        links = list(media)
        post, raw = post_name(key), tuple(dict.fromkeys(map(media_name, links)))
        if post in batch.posts:
            return _skipped(post, "seen in this batch", settled=False)
        batch.posts.add(post)
        known = next((name for name in raw if name in batch.media), None)
        if known:
            return self._settle_known(post, known)
        claim = self._claim_on(post, raw)
        outcome = self._take(claim, self._journal.claim(claim))
        if isinstance(outcome, Reserved):
            outcome = self._move_to_final_links(outcome, links, batch)
        if isinstance(outcome, Reserved):
            batch.media.update(outcome.entry.shared)
        return outcome

    def _claim_on(self, post: Name, media: tuple[Name, ...]) -> Claim:
        about = About(item=post.value)
        return Claim(new_entry_id(), self._new_token(), (post,), media, lease_ms=self._lease_ms, about=about)

    def _move_to_final_links(self, reserved: Reserved, links: list[str], batch: Batch) -> Reserved | Skipped:
        """The same owner claims again, with other media."""
        claim, entry = reserved.claim, reserved.entry
        final = tuple(dict.fromkeys(media_name(self._resolve(link)) for link in links))
        known = next((name for name in final if name in batch.media), None)
        if known:
            self._journal.settle(claim, entry, Settlement(Ending.DONE, retries_left=0))
            return _skipped(known, "seen in this batch", settled=True)
        if set(entry.shared) <= set(final):
            return reserved
        moved = replace(claim, shared=final)
        outcome = self._take(moved, self._journal.claim(moved))
        if isinstance(outcome, Reserved):
            log.info("post %s: reservation moved from the raw links to the final ones", log_id(claim.own[0].value))
        elif not outcome.settled:
            self._journal.settle(claim, entry, Settlement(Ending.FREE, retries_left=reserved.retries_left))
        return outcome

    def _take(self, claim: Claim, verdict: Verdict) -> Reserved | Skipped:
        """A post stopped by a known medium, or by a mark that another program made, is through itself."""
        if isinstance(verdict, Claimed):
            return Reserved(claim, verdict.entry, verdict.entry.retries_left)
        if isinstance(verdict, InFlight):
            return _skipped(Name.from_label(verdict.name), PENDING, settled=False)
        stop = verdict.stop
        if verdict.entry:
            ending = Ending.FREE if stop.follows else Ending.DONE
            self._journal.settle(claim, verdict.entry, Settlement(ending))
        if stop.follows:  # an email waits with the medium, and may yet fail: nobody would take the post up again
            return _skipped(stop.name, PENDING, settled=False)
        return _skipped(stop.name, PROCESSED if stop.gate is Gate.IDENTITY else "1", settled=True)

    def published(self, reserved: Reserved) -> bool:
        """The post is ``0`` and its media are ``1`` for seven days. False if another took over meanwhile."""
        return self._journal.settle(reserved.claim, reserved.entry, Settlement(Ending.DONE))

    def failed(self, reserved: Reserved, retries_left: int | None = None) -> bool:
        """Both are given back; with 0 retries left the post is through."""
        ending = Ending.DONE if retries_left == 0 else Ending.FREE
        return self._journal.settle(reserved.claim, reserved.entry, Settlement(ending, retries_left=retries_left))

    def state_of(self, key: str) -> str | None:
        """``pending``, ``0``, the retries left, or None if nobody knows the post."""
        (found,) = self._journal.look([post_name(key)])
        states = {entry.state for entry in found.entries}
        if found.is_marked or State.DONE in states:
            return PROCESSED
        if State.PENDING in states:
            return PENDING
        return next((str(entry.retries_left) for entry in found.entries if entry.retries_left is not None), None)

    def _settle_known(self, post: Name, known: Name) -> Skipped:
        """Its medium is in this batch already: the post is through."""
        claim = self._claim_on(post, ())
        verdict = self._journal.claim(claim)
        if not isinstance(verdict, InFlight) and verdict.entry:
            self._journal.settle(claim, verdict.entry, Settlement(Ending.DONE))
        return _skipped(known, "seen in this batch", settled=True)


def _skipped(name: Name, state: str, *, settled: bool) -> Skipped:
    log.info("%s:%s is %s: skipped", name.kind, log_id(name.value), state)
    return Skipped(name, state, settled)
