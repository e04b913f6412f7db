"""What machines tell each other for their figures, and what Redis says of itself. No decision depends on it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from deduplication.journal.registry import Registry
from deduplication.room import most_payload_bytes

# A script, because on a Cluster the node with our keys answers it. INFO may be forbidden.
_FACTS = """
local function info(section)
  local text = redis.pcall('INFO', section)
  return type(text) == 'string' and text or ''
end
local time = redis.call('TIME')
return {info('memory') .. info('stats'), redis.call('GET', KEYS[1]) or '',
        string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000)), redis.call('HVALS', KEYS[2])}
"""


class RedisFacts(BaseModel):
    """None where Redis does not say. ``closed_ms``: for how long a new era grants nothing (rule 13).

    ``detects_rollback``: False where INFO is forbidden, so that a Redis set back to an older snapshot goes unnoticed.
    """

    maxmemory_policy: str | None = None
    evicted_keys: int | None = None
    used_bytes: int | None = None
    limit_bytes: int | None = None
    payload_bytes: int = 0
    most_payload_bytes: int = 0
    closed_ms: int = 0
    detects_rollback: bool = True

    @property
    def has_bad_policy(self) -> bool:
        return self.maxmemory_policy not in (None, "noeviction")


class SharedFigures:
    """Raises DeduplicationError where Redis does not answer."""

    def __init__(self, registry: Registry, machine: str) -> None:
        self._registry = registry
        self._machine = machine

    def facts(self) -> RedisFacts:
        text, era, now_ms, room = self._registry.ask(
            lambda client, prefix: client.eval(_FACTS, 2, f"{prefix}era", f"{prefix}room")
        )
        info = dict(line.split(":", 1) for line in text.decode().splitlines() if ":" in line)
        run, _, _, closed_until = (era.decode() or "? ? ? 0").split(" ")
        return RedisFacts(
            maxmemory_policy=info.get("maxmemory_policy"),
            evicted_keys=int(info["evicted_keys"]) if "evicted_keys" in info else None,
            used_bytes=int(info.get("used_memory", 0)) or None,
            limit_bytes=int(info.get("maxmemory", 0)) or None,
            payload_bytes=sum(map(int, room)),
            most_payload_bytes=most_payload_bytes(self._registry, int(info.get("maxmemory", 0))),
            closed_ms=max(0, int(closed_until) - int(now_ms)),
            detects_rollback=run != "unknown",
        )

    def take_turn(self, name: str, kept_ms: int) -> bool:
        """Whether this machine does something that one machine does for all; it asks again before ``kept_ms``."""

        def ask(client: Any, prefix: str) -> bool:
            key = f"{prefix}turn:{name}"
            if client.set(key, self._machine, px=kept_ms, nx=True):
                return True
            return client.get(key) == self._machine.encode() and bool(client.pexpire(key, kept_ms))

        return bool(self._registry.ask(ask))

    def put_counts(self, counts: Mapping[str, tuple[bytes, int]]) -> None:
        """Counts of this machine by step and start, each with the seconds for which they are kept."""

        def ask(client: Any, prefix: str) -> None:
            pipe = client.pipeline(transaction=False)
            for name, (packed, kept_s) in counts.items():
                pipe.set(f"{prefix}counts:{self._machine}:{name}", packed, ex=kept_s)
            mark = hashlib.blake2b(repr(sorted(counts.items())).encode(), digest_size=8).digest()
            pipe.hset(f"{prefix}counts", self._machine, mark)
            pipe.execute()

        self._registry.ask(ask)

    def counted_machines(self) -> dict[str, bytes]:
        """Machines with counts, each with a mark that changes with them."""
        found = self._registry.ask(lambda client, prefix: client.hgetall(f"{prefix}counts"))
        return {name.decode(): mark for name, mark in found.items()}

    def counts_of(self, machine: str, names: Sequence[str]) -> list[bytes | None]:
        def ask(client: Any, prefix: str) -> list[bytes | None]:
            found: list[bytes | None] = client.mget([f"{prefix}counts:{machine}:{name}" for name in names])
            return found

        found: list[bytes | None] = self._registry.ask(ask)
        return found
