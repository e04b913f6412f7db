"""Erases emails on every machine, as the law may demand: entries, payloads, files, search rows and events.

The ids of the email, which are digests, stay as marks, so a later copy is still recognised. Every machine keeps a reset
of its names, so a late event about the email does not restore it (rule 22).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from msgspec.structs import replace

from deduplication.journal.coordinator import Coordinator
from deduplication.journal.entry import OPEN, Entry, pack_event, read_event
from deduplication.journal.registry import Commit, Pointer, Registry, pointer_key
from deduplication.journal.rules import references
from deduplication.journal.sqlite import Step
from deduplication.marks import mark_of
from deduplication.names import Kind, Name

EVENTS_AT_ONCE = 1000


def tombstone(entry_id: str) -> str:
    """A name to reset that stops late events about this entry. Entries without names, such as emails older than the
    service, have no other one."""
    return Name(Kind.EMAIL_ID, "erased", entry_id).label


def erase(coordinator: Coordinator, entries: Sequence[Entry]) -> list[str]:
    """Erases entries, a few hundred at most, and ends their waiting deliveries. Entries with a delivery in progress are
    left unchanged, and their ids are returned. Raises StoreUnavailable if Redis cannot be asked."""
    registry = coordinator.registry
    if registry:
        number, erased = registry.agree(lambda commit: _compose(commit, coordinator, entries))[0]
    else:
        steady_ms, number = coordinator.journal.clock.steady_ms(), coordinator.journal.clock.now_ms() * 1000
        leases = {entry.id: [d.lease_until_ms for d in entry.deliveries if d.status in OPEN] for entry in entries}
        erased = [entry for entry in entries if max(leases[entry.id], default=0) <= steady_ms]
    ids = [entry.id for entry in erased]
    with coordinator.journal.step() as step:
        apply(step, number, ids, _labels(erased))
    return [entry.id for entry in entries if entry.id not in ids]


def _labels(entries: Sequence[Entry]) -> list[str]:
    """The references that an event may list: digests, or all names of items without a digest."""
    labels: list[str] = []
    for entry in entries:
        names = references(entry.own, entry.fingerprint)
        labels += [label for label, name in names.items() if name.kind is Kind.EMAIL_ID] or names
    return labels


def _compose(commit: Commit, coordinator: Coordinator, entries: Sequence[Entry]) -> tuple[int, list[Entry]]:
    commit.only_open = True
    commit.ask("exists", "era")  # always true, but makes Redis show its time, which numbers the reset
    now_ms, machine, kept_ms = commit.view.now_ms, coordinator.journal.machine, coordinator.journal.retention.entry_ms
    erased = [entry for entry in entries if not _is_in_progress(commit, entry, now_ms)]
    labels = _labels(erased)
    number = max(now_ms * 1000, *(commit.pointer(label).reset + 1 for label in labels), 0)
    for entry in erased:
        for delivery in entry.deliveries:
            key = f"delivery:{delivery.webhook_id}"
            if delivery.webhook_id and commit.ask("exists", key):
                commit.write("END", key, delivery.destination)
                commit.write("ZREM", f"due:{delivery.destination}", delivery.webhook_id)
                commit.write("DEL", f"payload:{delivery.webhook_id}")
            commit.write("DROP", "dead", delivery.webhook_id)
        commit.write("DEL", f"e:{entry.id}")
        for name in entry.own:
            if name.kind is Kind.POST:  # its mark may contain text of the email
                commit.write("DEL", mark_of(name, group_ttl=False).key)
    for label in labels:
        commit.write("SET", pointer_key(label), str(Pointer(number)), "PX", kept_ms)
    ids = [entry.id for entry in erased]
    commit.event = pack_event("X", machine, number, ids, labels) if erased else ""
    return number, erased


def _is_in_progress(commit: Commit, entry: Entry, now_ms: int) -> bool:
    """Whether a process has claimed a delivery of the entry, or has taken a stored one."""
    commit.value(f"e:{entry.id}")
    present = commit.view.entry(entry.id)
    is_claimed = present is not None and any(delivery.is_live(now_ms) for delivery in present.deliveries)
    keys = [f"delivery:{delivery.webhook_id}" for delivery in entry.deliveries if delivery.webhook_id]
    return is_claimed or any(commit.ask("exists", key) and not commit.ask("owner", key) for key in keys)


def apply(step: Step, number: int, ids: Sequence[str], labels: Sequence[str]) -> None:
    """Erases entries on one machine. Links to their files end at once; the files are deleted in the background."""
    for label in (*labels, *map(tombstone, ids)):
        step.note_reset(label, number)
    for id_ in ids:
        step.query(
            "UPDATE files SET until_ms = 0 WHERE key IN (SELECT key FROM file_links WHERE entry = ?) AND NOT EXISTS"
            " (SELECT 1 FROM file_links other WHERE other.key = files.key AND other.entry <> ?)",
            (id_, id_),
        )
        for table in ("file_links", "repeats"):
            step.query(f"DELETE FROM {table} WHERE entry = ?", (id_,))  # noqa: S608
        entry = step.read(id_)
        if entry is None:
            continue
        if any(delivery.is_live(step.steady_ms) for delivery in entry.deliveries):
            step.put(replace(entry, reset=number), entry, publishes=False)
            continue
        for name in entry.own:
            if name.kind is Kind.EMAIL_ID and not name.needs_agreement:
                step.put_mark(name.label, step.end_of(name, entry), entry.fingerprint, entry.id, entry.created_ms)
        step.forget(entry)


def delete_events(registry: Registry, ids: Collection[str]) -> int:
    """Deletes the events about these entries, and returns their number. Reads the whole stream."""

    def delete(client: Any, prefix: str) -> int:
        count, start = 0, "-"
        while events := client.xrange(f"{prefix}events", min=start, count=EVENTS_AT_ONCE):
            contents = ((event_id, read_event(fields[b"e"])) for event_id, fields in events)
            matching = [event_id for event_id, event in contents if event and event[0] == "E" and event[2].id in ids]
            count += client.xdel(f"{prefix}events", *matching) if matching else 0
            start = f"({events[-1][0].decode()}"
        return count

    return int(registry.ask(delete))
