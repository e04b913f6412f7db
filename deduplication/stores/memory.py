"""Names in this process's memory: for tests and as the last resort. Other processes do not see them."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from deduplication.claims import Name
from deduplication.stores.base import Pattern, Record, State
from deduplication.stores.local import ClockMs, LocalStore, system_clock_ms

MAX_SETTLED = 10_000
TRIM_TO = 5_000

_Key = tuple[Name, str]


class Shelf:
    """The rows themselves, apart from the store so that every store of a process can share one shelf."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.fingerprints: dict[Name, dict[str, tuple[Record, int | None]]] = {}
        self.settled: OrderedDict[_Key, None] = OrderedDict()  # done or free, oldest first
        self.fence = 0


_SHELF = Shelf()


class MemoryStore(LocalStore):
    """Bounded: above MAX_SETTLED names the oldest go until TRIM_TO are left. Pending ones are never trimmed."""

    def __init__(self, now_ms: ClockMs = system_clock_ms, shelf: Shelf = _SHELF) -> None:
        super().__init__(now_ms)
        self._shelf = shelf

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._shelf.lock:
            yield
            self._trim()

    def _records(self, name: Name) -> list[Record]:
        rows = self._shelf.fingerprints.get(name, {})
        expired = [f for f, (_, until) in rows.items() if until is not None and until <= self._now_ms()]
        for fingerprint in expired:
            self._drop(name, fingerprint)
        return [record for record, _ in rows.values()]

    def _save(self, record: Record, kept_ms: int | None) -> None:
        until = None if kept_ms is None else self._now_ms() + kept_ms
        self._shelf.fingerprints.setdefault(record.name, {})[record.fingerprint] = (record, until)
        key = (record.name, record.fingerprint)
        if record.state is not State.PENDING:
            self._shelf.settled.setdefault(key)
        else:
            self._shelf.settled.pop(key, None)

    def _next_fence(self) -> int:
        self._shelf.fence += 1
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

    def check(self) -> None:
        """Memory is always there."""

    def close(self) -> None:
        """Nothing to close."""
