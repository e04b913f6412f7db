"""A journal in the memory of one process: the last resort, and the plainest of them."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from deduplication.claims import Name, Pattern
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
    payloads: dict[str, tuple[bytes, int | None]] = field(default_factory=dict)
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

    def _names(self, names: Sequence[Name]) -> dict[Name, NameRecord]:
        now_ms, marks, refs = self.now_ms(), self._rows.marks, self._rows.refs
        alive = {name for name in names if (until_ms := marks.get(name, 0)) is None or until_ms > now_ms}
        return {name: NameRecord(name in alive, refs.get(name, ())) for name in names}

    def _mark(self, marks: Sequence[tuple[Name, int | None]]) -> None:
        for name, until_ms in marks:
            before_ms = self._rows.marks.get(name, 0)
            self._rows.marks[name] = None if None in (before_ms, until_ms) else max(before_ms or 0, until_ms or 0)

    def _refer(self, names: Sequence[Name], ref: Ref) -> None:
        for name in names:
            before = self._rows.refs.get(name, ()) if name.is_own else ()
            if all(each.entry != ref.entry for each in before):
                self._rows.refs[name] = (*before, ref)

    def _unrefer(self, name: Name, entry: str) -> None:
        left = tuple(ref for ref in self._rows.refs.get(name, ()) if ref.entry != entry)
        if left:
            self._rows.refs[name] = left
        else:
            self._rows.refs.pop(name, None)

    def _drop_mark(self, name: Name) -> None:
        self._rows.marks.pop(name, None)

    def _put_entry(self, entry: Entry, before: Entry | None, until_ms: int | None) -> None:
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

    def _drop_entry(self, entry: str) -> None:
        self._rows.entries.pop(entry, None)

    def _put_payload(self, entry: str, payload: bytes | None, until_ms: int | None = None) -> None:
        if payload is None:
            self._rows.payloads.pop(entry, None)
        else:
            self._rows.payloads[entry] = (payload, until_ms)

    def _keep_payload(self, entry: str, until_ms: int | None) -> None:
        payload = self.payload(entry)
        self._put_payload(entry, None if until_ms is not None and until_ms <= self.now_ms() else payload, until_ms)

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

    def destinations(self) -> list[str]:
        waiting = {
            delivery.destination
            for entry in self.find()
            if entry.has_open_deliveries
            for delivery in entry.deliveries
            if delivery.status.is_open
        }
        return sorted(waiting)

    def _maybe_under_way(self) -> list[Entry]:
        now_ms = self.now_ms()
        return [each for each, until_ms in self._rows.entries.values() if until_ms is None or until_ms > now_ms]

    def _next_fence(self) -> int:
        self._rows.fence += 1
        return self._rows.fence

    def _entry(self, entry: str) -> Entry | None:
        found, until_ms = self._rows.entries.get(entry, (None, None))
        return found if until_ms is None or until_ms > self.now_ms() else None

    def payload(self, entry: str) -> bytes | None:
        payload, until_ms = self._rows.payloads.get(entry, (None, None))
        return payload if until_ms is None or until_ms > self.now_ms() else None

    def find(self) -> Iterator[Entry]:
        with self._lock:
            now_ms, rows = self.now_ms(), list(self._rows.entries.values())
        alive = [each for each, until in rows if (until is None or until > now_ms) and not each.is_lock]
        yield from sorted(alive, key=lambda each: (each.created_ms, each.id), reverse=True)

    def names(self, pattern: Pattern) -> Iterator[Name]:
        with self._lock:
            now_ms = self.now_ms()
            marked = [name for name, until_ms in self._rows.marks.items() if until_ms is None or until_ms > now_ms]
            referred = [name for name, refs in self._rows.refs.items() if any(self._entry(ref.entry) for ref in refs)]
        yield from filter(pattern.matches, dict.fromkeys((*marked, *referred)))

    def check(self) -> None:
        """Memory always takes a claim."""

    def close(self) -> None:
        """There is nothing to close."""
