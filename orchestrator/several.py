"""Several items of one request: claimed in groups, sent in their order, settled while the next ones are sent.

docs/architecture-old.md, section 1, tells why so. The steps are those of one item (intake.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from deduplication.errors import DeduplicationError, NoRoom, StoreUnavailable
from deduplication.journal.base import Claimed, Settling, Verdict
from deduplication.journal.entry import Delivery, Entry
from orchestrator.grouping import groups
from orchestrator.intake import Case, Intake, Outcome
from orchestrator.item import Item
from orchestrator.settler import Settler

MOST_AT_ONCE = 50  # claims in one step: nobody else waits long for the journal meanwhile


@dataclass(frozen=True)
class ToSettle:
    """One of several items, with its settlement. With a queue, ``going`` is announced then; ``unsent`` is the entry as
    it was claimed, to be sent after all where it cannot be stored."""

    case: Case
    settling: Settling
    going: Sequence[Delivery] = ()
    unsent: Entry | None = None


@dataclass(frozen=True)
class Several:
    intake: Intake

    def receive(self, items: Sequence[Item]) -> list[Outcome | Exception]:
        """Each as by itself, and in order, but for those that share a name: of them the later ones come after. An error
        of ours stands in the place of the outcome that it prevented, and stops no other."""
        outcomes: dict[int, Outcome | Exception] = {}
        cases: dict[int, Case] = {}
        for position, item in enumerate(items):
            try:
                if (
                    self.intake.resolve
                ):  # where its links lead shows only when it is claimed, and there it may meet another
                    outcomes[position] = self.intake.receive(item)
                    continue
                case = self.intake.prepare_or_skip(item)
            except Exception as error:
                outcomes[position] = error
                continue
            if isinstance(case, Outcome):
                outcomes[position] = self.intake.tell(item, case, 0.0)
            else:
                cases[position] = case
        for group in groups({position: case.names for position, case in cases.items()}, MOST_AT_ONCE):
            started = self.intake.sources.monotonic()
            for position, outcome in self._receive_group({position: cases[position] for position in group}).items():
                if isinstance(outcome, Outcome):
                    outcome = self.intake.tell(items[position], outcome, self.intake.sources.monotonic() - started)
                outcomes[position] = outcome
        return [outcomes[position] for position in range(len(items))]

    def _receive_group(self, cases: Mapping[int, Case]) -> dict[int, Outcome | Exception]:
        """Claimed in one step. Then each is sent, and what was sent is settled while the next ones are."""
        verdicts: Sequence[Verdict | DeduplicationError]
        claimed_at = self.intake.sources.monotonic()
        try:
            verdicts = self.intake.journal.claim_many([case.claim for case in cases.values()])
        except DeduplicationError as error:
            verdicts = [error] * len(cases)
        else:
            for _ in cases:
                self.intake.meter.time_decision(self.intake.sources.monotonic() - claimed_at)
        outcomes: dict[int, Outcome | Exception] = {}
        with Settler(self._settle_some) as settler:
            for (position, case), verdict in zip(cases.items(), verdicts, strict=True):
                try:
                    if self._is_late(claimed_at):  # those before it took their time: is it still ours?
                        verdict = self.intake.journal.claim(case.claim)
                    turn = self._take_turn(case, verdict)
                except StoreUnavailable as error:
                    outcomes[position] = self.intake.store_is_away(case, error)
                except Exception as error:
                    outcomes[position] = error
                else:
                    if isinstance(turn, Outcome):
                        outcomes[position] = turn
                    else:
                        settler.put(position, turn)
        return outcomes | settler.results

    def _is_late(self, claimed_at: float) -> bool:
        return (self.intake.sources.monotonic() - claimed_at) * 1000 > self.intake.leases.lease_ms / 2

    def _take_turn(self, case: Case, verdict: Verdict | DeduplicationError) -> Outcome | ToSettle:
        """One of several: what has become of it, or what is to be settled."""
        if isinstance(verdict, DeduplicationError):
            raise verdict
        if not isinstance(verdict, Claimed):
            return self.intake.stop(case, verdict)
        entry = self.intake.journal.before_sending(verdict)
        if entry is None:
            return self.intake.lease_ran_out(case)
        if self.intake.queue:
            stored, going = self.intake.to_be_announced(entry)
            return ToSettle(case, self.intake.settling_of(case, stored), going, entry)
        case = replace(case, budget=self.intake.new_budget())
        return ToSettle(case, self.intake.settling_of(case, self.intake.send(case, entry)))

    def _settle_some(self, some: Sequence[ToSettle]) -> list[Outcome | Exception]:
        answers: Sequence[bool | DeduplicationError]
        try:
            answers = self.intake.journal.settle_many([each.settling for each in some])
        except DeduplicationError as error:
            answers = [error] * len(some)
        outcomes: list[Outcome | Exception] = []
        for each, answer in zip(some, answers, strict=True):
            try:
                outcomes.append(self._finish(each, answer))
            except Exception as error:
                outcomes.append(error)
        return outcomes

    def _finish(self, turn: ToSettle, answer: bool | DeduplicationError) -> Outcome:
        try:
            outcome = self.intake.conclude(turn.case, turn.settling, answer)
        except NoRoom:
            if turn.unsent:
                return self.intake.send_and_settle(replace(turn.case, budget=self.intake.new_budget()), turn.unsent)
            return self.intake.give_back(turn.case, turn.settling.entry)
        return self.intake.announce(turn.case, turn.settling.entry, turn.going, outcome) if turn.unsent else outcome
