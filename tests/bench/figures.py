"""Figures against anchors: medians of rounds in which each of them had its turn, and what must be reached."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial

Step = Callable[[], object]
Rounds = Mapping[str, Sequence[float]]  # what was measured in each round, by name

ROUNDS = 5
HEADINGS = ("what", "median", "spread", "must", "aim", "reached", "measured")


@dataclass(frozen=True)
class Figure:
    """A median, and the lowest and highest of its rounds."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, *rounds: float) -> Figure:
        return cls(statistics.median(rounds), min(rounds), max(rounds))


@dataclass(frozen=True)
class Row:
    """``told``: the absolute figures behind a ratio. ``must`` and ``aim`` are None if nothing is promised."""

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
        spread = f"{number(figure.low)} to {number(figure.high)}" if figure.low != figure.high else ""
        wanted = ("" if each is None else number(each) for each in (self.must, self.aim))
        unit = "" if self.unit == "x" else f" {self.unit}"
        return (self.what, f"{number(figure.median)}{unit}", spread, *wanted, self.verdict, self.told)

    @property
    def document(self) -> Mapping[str, object]:
        shown = ("what", "unit", "must", "aim", "told")
        return asdict(self.figure) | {name: getattr(self, name) for name in shown} | {"verdict": self.verdict}


def number(value: float) -> str:
    if value >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.2f}" if value < 10 else f"{value:.1f}"


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """A table of text; the first row is its head."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [" | ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    return "\n".join([lines[0], "-+-".join("-" * width for width in widths), *lines[1:]])


def alternate(turns: Mapping[str, Callable[[], float]]) -> Rounds:
    """What each turn measures, round by round. Each round begins with another turn, so that none is always first."""
    measured: dict[str, list[float]] = {name: [] for name in turns}
    for first in range(ROUNDS):
        for name in itertools.islice(itertools.cycle(turns), first, first + len(turns)):
            measured[name].append(turns[name]())
    return measured


def spent(steps: Mapping[str, Step], count: int, clock: Callable[[], float]) -> Rounds:
    """What the clock measures of each step. The first step of each is not counted: it connects and loads scripts."""

    def turn(step: Step) -> float:
        began = clock()
        for _ in range(count):
            step()
        return (clock() - began) / count

    for step in steps.values():
        step()
    return alternate({name: partial(turn, step) for name, step in steps.items()})


def ratio_row(
    what: str, measured: Rounds, names: tuple[str, str], unit: str, wanted: tuple[float, float] | None = None
) -> Row:
    """One against another, its anchor, within each round: a machine that is busy for a while is so for both."""
    ours, anchor = (measured[name] for name in names)
    figure = Figure.of(*(one / other for one, other in zip(ours, anchor, strict=True)))
    text = f"{number(statistics.median(ours))}{unit} against {number(statistics.median(anchor))}{unit}"
    must, aim = wanted or (None, None)
    return Row(what, figure, "x", text, must, aim, is_less_better=unit != "/s")
