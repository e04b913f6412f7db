"""Publication locks for scripts: only one server at a time publishes an item to a platform.

With a REDIS_URL, a lock is a key in Redis that expires with its lease. The journal of the machine has a copy, which
decides while Redis is gone, and restores the lock if Redis loses it.
"""

import json
import logging
import os
import secrets
import socket
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Literal

from deduplication.errors import StoreUnavailable
from deduplication.identity import log_id
from deduplication.journal.coordinator import Coordinator
from deduplication.journal.entry import encode
from deduplication.journal.registry import Commit, Registry, View
from deduplication.journal.sqlite import Journal, Step
from deduplication.marks import mark_of
from deduplication.names import Kind, Name
from deduplication.redis_state import RedisGone
from deduplication.values import frozen

log = logging.getLogger(__name__)

LEASE_MS = 5 * 60 * 1000
MAX_SHOWN = 1_000
NEW_FENCE = "\x01"  # commit.lua replaces it by a fencing number


def new_server_id() -> str:
    """Host, process id and a random part, so that no two processes have the same id."""
    return f"{socket.gethostname()}/{os.getpid()}/{secrets.token_hex(4)}"


@frozen
class PublicationLock:
    """``value`` is what Redis and the journal store. Times are in UTC. The lock of a delivery has the fence 0, and its
    ``created`` is the time at which the item was received."""

    name: Name
    value: str
    expires_ms: int

    def __post_init__(self) -> None:
        self.content_id, self.platform = self.name.value, self.name.scope
        self.server_id, self.owner, created_ms, self.fence = json.loads(self.value)
        self.id = f"{self.platform}:{self.content_id}#{self.fence}"
        self.created, self.expires = (datetime.fromtimestamp(ms / 1000, UTC) for ms in (created_ms, self.expires_ms))


class PublicationLocks:
    def __init__(self, coordinator: Coordinator, server_id: str) -> None:
        self._coordinator = coordinator
        self._journal = coordinator.journal
        self._server_id = server_id

    def acquire_lock(self, content_id: str, platform: str) -> PublicationLock | None:
        """None if another owner holds the lock; the log names that owner's server."""
        owner, now_ms = self._coordinator.new_owner(), self._journal.clock.now_ms()
        name = Name(Kind.LOCK, platform, content_id)
        unnumbered = f"{encode([self._server_id, owner, now_ms])[:-1]},{NEW_FENCE}]"
        value = self._swap(name, "", unnumbered)
        return PublicationLock(name, value, now_ms + LEASE_MS) if value else None

    def renew_lock(self, lock: PublicationLock) -> PublicationLock | None:
        """The lock with its new expiry; None if it has expired or another owner has acquired it."""
        now_ms = self._journal.clock.now_ms()
        value = self._swap(lock.name, lock.value, lock.value)
        return PublicationLock(lock.name, value, now_ms + LEASE_MS) if value else None

    def release_lock(self, lock: PublicationLock, status: Literal["completed", "failed"]) -> bool:
        """False, without a change, if another owner has acquired the lock."""
        log.info("lock %s for %s: %s", log_id(lock.content_id), lock.platform, status)
        return self._swap(lock.name, lock.value, "") is not None

    def _swap(self, name: Name, before: str, after: str) -> str | None:
        """Changes the value of a lock if it is still ``before``; a free lock has the value "". Returns the new value,
        or None if it was not changed. The journal decides if there is no Redis, or it is gone."""
        registry, outcome = self._coordinator.registry, None
        if registry:
            try:
                outcome = _swap_in_redis(registry, name, before, after, LEASE_MS)
            except RedisGone:
                if not self._coordinator.may_go_alone():
                    raise
        self.cleanup_expired_locks()
        with self._journal.step() as step:
            rows = step.query("SELECT value FROM locks WHERE name = ?", (name.label,))
            present, last_fence = rows[0][0] if rows else "", int(step.meta("fence") or 0)
            numbered = after.replace(NEW_FENCE, str(max(last_fence + 1, step.now_ms * 1000)))
            is_changed, value = outcome or ((True, numbered) if present == before else (False, present))
            if is_changed or present == before:  # in the latter case, Redis has another owner or lost the lock
                step.query("DELETE FROM locks WHERE name = ?", (name.label,))
            if is_changed and value:
                step.query("INSERT INTO locks VALUES (?, ?, ?)", (name.label, value, step.steady_ms + LEASE_MS))
                step.set_meta("fence", str(max(last_fence, json.loads(value)[3])))
        if not is_changed and value:
            log.info("lock %s for %s is held by %s", log_id(name.value), name.scope, json.loads(value)[0])
        return value if is_changed else None

    def active_locks(self) -> list[PublicationLock]:
        """Locks of scripts on all machines, and deliveries that this machine is sending."""
        with self._journal.reading() as step:
            now_ms, steady_ms = step.now_ms, step.steady_ms  # leases use a clock that cannot be set
            rows = _journal_locks(step)
            claimed = "seq IN (SELECT seq FROM deliveries WHERE owner <> '' AND lease_until_ms > ?) LIMIT ?"
            entries = step.read_rows(claimed, (steady_ms, MAX_SHOWN))
        registry = self._coordinator.registry
        if registry:
            with suppress(StoreUnavailable):  # without Redis, only the locks of this machine are shown
                rows = registry.ask(_redis_locks)
        locks = [PublicationLock(Name.from_label(label), value, now_ms + left_ms) for label, value, left_ms in rows]
        for _, entry in entries:
            for delivery in entry.deliveries:
                if delivery.destination and delivery.lease_until_ms > steady_ms:
                    value = encode([delivery.server or entry.about.server, delivery.owner, entry.created_ms, 0])
                    name = Name(Kind.LOCK, delivery.destination, entry.about.item)
                    locks.append(PublicationLock(name, value, now_ms + delivery.lease_until_ms - steady_ms))
        return locks

    def cleanup_expired_locks(self) -> int:
        """Removes expired locks from the journal, and returns their number. In Redis, locks expire on their own."""
        with self._journal.step() as step:
            return len(step.query("DELETE FROM locks WHERE lease_until_ms <= ? RETURNING 1", (step.steady_ms,)))


