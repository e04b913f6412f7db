"""Keeps the leases of deliveries under way alive, so that a slow destination never makes two owners."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from deduplication.claims import Claim
from deduplication.errors import DeduplicationError
from deduplication.stores.base import Store

log = logging.getLogger(__name__)


class LeaseKeeper:
    """One thread a process, started with the first claim held; it renews every third of the lease."""

    def __init__(self, store: Store, lease_ms: int) -> None:
        self._store = store
        self.lease_ms = lease_ms
        self._every_s = lease_ms / 3000
        self._held: dict[str, Claim] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    @contextmanager
    def holding(self, claim: Claim) -> Iterator[None]:
        with self._lock:
            self._held[claim.owner] = claim
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="lease-keeper", daemon=True)
                self._thread.start()
        try:
            yield
        finally:
            with self._lock:
                del self._held[claim.owner]

    def close(self) -> None:
        self._stop.set()
        if self._thread:
            self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self._every_s):
            with self._lock:
                held = list(self._held.values())
            for claim in held:
                self._renew(claim)

    def _renew(self, claim: Claim) -> None:
        try:
            if not self._store.renew(claim):
                log.warning("lease of %s is no longer ours", claim.item)
        except DeduplicationError as error:
            log.warning("lease of %s could not be renewed: %s", claim.item, error)
