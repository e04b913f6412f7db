"""How long and how much a journal keeps."""

from __future__ import annotations

from dataclasses import dataclass

DAY_MS = 24 * 3_600_000


@dataclass(frozen=True)
class Retention:
    """How long entries, dead letters and payloads of what was delivered are kept; how many bytes of suppressed payloads
    for each sender domain; and how many bytes of the disk must stay free for a claim."""

    entry_ms: int = 7 * DAY_MS
    dead_ms: int = 30 * DAY_MS
    delivered_payload_ms: int = 0
    suppressed_bytes: int = 64 << 20
    disk_free_bytes: int = 0
