"""What alarms are judged by, read from where it stands: counts by the minute, the journal, breakers, Redis."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from deduplication.errors import DeduplicationError
from deduplication.journal.base import Journal
from deduplication.journal.failover import FailoverJournal
from deduplication.journal.side import Side
from orchestrator.delivery.sender import Sender
from orchestrator.metrics.counted import Counted
from orchestrator.metrics.history import DAY_S, HOUR_S, add
from orchestrator.metrics.meter import DEAD, REDIS_ERRORS, REDIS_STEPS, SIDE_S
from orchestrator.metrics.sums import Sums
from orchestrator.operations.alerts import Facts
from orchestrator.operations.waiting import OldestWaiting

MINUTE_S = 60
LATELY_MINUTES = 10
DAY_KNOWN_FOR_S = 60.0


@dataclass
class FactsReader:
    """Not for a request: it may have to go through all that waits."""

    journal: Journal
    sender: Sender
    counted: Counted
    oldest: OldestWaiting
    has_queue: bool
    now_s: Callable[[], float] = time.time
    _day: tuple[float, Sums] | None = None

    def read(self) -> Facts:
        facts = Facts(has_redis=isinstance(self.journal, FailoverJournal), has_queue=self.has_queue)
        with suppress(DeduplicationError, sqlite3.Error):
            facts = self._with_counts(facts)
        with suppress(DeduplicationError):
            facts = self._with_destinations(facts)
        with suppress(DeduplicationError):
            if isinstance(self.journal, FailoverJournal) and self.journal.standing.side is Side.REDIS:
                facts = replace(facts, policy=self.journal.redis_facts().maxmemory_policy)
        return facts

    def _with_counts(self, facts: Facts) -> Facts:
        hour, since_s = self._buckets(MINUTE_S, HOUR_S), self.now_s() - LATELY_MINUTES * MINUTE_S
        lately = _together({start: sums for start, sums in hour.items() if start > since_s})
        steps, errors = lately.counts.get(REDIS_STEPS, 0), sum(lately.labelled(REDIS_ERRORS).values())
        sides = {labels[0]: seconds for labels, seconds in lately.labelled(SIDE_S).items()}
        day, whole_hour = self._last_day(), _together(hour)
        return replace(
            facts,
            redis_error_share=errors / steps if steps else None,
            local_share=sides.get(Side.LOCAL, 0) / sum(sides.values()) if sides else None,
            received=day.received,
            stopped=day.stopped,
            died={name: whole_hour.attempts(name).get(DEAD, 0) for name in whole_hour.destinations},
            workers=self._workers() if self.has_queue else None,
        )

    def _workers(self) -> int | None:
        """While Redis is away, nothing is known of those on other machines."""
        return self.counted.workers_alive() or (0 if self.counted.is_reachable() else None)

    def _with_destinations(self, facts: Facts) -> Facts:
        """Of those that are to be sent to: what waits for another waits on purpose."""
        active = [
            name
            for name, policy in self.sender.policies.items()
            if policy.is_enabled and not self.sender.states.of(name).is_paused
        ]
        now_ms = self.journal.now_ms()
        counts = {name: count for name, count in self.journal.count_deliveries().items() if name in active}
        since_ms = self.oldest.read(counts)
        # While Redis is away each process counts failures alone: what this one knows says nothing of the others.
        breakers = {name: self.sender.guard.state(name) for name in active} if self.counted.is_reachable() else None
        return replace(
            facts,
            breakers=breakers,
            oldest_s={name: max(0, now_ms - since) // 1000 for name, since in since_ms.items()},
        )

    def _last_day(self) -> Sums:
        if self._day is None or abs(self.now_s() - self._day[0]) > DAY_KNOWN_FOR_S:
            self._day = (self.now_s(), _together(self._buckets(HOUR_S, DAY_S)))
        return self._day[1]

    def _buckets(self, step_s: int, length_s: int) -> dict[int, Sums]:
        last = int(self.now_s() // step_s) * step_s
        return self.counted.over_time(step_s, range(last - length_s + step_s, last + 1, step_s))[0]


def _together(buckets: Mapping[int, Sums]) -> Sums:
    return Sums(add(*(each.counts for each in buckets.values())))
