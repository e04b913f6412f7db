"""Room for payloads in Redis (rule 19 of docs/architecture.md)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from deduplication.errors import NoRoom, StoreMisconfigured
from deduplication.journal.registry import Commit, Registry

DROPPED_AT_ONCE = 100
DEFAULT_ROOM = 1 << 30


def check_room(registry: Registry, destinations: Iterable[str], size: int) -> None:
    """Raises NoRoom if a payload of that size cannot be stored. Payloads of dead letters are removed first.

    What one destination stores may be at most four times what is left: it cannot take the room of all others. An eighth
    of Redis' memory is kept free for names.
    """
    wanted = list(destinations)
    for is_last in (False, True):
        found = registry.ask(lambda client, prefix: client.hgetall(f"{prefix}room"))
        used = {name.decode(): int(each) for name, each in found.items()}
        memory = read_memory(registry)
        limit = memory["maxmemory"]
        most = most_payload_bytes(registry, limit)
        free = most - sum(used.values()) - size
        is_full = bool(limit) and memory["used_memory"] + size > limit - limit // 8
        if not is_full and all(used.get(each, 0) + size <= max(0, 4 * free) for each in wanted):
            return
        if is_last or not drop_dead(registry):
            raise NoRoom(f"payloads take {sum(used.values())} of {most} bytes in Redis (PAYLOAD_MB)")


def most_payload_bytes(registry: Registry, maxmemory: int) -> int:
    """PAYLOAD_MB, or a quarter of what Redis may use."""
    return registry.payload_bytes or (maxmemory // 4 if maxmemory else DEFAULT_ROOM)


def read_memory(registry: Registry) -> dict[str, Any]:
    """``used_memory``, ``maxmemory`` and ``maxmemory_policy``. Where INFO is forbidden, they are unknown."""
    try:
        found = registry.ask(lambda client, _: client.info("memory"))
    except StoreMisconfigured:
        found = {}
    found = next(iter(found.values()), {}) if "used_memory" not in found and found else found  # of a Cluster
    return {"used_memory": 0, "maxmemory": 0, "maxmemory_policy": "", **found}


def drop_dead(registry: Registry, before_ms: int | None = None) -> int:
    """Removes the oldest payloads of dead letters, or those from before that time; how many."""
    most, limits = "+inf" if before_ms is None else before_ms, {"start": 0, "num": DROPPED_AT_ONCE}
    found = registry.ask(lambda client, prefix: client.zrangebyscore(f"{prefix}dead", "-inf", most, **limits))
    commit = Commit()
    for each in found:
        commit.write("DROP", "dead", each)
    registry.run(commit)
    return len(found)
