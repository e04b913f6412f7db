"""What one process of a machine does for all of them."""

from __future__ import annotations

from deduplication.locks import PublicationLocks
from deduplication.stores.base import Store
from deduplication.stores.failover import FailoverStore
from deduplication.stores.local import LocalStore

LOCKS_EVERY_S = 300


def drop_expired_locks(store: Store, locks: PublicationLocks) -> int:
    """Every five minutes, whichever process comes first; on Redis locks expire by themselves."""
    local = store.local if isinstance(store, FailoverStore) else store
    if not isinstance(local, LocalStore):
        return 0
    now_ms = local.now_ms()
    if now_ms - int(local.memo("locks_cleaned_ms") or 0) < LOCKS_EVERY_S * 1000:
        return 0
    local.set_memo("locks_cleaned_ms", str(now_ms))
    return locks.cleanup_expired_locks()
