"""Delivers what is due: what failed for now, what was replayed or released, and what a lost message left behind."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from deduplication.errors import DeduplicationError
from deduplication.journal.base import Journal
from orchestrator.delivery.sender import Sender

log = logging.getLogger(__name__)

TICK_S = 1.0
TAKEN_AHEAD = 10  # for each thread: enough to be busy until the next tick, and little to give back at the end
HOLD_MS = 60_000  # what was handed out and never begun is due again after this


@dataclass(frozen=True)
class Chore:
    """Something to do every so often."""

    every_s: float
    do: Callable[[], object]


class DueDeliveries:
    """Looks every second, and delivers in threads: for each destination its own, so that none waits for another.

    Every process does, web or worker; the journal hands each delivery to one of them. What waits behind a destination
    that is not well is not even looked at.
    """

    def __init__(
        self,
        journal: Journal,
        sender: Sender,
        destinations: Iterable[str],
        threads_each: int,
        chores: Sequence[Chore] = (),
    ) -> None:
        self._journal = journal
        self._sender = sender
        self._most_each = threads_each * TAKEN_AHEAD
        self._pools = {name: ThreadPoolExecutor(threads_each, f"due-{name}") for name in destinations}
        self._of_no_destination = ThreadPoolExecutor(1, "due")  # no longer in mailonce.toml: settled without a POST
        self._at_work: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._chores = [(chore, time.monotonic() + chore.every_s) for chore in chores]
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="due", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """What is under way is finished; what only waits for a thread is due again later."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        for pool in (*self._pools.values(), self._of_no_destination):
            pool.shutdown(cancel_futures=True)

    def look(self) -> None:
        """One step of the thread."""
        room = {name: self._room_at(name) for name in {*self._pools, *self._journal.destinations()}}
        for entry, destination in self._journal.due({name: left for name, left in room.items() if left > 0}, HOLD_MS):
            with self._lock:
                self._at_work[destination] += 1
            self._pools.get(destination, self._of_no_destination).submit(self._deliver, entry, destination)

    def _room_at(self, destination: str) -> int:
        with self._lock:
            return min(self._most_each - self._at_work[destination], self._sender.room_at(destination))

    def _deliver(self, entry: str, destination: str) -> None:
        try:
            self._sender.deliver_or_leave(entry, destination)
        finally:
            with self._lock:
                self._at_work[destination] -= 1

    def _run(self) -> None:
        while not self._stop.wait(TICK_S):
            try:
                self.look()
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
