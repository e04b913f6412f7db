"""More of what every journal promises: steps that change nothing, several items at once, and stored deliveries."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice
from typing import Any
from unittest.mock import patch

import pytest

from deduplication.claims import Gate, Kind, Name, Pattern
from deduplication.journal.base import Claim, Claimed, Duplicate, Ending, Forgotten, InFlight, Replayed, Settlement
from deduplication.journal.entry import Attempt, Delivery, DeliveryStatus, Entry
from deduplication.journal.failover import FailoverJournal
from deduplication.journal.listing import LISTED_AT_ONCE, Count, Position, Window
from deduplication.journal.redis import RedisJournal
from deduplication.journal.verdict import MOST_REFS
from tests.deduplication.journal import test_contract as contract
from tests.deduplication.journal.test_contract import (
    CANONICAL,
    DAY_MS,
    FILE_X,
    FILE_Y,
    GROUP,
    ID,
    LEASE_MS,
    MESSAGE_ID,
    OTHER_TEXT,
    TEXT,
    UNDATED,
    Desk,
    a_claim,
)
from tests.support.journals import JournalBench

desk = contract.desk
THREADS = 8


def an_id(value: str) -> Name:
    return Name(Kind.EMAIL_ID, "2026-11-16", value)


# What changes nothing


def test_an_item_that_has_to_wait_takes_none_of_its_names(desk: Desk) -> None:
    desk.claim(ID, shared=(GROUP,))
    _, waiting = desk.claim(CANONICAL, MESSAGE_ID, shared=(FILE_X, GROUP))
    assert isinstance(waiting, InFlight)
    assert all(
        not found.is_marked and not found.entries for found in desk.journal.look([CANONICAL, MESSAGE_ID, FILE_X])
    )
    _, alone = desk.claim(CANONICAL, MESSAGE_ID, shared=(FILE_X,))
    assert isinstance(alone, Claimed) and alone.is_first


@pytest.mark.parametrize("ending", Ending)
def test_what_is_settled_cannot_be_settled_again(desk: Desk, ending: Ending) -> None:
    claim, verdict = desk.claim(ID, shared=(GROUP,))
    desk.end(claim, verdict.entry, DeliveryStatus.DELIVERED)
    before = desk.read(verdict.entry.id)
    told = desk.journal.settle(claim, verdict.entry, Settlement(ending, "told otherwise", retries_left=3))
    assert told is (ending is Ending.DONE), "the same answer, if the first one was lost"
    assert desk.read(verdict.entry.id) == before
    assert [found.is_marked for found in desk.journal.look([ID, GROUP])] == [True, True]


def test_forgetting_counts_the_names_that_it_knew(desk: Desk) -> None:
    desk.deliver(ID, shared=(GROUP,))
    assert desk.journal.forget([ID, ID, CANONICAL, GROUP]) == Forgotten(2)
    assert desk.journal.forget([ID, GROUP]) == Forgotten(0)


def test_a_claim_that_moves_to_a_name_of_another_is_stopped_and_gives_the_old_one_back(desk: Desk) -> None:
    first = desk.deliver(ID, shared=(FILE_Y,))
    claim, _ = desk.claim(CANONICAL, shared=(FILE_X,))
    moved = desk.journal.claim(replace(claim, shared=(FILE_Y,)))
    assert isinstance(moved, Duplicate) and moved.entry
    assert (moved.stop.name, moved.stop.original) == (FILE_Y, first.id)
    _, other = desk.claim(MESSAGE_ID, shared=(FILE_X,))
    assert isinstance(other, Claimed)


def test_a_claim_that_moves_to_a_name_another_is_at_keeps_what_it_has(desk: Desk) -> None:
    desk.claim(ID, shared=(FILE_Y,))
    claim, verdict = desk.claim(CANONICAL, shared=(FILE_X,))
    assert isinstance(desk.journal.claim(replace(claim, shared=(FILE_Y,))), InFlight)
    _, other = desk.claim(MESSAGE_ID, shared=(FILE_X,))
    assert isinstance(other, InFlight)
    assert desk.end(claim, verdict.entry, DeliveryStatus.DELIVERED)


def older_than_its_entry(desk: Desk) -> tuple[Claim, Duplicate]:
    """One that comes again when its mark alone is left."""
    desk.deliver(ID)
    desk.pass_ms(8 * DAY_MS)
    claim, stopped = desk.claim(ID, MESSAGE_ID)
    assert isinstance(stopped, Duplicate) and stopped.entry and stopped.stop.name == ID
    return claim, stopped


def left_unsettled(desk: Desk, is_given_back: bool) -> Entry:
    claim, stopped = older_than_its_entry(desk)
    assert stopped.entry
    if is_given_back:
        assert desk.give_back(claim, stopped.entry)
    desk.pass_ms(LEASE_MS + 1)
    return stopped.entry


def test_what_a_mark_stopped_is_stopped_again_if_the_answer_was_lost(desk: Desk) -> None:
    claim, stopped = older_than_its_entry(desk)
    again = desk.journal.claim(claim)
    assert isinstance(again, Duplicate) and again.stop == stopped.stop
    assert desk.skip(claim, again)
    assert isinstance(desk.claim(ID)[1], Duplicate)


@pytest.mark.parametrize("own", [(ID,), (ID, MESSAGE_ID), (MESSAGE_ID,)])
@pytest.mark.parametrize("is_given_back", [True, False])
def test_so_it_is_if_nobody_settled_it(desk: Desk, own: tuple[Name, ...], is_given_back: bool) -> None:
    """Its server crashed, or had no room for its payload: it was delivered all the same."""
    stopped = left_unsettled(desk, is_given_back)
    _, again = desk.claim(*own)
    assert isinstance(again, Duplicate) and again.entry
    assert (again.entry.id, again.stop.name) == (stopped.id, ID)


@pytest.mark.parametrize("own", [(ID,), (ID, MESSAGE_ID), (MESSAGE_ID,)])
@pytest.mark.parametrize("is_given_back", [True, False])
def test_until_its_name_is_reset(desk: Desk, own: tuple[Name, ...], is_given_back: bool) -> None:
    left_unsettled(desk, is_given_back)
    desk.journal.forget([ID])
    assert isinstance(desk.claim(*own)[1], Claimed)


# Several items


def test_both_items_of_one_name_may_be_under_way_at_once(desk: Desk) -> None:
    one, first = desk.claim(ID, fingerprint=TEXT)
    other, second = desk.claim(ID, fingerprint=OTHER_TEXT)
    assert isinstance(first, Claimed) and isinstance(second, Claimed)
    assert first.entry.id != second.entry.id
    assert desk.end(one, first.entry, DeliveryStatus.DELIVERED)
    assert desk.end(other, second.entry, DeliveryStatus.DELIVERED)


def test_one_that_could_be_either_of_two_waits_for_the_one_under_way(desk: Desk) -> None:
    desk.claim(ID, fingerprint=TEXT)
    desk.claim(ID, fingerprint=OTHER_TEXT)
    _, unknown = desk.claim(ID)
    assert isinstance(unknown, InFlight)


def test_under_a_name_of_its_own_the_undated_form_of_an_item_is_known_to_the_dated_one(desk: Desk) -> None:
    first = desk.deliver(UNDATED, MESSAGE_ID)
    _, dated = desk.claim(ID, MESSAGE_ID)
    assert isinstance(dated, Duplicate)
    assert dated.stop.original == first.id


def test_a_name_that_many_items_share_refers_to_the_latest_of_them(desk: Desk, bench: JournalBench) -> None:
    """A device that writes no date has one id for all its emails: each claim would look at all that ever came."""
    texts = [f"t{number}.f.n.-.l.-.h" for number in range(MOST_REFS + 2)]
    for text in texts:
        desk.deliver(UNDATED, fingerprint=text)
        bench.advance(1)
    (found,) = desk.journal.look([UNDATED])
    assert len(found.entries) == MOST_REFS
    _, latest = desk.claim(UNDATED, fingerprint=texts[-1])
    _, oldest_kept = desk.claim(UNDATED, fingerprint=texts[2])
    _, oldest = desk.claim(UNDATED, fingerprint=texts[0])
    assert isinstance(latest, Duplicate) and isinstance(oldest_kept, Duplicate)
    assert isinstance(oldest, Claimed) and oldest.is_first, "rather twice than never"


def test_an_earlier_gate_speaks_first(desk: Desk) -> None:
    desk.deliver(ID, shared=(FILE_X,))
    grouped = desk.deliver(CANONICAL, shared=(GROUP,))
    _, stopped = desk.claim(MESSAGE_ID, shared=(FILE_X, GROUP))
    assert isinstance(stopped, Duplicate)
    assert (stopped.stop.gate, stopped.stop.original) == (Gate.SUBJECT_GROUP, grouped.id)


def test_what_nobody_came_back_for_is_forgotten_after_a_week(desk: Desk) -> None:
    _, verdict = desk.claim(ID, shared=(GROUP,))
    desk.pass_ms(9 * DAY_MS)
    assert desk.journal.read(verdict.entry.id) is None
    _, anew = desk.claim(ID, shared=(GROUP,))
    assert isinstance(anew, Claimed) and anew.is_first


def test_fencing_numbers_rise_over_taking_over_giving_back_and_forgetting(desk: Desk) -> None:
    fences = []
    _, verdict = desk.claim()
    fences.append(verdict.entry.fence)
    desk.pass_ms(LEASE_MS)
    claim, verdict = desk.claim()
    fences.append(verdict.entry.fence)
    desk.give_back(claim, verdict.entry)
    _, verdict = desk.claim()
    fences.append(verdict.entry.fence)
    desk.journal.forget([ID])
    _, verdict = desk.claim()
    fences.append(verdict.entry.fence)
    assert fences == sorted(set(fences))


def test_a_lapsed_claim_is_taken_over_by_exactly_one_of_many(desk: Desk) -> None:
    desk.claim(ID, shared=(GROUP,))
    desk.pass_ms(LEASE_MS)
    claims = [a_claim(ID, shared=(GROUP,)) for _ in range(2 * THREADS)]
    with ThreadPoolExecutor(THREADS) as threads:
        verdicts = list(threads.map(desk.journal.claim, claims))
    assert [type(each) for each in verdicts].count(Claimed) == 1
    assert [type(each) for each in verdicts].count(InFlight) == 2 * THREADS - 1


# Stored deliveries


def wait_at(desk: Desk, number: int, next_try_ms: int | None, destination: str = "crm") -> Entry:
    claim, verdict = desk.claim(an_id(f"e{number}"), to=(destination,))
    waiting = replace(verdict.entry.deliveries[0], status=DeliveryStatus.WAITING, next_try_ms=next_try_ms)
    assert desk.journal.settle(claim, verdict.entry, Settlement(Ending.DONE, "queued", (waiting,), payload=b"payload"))
    return desk.read(verdict.entry.id)


def due(desk: Desk, limit: int = 10, hold_ms: int = LEASE_MS) -> list[str]:
    return [entry for entry, _ in desk.journal.due({"crm": limit}, hold_ms)]


def test_what_is_due_comes_oldest_first_and_once(desk: Desk, bench: JournalBench) -> None:
    now_ms = desk.journal.now_ms()
    later, third, second, first = (
        wait_at(desk, number, now_ms + ms).id for number, ms in enumerate((600_000, -10, -200, -3000))
    )
    assert due(desk, limit=2) == [first, second]
    assert due(Desk(replace(bench, journal=bench.another)), limit=2) == [third]
    assert due(desk) == []
    desk.pass_ms(LEASE_MS - 10_000)
    assert due(desk) == [], "held"
    desk.pass_ms(600_000)
    assert set(due(desk)) == {first, second, third, later}, "nobody began them"


def test_a_new_next_try_counts_from_when_it_is_recorded(desk: Desk) -> None:
    entry = wait_at(desk, 1, 1)
    assert due(desk) == [entry.id]
    begun = desk.begin(entry)
    assert begun
    assert due(desk) == [], "begun"
    again_ms = desk.journal.now_ms() + 300_000
    after = replace(begun.delivery, status=DeliveryStatus.WAITING, tries=1, next_try_ms=again_ms)
    assert desk.journal.finish(entry.id, "worker", after)
    desk.pass_ms(LEASE_MS)
    assert due(desk) == []
    desk.pass_ms(300_000)
    assert due(desk) == [entry.id]


def test_what_is_over_or_has_no_next_try_is_never_due(desk: Desk) -> None:
    desk.deliver(ID, shared=(GROUP,))
    desk.kill(CANONICAL)
    desk.suppress(MESSAGE_ID, shared=(GROUP,))
    wait_at(desk, 1, None)
    desk.claim(an_id("under way"))
    desk.pass_ms(DAY_MS)
    assert due(desk) == []


def test_what_is_over_cannot_be_begun(desk: Desk) -> None:
    over = [desk.deliver(ID, shared=(GROUP,)), desk.kill(CANONICAL), desk.suppress(MESSAGE_ID, shared=(GROUP,))]
    _, under_way = desk.claim(an_id("under way"))
    for entry in (*over, under_way.entry):
        assert desk.begin(entry) is None
        assert desk.begin(entry, "elsewhere") is None
    assert desk.journal.begin("unknown", "crm", "worker", LEASE_MS) is None
    claim, both = desk.claim(an_id("both"), to=("crm", "slack"))
    half = desk.end_each(claim, both.entry, DeliveryStatus.DELIVERED, DeliveryStatus.WAITING)
    assert desk.begin(half, "crm") is None
    assert desk.begin(half, "slack")
    assert [desk.read(entry.id) for entry in over] == over


def test_each_of_many_is_handed_to_one(desk: Desk, bench: JournalBench) -> None:
    entries = {wait_at(desk, number, 1).id for number in range(40)}
    handles = [bench.journal, bench.another]
    with ThreadPoolExecutor(THREADS) as threads:
        handed = threads.map(lambda n: handles[n % 2].due({"crm": 5}, LEASE_MS), range(2 * THREADS))
        found = [entry for each in handed for entry, _ in each]
    assert sorted(found) == sorted(entries)


def test_every_field_of_a_delivery_is_kept(desk: Desk, bench: JournalBench) -> None:
    claim, verdict = desk.claim(words=True)
    full = Delivery(
        destination="crm",
        webhook_id="msg_other",
        status=DeliveryStatus.DEAD,
        tries=2,
        delivered_ms=17,
        receiver_id="r-9",
        reason="destination: crm, « occupé »",
        content=verdict.entry.deliveries[0].content,
        attempts=(Attempt(1, 20, 503, "answered 503"), Attempt(2, 30, error="no answer")),
        missing_ms=5,
        server="web-1",
    )
    assert desk.journal.settle(claim, verdict.entry, Settlement(Ending.DONE, "told", (full,), payload=b"payload"))
    known = bench.another.read(verdict.entry.id)
    assert known and known.deliveries == (full,)


@pytest.mark.parametrize("payload", [b"\x00\xff\x80 not text", b"x" * 3_000_000], ids=["any bytes", "several MB"])
def test_a_payload_comes_back_as_it_was(desk: Desk, bench: JournalBench, payload: bytes) -> None:
    claim, verdict = desk.claim()
    waiting = replace(verdict.entry.deliveries[0], status=DeliveryStatus.WAITING, next_try_ms=1)
    assert desk.journal.settle(claim, verdict.entry, Settlement(Ending.DONE, "queued", (waiting,), payload=payload))
    assert bench.another.payload(verdict.entry.id) == payload
    begun = bench.another.begin(verdict.entry.id, "crm", "worker", LEASE_MS)
    assert begun and begun.payload == payload


def test_destinations_and_names_may_be_called_anything(desk: Desk) -> None:
    odd = ["crm:waiting", "due", "a b", "é[*]?", "entries"]
    stored = {name: wait_at(desk, number, 1, destination=name).id for number, name in enumerate(odd)}
    assert desk.journal.destinations() == sorted(odd)
    assert sorted(desk.journal.due(dict.fromkeys(odd, 10), LEASE_MS)) == sorted((id_, to) for to, id_ in stored.items())
    for name, id_ in stored.items():
        assert desk.journal.begin(id_, name, "worker", LEASE_MS)


def test_find_goes_from_the_newest_to_the_oldest(desk: Desk) -> None:
    entries = []
    for number in range(5):
        entries.append(wait_at(desk, number, 1).id)
        desk.pass_ms(3_600_000)
    assert [entry.id for entry in desk.journal.find()] == entries[::-1]


def test_find_meets_each_of_many_once_though_they_change_meanwhile(desk: Desk) -> None:
    entries = [desk.store(an_id(f"e{number}")) for number in range(550)]
    found = desk.journal.find()
    met = [entry.id for entry in islice(found, 5)]
    for entry in (entries[0], entries[300], entries[-1]):
        desk.send(entry, DeliveryStatus.DEAD)
    met += [entry.id for entry in found]
    assert sorted(met) == sorted(entry.id for entry in entries)


def test_a_journal_that_works_passes_its_check(desk: Desk) -> None:
    desk.journal.check()


# Listing


def listed(desk: Desk, status: DeliveryStatus, **more: Any) -> list[tuple[str, str]]:
    return [(each.entry.id, each.delivery.destination) for each in desk.journal.list_deliveries(status, **more)]


def test_what_waits_is_listed_by_its_next_try_and_from_any_place_on(desk: Desk) -> None:
    now_ms = desk.journal.now_ms()
    times = {"crm": (900, 100, 500), "slack": (300, 500, 700)}
    stored = {
        (wait_at(desk, 10 * number + place, now_ms + 1000 * s, to).id, to): s
        for number, (to, all_s) in enumerate(times.items())
        for place, s in enumerate(all_s)
    }
    found = list(desk.journal.list_deliveries(DeliveryStatus.WAITING))
    in_order = [(each.entry.id, each.delivery.destination) for each in found]
    assert [stored[each] for each in in_order] == [100, 300, 500, 500, 700, 900]
    for place, each in enumerate(found):
        assert listed(desk, DeliveryStatus.WAITING, after=each.position) == in_order[place + 1 :]
    of_crm = [each for each in in_order if each[1] == "crm"]
    assert listed(desk, DeliveryStatus.WAITING, destination="crm") == of_crm
    assert listed(desk, DeliveryStatus.WAITING, destination="crm", after=found[0].position) == of_crm[1:]
    assert listed(desk, DeliveryStatus.WAITING, destination="nowhere") == []


def test_of_many_with_the_same_next_try_each_is_listed_once(desk: Desk) -> None:
    stored = {wait_at(desk, number, 1).id for number in range(2 * LISTED_AT_ONCE + 50)}
    found = [entry for entry, _ in listed(desk, DeliveryStatus.WAITING)]
    assert sorted(found) == sorted(stored)
    (third,) = islice(desk.journal.list_deliveries(DeliveryStatus.WAITING), 2, 3)
    assert len(listed(desk, DeliveryStatus.WAITING, after=third.position)) == len(stored) - 3


def test_what_is_dead_is_listed_by_its_death_the_newest_first(desk: Desk) -> None:
    stored = [desk.store(an_id(f"e{number}")) for number in range(3)]
    for number in (1, 0, 2):
        desk.pass_ms(1000)
        desk.send(stored[number], DeliveryStatus.DEAD)
    in_order = [(stored[number].id, "crm") for number in (2, 0, 1)]
    first, *_ = found = list(desk.journal.list_deliveries(DeliveryStatus.DEAD))
    assert [(each.entry.id, each.delivery.destination) for each in found] == in_order
    assert listed(desk, DeliveryStatus.DEAD, after=first.position) == in_order[1:]
    assert listed(desk, DeliveryStatus.DEAD, destination="slack") == listed(desk, DeliveryStatus.WAITING) == []


def test_waiting_is_what_the_journal_hands_out(desk: Desk) -> None:
    """What a worker is at is still stored, and is counted; what was given back is its provider's."""
    waiting, begun = desk.store(an_id("e1")), desk.store(an_id("e2"), to=("slack",))
    assert desk.begin(begun, "slack")
    claim, given_back = desk.claim(an_id("e3"))
    delivery = replace(given_back.entry.deliveries[0], status=DeliveryStatus.WAITING, next_try_ms=1)
    desk.journal.settle(claim, given_back.entry, Settlement(Ending.FREE, "told", (delivery,)))
    desk.claim(an_id("e4"))
    assert listed(desk, DeliveryStatus.WAITING) == [(waiting.id, "crm")]
    assert desk.journal.count_deliveries() == {"crm": Count(1, 0), "slack": Count(1, 0)}


