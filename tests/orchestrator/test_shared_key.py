from __future__ import annotations

import pytest

from deduplication.errors import StoreUnavailable
from deduplication.journal.memory import MemoryJournal
from orchestrator.shared_key import KEY_BYTES, SharedKey


def test_all_who_share_a_journal_share_a_random_key() -> None:
    journal, other_journal = MemoryJournal(), MemoryJournal()
    keys = [SharedKey(each) for each in (journal, journal, other_journal)]
    for key in keys:
        key.refresh()
    assert keys[0].value == keys[1].value != keys[2].value
    assert len(keys[0].value) == KEY_BYTES


def test_without_an_answer_of_the_journal_a_process_has_its_own_key_and_asks_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(_candidate: bytes) -> bytes:
        raise StoreUnavailable("away")

    journal = MemoryJournal()
    known = SharedKey(journal)
    known.refresh()
    with monkeypatch.context() as away:
        away.setattr(journal, "shared_key", fail)
        key = SharedKey(journal)
        key.refresh()
        assert key.value != known.value
    key.refresh()
    assert key.value == known.value
