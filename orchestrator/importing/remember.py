"""Takes what was handled before Mailonce into its memory: recognised from then on, and never sent.

An imported email is an entry that is done, with the answer "imported" and without deliveries: nothing of it can be
replayed or released, and nothing says that a destination has it. Its names are marked as those of a delivered one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from deduplication.claims import Kind, Name
from deduplication.errors import DeduplicationError
from deduplication.journal.base import (
    Claim,
    Claimed,
    Duplicate,
    Ending,
    Found,
    InFlight,
    Settlement,
    Settling,
    answer_or_raise,
)
from deduplication.journal.entry import Entry, State
from deduplication.journal.verdict import Take, judge, known_of
from deduplication.subject_group import month_of
from orchestrator.grouping import groups
from orchestrator.intake import Intake, Status
from orchestrator.item import Item
from orchestrator.several import MOST_AT_ONCE


class Remembered(StrEnum):
    """Left: a request is at it or was, so that it is the service's to decide."""

    IMPORTED = "imported"
    KNOWN = "known"
    LEFT = "left"


@dataclass(frozen=True)
class Became:
    """``shared``: the names by which it stops others from now on."""

    what: Remembered
    shared: tuple[Name, ...] = ()


@dataclass(frozen=True)
class Importer:
    intake: Intake

    def remember(self, items: Sequence[Item]) -> list[Became]:
        """In their order. Raises StoreUnavailable: some may be remembered then; all of them may be asked for again."""
        taken: set[Name] = set()
        claims: dict[int, Claim] = {}
        for position, item in enumerate(items):
            claim = self.claim_of(item)
            # None of them competes with another: the first of a group has it for all.
            claims[position] = replace(claim, shared=tuple(name for name in claim.shared if name not in taken))
            taken.update(claim.shared)
        became: dict[int, Became] = {}
        for group in groups({at: frozenset((*c.own, *c.shared)) for at, c in claims.items()}, MOST_AT_ONCE):
            became |= self._remember_group({position: claims[position] for position in group})
        return [became[position] for position in range(len(items))]

    def claim_of(self, item: Item) -> Claim:
        """As the service claims it, but for no destination, and with those shared names alone that it would still stop
        others by, had it come in at its own date."""
        intake = self.intake
        claim = intake.prepare(item, intake.router.pick(item)).claim
        return replace(
            claim,
            # The same in every run: what a run that was killed has reserved is the next one's.
            owner=f"import-{hashlib.sha256(f'{claim.own[0].label}|{claim.fingerprint}'.encode()).hexdigest()[:32]}",
            shared=tuple(self._still_shared(claim.shared, item.moment)) if item.moment else (),
            destinations=(),
            is_trial=False,
        )

    def _still_shared(self, names: Sequence[Name], moment: datetime) -> Iterator[Name]:
        """A group counts in its month, which is that of the email; other names for as long as they are kept."""
        age_ms = max(0, int((self.intake.sources.now() - moment).total_seconds() * 1000))
        for name in names:
            is_past = name.kind is Kind.SUBJECT_GROUP and name.scope != month_of(self.intake.naming.tz, moment)
            left_ms = (name.kept_ms or 0) - age_ms
            if not is_past and left_ms > 0:
                yield replace(name, kept_ms=left_ms)

    def _remember_group(self, claims: Mapping[int, Claim]) -> dict[int, Became]:
        became, to_claim, joining = self._look(claims)
        if not to_claim:
            return became
        journal, done = self.intake.journal, dict[int, Settling]()
        verdicts = journal.claim_many(list(to_claim.values()))
        for (position, claim), verdict in zip(to_claim.items(), verdicts, strict=True):
            if isinstance(verdict, DeduplicationError):
                raise verdict
            if isinstance(verdict, Claimed) and (verdict.is_first or position in joining):
                done[position] = Settling(claim, verdict.entry, Settlement(Ending.DONE, Status.IMPORTED))
                continue
            # Between the look and the claim a request was quicker: what it left is given back as it was.
            given = None if isinstance(verdict, InFlight) else verdict.entry
            is_known = isinstance(verdict, Duplicate) and given is None
            became[position] = Became(Remembered.KNOWN if is_known else Remembered.LEFT)
            if given:
                journal.settle(claim, given, Settlement(Ending.FREE))
        settled = journal.settle_many(list(done.values())) if done else []
        for position, is_settled in zip(done, settled, strict=True):
            is_ours = answer_or_raise(is_settled)
            became[position] = (
                Became(Remembered.IMPORTED, to_claim[position].shared) if is_ours else Became(Remembered.LEFT)
            )
        return became

    def _look(self, claims: Mapping[int, Claim]) -> tuple[dict[int, Became], dict[int, Claim], set[int]]:
        """What is known or another's is not claimed: a claim would count as one more time that the email came.

        The others are, with the shared names that nobody has; and of these, those that join an entry.
        """
        journal = self.intake.journal
        names = list(dict.fromkeys(name for claim in claims.values() for name in (*claim.own, *claim.shared)))
        found = {each.name: each for each in journal.look(names)}
        steady_ms, now_ms = journal.lease_time_ms(), journal.now_ms()
        became: dict[int, Became] = {}
        to_claim: dict[int, Claim] = {}
        joining: set[int] = set()
        for position, claim in claims.items():
            known = known_of([found[name] for name in claim.own], steady_ms, now_ms)
            match judge(replace(claim, shared=()), known):
                case Take(stop=None, joined=joined) if joined is None or _may_join(claim, joined):
                    free = [name for name in claim.shared if _is_nobodys(found[name], joined)]
                    to_claim[position] = replace(claim, shared=tuple(free))
                    joining |= {position} if joined else set()
                case Take(stop=None) | InFlight():
                    became[position] = Became(Remembered.LEFT)
                case _:
                    became[position] = Became(Remembered.KNOWN)
        return became, to_claim, joining


def _is_nobodys(found: Found, joined: Entry | None) -> bool:
    return not found.is_marked and all(joined is not None and entry.id == joined.id for entry in found.entries)


def _may_join(claim: Claim, joined: Entry) -> bool:
    """What an import left unfinished, and what was only printed. Not what a request left: that is still to be sent."""
    is_given_back = joined.state is State.FREE and not joined.deliveries and joined.retries_left is None
    return joined.owner == claim.owner or is_given_back or (joined.is_trial and joined.state is State.DONE)
