"""One turn at a destination, over real sockets: what the sink answers, and what the record then says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pytest

from orchestrator.delivery.counters import process_counters
from orchestrator.delivery.courier import ASK_AGAIN_WHILE_DISABLED_MS, Budget, Clock, Courier, Place
from orchestrator.delivery.guard import Guard, Limits, parse_rate
from orchestrator.delivery.http import HttpDestination, HttpOptions
from orchestrator.delivery.record import Delivery, DeliveryStatus
from tests.orchestrator.test_counters import FakeClock
from tests.orchestrator.test_schedule import FRESH
from tests.support.sink import Reply, Sink


@dataclass
class Waits:
    """Waits are noted, not waited: the clock of everything here moves on by them, and by nothing else."""

    noted_s: list[float] = field(default_factory=list)
    clock: FakeClock = field(default_factory=FakeClock)

    def sleep(self, seconds: float) -> None:
        self.noted_s.append(seconds)
        self.clock.now_s += seconds

    def now_ms(self) -> int:
        return int(self.clock.now_s * 1000)


@pytest.fixture
def waits() -> Waits:
    return Waits()


@pytest.fixture
def sink() -> Iterator[Sink]:
    with Sink() as sink:
        yield sink


def courier(
    url: str, waits: Waits, limits: Limits | None = None, read_timeout_s: float = 30, **place: object
) -> Courier:
    destination = HttpDestination("crm", HttpOptions(url, read_timeout_s=read_timeout_s), pool_size=2)
    guard = Guard(
        process_counters(waits.clock), process_counters(waits.clock), {"crm": limits or Limits()}, waits.clock
    )
    places = {"crm": replace(Place(destination), **place)}  # type: ignore[arg-type]
    return Courier(places, guard, Clock(waits.now_ms, waits.clock, waits.sleep))


def budget(waits: Waits, seconds: float = 8.0) -> Budget:
    return Budget(waits.clock() + seconds, waits.clock)


CASES = [
    # reply, posts in a request, status, code of the last attempt
    (Reply(200), 1, "delivered", 200),
    (Reply(500), 2, "waiting", 500),
    (Reply(429, headers={"Retry-After": "2"}), 1, "waiting", 429),
    (Reply(delay_s=1), 2, "waiting", None),
    (Reply(0), 2, "waiting", None),
    (Reply(410), 1, "dead", 410),
    (Reply(302, headers={"Location": "/elsewhere"}), 1, "dead", 302),
    (Reply(415), 1, "dead", 415),
]


@pytest.mark.parametrize(("reply", "posts", "status", "code"), CASES)
def test_what_the_destination_answers_decides(
    waits: Waits, reply: Reply, posts: int, status: str, code: int | None
) -> None:
    read_timeout_s = 0.3 if reply.delay_s else 30
    with Sink(otherwise=reply) as sink:
        inline = courier(sink.url, waits, read_timeout_s=read_timeout_s).turn(FRESH, budget(waits))
        queued = courier(sink.url, waits, read_timeout_s=read_timeout_s).turn(FRESH)
    for after, tried in ((inline, posts), (queued, 1)):
        assert (after.status, after.tries, len(after.attempts)) == (status, 1, tried), "a request makes one quick try"
        assert after.attempts[-1].status_code == code
        assert (after.attempts[-1].error is None) == (status == "delivered")


def test_a_second_quick_try_may_succeed_under_the_same_webhook_id(waits: Waits) -> None:
    with Sink(Reply(500)) as sink:
        after = courier(sink.url, waits).turn(FRESH, budget(waits))
        assert after.status is DeliveryStatus.DELIVERED
        assert [attempt.status_code for attempt in after.attempts] == [500, 200]
        assert {each.webhook_id for each in sink.received} == {FRESH.webhook_id}


def test_a_second_try_needs_time(waits: Waits) -> None:
    with Sink(otherwise=Reply(500)) as sink:
        after = courier(sink.url, waits).turn(FRESH, budget(waits, 0.6))
    assert len(after.attempts) == 1


def test_a_request_without_time_left_troubles_nobody(sink: Sink, waits: Waits) -> None:
    """Neither a try nor the destination's good name is used up over it."""
    post = courier(sink.url, waits, Limits(breaker_failures=1))
    after = post.turn(FRESH, budget(waits, 0.1))
    assert (after.status, after.tries, after.reason) == (DeliveryStatus.WAITING, 0, "no time left for it")
    assert (sink.received, post.guard.state("crm")) == ([], "closed")


