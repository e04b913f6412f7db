"""What was delivered is settled, sooner or later, and a slow delivery keeps its lease."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pytest

from deduplication.claims import Kind, Name
from deduplication.errors import StoreUnavailable
from deduplication.journal.base import Claim, Claimed, Duplicate, Ending, InFlight, Settlement
from deduplication.journal.entry import Entry
from deduplication.journal.memory import MemoryJournal
from orchestrator.leases import Held, LeaseKeeper
from tests.support.journals import FakeClock


def claim(owner: str, item: str = "e1", lease_ms: int = 60_000) -> Claim:
    return Claim(f"entry-of-{owner}", owner, (Name(Kind.EMAIL_ID, "2026-11-16", item),), lease_ms=lease_ms)


class FlakyJournal(MemoryJournal):
    is_down = False

    def settle(self, claim: Claim, entry: Entry, settlement: Settlement) -> bool:
        if self.is_down:
            raise StoreUnavailable("disk full")
        return super().settle(claim, entry, settlement)

    def take(self, claim: Claim) -> Entry:
        verdict = self.claim(claim)
        assert isinstance(verdict, Claimed)
        return verdict.entry


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def journal(clock: FakeClock) -> FlakyJournal:
    return FlakyJournal(clock.clock)


@pytest.fixture
def keeper(journal: FlakyJournal) -> Iterator[LeaseKeeper]:
    keeper = LeaseKeeper(journal, lease_ms=300)
    yield keeper
    keeper.close()


def settle(keeper: LeaseKeeper, journal: FlakyJournal, claim: Claim) -> None:
    entry = journal.take(claim)
    keeper.settle(Held(entry.id, claim.owner), partial(journal.settle, claim, entry, Settlement(Ending.DONE)))


def test_settlements_that_failed_are_made_as_soon_as_they_can_be(journal: FlakyJournal, keeper: LeaseKeeper) -> None:
    journal.is_down = True
    settle(keeper, journal, claim("a2", "e2"))
    settle(keeper, journal, claim("a"))
    keeper.settle_owed()
    assert isinstance(journal.claim(claim("b")), InFlight)
    journal.is_down = False
    keeper.settle_owed()
    assert isinstance(journal.claim(claim("b")), Duplicate)


def test_a_lease_is_renewed_while_the_delivery_goes_on_and_not_after(
    journal: FlakyJournal, clock: FakeClock, keeper: LeaseKeeper, eventually: Callable[[Callable[[], bool]], None]
) -> None:
    mine = claim("slow", lease_ms=300)
    entry = journal.take(mine)

    def is_renewed() -> bool:
        known = journal.read(entry.id)
        return known is not None and known.lease_until_ms == clock.ms + 300

    with keeper.holding(Held(entry.id, mine.owner)):
        for _ in range(3):
            clock.advance(200)
            eventually(is_renewed)
        assert isinstance(journal.claim(claim("b")), InFlight)
    clock.advance(300)
    assert isinstance(journal.claim(claim("b")), Claimed)


def test_what_is_owed_is_settled_before_the_end(journal: FlakyJournal) -> None:
    keeper = LeaseKeeper(journal, lease_ms=60_000)
    journal.is_down = True
    settle(keeper, journal, claim("a"))
    journal.is_down = False
    keeper.close()
    assert isinstance(journal.claim(claim("b")), Duplicate)
