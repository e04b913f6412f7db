"""For scripts that publish feeds: posts and their media are reserved before they are published.

A post is ``pending`` while a process works on it, ``0`` once it is processed, or the number of retries left. A medium
is ``pending``, or ``1`` once published. A post whose media are published counts as processed.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urlunsplit

from msgspec.structs import replace

from deduplication.identity import log_id
from deduplication.journal.coordinator import Claimed, Coordinator
from deduplication.journal.entry import SETTLED, About, DeliveryStatus, new_entry_id
from deduplication.journal.rules import Busy, Claim, Repeat
from deduplication.media import media_name, split_url
from deduplication.names import WEEK_MS, Gate, Kind, Name, bounded_key
from deduplication.values import frozen

log = logging.getLogger(__name__)

PENDING = "pending"
PROCESSED = "0"


def compute_post_key(post: Mapping[str, Any]) -> str:
    """The first present of name, id, permalink, url and ``title::created_utc``; empty if there is none."""
    known = {name: "" if value is None else str(value).strip() for name, value in post.items()}
    if key := known.get("name") or known.get("id"):
        return bounded_key(key)
    if url := known.get("permalink") or known.get("url"):
        return bounded_key(_without_query(url))
    title, created = known.get("title"), known.get("created_utc")
    return bounded_key(f"{title}::{created}") if title and created else ""


def post_name(key: str) -> Name:
    return Name(Kind.POST, "", key, WEEK_MS)


def _without_query(url: str) -> str:
    try:
        parts = split_url(url)
    except ValueError:  # such as http://[::1, which still identifies a post
        return re.split("[?#]", url, maxsplit=1)[0]
    return urlunsplit((parts.scheme, parts.netloc, parts.path, "", ""))


class Batch(set[Name]):
    """Posts and media of one run: a repetition within it is recognised without the journal."""


@frozen
class Reserved:
    """To be published; then call ``published`` or ``failed``. ``retries_left`` is None on a first try."""

    claimed: Claimed
    retries_left: int | None
    media: tuple[Name, ...]


@frozen
class Skipped:
    """``state`` is that of the name that stopped the post. If it is ``settled``, it stays skipped."""

    name: Name
    state: str
    settled: bool


class Reservations:
    def __init__(self, coordinator: Coordinator, lease_ms: int) -> None:
        self._coordinator = coordinator
        self._lease_ms = lease_ms

    def reserve(self, key: str, media: Iterable[str] = (), batch: Batch | None = None) -> Reserved | Skipped:
        """Post and media in one step. A post that is stopped by a known medium, or by another program's mark, becomes
        processed."""
        batch = Batch() if batch is None else batch
        post = post_name(key)
        if post in batch:
            return _skipped(post, "seen in this batch", settled=False)
        batch.add(post)
        names = tuple(dict.fromkeys(map(media_name, media)))
        seen = next((name for name in names if name in batch), None)
        about, owner = About(item=post.value), self._coordinator.new_owner()
        shared = () if seen else names
        found = self._coordinator.claim(
            Claim(new_entry_id(), owner, (post,), shared, lease_ms=self._lease_ms, about=about)
        )
        stop = found.entry.stop if isinstance(found, Claimed) and not found.to_send else None
        is_own = stop is not None and stop.gate is Gate.IDENTITY
        if isinstance(found, Claimed) and (stop or seen):
            self._settle(found, DeliveryStatus.SKIPPED, "already_processed" if is_own else "skipped_media")
        if seen:
            return _skipped(seen, "seen in this batch", settled=True)
        if stop:
            return _skipped(stop.name, PROCESSED if is_own else "1", settled=True)
        if isinstance(found, Claimed):
            batch.update(found.entry.shared)
            return Reserved(found, found.entry.retries_left, found.entry.shared)
        if isinstance(found, Repeat):
            return _skipped(found.name, PROCESSED, settled=True)
        return _skipped(Name.from_label(found.name) if isinstance(found, Busy) else post, PENDING, settled=False)

    def published(self, reserved: Reserved) -> bool:
        """The post is ``0`` and its media are ``1`` for seven days. False if another owner has taken over."""
        return self._is_owner(reserved) and self._settle(reserved.claimed, DeliveryStatus.DELIVERED, "processed")

    def failed(self, reserved: Reserved, retries_left: int | None = None) -> bool:
        """Both are free again; with 0 retries left the post is processed. False as above."""
        status = DeliveryStatus.SKIPPED if retries_left == 0 else DeliveryStatus.RETURNED
        left = None if retries_left is None else int(retries_left)  # a float would make the entry unreadable
        return self._is_owner(reserved) and self._settle(reserved.claimed, status, "", left)

    def _settle(
        self, claimed: Claimed, status: DeliveryStatus, answer: str = "", retries_left: int | None = None
    ) -> bool:
        outcomes = [replace(delivery, status=status) for delivery in claimed.plan]
        entry = self._coordinator.settle(claimed, outcomes, answer, retries_left=retries_left).entry
        return entry is not None and self._coordinator.publish(entry.id, view=claimed.view)

    def _is_owner(self, reserved: Reserved) -> bool:
        name, owner = reserved.claimed.entry.own[0], reserved.claimed.owner
        entries = self._coordinator.known([name]).of(name).entries
        return any(delivery.owner == owner for entry in entries for delivery in entry.deliveries)

    def state_of(self, key: str) -> str | None:
        """``pending``, ``0``, the retries left, or None if the post is unknown."""
        name = post_name(key)
        known = self._coordinator.known([name])
        state = known.of(name)
        deliveries = [delivery for entry in state.entries for delivery in entry.deliveries]
        if state.is_marked or any(delivery.status in SETTLED for delivery in deliveries):
            return PROCESSED
        if any(delivery.is_live(known.now_ms) for delivery in deliveries):
            return PENDING
        return next((str(entry.retries_left) for entry in state.entries if entry.retries_left is not None), None)


def _skipped(name: Name, state: str, *, settled: bool) -> Skipped:
    log.info("%s:%s is %s: skipped", name.kind, log_id(name.value), state)
    return Skipped(name, state, settled)
