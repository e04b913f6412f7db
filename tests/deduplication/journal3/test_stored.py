"""What stored deliveries promise, on one machine without Redis and on two that share one."""

from __future__ import annotations

from deduplication.journal3.coordinator import Claimed, Lent
from deduplication.journal3.entry import Attempt, Delivery, DeliveryStatus, Entry, changed
from deduplication.journal3.rules import Busy, Refusal, Repeat
from tests.deduplication.journal3.conftest import Sync
from tests.deduplication.journal3.test_names import make_due
from tests.deduplication.journal3.world import (
    LEASE_MS,
    Email,
    Machine,
    ask,
    claimed,
    delivered,
    send,
    skipped,
    stored,
    take,
)

Pair = tuple[Machine, Machine]


def ended(lent: Lent, status: DeliveryStatus, **changes: object) -> Delivery:
    return changed(lent.delivery, status=status, **changes)


def read(machine: Machine, entry_id: str) -> Entry:
    with machine.journal.reading() as step:
        found = step.read(entry_id)
    assert found
    return found


def test_what_is_stored_is_handed_out_once_on_any_machine_with_its_payload(pair: Pair) -> None:
    assert stored(pair[0], claimed(pair[0], Email())).is_safe
    (lent,) = take(pair[1])
    assert lent.payload == b"payload" and lent.delivery.webhook_id == "msg_one_crm"
    assert take(pair[0]) == [] and take(pair[1]) == []


def test_a_repeat_of_what_waits_is_a_repeat(pair: Pair, sync: Sync) -> None:
    stored(pair[0], claimed(pair[0], Email()))
    for machine in pair:
        again = ask(machine, Email())
        assert isinstance(again, Repeat) and again.of and again.of.answer == "queued"


def test_what_is_not_due_yet_is_not_handed_out(pair: Pair) -> None:
    stored(pair[0], claimed(pair[0], Email()), in_ms=3_600_000)
    assert take(pair[1]) == []


def test_once_delivered_it_is_known_everywhere_and_its_payload_is_gone(pair: Pair, sync: Sync) -> None:
    entry = stored(pair[0], claimed(pair[0], Email())).entry
    (lent,) = take(pair[1])
    assert pair[1].coordinator.finish(lent, ended(lent, DeliveryStatus.DELIVERED))
    sync()
    pair[0].follow()
    assert entry and read(pair[0], entry.id).is_delivered_everywhere
    with pair[0].journal.reading() as step:
        assert step.payload(entry.id) is None
    if pair[0].url:
        assert not pair[0].clients[0].exists("payload:msg_one_crm", "delivery:msg_one_crm")
        assert pair[0].clients[0].hget("room", "crm") == b"0"


def test_a_failed_attempt_waits_for_the_next_with_its_history(pair: Pair, sync: Sync) -> None:
    entry = stored(pair[0], claimed(pair[0], Email())).entry
    (lent,) = take(pair[1])
    attempt = Attempt(pair[0].time.now_ms, 12, 500, "HTTP 500")
    later = ended(
        lent, DeliveryStatus.WAITING, tries=2, attempts=(attempt,), next_try_ms=pair[0].time.now_ms + 3_600_000
    )
    assert pair[1].coordinator.finish(lent, later)
    assert take(pair[0]) == []
    sync()
    pair[0].follow()
    assert entry and read(pair[0], entry.id).deliveries[0].attempts == (attempt,)
    pair[0].time.pass_ms(3_600_000)
    make_due(pair[0], "msg_one_crm")
    (again,) = take(pair[0])
    assert again.delivery.tries == 2 and again.payload == b"payload"


def test_a_dead_letter_is_handed_out_no_more_and_can_be_replayed(pair: Pair, sync: Sync) -> None:
    entry = stored(pair[0], claimed(pair[0], Email())).entry
    (lent,) = take(pair[1])
    assert pair[1].coordinator.finish(lent, ended(lent, DeliveryStatus.DEAD, reason="tried too often"))
    sync()
    pair[0].follow()
    assert take(pair[0]) == [] and entry
    assert pair[0].coordinator.replay(entry.id, "crm") is None
    (again,) = take(pair[1])
    assert again.delivery.generation == 1 and again.payload == b"payload"


