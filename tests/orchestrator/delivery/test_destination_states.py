"""Paused destinations: known at once on the machine that paused one, and on the others with the next note."""

from __future__ import annotations

import pytest

from deduplication.journal.sqlite import Journal
from orchestrator.delivery.destination_states import DestinationStates


def test_an_email_on_its_way_reads_nothing_more_than_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    journal = Journal(":memory:")
    one, other = DestinationStates(journal), DestinationStates(journal)
    assert not one.of("crm").is_paused
    other.decide("crm", is_paused=True, reason="", by="ada")
    assert not one.of("crm").is_paused
    now[0] += 1.1
    assert one.of("crm").is_paused
    journal.close()
