"""One attempt at a destination over real sockets, and what follows for an email just come and for a stored one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from deduplication.journal.base import Claimed
from deduplication.journal.entry import Delivery, DeliveryStatus
from deduplication.journal.memory import MemoryJournal
from orchestrator.delivery.counters import process_counters
from orchestrator.delivery.destination_states import DestinationStates
from orchestrator.delivery.guard import Guard, Limits, parse_rate
from orchestrator.delivery.http import HttpDestination, HttpOptions
from orchestrator.delivery.sender import (
    ASK_AGAIN_WHILE_DISABLED_MS,
    UNKNOWN_FOR_MS,
    Budget,
    Clock,
    DestinationPolicy,
    Sender,
)
from orchestrator.leases import LeaseKeeper
from tests.orchestrator.delivery.test_counters import FakeClock
from tests.orchestrator.delivery.test_schedule import FRESH
from tests.support.journals import JournalBench
from tests.support.pipeline import DOWN, LEASE_MS, REFUSES, FakeDestination, Pipeline, Reaction, item, open_pipeline
from tests.support.sink import Reply, Sink

PAYLOAD = {"subject": "x"}


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


def sender(
    url: str, waits: Waits, limits: Limits | None = None, read_timeout_s: float = 30, **policy: object
) -> Sender:
    destination = HttpDestination("crm", HttpOptions(url, read_timeout_s=read_timeout_s), pool_size=2)
    guard = Guard(
        process_counters(waits.clock), process_counters(waits.clock), {"crm": limits or Limits()}, waits.clock
    )
    journal = MemoryJournal()
    return Sender(
        journal=journal,
        leases=LeaseKeeper(journal, 60_000),
        policies={"crm": replace(DestinationPolicy(destination), **policy)},  # type: ignore[arg-type]
        guard=guard,
        pools={},
        new_token=lambda: "token",
        states=DestinationStates(journal, waits.clock),
        clock=Clock(waits.now_ms, waits.clock, waits.sleep),
    )


def budget(waits: Waits, seconds: float = 8.0) -> Budget:
    return Budget(waits.clock() + seconds, waits.clock)


CASES = [
    # reply, posts in a request, status, code of the last attempt
    (Reply(200), 1, "delivered", 200),
    (Reply(500), 2, "waiting", 500),
    (Reply(429, headers={"Retry-After": "2"}), 1, "waiting", 429),
    (Reply(delay_s=1), 2, "waiting", None),
    (Reply(0), 2, "waiting", None),
    (Reply(410), 1, "waiting", 410),
    (Reply(422), 1, "dead", 422),
    (Reply(302, headers={"Location": "/elsewhere"}), 1, "dead", 302),
    (Reply(415), 1, "dead", 415),
]


@pytest.mark.parametrize(("reply", "posts", "status", "code"), CASES)
def test_what_the_destination_answers_decides(
    waits: Waits, reply: Reply, posts: int, status: str, code: int | None
) -> None:
    read_timeout_s = 0.3 if reply.delay_s else 30
    with Sink(otherwise=reply) as sink:
        inline = sender(sink.url, waits, read_timeout_s=read_timeout_s).attempt(FRESH, PAYLOAD, budget(waits))
        queued = sender(sink.url, waits, read_timeout_s=read_timeout_s).attempt(FRESH, PAYLOAD)
    for after, tried in ((inline, posts), (queued, 1)):
        assert (after.status, after.tries, len(after.attempts)) == (status, 1, tried), "a request makes one quick try"
        assert after.attempts[-1].status_code == code
        assert (after.attempts[-1].error is None) == (status == "delivered")


def test_a_second_quick_try_may_succeed_under_the_same_webhook_id(waits: Waits) -> None:
    with Sink(Reply(500)) as sink:
        after = sender(sink.url, waits).attempt(FRESH, PAYLOAD, budget(waits))
        assert after.status is DeliveryStatus.DELIVERED
        assert [attempt.status_code for attempt in after.attempts] == [500, 200]
        assert {each.webhook_id for each in sink.received} == {FRESH.webhook_id}


def test_a_second_try_needs_time(waits: Waits) -> None:
    with Sink(otherwise=Reply(500)) as sink:
        after = sender(sink.url, waits).attempt(FRESH, PAYLOAD, budget(waits, 0.6))
    assert len(after.attempts) == 1


def test_a_request_without_time_left_troubles_nobody(sink: Sink, waits: Waits) -> None:
    """Neither a try nor the destination's good name is used up over it."""
    post = sender(sink.url, waits, Limits(breaker_failures=1))
    after = post.attempt(FRESH, PAYLOAD, budget(waits, 0.1))
    assert (after.status, after.tries, after.reason) == (DeliveryStatus.WAITING, 0, "no time left for it")
    assert (sink.received, post.guard.state("crm")) == ([], "closed")


