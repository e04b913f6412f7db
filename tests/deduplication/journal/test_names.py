"""What names promise, on one machine without Redis and on two that share one."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from deduplication.again import forget
from deduplication.journal.coordinator import Claimed, Settled
from deduplication.journal.entry import BY_SCRIPT, Delivery, DeliveryStatus, Entry, new_entry_id
from deduplication.journal.registry import Answer, Commit
from deduplication.journal.rules import Busy, Claim, Judgement, ProofUsed, Repeat
from deduplication.journal.sqlite import MOST_ROWS
from deduplication.names import UNDATED, WEEK_MS, Gate, Kind, Name, shortened
from deduplication.subject_group import group_name
from tests.deduplication.conftest import Fleet3, Sync
from tests.deduplication.journal.world import (
    LEASE_MS,
    Email,
    Machine,
    Time,
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

Pair = tuple[Machine, Machine]
Race = Callable[[Callable[[Machine], object], Callable[[Machine, Entry], object]], tuple[object, Machine]]
GROUP = Name(Kind.SUBJECT_GROUP, "2026-11", "g", WEEK_MS)


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(None, Time(), folder=tmp_path)
    yield machine
    machine.stop()


def test_an_email_that_was_delivered_is_a_repeat_everywhere(pair: Pair, sync: Sync) -> None:
    original = send(pair[0], Email()).entry
    sync()
    for machine in pair:
        again = ask(machine, Email())
        assert isinstance(again, Repeat)
        assert original is not None and again.of is not None and again.of.id == original.id
        assert again.of.answer == "processed"


def test_while_one_process_works_on_an_email_all_others_are_busy(pair: Pair) -> None:
    claimed(pair[0], Email())
    for machine in pair:
        busy = ask(machine, Email())
        assert isinstance(busy, Busy) and busy.gate is Gate.IDENTITY
        assert LEASE_MS - 2_000 < busy.retry_after_ms <= LEASE_MS


def test_the_same_owner_asking_again_gets_the_same_answer(pair: Pair) -> None:
    claim = Email().claim(pair[0].coordinator.new_owner())
    first, second = pair[0].coordinator.claim(claim), pair[0].coordinator.claim(claim)
    assert isinstance(first, Claimed) and isinstance(second, Claimed)
    assert first.entry.id == second.entry.id


def test_a_claim_whose_lease_has_ended_is_taken_over(pair: Pair) -> None:
    first = claimed(pair[0], Email(), lease_ms=1)
    pair[0].time.pass_ms(5)
    second = claimed(pair[1], Email())
    assert second.entry.id == first.entry.id
    assert first.lease_until_ms <= pair[0].time.steady_ms


def test_an_owner_that_lost_its_claim_decides_nothing_but_its_fact_counts(pair: Pair, sync: Sync) -> None:
    first = claimed(pair[0], Email(), lease_ms=1)
    pair[0].time.pass_ms(5)
    claimed(pair[1], Email())
    if pair[0].url is None:
        assert returned(pair[0], first).entry is None
    delivered(pair[0], first)
    sync()
    assert isinstance(ask(pair[0], Email()), Repeat)
    assert isinstance(ask(pair[1], Email()), Busy if pair[0].url else Repeat)


def test_another_text_under_the_same_id_is_another_email(pair: Pair, sync: Sync) -> None:
    send(pair[0], Email(text="one"))
    sync()
    assert isinstance(ask(pair[1], Email(text="two")), Claimed)


def test_a_message_id_alone_recognises_an_email_and_not_one_that_says_something_else(pair: Pair, sync: Sync) -> None:
    send(pair[0], Email("one", message_id="<a@b>"))
    sync()
    same, other = Email("one", day="2026-11-18", message_id="<a@b>"), Email("one", text="else", message_id="<a@b>")
    assert isinstance(ask(pair[1], same), Repeat)
    assert isinstance(ask(pair[1], other), Claimed)


def test_undated_emails_are_the_same_only_if_they_say_the_same(pair: Pair, sync: Sync) -> None:
    send(pair[0], Email(day=UNDATED))
    sync()
    assert isinstance(ask(pair[1], Email(day=UNDATED)), Repeat)
    assert isinstance(ask(pair[1], Email(day=UNDATED, text="other")), Claimed)


def test_a_repeat_goes_only_to_the_destinations_that_have_not_got_it(pair: Pair, sync: Sync) -> None:
    send(pair[0], Email(destinations=("crm",)))
    sync()
    again = claimed(pair[1], Email(destinations=("crm", "chat")))
    assert [each.destination for each in again.to_send] == ["chat"]
    delivered(pair[1], again)
    sync()
    assert isinstance(ask(pair[0], Email(destinations=("chat", "crm"))), Repeat)


def test_returning_an_email_leaves_destinations_that_have_it_done(pair: Pair, sync: Sync) -> None:
    first = claimed(pair[0], Email(destinations=("crm", "chat")))
    delivered(pair[0], first, "crm")
    returned(pair[0], first)
    sync()
    assert [each.destination for each in claimed(pair[1], Email(destinations=("crm", "chat"))).to_send] == ["chat"]


def test_a_group_that_was_delivered_stops_another_email_which_keeps_its_payload(pair: Pair, sync: Sync) -> None:
    original = send(pair[0], Email("one", group="lot_3")).entry
    sync()
    stopped = claimed(pair[1], Email("two", text="other", group="lot_3"))
    assert original and stopped.entry.stop and stopped.entry.stop.original == original.id
    assert stopped.to_send == ()
    assert skipped(pair[1], stopped).is_safe
    sync()
    assert isinstance(ask(pair[0], Email("two", text="other", group="lot_3")), Repeat)
    with pair[1].journal.reading() as step:
        assert step.payload(stopped.entry.id) == b"payload"


def test_a_group_that_is_held_makes_the_next_email_wait_and_then_skips_it(pair: Pair, sync: Sync) -> None:
    first = claimed(pair[0], Email("one", group="lot_3"))
    second = claimed(pair[1], Email("two", group="lot_3"))
    assert [each.waits_for for each in second.plan] == [Name(Kind.SUBJECT_GROUP, "2026-11", "lot_3")]
    assert stored(pair[1], second).is_safe
    assert take(pair[1]) == []  # put off while the name is held
    delivered(pair[0], first)
    sync()
    pair[0].time.pass_ms(6_000)
    assert take(pair[1]) == []
    assert read(pair[1], second.entry.id).deliveries[0].status is DeliveryStatus.SKIPPED


def test_a_group_whose_holder_ended_without_a_delivery_is_free_for_the_one_that_waits(pair: Pair, sync: Sync) -> None:
    first = claimed(pair[0], Email("one", group="lot_3"))
    second = claimed(pair[1], Email("two", group="lot_3"))
    stored(pair[1], second)
    returned(pair[0], first)
    sync()
    (lent,) = take(pair[1])
    assert lent.entry.id == second.entry.id and lent.payload == b"payload"
    third = claimed(pair[0], Email("three", group="lot_3"))  # now the second one holds it
    assert [each.waits_for is not None for each in third.plan] == [True]


@pytest.mark.parametrize("is_stored", [False, True])
def test_an_outcome_that_is_published_late_frees_no_name_that_is_held_again(pair: Pair, is_stored: bool) -> None:
    """One process of a machine returned the email, and another one has it now."""
    first, other = pair
    second = Machine(first.url, first.time, options=first.options, host=first.host, folder=first.folder)
    if first.url:
        second.tick()
    email = Email("g1", group="g", media=("https://a.example/1",), words=True, message_id="<g1@x>")
    returned(second, claimed(second, email))
    again = claimed(first, email)
    if is_stored:
        stored(first, again)
    second.coordinator.publish_settled()
    for number, shared in enumerate(({"group": "g"}, {"media": email.media}, {"words": True})):
        (planned,) = claimed(other, Email(f"other {number}", **shared)).plan  # type: ignore[arg-type]
        assert planned.status is DeliveryStatus.WAITING and planned.waits_for
    second.stop()


@pytest.fixture
def race(fleet: Fleet3, monkeypatch: pytest.MonkeyPatch) -> Race:
    """A returned email, and a step of a machine; something else happens between what Redis shows it and its commit."""
    one, two, three = fleet.add(), fleet.add(), fleet.add()
    fleet.open()
    entry = returned(one, claimed(one, Email())).entry
    one.tick()
    assert entry

    def run_race(
        step: Callable[[Machine], object], strike: Callable[[Machine, Entry], object]
    ) -> tuple[object, Machine]:
        run, rounds = two.registry.run, list[object]()

        def run_later(*commits: Commit, **options: bool) -> list[Answer]:
            rounds.append(commits)
            if len(rounds) == 2:
                strike(three, entry)
            return run(*commits, **options)

        with monkeypatch.context() as patch:
            patch.setattr(two.registry, "run", run_later)
            result = step(two)
        assert len(rounds) > 1, "nothing happened in between"
        return result, two

    return run_race


def claim_it(machine: Machine, _: object = None) -> Claimed | Judgement:
    return ask(machine, Email())


def test_of_two_machines_that_are_shown_the_same_returned_email_one_gets_it(race: Race) -> None:
    found, _ = race(claim_it, claim_it)
    assert isinstance(found, Busy)


def test_a_hold_that_was_composed_three_times_can_be_published(race: Race, fleet: Fleet3) -> None:
    """The entry that it was about to join was released."""
    found, two = race(claim_it, lambda _, entry: fleet.redis.client.delete(f"e:{entry.id}"))
    assert isinstance(found, Claimed)
    delivered(two, found)
    assert two.coordinator.publish_settled() == 1


def test_a_reset_keeps_what_a_machine_has_claimed_meanwhile(race: Race) -> None:
    name = Email().claim("").own[0]
    kept, _ = race(lambda machine: forget(machine.coordinator, {name.label: name}), claim_it)
    assert kept == {name.label: []}


def test_media_stop_only_if_all_of_them_are_known(pair: Pair, sync: Sync) -> None:
    send(pair[0], Email("one", media=("https://a/1",)))
    sync()
    some = claimed(pair[1], Email("two", media=("https://a/1", "https://a/2")))
    assert some.to_send and [name.value for name in some.entry.shared] == ["https://a/2"]
    returned(pair[1], some)
    sync()
    assert claimed(pair[0], Email("three", media=("https://a/1",))).entry.stop


def test_words_that_a_destination_had_are_left_out_there_and_sent_elsewhere(pair: Pair, sync: Sync) -> None:
    send(pair[0], Email("one", destinations=("crm",), words=True))
    sync()
    second = claimed(pair[1], Email("two", destinations=("crm", "chat"), words=True))
    assert [each.destination for each in second.to_send] == ["chat"]
    assert claimed(pair[0], Email("three", destinations=("crm",), words=True)).entry.stop


def test_a_shared_name_never_stops_the_email_that_has_it(pair: Pair, sync: Sync) -> None:
    send(pair[0], Email("one", group="lot_3", destinations=("crm",)))
    sync()
    again = claimed(pair[1], Email("one", group="lot_3", destinations=("crm", "chat")))
    assert [each.destination for each in again.to_send] == ["chat"] and again.entry.stop is None


def test_a_proof_is_good_for_one_email(pair: Pair, sync: Sync) -> None:
    first = claimed(pair[0], Email("one", proof="p"))
    assert isinstance(ask(pair[1], Email("two", proof="p")), Busy), "it is not accepted yet"
    delivered(pair[0], first)
    sync()
    assert isinstance(ask(pair[1], Email("two", proof="p")), ProofUsed)
    assert isinstance(ask(pair[1], Email("one", proof="p")), Repeat)


def test_an_email_that_was_returned_is_claimed_again_with_its_attempts_and_its_proof(pair: Pair, sync: Sync) -> None:
    first = claimed(pair[0], Email("one", proof="p"))
    returned(pair[0], first)
    sync()
    assert claimed(pair[1], Email("one", proof="p")).entry.id == first.entry.id


# Claims of scripts


def reservation(machine: Machine, key: str, *media: str) -> Claim:
    shared = tuple(Name(Kind.MEDIA, "", each, 1000) for each in media)
    return Claim(new_entry_id(), machine.coordinator.new_owner(), (Name(Kind.POST, "", key, 1000),), shared)


def test_a_script_that_meets_a_held_medium_is_busy(pair: Pair) -> None:
    assert isinstance(pair[0].coordinator.claim(reservation(pair[0], "one", "https://m")), Claimed)
    assert isinstance(pair[1].coordinator.claim(reservation(pair[1], "two", "https://m")), Busy)


def test_retries_left_do_not_rise_by_an_outcome_that_is_published_late(pair: Pair) -> None:
    first, other = pair
    second = Machine(first.url, first.time, options=first.options, host=first.host, folder=first.folder)
    if first.url:
        second.tick()
    returned(second, claimed(second, Email()), retries_left=5)
    again = claimed(first, Email())
    returned(first, again, retries_left=4)
    first.coordinator.publish_settled()
    second.coordinator.publish_settled()
    (known,) = other.coordinator.known(again.entry.own).of(again.entry.own[0]).entries
    assert known.retries_left == 4
    second.stop()


def test_retries_left_never_rise(pair: Pair, sync: Sync) -> None:
    left = []
    for machine, retries in zip((*pair, *pair), (3, 5, 2, 4), strict=True):
        found = machine.coordinator.claim(reservation(machine, "post"))
        assert isinstance(found, Claimed)
        after = returned(machine, found, retries_left=retries).entry
        assert after
        left.append(after.retries_left)
        sync()
    assert left == [3, 3, 2, 2]


def test_what_a_script_has_published_is_done_for_the_service_and_the_other_way_round(pair: Pair, sync: Sync) -> None:
    found = pair[0].coordinator.claim(reservation(pair[0], "<1@x>"))
    assert isinstance(found, Claimed) and found.to_send[0].destination == BY_SCRIPT
    assert isinstance(ask(pair[1], Email(message_id="<1@x>")), Busy)
    delivered(pair[0], found)
    send(pair[0], Email("two", message_id="<2@x>"))
    sync()
    assert isinstance(ask(pair[1], Email(message_id="<1@x>")), Repeat)
    assert isinstance(pair[1].coordinator.claim(reservation(pair[1], "<2@x>")), Repeat)


# Resets


def test_a_reset_keeps_what_is_open_and_says_so(pair: Pair, sync: Sync) -> None:
    stored(pair[0], claimed(pair[0], Email()))
    sync()
    name = Name(Kind.EMAIL_ID, "2026-11-17", "id-one")
    assert forget(pair[1].coordinator, {name.label: name}).keys() == {name.label}
    assert isinstance(ask(pair[1], Email()), Repeat)


def test_repeats_are_counted_for_each_machine(pair: Pair, sync: Sync) -> None:
    entry = send(pair[0], Email()).entry
    sync()
    for machine in pair:
        ask(machine, Email())
        if machine.url is None:
            machine.coordinator.tend()
    sync()
    pair[0].follow()
    with pair[0].journal.reading() as step:
        assert entry and step.query("SELECT total(count) FROM repeats WHERE entry = ?", (entry.id,)) == [(2.0,)]


def test_nothing_that_is_asked_for_an_email_or_every_second_reads_a_whole_table(pair: Pair) -> None:
    machine, statements = pair[0], set[str]()
    send(machine, Email("first"))
    for connection in (machine.journal._writer, *machine.journal._readers):
        connection.set_trace_callback(statements.add)
    send(machine, Email("second", group="lot_3", words=True))
    ask(machine, Email("second"))
    machine.coordinator.tend()
    machine.tick()
    machine.follow()
    asked = [each for each in statements if each.startswith(("SELECT", "INSERT", "UPDATE", "DELETE"))]
    assert any("names" in each for each in asked)
    machine.journal._writer.set_trace_callback(None)
    plans = {each: machine.journal._writer.execute(f"EXPLAIN QUERY PLAN {each}").fetchall() for each in asked}
    whole = re.compile(r"SCAN (?!notes|requests)\w+$")  # these two have few rows
    assert not [each for each, rows in plans.items() if any(whole.match(row[3]) for row in rows)]


def test_outcomes_under_one_name_are_published_together(pair: Pair) -> None:
    for number in range(20):
        send(pair[0], Email(text=f"text {number}"))
    pair[0].coordinator.publish_settled()
    with pair[0].journal.reading() as step:
        assert not step.outbox(1)


# A name of very many emails, such as the one Message-ID of a device

CROWDED = "<same@device>"


def crowd(machine: Machine) -> None:
    with machine.journal.step() as step:
        for number in range(MOST_ROWS):
            claim = Email(f"c{number}", text=f"text {number}", message_id=CROWDED).claim("o")
            sent = (Delivery("crm", f"msg_{number}", DeliveryStatus.DELIVERED),)
            entry = Entry(claim.entry, machine.name, claim.own, step.now_ms, claim.fingerprint, deliveries=sent)
            step.put(entry, None, publishes=False)


def marking(label: str, *more: Any) -> Callable[[Machine], None]:
    def mark(machine: Machine) -> None:
        with machine.journal.step() as step:
            step.put_mark(label, None, *more)

    return mark


TEXT_ALONE = shortened(Email("new").claim("o").fingerprint.partition(".")[0])  # its provider told no more
STOPS: dict[str, Callable[[Machine], object]] = {
    "a group that an older email has marked": lambda machine: send(machine, Email("first", group="lot_3")),
    "a group that waits": lambda machine: stored(machine, claimed(machine, Email("first", group="lot_3"))),
    "the mark of a group": marking(group_name("lot_3", "2026-11", 0).label, "", "gone", 1),
    "a mark of the same email": marking(f"post::{CROWDED}", TEXT_ALONE, "gone", 1),
    "a mark of another program": marking(f"post::{CROWDED}"),
}


@pytest.mark.parametrize("stop", STOPS)
def test_what_stops_an_email_is_found_however_many_emails_have_its_name(alone: Machine, stop: str) -> None:
    STOPS[stop](alone)
    crowd(alone)
    found = ask(alone, Email("new", message_id=CROWDED, group="lot_3"))
    assert not isinstance(found, Claimed) or not found.to_send


def test_a_reset_is_found_however_many_emails_have_its_name(alone: Machine) -> None:
    with alone.journal.step() as step:
        step.note_reset(f"post::{CROWDED}", 7)
    crowd(alone)
    claim = Email("new", message_id=CROWDED).claim("o")
    with alone.journal.reading() as step:
        assert step.known(claim.own, claim.fingerprint).reset == 7


def test_a_claim_of_another_machine_for_another_destination_ends_with_its_lease(pair: Pair) -> None:
    """Its lease, by the clock of Redis, was counted by the clock of this machine, and so for ever."""
    claimed(pair[0], Email(destinations=("chat",)))
    delivered(pair[1], claimed(pair[1], Email()))
    pair[0].time.pass_ms(LEASE_MS + 1)
    again = claimed(pair[1], Email(destinations=("crm", "chat")))
    assert [planned.destination for planned in again.to_send] == ["chat"]


@pytest.mark.parametrize("end", [stored, delivered])
def test_an_email_does_not_take_a_name_that_one_of_its_deliveries_waits_for(
    pair: Pair, end: Callable[[Machine, Claimed], Settled]
) -> None:
    """A later request of the email had more names; its first delivery then took the group from another email."""
    claimed(pair[0], Email("g1", group="g"))
    end(pair[0], claimed(pair[0], Email("one", media=("x",))))
    assert isinstance(ask(pair[1], Email("one", media=("x",), group="g", destinations=("crm", "chat"))), Busy)
    assert claimed(pair[1], Email("g2", group="g")).plan[0].waits_for == GROUP


def test_a_claim_that_lapsed_and_was_reset_decides_nothing(pair: Pair, sync: Sync) -> None:
    """It was stored in the journal; Redis never accepted that, so the provider was asked to retry for ever."""
    late = claimed(pair[0], Email(), lease_ms=1)
    pair[0].time.pass_ms(5)
    assert forget(pair[0].coordinator, Email().claim("").references) == {}
    assert not stored(pair[0], late).is_safe
    sync()
    claimed(pair[0], Email())


def test_a_claim_that_lapsed_leaves_no_names_to_the_next_one(pair: Pair) -> None:
    """They were marked with it, and another email that held one by then was delivered as well."""
    more = Email("one", media=("x",), group="g", destinations=("crm", "chat"))
    claimed(pair[0], more, lease_ms=1)
    pair[0].time.pass_ms(5)
    claimed(pair[1], Email("g1", group="g"))
    delivered(pair[0], claimed(pair[0], Email("one", media=("x",))))
    assert isinstance(ask(pair[0], more), Busy)


def test_resetting_a_group_frees_only_the_group_while_an_email_meets_it(pair: Pair, sync: Sync) -> None:
    """Its outcome, which is older than the reset, was dropped with its payload."""
    send(pair[0], Email("g1", group="g"))
    sync()
    stopped = claimed(pair[0], Email("g2", group="g"))
    assert forget(pair[1].coordinator, {GROUP.label: GROUP}) == {}
    settled = skipped(pair[0], stopped).entry
    sync()
    with pair[0].journal.reading() as step:
        assert settled and step.payload(settled.id) == b"payload"


def test_a_delivery_that_waits_for_a_group_is_sent_once_after_a_reset_of_it(fleet: Fleet3) -> None:
    pair = (fleet.add(), fleet.add())
    fleet.open()
    first = claimed(pair[0], Email("g1", group="g"))
    waiting = claimed(pair[1], Email("g2", group="g"))
    stored(pair[1], waiting)
    delivered(pair[0], first)
    fleet.settle_down()
    assert forget(pair[0].coordinator, {GROUP.label: GROUP}) == {}
    for status in (DeliveryStatus.WAITING, DeliveryStatus.DELIVERED):
        (lent,) = take(pair[1])
        assert pair[1].coordinator.finish(lent, replace(lent.delivery, status=status, next_try_ms=0))
        fleet.settle_down()
    assert take(pair[1]) == [] and isinstance(ask(pair[1], Email("g2", group="g")), Repeat)
    assert claimed(pair[0], Email("g3", group="g")).plan[0].status is DeliveryStatus.SKIPPED
