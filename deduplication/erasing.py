"""Erases emails on every machine, as the law may demand: entries, payloads, files, search rows and events.

The ids of the email, which are digests, stay as marks, so a later copy is still recognised. Every machine keeps a reset
of its names, so a late event about the email does not restore it (rule 22).
"""

from collections.abc import Collection, Sequence

from msgspec.structs import replace

from deduplication.journal.coordinator import Coordinator
from deduplication.journal.entry import Entry, pack_event
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
        number, erased, labels = registry.agree(lambda commit: _compose(commit, coordinator, entries))[0]
    else:
        number, erased, labels = coordinator.journal.clock.now_ms() * 1000, [entry.id for entry in entries], []
    with coordinator.journal.step() as step:
        kept = apply(step, number, erased, labels)
    return [entry.id for entry in entries if entry.id in kept or entry.id not in erased]


def _compose(commit: Commit, coordinator: Coordinator, entries: Sequence[Entry]) -> tuple[int, list[str], list[str]]:
    """Returns the number of the reset, the ids of the entries that are erased, and the references of their names."""
    commit.only_open = True
    commit.ask("exists", "era")  # always true, but makes Redis show its time, which numbers the reset
    now_ms, erased, labels = commit.view.now_ms, list[str](), list[str]()
    for entry in entries:
        present = commit.view.entry(entry.id) if commit.value(f"e:{entry.id}") else None
        stored = {f"delivery:{delivery.webhook_id}": delivery for delivery in entry.deliveries if delivery.webhook_id}
        stored = {key: delivery for key, delivery in stored.items() if commit.ask("exists", key)}
        is_lent = not all([commit.ask("owner", key) for key in stored])  # all at once: rounds are limited
        if is_lent or (present and any(delivery.is_live(now_ms) for delivery in present.deliveries)):
            continue
        erased.append(entry.id)
        for key, delivery in stored.items():
            commit.write("END", key, delivery.destination)
            commit.write("ZREM", f"due:{delivery.destination}", delivery.webhook_id)
            commit.write("DEL", f"payload:{delivery.webhook_id}")
        for delivery in entry.deliveries:
            commit.write("DROP", "dead", delivery.webhook_id)
        commit.write("DEL", f"e:{entry.id}")
        names = references(entry.own, entry.fingerprint)
        for name in names.values():
            if name.kind is Kind.POST:  # its mark may contain text of the email
                commit.write("DEL", mark_of(name, group_ttl=False).key)
        # An event may list digests, or all names of an item without a digest.
        labels += [label for label, name in names.items() if name.kind is Kind.EMAIL_ID] or names
    number = max(now_ms * 1000, *(commit.pointer(label).reset + 1 for label in labels), 0)
    for label in labels:
        commit.write("SET", pointer_key(label), str(Pointer(number)), "PX", coordinator.journal.retention.entry_ms)
    commit.event = pack_event("X", coordinator.journal.machine, number, erased, labels) if erased else ""
    return number, erased, labels


def apply(step: Step, number: int, ids: Sequence[str], labels: Sequence[str]) -> list[str]:
    """Erases entries on one machine, except those with a delivery in progress, whose ids are returned. Links to their
    files end at once; the files are deleted in the background."""
    kept = []
    for label in (*labels, *map(tombstone, ids)):
        step.note_reset(label, number)
    for id_ in ids:
        entry = step.read(id_)
        if entry and any(delivery.lease_until_ms > step.steady_ms for delivery in entry.deliveries):
            step.put(replace(entry, reset=number), entry, publishes=False)
            kept.append(id_)
            continue
        step.query(
            "UPDATE files SET until_ms = 0 WHERE key IN (SELECT key FROM file_links WHERE entry = ?) AND NOT EXISTS"
            " (SELECT 1 FROM file_links other WHERE other.key = files.key AND other.entry <> ?)",
            (id_, id_),
        )
        for table in ("file_links", "repeats"):
            step.query(f"DELETE FROM {table} WHERE entry = ?", (id_,))  # noqa: S608
        if entry is None:
            continue
        for name in entry.own:
            if name.kind is Kind.EMAIL_ID and not name.needs_agreement:
                step.put_mark(name.label, step.end_of(name, entry), entry.fingerprint, entry.id, entry.created_ms)
        step.forget(entry)
    return kept


def delete_events(registry: Registry, ids: Collection[str]) -> None:
    """Deletes the events about these entries. Reads the whole stream."""
    position = "0"
    while events := registry.read_events(position, EVENTS_AT_ONCE)[1]:
        commit = Commit()
        for event_id, event in events:
            if event and event[0] == "E" and event[2].id in ids:
                commit.write("XDEL", "events", event_id)
        registry.run(commit)
        position = events[-1][0]
