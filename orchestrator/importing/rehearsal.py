"""A dry run: what the service would have done with these emails, by its own routes and rules, on an empty journal.

Each email is received at its own date, in the order of the source. Nothing is sent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from deduplication.clock import Clock, system_clock
from deduplication.journal.coordinator import Claimed, Coordinator
from deduplication.journal.entry import About, DeliveryStatus, Stop, changed
from deduplication.journal.rules import Repeat
from deduplication.journal.sqlite import Journal
from deduplication.names import Gate, Kind
from orchestrator.item import Item
from orchestrator.metrics.meter import ROUTE
from orchestrator.pipeline import Pipeline, Status

MOST_EXAMPLES = 3
COUNTED = {
    "new": "new: their webhooks would have been sent",
    Gate.IDENTITY: "duplicates of an earlier email",
    Gate.SUBJECT_GROUP: "stopped by subject_group",
    Gate.MEDIA: "stopped by media",
    Gate.CONTENT: "stopped by content",
    ROUTE: "dropped by a route",
    "groups": "subject groups, counted by month",
    "left_out": "deliveries of new emails skipped by the content gate of their destination",
}


def rehearse(pipeline: Pipeline, path: Path, items: Iterable[Item]) -> tuple[Counter[str], list[str]]:
    """Counts by the keys of COUNTED, and some examples of what each gate stopped. ``path``: of the empty journal."""
    counts, examples = Counter[str](dict.fromkeys(COUNTED, 0)), list[str]()
    now = moment = datetime.now(UTC)
    clock = Clock(lambda: int(moment.timestamp() * 1000), system_clock().steady_ms)
    coordinator = Coordinator(Journal(path, clock))
    pipeline = replace(pipeline, coordinator=coordinator, now=lambda: moment)
    for item in (each for given in items for each in pipeline.router.split(given)):
        if item.moment:  # an undated email is received at the time of the one before it, none later than now
            moment = min(item.moment, now)
        case = pipeline.prepare(item, pipeline.router.pick(item))
        if case.route.dropped_by:
            counts[ROUTE] += 1
            continue
        found, stop = coordinator.claim(case.claim), None
        if isinstance(found, Repeat):
            stop = Stop(found.name, found.of.id or None)
        elif isinstance(found, Claimed):
            sent = [changed(delivery, status=DeliveryStatus.DELIVERED) for delivery in found.to_send]
            settled = coordinator.settle(found, [*sent, *found.not_to_send], Status.PROCESSED)
            entry = settled.entry or found.entry
            statuses = [delivery.status for delivery in entry.deliveries]
            if entry.stop and DeliveryStatus.DELIVERED not in statuses:
                stop = entry.stop
            else:
                has_group = any(name.kind is Kind.SUBJECT_GROUP for name in case.claim.shared)
                counts.update(new=1, groups=has_group, left_out=statuses.count(DeliveryStatus.SKIPPED))
        if stop:
            counts[stop.gate] += 1
            if counts[stop.gate] <= MOST_EXAMPLES:
                examples.append(_example(pipeline, case.claim.about, stop))
    coordinator.close()
    return counts, examples


def _example(pipeline: Pipeline, about: About, stop: Stop) -> str:
    def shown(about: About, at: datetime) -> str:
        words = "an email" if pipeline.privacy.is_strict else f'"{about.subject}" from {about.sender}'
        return f"{words}, {at.isoformat(timespec='seconds')}"

    with pipeline.coordinator.journal.reading() as step:
        first = step.read(stop.original) if stop.original else None
    before = shown(first.about, datetime.fromtimestamp(first.created_ms / 1000, UTC)) if first else "an unknown email"
    return f"{stop.gate}: {shown(about, pipeline.now())}, after {before} ({stop.name.value[:80]})"
