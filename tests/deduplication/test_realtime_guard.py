"""The realtime guard: nothing from before the start, and each message once."""

import logging
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from deduplication.realtime_guard import RealtimeGuard

START = datetime(2026, 11, 16, 12, 30, 45, 123456, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
PARIS_WINTER = timezone(timedelta(hours=1))
MOMENTS = st.datetimes(datetime(1980, 1, 1), datetime(2100, 1, 1), timezones=st.sampled_from([UTC, PARIS_WINTER]))
SOURCES = st.sampled_from(["tg:news", "tg", "vk:group", ""])
IDS = st.sampled_from(["news:1", ":news:1", "1", "42", ""]) | st.integers(0, 50)


@given(start=MOMENTS, timestamp=MOMENTS)
@example(start=START, timestamp=START)
@example(start=START, timestamp=START - MICROSECOND)
@example(start=START, timestamp=START + MICROSECOND)
def test_a_message_is_new_exactly_if_it_is_not_older_than_the_start(start: datetime, timestamp: datetime) -> None:
    guard = RealtimeGuard(start)
    assert guard.is_new_message(timestamp) is (timestamp >= start)
    assert guard.is_new_message(timestamp.timestamp()) is (timestamp >= start), "as seconds it is the same moment"
    assert guard.stats["skipped_old"] == (0 if timestamp >= start else 2)


@pytest.mark.parametrize(
    ("options", "source", "verdict"),
    [
        ({}, "tg:news", "new"),
        ({}, "reddit:vk:sub", "new"),
        ({}, "vk:group", "old"),
        ({"old_without_date": ("tg:archive", "x")}, "vk:group", "new"),
        ({"old_without_date": ("tg:archive", "x")}, "tg:archive:1", "old"),
    ],
)
def test_without_a_date_the_source_decides(
    caplog: pytest.LogCaptureFixture, options: dict[str, Any], source: str, verdict: str
) -> None:
    caplog.set_level(logging.INFO)
    guard = RealtimeGuard(START, **options)
    assert guard.is_new_message(None, source) is (verdict == "new")
    assert guard.is_new_message(START, source), "with a date the source does not matter"
    assert guard.stats == Counter(skipped_old=int(verdict == "old"))
    assert caplog.records[-1].levelno == (logging.WARNING if verdict == "new" else logging.INFO)
    assert f"{source!r} has no date and counts as {verdict}" in caplog.records[-1].getMessage()


@pytest.mark.parametrize("start", [START, START.astimezone(PARIS_WINTER), START.replace(tzinfo=None)])
def test_the_start_is_in_utc_and_logged_in_iso_8601(caplog: pytest.LogCaptureFixture, start: datetime) -> None:
    caplog.set_level(logging.INFO)
    guard = RealtimeGuard(start)
    assert (guard.startup_time, guard.startup_time.tzinfo) == (START, UTC)
    assert "2026-11-16T12:30:45.123456+00:00" in caplog.text


@given(marked=st.lists(st.tuples(SOURCES, IDS), max_size=50), other=st.tuples(SOURCES, IDS))
def test_marked_messages_are_duplicates(marked: list[tuple[str, str | int]], other: tuple[str, str | int]) -> None:
    guard = RealtimeGuard(START)
    known: set[tuple[str, str]] = set()
    for source, message_id in marked:
        is_first = (source, str(message_id)) not in known
        assert guard.mark_processed(source, message_id) is is_first
        assert guard.is_duplicate(source, message_id)
        known.add((source, str(message_id)))
    assert guard.is_duplicate(*other) is ((other[0], str(other[1])) in known)


SIZES = st.integers(1, 12).flatmap(lambda most: st.tuples(st.just(most), st.integers(1, most)))


@given(sizes=SIZES, insertions=st.integers(0, 40))
@example(sizes=(), insertions=15_001)
def test_above_max_size_the_oldest_are_forgotten(sizes: tuple[int, int] | tuple[()], insertions: int) -> None:
    """Marking a message again does not keep it longer."""
    guard = RealtimeGuard(START, *sizes)
    max_size, trim_size = sizes or (10_000, 5_000)
    kept = 0
    for number in range(insertions):
        guard.mark_processed("tg:news", number)
        kept = kept + 1 if kept < max_size else trim_size
        assert len(guard) == kept
        guard.mark_processed("tg:news", number - kept + 1)
    known = [number for number in range(insertions) if guard.is_duplicate("tg:news", number)]
    assert known == list(range(insertions - kept, insertions))


@pytest.mark.parametrize("options", [{"max_size": 10, "trim_size": 0}, {"max_size": 10, "trim_size": 11}])
def test_options_that_cannot_work_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="trim_size must be from 1 to max_size, which is 10, got 1?[01]"):
        RealtimeGuard(START, **options)


def test_of_many_threads_exactly_one_marks_each_message_and_no_number_is_lost() -> None:
    threads, messages = 8, 2_000
    guard = RealtimeGuard(START)
    together = threading.Barrier(threads)

    def run(_: int) -> int:
        together.wait()
        firsts = 0
        for number in range(messages):
            guard.is_new_message(START - MICROSECOND)
            firsts += guard.mark_processed("tg:news", number)
            guard.is_duplicate("tg:news", number)
        return firsts

    with ThreadPoolExecutor(threads) as pool:
        firsts = sum(pool.map(run, range(threads)))
    assert firsts == messages
    everyone = threads * messages
    assert guard.stats == {"skipped_old": everyone, "skipped_duplicate": everyone, "processed_count": messages}
