"""Figures against anchors: medians of rounds in which each of them had its turn, and what must be reached."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

Step = Callable[[], object]

ROUNDS = 7
STEPS_A_ROUND = 150


@dataclass(frozen=True)
class Figure:
    """A median, and the lowest and highest of its rounds."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, rounds: Sequence[float]) -> Figure:
        return cls(statistics.median(rounds), min(rounds), max(rounds))

    @classmethod
    def once(cls, measured: float) -> Figure:
        return cls(measured, measured, measured)


@dataclass(frozen=True)
class Row:
    """``told``: the absolute figures behind a ratio. ``must`` and ``aim`` None: nobody promised anything."""

    what: str
    figure: Figure
    unit: str = "x"
    told: str = ""
    must: float | None = None
    aim: float | None = None
    is_less_better: bool = False

    @property
    def verdict(self) -> str:
        if self.must is None:
            return ""
        for wanted, word in ((self.aim, "aim"), (self.must, "must")):
            if wanted is not None and self._reaches(wanted):
                return word
        return "missed"

    def _reaches(self, wanted: float) -> bool:
        return self.figure.median <= wanted if self.is_less_better else self.figure.median >= wanted

    @property
    def cells(self) -> tuple[str, ...]:
        figure = self.figure
        has_spread = figure.low != figure.high
        spread = f"{number(figure.low)} to {number(figure.high)}" if has_spread else ""
        wanted = ("" if each is None else number(each) for each in (self.must, self.aim))
        unit = "" if self.unit == "x" else f" {self.unit}"
        return (self.what, f"{number(figure.median)}{unit}", spread, *wanted, self.verdict, self.told)

    @property
    def document(self) -> Mapping[str, object]:
        return {
            "what": self.what,
            "median": self.figure.median,
            "low": self.figure.low,
            "high": self.figure.high,
            "unit": self.unit,
            "must": self.must,
            "aim": self.aim,
            "verdict": self.verdict,
            "told": self.told,
        }


HEADINGS = ("what", "median", "spread", "must", "aim", "reached", "measured")


def number(value: float) -> str:
    if value >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.2f}" if value < 10 else f"{value:.1f}"


def table(rows: Sequence[Row]) -> str:
    cells = [HEADINGS, *(row.cells for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [" | ".join(map(str.ljust, row, widths)).rstrip() for row in cells]
    return "\n".join([lines[0], "-+-".join("-" * width for width in widths), *lines[1:]])


Rates = Mapping[str, Sequence[float]]


def alternate(turns: Mapping[str, Callable[[], float]], rounds: int = ROUNDS) -> Rates:
    """What each turn tells, round by round. Each round begins with another one: who is first has no advantage."""
    told: dict[str, list[float]] = {name: [] for name in turns}
    names = list(turns)
    for first in range(rounds):
        for name in itertools.islice(itertools.cycle(names), first, first + len(names)):
            told[name].append(turns[name]())
    return told


def rates(steps: Mapping[str, Step], rounds: int = ROUNDS, steps_a_round: int = STEPS_A_ROUND) -> Rates:
    """Steps a second of each. The first step of each is not counted: it connects and loads its scripts."""

    def turn(step: Step) -> float:
        began = time.perf_counter()
        for _ in range(steps_a_round):
            step()
        return steps_a_round / (time.perf_counter() - began)

    for step in steps.values():
        step()
    return alternate({name: lambda step=step: turn(step) for name, step in steps.items()}, rounds)  # type: ignore[misc]


def against(measured: Sequence[float], anchor: Sequence[float]) -> Figure:
    """The ratio within each round: a machine that is busy for a while is so for both."""
    return Figure.of([ours / theirs for ours, theirs in zip(measured, anchor, strict=True)])


def ratio_row(
    what: str, told: Rates, measured: str, anchor: str, must: float | None = None, aim: float | None = None
) -> Row:
    ours, theirs = statistics.median(told[measured]), statistics.median(told[anchor])
    text = f"{number(ours)}/s against {number(theirs)}/s"
    return Row(what, against(told[measured], told[anchor]), "x", text, must, aim)
