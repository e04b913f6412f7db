"""What stored deliveries promise, on one machine without Redis and on two that share one."""

from unittest.mock import Mock

import pytest
from msgspec.structs import replace

from deduplication import again, erasing, room
from deduplication.again import Refusal
from deduplication.errors import NoRoom, StoreUnavailable
from deduplication.files import Retention
from deduplication.journal import coordinator as coordinator_module
from deduplication.journal import rules
from deduplication.journal.coordinator import Claimed, Lent
from deduplication.journal.entry import Attempt, Delivery, DeliveryStatus, Entry
from deduplication.journal.registry import NOTHING, Answer, Commit, RegistryOptions
from deduplication.journal.rules import Repeat
from deduplication.room import read_info
from tests.deduplication.conftest import Fleet3, Sync
from tests.deduplication.journal.world import (
    HOLD_MS,
    LEASE_MS,
    Email,
    Machine,
    Time,
    ask,
    claimed,
    delivered,
    read,
    send,
    skipped,
    stored,
    take,
)

Pair = tuple[Machine, Machine]


def ended(lent: Lent, status: DeliveryStatus, **changes: object) -> Delivery:
    return replace(lent.delivery, status=status, **changes)


def test_what_is_stored_is_handed_out_once_on_any_machine_with_its_payload(pair: Pair) -> None:
    assert stored(pair[0], claimed(pair[0], Email())).is_safe
    (lent,) = take(pair[1])
    assert lent.payload == b"payload" and lent.delivery.webhook_id == "msg_one_crm"
    assert take(pair[0]) == [] and take(pair[1]) == []


def test_two_processes_may_publish_the_same_stored_delivery(pair: Pair) -> None:
    """Or one of them twice, because the first answer was lost."""
    settled = stored(pair[0], claimed(pair[0], Email()))
    assert settled.entry
    if registry := pair[0].coordinator.registry:
        waiting = tuple(replace(each, is_accepted=False) for each in settled.entry.deliveries)
        (published,) = registry.publish([(replace(settled.entry, deliveries=waiting), NOTHING, b"payload")])
        assert not published.refused


def test_requests_publish_if_the_background_thread_lags(fleet: Fleet3, monkeypatch: pytest.MonkeyPatch) -> None:
    """An outcome that is published after its lease is sent again by another process."""
    monkeypatch.setattr(coordinator_module, "MOST_BEHIND", 2)
    monkeypatch.setattr(coordinator_module, "PUBLISHED_BY_A_REQUEST", 1)
    machine = fleet.add()  # its threads do not run
    fleet.open()
    for number in range(5):
        stored(machine, claimed(machine, Email(f"{number}")))
    for lent in take(machine):
        assert machine.coordinator.finish(lent, ended(lent, DeliveryStatus.DELIVERED))
    assert machine.registry.ask(lambda client, prefix: client.zcard(f"{prefix}due:crm")) == 2


def test_a_replay_of_what_waits_counts_its_attempts_from_then_on(pair: Pair) -> None:
    entry = stored(pair[0], claimed(pair[0], Email())).entry
    (lent,) = take(pair[0])
    later_ms = pair[0].time.now_ms + 3_600_000
    assert pair[0].coordinator.finish(lent, ended(lent, DeliveryStatus.WAITING, tries=9, next_try_ms=later_ms))
    assert entry and again.replay(pair[0].coordinator, entry.id, "crm") is None
    (lent,) = take(pair[0])
    assert lent.delivery.tries == 0


def test_a_replay_of_what_waits_for_a_name_does_not_pass_by_that(pair: Pair, sync: Sync) -> None:
    first, second = claimed(pair[0], Email("one", group="lot_3")), claimed(pair[0], Email("two", group="lot_3"))
    entry = pair[0].coordinator.settle(second, second.plan, "queued", b"payload").entry
    delivered(pair[0], first)
    sync()
    assert entry and again.replay(pair[0].coordinator, entry.id, "crm") is None
    assert take(pair[0]) == []
    with pair[0].journal.reading() as step:
        after = step.read(entry.id)
    assert after and after.deliveries[0].status is DeliveryStatus.SKIPPED


