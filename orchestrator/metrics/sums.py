"""What counts mean, of whichever time and machines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from deduplication.names import Gate
from orchestrator.metrics.meter import BUCKETS, BUCKETS_S, DEAD, DELIVERED, DELIVERIES, EMAILS, FAILED, STOPPED

# Requests that were not accepted: their provider sends them again, or they are no valid emails.
NOT_RECEIVED = ("already_processing", "retry_later", "invalid", "unauthorized", "no_email")


@dataclass(frozen=True)
class Histogram:
    """``counts``: by bucket, each without those before it; the last one is for everything above."""

    counts: tuple[int, ...]
    sum_s: float

    def quantile_ms(self, share: float) -> float | None:
        """As Prometheus estimates it: evenly spread within a bucket. None if nothing was observed."""
        rank, below, lower_s = share * sum(self.counts), 0, 0.0
        if not rank:
            return None
        for count, upper_s in zip(self.counts, BUCKETS_S, strict=False):
            if count and below + count >= rank:
                return round((lower_s + (upper_s - lower_s) * (rank - below) / count) * 1000, 1)
            below, lower_s = below + count, upper_s
        return lower_s * 1000


@dataclass(frozen=True)
class Sums:
    """``received``: accepted emails. Each is new, an exact repeat (``duplicates``), or stopped by another gate
    (``suppressed``). ``failed``: attempts that delivered nothing, including those that made a dead letter."""

    counts: Mapping[str, float]

    def labelled(self, metric: str) -> dict[tuple[str, ...], float]:
        """Everything of a metric, by its labels."""
        parted = ((key.split("|"), count) for key, count in self.counts.items())
        return {tuple(labels): count for (name, *labels), count in parted if name == metric}

    def by(self, metric: str, place: int) -> dict[str, int]:
        """Counts of a metric by one of its labels."""
        found: Counter[str] = Counter()
        for labels, count in self.labelled(metric).items():
            found[labels[place]] += int(count)
        return dict(sorted(found.items()))

    @property
    def statuses(self) -> dict[str, int]:
        return self.by(EMAILS, 1)

    @property
    def received(self) -> int:
        return sum(count for status, count in self.statuses.items() if status not in NOT_RECEIVED)

    @property
    def stopped(self) -> int:
        return sum(self.by(STOPPED, 0).values())

    @property
    def duplicates(self) -> int:
        return self.by(STOPPED, 0).get(Gate.IDENTITY, 0)

    @property
    def suppressed(self) -> int:
        return self.stopped - self.duplicates

    @property
    def hit_rate(self) -> float | None:
        """The share of received emails that were stopped; None if none were received."""
        return self.stopped / self.received if self.received else None

    def attempts(self, destination: str | None = None) -> dict[str, int]:
        """By outcome."""
        found: Counter[str] = Counter()
        for (name, outcome), count in self.labelled(DELIVERIES).items():
            if destination in (None, name):
                found[outcome] += int(count)
        return dict(found)

    def delivered(self, destination: str | None = None) -> int:
        return self.attempts(destination).get(DELIVERED, 0)

    def failed(self, destination: str | None = None) -> int:
        attempts = self.attempts(destination)
        return attempts.get(FAILED, 0) + attempts.get(DEAD, 0)

    def histogram(self, *labels: str) -> Histogram:
        start = "|".join(labels)
        counts = tuple(int(self.counts.get(f"{start}|{bucket}", 0)) for bucket in BUCKETS)
        return Histogram(counts, self.counts.get(f"{start}|sum", 0.0))
