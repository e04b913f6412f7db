"""The members of the fleet, and the notes that they share. Both are for people, never for safety (rule 12)."""

from __future__ import annotations

import json
from typing import Any

from deduplication.journal.registry import Registry
from deduplication.journal.sqlite import Journal, Step

LIVE_MS = 10_000  # since its last heartbeat
KEPT_MS = 3_600_000


def event_order(position: str) -> tuple[int, int]:
    """A sort key for positions on the stream, such as "1763500000000-0"."""
    time_ms, _, number = position.partition("-")
    return int(time_ms), int(number or 0)


def last_event(client: Any, prefix: str) -> str:
    """The id of the newest event on the stream, "0" if there is none."""
    events = client.xrevrange(f"{prefix}events", count=1)
    return events[0][0].decode() if events else "0"


def members_before(client: Any, prefix: str, event: str, now_ms: int) -> set[str]:
    """The live machines that have not read the stream up to the event."""
    return {
        machine
        for machine, state in _read_members(client, prefix).items()
        if now_ms - state["at_ms"] < LIVE_MS and event_order(state["position"] or "0") < event_order(event)
    }


def beat(registry: Registry, machine: str, state: dict[str, Any]) -> dict[str, Any]:
    """Publishes the state of this machine, and returns the states of all machines that did so in the last hour."""

    def exchange_states(client: Any, prefix: str) -> dict[str, Any]:
        client.hset(f"{prefix}members", machine, json.dumps(state))
        states = _read_members(client, prefix)
        if gone := [name for name, other in states.items() if state["at_ms"] - other["at_ms"] > KEPT_MS]:
            client.hdel(f"{prefix}members", *gone)
        return {name: other for name, other in states.items() if name not in gone}

    return registry.ask(exchange_states)  # type: ignore[no-any-return]


def _read_members(client: Any, prefix: str) -> dict[str, Any]:
    return {machine.decode(): json.loads(state) for machine, state in client.hgetall(f"{prefix}members").items()}


def notes(step: Step, start: str = "") -> dict[str, tuple[int, str]]:
    """The small texts that all machines share, each with its time. Those whose keys start like that, without it."""
    rows = step.query("SELECT key, value, at_ms FROM notes")
    return {key.removeprefix(start): (at_ms, value) for key, value, at_ms in rows if key.startswith(start)}


def put_note(step: Step, key: str, value: str, at_ms: int | None = None) -> None:
    """Writes a note. Without ``at_ms``, its time is now, or just after the note that it replaces."""
    replaced = step.query("SELECT at_ms FROM notes WHERE key = ?", (key,))
    written_ms = max(step.now_ms, replaced[0][0] + 1 if replaced else 0) if at_ms is None else at_ms
    step.query("INSERT OR REPLACE INTO notes VALUES (?, ?, ?)", (key, value, written_ms))


def share_notes(registry: Registry, journal: Journal) -> None:
    """Merges the notes of this machine with those in Redis: the later note of a key counts everywhere."""
    with journal.reading() as step:
        ours = notes(step)
    stored = registry.ask(lambda client, prefix: client.hgetall(f"{prefix}notes"))
    parts = {key.decode(): text.decode().partition(" ") for key, text in stored.items()}
    theirs = {key: (int(at_ms), value) for key, (at_ms, _, value) in parts.items()}
    if newer := {key: note for key, note in theirs.items() if note > ours.get(key, (0, ""))}:
        with journal.step() as step:
            for key, (at_ms, value) in newer.items():
                put_note(step, key, value, at_ms)
    if later := {key: f"{note[0]} {note[1]}" for key, note in ours.items() if note > theirs.get(key, (0, ""))}:
        registry.ask(lambda client, prefix: client.hset(f"{prefix}notes", mapping=later))
