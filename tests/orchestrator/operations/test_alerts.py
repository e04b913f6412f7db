"""What is an alarm, when it begins and when it ends."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.operations.alerts import (
    LEAST_RECEIVED,
    MOST_EPISODES,
    TOLD_AGAIN_AFTER_S,
    AlertCondition,
    Board,
    Diagnosis,
    Episode,
    Facts,
    Notice,
    Phase,
    diagnose,
    read_board,
)

SOUND = Facts(
    has_redis=True,
    has_queue=True,
    redis_error_share=0.05,
    local_share=0.10,
    received=LEAST_RECEIVED,
    stopped=LEAST_RECEIVED // 100,
    died={"crm": 0},
    breakers={"crm": "closed"},
    oldest_s={"crm": 900},
    workers=1,
    policy="noeviction",
)
MINUTE_MS = 60_000
NOON_MS = 1_800_000_000_000
WRONG = Diagnosis({"breaker_open:crm": "crm keeps failing"})
WELL = Diagnosis({})


def test_at_its_bounds_nothing_is_wrong() -> None:
    assert diagnose(SOUND) == Diagnosis({})


@pytest.mark.parametrize(
    ("facts", "key", "words"),
    [
        ({"redis_error_share": 0.051}, "redis_errors", "Redis failed 5.1 % of what it was asked"),
        ({"local_share": 0.101}, "local_journal", "Redis was away for 10.1 % of the last ten minutes"),
        ({"stopped": LEAST_RECEIVED // 100 - 1}, "low_hit_rate", "Of 1000 emails within a day only 0.9 % were known"),
        ({"died": {"crm": 3, "log": 0}}, "dead_letters:crm", "New dead letters at crm within an hour: 3."),
        ({"breakers": {"crm": "open", "log": "closed"}}, "breaker_open:crm", "crm keeps failing: its breaker is open"),
        ({"breakers": {"crm": "half-open"}}, "breaker_open:crm", "crm keeps failing: its breaker is open"),
        ({"oldest_s": {"crm": 901}}, "oldest_waiting:crm", "An email has waited for 15 min to be delivered to crm."),
        ({"workers": 0}, "no_worker", "The queue has no worker"),
        ({"policy": "allkeys-lru"}, "eviction_policy", "Redis maxmemory-policy is allkeys-lru"),
    ],
)
def test_each_condition_beyond_its_bound_is_wrong_and_only_that(facts: dict[str, Any], key: str, words: str) -> None:
    found = diagnose(replace(SOUND, **facts))
    assert list(found.wrong) == [key]
    assert found.wrong[key].startswith(words)
    assert found.unknown == frozenset()
    condition = AlertCondition(key.partition(":")[0])
    assert diagnose(replace(SOUND, **facts), off=[condition]).wrong == {}


def test_of_a_few_emails_the_hit_rate_says_nothing() -> None:
    assert diagnose(replace(SOUND, received=LEAST_RECEIVED - 1, stopped=0)).wrong == {}


def test_what_there_is_none_of_is_neither_wrong_nor_unknown() -> None:
    without = replace(SOUND, has_redis=False, has_queue=False, policy="allkeys-lru", workers=0, local_share=None)
    assert diagnose(without) == Diagnosis({})


def test_what_cannot_be_told_is_unknown() -> None:
    assert diagnose(Facts(has_redis=True, has_queue=True)).unknown == frozenset(AlertCondition)


# Begin and end


def after(board: Board, *steps: tuple[Diagnosis, int]) -> Board:
    """``steps``: what was found, and after how many milliseconds."""
    now_ms = NOON_MS
    for found, ms in steps:
        now_ms += ms
        board = board.after(found, now_ms, MINUTE_MS)
    return board


def test_an_alarm_begins_once_it_lasts() -> None:
    board = after(Board(), (WRONG, 0), (WRONG, MINUTE_MS - 1))
    assert board.alarms == []
    board = after(Board(), (WRONG, 0), (WRONG, MINUTE_MS))
    (alarm,) = board.alarms
    assert (alarm.condition, alarm.destination, alarm.since_ms) == (AlertCondition.BREAKER_OPEN, "crm", NOON_MS)
    assert alarm.shown() == {
        "condition": "breaker_open",
        "destination": "crm",
        "since": "2027-01-15T08:00:00+00:00",
        "text": "crm keeps failing",
    }


def test_what_comes_and_goes_is_no_alarm() -> None:
    flapping = [(WRONG, 30_000), (WELL, 20_000)] * 20
    assert after(Board(), *flapping).alarms == []
    assert after(Board(), *flapping).episodes == {}


def test_an_alarm_ends_once_it_stays_away_and_what_comes_and_goes_does_not_end_it() -> None:
    board = after(Board(), (WRONG, 0), (WRONG, MINUTE_MS))
    flapping = [(WELL, 30_000), (WRONG, 20_000)] * 20
    assert len(after(board, *flapping).alarms) == 1
    assert len(after(board, (WELL, 0), (WELL, MINUTE_MS - 1)).alarms) == 1
    over = after(board, (WELL, 0), (WELL, MINUTE_MS))
    assert over.alarms == []
    assert over.episodes["breaker_open:crm"].ended_ms == NOON_MS + MINUTE_MS
    again = after(over, (WRONG, 0), (WRONG, MINUTE_MS))
    assert again.episodes["breaker_open:crm"].number == 2


def test_what_nobody_can_tell_neither_begins_nor_ends() -> None:
    unknown = Diagnosis({}, frozenset({AlertCondition.BREAKER_OPEN}))
    board = after(Board(), (WRONG, 0), (WRONG, MINUTE_MS), (unknown, 100 * MINUTE_MS), (unknown, 100 * MINUTE_MS))
    assert len(board.alarms) == 1
    assert after(Board(), (WRONG, 0), (unknown, MINUTE_MS)).alarms == []


def test_a_clock_that_was_set_back_holds_no_alarm_up() -> None:
    assert after(Board(), (WRONG, 0), (WRONG, -3600_000), (WRONG, MINUTE_MS - 1)).alarms == []
    assert len(after(Board(), (WRONG, 0), (WRONG, -3600_000), (WRONG, MINUTE_MS)).alarms) == 1


def test_destinations_that_come_and_go_leave_no_more_than_a_bound() -> None:
    board = Board()
    for number in range(3):
        wrong = Diagnosis({f"breaker_open:d{number}-{each}": "x" for each in range(MOST_EPISODES // 2)})
        board = after(board, (wrong, 0), (wrong, MINUTE_MS), (WELL, 1), (WELL, MINUTE_MS))
    board = after(board, (WRONG, 0), (WRONG, MINUTE_MS))
    assert len(board.episodes) == MOST_EPISODES
    assert len(board.alarms) == 1


# Who is told


def test_the_begin_is_told_first_and_the_end_only_of_what_is_over() -> None:
    episode = Episode(1, "x", begun_ms=NOON_MS)
    assert Episode(turning_ms=5).next_notice(NOON_MS) is None
    assert episode.next_notice(NOON_MS) is Phase.BEGUN
    over = replace(episode, ended_ms=NOON_MS + 1)
    assert over.next_notice(NOON_MS) is Phase.BEGUN
    assert replace(episode, begin=Notice(is_over=True)).next_notice(NOON_MS) is None
    assert replace(over, begin=Notice(is_over=True)).next_notice(NOON_MS) is Phase.ENDED
    assert replace(over, begin=Notice(is_over=True), end=Notice(is_over=True)).next_notice(NOON_MS) is None


def test_it_is_tried_a_bounded_number_of_times_each_later() -> None:
    notice, now_ms, waits_s = Notice(), NOON_MS, []
    while not notice.is_over:
        notice = notice.after_try(now_ms)
        if not notice.is_over:
            waits_s.append((notice.next_try_ms - now_ms) // 1000)
            assert Episode(1, "x", NOON_MS, begin=notice).next_notice(notice.next_try_ms - 1) is None
            now_ms = notice.next_try_ms
    assert tuple(waits_s) == TOLD_AGAIN_AFTER_S
    assert notice.tries == len(TOLD_AGAIN_AFTER_S) + 1


def test_the_webhook_says_what_when_and_that_it_is_over() -> None:
    board = replace(after(Board(), (WRONG, 0), (WRONG, MINUTE_MS)), fleet="f")
    begun = board.webhook("breaker_open:crm", Phase.BEGUN)
    said = {
        "condition": "breaker_open",
        "destination": "crm",
        "status": "begun",
        "text": "crm keeps failing",
        "since": "2027-01-15T08:00:00+00:00",
        "until": None,
    }
    told = {"type": "mailonce.alert", "timestamp": "2027-01-15T08:00:00Z"}
    assert begun.payload == {**told, **said, "data": said}
    over = after(board, (WELL, 5 * MINUTE_MS), (WELL, MINUTE_MS))
    ended = over.webhook("breaker_open:crm", Phase.ENDED)
    assert ended.payload["timestamp"] == "2027-01-15T08:06:00Z"
    assert (ended.payload["status"], ended.payload["data"]["status"]) == ("ended", "ended")
    assert ended.payload["data"]["text"] == "Over after 6 min: crm keeps failing"
    assert ended.payload["data"]["until"] == "2027-01-15T08:06:00+00:00"
    assert begun.webhook_id == over.webhook("breaker_open:crm", Phase.BEGUN).webhook_id != ended.webhook_id
    assert replace(board, fleet="g").webhook("breaker_open:crm", Phase.BEGUN).webhook_id != begun.webhook_id


# What is kept


NOTICES = st.builds(Notice, st.integers(0, 3), st.integers(0, 3), st.booleans())
EPISODES = st.builds(
    Episode, st.integers(0, 2), st.just("x"), st.integers(0, 3), st.integers(0, 3), st.just(0), NOTICES, NOTICES
)
BOARDS = st.builds(
    Board,
    st.sampled_from(["", "f", "g"]),
    st.dictionaries(st.sampled_from(["no_worker", "breaker_open:crm"]), EPISODES),
)


@given(BOARDS)
def test_what_is_written_is_read_again(board: Board) -> None:
    assert read_board(board.written()) == board


def test_what_another_version_knows_is_left_out() -> None:
    board = Board("f", {"no_worker": Episode(1, "x", 1)})
    written = board.written().replace('"episodes": {', '"episodes": {"rain": {"number": 1}, ')
    assert read_board(written) == board
    assert read_board(None) == Board()


@given(BOARDS, BOARDS)
def test_two_that_went_on_apart_come_to_the_same(one: Board, two: Board) -> None:
    assert one.merged(two).merged(two) == one.merged(two)
    assert one.merged(two).fleet == two.merged(one).fleet
    for key, episode in one.merged(two).episodes.items():
        other = two.merged(one).episodes[key]
        assert episode.number == other.number
        both = key in one.episodes and key in two.episodes
        if both and one.episodes[key].number == two.episodes[key].number:
            assert episode == other
            assert episode.begin.is_over == (one.episodes[key].begin.is_over or two.episodes[key].begin.is_over)


def test_an_older_copy_does_not_say_that_it_is_turning() -> None:
    now, copy = Board("f", {"no_worker": Episode(1, "x", 1)}), Board("f", {"no_worker": Episode(1, "x", 1, 0, 77)})
    assert now.merged(copy) == now
