from __future__ import annotations

import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.metrics.history import DAY_S, HOUR_S, KEPT_S, Counts, History, growth

EMAIL, TIME = "emails|gmail|processed", "delivery_s|crm|sum"
NOON = 1_794_830_400  # a whole hour


def buckets(history: History, step_s: int, starts: list[int]) -> dict[int, Counts]:
    return history.read(step_s, starts)[0]


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    history = History(tmp_path / "figures.db")
    yield history
    history.close()


def test_what_was_counted_since_the_last_time_is_added_to_the_buckets_of_now(history: History) -> None:
    history.record({EMAIL: 5, TIME: 0.25}, NOON)
    history.record({EMAIL: 7, TIME: 0.5}, NOON + 59)
    history.record({EMAIL: 10}, NOON + 60)
    assert buckets(history, 60, [NOON, NOON + 60]) == {NOON: {EMAIL: 7, TIME: 0.5}, NOON + 60: {EMAIL: 3}}
    assert buckets(history, 600, [NOON]) == {NOON: {EMAIL: 10, TIME: 0.5}}
    assert buckets(history, HOUR_S, [NOON]) == {NOON: {EMAIL: 10, TIME: 0.5}}


def test_recording_twice_adds_nothing(history: History) -> None:
    for _ in range(3):
        history.record({EMAIL: 5}, NOON)
    assert buckets(history, 60, [NOON]) == {NOON: {EMAIL: 5}}


def test_what_was_not_recorded_yet_is_known(history: History) -> None:
    history.record({EMAIL: 5}, NOON)
    recorded, counted = history.read(60, [NOON])
    assert (recorded, counted) == ({NOON: {EMAIL: 5}}, {EMAIL: 5})
    assert growth({EMAIL: 8}, counted) == {EMAIL: 3}
    assert growth({EMAIL: 5}, counted) == {}


def test_a_file_that_was_lost_is_no_growth_of_the_others(history: History) -> None:
    """Of 100, one process had counted 98. What the other one counts from then on is added as ever."""
    history.record({EMAIL: 100}, NOON)
    history.record({EMAIL: 2}, NOON + 60)
    assert buckets(history, 60, [NOON + 60]) == {}
    history.record({EMAIL: 5}, NOON + 120)
    assert buckets(history, 60, [NOON + 120]) == {NOON + 120: {EMAIL: 3}}


def test_seconds_that_are_no_whole_numbers_neither_grow_nor_shrink_by_themselves(history: History) -> None:
    for _ in range(3):
        history.record({TIME: 1.00000191}, NOON)
        told = history.untold()
        history.mark_told(list(told), "mark")
    assert (buckets(history, 60, [NOON]), told) == ({NOON: {TIME: 1.000002}}, {})


def test_what_is_no_figure_over_time_is_left_out(history: History) -> None:
    history.record({"groups": 9, "request_s|sum": 3.5}, NOON)
    assert history.untold() == {}


def test_buckets_are_bounded(history: History) -> None:
    for minute in range(40 * 24 * 6):
        history.record({EMAIL: minute + 1}, NOON + minute * 600)
    end = NOON + 40 * DAY_S
    for step_s, kept_s in KEPT_S.items():
        kept = buckets(history, step_s, [0, end])
        assert min(kept) >= end - 600 - kept_s
        assert len(kept) <= kept_s // step_s + 1
    assert sum(bucket[EMAIL] for bucket in buckets(history, HOUR_S, [end - DAY_S, end]).values()) == 144


def test_a_record_that_is_cut_off_is_made_as_a_whole_the_next_time(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(History, "_note", lambda *_: (_ for _ in ()).throw(sqlite3.OperationalError("disk full")))
        with pytest.raises(sqlite3.OperationalError):
            history.record({EMAIL: 5}, NOON)
    assert buckets(history, 60, [NOON]) == {}
    history.record({EMAIL: 6}, NOON + 60)
    assert buckets(history, HOUR_S, [NOON]) == {NOON: {EMAIL: 6}}


def test_it_goes_on_over_a_restart_in_a_file_for_this_user_alone(tmp_path: Path) -> None:
    path = tmp_path / "figures.db"
    for count in (5, 8):
        history = History(path)
        history.record({EMAIL: count}, NOON)
        history.close()
    history = History(path)
    assert buckets(history, 60, [NOON]) == {NOON: {EMAIL: 8}}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    history.close()


def test_a_damaged_file_begins_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "figures.db"
    path.write_bytes(b"this is no database" * 100)
    history = History(path)
    history.record({EMAIL: 1}, NOON)
    assert buckets(history, 60, [NOON]) == {NOON: {EMAIL: 1}}
    assert "begin anew" in caplog.text
    history.close()


def test_what_changed_after_it_was_told_is_told_again(history: History) -> None:
    history.record({EMAIL: 1}, NOON)
    told = history.untold()
    assert {step_s for step_s, _ in told} == set(KEPT_S)
    history.mark_told(list(told), "mark")
    assert (history.untold(), history.mark()) == ({}, "mark")
    history.record({EMAIL: 2}, NOON + 60)
    assert (60, NOON) not in history.untold()
    assert history.untold()[HOUR_S, NOON] == f'{{"{EMAIL}":2}}'
    history.mark_untold()
    assert (60, NOON) in history.untold()
