"""Keeps the leases of deliveries under way alive, and settles what was delivered but could not be recorded at once."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from deduplication.claims import Claim
from deduplication.errors import DeduplicationError
from deduplication.stores.base import Store

log = logging.getLogger(__name__)

WAKE_EVERY_S = 1.0
MOST_OWED = 10_000


class LeaseKeeper:
    """One thread a process, started with the first claim held; it renews every third of the lease.

    A commit that fails after a successful delivery is *owed*: if it stayed away, the email would be delivered again
    once its lease is over. It is tried again every second for as long as the process lives.
    """

    def __init__(self, store: Store, lease_ms: int) -> None:
        self._store = store
        self.lease_ms = lease_ms
        self._every_s = lease_ms / 3000
        self._renew_at = 0.0
        self._held: dict[str, Claim] = {}
        self._owed: deque[Claim] = deque(maxlen=MOST_OWED)
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    @contextmanager
    def holding(self, claim: Claim) -> Iterator[None]:
        with self._lock:
            self._held[claim.owner] = claim
            self._start()
        try:
            yield
        finally:
            with self._lock:
                del self._held[claim.owner]

    def commit(self, claim: Claim) -> None:
        """The delivery is done, so a failing commit must not make anybody send it again: it is owed."""
        try:
            if not self._store.commit(claim):
                log.warning("item %s: another owner took over a name during the delivery", claim.item)
        except DeduplicationError as error:
            self.owe_commit(claim)
            log.error("item %s: delivered, but not yet marked as done: %s", claim.item, error)

    def release(self, claim: Claim, retries_left: int | None) -> None:
        try:
            self._store.release(claim, retries_left)
        except DeduplicationError as error:
            log.error("item %s: not released, its lease will end: %s", claim.item, error)

    def owe_commit(self, claim: Claim) -> None:
        with self._lock:
            self._owed.append(claim)
            self._start()

    def close(self) -> None:
        self._stop.set()
        if self._thread:
            self._thread.join()
        self.pay_owed()

    def _start(self) -> None:
        if self._thread is None:
            self._renew_at = time.monotonic() + self._every_s
            self._thread = threading.Thread(target=self._run, name="lease-keeper", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(min(WAKE_EVERY_S, self._every_s)):
            self.pay_owed()
            if time.monotonic() >= self._renew_at:
                self._renew_at = time.monotonic() + self._every_s
                self._renew_all()

    def pay_owed(self) -> None:
        """The owed commits, until one fails again."""
        while self._owed:
            claim = self._owed[0]
            try:
                self._store.commit(claim)
            except DeduplicationError:
                return
            self._owed.popleft()
            log.info("item %s: marked as done at last", claim.item)

    def _renew_all(self) -> None:
        with self._lock:
            alive = [*self._held.values(), *self._owed]
        for claim in alive:
            try:
                if not self._store.renew(claim):
                    log.warning("lease of %s is no longer ours", claim.item)
            except DeduplicationError as error:
                log.warning("lease of %s could not be renewed: %s", claim.item, error)
