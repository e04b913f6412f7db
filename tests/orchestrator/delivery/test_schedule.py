"""When a delivery is tried again, and when it becomes a dead letter. No clock runs here: all times are given."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from deduplication.journal.entry import Attempt, Delivery, DeliveryStatus
from orchestrator.delivery import sender
from orchestrator.delivery.sender import ATTEMPTS_KEPT, MOST_AGE_MS, MOST_RETRY_AFTER_S, Patience, delay_ms
from orchestrator.delivery.webhook import PostResult

NOW_MS = 1_800_000_000_000
FRESH = Delivery("crm", "msg_1", status=DeliveryStatus.WAITING)
POST = Attempt(NOW_MS, 12, 500, "crm: answered 500")
FAILED = PostResult(error="crm: answered 500", status_code=500)


def after(delivery: Delivery, result: PostResult, patience: Patience, now_ms: int, post: Attempt = POST) -> Delivery:
    return sender.after(delivery, [post], result, patience, now_ms)


def test_the_schedule_is_that_of_standard_webhooks_and_then_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender, "JITTER", 0)
    delivery, now_ms, waits_s = FRESH, NOW_MS, []
    while delivery.status is DeliveryStatus.WAITING:
        delivery = after(delivery, FAILED, Patience(11, NOW_MS), now_ms)
        if delivery.next_try_ms is not None:
            waits_s.append((delivery.next_try_ms - now_ms) // 1000)
            now_ms = delivery.next_try_ms
    assert waits_s == [5, 5, 5 * 60, 30 * 60, *(hours * 3600 for hours in (2, 5, 10, 14, 20, 24))]
    assert (delivery.status, delivery.tries, delivery.next_try_ms) == (DeliveryStatus.DEAD, 11, None)
    assert delivery.reason == "crm: answered 500; tried 11 times"


@given(st.integers(1, 60), st.one_of(st.none(), st.integers(0, 10**6)), st.floats(0, 1))
def test_jitter_only_adds_and_retry_after_is_honoured_up_to_an_hour(
    tries: int, retry_after_s: int | None, jitter: float
) -> None:
    least_ms = delay_ms(tries, retry_after_s, lambda: 0.0)
    assert delay_ms(tries, retry_after_s, lambda: jitter) >= least_ms
    assert least_ms >= min(retry_after_s or 0, MOST_RETRY_AFTER_S) * 1000
    assert least_ms <= max(MOST_RETRY_AFTER_S, 24 * 3600) * 1000


@pytest.mark.parametrize(
    ("failure", "patience", "age_ms", "status", "reason"),
    [
        (PostResult(error="x"), Patience(1, NOW_MS), 0, "dead", "x; tried 1 time"),
        (PostResult(error="x"), Patience(9, NOW_MS), MOST_AGE_MS, "dead", "x; waited 76 h"),
        (PostResult(error="x"), Patience(2, NOW_MS), MOST_AGE_MS - 1, "waiting", "x"),
        (PostResult(error="x", status_code=410), Patience(1, 0), MOST_AGE_MS, "waiting", "x"),
    ],
    ids=["max_attempts", "76 hours", "patience left", "a 410 is not the fault of the email"],
)
def test_it_is_dead_after_its_last_attempt_or_76_hours_and_waits_otherwise(
    failure: PostResult, patience: Patience, age_ms: int, status: str, reason: str
) -> None:
    now_ms = NOW_MS + age_ms
    tried = after(FRESH, failure, patience, now_ms)
    assert (tried.status, tried.reason, tried.tries) == (status, reason, 1)
    assert tried.ended_ms == (now_ms if status == "dead" else None)
    assert (tried.next_try_ms or 0) >= now_ms + 5000 if status == "waiting" else tried.next_try_ms is None


@given(st.integers(100, 599).filter(lambda code: code not in (*range(200, 300), 410)), st.integers(2, 50))
def test_no_answer_of_a_destination_makes_a_dead_letter_before_the_last_attempt(code: int, max_attempts: int) -> None:
    """A bad deploy answers 404 or 400 for an hour, and must not kill a day's mail."""
    delivery, refused = FRESH, PostResult(error="x", status_code=code)
    for _ in range(max_attempts - 1):
        delivery = after(delivery, refused, Patience(max_attempts, NOW_MS), NOW_MS)
        assert (delivery.status, delivery.reason) == (DeliveryStatus.WAITING, "x")
    delivery = after(delivery, refused, Patience(max_attempts, NOW_MS), NOW_MS)
    assert (delivery.status, delivery.tries) == (DeliveryStatus.DEAD, max_attempts)


def test_a_success_is_delivered_with_the_receivers_id() -> None:
    tried = replace(FRESH, tries=3, reason="x", next_try_ms=NOW_MS)
    done = after(tried, PostResult(200, receiver_id="r-7"), Patience(9, 0), NOW_MS + 5)
    assert (done.status, done.ended_ms, done.receiver_id) == (DeliveryStatus.DELIVERED, NOW_MS + 5, "r-7")
    assert (done.next_try_ms, done.reason, done.tries) == (None, None, 4)


def test_only_the_last_attempts_are_kept() -> None:
    delivery = FRESH
    for number in range(ATTEMPTS_KEPT + 5):
        delivery = after(delivery, FAILED, Patience(50, NOW_MS), NOW_MS, replace(POST, at_ms=number))
    assert [attempt.at_ms for attempt in delivery.attempts] == list(range(5, ATTEMPTS_KEPT + 5))
