"""The figures that the page, /api/admin/stats and ``mailonce stats`` show: SQL over the counts of the fleet."""

from enum import StrEnum

from pydantic import BaseModel, Field

from deduplication.journal.entry import DeliveryStatus
from orchestrator.build import Service
from orchestrator.metrics import meter
from orchestrator.metrics.meter import DAY_S, DELIVERY_S, HOUR_S, MINUTE_S
from orchestrator.operations.fleet_state import DestinationView, fleet_state


class Figures(BaseModel):
    """``received`` emails are new, ``duplicates`` (exact repeats) or ``suppressed`` (by a group, files, words or age).
    ``delivered`` and ``failed`` are attempts."""

    received: int
    duplicates: int
    suppressed: int
    delivered: int
    failed: int


class Totals(Figures):
    """Of all machines, since they began to count; ``waiting`` and ``dead`` are of now. ``statuses`` also counts refused
    requests and retries. ``hit_rate``: the share of received emails that were stopped. ``is_whole`` is False while
    Redis is gone: the figures of other machines are then as old as the outage."""

    statuses: dict[str, int]
    hit_rate: float | None
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


STEP_S = {Span.HOUR: MINUTE_S, Span.DAY: 10 * MINUTE_S, Span.WEEK: HOUR_S, Span.MONTH: 6 * HOUR_S}
LENGTH_S = {Span.HOUR: HOUR_S, Span.DAY: DAY_S, Span.WEEK: 7 * DAY_S, Span.MONTH: 31 * DAY_S}


class Point(Figures):
    """What happened from ``start_s`` (seconds since 1970) on. ``stopped``: duplicates and suppressed."""

    start_s: int
    stopped: int


class DestinationFigures(BaseModel):
    """Attempts over one span; ``delivered_by_point`` and ``failed_by_point`` are for each point. Times are estimated
    from a histogram, None if nothing was sent."""

    delivered: int
    failed: int
    success_rate: float | None
    whole_p50_ms: float | None
    whole_p95_ms: float | None
    delivered_by_point: list[int]
    failed_by_point: list[int]


class OverTime(BaseModel):
    """``points`` are ``step_s`` long, the oldest first; the last one still grows. ``total`` is their sum."""

    span: Span
    step_s: int
    points: list[Point]
    total: Point
    destinations: dict[str, DestinationFigures]
    is_whole: bool


class DestinationCounts(DestinationView):
    deliveries: dict[DeliveryStatus, int] = Field(description="Waiting and dead ones now; others since the beginning.")


class Stats(BaseModel):
    totals: Totals
    over_time: OverTime
    destinations: dict[str, DestinationCounts]


def read_stats(service: Service, span: Span) -> Stats:
    service.meter.flush()
    state = fleet_state(service)
    step_s, length_s = STEP_S[span], LENGTH_S[span]
    with service.journal.reading() as step:
        ever, recent = meter.read_sums(step), meter.read_recent(step, step_s, length_s)
        last = step.now_ms // 1000 // step_s * step_s
        starts = range(last - length_s + step_s, last + 1, step_s)
        points = meter.read_points(step, starts)
    views, is_whole = state.destinations.values(), state.redis_status in (None, "up")
    totals = Totals(
        **vars(ever),
        dead=sum(view.dead for view in views),
        waiting=sum(view.waiting for view in views),
        oldest_waiting_s=max((view.oldest_s for view in views if view.oldest_s is not None), default=None),
        workers_alive=state.workers,
        is_whole=is_whole,
    )
    attempted = {}
    for name in dict.fromkeys((*service.config.destinations, *(name for (name,) in recent.by(meter.DELIVERIES, 0)))):
        by_point = [point.to(name) for point in points]
        attempted[name] = DestinationFigures(
            **vars(recent.to(name)),
            whole_p50_ms=recent.quantile_ms(0.5, DELIVERY_S, name),
            whole_p95_ms=recent.quantile_ms(0.95, DELIVERY_S, name),
            delivered_by_point=[sums.delivered for sums in by_point],
            failed_by_point=[sums.failed for sums in by_point],
        )
    over_time = OverTime(
        span=span,
        step_s=step_s,
        points=[Point(start_s=start, **vars(sums)) for start, sums in zip(starts, points, strict=True)],
        total=Point(start_s=starts[0], **vars(recent)),
        destinations=attempted,
        is_whole=is_whole,
    )
    destinations = {}
    for name, view in state.destinations.items():
        sums = ever.to(name)
        deliveries = {"waiting": view.waiting, "delivered": sums.delivered, "dead": view.dead, "skipped": sums.skipped}
        destinations[name] = DestinationCounts.model_validate({**dict(view), "deliveries": deliveries})
    return Stats(totals=totals, over_time=over_time, destinations=destinations)


def read_providers(service: Service) -> dict[str, tuple[int, str]]:
    """When this machine received the last email of a provider ("gmail:email") and refused the last one
    ("gmail:refusal"), in milliseconds since 1970; and the answer to that, or the reason. Neither contains any of the
    email."""
    service.meter.flush()
    with service.journal.reading() as step:
        rows = step.query("SELECT key, value FROM meta WHERE key GLOB ?", (f"{meter.PROVIDER_NOTE}*",))
    notes = {key.removeprefix(meter.PROVIDER_NOTE): value.split(" ", 1) for key, value in rows}
    return {key: (int(at_ms), text) for key, (at_ms, text) in notes.items()}
