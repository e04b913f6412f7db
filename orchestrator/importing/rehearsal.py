"""A dry run: what the service would have done with these emails, by its own routes and rules, on an empty journal.

Each email is received at its own date, in the order of the source. Nothing is sent.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from deduplication.clock import Clock, system_clock
from deduplication.journal.coordinator import Claimed, Coordinator
from deduplication.journal.entry import About, DeliveryStatus, Stop, changed
from deduplication.journal.rules import Repeat
from deduplication.journal.sqlite import Journal
from deduplication.names import Gate
from orchestrator.item import Item
from orchestrator.pipeline import Pipeline, Status

MOST_EXAMPLES = 3
COUNTED = {
    "new": "new: their webhooks would have been sent",
    Gate.IDENTITY: "duplicates of an earlier email",
    Gate.SUBJECT_GROUP: "stopped by subject_group",
    Gate.MEDIA: "stopped by media",
    Gate.CONTENT: "stopped by content",
    "groups": "subject groups, counted by month",
    "left_out": "deliveries of new emails skipped by the content gate of their destination",
}


class Rehearsal:
    """``counts`` has the keys of COUNTED. ``examples``: some of the emails that each gate stopped."""

    def __init__(self, pipeline: Pipeline, path: Path) -> None:
        self.counts = Counter[str](dict.fromkeys(COUNTED, 0))
        self.examples: list[str] = []
        self._now = self._moment = datetime.now(UTC)
        clock = Clock(lambda: int(self._moment.timestamp() * 1000), system_clock().steady_ms)
        self._coordinator = Coordinator(Journal(path, clock))
        self._pipeline = replace(pipeline, coordinator=self._coordinator, now=lambda: self._moment)

    def close(self) -> None:
        self._coordinator.journal.close()

    def receive(self, item: Item) -> None:
        """An undated email is received at the time of the one before it, none later than now."""
        if item.moment:
            self._moment = min(item.moment, self._now)
        case = self._pipeline.prepare(item, self._pipeline.router.pick(item))
        found = self._coordinator.claim(case.claim)
        if isinstance(found, Repeat):
            self._count_stop(case.claim.about, Stop(found.name, found.of.id if found.of else None))
        elif isinstance(found, Claimed):
            sent = [changed(delivery, status=DeliveryStatus.DELIVERED) for delivery in found.to_send]
            settled = self._coordinator.settle(found, [*sent, *found.not_to_send], Status.PROCESSED)
            entry = settled.entry or found.entry
            statuses = [delivery.status for delivery in entry.deliveries]
            if entry.stop and DeliveryStatus.DELIVERED not in statuses:
                self._count_stop(case.claim.about, entry.stop)
            else:
                self.counts["new"] += 1
                self.counts["groups"] += case.group is not None
                self.counts["left_out"] += statuses.count(DeliveryStatus.SKIPPED)

    def _count_stop(self, about: About, stop: Stop) -> None:
        self.counts[stop.gate] += 1
        if self.counts[stop.gate] > MOST_EXAMPLES:
            return
        with self._coordinator.journal.reading() as step:
            first = step.read(stop.original) if stop.original else None
        before = self._shown(first.about, first.created_ms) if first else "an unknown email"
        email = self._shown(about, self._moment.timestamp() * 1000)
        self.examples.append(f"{stop.gate}: {email}, after {before} ({stop.name.value[:80]})")

    def _shown(self, about: About, at_ms: float) -> str:
        words = "an email" if self._pipeline.privacy.is_strict else f'"{about.subject}" from {about.sender}'
        return f"{words}, {datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec='seconds')}"