def test_the_counts_follow_what_becomes_of_deliveries(desk: Desk) -> None:
    assert desk.journal.count_deliveries() == {}
    first, second = desk.store(an_id("e1"), to=("crm", "slack")), desk.kill(an_id("e2"))
    assert desk.journal.count_deliveries() == {"crm": Count(1, 1), "slack": Count(1, 0)}
    desk.send(first, DeliveryStatus.DELIVERED)
    desk.send(first, DeliveryStatus.DEAD, "slack")
    assert desk.journal.count_deliveries() == {"crm": Count(0, 1), "slack": Count(0, 1)}
    assert desk.journal.replay(second.id, "crm") is Replayed.REPLAYED
    assert desk.journal.reopen(first.id, "slack")
    assert desk.journal.count_deliveries() == {"crm": Count(1, 0)}


def test_a_dead_letter_that_is_no_longer_kept_is_neither_listed_nor_counted(desk: Desk) -> None:
    """It is kept from when its provider was told, and may have died days later."""
    entry = desk.store(an_id("e1"))
    desk.pass_ms(3 * DAY_MS)
    desk.send(entry, DeliveryStatus.DEAD)
    desk.pass_ms(27 * DAY_MS + 3_600_000)
    assert desk.journal.read(entry.id) is None
    assert listed(desk, DeliveryStatus.DEAD) == []
    assert desk.journal.count_deliveries() == {}


