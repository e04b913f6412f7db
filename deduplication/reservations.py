"""For scripts that publish feeds: reserves posts and their media before they are published.

The state of a post is ``pending`` while a process works on it, ``0`` once it is processed, or the number of retries
left. The state of a medium is ``pending``, or ``1`` once it is published. A post whose media are published counts as
processed.
"""

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec.structs import replace

from deduplication.identity import log_id
from deduplication.journal.coordinator import Claimed, Coordinator
from deduplication.journal.entry import SETTLED, About, DeliveryStatus, new_entry_id
from deduplication.journal.rules import Busy, Claim, Repeat
from deduplication.media import media_name
from deduplication.names import WEEK_MS, Gate, Kind, Name, bounded_key
from deduplication.values import frozen

log = logging.getLogger(__name__)

PENDING = "pending"
PROCESSED = "0"


def compute_post_key(post: Mapping[str, Any]) -> str:
    """The first of name, id, permalink, url and ``title::created_utc`` that is not empty; empty if all are."""
    fields = {name: "" if value is None else str(value).strip() for name, value in post.items()}
    if key := fields.get("name") or fields.get("id"):
        return bounded_key(key)
    if url := fields.get("permalink") or fields.get("url"):
        return bounded_key(url.partition("?")[0].partition("#")[0])
    title, created = fields.get("title"), fields.get("created_utc")
    return bounded_key(f"{title}::{created}") if title and created else ""


def post_name(key: str) -> Name:
    return Name(Kind.POST, "", key, WEEK_MS)


Batch = set[Name]
"""The posts and media of one run. Repetitions within the run are recognised without the journal."""


@frozen
class Reserved:
    """A post to publish; then call ``published`` or ``failed``. ``retries_left`` is None on the first try."""

    claimed: Claimed
    retries_left: int | None
    media: tuple[Name, ...]


@frozen
class Skipped:
    """A post that was not reserved: the name that stopped it, and the state of that name. If ``settled``, for good."""

    name: Name
    state: str
    settled: bool


class Reservations:
    def __init__(self, coordinator: Coordinator, lease_ms: int) -> None:
        self._coordinator = coordinator
        self._lease_ms = lease_ms

    def reserve(self, key: str, media: Iterable[str] = (), batch: Batch | None = None) -> Reserved | Skipped:
        """Reserves a post and its media in one step. If a known medium or the mark of another program stops the post,
        it becomes processed."""
        batch = Batch() if batch is None else batch
        post = post_name(key)
        if post in batch:
            return _skip(post, "seen in this batch", settled=False)
        batch.add(post)
        names = tuple(dict.fromkeys(map(media_name, media)))
        repeated = next((name for name in names if name in batch), None)
        about, owner = About(item=post.value), self._coordinator.new_owner()
        shared = () if repeated else names
        claim = Claim(new_entry_id(), owner, (post,), shared, lease_ms=self._lease_ms, about=about)
        outcome = self._coordinator.claim(claim)
        if isinstance(outcome, Repeat):
            return _skip(outcome.name, PROCESSED, settled=True)
        if not isinstance(outcome, Claimed):
            return _skip(Name.from_label(outcome.name) if isinstance(outcome, Busy) else post, PENDING, settled=False)
        if outcome.to_send and not repeated:
            batch.update(outcome.entry.shared)
            return Reserved(outcome, outcome.entry.retries_left, outcome.entry.shared)
        stop = outcome.entry.stop
        is_marked = stop is not None and stop.gate is Gate.IDENTITY
        self._settle(outcome, DeliveryStatus.SKIPPED, "already_processed" if is_marked else "skipped_media")
        if repeated:
            return _skip(repeated, "seen in this batch", settled=True)
        return _skip(stop.name if stop else post, PROCESSED if is_marked else "1", settled=True)

    def published(self, reserved: Reserved) -> bool:
        """Makes the post ``0`` and its media ``1`` for seven days. False if another owner has taken over."""
        return self._settle(reserved.claimed, DeliveryStatus.DELIVERED, "processed")

    def failed(self, reserved: Reserved, retries_left: int | None = None) -> bool:
        """Releases the post and its media; with 0 retries left, the post becomes processed. False if another owner has
        taken over."""
        status = DeliveryStatus.SKIPPED if retries_left == 0 else DeliveryStatus.RETURNED
        left = None if retries_left is None else int(retries_left)  # a float would make the entry unreadable
        return self._settle(reserved.claimed, status, retries_left=left)

    def _settle(
        self, claimed: Claimed, status: DeliveryStatus, answer: str = "", retries_left: int | None = None
    ) -> bool:
        post = claimed.entry.own[0]
        entries = self._coordinator.known([post]).of(post).entries
        if not any(delivery.owner == claimed.owner for entry in entries for delivery in entry.deliveries):
            return False
        outcomes = [replace(delivery, status=status) for delivery in claimed.plan]
        settled = self._coordinator.settle(claimed, outcomes, answer, retries_left=retries_left)
        return settled.is_safe and self._coordinator.publish(claimed.entry.id, view=claimed.view)

    def state_of(self, key: str) -> str | None:
        """``pending``, ``0``, the retries left, or None if the post is unknown."""
        name = post_name(key)
        known = self._coordinator.known([name])
        post = known.of(name)
        deliveries = [delivery for entry in post.entries for delivery in entry.deliveries]
        if post.is_marked or any(delivery.status in SETTLED for delivery in deliveries):
            return PROCESSED
        if any(delivery.is_live(known.now_ms) for delivery in deliveries):
            return PENDING
        return next((str(entry.retries_left) for entry in post.entries if entry.retries_left is not None), None)


def _skip(name: Name, state: str, *, settled: bool) -> Skipped:
    log.info("%s:%s is %s: skipped", name.kind, log_id(name.value), state)
    return Skipped(name, state, settled)
