"""Publication locks for scripts: only one server at a time publishes an item to a platform.

A lock is a row in the journal of its machine and, with a REDIS_URL, a key in Redis that expires with its lease.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import socket
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Literal

from deduplication.errors import StoreUnavailable
from deduplication.identity import log_id
from deduplication.journal.coordinator import Coordinator
from deduplication.journal.entry import decode, to_json
from deduplication.journal.registry import Commit, Registry, View
from deduplication.marks import mark_of
from deduplication.names import Kind, Name
from deduplication.redis_state import RedisGone

log = logging.getLogger(__name__)

LEASE_MS = 5 * 60 * 1000
MOST_SHOWN = 1_000
NEW_FENCE = "\x01"  # commit.lua puts a fencing number in its place


def new_server_id() -> str:
    """Host, process and a random part: unique, even for a process and its successor."""
    return f"{socket.gethostname()}/{os.getpid()}/{secrets.token_hex(4)}"


@dataclass(frozen=True)
class PublicationLock:
    """Times are in UTC. The lock of a delivery has no fence, and its ``created`` is when the item was received."""

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

    @property
    def name(self) -> Name:
        return Name(Kind.LOCK, self.platform, self.content_id)


class PublicationLocks:
    def __init__(self, coordinator: Coordinator, server_id: str, lease_ms: int = LEASE_MS) -> None:
        self._coordinator = coordinator
        self._journal = coordinator.journal
        self._server_id = server_id
        self._lease_ms = lease_ms

    def acquire_lock(self, content_id: str, platform: str) -> PublicationLock | None:
        """None if another owner holds it; the log names the owner."""
        owner, now_ms = self._coordinator.new_owner(), self._journal.clock.now_ms()
        expires = _utc(now_ms + self._lease_ms)
        lock = PublicationLock(content_id, platform, self._server_id, owner, 0, _utc(now_ms), expires)
        found = self._swap(lock, "", _text(lock))
        holder, by, _, fence = json.loads(found)
        if by == owner:
            lock = replace(lock, fence=fence)
            holder = self._record(lock)
            if not holder:
                return lock
            self._swap(lock, found, "")
        log.info("lock %s for %s is held by %s", log_id(content_id), platform, holder)
        return None

    def renew_lock(self, lock: PublicationLock) -> PublicationLock | None:
        """The lock with its new expiry; None if it has ended or was taken by another owner."""
        expires, text = _utc(self._journal.clock.now_ms() + self._lease_ms), _text(lock)
        if self._swap(lock, text, text) != text:
            return None
        with self._journal.step() as step:
            values = (step.steady_ms + self._lease_ms, lock.owner, step.steady_ms)
            query = "UPDATE locks SET lease_until_ms = ? WHERE owner = ? AND lease_until_ms > ? RETURNING 1"
            return replace(lock, expires=expires) if step.query(query, values) else None

    def release_lock(self, lock: PublicationLock, status: Literal["completed", "failed"]) -> bool:
        """False if another owner has it by now: then nothing changes."""
        is_free = self._swap(lock, _text(lock), "") == ""
        with self._journal.step() as step:
            was_here = step.query("DELETE FROM locks WHERE owner = ? RETURNING 1", (lock.owner,))
        log.info("lock %s for %s: %s", log_id(lock.content_id), lock.platform, status)
        return is_free and bool(was_here)

    def _swap(self, lock: PublicationLock, before: str, after: str) -> str:
        """Changes its value in Redis, and returns it. Without Redis, or while it is gone, the journal alone decides."""
        registry = self._coordinator.registry
        try:
            if registry:
                return self._coordinator.redis.ask(
                    lambda: _swap_in_redis(registry, lock.name, before, after, self._lease_ms)
                )
        except RedisGone:
            if not self._coordinator.may_go_alone():
                raise
        with self._journal.step() as step:
            fence = max(step.now_ms * 1000, int(step.meta("fence") or 0) + 1)
            step.set_meta("fence", str(fence))
            return after.replace(NEW_FENCE, str(fence))

    def _record(self, lock: PublicationLock) -> str:
        """Records it in the journal. Returns the server that holds another one there, or "" if it was recorded."""
        self.cleanup_expired_locks()
        with self._journal.step() as step:
            if held := step.query("SELECT server FROM locks WHERE name = ?", (lock.name.label,)):
                return str(held[0][0])
            until_ms = step.steady_ms + self._lease_ms
            row = (lock.name.label, lock.owner, lock.server_id, lock.fence, _ms(lock.created), until_ms)
            step.query("INSERT INTO locks VALUES (?, ?, ?, ?, ?, ?)", row)
            step.set_meta("fence", str(max(lock.fence, int(step.meta("fence") or 0))))
            return ""

    def active_locks(self) -> list[PublicationLock]:
        """Locks of scripts on all machines, and deliveries that this machine is sending."""
        with self._journal.reading() as step:
            started_ms = step.now_ms - step.steady_ms  # leases use a clock that cannot be set
            locks = step.query(
                "SELECT name, server, owner, fence, created_ms, lease_until_ms FROM locks WHERE lease_until_ms > ?"
                " LIMIT ?",
                (step.steady_ms, MOST_SHOWN),
            )
            deliveries = step.query(
                "SELECT e.data, d.destination, d.owner, d.lease_until_ms FROM deliveries d JOIN entries e"
                " ON e.seq = d.seq WHERE d.owner <> '' AND d.lease_until_ms > ? AND d.destination <> '' LIMIT ?",
                (step.steady_ms, MOST_SHOWN),
            )
            now_ms = step.now_ms
        found = {row[2]: _lock(Name.from_label(row[0]), row[1:4], row[4], started_ms + row[5]) for row in locks}
        registry = self._coordinator.registry
        if registry:
            with suppress(StoreUnavailable):  # then those of this machine are shown
                for name, text, left_ms in self._coordinator.redis.ask(lambda: registry.ask(_read_locks)):
                    server, owner, created_ms, fence = json.loads(text)
                    found[owner] = _lock(name, (server, owner, fence), created_ms, now_ms + left_ms)
        for data, destination, owner, until_ms in deliveries:
            entry = decode(data)
            delivery = entry.delivery_to(destination)
            server = (delivery.server if delivery else "") or entry.about.server
            name, ends_ms = Name(Kind.LOCK, destination, entry.about.item), started_ms + until_ms
            found[f"{owner} {destination}"] = _lock(name, (server, owner, 0), entry.created_ms, ends_ms)
        return list(found.values())

    def cleanup_expired_locks(self) -> int:
        """Removes locks of crashed scripts from the journal, and returns how many; in Redis they expire."""
        with self._journal.step() as step:
            return len(step.query("DELETE FROM locks WHERE lease_until_ms <= ? RETURNING 1", (step.steady_ms,)))


def _swap_in_redis(registry: Registry, name: Name, before: str, after: str, lease_ms: int) -> str:
    """Changes the value of a lock if it is still ``before`` ("" if it is free), and returns its value."""
    key = mark_of(name, False).key
    commit = Commit(View({key: before}))
    commit.value(key)
    if after:
        commit.write("SET" if before else "LOCK", key, after, "PX", lease_ms)
        commit.write("SADD", "locks", name.label)
    else:
        commit.write("DEL", key)
        commit.write("SREM", "locks", name.label)
    answer = registry.run(commit, only_open=not before)
    if answer.outcome == "ok":
        return after.replace(NEW_FENCE, answer.rest[0].decode()) if answer.rest else after
    return commit.seen(answer).values[key]


def _read_locks(client: Any, prefix: str) -> list[tuple[Name, str, int]]:
    """Locks in Redis: their names, values, and how many ms they still last."""
    found = []
    for label in client.smembers(f"{prefix}locks"):
        name = Name.from_label(label.decode())
        key = f"{prefix}{mark_of(name, False).key}"
        if text := client.get(key):
            found.append((name, text.decode(), client.pttl(key)))
        else:
            client.srem(f"{prefix}locks", label)
    return found


def _lock(name: Name, holder: tuple[str, str, int], created_ms: int, until_ms: int) -> PublicationLock:
    return PublicationLock(name.value, name.scope, *holder, _utc(created_ms), _utc(until_ms))


def _text(lock: PublicationLock) -> str:
    """Its value in Redis."""
    text = to_json([lock.server_id, lock.owner, _ms(lock.created), lock.fence])
    return text if lock.fence else text.removesuffix("0]") + f"{NEW_FENCE}]"


def _utc(moment_ms: int) -> datetime:
    return datetime.fromtimestamp(moment_ms / 1000, UTC)


def _ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)
