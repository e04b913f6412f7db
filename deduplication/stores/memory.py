"""Names in this process's memory: for tests and as the last resort. Other processes do not see them."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from deduplication.claims import WEEK_MS, Name
from deduplication.stores.base import Pattern, Record, State
from deduplication.stores.local import ClockMs, LocalStore, system_clock_ms

MAX_SETTLED = 10_000
TRIM_TO = 5_000

_Key = tuple[Name, str]


class Shelf:
    """The rows themselves, apart from the store so that every store of a process can share one shelf."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.fingerprints: dict[Name, dict[str, Record]] = {}
        self.settled: OrderedDict[_Key, None] = OrderedDict()  # done or free, oldest first
        self.fence = 0
        self.memos: dict[str, str] = {}


_SHELF = Shelf()


class MemoryStore(LocalStore):
    """Bounded: above MAX_SETTLED names the oldest go until TRIM_TO are left. Pending ones are never trimmed."""

    def __init__(self, now_ms: ClockMs = system_clock_ms, shelf: Shelf = _SHELF, retention_ms: int = WEEK_MS) -> None:
        super().__init__(now_ms, retention_ms)
        self._shelf = shelf

    @classmethod
    def of(cls, records: Iterable[Record], now_ms: ClockMs) -> MemoryStore:
        """A copy of what another store says about some names: what is claimed here changes nothing there."""
        store = cls(now_ms, Shelf())
        for record in records:
            store._put(record)
        return store

    @contextmanager
    def _transaction(self, *, durable: bool = True) -> Iterator[None]:
        with self._shelf.lock:
            yield
            self._trim()

    def _records(self, name: Name) -> list[Record]:
        rows = self._shelf.fingerprints.get(name, {})
        for record in [record for record in rows.values() if self._is_over(record)]:
            self._drop(name, record.fingerprint)
        return list(rows.values())

    def _is_over(self, record: Record) -> bool:
        ends_ms = [] if record.expires_ms is None else [record.expires_ms]
        if record.mirrored_ms is not None:
            ends_ms.append(record.mirrored_ms + self._retention_ms)
        return any(end_ms <= self.now_ms() for end_ms in ends_ms)

    def _put(self, record: Record) -> None:
        self._shelf.fingerprints.setdefault(record.name, {})[record.fingerprint] = record
        key = (record.name, record.fingerprint)
        if record.state is not State.PENDING:
            self._shelf.settled.setdefault(key)
        else:
            self._shelf.settled.pop(key, None)

    def _next_fence(self, at_least: int = 0) -> int:
        self._shelf.fence = max(self._shelf.fence + 1, at_least)
        return self._shelf.fence

    def _drop(self, name: Name, fingerprint: str) -> None:
        rows = self._shelf.fingerprints[name]
        del rows[fingerprint]
        if not rows:
            del self._shelf.fingerprints[name]
        self._shelf.settled.pop((name, fingerprint), None)

    def _trim(self) -> None:
        if len(self._shelf.settled) > MAX_SETTLED:
            while len(self._shelf.settled) > TRIM_TO:
                self._drop(*next(iter(self._shelf.settled)))

    def read(self, names: Iterable[Name]) -> Iterator[Record]:
        with self._shelf.lock:
            records = [record for name in dict.fromkeys(names) for record in self._records(name)]
        yield from records

    def find(self, pattern: Pattern) -> Iterator[Record]:
        with self._shelf.lock:
            names = [name for name in self._shelf.fingerprints if pattern.matches(name)]
        yield from self.read(names)

    def forget(self, names: Iterable[Name]) -> int:
        with self._shelf.lock:
            known = [name for name in set(names) if self._records(name)]
            for name in known:
                for fingerprint in list(self._shelf.fingerprints[name]):
                    self._drop(name, fingerprint)
            return len(known)

    def forget_mirrored(self, names: Iterable[Name], up_to_fence: int) -> None:
        with self._shelf.lock:
            for record in list(self.read(names)):
                if record.mirrored_ms is not None and record.fence <= up_to_fence:
                    self._drop(record.name, record.fingerprint)

    def waiting(self, limit: int) -> list[Record]:
        return [record for record in self.find(Pattern()) if self._waits(record)][:limit]

    def waiting_count(self) -> int:
        return sum(1 for record in self.find(Pattern()) if self._waits(record))

    def _waits(self, record: Record) -> bool:
        return record.mirrored_ms is None and self._counts(record)

    def _counts(self, record: Record) -> bool:
        is_held = record.state is State.PENDING and record.lease_until_ms > self.now_ms()
        return is_held or record.state is State.DONE

    def known(self) -> Iterator[list[Record]]:
        yield [record for record in self.find(Pattern()) if self._counts(record)]

    def memo(self, key: str) -> str | None:
        return self._shelf.memos.get(key)

    def set_memo(self, key: str, value: str) -> None:
        self._shelf.memos[key] = value

    def check(self) -> None:
        """Memory is always there."""

    def close(self) -> None:
        """Nothing to close."""
