"""Publication locks for scripts: only one server at a time publishes an item to a platform.

With a REDIS_URL a lock is a key in Redis that expires with its lease. The journal of its machine has a copy: it decides
while Redis is gone, and is put back if Redis loses it.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import socket
from contextlib import suppress
from dataclasses import field, replace
from datetime import UTC, datetime
from typing import Any, Literal

from deduplication.errors import StoreUnavailable
from deduplication.identity import log_id
from deduplication.journal.coordinator import Coordinator
from deduplication.journal.entry import decode, to_json
from deduplication.journal.registry import Commit, Registry, View
from deduplication.journal.sqlite import Journal
from deduplication.marks import mark_of
from deduplication.names import Kind, Name
from deduplication.redis_state import RedisGone
from deduplication.values import frozen

log = logging.getLogger(__name__)

LEASE_MS = 5 * 60 * 1000
MOST_SHOWN = 1_000
NEW_FENCE = "\x01"  # commit.lua puts a fencing number in its place


def new_server_id() -> str:
    """Host, process and a random part: unique, even for a process and its successor."""
    return f"{socket.gethostname()}/{os.getpid()}/{secrets.token_hex(4)}"


@frozen
class PublicationLock:
    """``value``: as it is kept, in Redis and in the journal. Times are in UTC. The lock of a delivery has no fence, and
    its ``created`` is when the item was received."""

    name: Name
    value: str
    expires: datetime
    id: str = field(init=False)
    content_id: str = field(init=False)
    platform: str = field(init=False)
    server_id: str = field(init=False)
    owner: str = field(init=False)
    fence: int = field(init=False)
    created: datetime = field(init=False)

    def __post_init__(self) -> None:
        platform, content_id = self.name.scope, self.name.value
        server_id, owner, created_ms, fence = json.loads(self.value)
        self.__dict__.update(platform=platform, content_id=content_id, id=f"{platform}:{content_id}#{fence}")
        self.__dict__.update(server_id=server_id, owner=owner, created=_utc(created_ms), fence=fence)


class PublicationLocks:
    def __init__(self, coordinator: Coordinator, server_id: str, lease_ms: int = LEASE_MS) -> None:
        self._coordinator = coordinator
        self._journal = coordinator.journal
        self._server_id = server_id
        self._lease_ms = lease_ms

    def acquire_lock(self, content_id: str, platform: str) -> PublicationLock | None:
        """None if another owner holds it; the log names the owner."""
        owner, now_ms = self._coordinator.new_owner(), self._journal.clock.now_ms()
        name = Name(Kind.LOCK, platform, content_id)
        unnumbered = to_json([self._server_id, owner, now_ms, 0]).removesuffix("0]") + f"{NEW_FENCE}]"
        is_ours, value = self._swap(name, "", unnumbered)
        if not is_ours:
            log.info("lock %s for %s is held by %s", log_id(content_id), platform, json.loads(value)[0])
            return None
        return PublicationLock(name, value, _utc(now_ms + self._lease_ms))

    def renew_lock(self, lock: PublicationLock) -> PublicationLock | None:
        """The lock with its new expiry; None if it has ended or was taken by another owner."""
        expires = _utc(self._journal.clock.now_ms() + self._lease_ms)
        is_ours, _ = self._swap(lock.name, lock.value, lock.value)
        return replace(lock, expires=expires) if is_ours else None

    def release_lock(self, lock: PublicationLock, status: Literal["completed", "failed"]) -> bool:
        """False if another owner has it by now: then nothing changes."""
        is_free, _ = self._swap(lock.name, lock.value, "")
        log.info("lock %s for %s: %s", log_id(lock.content_id), lock.platform, status)
        return is_free

    def _swap(self, name: Name, before: str, after: str) -> tuple[bool, str]:
        """Changes the value of a lock if it is still ``before``, which is "" if it is free.

        Returns whether it was changed, and its value now. Without Redis, or while it is gone, the journal decides.
        """
        registry, found = self._coordinator.registry, None
        if registry:
            try:
                found = _swap_in_redis(registry, name, before, after, self._lease_ms)
            except RedisGone:
                if not self._coordinator.may_go_alone():
                    raise
        self.cleanup_expired_locks()
        with self._journal.step() as step:
            rows = step.query("SELECT value FROM locks WHERE name = ?", (name.label,))
            held, last = rows[0][0] if rows else "", int(step.meta("fence") or 0)
            numbered = after.replace(NEW_FENCE, str(max(last + 1, step.now_ms * 1000)))
            is_done, value = found or ((True, numbered) if held == before else (False, held))
            if is_done or held == before:  # the latter: Redis has given it to another owner, or forgotten it
                step.query("DELETE FROM locks WHERE name = ?", (name.label,))
            if is_done and value:
                step.query("INSERT INTO locks VALUES (?, ?, ?)", (name.label, value, step.steady_ms + self._lease_ms))
                step.set_meta("fence", str(max(last, json.loads(value)[3])))
            return is_done, value

    def active_locks(self) -> list[PublicationLock]:
        """Locks of scripts on all machines, and deliveries that this machine is sending."""
        with self._journal.reading() as step:
            now_ms, steady_ms = step.now_ms, step.steady_ms  # leases use a clock that cannot be set
            locks = "SELECT name, value, lease_until_ms - ? FROM locks WHERE lease_until_ms > ? LIMIT ?"
            rows = step.query(locks, (steady_ms, steady_ms, MOST_SHOWN))
            deliveries = step.query(
                "SELECT e.data, d.destination, d.owner, d.lease_until_ms - ? FROM deliveries d JOIN entries e"
                " ON e.seq = d.seq WHERE d.owner <> '' AND d.lease_until_ms > ? AND d.destination <> '' LIMIT ?",
                (steady_ms, steady_ms, MOST_SHOWN),
            )
        registry = self._coordinator.registry
        if registry:
            with suppress(StoreUnavailable):  # then those of this machine are shown
                rows += registry.ask(_read_locks)
        locked = [(Name.from_label(label), value, left_ms) for label, value, left_ms in rows]
        for data, destination, owner, left_ms in deliveries:
            entry = decode(data)
            delivery = entry.delivery_to(destination)
            server = (delivery.server if delivery else "") or entry.about.server
            name = Name(Kind.LOCK, destination, entry.about.item)
            locked.append((name, to_json([server, owner, entry.created_ms, 0]), left_ms))
        # One of a script on this machine is in its journal and in Redis.
        found = {(name, value): PublicationLock(name, value, _utc(now_ms + left_ms)) for name, value, left_ms in locked}
        return list(found.values())

    def cleanup_expired_locks(self) -> int:
        """Removes locks of crashed scripts from the journal, and returns how many; in Redis they expire."""
        with self._journal.step() as step:
            return len(step.query("DELETE FROM locks WHERE lease_until_ms <= ? RETURNING 1", (step.steady_ms,)))


def put_back(registry: Registry, journal: Journal) -> None:
    """Locks of this machine that Redis has lost, or that were acquired while it was gone."""
    with journal.reading() as step:
        locks = "SELECT name, value, lease_until_ms - ? FROM locks WHERE lease_until_ms > ?"
        rows = step.query(locks, (step.steady_ms, step.steady_ms))
    for label, value, left_ms in rows:
        _swap_in_redis(registry, Name.from_label(label), "", value, left_ms)


def _swap_in_redis(registry: Registry, name: Name, before: str, after: str, lease_ms: int) -> tuple[bool, str]:
    """As PublicationLocks._swap. A new era grants no locks while it is closed, but takes back those of journals."""
    key = mark_of(name, False).key

    def compose(commit: Commit) -> str:
        found = commit.value(key)
        commit.is_needed, commit.only_open = found == before, NEW_FENCE in after
        if after:
            commit.write("SET" if before else "LOCK", key, after, "PX", lease_ms)
            commit.write("SADD", "locks", name.label)
        else:
            commit.write("DEL", key)
            commit.write("SREM", "locks", name.label)
        return found

    found, answer = registry.agree(compose, View({key: before}))
    if answer is None:
        return False, found
    return True, after.replace(NEW_FENCE, answer.rest[0].decode()) if answer.rest else after


def _read_locks(client: Any, prefix: str) -> list[tuple[str, str, int]]:
    """Locks in Redis: their names, values, and how many ms they still last."""
    found = []
    for label in client.smembers(f"{prefix}locks"):
        key = f"{prefix}{mark_of(Name.from_label(label.decode()), False).key}"
        if value := client.get(key):
            found.append((label.decode(), value.decode(), client.pttl(key)))
        else:
            client.srem(f"{prefix}locks", label)
    return found


def _utc(moment_ms: int) -> datetime:
    return datetime.fromtimestamp(moment_ms / 1000, UTC)
