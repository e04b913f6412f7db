"""Since when the oldest delivery of each destination waits."""

from __future__ import annotations

import heapq
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from deduplication.journal.base import Journal
from deduplication.journal.entry import DeliveryStatus
from deduplication.journal.listing import Count

OLDEST_KEPT = 200
LOOKED_AGAIN_AFTER_S = 60.0
RESTS_FOR = 20  # times as long as looking took


@dataclass
class _Search:
    """The oldest that were found, oldest first. Whatever else waits does so since ``others_since_ms`` at the most."""

    oldest: deque[tuple[int, str]]
    others_since_ms: int
    again_at: float


class OldestWaiting:
    """What waits is indexed by its next try, not by its age: to find the oldest, all of it is gone through.

    That is seldom done. What comes later is younger, so the oldest stays the oldest until it has ended, and then it is
    the next of those that were found with it.
    """

    def __init__(self, journal: Journal, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._journal = journal
        self._monotonic = monotonic
        self._searches: dict[str, _Search] = {}
        self._lock = threading.Lock()

    def read(self, counts: Mapping[str, Count]) -> dict[str, int]:
        """For each destination that something waits for: when the oldest came, or was taken up again."""
        with self._lock:
            return {name: self._since_ms(name) for name, count in counts.items() if count.waiting}

    def _since_ms(self, destination: str) -> int:
        search = self._searches.get(destination)
        if search and search.oldest and self._monotonic() < search.again_at + LOOKED_AGAIN_AFTER_S:
            self._drop_ended(destination, search)
        else:
            search = None if search is None or search.oldest else search
        if search is None or (not search.oldest and self._monotonic() >= search.again_at):
            search = self._searches[destination] = self._search(destination)
        return search.oldest[0][0] if search.oldest else search.others_since_ms

    def _drop_ended(self, destination: str, search: _Search) -> None:
        while search.oldest:
            since_ms, id_ = search.oldest[0]
            entry = self._journal.read(id_)
            if entry and entry.has_open_delivery_to(destination) and entry.waits_since_ms == since_ms:
                return
            search.oldest.popleft()

    def _search(self, destination: str) -> _Search:
        started, now_ms = self._monotonic(), self._journal.now_ms()
        listed = self._journal.list_deliveries(DeliveryStatus.WAITING, destination)
        found = heapq.nsmallest(OLDEST_KEPT + 1, ((each.entry.waits_since_ms, each.entry.id) for each in listed))
        others_since_ms = found[OLDEST_KEPT][0] if len(found) > OLDEST_KEPT else now_ms
        ended = self._monotonic()
        return _Search(deque(found[:OLDEST_KEPT]), others_since_ms, ended + RESTS_FOR * (ended - started))