def test_find_reads_a_window_and_goes_on_from_any_place(desk: Desk) -> None:
    entries = []
    for number in range(6):
        entries.append(desk.deliver(an_id(f"e{number}")) if number % 2 else desk.store(an_id(f"e{number}")))
        desk.pass_ms(1_200_000)
    newest_first = [entry.id for entry in reversed(entries)]
    times = {entry.id: desk.read(entry.id).created_ms for entry in entries}
    window = Window(since_ms=times[entries[1].id], until_ms=times[entries[4].id])
    assert [entry.id for entry in desk.journal.find(window)] == newest_first[2:5]
    for place, id_ in enumerate(newest_first):
        start = Position(times[id_], id_)
        assert [entry.id for entry in desk.journal.find(Window(start=start))] == newest_first[place:]
    narrower = replace(window, start=Position(times[entries[2].id], entries[2].id))
    assert [entry.id for entry in desk.journal.find(narrower)] == newest_first[3:5]


def test_what_is_older_than_the_lists_is_found_in_a_window_too(desk: Desk) -> None:
    old, older = desk.store(an_id("e1")), desk.store(an_id("e2"))
    desk.pass_ms(9 * DAY_MS)
    new = desk.deliver(an_id("e3"))
    in_order = sorted((old, older), key=lambda entry: (desk.read(entry.id).created_ms, entry.id), reverse=True)
    ids = [new.id, *(entry.id for entry in in_order)]
    assert [entry.id for entry in desk.journal.find()] == ids
    start = Position(desk.read(ids[2]).created_ms, ids[2])
    assert [entry.id for entry in desk.journal.find(Window(start=start))] == ids[2:]
    assert [entry.id for entry in desk.journal.find(Window(since_ms=desk.journal.now_ms() - DAY_MS))] == ids[:1]
    assert [entry.id for entry in desk.journal.find(Window(until_ms=desk.journal.now_ms() - DAY_MS))] == ids[1:]


