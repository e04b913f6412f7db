"""The members of the fleet, and the notes that they share. Both are for people, never for safety (rule 12)."""

import json
from typing import Any

from deduplication.journal.registry import Registry
from deduplication.journal.sqlite import Journal, Step

LIVE_MS = 10_000  # since its last heartbeat
KEPT_MS = 3_600_000


def event_order(position: str) -> list[int]:
    """A sort key for positions on the stream, such as "1763500000000-0"."""
    return [int(part) for part in position.split("-")]


def last_event(registry: Registry) -> str:
    """The id of the newest event on the stream, "0" if there is none."""
    events = registry.ask(lambda client, prefix: client.xrevrange(f"{prefix}events", count=1))
    return events[0][0].decode() if events else "0"


def members_before(registry: Registry, event: str, now_ms: int) -> set[str]:
    """The live machines that have not read the stream up to the event."""
    live = {name: state for name, state in registry.ask(_read_members).items() if now_ms - state["at_ms"] < LIVE_MS}
    return {name for name, state in live.items() if event_order(state["position"] or "0") < event_order(event)}


def beat(registry: Registry, machine: str, state: dict[str, Any]) -> dict[str, Any]:
    """Publishes the state of this machine, and returns those of all. Machines are forgotten after an hour."""
    registry.ask(lambda client, prefix: client.hset(f"{prefix}members", machine, json.dumps(state)))
    states: dict[str, Any] = registry.ask(_read_members)
    if gone := [name for name, other in states.items() if state["at_ms"] - other["at_ms"] > KEPT_MS]:
        registry.ask(lambda client, prefix: client.hdel(f"{prefix}members", *gone))
    return states


def _read_members(client: Any, prefix: str) -> dict[str, Any]:
    return {machine.decode(): json.loads(state) for machine, state in client.hgetall(f"{prefix}members").items()}


def notes(step: Step, start: str = "") -> dict[str, tuple[int, str]]:
    """The small texts that all machines share, each with its time. Those whose keys start like that, without it."""
    rows = step.query("SELECT key, value, at_ms FROM notes")
    return {key.removeprefix(start): (at_ms, value) for key, value, at_ms in rows if key.startswith(start)}


def put_note(step: Step, key: str, value: str, at_ms: int | None = None) -> None:
    """Writes a note of now, but later than the note that it replaces. With ``at_ms``, it is one that exists elsewhere:
    it keeps its time, and replaces only an earlier note, as another process may write it at once."""
    put = "INSERT INTO notes VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET value = excluded.value, at_ms ="
    if at_ms is None:
        step.query(f"{put} max(at_ms + 1, excluded.at_ms)", (key, value, step.now_ms))
    else:  # of two notes of the same time, the greater text counts, as in share_notes
        later = "excluded.at_ms WHERE (excluded.at_ms, excluded.value) > (at_ms, value)"
        step.query(f"{put} {later}", (key, value, at_ms))


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
