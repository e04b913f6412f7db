"""Limits the memory in Redis for payloads (rule 19 of docs/architecture.md) and for the stream (rule 11)."""

import logging
from collections.abc import Sequence
from typing import Any

from deduplication.errors import NoRoom, StoreMisconfigured, StoreUnavailable
from deduplication.journal.registry import Commit, Registry

log = logging.getLogger(__name__)

DROP_BATCH = 100
DEFAULT_PAYLOAD_BYTES = 1 << 30


def check_room(registry: Registry, destinations: Sequence[str], size: int) -> None:
    """Raises NoRoom if a payload of ``size`` bytes cannot be stored. Payloads of dead letters are removed first. If
    Redis does not answer, publishing the payload fails anyway.

    One destination may store at most four times the remaining bytes, so that it cannot use up the room of all others.
    An eighth of Redis' memory is kept free for names.
    """
    try:
        while not _has_room(registry, destinations, size):
            if not drop_dead(registry):
                raise NoRoom("payloads take all of their room in Redis (PAYLOAD_MB)")
    except NoRoom:
        raise
    except StoreUnavailable as error:
        log.info("it is not known how much room is left in Redis: %s", error)


def _has_room(registry: Registry, destinations: Sequence[str], size: int) -> bool:
    sizes = registry.ask(lambda client, prefix: client.hgetall(f"{prefix}room"))
    used = {destination.decode(): int(size_bytes) for destination, size_bytes in sizes.items()}
    memory = {"used_memory": 0, "maxmemory": 0} | read_info(registry, "memory")
    maxmemory = memory["maxmemory"]
    free = most_payload_bytes(registry, maxmemory) - sum(used.values()) - size
    is_full = bool(maxmemory) and memory["used_memory"] + size > maxmemory - maxmemory // 8
    return not is_full and all(used.get(name, 0) + size <= max(0, 4 * free) for name in destinations)


def most_payload_bytes(registry: Registry, maxmemory: int) -> int:
    """The limit for all payloads: PAYLOAD_MB, or a quarter of Redis' maxmemory."""
    return registry.options.payload_bytes or (maxmemory // 4 if maxmemory else DEFAULT_PAYLOAD_BYTES)


def read_info(registry: Registry, section: str) -> dict[str, Any]:
    """What INFO reports; on a Cluster, what one of its nodes does. Empty if INFO is forbidden."""
    try:
        info: dict[str, Any] = registry.ask(lambda client, _: client.info(section))
    except StoreMisconfigured:
        return {}
    first = next(iter(info.values()), None)
    return first if isinstance(first, dict) else info


def drop_dead(registry: Registry, before: int | str = "+inf") -> int:
    """Removes the oldest payloads of dead letters, or those from before a time, and returns how many."""
    dead = registry.ask(lambda client, prefix: client.zrangebyscore(f"{prefix}dead", "-inf", before, 0, DROP_BATCH))
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