def test_a_destination_that_failed_five_times_is_left_alone_and_no_try_is_used_up(waits: Waits) -> None:
    with Sink(otherwise=Reply(503)) as sink:
        post = courier(sink.url, waits)
        for _ in range(5):
            post.turn(FRESH)
        after = post.turn(replace(FRESH, tries=3))
        assert len(sink.received) == 5
    assert (after.status, after.tries, after.attempts) == (DeliveryStatus.WAITING, 3, ())
    assert after.reason == "crm: failed too often, given a pause"
    assert after.next_try_ms is not None
    assert 29_000 < after.next_try_ms - waits.now_ms() < 31_000


def test_a_quick_try_asks_the_breaker_again(waits: Waits) -> None:
    with Sink(otherwise=Reply(503)) as sink:
        after = courier(sink.url, waits, Limits(breaker_failures=1)).turn(FRESH, budget(waits))
        assert (after.tries, len(sink.received)) == (1, 1)


def test_of_what_is_due_all_may_go_or_one_or_none(waits: Waits) -> None:
    with Sink(otherwise=Reply(503)) as sink:
        post = courier(sink.url, waits, Limits(breaker_failures=1, breaker_pause_s=30))
        assert post.most_for("crm") > 1000
        post.turn(FRESH)
        assert post.most_for("crm") == 0, "the breaker is open"
        waits.sleep(30)
        assert post.most_for("crm") == 1, "half-open: one to see if it is well again"
        assert courier(sink.url, waits, is_enabled=False).most_for("crm") == 0
        assert post.most_for("no longer there") > 1000, "these are settled without a POST"


def test_refusals_of_single_webhooks_do_not_open_the_breaker(waits: Waits) -> None:
    with Sink(otherwise=Reply(422)) as sink:
        post = courier(sink.url, waits)
        assert {post.turn(FRESH).status for _ in range(8)} == {DeliveryStatus.DEAD}
        assert len(sink.received) == 8


def test_over_its_rate_a_request_waits_if_it_can_and_a_worker_puts_it_off(sink: Sink, waits: Waits) -> None:
    post = courier(sink.url, waits, Limits(parse_rate("1/min")))
    assert post.turn(FRESH).status is DeliveryStatus.DELIVERED
    after = post.turn(FRESH)
    assert (after.status, after.tries, after.reason) == (DeliveryStatus.WAITING, 0, "crm: over its rate")
    assert post.turn(FRESH, budget(waits)).status is DeliveryStatus.WAITING, (
        "a minute is longer than a request may wait"
    )
    assert waits.noted_s == []
    quick = courier(sink.url, waits, Limits(parse_rate("5/s")))
    assert {quick.turn(FRESH, budget(waits)).status for _ in range(8)} == {DeliveryStatus.DELIVERED}
    assert sum(waits.noted_s) >= 1, "the sixth of a second waits for the next one"


def test_a_disabled_destination_waits(sink: Sink, waits: Waits) -> None:
    after = courier(sink.url, waits, is_enabled=False).turn(FRESH, budget(waits))
    assert (after.status, after.tries, after.reason) == (DeliveryStatus.WAITING, 0, "crm: disabled")
    assert after.next_try_ms is not None
    assert after.next_try_ms == waits.now_ms() + ASK_AGAIN_WHILE_DISABLED_MS
    assert sink.received == []


def test_a_destination_that_is_no_longer_in_the_file_is_a_dead_letter_after_an_hour(sink: Sink, waits: Waits) -> None:
    now_ms = waits.now_ms()
    elsewhere: Delivery = replace(FRESH, destination="gone", scheduled_ms=now_ms)
    reason = "gone: no such destination in mailonce.toml"
    waiting = courier(sink.url, waits).turn(elsewhere)
    assert (waiting.status, waiting.reason) == (DeliveryStatus.WAITING, reason), "another process may know it already"
    after = courier(sink.url, waits).turn(replace(elsewhere, scheduled_ms=now_ms - 3_700_000))
    assert (after.status, after.reason) == (DeliveryStatus.DEAD, reason)
    assert after.payload == FRESH.payload
