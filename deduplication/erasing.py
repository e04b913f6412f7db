"""Erasing emails on every machine, as the law may demand: entries, payloads, files, search rows and events.

The digests that are an email's ids stay as marks, so a copy that is received later is still recognised. A reset of its
names, which every machine keeps, stops late news of the email from bringing it back (rule 22).
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
    """Entries without names, such as emails older than the service, are kept away by their own id."""
    return Name(Kind.EMAIL_ID, "erased", entry_id).label


def erase(coordinator: Coordinator, entries: Sequence[Entry]) -> list[str]:
    """At most a few hundred at once. Deliveries that wait are ended; the ids of entries that are being delivered right
    now are returned, and these are left as they are. Raises StoreUnavailable while Redis is away."""
    registry = coordinator.registry
    if registry:
        number, gone = registry.agree(lambda commit: _compose(commit, coordinator, entries))[0]
    else:
        steady_ms, number = coordinator.journal.clock.steady_ms(), coordinator.journal.clock.now_ms() * 1000
        leases = {entry.id: [d.lease_until_ms for d in entry.deliveries if d.status in OPEN] for entry in entries}
        gone = [entry for entry in entries if max(leases[entry.id], default=0) <= steady_ms]
    ids = [entry.id for entry in gone]
    with coordinator.journal.step() as step:
        apply(step, number, ids, _labels(gone))
    return [entry.id for entry in entries if entry.id not in ids]


def _labels(entries: Sequence[Entry]) -> list[str]:
    """Names that may be listed in an event: digests, unless an item has no other ones."""
    own = [references(entry.own, entry.fingerprint) for entry in entries]
    digests = [[label for label, name in names.items() if name.kind is Kind.EMAIL_ID] for names in own]
    return [label for names, ids in zip(own, digests, strict=True) for label in ids or names]


def _compose(commit: Commit, coordinator: Coordinator, entries: Sequence[Entry]) -> tuple[int, list[Entry]]:
    commit.only_open = True
    commit.ask("exists", "era")  # it does: the time of a reset is Redis' own, so it is shown first
    now_ms, machine, kept_ms = commit.view.now_ms, coordinator.journal.machine, coordinator.journal.retention.entry_ms
    gone = [entry for entry in entries if not _is_under_way(commit, entry, now_ms)]
    labels = _labels(gone)
    number = max(now_ms * 1000, *(commit.pointer(label).reset + 1 for label in labels), 0)
    for entry in gone:
        for each in entry.deliveries:
            key = f"delivery:{each.webhook_id}"
            if each.webhook_id and commit.ask("exists", key):
                commit.write("END", key, each.destination)
                commit.write("ZREM", f"due:{each.destination}", each.webhook_id)
                commit.write("DEL", f"payload:{each.webhook_id}")
            commit.write("DROP", "dead", each.webhook_id)
        commit.write("DEL", f"e:{entry.id}")
        for name in (name for name in entry.own if name.kind is Kind.POST):  # it may have the words of the email
            commit.write("DEL", mark_of(name, group_ttl=False).key)
    for label in labels:
        commit.write("SET", pointer_key(label), str(Pointer(number)), "PX", kept_ms)
    commit.event = pack_event("X", machine, number, [entry.id for entry in gone], labels) if gone else ""
    return number, gone


def _is_under_way(commit: Commit, entry: Entry, now_ms: int) -> bool:
    """A process sends it: a request that has claimed it, or one that has taken a stored delivery."""
    commit.value(f"e:{entry.id}")
    present = commit.view.entry(entry.id)
    is_claimed = present is not None and any(each.is_live(now_ms) for each in present.deliveries)
    keys = [f"delivery:{each.webhook_id}" for each in entry.deliveries if each.webhook_id]
    return is_claimed or any(commit.ask("exists", key) and not commit.ask("owner", key) for key in keys)


def apply(step: Step, number: int, ids: Sequence[str], labels: Sequence[str]) -> None:
    """What each machine does. Files are deleted behind the requests, and their links end at once."""
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
        if any(each.is_live(step.steady_ms) for each in entry.deliveries):
            step.put(replace(entry, reset=number), entry, publishes=False)
            continue
        for name in entry.own:
            if name.kind is Kind.EMAIL_ID and not name.needs_agreement:
                step.put_mark(name.label, step.end_of(name, entry), entry.fingerprint, entry.id, entry.created_ms)
        step.forget(entry)


def delete_events(registry: Registry, ids: Collection[str]) -> int:
    """Deletes what the stream has about these entries; how many events there were. It reads the whole stream."""

    def ask(client: Any, prefix: str) -> int:
        count, after = 0, "-"
        while events := client.xrange(f"{prefix}events", min=after, count=EVENTS_AT_ONCE):
            read = ((event_id, read_event(fields[b"e"])) for event_id, fields in events)
            found = [event_id for event_id, event in read if event and event[0] == "E" and event[2].id in ids]
            count += client.xdel(f"{prefix}events", *found) if found else 0
            after = f"({events[-1][0].decode()}"
        return count

    return int(registry.ask(ask))
