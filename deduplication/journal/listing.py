"""Going through what a journal has, a page at a time: by when it came, or along the index of what waits or is dead."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from deduplication.journal.entry import Delivery, DeliveryStatus, Entry

LISTED_AT_ONCE = 100


@dataclass(frozen=True, order=True)
class Position:
    """Where a delivery stands in its list. ``at_ms``: its next try, when it died, or when its email came."""

    at_ms: int
    entry: str
    destination: str = ""


@dataclass(frozen=True)
class Listed:
    position: Position
    entry: Entry
    delivery: Delivery


@dataclass(frozen=True)
class Window:
    """Entries by when they came: from ``since_ms`` on, before ``until_ms``; from ``start`` on, that one first."""

    since_ms: int | None = None
    until_ms: int | None = None
    start: Position | None = None

    def has(self, entry: Entry) -> bool:
        is_early = self.since_ms is not None and entry.created_ms < self.since_ms
        return not is_early and (self.until_ms is None or entry.created_ms < self.until_ms)


ALL = Window()


@dataclass(frozen=True)
class Count:
    """Of one destination: what is stored and still to be delivered, and what is dead."""

    waiting: int = 0
    dead: int = 0


class PayloadPlace(StrEnum):
    """Where the payload of an entry is now."""

    REDIS = "redis"
    DISK = "disk"
    MEMORY = "memory"
    GONE = "gone"


Page = Sequence[tuple[Position, Entry | None]]


def go_through(
    read_page: Callable[[Position | None, int], Page], status: DeliveryStatus, after: Position | None
) -> Iterator[Listed]:
    """A page is read when it is needed. An index has what someone is at now too, and may have what is gone."""
    while True:
        page = read_page(after, LISTED_AT_ONCE)
        for position, entry in page:
            delivery = entry.delivery_to(position.destination) if entry else None
            if entry and delivery and delivery.status is status:
                yield Listed(position, entry, delivery)
        if len(page) < LISTED_AT_ONCE:
            return
        after = page[-1][0]
