"""What was delivered is settled, sooner or later, and a slow delivery keeps its lease."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from deduplication.claims import Claim, Claimed, Duplicate, InFlight, Kind, Name
from deduplication.errors import StoreUnavailable
from deduplication.stores.memory import MemoryStore, Shelf
from orchestrator.leases import LeaseKeeper
from tests.support.stores import FakeClock

NAME = Name(Kind.EMAIL_ID, "2026-11-16", "e1")


def claim(owner: str, lease_ms: int = 60_000) -> Claim:
    return Claim("e1", (NAME,), "f", owner, lease_ms)


class FlakyStore(MemoryStore):
    is_down = False

    def commit(self, claim: Claim) -> bool:
        if self.is_down:
            raise StoreUnavailable("disk full")
        return super().commit(claim)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def store(clock: FakeClock) -> FlakyStore:
    return FlakyStore(clock, Shelf())


@pytest.fixture
def keeper(store: FlakyStore) -> Iterator[LeaseKeeper]:
    keeper = LeaseKeeper(store, lease_ms=300)
    yield keeper
    keeper.close()


def test_commits_that_failed_are_made_as_soon_as_they_can_be(store: FlakyStore, keeper: LeaseKeeper) -> None:
    mine = claim("a")
    other = Claim("e2", (Name(Kind.EMAIL_ID, "2026-11-16", "e2"),), "f", "a2", 60_000)
    store.is_down = True
    for owed in (other, mine):
        store.claim(owed)
        keeper.owe_commit(owed)
    keeper.pay_owed()
    assert isinstance(store.claim(claim("b")), InFlight)
    store.is_down = False
    keeper.pay_owed()
    assert isinstance(store.claim(claim("b")), Duplicate)


def test_a_lease_is_renewed_while_the_delivery_goes_on_and_not_after(
    store: FlakyStore, clock: FakeClock, keeper: LeaseKeeper, eventually: Callable[[Callable[[], bool]], None]
) -> None:
    mine = claim("slow", lease_ms=300)
    store.claim(mine)
    with keeper.holding(mine):
        for _ in range(3):
            clock.advance(200)
            eventually(lambda: next(store.read([NAME])).lease_until_ms == clock.ms + 300)
        assert isinstance(store.claim(claim("b")), InFlight)
    clock.advance(300)
    assert isinstance(store.claim(claim("b")), Claimed)


def test_what_is_owed_is_paid_before_the_end(store: FlakyStore) -> None:
    keeper = LeaseKeeper(store, lease_ms=60_000)
    mine = claim("a")
    assert isinstance(store.claim(mine), Claimed)
    store.is_down = True
    keeper.commit(mine)
    store.is_down = False
    keeper.close()
    assert isinstance(store.claim(claim("b")), Duplicate)
