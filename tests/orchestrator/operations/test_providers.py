"""What came last by each provider, and what was refused."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from deduplication.journal.base import Journal
from deduplication.journal.sqlite import SqliteJournal
from orchestrator.operations.providers import MOST_WHY_CHARACTERS, ProviderSeen, ProvidersSeen
from tests.support.journals import JournalBench

SEEN = st.builds(ProviderSeen, st.integers(0, 3), st.sampled_from("ab"), st.integers(0, 3), st.sampled_from("ab"))


class Clock:
    now_s = 1_000.0

    def __call__(self) -> float:
        self.now_s += 1
        return self.now_s


def two(journal: Journal, another: Journal) -> tuple[ProvidersSeen, ProvidersSeen]:
    clock = Clock()
    return ProvidersSeen(journal, clock), ProvidersSeen(another, clock)


def test_the_last_of_each_kind_is_known(bench: JournalBench) -> None:
    here, _ = two(bench.journal, bench.another)
    assert here.read() == {}
    here.note_email("gmail", "processed")
    here.note_email("gmail", "already_processed")
    here.note_refusal("gmail", "no or wrong token")
    here.note_refusal("ses", "it takes topics")
    assert here.read() == {
        "gmail": ProviderSeen(1_002_000, "already_processed", 1_003_000, "no or wrong token"),
        "ses": ProviderSeen(refused_ms=1_004_000, why="it takes topics"),
    }


def test_other_processes_of_the_machine_know_once_it_is_written(bench: JournalBench) -> None:
    here, there = two(bench.journal, bench.another)
    here.note_email("gmail", "processed")
    there.note_refusal("gmail", "no or wrong token")
    assert there.read() == {"gmail": ProviderSeen(refused_ms=1_002_000, why="no or wrong token")}
    here.write()
    there.write()
    assert ProvidersSeen(bench.journal).read() == here.read()
    there.note_email("gmail", "queued")
    assert here.read() == {"gmail": ProviderSeen(1_001_000, "processed", 1_002_000, "no or wrong token")}
    assert there.read()["gmail"].status == "queued"
    there.write()
    here.write()
    assert here.read()["gmail"].status == "queued", "what is older never counts again"


def test_it_survives_a_restart(tmp_path: Path) -> None:
    journal = SqliteJournal(tmp_path / "journal.db")
    before = ProvidersSeen(journal)
    before.note_email("gmail", "processed")
    before.write()
    assert ProvidersSeen(journal).read() == before.read()
    journal.close()


def test_nothing_is_written_where_nothing_came(bench: JournalBench) -> None:
    here, there = two(bench.journal, bench.another)
    here.note_email("gmail", "processed")
    here.write()
    there.note_email("gmail", "queued")
    there.write()
    here.write()
    assert there.read()["gmail"].status == "queued"
    assert here.read()["gmail"].status == "queued"


def test_a_reason_is_bounded(bench: JournalBench) -> None:
    here, _ = two(bench.journal, bench.another)
    here.note_refusal("gmail", "x" * 10_000)
    assert len(here.read()["gmail"].why) == MOST_WHY_CHARACTERS


@given(SEEN, SEEN, SEEN)
def test_news_come_to_the_same_in_any_order_and_twice(
    one: ProviderSeen, two: ProviderSeen, three: ProviderSeen
) -> None:
    assert one.with_news(two) == two.with_news(one)
    assert one.with_news(two).with_news(three) == one.with_news(two.with_news(three))
    assert one.with_news(one) == one
