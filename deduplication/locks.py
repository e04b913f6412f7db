"""Publication locks for scripts: of all servers, one publishes an item to a platform at a time.

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
    """Host, process and something random: two servers never share one, nor a process and its successor."""
    return f"{socket.gethostname()}/{os.getpid()}/{secrets.token_hex(4)}"


@dataclass(frozen=True)
class PublicationLock:
    """Times are UTC. ``created``: when the item came, if the lock is that of a delivery; that one has no fence."""

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
    def __init__(self, coordinator: Coordinator, server_id: str, lease_ms: int = LEASE_MS) -> None:
        self._coordinator = coordinator
        self._journal = coordinator.journal
        self._server_id = server_id
        self._lease_ms = lease_ms

    def acquire_lock(self, content_id: str, platform: str) -> PublicationLock | None:
        """None if another owner holds it, who is then named in the log."""
        owner, now_ms = self._coordinator.new_owner(), self._journal.clock.now_ms()
        expires = _utc(now_ms + self._lease_ms)
        lock = PublicationLock(content_id, platform, self._server_id, owner, 0, _utc(now_ms), expires)
        found = self._swap(lock, "", _text(lock))
        holder, by, _, fence = json.loads(found)
        if by == owner:
            lock = replace(lock, fence=fence)
            holder = self._note(lock)
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
            values = (step.steady_ms + self._lease_ms, _label(lock), lock.owner, step.steady_ms)
            query = (
                "UPDATE locks SET lease_until_ms = ? WHERE name = ? AND owner = ? AND lease_until_ms > ? RETURNING 1"
            )
            return replace(lock, expires=expires) if step.query(query, values) else None

    def release_lock(self, lock: PublicationLock, status: Literal["completed", "failed"]) -> bool:
        """False if another owner has taken it meanwhile: then nothing changes."""
        is_free = self._swap(lock, _text(lock), "") == ""
        with self._journal.step() as step:
            values = (_label(lock), lock.owner)
            was_here = step.query("DELETE FROM locks WHERE name = ? AND owner = ? RETURNING 1", values)
        log.info("lock %s for %s: %s", log_id(lock.content_id), lock.platform, status)
        return is_free and bool(was_here)

    def _swap(self, lock: PublicationLock, before: str, after: str) -> str:
        """In Redis; without one, or while it is gone, the journal alone decides."""
        registry, name = self._coordinator.registry, lock_name(lock.content_id, lock.platform)
        try:
            if registry:
                return self._coordinator.redis.ask(lambda: _swap(registry, name, before, after, self._lease_ms))
        except RedisGone:
            if not self._coordinator.may_go_alone():
                raise
        with self._journal.step() as step:
            fence = max(step.now_ms * 1000, int(step.meta("fence") or 0) + 1)
            step.set_meta("fence", str(fence))
            return after.replace(NEW_FENCE, str(fence))

    def _note(self, lock: PublicationLock) -> str:
        """In the journal: the server that holds it there, or "" and it is this lock's."""
        with self._journal.step() as step:
            values = (_label(lock), step.steady_ms)
            held = step.query("SELECT server FROM locks WHERE name = ? AND lease_until_ms > ?", values)
            if held:
                return str(held[0][0])
            until_ms = step.steady_ms + self._lease_ms
            row = (_label(lock), lock.owner, lock.server_id, lock.fence, _ms(lock.created), until_ms)
            step.query("INSERT OR REPLACE INTO locks VALUES (?, ?, ?, ?, ?, ?)", row)
            step.set_meta("fence", str(max(lock.fence, int(step.meta("fence") or 0))))
            return ""

    def active_locks(self) -> list[PublicationLock]:
        """Locks of scripts on the whole fleet, and deliveries that a process of this machine is sending."""
        with self._journal.reading() as step:
            started_ms = step.now_ms - step.steady_ms  # leases are counted by a clock that cannot be set
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
        found = {row[2]: _lock(row[0], row[1:4], row[4], started_ms + row[5]) for row in locks}
        registry = self._coordinator.registry
        if registry:
            with suppress(StoreUnavailable):  # then those of this machine are shown
                for name, text, left_ms in self._coordinator.redis.ask(lambda: registry.ask(_held)):
                    server, owner, created_ms, fence = json.loads(text)
                    found[owner] = _lock(name.label, (server, owner, fence), created_ms, now_ms + left_ms)
        for data, destination, owner, until_ms in deliveries:
            entry = decode(data)
            delivery = entry.delivery_to(destination)
            server = (delivery.server if delivery else "") or entry.about.server
            label = lock_name(entry.about.item, destination).label
            ends_ms = started_ms + until_ms
            found[f"{owner} {destination}"] = _lock(label, (server, owner, 0), entry.created_ms, ends_ms)
        return list(found.values())

    def cleanup_expired_locks(self) -> int:
        """How many were left behind by crashed scripts. In Redis they expire by themselves."""
        with self._journal.step() as step:
            return len(step.query("DELETE FROM locks WHERE lease_until_ms <= ? RETURNING 1", (step.steady_ms,)))


def _swap(registry: Registry, name: Name, before: str, after: str, lease_ms: int) -> str:
    """Changes the text of a lock if it is still ``before`` ("": free); the text it has now."""
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


def _held(client: Any, prefix: str) -> list[tuple[Name, str, int]]:
    """Locks in Redis: name, text, and for how many ms."""
    found = []
    for label in client.smembers(f"{prefix}locks"):
        name = Name.from_label(label.decode())
        key = f"{prefix}{mark_of(name, False).key}"
        if text := client.get(key):
            found.append((name, text.decode(), client.pttl(key)))
        else:
            client.srem(f"{prefix}locks", label)
    return found


def _lock(label: str, holder: tuple[str, str, int], created_ms: int, until_ms: int) -> PublicationLock:
    name = Name.from_label(label)
    return PublicationLock(name.value, name.scope, *holder, _utc(created_ms), _utc(until_ms))


def _label(lock: PublicationLock) -> str:
    return lock_name(lock.content_id, lock.platform).label


def _text(lock: PublicationLock) -> str:
    """What Redis keeps of it."""
    text = to_json([lock.server_id, lock.owner, _ms(lock.created), lock.fence])
    return text if lock.fence else text.removesuffix("0]") + f"{NEW_FENCE}]"


def _utc(moment_ms: int) -> datetime:
    return datetime.fromtimestamp(moment_ms / 1000, UTC)


def _ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)
