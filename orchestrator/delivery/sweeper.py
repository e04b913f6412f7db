"""What has to be done now and then: deliveries that are due, records that belong elsewhere, locks left behind."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from deduplication.errors import DeduplicationError
from orchestrator.delivery.ledger.base import Ledger
from orchestrator.delivery.record import Delivery

log = logging.getLogger(__name__)

TICK_S = 1.0
HANDED_OVER_AT_ONCE = 50  # a second: what has piled up for one destination must not crowd out the others
MOST_PAGES = 40
MOST_AT_WORK = 100
THREADS_EACH = 2
PAUSED_MS = 5000


@dataclass(frozen=True)
class Chore:
    """Something to do every so often."""

    every_s: float
    do: Callable[[], object]


@dataclass(frozen=True)
class Hands:
    """Where due deliveries go. ``take`` gets each in one process only, and again if it is not settled within
    ``hold_ms``, or within ``taken_ms`` once it was taken. ``room`` says how many at a time, ``most_for`` how many for
    a destination.
    """

    take: Callable[[Delivery], None]
    room: Callable[[], int] = lambda: HANDED_OVER_AT_ONCE
    most_for: Callable[[str], int] = lambda _: HANDED_OVER_AT_ONCE
    hold_ms: int = 20_000
    taken_ms: int | None = None


class Sweeper:
    """One thread a process. Without ``hands`` it does the chores, and leaves what is due to others."""

    def __init__(self, ledger: Ledger, hands: Hands | None = None, chores: Sequence[Chore] = ()) -> None:
        self._ledger = ledger
        self._hands = hands
        self._chores = [(chore, time.monotonic() + chore.every_s) for chore in chores]
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sweeper", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def sweep(self) -> None:
        """One step of the thread."""
        self._follow()
        if self._hands is None:
            return
        left = min(self._hands.room(), HANDED_OVER_AT_ONCE)
        left_for = _Asked(self._hands.most_for)
        for _ in range(MOST_PAGES):
            due = self._ledger.due(left, self._hands.hold_ms) if left > 0 else []
            left -= self._hand_over(due, left_for, self._hands)
            if not due:
                return

    def _follow(self) -> None:
        """Records that cannot be moved now must not keep others from being due."""
        try:
            self._ledger.follow()
        except DeduplicationError as error:
            log.error("looking after the delivery records failed: %s", error)

    def _hand_over(self, due: Sequence[Delivery], left_for: dict[str, int], hands: Hands) -> int:
        """How many went; a page of those that may not go now is followed by another."""
        going, paused = _split(due, left_for)
        if paused:
            pause_ms = PAUSED_MS * random.uniform(1, 2)  # noqa: S311 - spreads load, guards nothing
            self._ledger.hold(paused, int(pause_ms))
        for delivery in going:
            hands.take(delivery)
        if going and hands.taken_ms is not None:
            self._ledger.hold(going, hands.taken_ms)
        return len(going)

    def _run(self) -> None:
        while not self._stop.wait(TICK_S):
            try:
                self.sweep()
                self._do_chores()
            except DeduplicationError as error:
                log.error("looking for due deliveries failed: %s", error)
            except Exception:
                log.exception("looking for due deliveries failed")

    def _do_chores(self) -> None:
        now = time.monotonic()
        for place, (chore, at) in enumerate(self._chores):
            if now >= at:
                self._chores[place] = (chore, now + chore.every_s)
                chore.do()


class _Asked(dict[str, int]):
    """How many more may go to a destination in this sweep; asked once, when it is first met."""

    def __init__(self, most_for: Callable[[str], int]) -> None:
        super().__init__()
        self._most_for = most_for

    def __missing__(self, destination: str) -> int:
        self[destination] = self._most_for(destination)
        return self[destination]


def _split(due: Sequence[Delivery], left_for: dict[str, int]) -> tuple[list[Delivery], list[Delivery]]:
    """Those that may go now, and those whose destination is not to be troubled."""
    going: list[Delivery] = []
    paused: list[Delivery] = []
    for delivery in due:
        left_for[delivery.destination] -= 1
        (going if left_for[delivery.destination] >= 0 else paused).append(delivery)
    return going, paused


class InProcess:
    """Delivers what is due in threads of this process: the way without a queue. ``deliver`` sees to its own faults."""

    def __init__(self, deliver: Callable[[str], None], destinations: Iterable[str]) -> None:
        self._deliver = deliver
        self._pools = {name: ThreadPoolExecutor(THREADS_EACH, f"due-{name}") for name in destinations}
        self._of_no_destination = ThreadPoolExecutor(1, "due")  # no longer in mailonce.toml: settled without a POST
        self._busy: set[str] = set()

    def room(self) -> int:
        return MOST_AT_WORK - len(self._busy)

    def take(self, delivery: Delivery) -> None:
        if delivery.id in self._busy:
            return
        self._busy.add(delivery.id)
        self._pools.get(delivery.destination, self._of_no_destination).submit(self._run, delivery.id)

    def close(self) -> None:
        """What is under way is finished; what only waits for a thread is due again later."""
        for pool in (*self._pools.values(), self._of_no_destination):
            pool.shutdown(cancel_futures=True)

    def _run(self, delivery_id: str) -> None:
        try:
            self._deliver(delivery_id)
        finally:
            self._busy.discard(delivery_id)