def put_back(registry: Registry, journal: Journal) -> None:
    """Writes the locks of this machine to Redis if it has lost them, or was gone when they were acquired."""
    with journal.reading() as step:
        rows = _journal_locks(step)
    for label, value, left_ms in rows:
        _swap_in_redis(registry, Name.from_label(label), "", value, left_ms)


def _journal_locks(step: Step) -> list[Any]:
    """The label, value and remaining lease in ms of each lock in the journal."""
    locks = "SELECT name, value, lease_until_ms - ? FROM locks WHERE lease_until_ms > ?"
    return step.query(locks, (step.steady_ms, step.steady_ms))


def _swap_in_redis(registry: Registry, name: Name, before: str, after: str, lease_ms: int) -> tuple[bool, str]:
    """Does the same as PublicationLocks._swap. A closed era grants no new locks, but accepts those of journals."""
    key = mark_of(name, False).key

    def compose(commit: Commit) -> str:
        value = commit.value(key)
        commit.is_needed, commit.only_open = value == before, NEW_FENCE in after
        if after:
            commit.write("SET" if before else "LOCK", key, after, "PX", lease_ms)
            commit.write("SADD", "locks", name.label)
        else:
            commit.write("DEL", key)
            commit.write("SREM", "locks", name.label)
        return value

    present, answer = registry.agree(compose, View({key: before}))
    if answer is None:
        return False, present
    return True, after.replace(NEW_FENCE, answer.rest[0].decode()) if answer.rest else after


def _redis_locks(client: Any, prefix: str) -> list[tuple[str, str, int]]:
    """The label, value and remaining lease in ms of each lock in Redis. Removes expired locks from their list."""
    locks = []
    for label in client.smembers(f"{prefix}locks"):
        key = f"{prefix}{mark_of(Name.from_label(label.decode()), False).key}"
        if value := client.get(key):
            locks.append((label.decode(), value.decode(), client.pttl(key)))
        else:
            client.srem(f"{prefix}locks", label)
    return locks
