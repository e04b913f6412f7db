"""What every journal promises of the texts that others keep in it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from tests.support.journals import JournalBench

ODD = 'é {"a": [1, "b\\u0000"]}'


def test_a_memo_is_kept_and_known_to_all(bench: JournalBench) -> None:
    assert bench.journal.memo("alerts") is None
    assert bench.journal.change_memo("alerts", None, ODD)
    assert bench.another.memo("alerts") == ODD
    assert bench.another.memo("another") is None
    assert bench.journal.change_memo("alerts", ODD, "")
    assert bench.another.memo("alerts") == ""


def test_it_changes_only_where_it_is_as_it_was(bench: JournalBench) -> None:
    assert not bench.journal.change_memo("alerts", "before", "after")
    assert bench.journal.change_memo("alerts", None, "one")
    assert not bench.another.change_memo("alerts", None, "two")
    assert not bench.another.change_memo("alerts", "", "two")
    assert bench.another.change_memo("alerts", "one", "two")
    assert bench.journal.memo("alerts") == "two"


def test_of_many_that_change_it_at_once_one_does(bench: JournalBench) -> None:
    bench.journal.change_memo("alerts", None, "before")
    with ThreadPoolExecutor(8) as threads:
        changed = list(threads.map(lambda n: bench.journal.change_memo("alerts", "before", str(n)), range(8)))
    assert sum(changed) == 1
    assert bench.another.memo("alerts") == str(changed.index(True))
