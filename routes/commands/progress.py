"""How far a long run has come: one line that is written over on a terminal, now and then a line elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TextIO

from orchestrator.operations.words import shown_duration

ON_A_TERMINAL_EVERY_S = 0.2
ELSEWHERE_EVERY_S = 10.0
CLEAR_LINE = "\r\x1b[K"


@dataclass
class Progress:
    """``start`` and ``total`` in whatever the source is measured by: bytes, or files."""

    out: TextIO
    start: int
    total: int
    began: float
    monotonic: Callable[[], float] = time.monotonic
    _told: float = 0.0

    def __post_init__(self) -> None:
        self._told = self.began

    def tell(self, read: int, count: int) -> None:
        """Not more often than a person reads it."""
        now = self.monotonic()
        is_terminal = self.out.isatty()
        if now - self._told < (ON_A_TERMINAL_EVERY_S if is_terminal else ELSEWHERE_EVERY_S):
            return
        self._told = now
        line = self.line(read, count)
        self.out.write(f"{CLEAR_LINE}{line}" if is_terminal else f"{line}\n")
        self.out.flush()

    def line(self, read: int, count: int) -> str:
        passed_s = max(self.monotonic() - self.began, 0.001)
        said = f"{count:,} emails, {count / passed_s:,.0f}/s"
        done, to_do = read - self.start, self.total - self.start
        if done <= 0 or to_do <= 0:
            return said
        left_s = passed_s * max(0, to_do - done) / done
        return f"{said}, {min(100, 100 * read // self.total)} %, {shown_duration(int(left_s))} left"

    def end(self) -> None:
        """What follows has the line for itself."""
        if self.out.isatty():
            self.out.write(CLEAR_LINE)
            self.out.flush()
