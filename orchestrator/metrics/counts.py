"""Counts by minute and by hour in the journal: its own, and those that other machines share through Redis."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence

from deduplication.errors import StoreUnavailable
from deduplication.journal.sqlite import Journal, Step
from orchestrator.metrics.meter import (
    DELIVERIES,
    DELIVERY_S,
    EMAILS,
    REDIS_ERRORS,
    REDIS_S,
    REDIS_STEPS,
    STOPPED,
    Meter,
)
from orchestrator.metrics.shared import SharedFigures

MINUTE_S, HOUR_S, DAY_S = 60, 3600, 86_400
SINCE_START = 0
KEPT_S = {MINUTE_S: 26 * HOUR_S, HOUR_S: 32 * DAY_S}  # how long counts of each step are kept
OVER_TIME = frozenset((EMAILS, STOPPED, DELIVERIES, DELIVERY_S, REDIS_STEPS, REDIS_ERRORS, REDIS_S))
WRITTEN_AT_ONCE = 1_000  # rows of other machines; about 3 ms of the journal's lock
_SHARED = "counts_shared"

Row = tuple[int, int, str, str, float]  # as the table has it


class Counts:
    def __init__(self, journal: Journal, meter: Meter) -> None:
        self._journal = journal
        self._meter = meter
        self._read: dict[str, bytes] = {}  # the mark of each other machine when its counts were read last

    def flush(self) -> None:
        """Adds what this process has counted to the journal. If that fails, the next call does it."""
        taken = self._meter.take()
        if not taken:
            return
        try:
            with self._journal.step() as step:
                add_counts(step, taken)
        except StoreUnavailable:
            self._meter.add(taken)
            raise

    def purge(self) -> None:
        """Ends the counts that are kept no longer; those in Redis expire."""
        with self._journal.step() as step:
            for step_s, kept_s in KEPT_S.items():
                step.query(
                    "DELETE FROM counts WHERE step_s = ? AND start_s < ?", (step_s, step.now_ms // 1000 - kept_s)
                )

    def share(self, shared: SharedFigures) -> None:
        """Publishes the counts of this machine and reads those of the others. Each machine writes under its own name
        and absolute values, so doing it twice, or in two processes, changes nothing."""
        self._publish(shared)
        for machine, mark in shared.counted_machines().items():
            if machine != self._journal.machine and self._read.get(machine) != mark:
                self._copy(shared, machine)
                self._read[machine] = mark

    def _publish(self, shared: SharedFigures) -> None:
        """Everything since the minute that was published last; in a new era, everything that is kept."""
        with self._journal.reading() as step:
            era, now_s = step.meta("era"), step.now_ms // 1000
            before, _, last = step.meta(_SHARED).partition(" ")
            since_s = int(last) if before == era and last else 0
            counts: dict[tuple[int, int], dict[str, float]] = {}
            for step_s in (SINCE_START, *KEPT_S):
                for start_s, key, value in step.query(
                    "SELECT start_s, key, value FROM counts WHERE step_s = ? AND start_s >= ? AND machine = ?",
                    (step_s, _start(since_s, step_s), step.machine),
                ):
                    counts.setdefault((step_s, start_s), {})[key] = value
        shared.put_counts(
            {
                f"{step_s}:{start_s}": (zlib.compress(json.dumps(each).encode()), KEPT_S.get(step_s, KEPT_S[HOUR_S]))
                for (step_s, start_s), each in counts.items()
            }
        )
        with self._journal.step() as step:
            step.set_meta(_SHARED, f"{era} {_start(now_s, MINUTE_S)}")

    def _copy(self, shared: SharedFigures, machine: str) -> None:
        """Everything since the last that is known of that machine: it may have been without Redis for a while."""
        with self._journal.reading() as step:
            now_s = step.now_ms // 1000
            query = "SELECT max(start_s) FROM counts WHERE step_s = ? AND machine = ?"
            known = {step_s: step.query(query, (step_s, machine))[0][0] or 0 for step_s in KEPT_S}
        starts = [(SINCE_START, 0)]
        for step_s, kept_s in KEPT_S.items():
            first = max(known[step_s], _start(now_s - kept_s, step_s))
            starts += [(step_s, start_s) for start_s in range(first, now_s + step_s, step_s)]
        found = shared.counts_of(machine, [f"{step_s}:{start_s}" for step_s, start_s in starts])
        rows: list[Row] = [
            (step_s, start_s, machine, key, value)
            for (step_s, start_s), packed in zip(starts, found, strict=True)
            if packed
            for key, value in json.loads(zlib.decompress(packed)).items()
        ]
        for start in range(0, len(rows), WRITTEN_AT_ONCE):
            with self._journal.step() as step:
                for row in rows[start : start + WRITTEN_AT_ONCE]:
                    step.query("INSERT OR REPLACE INTO counts VALUES (?, ?, ?, ?, ?)", row)


def add_counts(step: Step, counts: Mapping[str, float]) -> None:
    """To the present minute and hour, and to the sums since the start."""
    now_s = step.now_ms // 1000
    for key, value in counts.items():
        steps = (SINCE_START, *KEPT_S) if key.partition("|")[0] in OVER_TIME else (SINCE_START,)
        for step_s in steps:
            step.query(
                "INSERT INTO counts VALUES (?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET value = value + excluded.value",
                (step_s, _start(now_s, step_s), step.machine, key, value),
            )


def read_sums(step: Step, machine: str | None = None) -> dict[str, float]:
    """Sums since the start, of one machine or of the fleet."""
    which, values = ("AND machine = ?", (machine,)) if machine else ("", ())
    rows = step.query(f"SELECT key, sum(value) FROM counts WHERE step_s = 0 {which} GROUP BY key", values)  # noqa: S608
    return dict(rows)


def read_points(step: Step, step_s: int, starts: Sequence[int], width_s: int) -> list[dict[str, float]]:
    """The fleet's counts in the ``width_s`` from each of these evenly spaced seconds on."""
    points: list[dict[str, float]] = [{} for _ in starts]
    rows = step.query(
        "SELECT (start_s - ?) / ?, key, sum(value) FROM counts WHERE step_s = ? AND start_s >= ? AND start_s < ?"
        " GROUP BY 1, 2",
        (starts[0], width_s, step_s, starts[0], starts[0] + len(starts) * width_s),
    )
    for place, key, value in rows:
        points[place][key] = value
    return points


def _start(moment_s: int, step_s: int) -> int:
    return moment_s // step_s * step_s if step_s else 0
