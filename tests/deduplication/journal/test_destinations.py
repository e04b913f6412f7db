"""What every journal promises of destinations: their states, what goes out once they are well, what is given up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deduplication.claims import Kind, Name
from deduplication.journal import base, local, redis
from deduplication.journal.base import Recovered
from deduplication.journal.destination_state import DestinationState
from deduplication.journal.entry import Attempt, DeliveryStatus, Entry
from tests.deduplication.journal.test_contract import DAY_MS, GROUP, LEASE_MS, Desk
from tests.support.journals import JournalBench

HOUR_MS = 3_600_000
HOLD_MS = 60_000
BEFORE, AFTER = 1_000, 2_000  # that it was well
WELL_MS = 1_500
PAUSED = DestinationState(True, 100, "answered 410 Gone", "410")
RESUMED = DestinationState(False, 200, "it is back", "ada", 200)


@pytest.fixture
def desk(bench: JournalBench) -> Desk:
    return Desk(bench)


# States


STATES = st.builds(
    DestinationState,
    is_paused=st.booleans(),
    since_ms=st.integers(0, 3),
    well_since_ms=st.integers(0, 3),
)


@given(STATES, STATES, STATES)
def test_states_come_to_the_same_in_whatever_order_and_however_often_they_are_told(
    one: DestinationState, two: DestinationState, three: DestinationState
) -> None:
    assert one.with_news(two) == two.with_news(one)
    assert one.with_news(two).with_news(three) == one.with_news(two.with_news(three))
    assert one.with_news(one) == one
    assert one.with_news(two).with_news(two) == one.with_news(two)


def test_what_is_known_of_destinations_is_kept_and_known_to_all(desk: Desk, bench: JournalBench) -> None:
    assert desk.journal.states() == {}
    odd = "crm è :{1}"
    assert desk.journal.put_states({"crm": PAUSED, odd: RESUMED}) == {"crm": PAUSED, odd: RESUMED}
    assert bench.another.states() == {"crm": PAUSED, odd: RESUMED}
    desk.pass_ms(400 * DAY_MS)
    assert desk.journal.states() == {"crm": PAUSED, odd: RESUMED}


def test_the_later_decision_counts_whoever_comes_first(desk: Desk, bench: JournalBench) -> None:
    desk.journal.put_states({"crm": RESUMED})
    assert bench.another.put_states({"crm": PAUSED}) == {"crm": RESUMED}
    again = replace(PAUSED, since_ms=201)
    assert bench.another.put_states({"crm": again})["crm"] == replace(again, well_since_ms=200)
    assert desk.journal.states()["crm"].is_paused


def test_that_a_destination_is_well_takes_back_no_pause(desk: Desk) -> None:
    desk.journal.put_states({"crm": PAUSED})
    desk.journal.put_states({"crm": DestinationState(well_since_ms=150)})
    assert desk.journal.states() == {"crm": replace(PAUSED, well_since_ms=150)}


def test_of_two_decisions_at_one_moment_the_pause_counts(desk: Desk) -> None:
    resumed = replace(RESUMED, since_ms=PAUSED.since_ms)
    for told in (resumed, PAUSED, resumed):
        known = desk.journal.put_states({"crm": told})
    assert known["crm"].is_paused


# What waits is pulled forward


def store(desk: Desk, value: str, wait_ms: int, tried_ms: int = BEFORE) -> str:
    """One that failed then, and waits so long from now."""
    waiting = desk.store(Name(Kind.EMAIL_ID, "2026-11-16", value))
    begun = desk.journal.begin(waiting.id, "crm", value, LEASE_MS)
    assert begun
    later = replace(
        begun.delivery,
        status=DeliveryStatus.WAITING,
        next_try_ms=desk.journal.now_ms() + wait_ms,
        attempts=(Attempt(1, 1, 500), Attempt(tried_ms, 1, 500)),
    )
    assert desk.journal.finish(waiting.id, value, later)
    return waiting.id


def recover(desk: Desk, **more: Any) -> Recovered:
    wanted: dict[str, Any] = {"well_since_ms": WELL_MS, "from_ms": 0, "limit": 10, "hold_ms": HOLD_MS} | more
    return desk.journal.recover("crm", **wanted)


def test_what_was_last_tried_before_it_was_well_is_handed_out_and_once(desk: Desk, bench: JournalBench) -> None:
    late, early = store(desk, "late", 5 * HOUR_MS), store(desk, "early", HOUR_MS)
    store(desk, "tried since", 2 * HOUR_MS, tried_ms=AFTER)
    assert recover(desk) == Recovered((early, late), None)
    assert recover(desk).entries == recover(Desk(replace(bench, journal=bench.another))).entries == ()
    assert desk.journal.due({"crm": 10}, HOLD_MS) == [], "handed out, as due hands out"
    desk.pass_ms(HOLD_MS + 1)
    assert sorted(desk.journal.due({"crm": 10}, HOLD_MS)) == sorted([(early, "crm"), (late, "crm")]), "nobody began"


def test_what_is_due_soon_or_in_somebodys_hands_is_left(desk: Desk) -> None:
    store(desk, "soon", HOLD_MS // 2)
    begun = desk.store(Name(Kind.EMAIL_ID, "2026-11-16", "begun"))
    assert desk.journal.begin(begun.id, "crm", "worker", 5 * HOUR_MS)
    handed_out = store(desk, "handed out", 0)
    assert desk.journal.due({"crm": 10}, HOLD_MS) == [(handed_out, "crm")]
    assert recover(desk) == Recovered((), None)


def test_another_destination_is_not_touched(desk: Desk) -> None:
    store(desk, "at crm", HOUR_MS)
    assert desk.journal.recover("slack", WELL_MS, 0, 10, HOLD_MS) == Recovered((), None)


def test_what_was_never_tried_is_pulled_forward_too(desk: Desk) -> None:
    waiting = desk.store(Name(Kind.EMAIL_ID, "2026-11-16", "put off"))
    begun = desk.journal.begin(waiting.id, "crm", "worker", LEASE_MS)
    assert begun
    next_try_ms = desk.journal.now_ms() + HOUR_MS
    put_off = replace(begun.delivery, status=DeliveryStatus.WAITING, next_try_ms=next_try_ms)
    desk.journal.finish(waiting.id, "worker", put_off)
    assert recover(desk).entries == (waiting.id,)


def pulled_in_pages(desk: Desk, limit: int) -> list[str]:
    pulled: list[str] = []
    from_ms: int | None = 0
    for _ in range(100):
        assert from_ms is not None
        page = recover(desk, from_ms=from_ms, limit=limit)
        assert len(page.entries) <= limit
        pulled += page.entries
        from_ms = page.go_on_ms
        if from_ms is None:
            return pulled
    raise AssertionError("no end")


def test_page_by_page_all_are_met_whatever_lies_between(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, bench: JournalBench
) -> None:
    for module in (base, local, redis):
        monkeypatch.setattr(module, "MOST_LOOKED_AT", 4)
    wanted = []
    for number in range(20):
        is_tried_since = number % 3 != 0
        id_ = store(desk, f"n{number}", (number + 1) * HOUR_MS, AFTER if is_tried_since else BEFORE)
        wanted += [] if is_tried_since else [id_]
    assert pulled_in_pages(desk, limit=2) == wanted


def test_many_at_one_moment_do_not_stop_the_others(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (base, local, redis):
        monkeypatch.setattr(module, "MOST_LOOKED_AT", 3)
    at_ms = desk.journal.now_ms() + HOUR_MS
    for number in range(5):
        store(desk, f"n{number}", at_ms - desk.journal.now_ms(), AFTER)
    last = store(desk, "last", 2 * HOUR_MS)
    assert pulled_in_pages(desk, limit=2)[-1] == last


# What waits for too long


def expire(desk: Desk, age_ms: int, limit: int = 10) -> list[str]:
    return desk.journal.expire("crm", desk.journal.now_ms() - age_ms, limit, "crm: waited 76 h")


def test_what_has_waited_for_too_long_is_dead_and_keeps_its_payload(desk: Desk) -> None:
    old = desk.store(Name(Kind.EMAIL_ID, "2026-11-16", "old"))
    desk.pass_ms(76 * HOUR_MS)
    young = desk.store(Name(Kind.EMAIL_ID, "2026-11-16", "young"))
    assert expire(desk, 77 * HOUR_MS) == []
    assert expire(desk, 75 * HOUR_MS) == [old.id]
    (dead,) = desk.read(old.id).deliveries
    assert (dead.status, dead.reason, dead.next_try_ms) == (DeliveryStatus.DEAD, "crm: waited 76 h", None)
    assert desk.journal.payload(old.id) == b"payload"
    assert desk.read(young.id).has_open_deliveries
    assert [id_ for id_, _ in desk.journal.due({"crm": 10}, HOLD_MS)] == [young.id]
    assert expire(desk, 75 * HOUR_MS) == []


def test_no_more_are_looked_at_than_allowed_first_things_first(desk: Desk) -> None:
    late, first, second = (store(desk, value, wait) for value, wait in (("l", DAY_MS), ("f", 1), ("s", HOUR_MS)))
    desk.pass_ms(2 * DAY_MS)
    assert expire(desk, DAY_MS, limit=2) == [first, second]
    assert expire(desk, DAY_MS, limit=2) == [late]


def test_what_someone_is_at_is_not_given_up(desk: Desk) -> None:
    waiting = desk.store()
    desk.pass_ms(DAY_MS)
    begun = desk.journal.begin(waiting.id, "crm", "worker", LEASE_MS)
    assert begun and expire(desk, HOUR_MS) == []


def test_a_replay_starts_the_time_anew(desk: Desk) -> None:
    dead = desk.kill()
    desk.pass_ms(DAY_MS)
    desk.journal.replay(dead.id, "crm")
    assert expire(desk, HOUR_MS) == []
    desk.pass_ms(DAY_MS)
    assert expire(desk, HOUR_MS) == [dead.id]


def test_in_place_of_what_is_given_up_its_follower_goes_out_with_a_time_of_its_own(desk: Desk) -> None:
    original = desk.store(shared=(GROUP,))
    follower = desk.suppress(Name(Kind.EMAIL_ID, "2026-11-16", "follower"), shared=(GROUP,))
    desk.pass_ms(DAY_MS)
    assert expire(desk, HOUR_MS) == [original.id]
    after: Entry = desk.read(follower.id)
    assert after.has_open_deliveries
    assert expire(desk, HOUR_MS) == [], "it waits since it was let go"
