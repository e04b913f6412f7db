"""Deliveries as an operator knows them: which there are, and sending one again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from deduplication.journal.base import Journal, Replayed
from deduplication.journal.entry import Delivery, DeliveryStatus, Entry
from deduplication.journal.verdict import replay_refusal
from orchestrator.audit import audit
from orchestrator.build import Parts

WOULD_REPLAY = "would_replay"


@dataclass(frozen=True)
class Wanted:
    """Which deliveries; None matches anything. ``since_ms`` and ``until_ms`` are of the email's coming."""

    status: DeliveryStatus | None = None
    destination: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None


def delivery_id(entry: str, destination: str) -> str:
    return f"{entry}:{destination}"


def find_deliveries(journal: Journal, wanted: Wanted) -> Iterator[tuple[Entry, Delivery]]:
    """Newest email first."""
    for entry in journal.find():
        if wanted.since_ms is not None and entry.created_ms < wanted.since_ms:
            continue
        if wanted.until_ms is not None and entry.created_ms >= wanted.until_ms:
            continue
        for delivery in entry.deliveries:
            if wanted.status in (None, delivery.status) and wanted.destination in (None, delivery.destination):
                yield entry, delivery


def read_delivery(journal: Journal, id_: str) -> tuple[Entry, Delivery] | None:
    entry_id, _, destination = id_.partition(":")
    entry = journal.read(entry_id)
    delivery = entry.delivery_to(destination) if entry else None
    return (entry, delivery) if entry and delivery else None


@dataclass(frozen=True)
class How:
    """``force``: also what was delivered already. ``new_id``: under a webhook-id that the receiver has not seen."""

    force: bool = False
    new_id: bool = False
    dry_run: bool = False


def replay(journal: Journal, id_: str, how: How, new_token: Callable[[], str]) -> str:
    """Makes it due; whoever looks after what is due sends it. Past identity and content, not past "it has it".

    What came of it: a Replayed, or WOULD_REPLAY.
    """
    entry, _, destination = id_.partition(":")
    if how.dry_run:
        return _would_replay(journal, entry, destination, how.force)
    webhook_id = f"msg_{new_token()}" if how.new_id else None
    answer = journal.replay(entry, destination, force=how.force, webhook_id=webhook_id)
    if answer is Replayed.REPLAYED:
        audit.warning("AUDIT replay delivery=%s force=%s new_id=%s", id_, how.force, how.new_id)
    return answer


def _would_replay(journal: Journal, entry: str, destination: str, force: bool) -> str:
    found = read_delivery(journal, delivery_id(entry, destination))
    if found is None:
        return Replayed.UNKNOWN
    refusal = replay_refusal(*found, force, journal.lease_time_ms())
    if refusal is None and journal.payload(entry) is None:
        refusal = Replayed.NO_PAYLOAD
    return refusal or WOULD_REPLAY


def stats(parts: Parts) -> dict[str, Any]:
    """For each destination: how its breaker is, whether it is enabled, and its deliveries by status."""
    counts = Counter((each.destination, each.status) for _, each in find_deliveries(parts.journal, Wanted()))
    names = {*parts.config.destinations, *(destination for destination, _ in counts)}
    return {"destinations": {name: _destination(parts, name, counts) for name in sorted(names)}}


def _destination(parts: Parts, name: str, counts: Counter[tuple[str, DeliveryStatus]]) -> dict[str, Any]:
    config = parts.config.destinations.get(name)
    return {
        "enabled": config.enabled if config else None,
        "breaker": parts.guard.state(name) if config else None,
        "deliveries": {status: counts[name, status] for status in DeliveryStatus},
    }
