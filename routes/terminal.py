"""Tables and figures as a terminal shows them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from orchestrator.operations.words import shown_duration

BARS = " ▁▂▃▄▅▆▇█"
SPARK_WIDTH = 36
SERIES = ("received", "delivered", "stopped", "failed")


def one_line(text: str) -> str:
    """What a sender wrote must not move the cursor of a terminal."""
    return "".join(each if each.isprintable() else " " for each in text)


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> str:
    """``right``: the columns of numbers."""
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    lines = []
    for row in (heads, *rows):
        cells = zip(row, widths, strict=True)
        shown = (
            cell.rjust(width) if place in right else cell.ljust(width) for place, (cell, width) in enumerate(cells)
        )
        lines.append("  ".join(shown).rstrip())
    return "\n".join(lines)


def sparkline(numbers: Sequence[float], width: int = SPARK_WIDTH) -> str:
    """So many bars at the most, each of the sum of its share; whatever is more than nothing can be seen."""
    if not numbers:
        return ""
    each = -(-len(numbers) // width)
    first = len(numbers) % each or each  # the last bar is a whole one, so that now is at the end
    shares = [sum(numbers[:first]), *(sum(numbers[at : at + each]) for at in range(first, len(numbers), each))]
    most = max(shares) or 1
    return "".join(BARS[-(-int(share * (len(BARS) - 1)) // int(most)) if share else 0] for share in shares)


def stats_table(figures: dict[str, Any]) -> str:
    """What shown_figures (orchestrator/operations/figures.py) has, for a person."""
    totals, over_time = figures["totals"], figures["over_time"]
    span, whole = over_time["span"], over_time["total"]
    all_time = totals | {"stopped": totals["duplicates"] + totals["suppressed"]}
    rows = [
        (name, _number(all_time[name]), _number(whole[name]), sparkline([point[name] for point in over_time["points"]]))
        for name in SERIES
    ]
    parts = [table(("", "EVER", f"LAST {span.upper()}", "OVER TIME"), rows, right=(1, 2)), _in_words(totals)]
    if figures["destinations"]:
        parts.append(_destinations(figures))
    if not totals["is_whole"]:
        parts.append("Redis does not answer: the figures of other machines are as old as the outage.")
    return "\n\n".join(parts)


def _in_words(totals: dict[str, Any]) -> str:
    rate = f" ({totals['hit_rate']:.1%} stopped)" if totals["hit_rate"] is not None else ""
    oldest = f", the oldest for {shown_duration(totals['oldest_waiting_s'])}" if totals["waiting"] else ""
    lines = [
        f"duplicates {_number(totals['duplicates'])}, suppressed {_number(totals['suppressed'])}{rate}",
        f"waiting {_number(totals['waiting'])}{oldest}; dead {_number(totals['dead'])}",
        "answered: " + (", ".join(f"{name} {_number(n)}" for name, n in totals["statuses"].items()) or "nothing yet"),
    ]
    if totals["workers_alive"] is not None:
        lines.append(f"workers alive: {totals['workers_alive']}")
    return "\n".join(lines)


def _destinations(figures: dict[str, Any]) -> str:
    times = figures["over_time"]["destinations"]
    heads = ("DESTINATION", "STATE", "WAITING", "DEAD", "DELIVERED", "FAILED", "P50", "P95")
    rows = []
    for name, each in figures["destinations"].items():
        over, stored = times.get(name, {}), each["deliveries"]
        counts = [stored["waiting"], stored["dead"], over.get("delivered", 0), over.get("failed", 0)]
        latencies = [over.get("whole_p50_ms"), over.get("whole_p95_ms")]
        shown = [_number(count) for count in counts] + ["-" if ms is None else f"{ms:.0f} ms" for ms in latencies]
        rows.append((name, _state(each), *shown))
    return table(heads, rows, right=range(2, len(heads)))


def _state(destination: dict[str, Any]) -> str:
    if destination["enabled"] is None:
        return "gone"
    if not destination["enabled"]:
        return "disabled"
    if destination["paused"]:
        return "paused"
    return "well" if destination["breaker"] == "closed" else f"breaker {destination['breaker']}"


def _number(count: int) -> str:
    return f"{count:,}"
