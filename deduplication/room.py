"""Room in Redis: for payloads (rule 19 of docs/architecture.md), and for the stream (rule 11)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from deduplication.errors import NoRoom, StoreMisconfigured
from deduplication.journal.registry import Commit, Registry

DROPPED_AT_ONCE = 100
DEFAULT_ROOM = 1 << 30


def check_room(registry: Registry, destinations: Iterable[str], size: int) -> None:
    """Raises NoRoom if a payload of that size cannot be stored. Payloads of dead letters are removed first.

    One destination may store at most four times what is left, so that it cannot take the room of all others. An eighth
    of Redis' memory is kept free for names.
    """
    wanted = list(destinations)
    for is_last in (False, True):
        found = registry.ask(lambda client, prefix: client.hgetall(f"{prefix}room"))
        used = {name.decode(): int(size_bytes) for name, size_bytes in found.items()}
        memory = read_memory(registry)
        limit = memory["maxmemory"]
        most = most_payload_bytes(registry, limit)
        free = most - sum(used.values()) - size
        is_full = bool(limit) and memory["used_memory"] + size > limit - limit // 8
        if not is_full and all(used.get(name, 0) + size <= max(0, 4 * free) for name in wanted):
            return
        if is_last or not drop_dead(registry):
            raise NoRoom(f"payloads take {sum(used.values())} of {most} bytes in Redis (PAYLOAD_MB)")


def most_payload_bytes(registry: Registry, maxmemory: int) -> int:
    """PAYLOAD_MB, or a quarter of what Redis may use."""
    return registry.payload_bytes or (maxmemory // 4 if maxmemory else DEFAULT_ROOM)


def read_memory(registry: Registry) -> dict[str, Any]:
    """``used_memory``, ``maxmemory`` and ``maxmemory_policy``; 0 and empty if INFO is forbidden."""
    try:
        found = registry.ask(lambda client, _: client.info("memory"))
    except StoreMisconfigured:
        found = {}
    found = next(iter(found.values()), {}) if "used_memory" not in found and found else found  # of a Cluster
    return {"used_memory": 0, "maxmemory": 0, "maxmemory_policy": "", **found}


def drop_dead(registry: Registry, before_ms: int | None = None) -> int:
    """Removes the oldest payloads of dead letters, or those from before that time, and returns how many."""
    most, limits = "+inf" if before_ms is None else before_ms, {"start": 0, "num": DROPPED_AT_ONCE}
    found = registry.ask(lambda client, prefix: client.zrangebyscore(f"{prefix}dead", "-inf", most, **limits))
    commit = Commit()
    for webhook_id in found:
        commit.write("DROP", "dead", webhook_id)
    registry.run(commit)
    return len(found)


def trim_stream(registry: Registry, oldest_ms: int, most_bytes: int) -> None:
    """Removes events that are too old, and the oldest where the stream takes more than it may."""

    def trim(client: Any, prefix: str) -> None:
        stream = f"{prefix}events"
        last = client.xrevrange(stream, count=1)
        if last and int(last[0][0].partition(b"-")[0]) < oldest_ms:  # it stays: machines that have read it have no gap
            client.xtrim(stream, maxlen=1)
        else:
            client.xtrim(stream, minid=oldest_ms, approximate=True)
        used = client.memory_usage(stream) or 0
        if used > most_bytes:
            client.xtrim(stream, maxlen=client.xlen(stream) * most_bytes // used, approximate=True)

    registry.ask(trim)
