"""The figures that the page, /metrics, /api/admin/stats and ``mailonce stats`` show: one source for all of them."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from orchestrator.build import Parts
from orchestrator.metrics.history import DAY_S, HOUR_S, add
from orchestrator.metrics.meter import DEAD, DELIVERED, FAILED
from orchestrator.metrics.sums import Sums
from orchestrator.operations.deliveries import Counts, stats

MINUTE_S = 60


@dataclass(frozen=True)
class Totals:
    """Of all machines, since they began to count; ``waiting`` and ``dead`` are what the journal has now.

    ``received`` is new, ``duplicates`` (exact repeats) and ``suppressed`` (by a group, files, words or age) together;
    ``statuses`` also has what was given back or refused. ``hit_rate``: the share of those received that were stopped.
    ``delivered`` and ``failed`` are attempts; one that made a dead letter failed. ``is_whole`` False: Redis is away,
    and it is what this machine knows.
    """

    received: int
    statuses: dict[str, int]
    duplicates: int
    suppressed: int
    hit_rate: float | None
    delivered: int
    failed: int
    dead: int
    waiting: int
    oldest_waiting_s: int | None
    workers_alive: int | None
    is_whole: bool


def totals(parts: Parts) -> Totals:
    seen = parts.counted.fleet()
    sums, counts = seen.sums, parts.journal.count_deliveries()
    oldest = parts.oldest.read(counts)
    return Totals(
        received=sums.received,
        statuses=dict(sorted(sums.statuses.items())),
        duplicates=sums.duplicates,
        suppressed=sums.suppressed,
        hit_rate=sums.hit_rate,
        delivered=sums.delivered,
        failed=sums.failed,
        dead=sum(count.dead for count in counts.values()),
        waiting=sum(count.waiting for count in counts.values()),
        oldest_waiting_s=age_s(parts, min(oldest.values())) if oldest else None,
        workers_alive=parts.counted.workers_alive() if parts.settings.queue_url else None,
        is_whole=seen.is_whole,
    )


def age_s(parts: Parts, since_ms: int) -> int:
    return max(0, parts.journal.now_ms() - since_ms) // 1000


class Span(StrEnum):
    """Each with what its points are made of: how long one is, of which buckets, and how many there are."""

    HOUR = "hour"
    DAY = "day"
    WEEK = "week"
    MONTH = "month"

    @property
    def step_s(self) -> int:
        return {"hour": MINUTE_S, "day": 600, "week": HOUR_S, "month": 6 * HOUR_S}[self]

    @property
    def bucket_s(self) -> int:
        return min(self.step_s, HOUR_S)

    @property
    def length_s(self) -> int:
        return {"hour": HOUR_S, "day": DAY_S, "week": 7 * DAY_S, "month": 31 * DAY_S}[self]


@dataclass(frozen=True)
class Point:
    """What happened from ``start_s`` (seconds since 1970) on. ``stopped``: duplicates and suppressed."""

    start_s: int
    received: int
    delivered: int
    stopped: int
    failed: int


@dataclass(frozen=True)
class DestinationFigures:
    """Over one span. Milliseconds are estimated from a histogram; None: nothing was sent. ``success_rate`` of attempts.

    ``p50_ms`` and ``p95_ms``: for each point of the span.
    """

    delivered: int
    failed: int
    success_rate: float | None
    whole_p50_ms: float | None
    whole_p95_ms: float | None
    p50_ms: tuple[float | None, ...]
    p95_ms: tuple[float | None, ...]


@dataclass(frozen=True)
class OverTime:
    """``points`` are ``step_s`` long, the oldest first, the last one is still growing. ``total`` is their sum."""

    span: Span
    step_s: int
    points: tuple[Point, ...]
    total: Point
    duplicates: int
    suppressed: int
    destinations: dict[str, DestinationFigures]
    is_whole: bool


def over_time(parts: Parts, span: Span) -> OverTime:
    """Of all machines; while Redis is away, of this one."""
    now_start = int(time.time() // span.step_s) * span.step_s
    starts = range(now_start - span.length_s + span.step_s, now_start + 1, span.step_s)
    buckets, is_whole = parts.counted.over_time(span.bucket_s, range(starts[0], now_start + span.step_s, span.bucket_s))
    steps = [
        Sums(add(*(buckets[at].counts for at in range(start, start + span.step_s, span.bucket_s) if at in buckets)))
        for start in starts
    ]
    together = Sums(add(*(each.counts for each in steps)))
    names = dict.fromkeys((*parts.config.destinations, *together.destinations))
    return OverTime(
        span=span,
        step_s=span.step_s,
        points=tuple(_point(start, sums) for start, sums in zip(starts, steps, strict=True)),
        total=_point(starts[0], together),
        duplicates=together.duplicates,
        suppressed=together.suppressed,
        destinations={name: _destination(name, together, steps) for name in names},
        is_whole=is_whole,
    )


def _point(start_s: int, sums: Sums) -> Point:
    return Point(start_s, sums.received, sums.delivered, sums.stopped, sums.failed)


def _destination(name: str, together: Sums, steps: list[Sums]) -> DestinationFigures:
    attempts = together.attempts(name)
    delivered, failed = attempts.get(DELIVERED, 0), attempts.get(FAILED, 0) + attempts.get(DEAD, 0)
    whole = together.delivery_times(name)
    times = [each.delivery_times(name) for each in steps]
    return DestinationFigures(
        delivered=delivered,
        failed=failed,
        success_rate=delivered / (delivered + failed) if delivered + failed else None,
        whole_p50_ms=_ms(whole.quantile_s(0.5)),
        whole_p95_ms=_ms(whole.quantile_s(0.95)),
        p50_ms=tuple(_ms(each.quantile_s(0.5)) for each in times),
        p95_ms=tuple(_ms(each.quantile_s(0.95)) for each in times),
    )


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 1)


def shown_figures(parts: Parts, counts: Counts, span: Span) -> dict[str, Any]:
    """All of it: the totals, what happened over the span, and how each destination is."""
    return {"totals": asdict(totals(parts)), "over_time": asdict(over_time(parts, span)), **stats(parts, counts)}
