"""What counted numbers mean, be they of all time or of one minute, of one machine or of all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from deduplication.claims import Gate
from orchestrator.metrics.meter import (
    BUCKETS,
    BUCKETS_S,
    DEAD,
    DELIVERED,
    DELIVERIES,
    DELIVERY_S,
    EMAILS,
    FAILED,
    STOPPED,
)

# Not taken: their provider sends them again, or they are no emails that could be taken.
GIVEN_BACK = ("already_processing", "retry_later")
REFUSED = ("invalid", "unauthorized", "no_email")


@dataclass(frozen=True)
class Histogram:
    """How many took up to each of BUCKETS_S and no less than the one before; the last: more than that."""

    counts: tuple[int, ...]
    sum_s: float

    @property
    def count(self) -> int:
        return sum(self.counts)

    def quantile_s(self, share: float) -> float | None:
        """As Prometheus estimates it: evenly spread within a bucket. None: there is nothing to tell it from."""
        rank = share * self.count
        below, lower_s = 0, 0.0
        for count, upper_s in zip(self.counts, BUCKETS_S, strict=False):
            if count and below + count >= rank:
                return lower_s + (upper_s - lower_s) * (rank - below) / count
            below, lower_s = below + count, upper_s
        return lower_s if self.count else None


@dataclass(frozen=True)
class Sums:
    """``received`` is what was taken: given-back and refused requests come again, or never should have come.

    Each of those received is new, an exact repeat (``duplicates``) or stopped by another gate (``suppressed``).
    ``failed``: attempts that delivered nothing, those after which it was dead among them.
    """

    counts: Mapping[str, float]

    @cached_property
    def statuses(self) -> dict[str, int]:
        return self.by(EMAILS, 1)

    @property
    def received(self) -> int:
        return sum(n for status, n in self.statuses.items() if status not in (*GIVEN_BACK, *REFUSED))

    @cached_property
    def gates(self) -> dict[str, int]:
        return self.by(STOPPED, 0)

    @property
    def duplicates(self) -> int:
        return self.gates.get(Gate.IDENTITY, 0)

    @property
    def suppressed(self) -> int:
        return sum(self.gates.values()) - self.duplicates

    @property
    def stopped(self) -> int:
        return sum(self.gates.values())

    @property
    def hit_rate(self) -> float | None:
        """The share of those received that were stopped; None: none were received."""
        return self.stopped / self.received if self.received else None

    @property
    def delivered(self) -> int:
        return self.attempts().get(DELIVERED, 0)

    @property
    def failed(self) -> int:
        return self.attempts().get(FAILED, 0) + self.died

    @property
    def died(self) -> int:
        return self.attempts().get(DEAD, 0)

    def attempts(self, destination: str | None = None) -> dict[str, int]:
        """By what became of the delivery."""
        found: Counter[str] = Counter()
        for (name, outcome), count in self.labelled(DELIVERIES).items():
            if destination in (None, name):
                found[outcome] += int(count)
        return dict(found)

    @property
    def destinations(self) -> list[str]:
        return sorted({labels[0] for labels in self.labelled(DELIVERIES)})

    def delivery_times(self, destination: str) -> Histogram:
        return self.histogram(DELIVERY_S, (destination,))

    def histogram(self, metric: str, labels: Sequence[str] = ()) -> Histogram:
        start = "|".join((metric, *labels))
        counts = tuple(int(self.counts.get(f"{start}|{bucket}", 0)) for bucket in BUCKETS)
        return Histogram(counts, self.counts.get(f"{start}|sum", 0.0))

    def by(self, metric: str, label: int) -> dict[str, int]:
        """Counts by one label of a metric."""
        found: Counter[str] = Counter()
        for labels, count in self.labelled(metric).items():
            found[labels[label]] += int(count)
        return dict(found)

    def labelled(self, metric: str) -> dict[tuple[str, ...], float]:
        """Everything of a metric, by its labels."""
        found = {}
        for key, count in self.counts.items():
            name, *labels = key.split("|")
            if name == metric:
                found[tuple(labels)] = count
        return found