def test_what_was_hastened_stays_due_if_the_process_that_takes_it_dies(pair: Pair) -> None:
    stored(pair[0], claimed(pair[0], Email()), in_ms=3_600_000)
    assert pair[0].coordinator.hasten("crm", 10) == 1
    assert len(take(pair[0])) == 1
    pair[0].time.pass_ms(LEASE_MS + 1)
    assert len(take(pair[0])) == 1


def test_what_redis_had_not_accepted_is_known_once_it_was_delivered(pair: Pair) -> None:
    """Such as by a service that has no REDIS_URL any more."""
    claim = claimed(pair[0], Email())
    waiting = replace(claim.plan[0], status=DeliveryStatus.WAITING, is_accepted=False)
    entry = rules.settle(claim.entry, [waiting], claim.owner, pair[0].time.now_ms)
    made = replace(waiting, status=DeliveryStatus.DELIVERED)
    after = entry and rules.settle(entry, [made], "", pair[0].time.now_ms)
    assert after and after.deliveries[0].is_accepted
    name = Email().claim("x").own[0]
    known = rules.Known({name.label: rules.NameState(entries=(after,))}, pair[0].time.steady_ms)
    assert isinstance(rules.identify(Email().claim("x"), known), Repeat)


def test_a_fact_is_noted_although_redis_fails_while_it_looks_for_room(
    fleet: Fleet3, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = fleet.add(options=RegistryOptions(hold_ms=HOLD_MS, payload_bytes=100))
    fleet.open()
    claim = claimed(machine, Email(destinations=("crm", "chat")))
    one, other = claim.plan
    outcomes = [replace(one, status=DeliveryStatus.DELIVERED), replace(other, status=DeliveryStatus.WAITING)]
    monkeypatch.setattr(room, "drop_dead", Mock(side_effect=StoreUnavailable("Redis does not answer")))
    machine.coordinator.settle(claim, outcomes, "queued", b"x" * 1000)
    with machine.journal.reading() as step:
        entry = step.read(claim.entry.id)
    assert entry and entry.is_delivered_somewhere


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
        assert not pair[0].client.exists("payload:msg_one_crm", "delivery:msg_one_crm")
        assert pair[0].client.hget("room", "crm") == b"0"


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
    (again,) = take(pair[0])
    assert again.delivery.tries == 2 and again.payload == b"payload"


def test_a_dead_letter_is_handed_out_no_more_and_can_be_replayed(pair: Pair, sync: Sync) -> None:
    entry = stored(pair[0], claimed(pair[0], Email())).entry
    (lent,) = take(pair[1])
    assert pair[1].coordinator.finish(lent, ended(lent, DeliveryStatus.DEAD, reason="tried too often"))
    sync()
    pair[0].follow()
    assert take(pair[0]) == [] and entry
    assert again.replay(pair[0].coordinator, entry.id, "crm") is None
    (lent,) = take(pair[1])
    assert lent.delivery.generation == 1 and lent.payload == b"payload"


def test_a_taker_that_died_is_followed_by_another_and_the_third_death_makes_a_dead_letter(pair: Pair) -> None:
    entry = stored(pair[0], claimed(pair[0], Email())).entry
    for _ in range(3):
        assert len(take(pair[0])) == 1
        pair[0].time.pass_ms(LEASE_MS + 1)
    assert take(pair[0]) == []
    assert entry and read(pair[0], entry.id).deliveries[0].status is DeliveryStatus.DEAD


def test_a_taker_whose_lease_ended_decides_nothing(pair: Pair) -> None:
    stored(pair[0], claimed(pair[0], Email()))
    (first,) = take(pair[0])
    pair[0].time.pass_ms(LEASE_MS + 1)
    (second,) = take(pair[1])
    assert not pair[0].coordinator.finish(first, ended(first, DeliveryStatus.DEAD))
    assert pair[1].coordinator.finish(second, ended(second, DeliveryStatus.DELIVERED))


def test_the_same_email_stored_by_two_machines_is_one_delivery(pair: Pair, sync: Sync) -> None:
    first = claimed(pair[0], Email(), lease_ms=1)
    pair[0].time.pass_ms(5)
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
    assert again.replay(pair[1].coordinator, stopped.entry.id) is None
    (lent,) = take(pair[0])
    assert lent.entry.id == stopped.entry.id
    pair[0].coordinator.finish(lent, ended(lent, DeliveryStatus.DELIVERED))
    sync()
    pair[1].follow()
    assert again.replay(pair[1].coordinator, stopped.entry.id) is Refusal.ALREADY_RELEASED


def test_a_release_frees_no_group_that_the_email_has_marked(pair: Pair, sync: Sync) -> None:
    send(pair[0], Email("zero", destinations=("chat",), words=True))
    sync()
    half = claimed(pair[0], Email("one", group="g", destinations=("crm", "chat"), words=True))
    outcomes = [replace(each, status=DeliveryStatus.DELIVERED) if each in half.to_send else each for each in half.plan]
    pair[0].coordinator.settle(half, outcomes, "processed", b"payload")
    sync()
    assert again.replay(pair[0].coordinator, half.entry.id) is None
    stopped = ask(pair[0], Email("two", group="g"))
    assert isinstance(stopped, Claimed) and stopped.entry.stop


def test_replay_does_not_pass_by_what_a_destination_has_unless_forced(pair: Pair) -> None:
    entry = send(pair[0], Email()).entry
    assert entry and again.replay(pair[0].coordinator, entry.id, "crm") is Refusal.ALREADY_DELIVERED
    assert again.replay(pair[0].coordinator, entry.id, "crm", force=True) is Refusal.NO_PAYLOAD
    assert again.replay(pair[0].coordinator, entry.id, "other") is Refusal.UNKNOWN


def test_while_one_destination_is_delivered_another_can_wait(pair: Pair) -> None:
    first = claimed(pair[0], Email(destinations=("crm", "chat")))
    crm, chat = first.to_send
    ends = [
        replace(crm, status=DeliveryStatus.DELIVERED),
        replace(chat, status=DeliveryStatus.WAITING, next_try_ms=pair[0].time.now_ms),
    ]
    assert pair[0].coordinator.settle(first, ends, "queued", b"payload").is_safe
    assert take(pair[1], "crm") == [] and len(take(pair[1], "chat")) == 1
    assert isinstance(ask(pair[1], Email(destinations=("crm", "chat"))), Repeat)


def test_hastening_makes_due_what_waits_and_leaves_alone_what_is_lent(pair: Pair) -> None:
    stored(pair[0], claimed(pair[0], Email("lent")))
    assert len(take(pair[1])) == 1
    for number, key in enumerate(("late", "later", "latest"), 1):
        stored(pair[0], claimed(pair[0], Email(key)), in_ms=number * 3_600_000)
    for machine in pair:
        assert machine.coordinator.destinations_with_waiting() == {"crm"}, "even if its journal does not know it"
    assert pair[1].coordinator.hasten("crm", 2) == 2
    assert {each.delivery.webhook_id for each in take(pair[1])} == {"msg_late_crm", "msg_later_crm"}
    assert pair[1].coordinator.hasten("crm", 10) == 1, "the lent ones would be handed out twice"


def test_a_destination_where_nothing_waits_any_more_is_not_asked(pair: Pair) -> None:
    stored(pair[0], claimed(pair[0], Email()))
    (lent,) = take(pair[1])
    pair[1].coordinator.finish(lent, ended(lent, DeliveryStatus.DELIVERED))
    pair[1].coordinator.publish_waiting()
    pair[0].follow()
    assert take(pair[1]) == []
    assert pair[0].coordinator.destinations_with_waiting() == set()


def test_an_item_that_takes_no_names_is_recorded_once_and_can_be_released(pair: Pair, sync: Sync) -> None:
    old = Delivery("crm", "msg_old_crm", DeliveryStatus.SKIPPED)
    now_ms = pair[0].time.now_ms
    entry = Entry("oldone", pair[0].name, (), answer="skipped_old", created_ms=now_ms, deliveries=(old,))
    for _ in range(2):
        pair[0].coordinator.record(entry, b"payload")
    sync()
    pair[1].follow()
    assert read(pair[1], "oldone").answer == "skipped_old"
    assert again.replay(pair[0].coordinator, "oldone") is None
    pair[0].coordinator.record(entry, b"payload")
    assert [each.payload for each in take(pair[1])] == [b"payload"]


def test_an_email_that_waits_for_many_destinations_is_erased(pair: Pair) -> None:
    """Redis was asked for one destination after the other, more often than a step allows."""
    entry = stored(pair[0], claimed(pair[0], Email(destinations=tuple("abcdefgh")))).entry
    assert entry and erasing.erase(pair[0].coordinator, [entry]) == []
    assert take(pair[0], "a") == []


def test_a_closed_journal_says_so_and_can_be_closed_again(pair: Pair) -> None:
    send(pair[0], Email())
    ask(pair[0], Email())
    with pair[0].journal.reading() as step:
        pair[0].coordinator.close()
        assert step.query("SELECT sum(count) FROM repeats") == [(1,)], "who reads may finish"
    pair[0].coordinator.close()
    with pytest.raises(StoreUnavailable):
        ask(pair[0], Email())


# Room, and what is kept of payloads


def payloads(machine: Machine) -> list[str]:
    with machine.journal.reading() as step:
        query = "SELECT e.id FROM payloads p JOIN entries e ON e.seq = p.seq ORDER BY e.seq"
        return [entry_id for (entry_id,) in step.query(query)]


def test_one_destination_cannot_take_the_room_of_all_others_and_dead_letters_leave_first(fleet: Fleet3) -> None:
    machine = fleet.add(options=RegistryOptions(hold_ms=HOLD_MS, payload_bytes=1_000))
    fleet.open()
    client, content = machine.client, b"x" * 390
    stored(machine, claimed(machine, Email("one")), payload=content)
    found = claimed(machine, Email("two"))
    stored(machine, found, payload=content)
    full = claimed(machine, Email("three"))
    with pytest.raises(NoRoom):
        stored(machine, full, payload=b"x" * 100)  # there is room for it, but not for this destination
    assert read(machine, full.entry.id).deliveries[0].status is DeliveryStatus.CLAIMED, "nothing was noted"
    assert stored(machine, claimed(machine, Email("four", destinations=("chat",))), payload=b"x" * 40).is_safe
    for lent in take(machine):
        machine.coordinator.finish(lent, ended(lent, DeliveryStatus.DEAD))
    assert client.hgetall("room") == {b"crm": b"0", b"chat": b"40", b"": b"780"}
    assert stored(machine, full, payload=content).is_safe
    assert client.hgetall("room")[b""] == b"0" and client.zcard("dead") == 0
    assert again.replay(machine.coordinator, found.entry.id, "crm") is None, (
        "the journal that stored it has its payload"
    )
    assert client.hgetall("room")[b"crm"] == b"780"


def test_a_redis_that_is_nearly_full_stores_nothing_more(fleet: Fleet3) -> None:
    machine = fleet.add()
    fleet.open()
    used = machine.client.info("memory")["used_memory"]
    machine.client.config_set("maxmemory", used + used // 16)
    try:
        with pytest.raises(NoRoom):
            stored(machine, claimed(machine, Email()))
    finally:
        machine.client.config_set("maxmemory", 0)
    assert read_info(machine.registry, "memory")["maxmemory_policy"] == "noeviction"


def test_what_lies_on_another_machine_is_sent_again_there_once(fleet: Fleet3) -> None:
    one, other = fleet.add(retention=Retention(delivered_payload_ms=3_600_000)), fleet.add()
    fleet.open()
    found = claimed(one, Email())
    done = [replace(each, status=DeliveryStatus.DELIVERED) for each in found.to_send]
    one.coordinator.settle(found, done, "processed", b"payload")
    fleet.settle_down()
    assert again.replay(other.coordinator, found.entry.id, "crm", force=True) is None
    one.follow()
    (lent,) = take(other)
    assert lent.payload == b"payload" and lent.delivery.generation == 1
    other.coordinator.finish(lent, ended(lent, DeliveryStatus.DELIVERED))
    fleet.settle_down()
    with one.journal.step() as step:
        step.set_meta("position", "0")  # the request is read again
    fleet.settle_down()
    assert take(other) == [] and read(one, found.entry.id).is_delivered_everywhere


def test_a_suppressed_email_is_released_by_a_machine_that_has_not_its_payload(fleet: Fleet3) -> None:
    one, other = fleet.add(), fleet.add()
    fleet.open()
    send(one, Email("one", group="lot_3"))
    fleet.settle_down()
    entry = skipped(one, claimed(one, Email("two", group="lot_3"))).entry
    fleet.settle_down()
    assert entry and again.replay(other.coordinator, entry.id, dry_run=True) is None
    one.follow()
    assert take(other) == [], "it was a rehearsal"
    assert again.replay(other.coordinator, entry.id) is None
    one.follow()
    assert [each.payload for each in take(other)] == [b"payload"]


def test_a_dead_letter_of_a_machine_that_is_gone_is_replayed_with_the_payload_in_redis(fleet: Fleet3) -> None:
    one, other = fleet.add(), fleet.add()
    fleet.open()
    entry = stored(one, claimed(one, Email())).entry
    (lent,) = take(other)
    other.coordinator.finish(lent, ended(lent, DeliveryStatus.DEAD))
    one.lose_disk()
    other.follow()
    assert entry and again.replay(other.coordinator, entry.id, "crm") is None
    assert [each.payload for each in take(other)] == [b"payload"]


def test_suppressed_payloads_are_bounded_for_each_sender_domain(time: Time) -> None:
    machine = Machine(None, time, retention=Retention(suppressed_bytes=100))
    send(machine, Email("first", group="lot_3"))
    ids = [
        skipped(machine, claimed(machine, Email(str(number), group="lot_3", sender=sender)), b"x" * 40).entry
        for number, sender in enumerate(["a@spam.example"] * 3 + ["b@good.example"])
    ]
    assert payloads(machine) == [entry.id for entry in ids[1:] if entry]
    machine.close()


@pytest.mark.parametrize("days", [0, 2])
def test_payloads_of_what_was_delivered_are_kept_as_long_as_asked(time: Time, days: int) -> None:
    day_ms = 24 * 3_600_000
    machine = Machine(None, time, retention=Retention(delivered_payload_ms=days * day_ms))
    entry = stored(machine, claimed(machine, Email())).entry
    (lent,) = take(machine)
    machine.coordinator.finish(lent, ended(lent, DeliveryStatus.DELIVERED))
    assert entry and payloads(machine) == ([entry.id] if days else [])
    assert again.replay(machine.coordinator, entry.id, "crm", force=True) is (None if days else Refusal.NO_PAYLOAD)
    for lent in take(machine):
        machine.coordinator.finish(lent, ended(lent, DeliveryStatus.DELIVERED))
    time.pass_ms(days * day_ms + 1)
    machine.coordinator.tend()
    assert payloads(machine) == []
    machine.close()


def test_nothing_is_claimed_while_the_disk_is_nearly_full(time: Time) -> None:
    machine = Machine(None, time, retention=Retention(disk_free_bytes=1 << 62))
    with pytest.raises(StoreUnavailable, match="DISK_FREE_MB"):
        ask(machine, Email())
    machine.close()


def test_a_stored_delivery_that_cannot_be_read_does_not_delay_others(fleet: Fleet3) -> None:
    machine = fleet.add()
    fleet.open()
    for key in ("bad", "good"):
        stored(machine, claimed(machine, Email(key)))
    fleet.redis.client.hset("delivery:msg_bad_crm", "data", '["of another version"]')
    assert [lent.delivery.webhook_id for lent in take(machine)] == ["msg_good_crm"]


def test_a_delivery_that_redis_has_lent_is_sent_though_another_thread_misses_an_answer(
    fleet: Fleet3, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it would wait for the end of its lease, and count as begun without an outcome."""
    machine = fleet.add()
    fleet.open()
    stored(machine, claimed(machine, Email()))
    registry = machine.coordinator.registry
    assert registry
    run = registry.run

    def run_and_suspect(*commits: Commit, always: bool = False) -> list[Answer]:
        answers = run(*commits, always=always)
        machine.coordinator.redis.suspect()
        return answers

    monkeypatch.setattr(registry, "run", run_and_suspect)
    assert len(take(machine)) == 1


def test_a_journal_that_has_seen_no_era_takes_nothing(fleet: Fleet3) -> None:
    first, other = fleet.add(), fleet.add()
    fleet.open()
    stored(first, claimed(first, Email()))
    with other.journal.step() as step:
        step.set_meta("era", "")
    assert take(other) == []
