"""The figures that the page, /api/admin/stats and ``mailonce stats`` show: SQL over the counts of the fleet."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from deduplication.journal.entry import DeliveryStatus
from orchestrator.delivery.destination_states import shown_pause
from orchestrator.metrics.counts import DAY_S, HOUR_S, MINUTE_S, read_points, read_sums
from orchestrator.metrics.meter import DELIVERED, DELIVERIES, DELIVERY_S, SKIPPED
from orchestrator.metrics.sums import Histogram, Sums
from orchestrator.operations.fleet_state import FleetState

if TYPE_CHECKING:  # which builds all of this
    from orchestrator.build import Service


@dataclass(frozen=True)
class Totals:
    """Of all machines, since they began to count; ``waiting`` and ``dead`` are of now.

    ``received`` emails are new, ``duplicates`` (exact repeats) or ``suppressed`` (by a group, files, words or age);
    ``statuses`` also counts refused requests and retries. ``hit_rate``: the share of received emails that were stopped.
    ``delivered`` and ``failed`` are attempts. ``is_whole`` is False while Redis is gone: the figures of other machines
    are then as old as the outage.
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


class Span(StrEnum):
    """How far back. Each has points of a certain length."""

    HOUR = "hour"
    DAY = "day"
    WEEK = "week"
    MONTH = "month"

    @property
    def step_s(self) -> int:
        return {"hour": MINUTE_S, "day": 10 * MINUTE_S, "week": HOUR_S, "month": 6 * HOUR_S}[self]

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
    """Over one span. Times are estimated from a histogram, None if nothing was sent; ``p50_ms`` and ``p95_ms`` are for
    each point. ``success_rate`` is of attempts."""

    delivered: int
    failed: int
    success_rate: float | None
    whole_p50_ms: float | None
    whole_p95_ms: float | None
    p50_ms: tuple[float | None, ...]
    p95_ms: tuple[float | None, ...]


@dataclass(frozen=True)
class OverTime:
    """``points`` are ``step_s`` long, the oldest first; the last one still grows. ``total`` is their sum."""

    span: Span
    step_s: int
    points: tuple[Point, ...]
    total: Point
    duplicates: int
    suppressed: int
    destinations: dict[str, DestinationFigures]
    is_whole: bool


def totals(service: Service, state: FleetState | None = None) -> Totals:
    state = state or service.observer.fleet_state()
    sums, views = fleet_sums(service), state.destinations.values()
    return Totals(
        received=sums.received,
        statuses=sums.statuses,
        duplicates=sums.duplicates,
        suppressed=sums.suppressed,
        hit_rate=sums.hit_rate,
        delivered=sums.delivered(),
        failed=sums.failed(),
        dead=sum(each.dead for each in views),
        waiting=sum(each.waiting for each in views),
        oldest_waiting_s=max((each.oldest_s for each in views if each.oldest_s is not None), default=None),
        workers_alive=state.workers,
        is_whole=state.redis_status in (None, "up"),
    )


def fleet_sums(service: Service) -> Sums:
    service.counts.flush()
    with service.journal.reading() as step:
        return Sums(read_sums(step))


def over_time(service: Service, span: Span) -> OverTime:
    service.counts.flush()
    has_redis, status = service.coordinator.registry is not None, service.coordinator.redis.status
    with service.journal.reading() as step:
        last = step.now_ms // 1000 // span.step_s * span.step_s
        starts = range(last - span.length_s + span.step_s, last + 1, span.step_s)
        points = read_points(step, HOUR_S if span.step_s >= HOUR_S else MINUTE_S, starts, span.step_s)
    together: dict[str, float] = {}
    for counts in points:
        for key, value in counts.items():
            together[key] = together.get(key, 0) + value
    sums, whole = [Sums(counts) for counts in points], Sums(together)
    names = dict.fromkeys((*service.config.destinations, *whole.by(DELIVERIES, 0)))
    return OverTime(
        span=span,
        step_s=span.step_s,
        points=tuple(_point(start, each) for start, each in zip(starts, sums, strict=True)),
        total=_point(starts[0], whole),
        duplicates=whole.duplicates,
        suppressed=whole.suppressed,
        destinations={name: _destination(name, whole, sums) for name in names},
        is_whole=not has_redis or status == "up",
    )


def stats(service: Service, span: Span) -> dict[str, Any]:
    """The totals, what happened over the span, and each destination with its deliveries by status: those that wait or
    are dead as of now, the others since counting began."""
    state, sums = service.observer.fleet_state(), fleet_sums(service)
    destinations = {}
    for name, each in state.destinations.items():
        attempts = sums.attempts(name)
        destinations[name] = {
            "enabled": each.is_enabled,
            "breaker": each.breaker,
            "paused": shown_pause(each.paused),
            "deliveries": {
                DeliveryStatus.WAITING: each.waiting,
                DeliveryStatus.DELIVERED: attempts.get(DELIVERED, 0),
                DeliveryStatus.DEAD: each.dead,
                DeliveryStatus.SKIPPED: attempts.get(SKIPPED, 0),
            },
        }
    return {
        "totals": asdict(totals(service, state)),
        "over_time": asdict(over_time(service, span)),
        "destinations": destinations,
    }


def _point(start_s: int, sums: Sums) -> Point:
    return Point(start_s, sums.received, sums.delivered(), sums.stopped, sums.failed())


def _destination(name: str, whole: Sums, points: list[Sums]) -> DestinationFigures:
    delivered, failed = whole.delivered(name), whole.failed(name)

    def times(sums: Sums) -> Histogram:
        return sums.histogram(DELIVERY_S, name)

    return DestinationFigures(
        delivered=delivered,
        failed=failed,
        success_rate=delivered / (delivered + failed) if delivered + failed else None,
        whole_p50_ms=times(whole).quantile_ms(0.5),
        whole_p95_ms=times(whole).quantile_ms(0.95),
        p50_ms=tuple(times(each).quantile_ms(0.5) for each in points),
        p95_ms=tuple(times(each).quantile_ms(0.95) for each in points),
    )
