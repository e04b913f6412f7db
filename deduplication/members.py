"""The machines of a fleet, as Redis knows them: for people, never for safety (rule 12 of docs/architecture.md)."""

from __future__ import annotations

import json
from typing import Any

LIVING_MS = 10_000  # since its last heartbeat


def event_order(position: str) -> tuple[int, int]:
    head, _, tail = position.partition("-")
    return int(head), int(tail or 0)


def last_event(client: Any, prefix: str) -> str:
    """The id of the newest event on the stream, "0" if there is none."""
    found = client.xrevrange(f"{prefix}events", count=1)
    return found[0][0].decode() if found else "0"


def members_before(client: Any, prefix: str, event: str, now_ms: int) -> set[str]:
    """Machines that live and have not read the stream up to that event."""
    states = {name.decode(): json.loads(text) for name, text in client.hgetall(f"{prefix}members").items()}
    living = {name: each["position"] or "0" for name, each in states.items() if now_ms - each["at_ms"] < LIVING_MS}
    return {name for name, position in living.items() if event_order(position) < event_order(event)}