def test_what_is_kept_for_longer_than_the_lists_is_found_by_its_names(desk: Desk) -> None:
    """A dead one that turns out to have arrived is neither, and what was only printed marks nothing."""
    claim, verdict = desk.claim(an_id("e1"), to=("crm",), is_trial=True)
    desk.end(claim, verdict.entry, DeliveryStatus.DEAD)
    desk.pass_ms(9 * DAY_MS)
    desk.end(claim, verdict.entry, DeliveryStatus.DELIVERED)
    assert an_id("e1") in set(desk.journal.names(Pattern()))
    desk.claim(an_id("e2"))
    assert [entry.own for entry in desk.journal.find()] == [(an_id("e2"),), (an_id("e1"),)]


def test_one_that_comes_every_half_hour_for_longer_than_a_week_reaches_nobody_twice(desk: Desk) -> None:
    """It is kept for an hour after its last change, and so must be what finds it."""
    claim, first = desk.claim(an_id("e1"), to=("crm", "slack"))
    arrived = (replace(first.entry.deliveries[0], status=DeliveryStatus.DELIVERED),)
    assert desk.journal.settle(claim, first.entry, Settlement(Ending.FREE, "", arrived))
    desk.pass_ms(7 * DAY_MS - 600_000)
    for _ in range(10):
        claim, again = desk.claim(an_id("e1"), to=("crm", "slack"))
        assert again.entry.id == first.entry.id
        assert [each.status for each in again.entry.deliveries] == [DeliveryStatus.DELIVERED, DeliveryStatus.DELIVERING]
        assert desk.give_back(claim, again.entry)
        assert [entry.id for entry in desk.journal.find()] == [first.entry.id]
        desk.pass_ms(1_800_000)


