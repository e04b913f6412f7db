"""The verdict in Python, for the stores that live on this machine; lua/ says the same for Redis.

Besides deciding by itself, a local store can follow Redis: it then *mirrors* what Redis decided, so that it can go on
when Redis is gone. A record it decided alone is not mirrored and waits to be merged into Redis.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace

from deduplication.claims import (
    PENDING_KEPT_MS,
    WEEK_MS,
    Claim,
    Claimed,
    Duplicate,
    Gate,
    InFlight,
    Kind,
    Name,
    Verdict,
)
from deduplication.fingerprint import Fingerprint, agree, conflicts
from deduplication.stores.base import Pattern, Record, State

ClockMs = Callable[[], int]
Known = dict[Name, list[Record]]


def system_clock_ms() -> int:
    return time.time_ns() // 1_000_000


class LocalStore(ABC):
    """Subclasses keep rows and give a transaction; every rule about claims is here."""

    def __init__(self, now_ms: ClockMs = system_clock_ms, retention_ms: int = WEEK_MS) -> None:
        """``retention_ms``: how long mirrored records are kept, whatever their own end."""
        self._clock_ms = now_ms
        self._retention_ms = retention_ms

    def now_ms(self) -> int:
        return self._clock_ms()

    @abstractmethod
    def _transaction(self, *, durable: bool = True) -> AbstractContextManager[None]:
        """All reads and writes inside are one atomic step for every thread and process of the store.

        Durable: once it ends, it survives a power cut.
        """

    @abstractmethod
    def _records(self, name: Name) -> list[Record]:
        """Every record of the name that has not expired."""

    @abstractmethod
    def _put(self, record: Record) -> None:
        """Keep the record in place of the one with the same name and fingerprint."""

    @abstractmethod
    def _drop(self, name: Name, fingerprint: str) -> None:
        """Keep the record no longer."""

    @abstractmethod
    def _next_fence(self, at_least: int = 0) -> int:
        """A number higher than all before, and not lower than ``at_least``."""

    @abstractmethod
    def read(self, names: Iterable[Name]) -> Iterator[Record]: ...

    @abstractmethod
    def find(self, pattern: Pattern) -> Iterator[Record]: ...

    @abstractmethod
    def forget(self, names: Iterable[Name]) -> int: ...

    @abstractmethod
    def check(self) -> None: ...

    @abstractmethod
    def close(self) -> None: ...

    # Deciding alone

    def claim(self, claim: Claim) -> Verdict:
        return self.move(claim, claim)

    def move(self, claim: Claim, to: Claim) -> Verdict:
        with self._transaction():
            known = self._known(to)
            left_out = _known_media(to, known)
            asked = to.without(left_out)
            verdict = (
                _answered_before(asked, known)
                or self._settled(asked, self._stopped_at_a_gate(asked, known))
                or self._reserve(asked, known, left_out)
            )
            if not isinstance(verdict, InFlight):
                for name in claim.given_back_by(to):
                    self._release_name(claim, name, None)
            return verdict

    def commit(self, claim: Claim) -> bool:
        with self._transaction():
            return all([self._commit_name(claim, name) for name in claim.names])

    def release(self, claim: Claim, retries_left: int | None) -> bool:
        with self._transaction():
            return all([self._release_name(claim, name, retries_left) for name in claim.names])

    def renew(self, claim: Claim) -> bool:
        with self._transaction():
            return all([self._renew_name(claim, name) for name in claim.names])

    def drop_lapsed(self, kind: Kind) -> int:
        pending = [record for record in self.find(Pattern(kind)) if record.state is State.PENDING]
        with self._transaction():
            lapsed = [r for r in pending if r.lease_until_ms <= self.now_ms() and r in self._records(r.name)]
            for record in lapsed:
                self._drop(record.name, record.fingerprint)
            return len(lapsed)

    def _known(self, claim: Claim) -> Known:
        return {name: self._records(name) for name in claim.names}

    def _stopped_at_a_gate(self, claim: Claim, known: Known) -> Verdict | None:
        """Gate by gate: a done name stops the item for good, a pending one of another owner for now."""
        waiting: InFlight | None = None
        for name in claim.names:
            if waiting and waiting.gate is not name.gate:
                break
            met = list(_same_item(claim, name, known[name]))
            wanted = claim.fingerprint_for(name)
            done = min((r for r in met if r.state is State.DONE), key=_exact_then_oldest(wanted), default=None)
            if done:
                return Duplicate(name.gate, name.label, done.item, done.first_seen_ms)
            held_ms = max((self._held_by_another_ms(claim, record) for record in met), default=0)
            if held_ms:
                waiting = waiting or InFlight(name.gate, name.label, held_ms)
                waiting = replace(waiting, retry_after_ms=max(waiting.retry_after_ms, held_ms))
        return waiting

    def _held_by_another_ms(self, claim: Claim, record: Record) -> int:
        if record.state is not State.PENDING or record.owner == claim.owner:
            return 0
        return max(0, record.lease_until_ms - self.now_ms())

    def _settled(self, claim: Claim, verdict: Verdict | None) -> Verdict | None:
        """An item stopped by a shared name is settled in the same step."""
        if isinstance(verdict, Duplicate) and verdict.gate is not Gate.IDENTITY:
            self._settle_as_skipped(claim, verdict)
        return verdict

    def _reserve(self, claim: Claim, known: Known, left_out: tuple[str, ...] = ()) -> Claimed:
        mine = [_mine(claim, name, known[name]) for name in claim.names]
        fence = mine[0].fence if mine[0] and all(mine) else self._next_fence()
        pending = [self._pending(claim, name, known[name], fence) for name in claim.names]
        for record in pending:
            self._save(record, PENDING_KEPT_MS)
        retries = [record.retries_left for record in pending if record.retries_left is not None]
        return Claimed(fence, min(retries, default=None), left_out)

    def _pending(self, claim: Claim, name: Name, known: list[Record], fence: int) -> Record:
        lease_until_ms = self.now_ms() + claim.lease_ms
        record = replace(self._fresh(claim, name), state=State.PENDING, fence=fence, lease_until_ms=lease_until_ms)
        before = _record_of(claim, name, _same_item(claim, name, known))
        if before and name.is_own:
            return replace(record, first_seen_ms=before.first_seen_ms, retries_left=before.retries_left)
        return record

    def _settle_as_skipped(self, claim: Claim, verdict: Duplicate, mirrored_ms: int | None = None) -> None:
        for name in claim.names:
            if name.is_own:
                skipped = replace(
                    self._fresh(claim, name),
                    gate=verdict.gate,
                    by=verdict.name,
                    original=verdict.original,
                    original_seen_ms=verdict.first_seen_ms,
                    mirrored_ms=mirrored_ms,
                )
                self._save(skipped, name.kept_ms)

    def _commit_name(self, claim: Claim, name: Name, mirrored_ms: int | None = None) -> bool:
        before = _record_of(claim, name, self._records(name))
        record = before or self._fresh(claim, name)
        if record.owner != claim.owner:
            return False
        if before is None or before.state is not State.DONE:
            done = replace(record, state=State.DONE, lease_until_ms=0, mirrored_ms=mirrored_ms)
            self._save(done, name.kept_ms)
            if name.kind is Kind.LOCK:  # once completed it blocks nobody; that it was, publication_locks has seen
                self._drop(name, done.fingerprint)
        return True

    def _release_name(self, claim: Claim, name: Name, retries_left: int | None) -> bool:
        record = _mine(claim, name, self._records(name))
        if record is None or record.state is not State.PENDING:
            return False
        left = min((n for n in (record.retries_left, retries_left) if n is not None), default=None)
        if left == 0 and name.is_own:
            dead = replace(record, state=State.DONE, lease_until_ms=0, retries_left=0, mirrored_ms=None)
            self._save(dead, name.kept_ms)
        elif left is not None and name.is_own:
            freed = replace(record, state=State.FREE, owner="", lease_until_ms=0, retries_left=left)
            self._save(freed, PENDING_KEPT_MS)
        else:
            self._drop(name, record.fingerprint)
        return True

    def _renew_name(self, claim: Claim, name: Name) -> bool:
        record = _mine(claim, name, self._records(name))
        if record is None or record.state is not State.PENDING:
            return False
        self._save(replace(record, lease_until_ms=self.now_ms() + claim.lease_ms), PENDING_KEPT_MS)
        return True

    def _fresh(self, claim: Claim, name: Name) -> Record:
        return Record(
            name=name,
            fingerprint=claim.fingerprint_for(name),
            state=State.DONE,
            owner=claim.owner,
            item=claim.item,
            first_seen_ms=self.now_ms(),
            siblings=tuple(claim.labels) if claim.holds_siblings(name) else (),
        )

    def _save(self, record: Record, kept_ms: int | None) -> None:
        expires_ms = None if kept_ms is None else self.now_ms() + kept_ms
        self._put(replace(record, expires_ms=expires_ms))

    # Following Redis

    def note_claimed(self, claim: Claim, fence: int, asked_ms: int) -> Verdict | None:
        """Redis gave the claim: remember it as pending, unless this machine decided otherwise meanwhile.

        What was decided here alone can object, also if another worker has merged it since ``asked_ms``, when Redis was
        asked. Any other mirrored record knows less than Redis does now.
        """
        with self._transaction(durable=False):
            decided_here = {
                name: [record for record in records if _may_object(record, claim, asked_ms)]
                for name, records in self._known(claim).items()
            }
            objection = self._stopped_at_a_gate(claim, decided_here)
            if objection:
                return objection
            self._next_fence(at_least=fence)
            for name in claim.names:
                pending = self._pending(claim, name, [], fence)
                self._save(replace(pending, mirrored_ms=self.now_ms()), PENDING_KEPT_MS)
            return None

    def note_committed(self, claim: Claim) -> None:
        """Redis has committed the claim."""
        with self._transaction(durable=False):
            for name in claim.names:
                self._commit_name(claim, name, mirrored_ms=self.now_ms())

    def note_skipped(self, claim: Claim, verdict: Duplicate) -> None:
        """Redis has settled the item because a shared name stopped it."""
        with self._transaction(durable=False):
            self._settle_as_skipped(claim, verdict, mirrored_ms=self.now_ms())

    @abstractmethod
    def forget_mirrored(self, names: Iterable[Name], up_to_fence: int) -> None:
        """Another server reset these names on Redis; whatever got a later fencing number is newer than the reset."""

    @abstractmethod
    def waiting(self, limit: int) -> list[Record]:
        """Up to ``limit`` records, done or pending, that were decided here alone."""

    @abstractmethod
    def waiting_count(self) -> int:
        """How many records wait to be merged."""

    @abstractmethod
    def known(self) -> Iterator[list[Record]]:
        """Everything done or held that is known here, in batches: what Redis is told if it lost its memory."""

    def mark_merged(self, records: Iterable[Record]) -> None:
        """Redis knows these now. One that has changed since it was read waits on."""
        with self._transaction(durable=False):
            for record in records:
                if record in self._records(record.name):
                    self._put(replace(record, mirrored_ms=self.now_ms()))

    @abstractmethod
    def memo(self, key: str) -> str | None:
        """A small fact this machine keeps about Redis."""

    @abstractmethod
    def set_memo(self, key: str, value: str) -> None: ...


def _answered_before(claim: Claim, known: Known) -> Verdict | None:
    """The answer this owner got when its first request was settled and the reply was lost."""
    for name in claim.names:
        mine = _mine(claim, name, known[name])
        if mine and mine.state is State.DONE:
            if mine.gate:
                return Duplicate(mine.gate, mine.by or "", mine.original, mine.original_seen_ms)
            return Claimed(mine.fence, mine.retries_left)
    return None


def _known_media(claim: Claim, known: Known) -> tuple[str, ...]:
    """The media that other items brought, unless that is all there are: then they stop this one."""
    media = [name for name in claim.names if name.kind is Kind.MEDIA]
    done = [
        name.label
        for name in media
        if any(record.state is State.DONE and record.owner != claim.owner for record in known[name])
    ]
    return tuple(done) if len(done) < len(media) else ()


def _same_item(claim: Claim, name: Name, known: list[Record]) -> Iterator[Record]:
    """The records that stand for what is claimed, as far as both sides know."""
    wanted = Fingerprint.parse(claim.fingerprint_for(name))
    for record in known:
        given = Fingerprint.parse(record.fingerprint)
        if agree(given, wanted) if name.needs_agreement else not conflicts(given, wanted):
            yield record


def _record_of(claim: Claim, name: Name, known: Iterable[Record]) -> Record | None:
    wanted = claim.fingerprint_for(name)
    return next((record for record in known if record.fingerprint == wanted), None)


def _mine(claim: Claim, name: Name, known: list[Record]) -> Record | None:
    record = _record_of(claim, name, known)
    return record if record and record.owner == claim.owner else None


def _may_object(record: Record, claim: Claim, asked_ms: int) -> bool:
    if record.mirrored_ms is None:
        return True
    return record.mirrored_ms >= asked_ms and record.owner != claim.owner


def _exact_then_oldest(fingerprint: str) -> Callable[[Record], tuple[bool, int]]:
    return lambda record: (record.fingerprint != fingerprint, record.first_seen_ms or 0)