def test_a_destination_that_failed_five_times_is_left_alone_and_no_try_is_used_up(waits: Waits) -> None:
    with Sink(otherwise=Reply(503)) as sink:
        post = sender(sink.url, waits)
        for _ in range(5):
            post.attempt(FRESH, PAYLOAD)
        after = post.attempt(replace(FRESH, tries=3), PAYLOAD)
        assert len(sink.received) == 5
    assert (after.status, after.tries, after.attempts) == (DeliveryStatus.WAITING, 3, ())
    assert after.reason == "crm: failed too often, given a pause"
    assert after.next_try_ms is not None
    assert 29_000 < after.next_try_ms - waits.now_ms() < 31_000


def test_a_quick_try_asks_the_breaker_again(waits: Waits) -> None:
    with Sink(otherwise=Reply(503)) as sink:
        after = sender(sink.url, waits, Limits(breaker_failures=1)).attempt(FRESH, PAYLOAD, budget(waits))
        assert (after.tries, len(sink.received)) == (1, 1)


def test_of_what_is_due_all_may_go_or_one_or_none(waits: Waits) -> None:
    with Sink(otherwise=Reply(503)) as sink:
        post = sender(sink.url, waits, Limits(breaker_failures=1, breaker_pause_s=30))
        assert post.room_at("crm") > 1000
        post.attempt(FRESH, PAYLOAD)
        assert post.room_at("crm") == 0, "the breaker is open"
        waits.sleep(30)
        assert post.room_at("crm") == 1, "half-open: one to see if it is well again"
        assert sender(sink.url, waits, is_enabled=False).room_at("crm") == 0
        assert post.room_at("no longer there") > 1000, "these are settled without a POST"


def test_refusals_of_single_webhooks_do_not_open_the_breaker(waits: Waits) -> None:
    with Sink(otherwise=Reply(422)) as sink:
        post = sender(sink.url, waits)
        assert {post.attempt(FRESH, PAYLOAD).status for _ in range(8)} == {DeliveryStatus.DEAD}
        assert len(sink.received) == 8


def test_over_its_rate_a_request_waits_if_it_can_and_a_worker_puts_it_off(sink: Sink, waits: Waits) -> None:
    post = sender(sink.url, waits, Limits(parse_rate("1/min")))
    assert post.attempt(FRESH, PAYLOAD).status is DeliveryStatus.DELIVERED
    after = post.attempt(FRESH, PAYLOAD)
    assert (after.status, after.tries, after.reason) == (DeliveryStatus.WAITING, 0, "crm: over its rate")
    assert post.attempt(FRESH, PAYLOAD, budget(waits)).status is DeliveryStatus.WAITING, (
        "a minute is longer than a request may wait"
    )
    assert waits.noted_s == []
    quick = sender(sink.url, waits, Limits(parse_rate("5/s")))
    assert {quick.attempt(FRESH, PAYLOAD, budget(waits)).status for _ in range(8)} == {DeliveryStatus.DELIVERED}
    assert sum(waits.noted_s) >= 1, "the sixth of a second waits for the next one"


def test_a_disabled_destination_waits(sink: Sink, waits: Waits) -> None:
    after = sender(sink.url, waits, is_enabled=False).attempt(FRESH, PAYLOAD, budget(waits))
    assert (after.status, after.tries, after.reason) == (DeliveryStatus.WAITING, 0, "crm: disabled")
    assert after.next_try_ms is not None
    assert after.next_try_ms == waits.now_ms() + ASK_AGAIN_WHILE_DISABLED_MS
    assert sink.received == []


def test_a_destination_that_is_no_longer_in_the_file_is_a_dead_letter_an_hour_after_it_was_first_missed(
    sink: Sink, waits: Waits
) -> None:
    reason = "gone: no such destination in mailonce.toml"
    elsewhere = replace(FRESH, destination="gone")
    waiting = sender(sink.url, waits).attempt(elsewhere, PAYLOAD)
    assert (waiting.status, waiting.reason) == (DeliveryStatus.WAITING, reason), "another process may know it already"
    waits.sleep(UNKNOWN_FOR_MS / 1000)
    after = sender(sink.url, waits).attempt(waiting, PAYLOAD)
    assert (after.status, after.reason) == (DeliveryStatus.DEAD, reason)
    back = sender(sink.url, waits).attempt(replace(waiting, destination="crm"), PAYLOAD)
    assert (back.status, back.missing_ms) == (DeliveryStatus.DELIVERED, None)


# Stored ones


@pytest.fixture
def pipeline(bench: JournalBench) -> Iterator[Pipeline]:
    destinations = {name: FakeDestination() for name in ("crm", "archive")}
    with open_pipeline(bench, destinations, with_queue=True) as opened:
        yield opened


def store_one(pipeline: Pipeline, **fields: str) -> str:
    """As a request leaves it to the workers: its entry."""
    entry = pipeline.send(**fields).id
    pipeline.queue.announced.clear()
    return entry


def after_an_attempt(pipeline: Pipeline, entry: str) -> Delivery:
    pipeline.sender.deliver_or_leave(entry, "crm")
    known = pipeline.journal.read(entry).delivery_to("crm")
    assert isinstance(known, Delivery)
    return known


