"""The verdict in Python, for the stores that live on this machine. claim.lua and its fellows say the same for Redis."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace

from deduplication.claims import (
    PENDING_KEPT_MS,
    Claim,
    Claimed,
    Duplicate,
    InFlight,
    Name,
    Verdict,
)
from deduplication.stores.base import Record, State

ClockMs = Callable[[], int]


def system_clock_ms() -> int:
    return time.time_ns() // 1_000_000


class LocalStore(ABC):
    """Subclasses keep rows and give a transaction; every rule about claims is here."""

    def __init__(self, now_ms: ClockMs = system_clock_ms) -> None:
        self._now_ms = now_ms

    @abstractmethod
    def _transaction(self) -> AbstractContextManager[None]:
        """All reads and writes inside are one atomic step for every thread and process of the store."""

    @abstractmethod
    def _records(self, name: Name) -> list[Record]:
        """Every record of the name that has not expired."""

    @abstractmethod
    def _save(self, record: Record, kept_ms: int | None) -> None:
        """Keep the record for at least ``kept_ms`` more; None is for ever."""

    @abstractmethod
    def _next_fence(self) -> int:
        """A number higher than all before."""

    def claim(self, claim: Claim) -> Verdict:
        with self._transaction():
            return self._answered_before(claim) or self._stopped_at_a_gate(claim) or self._reserve(claim)

    def commit(self, claim: Claim) -> bool:
        with self._transaction():
            return all([self._commit_name(claim, name) for name in claim.names])

    def release(self, claim: Claim, retries_left: int | None) -> bool:
        with self._transaction():
            return all([self._release_name(claim, name, retries_left) for name in claim.names])

    def renew(self, claim: Claim) -> bool:
        with self._transaction():
            return all([self._renew_name(claim, name) for name in claim.names])

    def _answered_before(self, claim: Claim) -> Verdict | None:
        """The answer this owner got when its first request was settled and the reply was lost."""
        for name in claim.names:
            mine = self._mine(claim, name)
            if mine and mine.state is State.DONE:
                if mine.gate:
                    return Duplicate(mine.gate, mine.by or "", mine.original, mine.original_seen_ms)
                return Claimed(mine.fence, mine.retries_left)
        return None

    def _stopped_at_a_gate(self, claim: Claim) -> Verdict | None:
        """Gate by gate: a done name stops the item for good, a pending one of another owner for now."""
        waiting: InFlight | None = None
        for name in claim.names:
            if waiting and waiting.gate is not name.gate:
                break
            met = list(self._same_item(claim, name))
            done = min((r for r in met if r.state is State.DONE), key=_first_seen, default=None)
            if done:
                verdict = Duplicate(name.gate, name.label, done.item, done.first_seen_ms)
                if not name.is_own:
                    self._settle_as_skipped(claim, verdict)
                return verdict
            held_ms = max((self._held_by_another_ms(claim, record) for record in met), default=0)
            if held_ms:
                waiting = waiting or InFlight(name.gate, name.label, held_ms)
                waiting = replace(waiting, retry_after_ms=max(waiting.retry_after_ms, held_ms))
        return waiting

    def _reserve(self, claim: Claim) -> Claimed:
        mine = [self._mine(claim, name) for name in claim.names]
        fence = mine[0].fence if mine[0] and all(mine) else self._next_fence()
        pending = [self._pending(claim, name, fence) for name in claim.names]
        for record in pending:
            self._save(record, PENDING_KEPT_MS)
        retries = [record.retries_left for record in pending if record.retries_left is not None]
        return Claimed(fence, min(retries, default=None))

    def _pending(self, claim: Claim, name: Name, fence: int) -> Record:
        now_ms = self._now_ms()
        record = replace(
            self._fresh(claim, name),
            state=State.PENDING,
            fence=fence,
            lease_until_ms=now_ms + claim.lease_ms,
        )
        before = self._record(claim, name)
        if before and name.is_own:
            return replace(record, first_seen_ms=before.first_seen_ms, retries_left=before.retries_left)
        return record

    def _settle_as_skipped(self, claim: Claim, verdict: Duplicate) -> None:
        for name in claim.names:
            if name.is_own:
                skipped = replace(
                    self._fresh(claim, name),
                    gate=verdict.gate,
                    by=verdict.name,
                    original=verdict.original,
                    original_seen_ms=verdict.first_seen_ms,
                )
                self._save(skipped, name.kept_ms)

    def _commit_name(self, claim: Claim, name: Name) -> bool:
        record = self._record(claim, name) or self._fresh(claim, name)
        if record.owner != claim.owner:
            return False
        self._save(replace(record, state=State.DONE, lease_until_ms=0), name.kept_ms)
        return True

    def _release_name(self, claim: Claim, name: Name, retries_left: int | None) -> bool:
        record = self._mine(claim, name)
        if record is None or record.state is not State.PENDING:
            return False
        left = min((n for n in (record.retries_left, retries_left) if n is not None), default=None)
        if left == 0 and name.is_own:
            self._save(replace(record, state=State.DONE, lease_until_ms=0, retries_left=0), name.kept_ms)
        else:
            freed = replace(record, state=State.FREE, owner="", lease_until_ms=0, retries_left=left)
            self._save(freed, PENDING_KEPT_MS)
        return True

    def _renew_name(self, claim: Claim, name: Name) -> bool:
        record = self._mine(claim, name)
        if record is None or record.state is not State.PENDING:
            return False
        self._save(replace(record, lease_until_ms=self._now_ms() + claim.lease_ms), PENDING_KEPT_MS)
        return True

    def _fresh(self, claim: Claim, name: Name) -> Record:
        return Record(
            name=name,
            fingerprint=claim.fingerprint_for(name),
            state=State.DONE,
            owner=claim.owner,
            item=claim.item,
            first_seen_ms=self._now_ms(),
            siblings=tuple(claim.labels) if claim.holds_siblings(name) else (),
        )

    def _same_item(self, claim: Claim, name: Name) -> Iterator[Record]:
        wanted = claim.fingerprint_for(name)
        for record in self._records(name):
            if record.fingerprint == wanted or not record.fingerprint or not wanted:
                yield record

    def _record(self, claim: Claim, name: Name) -> Record | None:
        wanted = claim.fingerprint_for(name)
        return next((r for r in self._records(name) if r.fingerprint == wanted), None)

    def _mine(self, claim: Claim, name: Name) -> Record | None:
        record = self._record(claim, name)
        return record if record and record.owner == claim.owner else None

    def _held_by_another_ms(self, claim: Claim, record: Record) -> int:
        if record.state is not State.PENDING or record.owner == claim.owner:
            return 0
        return max(0, record.lease_until_ms - self._now_ms())


def _first_seen(record: Record) -> int:
    return record.first_seen_ms or 0