def test_a_repeat_moves_no_end(desk: Desk) -> None:
    """What was only printed shows it: it marks nothing, so that its names end with it."""
    claim, first = desk.claim(an_id("e1"), is_trial=True)
    desk.end(claim, first.entry, DeliveryStatus.DELIVERED)
    desk.pass_ms(7 * DAY_MS - 600_000)
    _, again = desk.claim(an_id("e1"), is_trial=True)
    assert isinstance(again, Duplicate)
    assert desk.read(first.entry.id).repeats == 1
    desk.pass_ms(1_200_000)
    assert desk.journal.read(first.entry.id) is None


def test_on_redis_find_reads_only_what_is_asked_for(desk: Desk, bench: JournalBench) -> None:
    """A week of entries is read by nobody who wants a page or an hour of it."""
    if not isinstance(desk.journal, RedisJournal):
        pytest.skip("its entries are in lists by the hour")
    times = []
    for number in range(4):
        times.append(desk.read(desk.deliver(an_id(f"e{number}")).id).created_ms)
        desk.pass_ms(3 * 3_600_000)
    with patch.object(desk.journal, "_entries", wraps=desk.journal._entries) as reading:
        list(desk.journal.find(Window(since_ms=times[1], until_ms=times[2])))
        next(desk.journal.find())
    assert [len(call.args[0]) for call in reading.call_args_list] == [1, 1, 1], "the hours of both ends, and the newest"


