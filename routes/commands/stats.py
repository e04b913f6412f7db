"""mailonce stats: what the service has done, once or refreshed every two seconds."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import click

from deduplication.journal.entry import DeliveryStatus
from orchestrator.operations.stats import Span, Stats, Totals, read_stats
from orchestrator.operations.times import shown_duration
from routes.commands.service import make_table, open_console, open_service

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from orchestrator.build import Service

REFRESH_S = 2.0
BARS = " ▁▂▃▄▅▆▇█"
SPARK_WIDTH = 36
SERIES = ("received", "delivered", "stopped", "failed")


@click.command()
@click.option(
    "--span", type=click.Choice(list(map(str, Span))), default=str(Span.DAY), show_default=True, help="How far back."
)
@click.option("--json", "as_json", is_flag=True, help="Print the answer of GET /api/admin/stats.")
@click.option("--watch", is_flag=True, help="Refresh every two seconds, until Ctrl+C.")
def stats(span: str, as_json: bool, watch: bool) -> None:
    """Show how many emails were received, delivered, stopped and failed, and the state of each destination.

    \b
    mailonce stats --span week
    mailonce stats --watch
    """
    with open_service() as service, suppress(KeyboardInterrupt):
        readings = _read(service, Span(span), watch)
        if as_json:
            for figures in readings:
                click.echo(figures.model_dump_json(indent=None if watch else 2))
            return
        from rich.live import Live

        with Live(console=open_console(), auto_refresh=False) as live:
            for figures in readings:
                live.update(stats_view(figures), refresh=True)


def _read(service: Service, span: Span, watch: bool) -> Iterator[Stats]:
    yield read_stats(service, span)
    while watch:
        time.sleep(REFRESH_S)
        yield read_stats(service, span)


def stats_view(figures: Stats) -> RenderableType:
    from rich.console import Group

    totals, recent = figures.totals, figures.over_time
    ever = dict(totals) | {"stopped": totals.duplicates + totals.suppressed}
    rows = []
    for name in SERIES:
        bars = sparkline([getattr(point, name) for point in recent.points])
        rows.append((name, f"{ever[name]:,}", f"{getattr(recent.total, name):,}", bars))
    heads = ("", "EVER", f"LAST {recent.span.upper()}", "OVER TIME")
    return Group(make_table(heads, rows, numbers=(1, 2)), "", *_sentences(totals), "", _destinations(figures))


def _sentences(totals: Totals) -> Iterator[str]:
    rate = f" ({totals.hit_rate:.1%} stopped)" if totals.hit_rate is not None else ""
    yield f"duplicates {totals.duplicates:,}, suppressed {totals.suppressed:,}{rate}"
    oldest_s = totals.oldest_waiting_s
    oldest = "" if oldest_s is None else f", the oldest for {shown_duration(oldest_s)}"
    yield f"waiting {totals.waiting:,}{oldest}; dead letters {totals.dead:,}"
    statuses = ", ".join(f"{name} {count:,}" for name, count in totals.statuses.items())
    yield f"answered: {statuses or 'nothing yet'}"
    if totals.workers_alive is not None:
        yield f"workers alive: {totals.workers_alive}"
    if not totals.is_whole:
        yield "Redis does not answer: the figures of other machines are as old as the outage."


def _destinations(figures: Stats) -> Table:
    heads = ("DESTINATION", "STATUS", "WAITING", "DEAD LETTERS", "DELIVERED", "FAILED", "P50", "P95")
    rows = []
    for name, destination in figures.destinations.items():
        stored, recent = destination.deliveries, figures.over_time.destinations.get(name)
        counts = [stored[DeliveryStatus.WAITING], stored[DeliveryStatus.DEAD]]
        counts += [recent.delivered, recent.failed] if recent else [0, 0]
        latencies = [recent.whole_p50_ms, recent.whole_p95_ms] if recent else [None, None]
        shown = [f"{count:,}" for count in counts] + ["-" if ms is None else f"{ms:.0f} ms" for ms in latencies]
        rows.append((name, destination.status, *shown))
    return make_table(heads, rows, numbers=range(2, len(heads)))


def sparkline(values: Sequence[float]) -> str:
    """At most SPARK_WIDTH bars, each the sum of its share of the values. Any share above zero is visible."""
    size = -(-len(values) // SPARK_WIDTH) or 1
    padded = [0.0] * (-len(values) % size) + list(values)  # in front, so that the last bar ends now
    sums = [sum(padded[start : start + size]) for start in range(0, len(padded), size)]
    most = max(sums, default=0) or 1
    return "".join(BARS[math.ceil(total / most * (len(BARS) - 1))] for total in sums)
