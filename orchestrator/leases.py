"""Keeps the leases of deliveries under way alive, and settles later what could not be recorded at once."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from deduplication.errors import DeduplicationError
from deduplication.journal.base import Journal

log = logging.getLogger(__name__)

WAKE_EVERY_S = 1.0
MOST_OWED = 10_000


@dataclass(frozen=True)
class Held:
    """An entry under its owner's claim, or one stored delivery of it that was begun."""

    entry: str
    owner: str
    destination: str | None = None


class LeaseKeeper:
    """One thread a process, started with the first lease held; it renews every third of the lease.

    A settlement that fails is *owed*: if it stayed away, the email would be delivered again once its lease is over. It
    is tried again every second for as long as the process lives.
    """

    def __init__(self, journal: Journal, lease_ms: int) -> None:
        self._journal = journal
        self.lease_ms = lease_ms
        self._every_s = lease_ms / 3000
        self._renew_at = 0.0
        self._held: set[Held] = set()
        self._owed: deque[tuple[Held, Callable[[], object]]] = deque(maxlen=MOST_OWED)
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    @contextmanager
    def holding(self, held: Held) -> Iterator[None]:
        with self._lock:
            self._held.add(held)
            self._start()
        try:
            yield
        finally:
            with self._lock:
                self._held.discard(held)

    def settle(self, held: Held, step: Callable[[], object]) -> None:
        """Takes the step now, or as soon as the journal can."""
        try:
            step()
        except DeduplicationError as error:
            self.owe(held, step, error)

    def owe(self, held: Held, step: Callable[[], object], error: DeduplicationError) -> None:
        """The step failed, and is taken as soon as the journal can."""
        with self._lock:
            self._owed.append((held, step))
            self._start()
        log.error("entry %s: not recorded yet: %s", held.entry, error)

    def close(self) -> None:
        self._stop.set()
        if self._thread:
            self._thread.join()
        self.settle_owed()

    def _start(self) -> None:
        if self._thread is None:
            self._renew_at = time.monotonic() + self._every_s
            self._thread = threading.Thread(target=self._run, name="lease-keeper", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(min(WAKE_EVERY_S, self._every_s)):
            self.settle_owed()
            if time.monotonic() >= self._renew_at:
                self._renew_at = time.monotonic() + self._every_s
                self._renew_all()

    def settle_owed(self) -> None:
        """What is owed, until one fails again."""
        while self._owed:
            held, step = self._owed[0]
            try:
                step()
            except DeduplicationError:
                return
            self._owed.popleft()
            log.info("entry %s: recorded at last", held.entry)

    def _renew_all(self) -> None:
        with self._lock:
            alive = [*self._held, *(held for held, _ in self._owed)]
        for held in alive:
            try:
                if not self._journal.renew(held.entry, held.owner, self.lease_ms, held.destination):
                    log.warning("entry %s: its lease is no longer ours", held.entry)
            except DeduplicationError as error:
                log.warning("entry %s: its lease could not be renewed: %s", held.entry, error)
