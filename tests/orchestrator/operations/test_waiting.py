from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from deduplication.claims import Kind, Name
from deduplication.journal.base import Claim, Claimed, Ending, Journal, Settlement, Wanted
from deduplication.journal.entry import DeliveryStatus, new_entry_id
from deduplication.journal.listing import Listed
from orchestrator.delivery.schedule import put_off
from orchestrator.operations import waiting
from orchestrator.operations.waiting import LOOKED_AGAIN_AFTER_S, OldestWaiting
from tests.support.journals import JournalBench


class Looking:
    """An OldestWaiting whose searches are counted, and whose time stands still."""

    def __init__(self, bench: JournalBench) -> None:
        self.bench = bench
        self.searches = 0
        self.now_s = 1_000.0
        self._took_s = 0.0
        self.oldest = OldestWaiting(self._counting(bench.journal), lambda: self.now_s)

    def _counting(self, journal: Journal) -> Journal:
        looking = self

        class Counting:
            def __getattr__(self, name: str) -> Any:
                return getattr(journal, name)

            def list_deliveries(self, *asked: Any) -> Iterator[Listed]:
                looking.searches += 1
                looking.now_s += looking._took_s
                return journal.list_deliveries(*asked)

        return Counting()

    def a_search_takes(self, seconds: float) -> None:
        self._took_s = seconds

    def since_ms(self, destination: str = "crm") -> int | None:
        return self.oldest.read(self.bench.journal.count_deliveries()).get(destination)


@pytest.fixture
def looking(bench: JournalBench) -> Looking:
    return Looking(bench)


def store(journal: Journal, number: int, destination: str = "crm") -> tuple[str, int]:
    """One that waits: its id, and since when."""
    claim = Claim(
        new_entry_id(),
        f"owner {number}",
        (Name(Kind.EMAIL_ID, "2026-11-16", f"{destination} {number}"),),
        (),
        (Wanted(destination, f"msg_{number}"),),
    )
    claimed = journal.claim(claim)
    assert isinstance(claimed, Claimed)
    # the older it is the later it is tried again: by the index it comes last
    later_ms = journal.now_ms() + 10_000_000 - number
    deliveries = tuple(put_off(each, "it waits", later_ms) for each in claimed.entry.deliveries)
    assert journal.settle(claim, claimed.entry, Settlement(Ending.DONE, "queued", deliveries, payload=b"payload"))
    entry = journal.read(claim.entry)
    assert entry is not None
    return entry.id, entry.waits_since_ms


def end(journal: Journal, id_: str, destination: str = "crm") -> None:
    begun = journal.begin(id_, destination, "worker", 60_000)
    assert begun
    journal.finish(id_, "worker", replace(begun.delivery, status=DeliveryStatus.DELIVERED, delivered_ms=1))


def test_the_oldest_is_found_though_it_is_tried_last(bench: JournalBench, looking: Looking) -> None:
    assert looking.since_ms() is None
    stored = []
    for number in range(3):
        stored.append(store(bench.journal, number))
        bench.advance(1_000)
    assert looking.since_ms() == stored[0][1]
    assert looking.since_ms("archive") is None


def test_after_its_end_it_is_the_next_without_another_search(bench: JournalBench, looking: Looking) -> None:
    stored = []
    for number in range(3):
        stored.append(store(bench.journal, number))
        bench.advance(1_000)
    for id_, since_ms in stored:
        assert looking.since_ms() == since_ms
        end(bench.journal, id_)
    assert looking.since_ms() is None
    assert looking.searches == 1


def test_it_looks_again_now_and_then(bench: JournalBench, looking: Looking) -> None:
    store(bench.journal, 1)
    for _ in range(3):
        looking.since_ms()
    looking.now_s += LOOKED_AGAIN_AFTER_S + 1
    looking.since_ms()
    assert looking.searches == 2


def test_a_search_that_takes_long_is_followed_by_a_long_rest(
    bench: JournalBench, looking: Looking, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Meanwhile it is told how old the others can be at the most."""
    monkeypatch.setattr(waiting, "OLDEST_KEPT", 1)
    stored = []
    for number in range(3):
        stored.append(store(bench.journal, number))
        bench.advance(1_000)
    looking.a_search_takes(100)
    assert looking.since_ms() == stored[0][1]
    end(bench.journal, stored[0][0])
    end(bench.journal, stored[1][0])
    assert looking.since_ms() == stored[1][1]
    assert looking.searches == 1
    looking.now_s += 2_001
    assert looking.since_ms() == stored[2][1]
    assert looking.searches == 2


def test_each_destination_has_its_own(bench: JournalBench, looking: Looking) -> None:
    _, first_ms = store(bench.journal, 1, "crm")
    bench.advance(1_000)
    _, second_ms = store(bench.journal, 2, "archive")
    assert (looking.since_ms("crm"), looking.since_ms("archive")) == (first_ms, second_ms)
