"""mailonce stats: what the service has done, once or refreshed every two seconds."""

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress

import click

from deduplication.journal.entry import DeliveryStatus
from orchestrator.operations.stats import Span, Stats, read_stats
from orchestrator.operations.times import shown_duration
from routes.commands.service import open_service, table

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
    """Show how many emails were received, delivered, stopped and failed, and the state of each destination."""
    with open_service() as service, suppress(KeyboardInterrupt):
        while True:
            figures = read_stats(service, Span(span))
            if watch and not as_json:
                click.clear()
            text = figures.model_dump_json(indent=None if watch else 2) if as_json else "\n".join(_lines(figures))
            click.echo(text)
            if not watch:
                return
            time.sleep(REFRESH_S)


def _lines(figures: Stats) -> Iterator[str]:
    totals, recent = figures.totals, figures.over_time
    ever = dict(totals) | {"stopped": totals.duplicates + totals.suppressed}
    series = []
    for name in SERIES:
        bars = sparkline([getattr(point, name) for point in recent.points])
        series.append((name, f"{ever[name]:,}", f"{getattr(recent.total, name):,}", bars))
    yield from table(("", "EVER", f"LAST {recent.span.upper()}", "OVER TIME"), series, (1, 2))
    rate = f" ({totals.hit_rate:.1%} stopped)" if totals.hit_rate is not None else ""
    oldest_s = totals.oldest_waiting_s
    oldest = "" if oldest_s is None else f", the oldest for {shown_duration(oldest_s)}"
    statuses = ", ".join(f"{name} {count:,}" for name, count in totals.statuses.items())
    yield f"\nduplicates {totals.duplicates:,}, suppressed {totals.suppressed:,}{rate}"
    yield f"waiting {totals.waiting:,}{oldest}; dead letters {totals.dead:,}"
    yield f"answered: {statuses or 'nothing yet'}"
    if totals.workers_alive is not None:
        yield f"workers alive: {totals.workers_alive}"
    if not totals.is_whole:
        yield "Redis does not answer: the figures of other machines are as old as the outage."
    yield ""
    heads = ("DESTINATION", "STATUS", "WAITING", "DEAD LETTERS", "DELIVERED", "FAILED", "P50", "P95")
    rows = []
    for name, destination in figures.destinations.items():
        stored, sent = destination.deliveries, recent.destinations.get(name)
        counts = [stored[DeliveryStatus.WAITING], stored[DeliveryStatus.DEAD]]
        counts += [sent.delivered, sent.failed] if sent else [0, 0]
        latencies = [sent.whole_p50_ms, sent.whole_p95_ms] if sent else [None, None]
        shown = [f"{count:,}" for count in counts] + ["-" if ms is None else f"{ms:.0f} ms" for ms in latencies]
        rows.append((name, destination.status, *shown))
    yield from table(heads, rows, range(2, len(heads)))


def sparkline(values: Sequence[float]) -> str:
    """At most SPARK_WIDTH bars, each the sum of its share of the values. Any share above zero is visible."""
    size = -(-len(values) // SPARK_WIDTH) or 1
    padded = [0.0] * (-len(values) % size) + list(values)  # in front, so that the last bar ends now
    sums = [sum(padded[start : start + size]) for start in range(0, len(padded), size)]
    most = max(sums, default=0) or 1
    return "".join(BARS[math.ceil(total / most * (len(BARS) - 1))] for total in sums)
