"""The realtime guard: nothing from before the start, and each message once."""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from deduplication.realtime_guard import GuardStats, RealtimeGuard, Timestamp

START = datetime(2026, 11, 16, 12, 30, 45, 123456, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
PARIS_WINTER = timezone(timedelta(hours=1))
MOMENTS = st.datetimes(datetime(1980, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC))
EPOCHS = st.floats(0, 4e9) | st.integers(0, 4_000_000_000)
SOURCES = st.sampled_from(["tg:news", "vk:group", "reddit:sub", ""])
IDS = st.text(max_size=8) | st.integers(0, 10**12)


class BrokenLogger(logging.Logger):
    """Raises on every line."""

    def __init__(self) -> None:
        super().__init__("broken")
        self.tried = 0

    def log(self, *_: object, **__: object) -> None:
        self.tried += 1
        raise OSError("the disk is full")


def damage(guard: RealtimeGuard, container: object) -> None:
    vars(guard)["_processed"] = container


# The filter by time


@given(start=MOMENTS, timestamp=MOMENTS)
@example(start=START, timestamp=START)
@example(start=START, timestamp=START - MICROSECOND)
@example(start=START, timestamp=START + MICROSECOND)
def test_a_message_is_new_exactly_if_it_is_not_older_than_the_start(start: datetime, timestamp: datetime) -> None:
    guard = RealtimeGuard(start)
    assert guard.is_new_message(timestamp) is (timestamp >= start)
    assert guard.is_new_message(timestamp.timestamp()) is (timestamp >= start), "as seconds it is the same moment"
    assert guard.stats.skipped_old == (0 if timestamp >= start else 2)


@given(start=EPOCHS, timestamp=EPOCHS)
def test_seconds_are_compared_with_the_start_as_it_is_shown(start: float, timestamp: float) -> None:
    guard = RealtimeGuard(start)
    assert guard.is_new_message(timestamp) is (timestamp >= guard.startup_time.timestamp())


@given(EPOCHS)
@example(1_800_000_000.0000009)
def test_the_moment_of_the_start_is_new(start: float) -> None:
    assert RealtimeGuard(start).is_new_message(start)


@given(timestamp=MOMENTS)
def test_a_naive_time_is_taken_as_utc(timestamp: datetime) -> None:
    naive = timestamp.replace(tzinfo=None)
    assert RealtimeGuard(naive).startup_time == timestamp
    assert RealtimeGuard(timestamp).is_new_message(naive)
    assert not RealtimeGuard(timestamp + MICROSECOND).is_new_message(naive)


def test_a_naive_time_is_taken_as_utc_wherever_the_machine_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as there:
        there.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        guard = RealtimeGuard(START.replace(tzinfo=None))
        is_new = guard.is_new_message(START.replace(tzinfo=None))
    time.tzset()
    assert guard.startup_time == START
    assert is_new


class Aimless(tzinfo):
    """A time zone that does not know its offset: the time is naive all the same."""

    def utcoffset(self, _: datetime | None) -> None:
        return None

    dst = utcoffset

    def tzname(self, _: datetime | None) -> None:
        return None


def test_a_time_whose_zone_knows_no_offset_is_naive_too() -> None:
    assert RealtimeGuard(START).is_new_message(START.replace(tzinfo=Aimless()))


def test_time_zones_do_not_matter() -> None:
    guard = RealtimeGuard(START.astimezone(PARIS_WINTER))
    assert guard.is_new_message(START)
    assert not guard.is_new_message((START - MICROSECOND).astimezone(PARIS_WINTER))


@pytest.mark.parametrize(
    ("timestamp", "is_new"),
    [
        (float("inf"), True),
        (10**400, True),
        (1_800_000_000_000, True),
        (datetime.max.replace(tzinfo=timezone(timedelta(hours=-12))), True),
        (0, False),
        (-(10**400), False),
        (float("-inf"), False),
        (datetime.min.replace(tzinfo=timezone(timedelta(hours=14))), False),
    ],
)
def test_no_time_is_too_far_away(timestamp: Timestamp, is_new: bool) -> None:
    assert RealtimeGuard(START).is_new_message(timestamp) is is_new


def test_a_time_as_text_is_refused() -> None:
    text: Any = "2026-11-16T12:30:45Z"
    with pytest.raises(TypeError, match="a datetime or seconds since 1970, not str"):
        RealtimeGuard(START).is_new_message(text)


# No date


@pytest.mark.parametrize("missing", [None, float("nan")])
@pytest.mark.parametrize("source", ["", "tg:news", "reddit:vk:sub", "vk", "VK:group"])
def test_without_a_date_a_message_is_new_with_a_warning(
    caplog: pytest.LogCaptureFixture, missing: float | None, source: str
) -> None:
    guard = RealtimeGuard(START)
    assert guard.is_new_message(missing, source)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert f"{source!r} has no date; it is taken for new" in record.getMessage()
    assert guard.stats == GuardStats()


def test_without_a_date_a_message_of_vk_is_old(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    guard = RealtimeGuard(START)
    assert not guard.is_new_message(None, "vk:group")
    assert guard.stats.skipped_old == 1
    assert "'vk:group' has no date; it is taken for old" in caplog.text
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_with_a_date_the_source_does_not_matter() -> None:
    assert RealtimeGuard(START).is_new_message(START, "vk:group")
    assert not RealtimeGuard(START, missing_date={"": "new"}).is_new_message(START - MICROSECOND, "tg:news")


def test_the_longest_start_of_the_source_decides() -> None:
    guard = RealtimeGuard(START, missing_date={"": "old", "tg:": "new", "tg:archive": "old"})
    verdicts = {source: guard.is_new_message(None, source) for source in ("tg:news", "tg:archive:1", "vk:group")}
    assert verdicts == {"tg:news": True, "tg:archive:1": False, "vk:group": False}


def test_a_policy_of_ones_own_takes_the_place_of_the_default() -> None:
    assert RealtimeGuard(START, missing_date={"tg:": "old"}).is_new_message(None, "vk:group")


def test_a_policy_changed_afterwards_changes_nothing() -> None:
    policy = {"tg:": "new"}
    guard = RealtimeGuard(START, missing_date=policy)
    policy["tg:"] = "old"
    assert guard.is_new_message(None, "tg:news")


def test_a_policy_other_than_new_or_old_is_refused() -> None:
    with pytest.raises(ValueError, match=r"missing_date of 'tg:' is 'maybe': it takes \"new\" or \"old\""):
        RealtimeGuard(START, missing_date={"tg:": "maybe"})


# The start


def test_without_a_start_given_it_starts_now() -> None:
    before = datetime.now(UTC)
    guard = RealtimeGuard()
    assert before <= guard.startup_time <= datetime.now(UTC)


@pytest.mark.parametrize("start", [START, START.astimezone(PARIS_WINTER), START.replace(tzinfo=None)])
def test_the_start_is_in_utc_and_logged_in_iso_8601(caplog: pytest.LogCaptureFixture, start: datetime) -> None:
    caplog.set_level(logging.INFO)
    guard = RealtimeGuard(start)
    assert (guard.startup_time, guard.startup_time.tzinfo) == (START, UTC)
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("deduplication.realtime_guard", logging.INFO)
    assert "2026-11-16T12:30:45.123456+00:00" in record.getMessage()


def test_the_start_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        setattr(RealtimeGuard(START), "startup_time", START)  # noqa: B010 - mypy knows it cannot


# Mark, then detect


@given(marked=st.lists(st.tuples(SOURCES, IDS), max_size=50), other=st.tuples(SOURCES, IDS))
def test_what_was_marked_is_a_duplicate_and_nothing_else(
    marked: list[tuple[str, str | int]], other: tuple[str, str | int]
) -> None:
    guard = RealtimeGuard(START)
    for source, message_id in marked:
        guard.mark_processed(source, message_id)
        assert guard.is_duplicate(source, message_id)
    known = {(source, str(message_id)) for source, message_id in marked}
    assert guard.is_duplicate(*other) is ((other[0], str(other[1])) in known)


def test_the_same_id_of_another_source_is_another_message() -> None:
    guard = RealtimeGuard(START)
    guard.mark_processed("tg:news", "1")
    assert not guard.is_duplicate("tg:other", "1")
    assert not guard.is_duplicate("tg:news", "2")


@pytest.mark.parametrize("joint", [":", "_", "|", "/", "\0", " ", ""])
def test_source_and_id_never_run_into_each_other(joint: str) -> None:
    guard = RealtimeGuard(START)
    guard.mark_processed(f"a{joint}b", "c")
    assert not guard.is_duplicate("a", f"b{joint}c")


def test_an_id_is_the_same_as_number_and_as_text() -> None:
    guard = RealtimeGuard(START)
    guard.mark_processed("tg:news", 42)
    assert guard.is_duplicate("tg:news", "42")


def test_only_the_first_to_mark_a_message_is_told_so() -> None:
    guard = RealtimeGuard(START)
    assert [guard.mark_processed("tg:news", 1) for _ in range(3)] == [True, False, False]


def test_asking_marks_nothing() -> None:
    guard = RealtimeGuard(START)
    assert not guard.is_duplicate("tg:news", 1)
    assert not guard.is_duplicate("tg:news", 1)
    assert guard.is_new_message(START)
    assert len(guard) == 0


# Its size


SIZES = st.integers(1, 12_000).flatmap(lambda most: st.tuples(st.just(most), st.integers(1, most)))


@settings(max_examples=30, deadline=None)
@given(sizes=SIZES, insertions=st.integers(0, 20_000))
@example(sizes=(10_000, 5_000), insertions=20_000)
@example(sizes=(10_000, 10_000), insertions=20_000)
@example(sizes=(1, 1), insertions=20_000)
def test_it_never_remembers_more_than_max_size(sizes: tuple[int, int], insertions: int) -> None:
    guard = RealtimeGuard(START, *sizes)
    largest = 0
    for number in range(insertions):
        guard.mark_processed("tg:news", number)
        largest = max(largest, len(guard))
        assert guard.is_duplicate("tg:news", number)
    assert largest == min(insertions, sizes[0])


def test_by_default_above_10_000_the_oldest_go_until_5_000_are_left() -> None:
    guard = RealtimeGuard(START)
    for number in range(10_000):
        guard.mark_processed("tg:news", number)
    assert len(guard) == 10_000
    guard.mark_processed("tg:news", 10_000)
    assert len(guard) == 5_000
    assert [number for number in range(10_001) if guard.is_duplicate("tg:news", number)] == list(range(5_001, 10_001))
    assert guard.stats.processed_count == 10_001


def test_marking_again_does_not_keep_a_message_longer() -> None:
    guard = RealtimeGuard(START, max_size=3, trim_size=2)
    for number in (1, 2, 3, 1, 4):
        guard.mark_processed("tg:news", number)
    assert [number for number in (1, 2, 3, 4) if guard.is_duplicate("tg:news", number)] == [3, 4]


@pytest.mark.parametrize(
    ("max_size", "trim_size", "complaint"),
    [
        (0, 0, "max_size is 0: it takes 1 or more"),
        (-5, 1, "max_size is -5: it takes 1 or more"),
        (10, 0, "trim_size is 0: it takes 1 to max_size, which is 10"),
        (10, 11, "trim_size is 11: it takes 1 to max_size, which is 10"),
    ],
)
def test_sizes_that_cannot_work_are_refused(max_size: int, trim_size: int, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        RealtimeGuard(START, max_size, trim_size)


# Numbers


def test_the_numbers_say_what_was_skipped_and_processed() -> None:
    guard = RealtimeGuard(START)
    guard.is_new_message(START - MICROSECOND)
    guard.is_new_message(None, "vk:group")
    guard.is_new_message(START)
    for _ in range(3):
        guard.is_duplicate("tg:news", 1)
        guard.mark_processed("tg:news", 1)
    guard.mark_processed("tg:news", 2)
    assert guard.stats == GuardStats(skipped_old=2, skipped_duplicate=2, processed_count=2)


def test_a_message_that_had_to_go_was_processed_all_the_same() -> None:
    guard = RealtimeGuard(START, max_size=2, trim_size=1)
    for number in range(7):
        guard.mark_processed("tg:news", number)
    assert guard.stats.processed_count == 7


def test_the_numbers_are_a_frozen_snapshot() -> None:
    guard = RealtimeGuard(START)
    before = guard.stats
    guard.mark_processed("tg:news", 1)
    assert (before.processed_count, guard.stats.processed_count) == (0, 1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(before, "processed_count", 7)  # noqa: B010 - mypy knows it cannot


# What must not stop a message


@pytest.mark.parametrize(
    "container", [None, "garbage", 42, [("tg:news", "1")], object()], ids=lambda each: type(each).__name__
)
@pytest.mark.parametrize(
    "ask",
    [
        lambda guard: guard.is_duplicate("tg:news", 1) is False,
        lambda guard: guard.mark_processed("tg:news", 1) is True,
        lambda guard: len(guard) == 0,
    ],
    ids=["is_duplicate", "mark_processed", "len"],
)
def test_a_damaged_set_is_rebuilt_empty_and_logged(
    caplog: pytest.LogCaptureFixture, ask: Callable[[RealtimeGuard], bool], container: object
) -> None:
    guard = RealtimeGuard(START)
    guard.mark_processed("tg:news", 1)
    damage(guard, container)
    assert ask(guard)
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert f"damaged ({type(container).__name__}) and starts anew, empty" in record.getMessage()

    guard.mark_processed("tg:news", 2)
    assert guard.is_duplicate("tg:news", 2)
    assert len(caplog.records) == 1


def test_a_failing_log_line_never_stops_a_message() -> None:
    logger = BrokenLogger()
    guard = RealtimeGuard(START, logger=logger)
    assert guard.is_new_message(None, "tg:news")
    assert not guard.is_new_message(None, "vk:group")
    damage(guard, None)
    assert guard.mark_processed("tg:news", 1)
    assert guard.is_duplicate("tg:news", 1)
    assert logger.tried == 4, "the start, two missing dates, the damaged set"


def test_a_logger_may_ask_the_guard_in_return() -> None:
    class Curious(logging.Logger):
        def log(self, *_: object, **__: object) -> None:
            seen.append(len(guard))

    seen: list[int] = []
    guard = RealtimeGuard(START, logger=Curious("curious"))
    damage(guard, None)
    guard.mark_processed("tg:news", 1)
    assert seen == [0]


# Threads


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
    assert guard.stats == GuardStats(skipped_old=everyone, skipped_duplicate=everyone, processed_count=messages)
