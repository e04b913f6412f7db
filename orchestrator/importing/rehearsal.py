"""A dry run: what the service would have done with these emails, by its own routes and rules, on an empty journal.

Each email comes in at its own date, in the order of the source. Nothing is sent.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from deduplication.clock import Clock, system_clock
from deduplication.journal.coordinator import Claimed, Coordinator
from deduplication.journal.entry import About, DeliveryStatus, Entry, Stop, changed
from deduplication.journal.rules import Repeat
from deduplication.journal.sqlite import Journal
from deduplication.names import Gate
from orchestrator.item import Item
from orchestrator.pipeline import Pipeline, Status

MOST_EXAMPLES = 3


@dataclass
class Findings:
    """``stopped`` counts by gate; those at identity are exact duplicates. ``left_out``: deliveries of new emails that
    the content gate would have skipped."""

    emails: int = 0
    new: int = 0
    stopped: Counter[Gate] = field(default_factory=Counter)
    left_out: int = 0
    groups: int = 0
    undated: int = 0
    first: datetime | None = None
    last: datetime | None = None
    examples: dict[Gate, list[dict[str, Any]]] = field(default_factory=dict)


class Rehearsal:
    def __init__(self, pipeline: Pipeline, path: Path) -> None:
        self.findings = Findings()
        self._now = self._moment = datetime.now(UTC)
        clock = Clock(lambda: int(self._moment.timestamp() * 1000), system_clock().steady_ms)
        self._coordinator = Coordinator(Journal(path, clock))
        self._pipeline = replace(pipeline, coordinator=self._coordinator, now=lambda: self._moment)

    def close(self) -> None:
        self._coordinator.journal.close()

    def receive(self, item: Item) -> None:
        """An undated email comes at the time of the one before it; none comes later than now."""
        findings = self.findings
        findings.emails += 1
        if item.moment is None:
            findings.undated += 1
        else:
            self._moment = min(item.moment, self._now)
            findings.first = min(findings.first or self._moment, self._moment)
            findings.last = max(findings.last or self._moment, self._moment)
        case = self._pipeline.prepare(item, self._pipeline.router.pick(item))
        found = self._coordinator.claim(case.claim)
        if isinstance(found, Repeat):
            self._count_stop(case.claim.about, Stop(found.name, found.of.id if found.of else None))
        elif isinstance(found, Claimed):
            entry = self._deliver(found)
            is_new = any(each.status is DeliveryStatus.DELIVERED for each in entry.deliveries)
            if entry.stop and not is_new:
                self._count_stop(case.claim.about, entry.stop)
            else:
                findings.new += 1
                findings.groups += case.group is not None
                findings.left_out += sum(each.status is DeliveryStatus.SKIPPED for each in entry.deliveries)

    def _deliver(self, claimed: Claimed) -> Entry:
        sent = [changed(each, status=DeliveryStatus.DELIVERED) for each in claimed.to_send]
        settled = self._coordinator.settle(claimed, [*sent, *claimed.not_to_send], Status.PROCESSED)
        return settled.entry or claimed.entry

    def _count_stop(self, about: About, stop: Stop) -> None:
        self.findings.stopped[stop.gate] += 1
        examples = self.findings.examples.setdefault(stop.gate, [])
        if len(examples) < MOST_EXAMPLES:
            with self._coordinator.journal.reading() as step:
                first = step.read(stop.original) if stop.original else None
            shown = self._show(first.about, datetime.fromtimestamp(first.created_ms / 1000, UTC)) if first else None
            examples.append({"name": stop.name.value, "email": self._show(about, self._moment), "first": shown})

    def _show(self, about: About, at: datetime) -> dict[str, str]:
        is_hidden = self._pipeline.privacy.is_strict
        subject, sender = ("", "") if is_hidden else (about.subject, about.sender)
        return {"subject": subject, "sender": sender, "date": at.isoformat(timespec="seconds")}
