"""From a stored delivery to its destination, and to several destinations at once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from deduplication.locks import PublicationLocks
from orchestrator.delivery.courier import Budget
from orchestrator.delivery.dispatch import AFTER_THE_LEASE_MS
from orchestrator.delivery.record import Delivery, DeliveryStatus
from tests.orchestrator.test_schedule import FRESH
from tests.support.pipeline import DOWN, REFUSES, FakeDestination, Pipeline, Reaction, open_pipeline
from tests.support.stores import Bench


@pytest.fixture
def pipeline(bench: Bench, tmp_path: Path) -> Iterator[Pipeline]:
    destinations = {name: FakeDestination() for name in ("crm", "archive")}
    with open_pipeline(bench, tmp_path, destinations, with_queue=True) as opened:
        yield opened


def store_delivery(pipeline: Pipeline, **changes: object) -> Delivery:
    """One that is due, as a request leaves it to the workers."""
    now_ms = pipeline.dispatcher.courier.clock.now_ms()
    due = replace(FRESH, created_ms=now_ms, scheduled_ms=now_ms, next_try_ms=now_ms, **changes)  # type: ignore[arg-type]
    pipeline.dispatcher.ledger.add([due])
    return due


def after_a_turn(pipeline: Pipeline, delivery: Delivery) -> Delivery:
    pipeline.dispatcher.deliver_or_leave(delivery.id)
    known = pipeline.dispatcher.ledger.get(delivery.id)
    assert known is not None
    return known


@pytest.mark.parametrize(
    ("reactions", "status", "asked", "keeps_payload"),
    [
        ([], "delivered", 1, False),
        ([DOWN], "waiting", 1, True),  # a worker makes one try at a time
        ([REFUSES], "dead", 1, True),
        ([RuntimeError("a bug")], "delivering", 1, True),  # its hold ends, and it is due again
    ],
)
def test_one_turn_for_a_stored_delivery(
    pipeline: Pipeline, reactions: list[Reaction], status: str, asked: int, keeps_payload: bool
) -> None:
    pipeline.destinations["crm"].reactions = list(reactions)
    after = after_a_turn(pipeline, store_delivery(pipeline))
    assert (after.status, after.payload is not None) == (status, keeps_payload)
    assert len(pipeline.destinations["crm"].asked) == asked


def test_what_failed_for_now_goes_through_later_under_the_same_webhook_id_and_once_only(pipeline: Pipeline) -> None:
    crm = pipeline.destinations["crm"]
    crm.reactions = [DOWN, DOWN]
    delivery = store_delivery(pipeline)
    statuses = [after_a_turn(pipeline, delivery).status for _ in range(4)]
    assert statuses == ["waiting", "waiting", "delivered", "delivered"]
    assert (len(crm.asked), len(crm.taken)) == (3, 1)
    assert {webhook.webhook_id for webhook in crm.asked} == {delivery.webhook_id}


def test_after_its_last_try_it_is_dead_and_is_not_tried_again(pipeline: Pipeline) -> None:
    pipeline.destinations["crm"].reactions = [DOWN] * 9
    delivery = store_delivery(pipeline)
    statuses = [after_a_turn(pipeline, delivery).status for _ in range(4)]
    assert statuses == ["waiting", "waiting", "dead", "dead"]
    assert len(pipeline.destinations["crm"].asked) == 3


def test_an_error_of_our_own_gives_its_names_back(pipeline: Pipeline) -> None:
    pipeline.destinations["crm"].reactions = [RuntimeError("a bug")]
    delivery = store_delivery(pipeline)
    after_a_turn(pipeline, delivery)
    pipeline.let_time_pass(20_000)
    assert after_a_turn(pipeline, delivery).status is DeliveryStatus.DELIVERED


def test_what_is_not_on_record_is_left_alone(pipeline: Pipeline) -> None:
    assert pipeline.dispatcher.deliver_stored("msg_unknown") is None


def test_a_record_without_a_payload_is_not_sent(pipeline: Pipeline) -> None:
    """It was given back to its provider, who sends it again."""
    after = after_a_turn(pipeline, store_delivery(pipeline, payload=None))
    assert (after.status, after.next_try_ms) == (DeliveryStatus.WAITING, None)
    assert pipeline.destinations["crm"].asked == []


def test_what_another_server_is_at_is_left_alone_until_its_lease_is_over(bench: Bench, pipeline: Pipeline) -> None:
    delivery = store_delivery(pipeline)
    locks = PublicationLocks(bench.another, "another server", lambda: "its token")
    assert locks.acquire_lock(delivery.item, "crm")
    before_ms = pipeline.dispatcher.courier.clock.now_ms()
    held = after_a_turn(pipeline, delivery)
    assert held.next_try_ms is not None
    assert before_ms + AFTER_THE_LEASE_MS < held.next_try_ms <= before_ms + 300_000 + AFTER_THE_LEASE_MS
    assert pipeline.destinations["crm"].asked == []
    pipeline.let_time_pass(300_000 + AFTER_THE_LEASE_MS)
    assert after_a_turn(pipeline, delivery).status is DeliveryStatus.DELIVERED


def test_while_names_cannot_be_claimed_it_is_put_off_and_no_try_is_used_up(pipeline: Pipeline) -> None:
    delivery = store_delivery(pipeline)
    pipeline.store.failing.add("claim")
    after = after_a_turn(pipeline, delivery)
    assert (after.status, after.tries) == (DeliveryStatus.WAITING, 0)
    assert (after.next_try_ms or 0) > delivery.created_ms
    assert pipeline.destinations["crm"].asked == []
    pipeline.store.failing.clear()
    assert after_a_turn(pipeline, delivery).status is DeliveryStatus.DELIVERED


def test_the_same_words_to_the_same_destination_are_skipped_and_say_what_they_repeat(pipeline: Pipeline) -> None:
    words = {"content_hash": "h1", "content_kept_ms": 60_000}
    first = store_delivery(pipeline, **words)
    second = store_delivery(pipeline, id="d2", webhook_id="d2", item="another", **words)
    elsewhere = store_delivery(pipeline, id="d3", webhook_id="d3", item="third", destination="archive", **words)
    after = [after_a_turn(pipeline, each) for each in (first, second, elsewhere)]
    assert [each.status for each in after] == ["delivered", "skipped", "delivered"]
    assert after[1].reason == f"repeats content:crm:h1 of {first.item}"
    assert len(pipeline.destinations["crm"].taken) == 1


def test_a_destination_that_hangs_holds_up_no_other_and_settles_itself_in_the_end(pipeline: Pipeline) -> None:
    go_on = threading.Event()
    pipeline.destinations["crm"].reactions = [lambda: go_on.wait(60)]
    to_each = [store_delivery(pipeline), store_delivery(pipeline, id="d2", webhook_id="d2", destination="archive")]
    monotonic = pipeline.intake.sources.monotonic
    budget = Budget(monotonic() + 1, monotonic)
    crm, archive = pipeline.dispatcher.send_to_each(to_each, budget)
    assert (archive.delivery.status, archive.is_safe) == (DeliveryStatus.DELIVERED, True)
    assert not crm.is_safe, "it may still fail"
    go_on.set()
    pipeline.dispatcher.pools["crm"].shutdown()  # waits for what is under way
    known = pipeline.dispatcher.ledger.get(to_each[0].id)
    assert known is not None
    assert known.status is DeliveryStatus.DELIVERED
