"""Publication locks: of all servers, one publishes an item to a platform at a time. Words of their own for a claim."""

from __future__ import annotations

import logging
import os
import secrets
import socket
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Literal

from deduplication.claims import Kind, Name
from deduplication.identity import log_id
from deduplication.journal.base import Claim, Claimed, Ending, Journal, Settlement, UnderWay
from deduplication.journal.entry import About, Entry, State, new_entry_id

log = logging.getLogger(__name__)

LEASE_MS = 5 * 60 * 1000


def new_server_id() -> str:
    """Host, process and something random: two servers never share one, nor a process and its successor."""
    return f"{socket.gethostname()}/{os.getpid()}/{secrets.token_hex(4)}"


@dataclass(frozen=True)
class PublicationLock:
    """Times are UTC, of the journal's clock. ``created``: when the item came, where the lock is that of a delivery."""

    content_id: str
    platform: str
    server_id: str
    owner: str
    fence: int
    created: datetime
    expires: datetime

    @property
    def id(self) -> str:
        return f"{self.platform}:{self.content_id}#{self.fence}"


def lock_name(content_id: str, platform: str) -> Name:
    return Name(Kind.LOCK, platform, content_id)


class PublicationLocks:
    def __init__(
        self, journal: Journal, server_id: str, new_token: Callable[[], str], lease_ms: int = LEASE_MS
    ) -> None:
        self._journal = journal
        self._server_id = server_id
        self._new_token = new_token
        self._lease_ms = lease_ms

    def acquire_lock(self, content_id: str, platform: str) -> PublicationLock | None:
        """None if another holds it, who is then named in the log."""
        claim = self._claim_on(content_id, platform, self._server_id, self._new_token())
        expires = self._end_of_lease()
        verdict = self._journal.claim(claim)
        if isinstance(verdict, Claimed):
            entry = verdict.entry
            created = _utc(entry.created_ms)
            return PublicationLock(content_id, platform, self._server_id, claim.owner, entry.fence, created, expires)
        holder = next((each.about.server for each in self._journal.look(claim.own)[0].entries), "another")
        log.info("lock %s for %s is held by %s", log_id(content_id), platform, holder)
        return None

    def renew_lock(self, lock: PublicationLock) -> PublicationLock | None:
        """The lock with its new expiry; None if it was lost to another meanwhile."""
        entry, expires = self._entry_of(lock), self._end_of_lease()
        if entry is None or not self._journal.renew(entry.id, lock.owner, self._lease_ms):
            return None
        return replace(lock, expires=expires)

    def release_lock(self, lock: PublicationLock, status: Literal["completed", "failed"]) -> bool:
        """False if the lock was no longer ours: then nothing changes."""
        entry = self._entry_of(lock)
        if entry is None:
            return False
        claim = self._claim_on(lock.content_id, lock.platform, lock.server_id, lock.owner)
        return self._journal.settle(claim, entry, Settlement(Ending.DONE if status == "completed" else Ending.FREE))

    def active_locks(self) -> list[PublicationLock]:
        """Of scripts, and of the service: one for each delivery that a request or a worker is at."""
        return [_lock(each) for each in self._journal.under_way()]

    def cleanup_expired_locks(self) -> int:
        """How many were left behind by crashed scripts. On Redis they expire by themselves."""
        return self._journal.drop_lapsed_locks()

    def _claim_on(self, content_id: str, platform: str, server_id: str, owner: str) -> Claim:
        about = About(item=content_id, server=server_id)
        return Claim(new_entry_id(), owner, (lock_name(content_id, platform),), lease_ms=self._lease_ms, about=about)

    def _entry_of(self, lock: PublicationLock) -> Entry | None:
        (found,) = self._journal.look([lock_name(lock.content_id, lock.platform)])
        held = (each for each in found.entries if each.owner == lock.owner and each.state is State.PENDING)
        return next(held, None)

    def _end_of_lease(self) -> datetime:
        """Asked for before the lease begins: rather a moment too early than too late."""
        return _utc(self._journal.now_ms()) + timedelta(milliseconds=self._lease_ms)


def _lock(under_way: UnderWay) -> PublicationLock:
    """A worker that began a delivery holds it by itself; what a request is at goes with its entry."""
    entry, delivery = under_way.entry, under_way.delivery
    holder = delivery if delivery and entry.state is State.DONE else None
    return PublicationLock(
        content_id=entry.about.item,
        platform=delivery.destination if delivery else entry.own[0].scope,
        server_id=holder.server if holder else entry.about.server,
        owner=holder.owner if holder else entry.owner,
        fence=holder.fence if holder else entry.fence,
        created=_utc(entry.created_ms),
        expires=_utc(under_way.until_ms),
    )


def _utc(moment_ms: int) -> datetime:
    return datetime.fromtimestamp(moment_ms / 1000, UTC)
