"""A journal in the memory of one process: the last resort, and the plainest of them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from deduplication.claims import Name
from deduplication.journal.base import DEFAULT_RETENTION, Retention
from deduplication.journal.clock import Clock, system_clock
from deduplication.journal.entry import Entry, State
from deduplication.journal.local import LocalJournal
from deduplication.journal.verdict import NameRecord, Ref

MOST_ENTRIES = 100_000


@dataclass
class _Rows:
    entries: dict[str, tuple[Entry, int | None]] = field(default_factory=dict)
    marks: dict[Name, int | None] = field(default_factory=dict)
    refs: dict[Name, tuple[Ref, ...]] = field(default_factory=dict)
    payloads: dict[str, bytes] = field(default_factory=dict)
    fence: int = 0


class MemoryJournal(LocalJournal):
    """Bounded: past ``most_entries`` the oldest settled ones go, with their names."""

    def __init__(
        self,
        clock: Clock | None = None,
        retention: Retention = DEFAULT_RETENTION,
        most_entries: int = MOST_ENTRIES,
    ) -> None:
        super().__init__(clock or system_clock(), retention)
        self._rows = _Rows()
        self._lock = threading.RLock()
        self._most_entries = most_entries

    @contextmanager
    def _transaction(self, *, durable: bool = False) -> Iterator[None]:
        with self._lock:
            yield

    def _name(self, name: Name) -> NameRecord:
        until_ms = self._rows.marks.get(name, 0)
        return NameRecord(until_ms is None or until_ms > self.now_ms(), self._rows.refs.get(name, ()))

    def _mark(self, name: Name, until_ms: int | None) -> None:
        before_ms = self._rows.marks.get(name, 0)
        self._rows.marks[name] = None if None in (before_ms, until_ms) else max(before_ms or 0, until_ms or 0)

    def _refer(self, name: Name, ref: Ref, *, alone: bool) -> None:
        before = () if alone else self._rows.refs.get(name, ())
        self._rows.refs[name] = tuple(dict.fromkeys((*before, ref)))

    def _unrefer(self, name: Name, entry: str) -> None:
        left = tuple(ref for ref in self._rows.refs.get(name, ()) if ref.entry != entry)
        if left:
            self._rows.refs[name] = left
        else:
            self._rows.refs.pop(name, None)

    def _drop_name(self, name: Name) -> None:
        self._rows.marks.pop(name, None)
        self._rows.refs.pop(name, None)

    def _put_entry(self, entry: Entry, until_ms: int | None) -> None:
        self._rows.entries[entry.id] = (entry, until_ms)
        if len(self._rows.entries) > self._most_entries:
            oldest = next((e for e, _ in self._rows.entries.values() if e.state is State.DONE), None)
            if oldest and not oldest.has_open_deliveries:
                self._forget_entry(oldest)

    def _forget_entry(self, entry: Entry) -> None:
        del self._rows.entries[entry.id]
        self._rows.payloads.pop(entry.id, None)
        for name in entry.names:
            self._unrefer(name, entry.id)
            if not self._rows.refs.get(name):
                self._rows.marks.pop(name, None)

    def _put_payload(self, entry: str, payload: bytes | None) -> None:
        if payload is None:
            self._rows.payloads.pop(entry, None)
        else:
            self._rows.payloads[entry] = payload

    def _followers(self, entry: str) -> list[Entry]:
        return sorted(
            (
                each
                for each in self.find()
                if each.stop
                and each.stop.follows
                and each.stop.original == entry
                and each.state is State.DONE
                and each.released_ms is None
            ),
            key=lambda each: (each.created_ms, each.id),
        )

    def _due(self, destination: str, limit: int) -> list[Entry]:
        due = [
            (delivery.next_try_ms, entry.id, entry)
            for entry in self.find()
            if entry.has_open_deliveries
            and (delivery := entry.delivery_to(destination))
            and delivery.status.is_open
            and delivery.next_try_ms is not None
            and delivery.next_try_ms <= self.now_ms()
        ]
        return [entry for _, _, entry in sorted(due, key=lambda each: each[:2])[:limit]]

    def _next_fence(self) -> int:
        self._rows.fence += 1
        return self._rows.fence

    def _entry(self, entry: str) -> Entry | None:
        found, until_ms = self._rows.entries.get(entry, (None, None))
        return found if until_ms is None or until_ms > self.now_ms() else None

    def payload(self, entry: str) -> bytes | None:
        return self._rows.payloads.get(entry)

    def find(self) -> Iterator[Entry]:
        with self._lock:
            now_ms, rows = self.now_ms(), list(self._rows.entries.values())
        alive = [each for each, until in rows if (until is None or until > now_ms) and not each.is_lock]
        yield from sorted(alive, key=lambda each: (each.created_ms, each.id), reverse=True)

    def check(self) -> None:
        """Memory always takes a claim."""

    def close(self) -> None:
        """There is nothing to close."""