def test_a_taker_that_died_is_followed_by_another_and_the_third_death_makes_a_dead_letter(pair: Pair) -> None:
    entry = stored(pair[0], claimed(pair[0], Email())).entry
    for _ in range(3):
        assert len(take(pair[0])) == 1
        pair[0].time.pass_ms(LEASE_MS + 1)
        make_due(pair[0], "msg_one_crm")
    assert take(pair[0]) == []
    assert entry and read(pair[0], entry.id).deliveries[0].status is DeliveryStatus.DEAD


def test_a_taker_whose_lease_ended_decides_nothing(pair: Pair) -> None:
    stored(pair[0], claimed(pair[0], Email()))
    (first,) = take(pair[0])
    pair[0].time.pass_ms(LEASE_MS + 1)
    make_due(pair[0], "msg_one_crm")
    (second,) = take(pair[1])
    assert not pair[0].coordinator.finish(first, ended(first, DeliveryStatus.DEAD))
    assert pair[1].coordinator.finish(second, ended(second, DeliveryStatus.DELIVERED))


def test_the_same_email_stored_by_two_machines_is_one_delivery(pair: Pair, sync: Sync) -> None:
    first = claimed(pair[0], Email(), lease_ms=1)
    pair[0].time.pass_ms(5)
    import time

    time.sleep(0.005)
    second = claimed(pair[1], Email())
    stored(pair[1], second)
    stored(pair[0], first)
    sync()
    assert len(take(pair[0]) + take(pair[1])) == 1


def test_what_a_gate_skipped_is_released_once(pair: Pair, sync: Sync) -> None:
    send(pair[0], Email("one", group="lot_3"))
    sync()
    stopped = claimed(pair[1], Email("two", group="lot_3"))
    skipped(pair[1], stopped)
    assert pair[1].coordinator.release(stopped.entry.id) is None
    (lent,) = take(pair[0])
    assert lent.entry.id == stopped.entry.id
    pair[0].coordinator.finish(lent, ended(lent, DeliveryStatus.DELIVERED))
    sync()
    pair[1].follow()
    assert pair[1].coordinator.release(stopped.entry.id) is Refusal.ALREADY_RELEASED


def test_replay_does_not_pass_by_what_a_destination_has_unless_forced(pair: Pair) -> None:
    entry = send(pair[0], Email()).entry
    assert entry and pair[0].coordinator.replay(entry.id, "crm") is Refusal.ALREADY_DELIVERED
    assert pair[0].coordinator.replay(entry.id, "crm", force=True) is Refusal.NO_PAYLOAD
    assert pair[0].coordinator.replay(entry.id, "other") is Refusal.UNKNOWN


def test_while_one_destination_is_delivered_another_can_wait(pair: Pair) -> None:
    first = claimed(pair[0], Email(destinations=("crm", "chat")))
    crm, chat = first.to_send
    ends = [
        changed(crm, status=DeliveryStatus.DELIVERED),
        changed(chat, status=DeliveryStatus.WAITING, next_try_ms=pair[0].time.now_ms),
    ]
    assert pair[0].coordinator.settle(first, ends, "queued", b"payload").is_safe
    assert take(pair[1], "crm") == [] and len(take(pair[1], "chat")) == 1
    assert isinstance(ask(pair[1], Email(destinations=("crm", "chat"))), Repeat)


def test_a_live_claim_of_this_machine_keeps_it_from_sending_a_stored_one(pair: Pair, sync: Sync) -> None:
    first = claimed(pair[0], Email(destinations=("chat",)))
    stored(pair[0], first)
    assert isinstance(ask(pair[1], Email(destinations=("chat",))), Repeat)
    other = claimed(pair[0], Email(destinations=("crm",)))
    assert isinstance(ask(pair[0], Email(destinations=("crm",))), Busy)
    assert isinstance(other, Claimed) and delivered(pair[0], other).is_safe
