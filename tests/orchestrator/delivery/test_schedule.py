"""When a delivery is tried again, and when it is given up. No clock runs here: all times are given."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deduplication.journal.entry import Attempt, Delivery, DeliveryStatus
from orchestrator.delivery.schedule import (
    ATTEMPTS_KEPT,
    MOST_AGE_MS,
    MOST_RETRY_AFTER_S,
    Patience,
    Round,
    after,
    delay_ms,
    put_off,
)
from orchestrator.delivery.webhook import DeliveryFailed, Receipt

NOW_MS = 1_800_000_000_000
FRESH = Delivery("crm", "msg_1", status=DeliveryStatus.WAITING)
POST = Attempt(NOW_MS, 12, 500, "crm: answered 500")


def failing(*, permanent: bool = False, retry_after_s: int | None = None) -> Round:
    failure = DeliveryFailed("crm: answered 500", permanent=permanent, status_code=500, retry_after_s=retry_after_s)
    return Round((POST,), failure=failure)


def test_the_schedule_is_that_of_standard_webhooks_and_then_the_end() -> None:
    delivery, now_ms, waits_s = FRESH, NOW_MS, []
    while delivery.status is DeliveryStatus.WAITING:
        delivery = after(delivery, failing(), Patience(10, NOW_MS), now_ms=now_ms, jitter=lambda: 0.0)
        if delivery.next_try_ms is not None:
            waits_s.append((delivery.next_try_ms - now_ms) // 1000)
            now_ms = delivery.next_try_ms
    hours = [2, 5, 10, 14, 20, 24]
    assert waits_s == [5, 5 * 60, 30 * 60, *(each * 3600 for each in hours)]
    assert (delivery.status, delivery.tries, delivery.next_try_ms) == (DeliveryStatus.DEAD, 10, None)
    assert delivery.reason == "crm: answered 500; tried 10 times"


@given(st.integers(1, 60), st.one_of(st.none(), st.integers(0, 10**6)), st.floats(0, 1))
def test_jitter_only_adds_and_retry_after_is_honoured_up_to_an_hour(
    tries: int, retry_after_s: int | None, jitter: float
) -> None:
    least_ms = delay_ms(tries, retry_after_s, lambda: 0.0)
    assert delay_ms(tries, retry_after_s, lambda: jitter) >= least_ms
    assert least_ms >= min(retry_after_s or 0, MOST_RETRY_AFTER_S) * 1000
    assert least_ms <= max(MOST_RETRY_AFTER_S, 24 * 3600) * 1000


def test_a_destination_that_asks_for_2_s_waits_for_our_5_s_and_one_that_asks_for_60_s_gets_them() -> None:
    assert [delay_ms(1, asked_s, lambda: 0.0) for asked_s in (2, 60, 100_000)] == [5000, 60_000, 3_600_000]


def test_a_permanent_failure_is_dead_at_once() -> None:
    dead = after(FRESH, failing(permanent=True), Patience(9, NOW_MS), now_ms=NOW_MS)
    assert (dead.status, dead.tries, dead.next_try_ms, dead.reason) == (
        DeliveryStatus.DEAD,
        1,
        None,
        "crm: answered 500",
    )


@pytest.mark.parametrize("max_attempts", [1, 2, 50])
def test_max_attempts_is_the_number_of_rounds(max_attempts: int) -> None:
    delivery = FRESH
    for _ in range(max_attempts):
        assert delivery.status is DeliveryStatus.WAITING
        delivery = after(delivery, failing(), Patience(max_attempts, NOW_MS), NOW_MS)
    assert delivery.status is DeliveryStatus.DEAD


def test_a_success_is_delivered_with_the_receivers_id() -> None:
    done = after(replace(FRESH, tries=3, reason="x"), Round((POST,), Receipt(200, "r-7")), Patience(9, 0), NOW_MS + 5)
    assert (done.status, done.ended_ms, done.receiver_id, done.next_try_ms, done.reason, done.tries) == (
        DeliveryStatus.DELIVERED,
        NOW_MS + 5,
        "r-7",
        None,
        None,
        4,
    )


def test_only_the_last_attempts_are_kept() -> None:
    delivery = FRESH
    for number in range(ATTEMPTS_KEPT + 5):
        turn = replace(failing(), attempts=(replace(POST, at_ms=number),))
        delivery = after(delivery, turn, Patience(50, NOW_MS), NOW_MS)
    assert [attempt.at_ms for attempt in delivery.attempts] == list(range(5, ATTEMPTS_KEPT + 5))


def test_putting_off_uses_up_no_try() -> None:
    waiting = put_off(replace(FRESH, tries=2), "crm: over its rate", NOW_MS + 100)
    assert (waiting.tries, waiting.next_try_ms, waiting.reason) == (2, NOW_MS + 100, "crm: over its rate")


def test_a_try_that_fails_after_76_hours_is_the_last() -> None:
    patience = Patience(10, waits_since_ms=NOW_MS)
    waits = after(FRESH, failing(), patience, NOW_MS + MOST_AGE_MS - 1)
    dead = after(FRESH, failing(), patience, NOW_MS + MOST_AGE_MS)
    assert (waits.status, dead.status) == (DeliveryStatus.WAITING, DeliveryStatus.DEAD)
    assert dead.reason == "crm: answered 500; waited 76 h"


def test_what_is_gone_is_no_fault_of_the_email_and_kills_it_neither_by_tries_nor_by_age() -> None:
    gone = Round((POST,), failure=DeliveryFailed("crm: answered 410 Gone", permanent=False, status_code=410))
    waits = after(FRESH, gone, Patience(1, 0), NOW_MS)
    assert (waits.status, waits.reason) == (DeliveryStatus.WAITING, "crm: answered 410 Gone")
    assert waits.next_try_ms is not None and waits.next_try_ms > NOW_MS
