"""Remembers emails that were handled before Mailonce: recognised from then on, and never sent.

An imported email is a mark for each of its names, with its fingerprint, as it remains of an email that was delivered
long ago. There is no entry and no payload, so it can be neither replayed nor released.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from deduplication.journal.registry import Registry
from deduplication.journal.rules import Busy, Claim, Known, Repeat, Take, identify
from deduplication.journal.sqlite import Journal, Step
from deduplication.names import Kind, Name
from deduplication.subject_group import month_of
from orchestrator.item import Item
from orchestrator.pipeline import Pipeline


class Result(StrEnum):
    """LEFT: the service is processing it or has returned it to its provider, or its ids belong to another email."""

    IMPORTED = "imported"
    KNOWN = "known"
    LEFT = "left"


@dataclass(frozen=True)
class Importer:
    """``journal`` and ``registry`` are the service's; ``pipeline`` says which names an item has."""

    journal: Journal
    registry: Registry | None
    pipeline: Pipeline

    def remember(self, items: Iterable[Item]) -> Counter[str]:
        """Counts the results, and the subject groups. Raises StoreUnavailable; it may then be repeated with all items.

        Marks are written here first. Those that this journal has are written to Redis again, in case an earlier run
        was stopped in between.
        """
        counts, marked = Counter[str](), list[Name]()
        claims = [(item, self._claim(item)) for item in items]
        with self.journal.step() as step:
            for item, claim in claims:
                result, names = self._remember_one(step, item, claim)
                marked += names
                counts[result] += 1
                counts["groups"] += any(name.kind is Kind.SUBJECT_GROUP for name in names)
        if self.registry and marked:
            self.registry.put_marks(marked)
        return counts

    def _claim(self, item: Item) -> Claim:
        return self.pipeline.prepare(item, self.pipeline.router.pick(item)).claim

    def _remember_one(self, step: Step, item: Item, claim: Claim) -> tuple[Result, list[Name]]:
        known = step.known((*claim.identity, *claim.shared), claim.fingerprint)
        found = identify(claim, known)
        if isinstance(found, Busy) or (isinstance(found, Take) and found.candidates):
            return Result.LEFT, []
        own = [name for name in claim.own if not name.needs_agreement]
        if not isinstance(found, Take):
            is_mark = isinstance(found, Repeat) and found.of is None
            return Result.KNOWN, own if is_mark else []
        free = own if found.stop else [name for name in own if _is_free(known, name)]
        for name in free:  # a mark of another program has no fingerprint, and gets one
            step.put_mark(name.label, claim.fingerprint, _end_ms(step, name))
        if found.stop or not free:
            return Result.KNOWN if found.stop else Result.LEFT, free
        shared = [name for name in self._still_shared(claim.shared, item.moment) if _is_free(known, name)]
        for name in shared:
            step.put_mark(name.label, None, _end_ms(step, name))
        return Result.IMPORTED, [*free, *shared]

    def _still_shared(self, names: Iterable[Name], moment: datetime | None) -> Iterator[Name]:
        """Those that would still stop others, had the email come in at its own date: groups of this month, media of
        the last seven days."""
        if moment is None:
            return
        naming, now = self.pipeline.naming, self.pipeline.now()
        age_ms = max(0, int((now - moment).total_seconds() * 1000))
        for name in names:
            is_group = name.kind is Kind.SUBJECT_GROUP
            if is_group and name.scope != month_of(naming.tz, moment):
                continue
            if is_group and not naming.group_ttl_seconds:
                yield name  # its month ends it
            elif (left_ms := (name.kept_ms or 0) - age_ms) > 0:
                yield replace(name, kept_ms=left_ms)


def _is_free(known: Known, name: Name) -> bool:
    state = known.of(name)
    return not state.is_marked and not state.entries


def _end_ms(step: Step, name: Name) -> int | None:
    return None if name.kept_ms is None else step.now_ms + name.kept_ms
