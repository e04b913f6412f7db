"""Posts and their media, reserved before they are published: for scripts that publish feeds.

A post is ``pending`` while a process works on it, ``0`` once it is processed, and a number while retries are left. A
medium is ``pending``, and ``1`` once published. A post whose media are published counts as processed.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlunsplit

from deduplication.identity import bounded_key, log_id
from deduplication.journal.coordinator import Claimed, Coordinator
from deduplication.journal.entry import SETTLED, About, Delivery, DeliveryStatus, changed, new_entry_id
from deduplication.journal.rules import Busy, Claim, Judgement, Repeat
from deduplication.media import media_name, split_url
from deduplication.names import WEEK_MS, Gate, Kind, Name

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
    """Publish it, then call ``published`` or ``failed``. ``retries_left`` is None on a first try."""

    claim: Claim
    claimed: Claimed

    @property
    def retries_left(self) -> int | None:
        return self.claimed.entry.retries_left

    @property
    def media(self) -> tuple[Name, ...]:
        return self.claimed.entry.shared


@dataclass(frozen=True)
class Skipped:
    """``state`` is that of the name that stopped the post; ``settled``: never ask again."""

    name: Name
    state: str
    settled: bool


class Reservations:
    """``resolve`` gives the final URL of a link, or the link itself."""

    def __init__(
        self, coordinator: Coordinator, lease_ms: int, resolve: Callable[[str], str] = lambda url: url
    ) -> None:
        self._coordinator = coordinator
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
        outcome = self._claim(self._claim_on(post, () if known else raw))
        if known:
            return self._end_known(outcome, known)
        if isinstance(outcome, Reserved):
            outcome = self._move_to_final_links(outcome, links, batch)
        if isinstance(outcome, Reserved):
            batch.media.update(outcome.media)
        return outcome

    def _claim_on(self, post: Name, media: tuple[Name, ...]) -> Claim:
        about, owner = About(item=post.value), self._coordinator.new_owner()
        return Claim(new_entry_id(), owner, (post,), media, lease_ms=self._lease_ms, about=about)

    def _claim(self, claim: Claim) -> Reserved | Skipped:
        """A post stopped by a known medium, or by a mark that another program made, is processed."""
        found: Claimed | Judgement = self._coordinator.claim(claim)
        if isinstance(found, Repeat):
            return _skipped(found.name, PROCESSED, settled=True)
        if not isinstance(found, Claimed):
            held = Name.from_label(found.name) if isinstance(found, Busy) else claim.own[0]
            return _skipped(held, PENDING, settled=False)
        stop = found.entry.stop
        if found.to_send or stop is None:
            return Reserved(claim, found)
        is_own = stop.gate is Gate.IDENTITY
        self._settle(found, DeliveryStatus.SKIPPED, "already_processed" if is_own else "skipped_media")
        return _skipped(stop.name, PROCESSED if is_own else "1", settled=True)

    def _move_to_final_links(self, reserved: Reserved, links: list[str], batch: Batch) -> Reserved | Skipped:
        """The same owner claims again, with other media."""
        final = tuple(dict.fromkeys(media_name(self._resolve(link)) for link in links))
        known = next((name for name in final if name in batch.media), None)
        if known:
            return self._end_known(reserved, known)
        if set(reserved.media) <= set(final):
            return reserved
        outcome = self._claim(replace(reserved.claim, shared=final))
        if isinstance(outcome, Reserved):
            log.info("post %s: reservation moved to the final links", log_id(reserved.claim.own[0].value))
        elif not outcome.settled:
            self._settle(reserved.claimed, DeliveryStatus.RETURNED)
        return outcome

    def _end_known(self, outcome: Reserved | Skipped, known: Name) -> Skipped:
        """One of its media is in this batch already: the post is processed."""
        if isinstance(outcome, Reserved):
            self._settle(outcome.claimed, DeliveryStatus.SKIPPED, "skipped_media")
        return _skipped(known, "seen in this batch", settled=True)

    def published(self, reserved: Reserved) -> bool:
        """The post is ``0`` and its media are ``1`` for seven days. False if another owner took over meanwhile."""
        return self._is_owner(reserved) and self._settle(reserved.claimed, DeliveryStatus.DELIVERED, "processed")

    def failed(self, reserved: Reserved, retries_left: int | None = None) -> bool:
        """Both are free again; with 0 retries left the post is processed. False as above."""
        status = DeliveryStatus.SKIPPED if retries_left == 0 else DeliveryStatus.RETURNED
        return self._is_owner(reserved) and self._settle(reserved.claimed, status, "", retries_left)

    def _settle(
        self, claimed: Claimed, status: DeliveryStatus, answer: str = "", retries_left: int | None = None
    ) -> bool:
        ends = [changed(each, status=status) for each in claimed.plan]
        entry = self._coordinator.settle(claimed, ends, answer, retries_left=retries_left).entry
        return entry is not None and self._coordinator.publish(entry.id)

    def _is_owner(self, reserved: Reserved) -> bool:
        name, owner = reserved.claim.own[0], reserved.claim.owner
        return any(each.owner == owner for each in self._deliveries_of(name))

    def _deliveries_of(self, name: Name) -> list[Delivery]:
        return [each for entry in self._coordinator.known([name]).of(name).entries for each in entry.deliveries]

    def state_of(self, key: str) -> str | None:
        """``pending``, ``0``, the retries left, or None if the post is unknown."""
        name = post_name(key)
        known = self._coordinator.known([name])
        state = known.of(name)
        deliveries = [each for entry in state.entries for each in entry.deliveries]
        if state.is_marked or any(each.status in SETTLED for each in deliveries):
            return PROCESSED
        if any(each.status is DeliveryStatus.CLAIMED and each.lease_until_ms > known.now_ms for each in deliveries):
            return PENDING
        return next((str(entry.retries_left) for entry in state.entries if entry.retries_left is not None), None)


def _skipped(name: Name, state: str, *, settled: bool) -> Skipped:
    log.info("%s:%s is %s: skipped", name.kind, log_id(name.value), state)
    return Skipped(name, state, settled)
