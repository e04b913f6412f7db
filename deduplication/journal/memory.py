"""A journal in the memory of one process: the last resort, and the plainest of them."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from deduplication.claims import Name, Pattern
from deduplication.journal.base import DEFAULT_RETENTION, Retention
from deduplication.journal.clock import Clock, system_clock
from deduplication.journal.destination_state import DestinationState
from deduplication.journal.entry import Entry, State
from deduplication.journal.listing import ALL, Count, Page, PayloadPlace, Position, Window
from deduplication.journal.local import LocalJournal, dead_at
from deduplication.journal.storage import Storage
from deduplication.journal.verdict import NameRecord, Ref

MOST_ENTRIES = 100_000


@dataclass
class _Rows:
    entries: dict[str, tuple[Entry, int | None]] = field(default_factory=dict)
    marks: dict[Name, int | None] = field(default_factory=dict)
    refs: dict[Name, tuple[Ref, ...]] = field(default_factory=dict)
    payloads: dict[str, tuple[bytes, int | None]] = field(default_factory=dict)
    states: dict[str, DestinationState] = field(default_factory=dict)
    memos: dict[str, str] = field(default_factory=dict)
    deaths: dict[tuple[str, str], int] = field(default_factory=dict)  # (entry, destination) -> when it died
    taken_up: dict[str, int] = field(default_factory=dict)
    shared_key: bytes = b""
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

    def _look_up(self, names: Sequence[Name]) -> tuple[dict[Name, NameRecord], dict[str, Entry]]:
        now_ms, marks, refs = self.now_ms(), self._rows.marks, self._rows.refs
        alive = {name for name in names if (until_ms := marks.get(name, 0)) is None or until_ms > now_ms}
        ids = {ref.entry for name in names for ref in refs.get(name, ())}
        entries = {id_: entry for id_ in ids if (entry := self._entry(id_))}
        return {name: NameRecord(name in alive, refs.get(name, ())) for name in names}, entries

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
        was_dead, is_dead = dead_at(before), dead_at(entry)
        for destination in was_dead - is_dead:
            del self._rows.deaths[entry.id, destination]
        for destination in is_dead - was_dead:
            self._rows.deaths[entry.id, destination] = self.now_ms()
        if len(self._rows.entries) > self._most_entries:
            oldest = next((e for e, _ in self._rows.entries.values() if e.state is State.DONE), None)
            if oldest and not oldest.has_open_deliveries:
                self._forget_entry(oldest)

    def _put_repeat(self, entry: Entry) -> None:
        _, until_ms = self._rows.entries[entry.id]
        self._rows.entries[entry.id] = (entry, until_ms)

    def _forget_entry(self, entry: Entry) -> None:
        del self._rows.entries[entry.id]
        self._rows.payloads.pop(entry.id, None)
        for destination in dead_at(entry):
            del self._rows.deaths[entry.id, destination]
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
        return [entry for next_try_ms, entry in self._indexed(destination) if next_try_ms <= self.now_ms()][:limit]

    def _waiting(self, destination: str, from_ms: int, limit: int) -> list[Entry]:
        return [entry for next_try_ms, entry in self._indexed(destination) if next_try_ms >= from_ms][:limit]

    def _indexed(self, destination: str) -> list[tuple[int, Entry]]:
        """What is open there and has a next try, in the order of that."""
        waiting = [
            (delivery.next_try_ms, entry)
            for entry in self.find()
            if entry.has_open_deliveries
            and (delivery := entry.delivery_to(destination))
            and delivery.status.is_open
            and delivery.next_try_ms is not None
        ]
        return sorted(waiting, key=lambda each: (each[0], each[1].id))

    def memo(self, name: str) -> str | None:
        return self._rows.memos.get(name)

    def change_memo(self, name: str, before: str | None, memo: str) -> bool:
        with self._lock:
            is_as_before = self._rows.memos.get(name) == before
            if is_as_before:
                self._rows.memos[name] = memo
            return is_as_before

    def _states(self) -> dict[str, DestinationState]:
        return dict(self._rows.states)

    def _put_state(self, destination: str, state: DestinationState) -> None:
        self._rows.states[destination] = state

    def destinations(self) -> list[str]:
        return sorted({position.destination for position, _ in self._all_of_index(is_dead=False)})

    def _all_of_index(self, is_dead: bool) -> Page:
        found = []
        for entry in self.find():
            for each in entry.deliveries:
                if is_dead:
                    at_ms = self._rows.deaths.get((entry.id, each.destination))
                else:
                    at_ms = each.next_try_ms if entry.has_open_delivery_to(each.destination) else None
                if at_ms is not None:
                    found.append((Position(at_ms, entry.id, each.destination), entry))
        return found

    def _page(self, is_dead: bool, destination: str | None, after: Position | None, limit: int) -> Page:
        found = sorted(
            (each for each in self._all_of_index(is_dead) if destination in (None, each[0].destination)),
            key=lambda each: each[0],
            reverse=is_dead,
        )
        return [each for each in found if after is None or (each[0] > after) is not is_dead and each[0] != after][
            :limit
        ]

    def count_deliveries(self) -> dict[str, Count]:
        waiting, dead = (
            Counter(position.destination for position, _ in self._all_of_index(is_dead)) for is_dead in (False, True)
        )
        return {name: Count(waiting[name], dead[name]) for name in {*waiting, *dead}}

    def _maybe_under_way(self) -> list[Entry]:
        now_ms = self.now_ms()
        return [each for each, until_ms in self._rows.entries.values() if until_ms is None or until_ms > now_ms]

    def _came(self, after: Position, before: Position, limit: int, *, newest_first: bool) -> list[Entry]:
        placed = sorted(
            ((Position(each.created_ms, each.id), each) for each in self._maybe_under_way()), key=lambda each: each[0]
        )
        between = [each for position, each in placed if after < position < before]
        return (between[::-1] if newest_first else between)[:limit]

    def _note_taken_up(self, entry: str) -> None:
        self._rows.taken_up.pop(entry, None)
        self._rows.taken_up[entry] = self.now_ms()
        if len(self._rows.taken_up) > self._most_entries:
            del self._rows.taken_up[next(iter(self._rows.taken_up))]

    def _taken_up(self, after: Position, limit: int) -> list[Position]:
        noted = sorted(Position(at_ms, entry) for entry, at_ms in self._rows.taken_up.items())
        return [each for each in noted if each > after][:limit]

    def shared_key(self, candidate: bytes) -> bytes:
        self._rows.shared_key = self._rows.shared_key or candidate
        return self._rows.shared_key

    def _next_fence(self) -> int:
        self._rows.fence += 1
        return self._rows.fence

    def _entry(self, entry: str) -> Entry | None:
        found, until_ms = self._rows.entries.get(entry, (None, None))
        return found if until_ms is None or until_ms > self.now_ms() else None

    def payload(self, entry: str) -> bytes | None:
        payload, until_ms = self._rows.payloads.get(entry, (None, None))
        return payload if until_ms is None or until_ms > self.now_ms() else None

    def storage(self) -> Storage:
        return Storage(disk_bytes=sum(len(payload) for payload, _ in self._rows.payloads.values()))

    def locate_payloads(self, entries: Sequence[str]) -> dict[str, PayloadPlace]:
        return {entry: PayloadPlace.GONE if self.payload(entry) is None else PayloadPlace.MEMORY for entry in entries}

    def find(self, window: Window = ALL) -> Iterator[Entry]:
        with self._lock:
            now_ms, rows = self.now_ms(), list(self._rows.entries.values())
        alive = [each for each, until in rows if (until is None or until > now_ms) and not each.is_lock]
        for entry in sorted(alive, key=lambda each: (each.created_ms, each.id), reverse=True):
            is_past = window.start and (entry.created_ms, entry.id) > (window.start.at_ms, window.start.entry)
            if window.has(entry) and not is_past:
                yield entry

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
