"""What the service would have done to mail of the past: by its own names, routes and rules, on a journal of its own.

Each email comes in at its own date, in the order of the source. Nothing is sent; what the service knows is not asked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from deduplication.claims import Gate
from deduplication.journal.base import Claimed, Duplicate, Ending, Journal, Retention, Settlement
from deduplication.journal.clock import Clock, system_clock
from deduplication.journal.entry import About, Delivery, DeliveryStatus, Stop, changed
from deduplication.journal.sqlite import SqliteJournal
from orchestrator.build import Parts, build_intake
from orchestrator.intake import SKIPPED_AT, Intake, Sources, Status
from orchestrator.item import Item

KEPT_MS = 100 * 366 * 24 * 3600 * 1000  # an example of a drop names the email before it, however long ago that was
MOST_EXAMPLES = 3


@dataclass(frozen=True)
class Shown:
    subject: str
    sender: str
    at: datetime


@dataclass(frozen=True)
class Example:
    """An email that would have been stopped, by which name, and the one before it (None: it is not known)."""

    stopped: Shown
    name: str
    first: Shown | None


@dataclass
class Findings:
    """``stopped``: how many, by gate; those at identity are exact repeats. ``left_out``: deliveries of new emails that
    their destinations would not have got, for they had the same words."""

    emails: int = 0
    new: int = 0
    stopped: Counter[Gate] = field(default_factory=Counter)
    left_out: int = 0
    groups: int = 0
    undated: int = 0
    first: datetime | None = None
    last: datetime | None = None
    examples: dict[Gate, list[Example]] = field(default_factory=dict)

    @property
    def duplicates(self) -> int:
        return self.stopped[Gate.IDENTITY]

    @property
    def suppressed(self) -> int:
        return self.stopped.total() - self.duplicates


class Rehearsal:
    def __init__(self, intake: Intake, path: Path, now: datetime) -> None:
        self.findings = Findings()
        self._now = now
        self._moment = now
        clock = Clock(lambda: int(self._moment.timestamp() * 1000), system_clock().steady_ms)
        self._journal: Journal = SqliteJournal(path, clock, Retention(KEPT_MS, KEPT_MS))
        sources = Sources(lambda: self._moment, intake.sources.new_token)
        self._intake = replace(intake, journal=self._journal, sources=sources, is_trial=False)

    def close(self) -> None:
        self._journal.close()

    def receive(self, item: Item) -> None:
        """An undated one comes when the one before it did; none comes later than now."""
        findings = self.findings
        findings.emails += 1
        if item.moment is None:
            findings.undated += 1
        else:
            self._moment = min(item.moment, self._now)
            findings.first = min(findings.first or self._moment, self._moment)
            findings.last = max(findings.last or self._moment, self._moment)
        case = self._intake.prepare(item, self._intake.router.pick(item))
        verdict = self._journal.claim(case.claim)
        if isinstance(verdict, Duplicate):
            if verdict.entry:
                skipped = Settlement(Ending.DONE, SKIPPED_AT[verdict.stop.gate])
                self._journal.settle(case.claim, verdict.entry, skipped)
            self._count_stop(case.claim.about, verdict.stop)
        elif isinstance(verdict, Claimed):  # always: nobody else is at this journal
            deliveries = tuple(map(self._as_delivered, verdict.entry.deliveries))
            findings.new += 1
            findings.groups += case.group is not None
            findings.left_out += sum(each.status is DeliveryStatus.SKIPPED for each in deliveries)
            self._journal.settle(case.claim, verdict.entry, Settlement(Ending.DONE, Status.PROCESSED, deliveries))

    def _count_stop(self, about: About, stop: Stop) -> None:
        self.findings.stopped[stop.gate] += 1
        examples = self.findings.examples.setdefault(stop.gate, [])
        if len(examples) < MOST_EXAMPLES:
            original = self._journal.read(stop.original) if stop.original else None
            first = self._shown(original.about, _moment(original.created_ms)) if original else None
            examples.append(Example(self._shown(about, self._moment), stop.name.value, first))

    def _shown(self, about: About, at: datetime) -> Shown:
        return Shown("", "", at) if self._intake.privacy.is_strict else Shown(about.subject, about.sender, at)

    def _as_delivered(self, delivery: Delivery) -> Delivery:
        if not delivery.status.is_open:
            return delivery
        return changed(delivery, status=DeliveryStatus.DELIVERED, delivered_ms=int(self._moment.timestamp() * 1000))


def _moment(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms / 1000, UTC)


@contextmanager
def rehearsing(parts: Parts, folder: Path, now: datetime) -> Iterator[Rehearsal]:
    """``folder``: for its journal, to be thrown away after."""
    rehearsal = Rehearsal(build_intake(parts), folder / "rehearsal.db", now)
    try:
        yield rehearsal
    finally:
        rehearsal.close()
