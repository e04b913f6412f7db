"""One attempt at a destination over real sockets, and what follows from it."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from deduplication.journal.coordinator import Coordinator
from deduplication.journal.entry import Delivery, DeliveryStatus, Entry
from deduplication.journal.sqlite import Journal
from orchestrator.config.model import DestinationConfig
from orchestrator.delivery import guard
from orchestrator.delivery import sender as module
from orchestrator.delivery.counters import Counters
from orchestrator.delivery.guard import Guard
from orchestrator.delivery.sender import Sender
from orchestrator.delivery.webhook import Destination
from orchestrator.metrics.meter import Meter
from tests.orchestrator.conftest import Open
from tests.orchestrator.delivery.test_schedule import FRESH
from tests.support.pipeline import ModuleTime
from tests.support.sink import Reply, Sink

PAYLOAD = {"subject": "x"}


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> ModuleTime:
    waits = ModuleTime()
    monkeypatch.setattr(module, "time", waits)
    monkeypatch.setattr(guard, "time", waits)
    return waits


@pytest.fixture
def sink() -> Iterator[Sink]:
    with Sink() as sink:
        yield sink


class OneAttempt:
    """A sender, and one attempt of it."""

    def __init__(self, url: str, waits: ModuleTime, read_timeout_s: float = 30, **limits: Any) -> None:
        config = DestinationConfig(url=url, read_timeout_s=read_timeout_s, **limits)
        journal = Journal(":memory:", waits.clock())
        coordinator = Coordinator(journal)
        self.guard = Guard(Counters(coordinator), {"crm": config})
        self.sender = Sender(
            coordinator=coordinator,
            destinations={"crm": Destination("crm", config, pool_size=2)},
            guard=self.guard,
            pools={},
            meter=Meter(journal),
        )

    def attempt(self, delivery: Delivery, payload: Any, ends_at: float | None = None) -> Delivery:
        now_ms = self.sender.coordinator.journal.clock.now_ms()
        return self.sender._attempt(delivery, Entry("entry", "machine", (), now_ms), payload, ends_at)


def budget(waits: ModuleTime, seconds: float = 8.0) -> float:
    return waits.monotonic() + seconds


CASES = [
    # reply, posts in a request, status, code of the last attempt
    (Reply(200), 1, "delivered", 200),
    (Reply(500), 2, "waiting", 500),
    (Reply(429, headers={"Retry-After": "2"}), 1, "waiting", 429),
    (Reply(delay_s=1), 2, "waiting", None),
    (Reply(0), 2, "waiting", None),
    (Reply(410), 1, "waiting", 410),
    (Reply(302, headers={"Location": "/elsewhere"}), 2, "waiting", 302),
    (Reply(415), 1, "waiting", 415),
]


@pytest.mark.parametrize(("reply", "posts", "status", "code"), CASES)
def test_the_answer_decides(waits: ModuleTime, reply: Reply, posts: int, status: str, code: int | None) -> None:
    read_timeout_s = 0.3 if reply.delay_s else 30
    with Sink(otherwise=reply) as sink:
        inline = OneAttempt(sink.url, waits, read_timeout_s=read_timeout_s).attempt(FRESH, PAYLOAD, budget(waits))
        queued = OneAttempt(sink.url, waits, read_timeout_s=read_timeout_s).attempt(FRESH, PAYLOAD)
    for after, tried in ((inline, posts), (queued, 1)):
        assert (after.status, after.tries, len(after.attempts)) == (status, tried, tried), (
            "a request makes one quick try"
        )
        assert after.attempts[-1].status_code == code
        assert (after.attempts[-1].error is None) == (status == "delivered")


def test_a_second_try_needs_time(waits: ModuleTime) -> None:
    with Sink(otherwise=Reply(500)) as sink:
        after = OneAttempt(sink.url, waits).attempt(FRESH, PAYLOAD, budget(waits, 0.6))
    assert len(after.attempts) == 1


def test_a_request_without_time_left_troubles_nobody(sink: Sink, waits: ModuleTime) -> None:
    """It counts neither as a try nor as a failure of the destination."""
    post = OneAttempt(sink.url, waits, breaker_failures=1)
    after = post.attempt(FRESH, PAYLOAD, budget(waits, 0.1))
    assert (after.status, after.tries, after.reason) == (DeliveryStatus.WAITING, 0, "no time left for it")
    assert (sink.received, post.guard.breaker("crm")) == ([], "closed")


def test_a_quick_try_asks_the_breaker_again(waits: ModuleTime) -> None:
    with Sink(otherwise=Reply(503)) as sink:
        after = OneAttempt(sink.url, waits, breaker_failures=1).attempt(FRESH, PAYLOAD, budget(waits))
        assert (after.tries, len(sink.received)) == (1, 1)


@pytest.mark.parametrize(
    ("code", "posts"), [(400, 8), (413, 8), (422, 8), (401, 5), (403, 5), (404, 5), (405, 5), (302, 5)]
)
def test_a_wrong_address_opens_the_breaker_a_refused_webhook_does_not(waits: ModuleTime, code: int, posts: int) -> None:
    with Sink(otherwise=Reply(code)) as sink:
        post = OneAttempt(sink.url, waits)
        assert {post.attempt(FRESH, PAYLOAD).status for _ in range(8)} == {DeliveryStatus.WAITING}
        assert len(sink.received) == posts
        after = post.attempt(replace(FRESH, tries=3), PAYLOAD)
    if posts == 5:
        assert (after.tries, after.attempts, after.reason) == (3, (), "crm: circuit breaker open"), "no try is used up"
        assert after.next_try_ms is not None
        assert 29_000 < after.next_try_ms - waits.now_ms < 31_000


def test_over_its_rate_a_request_waits_if_it_can_and_a_worker_puts_it_off(sink: Sink, waits: ModuleTime) -> None:
    post, began_ms = OneAttempt(sink.url, waits, rate="1/min"), waits.now_ms
    assert post.attempt(FRESH, PAYLOAD).status is DeliveryStatus.DELIVERED
    after = post.attempt(FRESH, PAYLOAD)
    assert (after.status, after.tries, after.reason) == (DeliveryStatus.WAITING, 0, "crm: over its rate")
    assert post.attempt(FRESH, PAYLOAD, budget(waits)).status is DeliveryStatus.WAITING, (
        "a minute is longer than a request may wait"
    )
    assert waits.now_ms == began_ms, "nobody waited"
    quick = OneAttempt(sink.url, waits, rate="5/s")
    assert {quick.attempt(FRESH, PAYLOAD, budget(waits)).status for _ in range(8)} == {DeliveryStatus.DELIVERED}
    assert waits.now_ms >= began_ms + 1000, "the sixth of a second waits for the next one"


def test_a_destination_that_hangs_delays_no_other_and_notes_its_own_success(start: Open) -> None:
    go_on = threading.Event()
    bench = start({"crm": [lambda: go_on.wait(60)], "archive": []})
    outcome = bench.send()
    assert {each.destination: each.status for each in outcome.deliveries} == {"crm": "waiting", "archive": "delivered"}
    assert outcome.status == "queued"
    assert bench.delivery("crm").reason == "not through in time"
    go_on.set()
    bench.pipeline.sender.pools["crm"].shutdown()  # waits for what is under way
    assert bench.delivery("crm").status is DeliveryStatus.DELIVERED
    bench.machine.tick()
    bench.let_time_pass(60_000)
    assert bench.deliver_due() == 0
