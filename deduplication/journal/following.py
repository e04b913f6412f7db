"""Following a journal: what came and what was taken up again, without going through all that it has.

For an index that is kept beside the journal. What is heard twice must not matter to it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from deduplication.journal.entry import Entry


@dataclass(frozen=True)
class News:
    """``places``: where to go on, for whoever asks again. ``is_all``: for now there is no more."""

    entries: tuple[Entry, ...]
    places: str
    is_all: bool


_HOUR_MS = 3_600_000
_LATE_EVERY_MS = 60_000  # what a machine tells late stands in an hour that is over


@dataclass
class Heard:
    """What was heard of a journal that lists entries by the hour: of each list the part from its first to its last
    place, and of what was taken up all until a moment, so many of them at that very moment."""

    taken_up_ms: int
    taken_up_then: int = 0
    late_looked_ms: int = 0
    closed_until: str = ""
    hours: dict[int, tuple[int, int]] = field(default_factory=dict)

    @classmethod
    def read(cls, places: str, now_ms: int) -> Heard:
        if not places:
            return cls(now_ms)
        taken_up_ms, taken_up_then, late_looked_ms, closed_until, hours = json.loads(places)
        parts = {int(hour): (part[0], part[1]) for hour, part in hours.items()}
        return cls(taken_up_ms, taken_up_then, late_looked_ms, closed_until, parts)

    @property
    def written(self) -> str:
        return json.dumps([self.taken_up_ms, self.taken_up_then, self.late_looked_ms, self.closed_until, self.hours])

    def hours_to_look_at(self, now_ms: int, kept_hours: int) -> list[int]:
        """The newest first: this one and the last, those that are not through yet, and now and then all."""
        this_hour = now_ms // _HOUR_MS
        kept = range(this_hour, this_hour - kept_hours, -1)
        self.hours = {hour: part for hour, part in self.hours.items() if hour in kept}
        if now_ms < self.late_looked_ms + _LATE_EVERY_MS:
            return [hour for hour in kept if hour >= this_hour - 1 or self.hours.get(hour, (0, 0))[0] > 0]
        self.late_looked_ms = now_ms
        return list(kept)

    def begin_anew_if(self, closed_until: str) -> None:
        """A journal that lost its memory was told again, in another order."""
        if closed_until != self.closed_until:
            self.closed_until, self.hours = closed_until, {}

    def take(self, lengths: Mapping[int, int], limit: int) -> list[tuple[int, int, int]]:
        """Which parts of the lists to read now: what was added at their ends, then what stands before, backwards."""
        parts = []
        for hour, length in lengths.items():
            first, last = self.hours.get(hour, (length, length))
            if length < last:  # not the list that it was
                first = last = length
            more = min(length - last, limit)
            if more:
                parts.append((hour, last, last + more))
            self.hours[hour] = (first, last + more)
            limit -= more
        for hour in lengths:
            first, last = self.hours[hour]
            before = min(first, limit)
            if before:
                parts.append((hour, first - before, first))
            self.hours[hour] = (first - before, last)
            limit -= before
        return parts

    def take_taken_up(self, moments_ms: list[int]) -> bool:
        """Whether there is any news in what was taken up from the moment of the last on."""
        if len(moments_ms) == self.taken_up_then and set(moments_ms) <= {self.taken_up_ms}:
            return False
        self.taken_up_ms = moments_ms[-1]
        self.taken_up_then = moments_ms.count(self.taken_up_ms)
        return True
