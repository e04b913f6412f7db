"""Where payloads go by now: the log says once when that changes, /health says it at any time."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from deduplication.journal.base import Journal
from deduplication.journal.failover import FailoverJournal
from deduplication.journal.redis import RedisJournal
from deduplication.journal.sqlite import SqliteJournal
from deduplication.journal.storage import Stage, Storage, stage_of

log = logging.getLogger(__name__)

STAGE = "stage of storage"
_MB = 1024 * 1024


@dataclass
class StorageWatch:
    """The stage is one for all processes of the machine, and stands in its journal."""

    journal: Journal
    _seen: Stage | None = None

    def look(self) -> tuple[Stage, Storage]:
        """Says so where the stage has changed since anybody looked last."""
        storage = self.journal.storage()
        local = self.journal.local if isinstance(self.journal, FailoverJournal) else self.journal
        noted = local.memo(STAGE) if isinstance(local, SqliteJournal) else self._seen
        before = Stage(noted) if noted else None
        stage = stage_of(storage, before)
        if stage is before:
            return stage, storage
        is_ours = local.change_memo(STAGE, noted, stage) if isinstance(local, SqliteJournal) else True
        self._seen = stage
        if is_ours and not (before is None and stage is self.first):
            _tell(stage, storage)
        return stage, storage

    @property
    def first(self) -> Stage:
        """Where payloads go as long as all is well."""
        return Stage.REDIS if isinstance(self.journal, FailoverJournal | RedisJournal) else Stage.DISK


def _tell(stage: Stage, storage: Storage) -> None:
    on_redis, on_disk = (storage.redis_bytes or 0) / _MB, (storage.disk_bytes or 0) / _MB
    kept = f"{on_redis:.1f} MB on Redis, {on_disk:.1f} MB on this disk"
    match stage:
        case Stage.REDIS:
            log.info("payloads go to Redis again: %s", kept)
        case Stage.DISK:
            log.warning("payloads go to this machine's disk from now on, and are delivered from here: %s", kept)
        case Stage.FULL:
            log.error(
                "there is no room for payloads: what cannot be delivered at once is left to its provider: %s", kept
            )
