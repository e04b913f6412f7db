"""How much room there is for what is kept to be sent: first on Redis, then on this machine's disk, then none."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

ORDINARY_BYTES = 64 << 10  # a stage is left behind once a payload of this size has no room any more
ENTERED_AGAIN_BELOW = 0.9  # and is back once no more than this of it is used: not with each payload that goes
ENTERED_AGAIN_BYTES = 1 << 20  # or is left until what bounds it from outside
LOOK_EVERY_S = 1.0


class Stage(StrEnum):
    """Where the next payload goes. Full: what cannot be delivered at once is left to its provider."""

    REDIS = "redis"
    DISK = "disk"
    FULL = "full"


@dataclass(frozen=True)
class Storage:
    """What payloads take and may take. None: there is no Redis, no disk, or no limit. ``disk_bytes`` counts what is to
    be sent; what is only kept to be released (``suppressed_bytes``) makes room for it.

    ``redis_left_bytes``: until Redis would be too near to all it may use, whatever for; ``disk_left_bytes``: until the
    floor of free space.
    """

    redis_bytes: int | None = None
    redis_limit_bytes: int | None = None
    redis_left_bytes: int | None = None
    disk_bytes: int | None = None
    suppressed_bytes: int | None = None
    disk_limit_bytes: int | None = None
    disk_left_bytes: int | None = None


def stage_of(storage: Storage, before: Stage | None = None) -> Stage:
    """``before``: what it was when it was looked at last."""
    stages = list(Stage)
    passed = 0 if before is None else stages.index(before)
    if _has_room(storage.redis_bytes, storage.redis_limit_bytes, storage.redis_left_bytes, is_back=passed > 0):
        return Stage.REDIS
    if _has_room(storage.disk_bytes, storage.disk_limit_bytes, storage.disk_left_bytes, is_back=passed > 1):
        return Stage.DISK
    return Stage.FULL


def _has_room(used_bytes: int | None, limit_bytes: int | None, left_bytes: int | None, *, is_back: bool) -> bool:
    if used_bytes is None:
        return False
    if left_bytes is not None and left_bytes < (ENTERED_AGAIN_BYTES if is_back else ORDINARY_BYTES):
        return False
    if limit_bytes is None:
        return True
    has_room = used_bytes + ORDINARY_BYTES <= limit_bytes  # of a small limit, a tenth is less than an ordinary payload
    return has_room and (not is_back or used_bytes < limit_bytes * ENTERED_AGAIN_BELOW)


class DiskRoom:
    """``limit_bytes`` for all payloads here; whatever they are, ``free_bytes`` of the disk stay free.

    How much is free is looked at once a second at most.
    """

    def __init__(
        self,
        folder: Path,
        limit_bytes: int,
        free_bytes: int,
        free_on_disk: Callable[[Path], int] = lambda folder: shutil.disk_usage(folder).free,
    ) -> None:
        self._folder = folder
        self.limit_bytes = limit_bytes
        self._floor_bytes = free_bytes
        self._free_on_disk = free_on_disk
        self._left_bytes, self._look_at = 0, 0.0

    def left_bytes(self) -> int:
        """Until the floor is reached."""
        now = time.monotonic()
        if now >= self._look_at:
            self._look_at = now + LOOK_EVERY_S
            self._left_bytes = self._free_on_disk(self._folder) - self._floor_bytes
        return self._left_bytes

    def has_room_for(self, payload_bytes: int, used_bytes: int, reusable_bytes: int) -> bool:
        """``reusable_bytes``: what the file has taken from the disk already, and does not use."""
        within_limit = used_bytes + payload_bytes <= self.limit_bytes
        return within_limit and payload_bytes <= self.left_bytes() + reusable_bytes