@pytest.mark.parametrize(
    ("reactions", "status"),
    [
        ([], "delivered"),
        ([DOWN], "waiting"),  # a worker makes one try at a time
        ([REFUSES], "dead"),
        ([RuntimeError("a bug")], "delivering"),  # its lease ends, and it is due again
    ],
)
def test_one_attempt_for_a_stored_delivery(pipeline: Pipeline, reactions: list[Reaction], status: str) -> None:
    pipeline.destinations["crm"].reactions = list(reactions)
    entry = store_one(pipeline)
    assert after_an_attempt(pipeline, entry).status == status
    assert len(pipeline.destinations["crm"].asked) == 1
    assert pipeline.payload() is not None, "the archive is still to have it"


def test_what_failed_for_now_goes_through_later_under_the_same_webhook_id_and_once_only(pipeline: Pipeline) -> None:
    crm = pipeline.destinations["crm"]
    crm.reactions = [DOWN, DOWN]
    entry = store_one(pipeline)
    statuses = [after_an_attempt(pipeline, entry).status for _ in range(4)]
    assert statuses == ["waiting", "waiting", "delivered", "delivered"]
    assert (len(crm.asked), len(crm.taken)) == (3, 1)
    assert len({webhook.webhook_id for webhook in crm.asked}) == 1


def test_after_its_last_try_it_is_dead_and_is_not_tried_again(pipeline: Pipeline) -> None:
    pipeline.destinations["crm"].reactions = [DOWN] * 9
    entry = store_one(pipeline)
    statuses = [after_an_attempt(pipeline, entry).status for _ in range(4)]
    assert statuses == ["waiting", "waiting", "dead", "dead"]
    assert len(pipeline.destinations["crm"].asked) == 3


def test_what_its_process_left_behind_is_taken_over_when_its_lease_is_over(pipeline: Pipeline) -> None:
    pipeline.destinations["crm"].reactions = [RuntimeError("a bug")]
    entry = store_one(pipeline)
    assert [after_an_attempt(pipeline, entry).status for _ in range(2)] == ["delivering", "delivering"]
    pipeline.let_time_pass(LEASE_MS)
    assert after_an_attempt(pipeline, entry).status is DeliveryStatus.DELIVERED


def test_what_is_not_known_is_left_alone(pipeline: Pipeline) -> None:
    assert pipeline.sender.deliver_stored("nothing", "crm") is None


def test_a_process_that_slept_over_its_lease_sends_nothing(bench: JournalBench, pipeline: Pipeline) -> None:
    entry = store_one(pipeline)
    begin = pipeline.journal.journal.begin

    def begin_and_sleep(*step: Any) -> object:
        begun = begin(*step)
        pipeline.let_time_pass(LEASE_MS)
        return begun

    pipeline.journal.begin = begin_and_sleep  # type: ignore[attr-defined]
    assert pipeline.sender.deliver_stored(entry, "crm") is None
    assert pipeline.destinations["crm"].asked == []


def test_what_was_delivered_but_could_not_be_recorded_is_recorded_later_and_never_sent_again(
    pipeline: Pipeline,
) -> None:
    entry = store_one(pipeline)
    pipeline.journal.failing.add("finish")
    assert after_an_attempt(pipeline, entry).status is DeliveryStatus.DELIVERING
    pipeline.journal.failing.clear()
    pipeline.settle_what_is_owed()
    assert after_an_attempt(pipeline, entry).status is DeliveryStatus.DELIVERED
    assert len(pipeline.destinations["crm"].taken) == 1


def test_while_the_journal_is_away_nothing_is_sent_and_no_try_is_used_up(pipeline: Pipeline) -> None:
    entry = store_one(pipeline)
    pipeline.journal.failing.add("begin")
    after = after_an_attempt(pipeline, entry)
    assert (after.status, after.tries) == (DeliveryStatus.WAITING, 0)
    assert pipeline.destinations["crm"].asked == []
    pipeline.journal.failing.clear()
    assert after_an_attempt(pipeline, entry).status is DeliveryStatus.DELIVERED


def test_a_destination_that_hangs_holds_up_no_other_and_settles_itself_in_the_end(bench: JournalBench) -> None:
    go_on = threading.Event()
    destinations = {"crm": FakeDestination([lambda: go_on.wait(60)]), "archive": FakeDestination()}
    with open_pipeline(bench, destinations) as pipeline:
        case = pipeline.intake.prepare(item(), pipeline.intake.router.pick(item()))
        claimed = pipeline.journal.claim(case.claim)
        assert isinstance(claimed, Claimed)
        short = Budget(pipeline.sender.clock.monotonic() + 1, pipeline.sender.clock.monotonic)
        sent = {each.destination: each for each in pipeline.sender.send(case.claim, claimed.entry, {}, short)}
        assert {name: each.status for name, each in sent.items()} == {"crm": "waiting", "archive": "delivered"}
        assert sent["crm"].reason == "not through in time"
        go_on.set()
        pipeline.sender.pools["crm"].shutdown()  # waits for what is under way
        assert pipeline.delivery("crm").status is DeliveryStatus.DELIVERED