def test_where_payloads_are(desk: Desk, bench: JournalBench) -> None:
    stored, delivered = desk.store(an_id("e1")), desk.deliver(an_id("e2"))
    where = {"memory": "memory", "sqlite": "disk", "redis": "redis", "failover": "redis"}[bench.kind]
    assert desk.journal.locate_payloads([stored.id, delivered.id]) == {stored.id: where, delivered.id: "gone"}
    assert desk.journal.locate_payloads([]) == {}


def test_what_was_delivered_is_kept_nowhere_to_be_sent_again(desk: Desk) -> None:
    stored = desk.store(an_id("e1"))
    if isinstance(desk.journal, FailoverJournal):
        desk.journal.tick()  # the machine has a copy
    desk.send(stored, DeliveryStatus.DELIVERED)
    assert desk.journal.replay(stored.id, "crm", force=True) is Replayed.NO_PAYLOAD


# Trying what waits now


def test_what_waits_is_tried_now_and_uses_up_none_of_its_schedule(desk: Desk) -> None:
    stored = desk.store(an_id("e1"), shared=(GROUP,), to=("crm",), words="w")
    begun = desk.begin(stored)
    assert begun
    later = replace(begun.delivery, status=DeliveryStatus.WAITING, tries=4, next_try_ms=desk.journal.now_ms() + DAY_MS)
    assert desk.journal.finish(stored.id, "worker", replace(later, reason="HTTP 503"))
    before = desk.read(stored.id)
    assert desk.journal.due({"crm": 10}, LEASE_MS) == []
    assert desk.journal.replay(stored.id, "crm") is Replayed.REPLAYED
    after = desk.read(stored.id)
    (delivery,) = after.deliveries
    assert (delivery.tries, delivery.reason, delivery.content) == (0, "replayed", before.deliveries[0].content)
    assert (delivery.generation, after.generation, after.shared) == (0, 0, (GROUP,)), "it is what it was"
    assert desk.journal.due({"crm": 10}, LEASE_MS) == [(stored.id, "crm")]
    assert desk.journal.replay(stored.id, "crm", force=True, webhook_id="msg_new") is Replayed.REPLAYED
    (forced,) = desk.read(stored.id).deliveries
    assert (forced.generation, forced.content, forced.webhook_id) == (1, None, "msg_new"), "past its gate"


def test_one_that_is_under_way_is_not_tried_now(desk: Desk) -> None:
    stored = desk.store(an_id("e1"))
    begun = desk.begin(stored)
    assert begun and desk.journal.replay(stored.id, "crm") is Replayed.UNDER_WAY
    assert desk.read(stored.id).deliveries == (begun.delivery,)
    assert desk.finish(begun, DeliveryStatus.DELIVERED)


def test_trying_now_forgets_no_begin_so_that_poison_ends(desk: Desk) -> None:
    stored = desk.store(an_id("e1"))
    for _ in range(3):
        assert desk.begin(stored)
        desk.pass_ms(LEASE_MS + 1)
        assert desk.journal.replay(stored.id, "crm") is Replayed.REPLAYED
    assert desk.begin(stored) is None
    assert desk.read(stored.id).deliveries[0].status is DeliveryStatus.DEAD
