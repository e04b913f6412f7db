"""What was counted: on this machine as it is now, on the others as they told it last; and who sees to that."""

from __future__ import annotations

import logging
import secrets
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from deduplication.errors import DeduplicationError
from deduplication.journal.redis_figures import News, RedisFigures
from deduplication.one_process import one_process
from orchestrator.metrics.history import History, add, growth, over_time, read_counts, shown_counts
from orchestrator.metrics.meter import Meter
from orchestrator.metrics.sums import Sums
from orchestrator.metrics.tally import BEAT, Tally, read_slots, sum_slots

log = logging.getLogger(__name__)

T = TypeVar("T")

BEAT_EVERY_S = 5.0
ALIVE_FOR_S = 20  # one that has not said so for this long is dead, or as good as that
DROP_EVERY_S = 600.0
WORKER = "worker"


@dataclass(frozen=True)
class Seen:
    """``is_whole``: the other machines are in it; otherwise Redis is away, and it is what this one knows."""

    sums: Sums
    is_whole: bool


@dataclass(frozen=True)
class Counted:
    """``shared`` None: there is no other machine. ``is_reachable``: whether Redis is worth asking now.

    ``is_filed``: the tally is one of the files in the folder; otherwise it is this process's alone.
    """

    folder: Path
    tally: Tally
    history: History
    shared: RedisFigures | None = None
    is_reachable: Callable[[], bool] = lambda: True
    is_filed: bool = False

    def here(self) -> Sums:
        sums = sum_slots(self.folder)
        return Sums(sums if self.is_filed else add(sums, self.tally.read()))

    def fleet(self) -> Seen:
        """Of all machines that told something within a month."""
        told = self._ask_others(RedisFigures.totals)
        sums = Sums(add(self.here().counts, *map(read_counts, (told or {}).values())))
        return Seen(sums, is_whole=self.shared is None or told is not None)

    def over_time(self, step_s: int, starts: Sequence[int]) -> tuple[dict[int, Sums], bool]:
        """The buckets of that length that begin at these seconds, and whether the other machines are in them."""
        buckets, counted = self.history.read(step_s, starts)
        now_start = int(time.time() // step_s) * step_s
        if now_start in starts:
            # Read after what is in the buckets: numbers that somebody has recorded meanwhile are not there, but here.
            buckets[now_start] = add(buckets.get(now_start, {}), growth(self.here().counts, counted))
        told = self._ask_others(lambda shared: shared.buckets(step_s, starts))
        for start, text in told or ():
            buckets[start] = add(buckets.get(start, {}), read_counts(text))
        return {start: Sums(counts) for start, counts in buckets.items()}, self.shared is None or told is not None

    def workers_alive(self) -> int:
        """Of the fleet; while Redis is away, of this machine."""
        return self.workers_here() + (self._ask_others(RedisFigures.workers) or 0)

    def workers_here(self) -> int:
        now_s, slots = time.time(), read_slots(self.folder)
        beats = [numbers.get(BEAT, 0) for name, numbers in slots.items() if name.startswith(WORKER)]
        return sum(abs(now_s - beat) < ALIVE_FOR_S for beat in beats)

    def _ask_others(self, ask: Callable[[RedisFigures], T]) -> T | None:
        """What the other machines told; None: there are none, or Redis is away."""
        if self.shared is None or not self.is_reachable():
            return None
        try:
            return ask(self.shared)
        except DeduplicationError as error:
            log.info("figures of the other machines: %s", error)
            return None


class Recorder:
    """A thread of every process: says that it lives, and of all on the machine one writes down what was counted.

    Behind the requests: what it takes, or waits for, nobody else does.
    """

    def __init__(self, counted: Counted, meter: Meter, side: Callable[[], str] | None = None) -> None:
        """``side``: on which this machine is, where there are two."""
        self._counted = counted
        self._meter = meter
        self._side = side
        self._side_since = time.monotonic()
        self._dropped_at = float("-inf")
        self._is_told = True
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="figures", daemon=True)

    def start(self) -> None:
        self._counted.tally.put(BEAT, time.time())
        self._thread.start()

    def close(self) -> None:
        if self._stop.is_set():
            return
        self._stop.set()
        self._thread.join()
        self._counted.tally.put(BEAT, 0)
        self._try_to(self.record)

    def beat(self) -> None:
        self._counted.tally.put(BEAT, time.time())
        if self._side:
            now = time.monotonic()
            self._meter.count_side(self._side(), now - self._side_since)
            self._side_since = now
        self._try_to(self.record)

    def record(self) -> None:
        with one_process(self._counted.folder / "recorder.lock") as is_mine:
            if not is_mine:
                return
            counted, sums = self._counted, self._counted.here().counts
            counted.history.record(sums, time.time())
            if counted.shared:
                self._tell(counted.shared, shown_counts(over_time(sums)))

    def _tell(self, shared: RedisFigures, totals: str) -> None:
        """Under a new mark with each bucket told: a Redis that knows another one has lost some, and is told all."""
        history, workers = self._counted.history, self._counted.workers_here()
        untold, before = history.untold(), history.mark()
        mark = secrets.token_hex(8) if untold or not before else before
        if not shared.tell(News(before, mark, totals, workers, ALIVE_FOR_S, untold)):
            history.mark_untold()
            untold = history.untold()
            shared.tell(News(mark, mark, totals, workers, ALIVE_FOR_S, untold))
        if untold or mark != before:
            history.mark_told(list(untold), mark)
        if time.monotonic() > self._dropped_at + DROP_EVERY_S:
            self._dropped_at = time.monotonic()
            shared.drop_old()

    def _run(self) -> None:
        self.beat()  # here, and not in start: nobody waits for a Redis that hangs
        while not self._stop.wait(BEAT_EVERY_S):
            self.beat()

    def _try_to(self, do: Callable[[], None]) -> None:
        """What could not be written down now is the next time."""
        try:
            do()
        except (DeduplicationError, sqlite3.Error, OSError) as error:
            log.log(logging.WARNING if self._is_told else logging.DEBUG, "figures are written down later: %s", error)
            self._is_told = False
        else:
            self._is_told = True
