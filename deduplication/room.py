"""Limits the memory in Redis for payloads (rule 19 of docs/architecture.md) and for the stream (rule 11)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from deduplication.errors import NoRoom
from deduplication.journal.registry import Commit, Registry

DROP_BATCH = 100
DEFAULT_PAYLOAD_BYTES = 1 << 30
# A script, because on a Cluster the node with our keys answers it. INFO may be forbidden.
_ROOM = """
local function info(section)
  local text = redis.pcall('INFO', section)
  return type(text) == 'string' and text or ''
end
return {info('memory') .. info('stats'), redis.call('HGETALL', KEYS[1])}
"""


def check_room(registry: Registry, destinations: Collection[str], size: int) -> None:
    """Raises NoRoom if a payload of ``size`` bytes cannot be stored. Payloads of dead letters are removed first.

    One destination may store at most four times the remaining bytes, so that it cannot use up the room of all others.
    An eighth of Redis' memory is kept free for names.
    """
    for is_last in (False, True):
        info, used, limit = read_room(registry)
        maxmemory = int(info.get("maxmemory", 0))
        free = limit - sum(used.values()) - size
        is_full = bool(maxmemory) and int(info["used_memory"]) + size > maxmemory - maxmemory // 8
        if not is_full and all(used.get(name, 0) + size <= max(0, 4 * free) for name in destinations):
            return
        if is_last or not drop_dead(registry):
            raise NoRoom(f"payloads take {sum(used.values())} of {limit} bytes in Redis (PAYLOAD_MB)")


def read_room(registry: Registry) -> tuple[dict[str, str], dict[str, int], int]:
    """What Redis reports about its memory, the bytes of payloads by destination ("" for dead letters), and the limit of
    their sum: PAYLOAD_MB, or a quarter of Redis' maxmemory."""
    text, room = registry.ask(lambda client, prefix: client.eval(_ROOM, 1, f"{prefix}room"))
    info = dict(line.split(":", 1) for line in text.decode().splitlines() if ":" in line)
    used = {name.decode(): int(size) for name, size in zip(room[::2], room[1::2], strict=True)}
    return info, used, registry.payload_bytes or int(info.get("maxmemory", 0)) // 4 or DEFAULT_PAYLOAD_BYTES


def drop_dead(registry: Registry, before: int | str = "+inf") -> int:
    """Removes the oldest payloads of dead letters, or those from before a time, and returns how many."""
    limits = {"min": "-inf", "max": before, "start": 0, "num": DROP_BATCH}
    dead = registry.ask(lambda client, prefix: client.zrangebyscore(f"{prefix}dead", **limits))
    commit = Commit()
    for webhook_id in dead:
        commit.write("DROP", "dead", webhook_id)
    registry.run(commit)
    return len(dead)


def trim_stream(registry: Registry, oldest_ms: int, most_bytes: int) -> None:
    """Removes events from before ``oldest_ms``, and the oldest events while the stream exceeds ``most_bytes``."""

    def trim(client: Any, prefix: str) -> None:
        stream = f"{prefix}events"
        for event_id, _ in client.xrevrange(stream, count=1):  # kept, so that machines that have read it see no gap
            client.xtrim(stream, minid=min(oldest_ms, int(event_id.partition(b"-")[0])), approximate=True)
        used = client.memory_usage(stream) or 0
        if used > most_bytes:
            client.xtrim(stream, maxlen=client.xlen(stream) * most_bytes // used, approximate=True)

    registry.ask(trim)
