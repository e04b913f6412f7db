"""Publication locks: of all servers, one publishes an item to a platform at a time. Words of their own for a claim."""

from __future__ import annotations

import logging
import os
import secrets
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from deduplication.claims import Claim, Claimed, Kind, Name
from deduplication.identity import log_id
from deduplication.stores.base import Pattern, Record, State, Store

log = logging.getLogger(__name__)

LEASE_MS = 5 * 60 * 1000
RELEASED_KEPT_MS = 1  # a completed lock blocks nobody; that it was published is the delivery record's to say


def new_server_id() -> str:
    """Host, process and something random: two servers never share one, nor a process and its successor."""
    return f"{socket.gethostname()}/{os.getpid()}/{secrets.token_hex(4)}"


@dataclass(frozen=True)
class PublicationLock:
    """Times are UTC, of the store's clock."""

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
    return Name(Kind.LOCK, platform, content_id, RELEASED_KEPT_MS)


class PublicationLocks:
    def __init__(self, store: Store, server_id: str, new_token: Callable[[], str], lease_ms: int = LEASE_MS) -> None:
        self._store = store
        self._server_id = server_id
        self._new_token = new_token
        self._lease_ms = lease_ms

    def acquire_lock(self, content_id: str, platform: str) -> PublicationLock | None:
        """None if another holds it, who is then named in the log."""
        claim = self._claim(content_id, platform, self._server_id, self._new_token())
        if isinstance(self._store.claim(claim), Claimed):
            return self._held(claim)
        holder = next(iter(self._active(self._store.read(claim.names))), None)
        log.info(
            "lock %s for %s is held by %s", log_id(content_id), platform, holder.server_id if holder else "another"
        )
        return None

    def renew_lock(self, lock: PublicationLock) -> PublicationLock | None:
        """The lock with its new expiry; None if it was lost to another meanwhile."""
        claim = self._claim(lock.content_id, lock.platform, lock.server_id, lock.owner)
        return self._held(claim) if self._store.renew(claim) else None

    def release_lock(self, lock: PublicationLock, status: Literal["completed", "failed"]) -> bool:
        """False if the lock was no longer ours: then nothing changes."""
        claim = self._claim(lock.content_id, lock.platform, lock.server_id, lock.owner)
        if status == "completed":
            return self._held(claim) is not None and self._store.commit(claim)
        return self._store.release(claim, None)

    def active_locks(self) -> list[PublicationLock]:
        return self._active(self._store.find(Pattern(Kind.LOCK)))

    def cleanup_expired_locks(self) -> int:
        """How many were left behind by crashed servers. On Redis they expire by themselves."""
        return self._store.drop_lapsed(Kind.LOCK)

    def _claim(self, content_id: str, platform: str, server_id: str, owner: str) -> Claim:
        return Claim(server_id, (lock_name(content_id, platform),), "", owner, self._lease_ms)

    def _held(self, claim: Claim) -> PublicationLock | None:
        return next((lock for lock in self._active(self._store.read(claim.names)) if lock.owner == claim.owner), None)

    def _active(self, records: Iterable[Record]) -> list[PublicationLock]:
        now_ms = self._store.now_ms()
        return [_lock(r) for r in records if r.state is State.PENDING and r.lease_until_ms > now_ms]


def _lock(record: Record) -> PublicationLock:
    return PublicationLock(
        content_id=record.name.value,
        platform=record.name.scope,
        server_id=record.item or "",
        owner=record.owner,
        fence=record.fence,
        created=_utc(record.first_seen_ms or 0),
        expires=_utc(record.lease_until_ms),
    )


def _utc(moment_ms: int) -> datetime:
    return datetime.fromtimestamp(moment_ms / 1000, UTC)
