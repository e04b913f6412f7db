"""One rule of the protocol after the other, each with the fault that it is for (docs/architecture.md)."""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest
from msgspec import structs

from deduplication import members
from deduplication.again import forget
from deduplication.errors import StoreUnavailable
from deduplication.journal import fleet as fleet_module
from deduplication.journal import registry as registry_module
from deduplication.journal.coordinator import Claimed, Settled
from deduplication.journal.entry import DeliveryStatus, encode
from deduplication.journal.registry import NOTHING, Published
from deduplication.journal.rules import Busy, Repeat
from deduplication.names import Kind, Name
from tests.deduplication.journal.stage import CASTS, Stage
from tests.deduplication.journal.world import (
    HOLD_MS,
    LEASE_MS,
    Email,
    Machine,
    ask,
    claimed,
    delivered,
    read,
    returned,
    send,
    skipped,
    stored,
    take,
)
from tests.support.redis_server import RedisServer

A, B, GROUPED, OTHER_OF_GROUP = *CASTS[0][:2], *CASTS[1][1:3]


@pytest.fixture
def stage(redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    found = Stage(redis_server, monkeypatch, (A, B, GROUPED, OTHER_OF_GROUP))
    yield found
    found.close()


@pytest.fixture
def first(stage: Stage) -> Machine:
    return stage.processes[0]


@pytest.fixture
def neighbour(stage: Stage) -> Machine:
    """Another process of the first machine."""
    return stage.processes[1]


@pytest.fixture
def other(stage: Stage) -> Machine:
    """Another machine."""
    return stage.processes[2]


# A request (1 to 7)


def test_only_its_owner_releases_a_hold(first: Machine, other: Machine) -> None:
    held = claimed(first, A)
    other.registry.release(registry_module.labels_of(held.entry), other.coordinator.new_owner())
    assert isinstance(ask(other, A), Busy)


@pytest.mark.parametrize("fault", ["reply lost", "late"])
def test_a_hold_whose_answer_was_lost_is_released(stage: Stage, first: Machine, other: Machine, fault: str) -> None:
    stage.lines[0].next_fault = fault
    with pytest.raises(StoreUnavailable):
        ask(first, A)
    stage.run_late_requests()
    assert isinstance(ask(other, A), Busy), "the hold was not executed"
    stage.tick(first)
    assert isinstance(ask(other, A), Claimed)


def test_a_hold_is_not_executed_after_its_time(stage: Stage, first: Machine, other: Machine) -> None:
    stage.lines[0].next_fault = "late"
    with pytest.raises(StoreUnavailable):
        ask(first, A)
    stage.time.pass_ms(3_000)
    stage.run_late_requests()
    assert isinstance(ask(other, A), Claimed)


def test_a_hold_needs_the_same_era(
    stage: Stage, first: Machine, other: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold = first.registry.hold

    def and_then_a_new_era(*arguments: Any, **more: Any) -> Any:
        found = hold(*arguments, **more)
        with first.journal.step() as step:
            step.set_meta("era", "another")
        return found

    monkeypatch.setattr(first.registry, "hold", and_then_a_new_era)
    with pytest.raises(StoreUnavailable, match="era"):
        ask(first, A)
    assert isinstance(ask(other, A), Claimed)  # the hold was given back


def test_processes_that_disagree_about_redis_do_not_both_send(stage: Stage, first: Machine, neighbour: Machine) -> None:
    stage.lines[1].is_cut = True
    stage.tick(neighbour)
    assert neighbour.coordinator.redis.status == "gone"
    claimed(first, A)
    assert isinstance(ask(neighbour, A), Busy)
    claimed(neighbour, B)
    assert isinstance(ask(first, B), Busy)


def test_what_redis_has_not_accepted_yet_is_no_duplicate(stage: Stage, first: Machine) -> None:
    found = claimed(first, A)
    stage.lines[0].is_cut = True
    assert not stored(first, found).is_safe
    assert isinstance(ask(first, A), Busy)
    stage.lines[0].is_cut = False
    stage.tick(first)
    stage.tick(first)
    assert isinstance(ask(first, A), Repeat)


@pytest.mark.parametrize("loses_disk", [False, True])
def test_without_redis_every_machine_knows_what_the_fleet_did(
    stage: Stage, first: Machine, other: Machine, loses_disk: bool
) -> None:
    send(first, A)
    stage.beat()
    if loses_disk:
        stage.lose_disk()
        stage.beat()
    for line in stage.lines:
        line.is_cut = True
    stage.beat()
    assert other.coordinator.redis.status == "gone"
    assert isinstance(ask(other, A), Repeat)
    alone = claimed(other, B)
    assert alone.is_alone and alone.entry.about.alone


@pytest.mark.parametrize("why", ["it was behind", "the service is closed"])
def test_a_machine_that_may_not_go_on_without_redis_takes_nothing(stage: Stage, other: Machine, why: str) -> None:
    if why == "it was behind":
        stage.time.pass_ms(70_000)  # without reading
    else:
        other.is_open = False
        other.restart()
        stage.beat()
    stage.lines[2].is_cut = True
    stage.tick(other)
    with pytest.raises(StoreUnavailable):
        ask(other, A)


# Is Redis gone? (8)


def test_after_a_missing_answer_requests_are_asked_to_retry_at_once(stage: Stage, first: Machine) -> None:
    stage.lines[0].next_fault = "late"
    with pytest.raises(StoreUnavailable):
        ask(first, A)
    assert first.coordinator.redis.status == "suspected"
    with pytest.raises(StoreUnavailable, match="a moment ago"):
        ask(first, B)
    stage.tick(first)
    assert first.coordinator.redis.status == "up"


def test_a_machine_that_is_alone_goes_on_at_the_first_missing_answer(stage: Stage, first: Machine) -> None:
    first.coordinator.redis.is_only_member = True
    stage.lines[0].is_cut = True
    assert claimed(first, A).is_alone


def test_a_machine_is_alone_once_it_has_been_the_only_member_for_a_minute(
    stage: Stage, first: Machine, other: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 1.0
    monkeypatch.setattr(fleet_module, "time", Mock(monotonic=lambda: now_s))
    alone = []
    for passed_s, others_too in [(61, False), (59, False), (2, False), (0, True), (61, False), (59, False), (2, False)]:
        now_s += passed_s
        stage.time.pass_ms(passed_s * 1000)
        if others_too:
            other.tick()
        first.tick()
        alone.append(first.coordinator.redis.is_only_member)
    assert alone == [False, False, True, False, False, False, True]


# Publishing and following (9, 10)


def test_an_entry_that_changes_meanwhile_stays_unpublished(first: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    found = claimed(first, B)
    delivered(first, found, "crm")
    publish = first.registry.publish

    def and_meanwhile(*arguments: Any, **more: Any) -> list[Published]:
        monkeypatch.setattr(first.registry, "publish", publish)
        delivered(first, found, "chat")
        return publish(*arguments, **more)

    monkeypatch.setattr(first.registry, "publish", and_meanwhile)
    first.coordinator.publish(found.entry.id)
    with first.journal.reading() as step:
        assert [row[2].id for row in step.outbox(10)] == [found.entry.id]


def test_entries_published_in_an_unknown_era_are_published_again(stage: Stage, first: Machine) -> None:
    entry = send(first, A).entry
    stage.restart_redis("nothing")
    assert entry
    first.coordinator.publish(entry.id)
    with first.journal.reading() as step:
        assert [row[2].id for row in step.outbox(10)] == [entry.id]


def test_stored_by_another_does_not_replace_a_live_claim(stage: Stage, first: Machine, other: Machine) -> None:
    returned(first, claimed(first, A))  # so that both know the same entry
    stage.beat()
    stage.lines[2].is_cut = True
    stage.tick(other)
    alone = claimed(other, A)
    stored(first, claimed(first, A))
    stage.tick(first)
    stage.lines[2].is_cut = False
    stage.tick(other)
    stage.follow(other)
    assert read(other, alone.entry.id).deliveries[0].status is DeliveryStatus.CLAIMED
    delivered(other, alone)
    stage.beat()
    assert stage.take(first, "crm") == []  # delivered is known: the stored one is not sent any more


def test_older_news_undoes_no_delivery(stage: Stage, first: Machine, other: Machine) -> None:
    found = claimed(first, A)
    stored(first, found)
    entry = read(first, found.entry.id)
    (flight,) = stage.take(other, "crm")
    stage.post(flight)
    stage.settle(flight)
    stage.beat()
    first.registry.announce(["E", "elsewhere", json.loads(encode(entry))])
    stage.beat()
    assert read(other, found.entry.id).is_delivered_everywhere


def test_two_processes_of_a_machine_do_not_apply_the_stream_twice(
    stage: Stage, first: Machine, neighbour: Machine, other: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(other, A)
    stage.tick(other)
    events = first.fleet._registry.read_events("0", 100)[1]
    with first.journal.reading() as step:
        era, position = step.meta("era"), step.meta("position") or "0"
    assert first.fleet._apply(era, position, events)
    monkeypatch.setattr(neighbour.fleet, "_apply_entry", lambda *_: pytest.fail("applied twice"))
    assert neighbour.fleet._apply(era, position, events) == ""


def test_notes_reach_every_machine_and_the_later_one_counts(stage: Stage, first: Machine, other: Machine) -> None:
    def note(machine: Machine, value: str) -> None:
        with machine.journal.step() as step:
            members.put_note(step, "paused", value)

    def notes() -> set[str]:
        found = set()
        for machine in (first, other):
            with machine.journal.reading() as step:
                found.add(members.notes(step)["paused"][1])
        return found

    note(first, "crm")
    stage.beat()
    assert notes() == {"crm"}
    stage.lines[2].is_cut = True
    note(other, "chat")
    stage.time.pass_ms(5)
    note(first, "crm and chat")
    stage.restart_redis("nothing")
    stage.lines[2].is_cut = False
    stage.beat()
    assert notes() == {"crm and chat"}


def test_a_note_that_two_processes_read_keeps_its_time_and_replaces_no_later_one(first: Machine) -> None:
    with first.journal.step() as step:
        for at_ms, value, kept in (
            (10, "crm", (10, "crm")),
            (10, "crm", (10, "crm")),  # the other process has written it already
            (9, "chat", (10, "crm")),  # an operator was faster
            (10, "chat", (10, "crm")),
            (10, "slack", (10, "slack")),  # all machines choose the same one of two
            (11, "", (11, "")),
        ):
            members.put_note(step, "paused", value, at_ms)
            assert members.notes(step)["paused"] == kept
        members.put_note(step, "paused", "crm")
        assert members.notes(step)["paused"] == (step.now_ms, "crm")


# A new era (13 to 16)


@pytest.mark.parametrize("keeps", ["nothing", "snapshot"])
def test_an_emptied_redis_grants_nothing_at_first(stage: Stage, first: Machine, other: Machine, keeps: Any) -> None:
    stage.save_snapshot()
    send(first, A)
    stage.tick(first)
    stage.restart_redis(keeps)
    with pytest.raises(StoreUnavailable):
        ask(other, B)
    stage.wait_until_open()
    assert isinstance(ask(other, A), Repeat)
    assert stage.raw.sismember("processed_ids:2026-11-17", "id-a")
    assert isinstance(ask(other, B), Claimed)


def test_a_live_claim_is_held_again_in_a_new_era(stage: Stage, first: Machine, other: Machine) -> None:
    found = claimed(first, A)
    stage.restart_redis("nothing")
    stage.wait_until_open()
    assert isinstance(ask(other, A), Busy)
    delivered(first, found)
    stage.beat()
    assert isinstance(ask(other, A), Repeat)


def test_any_machine_refills_redis_with_what_it_knows_of_others(stage: Stage, first: Machine, other: Machine) -> None:
    send(first, A)
    stage.beat()
    stage.lines[0].is_cut = stage.lines[1].is_cut = True
    stage.restart_redis("nothing")
    stage.wait_until_open()
    assert stage.raw.sismember("processed_ids:2026-11-17", "id-a")
    assert isinstance(ask(other, A), Repeat)


def test_what_was_published_in_a_new_era_is_read_by_all(stage: Stage, first: Machine, other: Machine) -> None:
    send(first, A)
    stage.beat()
    with other.journal.step() as step:
        step.set_meta("position", "9999999999999-0")  # the clock of the Redis before was ahead
    stage.restart_redis("nothing")
    stage.wait_until_open()
    entry = send(first, B).entry
    stage.beat()
    assert entry and read(other, entry.id)


@pytest.mark.parametrize("is_seen", [True, False])
def test_nothing_stored_is_handed_out_while_an_era_is_closed_or_by_a_machine_that_has_not_seen_it(
    stage: Stage, first: Machine, other: Machine, is_seen: bool
) -> None:
    stored(first, claimed(first, A))
    stage.beat()
    stage.restart_redis("all")
    if is_seen:
        stage.beat()
    else:
        stage.tick(first)
        stage.time.pass_ms(HOLD_MS + 3_000)
    assert stage.take(other, "crm") == []
    stage.wait_until_open()
    assert len(stage.take(other, "crm")) == 1


def test_what_waits_is_stored_again_in_a_redis_that_forgot_it(stage: Stage, first: Machine, other: Machine) -> None:
    stored(first, claimed(first, A))
    stage.beat()
    stage.restart_redis("nothing")
    stage.wait_until_open()
    (flight,) = stage.take(other, "crm")
    stage.post(flight)
    stage.settle(flight)
    stage.beat()
    assert isinstance(ask(first, A), Repeat)


@pytest.mark.parametrize("is_restored", [True, False])
def test_an_older_snapshot_repeats_no_delivery(stage: Stage, first: Machine, other: Machine, is_restored: bool) -> None:
    stored(first, claimed(first, A))
    stage.beat()
    stage.save_snapshot()
    (flight,) = stage.take(other, "crm")
    stage.post(flight)
    stage.settle(flight)
    stage.pass_time(2 * 3_600_000)  # so that it is not among the first that are published again
    stage.restart_redis("snapshot")
    stage.beat()
    if is_restored:
        stage.wait_until_open()
        stage.lose_disk()
        stage.beat()
    else:
        stage.time.pass_ms(HOLD_MS + 1)
    assert stage.take(first if not is_restored else other, "crm") == []
    assert not stage.raw.exists("delivery:msg_a_crm")


# Stored deliveries (17, 18)


def test_a_machine_does_not_send_what_it_delivered_itself(stage: Stage, first: Machine, other: Machine) -> None:
    found = claimed(other, A)
    stage.lines[2].is_cut = True
    delivered(other, found)
    stage.pass_time(LEASE_MS + 1_000)
    stored(first, claimed(first, A))
    stage.lines[2].is_cut = False
    other.coordinator.redis.note_answer()
    assert stage.take(other, "crm") == []  # before it could publish
    stage.beat()
    assert not stage.raw.exists("delivery:msg_a_crm")


def test_a_delivery_that_another_entry_covers_is_skipped(stage: Stage, first: Machine, other: Machine) -> None:
    late = claimed(first, A, lease_ms=10 * LEASE_MS)
    stage.restart_redis("nothing")
    stage.lines[0].is_cut = stage.lines[1].is_cut = True  # so that its claim is not put back in time
    stage.pass_time(2 * HOLD_MS + 1)
    assert send(other, A).entry != late.entry
    stage.beat()
    stage.lines[0].is_cut = stage.lines[1].is_cut = False
    stage.beat()
    assert not stored(first, late).is_safe
    assert [each.status for each in read(first, late.entry.id).deliveries] == [DeliveryStatus.SKIPPED]
    assert isinstance(ask(first, A), Repeat)


def test_publishing_again_does_not_disturb_the_taker(stage: Stage, first: Machine, other: Machine) -> None:
    found = claimed(first, A)
    stored(first, found)
    entry = read(first, found.entry.id)
    (flight,) = stage.take(other, "crm")
    assert flight.lent
    first.registry.publish([(entry, NOTHING, b"payload")])
    assert stage.take(first, "crm") == []
    assert other.coordinator.finish(flight.lent, structs.replace(flight.lent.delivery, status=DeliveryStatus.DEAD))


# Reset (21, 22)


def reset(machine: Machine, email: Email) -> frozenset[str]:
    name = Name(Kind.EMAIL_ID, email.day, f"id-{email.key}")
    return frozenset(forget(machine.coordinator, {name.label: name}))


def test_an_outcome_from_before_a_reset_is_ignored(stage: Stage, first: Machine, other: Machine) -> None:
    found = claimed(first, A)
    stage.lines[0].is_cut = stage.lines[1].is_cut = True
    delivered(first, found)
    assert reset(other, A), "a name that is held is kept"
    stage.pass_time(LEASE_MS + 1_000)
    assert reset(other, A) == frozenset()
    stage.lines[0].is_cut = stage.lines[1].is_cut = False
    stage.beat()
    assert isinstance(ask(first, A), Claimed)


def test_a_reset_is_refused_without_redis_and_while_it_is_closed(stage: Stage, first: Machine) -> None:
    send(first, A)
    stage.restart_redis("nothing")
    with pytest.raises(StoreUnavailable):
        reset(first, A)
    stage.lines[0].is_cut = True
    stage.tick(first)
    with pytest.raises(StoreUnavailable):
        reset(first, A)


def test_restored_marks_end_when_they_would_have_ended(stage: Stage, first: Machine) -> None:
    with first.journal.step() as step:
        for value, left_ms in (("for ever", None), ("a minute", 60_000), ("ended", -5)):
            until_ms = None if left_ms is None else step.now_ms + left_ms
            step.put_mark(Name(Kind.MEDIA, "", value).label, until_ms)
    stage.restart_redis("nothing")
    stage.beat()
    assert stage.raw.pttl("media:for ever") == -1
    assert 50_000 < stage.raw.pttl("media:a minute") <= 60_000
    assert stage.raw.pttl("media:ended") in (1, 0, -2)


def test_a_reset_outlives_the_memory_of_redis(stage: Stage, first: Machine, other: Machine) -> None:
    send(first, A)
    stage.beat()
    stage.lines[2].is_cut = True  # it does not hear of the reset
    assert reset(first, A) == frozenset()
    stage.restart_redis("nothing")
    stage.pass_time(HOLD_MS + 1)
    stage.lines[2].is_cut = False
    stage.pass_time(3_000)
    stage.pass_time(3_000)
    assert isinstance(ask(first, A), Claimed)


# Names (25, 27)


def test_a_mark_whose_fingerprint_is_known_stops_only_the_email_it_stood_for(stage: Stage, first: Machine) -> None:
    send(first, A)
    stage.beat()
    stage.restart_redis("nothing")
    stage.time.pass_ms(8 * 24 * 3_600_000)
    stage.wait_until_open()
    with first.journal.reading() as step:
        assert step.read_rows("1 = 1", ()) == []
    assert isinstance(ask(first, A), Repeat)
    assert isinstance(ask(first, Email("a", text="something else")), Claimed)


def test_an_email_that_was_stopped_and_not_settled_is_stopped_again(stage: Stage, first: Machine) -> None:
    send(first, GROUPED)
    stage.beat()
    for _ in range(2):
        stopped = claimed(first, OTHER_OF_GROUP)
        assert stopped.to_send == () and stopped.entry.stop and stopped.entry.stop.original
        stage.pass_time(LEASE_MS + 1_000)


def test_without_redis_an_email_that_meets_a_held_name_is_asked_to_retry(stage: Stage, first: Machine) -> None:
    stage.lines[0].is_cut = True
    stage.tick(first)
    claimed(first, GROUPED)
    assert isinstance(ask(first, Email("else", group="lot_3")), Busy)


def test_a_fact_the_disk_refused_is_noted_later(pair: tuple[Machine, Machine], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its provider is asked to retry, and the retry must not be sent."""
    machine, email = pair[0], Email("one")
    claim = claimed(machine, email)
    with monkeypatch.context() as patch:
        patch.setattr(machine.coordinator, "_note", disk_full)
        assert delivered(machine, claim).is_safe is (machine.url is not None), "Redis may have accepted it"
    machine.coordinator.tend()
    machine.time.pass_ms(LEASE_MS + 1)
    assert isinstance(ask(machine, email), Repeat)


def disk_full(*_: object) -> None:
    raise StoreUnavailable("disk full")


def test_a_delivery_is_stored_once_the_other_request_was_returned(stage: Stage, first: Machine, other: Machine) -> None:
    """It was accepted by nobody meanwhile: its email would stay blocked on its machine for good."""
    late = claimed(first, A)
    stage.pass_time(LEASE_MS + 1_000)
    second = claimed(other, A)
    assert not stored(first, late).is_safe
    stage.beat()
    with other.journal.reading() as step:
        known = step.read(late.entry.id)
    assert known is None or DeliveryStatus.WAITING not in {each.status for each in known.deliveries}, "it is not stored"
    assert take(first) == []
    returned(other, second)
    stage.beat()
    stage.beat()
    assert isinstance(ask(first, A), Repeat)
    assert first.coordinator.take("crm", 10, LEASE_MS)


# Two destinations of one email: found by the model with two of them


CRM, CHAT, BOTH = (replace(A, destinations=names) for names in (("crm",), ("chat",), ("crm", "chat")))


def sent_and_stored(machine: Machine, claim: Claimed) -> Settled:
    """To crm it is delivered, to chat it failed."""
    ends = [
        structs.replace(each, status=DeliveryStatus.DELIVERED)
        if each.destination == "crm"
        else structs.replace(each, status=DeliveryStatus.WAITING, next_try_ms=machine.time.now_ms)
        for each in claim.plan
    ]
    return machine.coordinator.settle(claim, ends, "queued", b"payload")


def forget_names(machine: Machine, email: Email) -> None:
    machine.registry.reset(email.claim("x").references)


def test_a_return_frees_no_neighbours_hold(stage: Stage, first: Machine, neighbour: Machine, other: Machine) -> None:
    """A stored delivery that fails again publishes its entry as it was when it was stored."""
    returned(first, claimed(first, CHAT))
    stage.beat()
    stored(first, claimed(first, CRM))
    stage.beat()
    claimed(neighbour, CHAT)
    (lent,) = take(first)
    first.coordinator.finish(lent, structs.replace(lent.delivery, next_try_ms=stage.time.now_ms + 5_000))
    assert isinstance(ask(other, CHAT), Busy), "its neighbour is sending it"


def test_returned_that_is_published_again_frees_no_later_hold(
    stage: Stage, first: Machine, neighbour: Machine, other: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = claimed(first, A)
    stage.lines[0].next_fault = "reply lost"
    returned(first, found)
    first.coordinator.publish_settled()
    first.coordinator.redis.note_answer()
    claim_here = neighbour.coordinator._claim_here

    def after_the_leader_has_published(*arguments: Any) -> Any:
        first.coordinator.publish_waiting()
        return claim_here(*arguments)

    monkeypatch.setattr(neighbour.coordinator, "_claim_here", after_the_leader_has_published)
    claimed(neighbour, A)
    assert isinstance(ask(other, A), Busy)


def test_a_lapsed_claim_is_not_put_back(stage: Stage, first: Machine, neighbour: Machine, other: Machine) -> None:
    """Its lease is of the journal's clock: as Redis' time it would last for ever."""
    stage.time.steady_ms += 1 << 50  # as on a machine that was booted once
    claimed(first, CRM)
    stage.beat()
    stage.time.pass_ms(LEASE_MS - 5_000)
    alive = claimed(neighbour, CHAT)
    stage.time.pass_ms(6_000)
    stage.restart_redis("nothing")
    stage.beat()
    delivered(neighbour, alive)
    stage.pass_time(4 * LEASE_MS)
    assert [each.destination for each in claimed(other, BOTH).plan] == ["crm"]


def test_a_closed_era_accepts_facts_of_entries_with_more_to_store(stage: Stage, first: Machine, other: Machine) -> None:
    found = claimed(first, BOTH)
    stage.restart_redis("nothing")
    assert not sent_and_stored(first, found).is_safe
    for _ in range(2 * HOLD_MS // 500):
        stage.beat()
        stage.time.pass_ms(500)
    stage.time.pass_ms(1)  # it is open again, and the first machine has not published since
    assert not isinstance(ask(other, CRM), Claimed), "it was delivered"


def test_with_a_full_disk_facts_are_published(
    stage: Stage, first: Machine, other: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = claimed(first, BOTH)
    monkeypatch.setattr(first.coordinator, "_note", disk_full)
    assert not sent_and_stored(first, found).is_safe
    stage.time.pass_ms(LEASE_MS + 1)
    assert [each.destination for each in claimed(other, BOTH).plan] == ["chat"]


def test_a_reset_counts_where_a_claim_has_lapsed(stage: Stage, first: Machine, other: Machine) -> None:
    delivered(first, claimed(first, BOTH), "crm")
    stage.beat()
    stage.time.pass_ms(2 * LEASE_MS)
    stage.beat()
    forget_names(first, CRM)
    stage.beat()
    stage.beat()
    for machine in (first, other):
        assert isinstance(ask(machine, replace(CRM, destinations=("crm",))), Claimed | Busy)


def test_a_machine_that_has_not_read_a_reset_does_not_undo_it(stage: Stage, first: Machine, other: Machine) -> None:
    send(first, CRM)
    stage.beat()
    forget_names(first, CRM)
    with pytest.raises(StoreUnavailable):
        ask(other, BOTH)
    stage.beat()
    stage.beat()
    assert {each.destination for each in claimed(other, BOTH).plan} == {"crm", "chat"}


def test_a_taker_keeps_no_neighbours_claim(stage: Stage, first: Machine, neighbour: Machine, other: Machine) -> None:
    works = claimed(neighbour, CHAT)
    stored(first, claimed(first, CRM))
    (lent,) = take(other)
    other.coordinator.finish(lent, structs.replace(lent.delivery, status=DeliveryStatus.DELIVERED))
    returned(neighbour, works)
    stage.beat()
    assert DeliveryStatus.CLAIMED not in {each.status for each in read(other, lent.entry.id).deliveries}


def test_a_name_marked_without_redis_counts_before_publishing(stage: Stage, first: Machine, neighbour: Machine) -> None:
    stage.lines[0].is_cut = stage.lines[1].is_cut = True
    for _ in range(3):
        stage.tick(first)
        stage.tick(neighbour)
    send(first, GROUPED)
    stage.lines[0].is_cut = stage.lines[1].is_cut = False
    neighbour.coordinator.redis.note_answer()
    found = claimed(neighbour, OTHER_OF_GROUP)
    assert found.entry.stop and not found.to_send
    skipped(neighbour, found)
    stage.beat()
    assert isinstance(ask(neighbour, OTHER_OF_GROUP), Repeat)
