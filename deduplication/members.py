"""The machines of a fleet, as Redis knows them, and the notes they share: for people, never for safety (rule 12)."""

from __future__ import annotations

import json
from typing import Any

from deduplication.journal.registry import Registry
from deduplication.journal.sqlite import Journal, Step

LIVING_MS = 10_000  # since its last heartbeat
KEPT_MS = 3_600_000


def event_order(position: str) -> tuple[int, int]:
    head, _, tail = position.partition("-")
    return int(head), int(tail or 0)


def last_event(client: Any, prefix: str) -> str:
    """The id of the newest event on the stream, "0" if there is none."""
    found = client.xrevrange(f"{prefix}events", count=1)
    return found[0][0].decode() if found else "0"


def members_before(client: Any, prefix: str, event: str, now_ms: int) -> set[str]:
    """Live machines that have not read the stream up to that event."""
    states = {name.decode(): json.loads(text) for name, text in client.hgetall(f"{prefix}members").items()}
    living = {name: state["position"] or "0" for name, state in states.items() if now_ms - state["at_ms"] < LIVING_MS}
    return {name for name, position in living.items() if event_order(position) < event_order(event)}


def beat(registry: Registry, machine: str, state: dict[str, Any]) -> dict[str, Any]:
    """Says that this machine lives; all machines that have said so in the last hour."""

    def ask(client: Any, prefix: str) -> dict[str, Any]:
        client.hset(f"{prefix}members", machine, json.dumps(state))
        found = {name.decode(): json.loads(text) for name, text in client.hgetall(f"{prefix}members").items()}
        gone = [name for name, each in found.items() if state["at_ms"] - each["at_ms"] > KEPT_MS]
        if gone:
            client.hdel(f"{prefix}members", *gone)
        return {name: each for name, each in found.items() if name not in gone}

    return registry.ask(ask)  # type: ignore[no-any-return]


def notes(step: Step) -> dict[str, tuple[int, str]]:
    """Small texts that all machines share, each with its time."""
    return {key: (at_ms, value) for key, value, at_ms in step.query("SELECT key, value, at_ms FROM notes")}


def put_note(step: Step, key: str, value: str, at_ms: int | None = None) -> None:
    """Without ``at_ms`` it is new, and later than the one that is known."""
    known = step.query("SELECT at_ms FROM notes WHERE key = ?", (key,))
    latest = max(step.now_ms, known[0][0] + 1 if known else 0) if at_ms is None else at_ms
    step.query("INSERT OR REPLACE INTO notes VALUES (?, ?, ?)", (key, value, latest))


def share_notes(registry: Registry, journal: Journal) -> None:
    """Of two notes with one key the later one counts, here and in Redis: so all machines end with the same."""
    with journal.reading() as step:
        ours = notes(step)
    found = registry.ask(lambda client, prefix: client.hgetall(f"{prefix}notes"))
    parted = {key.decode(): text.decode().partition(" ") for key, text in found.items()}
    fleet = {key: (int(at_ms), value) for key, (at_ms, _, value) in parted.items()}
    news = {key: note for key, note in fleet.items() if note > ours.get(key, (0, ""))}
    if news:
        with journal.step() as step:
            for key, (at_ms, value) in news.items():
                put_note(step, key, value, at_ms)
    later = {key: f"{note[0]} {note[1]}" for key, note in ours.items() if note > fleet.get(key, (0, ""))}
    if later:
        registry.ask(lambda client, prefix: client.hset(f"{prefix}notes", mapping=later))
