"""What every journal promises (deduplication/journal/base.py), said one promise at a time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from deduplication.claims import WEEK_MS, Gate, Kind, Name
from deduplication.journal.base import (
    MOST_BEGINS,
    Begun,
    Claim,
    Claimed,
    Duplicate,
    Ending,
    InFlight,
    Settlement,
    Wanted,
)
from deduplication.journal.entry import About, Attempt, DeliveryStatus, Entry, State
from tests.support.journals import JournalBench

LEASE_MS = 60_000
DAY_MS = 24 * 3_600_000
ID = Name(Kind.EMAIL_ID, "2026-11-16", "id")
CANONICAL = Name(Kind.EMAIL_ID, "2026-11-16", "canonical")
UNDATED = Name(Kind.EMAIL_ID, "undated", "id")
MESSAGE_ID = Name(Kind.POST, "", "1@example.org", WEEK_MS)
GROUP = Name(Kind.SUBJECT_GROUP, "2026-11", "lot_456")
FILE_X = Name(Kind.MEDIA, "", "https://files.example/x", WEEK_MS)
FILE_Y = Name(Kind.MEDIA, "", "https://files.example/y", WEEK_MS)
LOCK = Name(Kind.LOCK, "crm", "item")
TEXT, OTHER_TEXT = "t1.f1.-.-.l1.-.-", "t2.f1.-.-.l1.-.-"

_numbers = count(1)


def words_at(destination: str) -> Name:
    return Name(Kind.CONTENT, destination, "words", 3 * DAY_MS)


def a_claim(*own: Name, to: tuple[str, ...] = ("crm",), words: bool = False, **more: Any) -> Claim:
    number = next(_numbers)
    wanted = tuple(Wanted(name, f"msg_{number}_{name}", words_at(name) if words else None) for name in to)
    return Claim(
        entry=f"entry{number}",
        owner=f"owner{number}",
        own=own or (ID,),
        destinations=wanted,
        lease_ms=LEASE_MS,
        **more,
    )


class Desk:
    """What a request does, in the words of the tests."""

    def __init__(self, bench: JournalBench) -> None:
        self.journal = bench.journal
        self.pass_ms = bench.advance

    def claim(self, *own: Name, **more: Any) -> tuple[Claim, Any]:
        claim = a_claim(*own, **more)
        return claim, self.journal.claim(claim)

    def end(self, claim: Claim, entry: Entry, status: DeliveryStatus, **more: Any) -> bool:
        """Everything that is under way ends like this; what waits is due at once."""
        ended = tuple(
            replace(each, status=status, tries=each.tries + 1, next_try_ms=1 if status.is_open else None)
            for each in entry.deliveries
            if each.status is DeliveryStatus.DELIVERING
        )
        payload = b"payload" if status is not DeliveryStatus.DELIVERED else None
        return self.journal.settle(claim, entry, Settlement(Ending.DONE, "told", ended, payload=payload, **more))

    def deliver(self, *own: Name, **more: Any) -> Entry:
        return self._take_to(DeliveryStatus.DELIVERED, *own, **more)

    def store(self, *own: Name, **more: Any) -> Entry:
        return self._take_to(DeliveryStatus.WAITING, *own, **more)

    def _take_to(self, status: DeliveryStatus, *own: Name, **more: Any) -> Entry:
        claim, verdict = self.claim(*own, **more)
        assert isinstance(verdict, Claimed), verdict
        assert self.end(claim, verdict.entry, status)
        return self.read(verdict.entry.id)

    def give_back(self, claim: Claim, entry: Entry, retries_left: int | None = None) -> bool:
        return self.journal.settle(claim, entry, Settlement(Ending.FREE, retries_left=retries_left))

    def skip(self, claim: Claim, verdict: Duplicate) -> bool:
        assert verdict.entry
        return self.journal.settle(claim, verdict.entry, Settlement(Ending.DONE, "skipped", payload=b"payload"))

    def read(self, entry: str) -> Entry:
        found = self.journal.read(entry)
        assert found
        return found

    def begin(self, entry: Entry, destination: str = "crm", owner: str = "worker") -> Begun | None:
        return self.journal.begin(entry.id, destination, owner, LEASE_MS)

    def finish(self, begun: Begun, status: DeliveryStatus, owner: str = "worker") -> Entry | None:
        next_try_ms = 1 if status.is_open else None
        ended = replace(begun.delivery, status=status, tries=begun.delivery.tries + 1, next_try_ms=next_try_ms)
        return self.journal.finish(begun.entry.id, owner, ended)


@pytest.fixture
def desk(bench: JournalBench) -> Desk:
    return Desk(bench)


# Which item it is


def test_a_new_item_is_claimed_with_all_its_destinations(desk: Desk) -> None:
    about = About(item="id", provider="mailgun", route="default", subject="Sujet é", sender="a@example.org")
    claim, verdict = desk.claim(ID, MESSAGE_ID, to=("crm", "slack"), fingerprint=TEXT, about=about)
    assert isinstance(verdict, Claimed) and verdict.is_first
    entry = verdict.entry
    assert (entry.id, entry.owner, entry.state, entry.about) == (claim.entry, claim.owner, State.PENDING, about)
    assert [(each.destination, each.status) for each in entry.deliveries] == [
        ("crm", DeliveryStatus.DELIVERING),
        ("slack", DeliveryStatus.DELIVERING),
    ]
    assert replace(desk.read(entry.id), lease_until_ms=0) == replace(entry, lease_until_ms=0), "by whose clock it ends"


@pytest.mark.parametrize("again", [ID, CANONICAL, MESSAGE_ID])
def test_any_of_its_names_recognises_a_settled_item(desk: Desk, again: Name) -> None:
    first = desk.deliver(ID, CANONICAL, MESSAGE_ID)
    _, verdict = desk.claim(again)
    assert isinstance(verdict, Duplicate) and verdict.entry is None
    assert (verdict.stop.name, verdict.stop.original, verdict.answer) == (again, first.id, "told")


def test_a_repeat_is_counted_in_the_same_step_and_a_lost_reply_only_once(desk: Desk) -> None:
    first = desk.deliver(ID)
    claim, _ = desk.claim(ID)
    desk.journal.claim(claim)
    assert (desk.read(first.id).repeats, desk.read(first.id).repeated_by) == (1, claim.owner)


def test_while_it_is_under_way_another_has_to_wait(desk: Desk) -> None:
    desk.claim(ID)
    _, verdict = desk.claim(ID)
    assert isinstance(verdict, InFlight) and verdict.gate is Gate.IDENTITY
    assert 0 < verdict.retry_after_ms <= LEASE_MS


def test_the_same_token_gets_the_same_answer(desk: Desk) -> None:
    claim, first = desk.claim(ID)
    assert isinstance(first, Claimed)
    again = desk.journal.claim(claim)
    assert isinstance(again, Claimed) and again.entry.id == first.entry.id
    desk.end(claim, first.entry, DeliveryStatus.DELIVERED)
    assert isinstance(desk.journal.claim(claim), Claimed), "a lost reply must never read as a duplicate"


def test_a_lapsed_claim_is_taken_over_by_one_and_is_not_the_first(desk: Desk) -> None:
    _, first = desk.claim(ID)
    desk.pass_ms(LEASE_MS)
    _, second = desk.claim(ID)
    _, third = desk.claim(ID)
    assert isinstance(second, Claimed) and isinstance(third, InFlight)
    assert second.entry.id == first.entry.id and not second.is_first
    assert second.entry.fence > first.entry.fence


def test_what_was_given_back_is_joined_with_its_history(desk: Desk) -> None:
    claim, first = desk.claim(ID)
    tried = replace(
        first.entry.deliveries[0], status=DeliveryStatus.WAITING, tries=1, attempts=(Attempt(1, 2, 503, "503"),)
    )
    desk.journal.settle(claim, first.entry, Settlement(Ending.FREE, deliveries=(tried,), retries_left=3))
    _, second = desk.claim(ID)
    assert isinstance(second, Claimed)
    delivery = second.entry.deliveries[0]
    assert (delivery.tries, delivery.attempts, delivery.webhook_id) == (1, tried.attempts, tried.webhook_id)
    assert second.entry.retries_left == 3


def test_retries_never_rise(desk: Desk) -> None:
    claim, first = desk.claim(ID)
    desk.give_back(claim, first.entry, retries_left=2)
    again, second = desk.claim(ID)
    desk.give_back(again, second.entry, retries_left=5)
    assert desk.read(first.entry.id).retries_left == 2


def test_same_name_and_another_text_are_two_items_each_recognised_on_its_own(desk: Desk) -> None:
    one, other = desk.deliver(ID, fingerprint=TEXT), desk.deliver(ID, fingerprint=OTHER_TEXT)
    assert one.id != other.id
    for fingerprint, original in ((TEXT, one), (OTHER_TEXT, other)):
        _, verdict = desk.claim(ID, fingerprint=fingerprint)
        assert isinstance(verdict, Duplicate) and verdict.stop.original == original.id


def test_a_part_that_one_side_does_not_know_speaks_for_nobody(desk: Desk) -> None:
    desk.deliver(ID, fingerprint="t1.f1.-.-.-.-.-")
    assert isinstance(desk.claim(ID, fingerprint="t1.-.-.-.l9.-.-")[1], Duplicate)
    assert isinstance(desk.claim(ID, fingerprint="t1.f2.-.-.-.-.-")[1], Claimed)


def test_a_repeat_fills_in_what_the_first_did_not_tell(desk: Desk) -> None:
    first = desk.deliver(ID, fingerprint="t1.-.-.-.-.-.-")
    assert isinstance(desk.claim(ID, fingerprint="t1.f1.-.-.-.-.-")[1], Duplicate)
    assert desk.read(first.id).fingerprint == "t1.f1.-.-.-.-.-"
    assert isinstance(desk.claim(ID, fingerprint="t1.f2.-.-.-.-.-")[1], Claimed), "other files: another item"


def test_of_several_that_fit_the_nearest_is_the_one_it_repeats(desk: Desk) -> None:
    desk.deliver(ID, fingerprint="t1.f1.-.-.-.-.-")
    near = desk.deliver(ID, fingerprint="t1.f2.-.-.-.-.-")
    _, verdict = desk.claim(ID, fingerprint="t1.f2.-.-.l1.-.-")
    assert isinstance(verdict, Duplicate) and verdict.stop.original == near.id


def test_an_undated_id_speaks_only_for_what_is_surely_the_same(desk: Desk) -> None:
    desk.deliver(UNDATED, fingerprint="t1.f1.-.-.-.-.-")
    assert isinstance(desk.claim(UNDATED, fingerprint="t1.-.-.-.-.-.-")[1], Claimed)
    assert isinstance(desk.claim(UNDATED, fingerprint="t1.f1.-.-.-.-.-")[1], Duplicate)


def test_what_another_candidate_has_delivered_counts_as_delivered(desk: Desk) -> None:
    claim, one = desk.claim(ID, to=("crm", "slack"))
    crm, slack = one.entry.deliveries
    ended = (replace(crm, status=DeliveryStatus.DELIVERED), replace(slack, status=DeliveryStatus.WAITING))
    desk.journal.settle(claim, one.entry, Settlement(Ending.FREE, deliveries=ended))
    _, verdict = desk.claim(ID, to=("crm", "slack"))
    assert [each.status for each in verdict.entry.deliveries] == [DeliveryStatus.DELIVERED, DeliveryStatus.DELIVERING]


def test_the_present_route_decides_where_an_unanswered_item_goes(desk: Desk) -> None:
    claim, first = desk.claim(ID, to=("crm",), shared=(GROUP,))
    desk.give_back(claim, first.entry)
    _, second = desk.claim(ID, to=("slack",), shared=())
    assert [each.destination for each in second.entry.deliveries] == ["slack"]
    assert isinstance(desk.claim(CANONICAL, shared=(GROUP,))[1], Claimed), "the group is no longer made: given back"


def test_what_was_only_printed_is_free_once_there_is_a_real_destination(desk: Desk) -> None:
    desk.deliver(ID, shared=(GROUP,), is_trial=True)
    assert isinstance(desk.claim(ID, is_trial=True)[1], Duplicate)
    claim, verdict = desk.claim(ID, shared=(GROUP,))
    assert isinstance(verdict, Claimed)
    assert desk.end(claim, verdict.entry, DeliveryStatus.DELIVERED)
    assert isinstance(desk.claim(ID)[1], Duplicate)


# Settling


def test_a_stale_owner_decides_nothing(desk: Desk) -> None:
    stale, first = desk.claim(ID)
    desk.pass_ms(LEASE_MS)
    _, second = desk.claim(ID)
    assert not desk.give_back(stale, first.entry)
    assert not desk.end(stale, first.entry, DeliveryStatus.DEAD)
    entry = desk.read(first.entry.id)
    assert (entry.state, entry.owner) == (State.PENDING, second.entry.owner)


def test_what_a_stale_owner_delivered_is_a_fact(desk: Desk) -> None:
    stale, first = desk.claim(ID, shared=(GROUP,))
    desk.pass_ms(LEASE_MS)
    desk.claim(ID, shared=(GROUP,))
    assert not desk.end(stale, first.entry, DeliveryStatus.DELIVERED)
    assert desk.read(first.entry.id).deliveries[0].status is DeliveryStatus.DELIVERED


def test_what_was_forgotten_during_the_delivery_is_done_all_the_same(desk: Desk) -> None:
    claim, verdict = desk.claim(ID)
    desk.journal.forget([ID])
    assert desk.end(claim, verdict.entry, DeliveryStatus.DELIVERED)


def test_renewing_holds_the_claim_for_its_owner_alone(desk: Desk) -> None:
    claim, verdict = desk.claim(ID)
    desk.pass_ms(LEASE_MS - 10_000)
    assert desk.journal.renew(verdict.entry.id, claim.owner, LEASE_MS)
    assert not desk.journal.renew(verdict.entry.id, "someone else", LEASE_MS)
    desk.pass_ms(LEASE_MS - 10_000)
    assert isinstance(desk.claim(ID)[1], InFlight)


def test_a_settled_item_is_kept_for_a_week_and_its_id_for_ever(desk: Desk) -> None:
    first = desk.deliver(ID)
    desk.pass_ms(WEEK_MS + 3_600_000)
    assert desk.journal.read(first.id) is None
    claim, verdict = desk.claim(ID)
    assert isinstance(verdict, Duplicate) and verdict.entry, "an entry of its own, so that it can be released"
    assert verdict.stop.original is None
    assert desk.skip(claim, verdict)
    assert isinstance(desk.claim(ID)[1], Duplicate)


# Names shared with other items


@pytest.mark.parametrize("shared", [GROUP, FILE_X])
def test_a_delivered_item_stops_others_at_a_shared_name(desk: Desk, shared: Name) -> None:
    first = desk.deliver(ID, shared=(shared,))
    claim, verdict = desk.claim(CANONICAL, shared=(shared,))
    assert isinstance(verdict, Duplicate) and verdict.entry
    assert (verdict.stop.name, verdict.stop.original) == (shared, first.id)
    assert verdict.stop.first_seen_ms is not None
    assert desk.skip(claim, verdict)
    assert desk.journal.payload(verdict.entry.id) == b"payload"
    assert isinstance(desk.claim(CANONICAL)[1], Duplicate)


def test_a_crash_between_being_stopped_and_its_payload_loses_nothing(desk: Desk) -> None:
    desk.deliver(ID, shared=(GROUP,))
    desk.claim(CANONICAL, shared=(GROUP,))
    desk.pass_ms(LEASE_MS)
    _, again = desk.claim(CANONICAL, shared=(GROUP,))
    assert isinstance(again, Duplicate) and again.entry, "the provider's retry stores it"


def test_a_shared_name_under_way_makes_others_wait(desk: Desk) -> None:
    claim, first = desk.claim(ID, shared=(GROUP,))
    _, verdict = desk.claim(CANONICAL, shared=(GROUP,))
    assert isinstance(verdict, InFlight) and verdict.gate is Gate.SUBJECT_GROUP
    desk.give_back(claim, first.entry)
    assert isinstance(desk.claim(CANONICAL, shared=(GROUP,))[1], Claimed)


def test_a_dead_item_leaves_its_shared_names_to_others(desk: Desk) -> None:
    claim, verdict = desk.claim(ID, shared=(GROUP,))
    assert desk.end(claim, verdict.entry, DeliveryStatus.DEAD)
    assert isinstance(desk.claim(CANONICAL, shared=(GROUP,))[1], Claimed)
    assert isinstance(desk.claim(ID)[1], Duplicate), "but a re-send revives nothing"


def test_of_several_files_the_known_ones_are_left_out_and_all_known_stop(desk: Desk) -> None:
    desk.deliver(ID, shared=(FILE_X,))
    _, verdict = desk.claim(CANONICAL, shared=(FILE_X, FILE_Y))
    assert isinstance(verdict, Claimed) and verdict.left_out == (FILE_X.label,)
    _, stopped = desk.claim(MESSAGE_ID, shared=(FILE_X,))
    assert isinstance(stopped, Duplicate) and stopped.stop.gate is Gate.MEDIA


def test_its_own_names_never_stop_an_item(desk: Desk) -> None:
    claim, verdict = desk.claim(ID, to=("crm", "slack"), shared=(GROUP,))
    crm, slack = verdict.entry.deliveries
    ended = (replace(crm, status=DeliveryStatus.DELIVERED), replace(slack, status=DeliveryStatus.WAITING))
    desk.journal.settle(claim, verdict.entry, Settlement(Ending.FREE, deliveries=ended))
    assert isinstance(desk.claim(CANONICAL, shared=(GROUP,))[1], Duplicate), "it was delivered somewhere"
    assert isinstance(desk.claim(ID, to=("crm", "slack"), shared=(GROUP,))[1], Claimed)


def test_the_same_owner_may_move_to_other_shared_names(desk: Desk) -> None:
    claim, _ = desk.claim(ID, shared=(FILE_X,))
    moved = desk.journal.claim(replace(claim, shared=(FILE_Y,)))
    assert isinstance(moved, Claimed)
    assert isinstance(desk.claim(CANONICAL, shared=(FILE_X,))[1], Claimed)
    assert isinstance(desk.claim(MESSAGE_ID, shared=(FILE_Y,))[1], InFlight)


def test_a_group_with_an_end_begins_with_the_delivery(desk: Desk) -> None:
    group = replace(GROUP, kept_ms=DAY_MS)
    entry = desk.store(ID, shared=(group,))
    desk.pass_ms(2 * DAY_MS)
    begun = desk.begin(entry)
    assert begun
    desk.finish(begun, DeliveryStatus.DELIVERED)
    desk.pass_ms(DAY_MS - 1000)
    assert isinstance(desk.claim(CANONICAL, shared=(group,))[1], Duplicate)
    desk.pass_ms(LEASE_MS + 1000)
    assert isinstance(desk.claim(MESSAGE_ID, shared=(group,))[1], Claimed)


# Words at a destination


def test_a_destination_that_had_the_words_is_left_out(desk: Desk) -> None:
    desk.deliver(ID, to=("crm",), words=True)
    _, verdict = desk.claim(CANONICAL, to=("crm", "slack"), words=True)
    assert isinstance(verdict, Claimed)
    assert [each.status for each in verdict.entry.deliveries] == [DeliveryStatus.SKIPPED, DeliveryStatus.DELIVERING]
    _, stopped = desk.claim(MESSAGE_ID, to=("crm",), words=True)
    assert isinstance(stopped, Duplicate) and stopped.stop.gate is Gate.CONTENT


def test_words_on_their_way_to_one_of_several_are_asked_about_again(desk: Desk) -> None:
    claim, first = desk.claim(ID, to=("crm",), words=True)
    assert isinstance(desk.claim(MESSAGE_ID, to=("crm",), words=True)[1], InFlight)
    both, verdict = desk.claim(CANONICAL, to=("crm", "slack"), words=True)
    assert [each.status for each in verdict.entry.deliveries] == [DeliveryStatus.WAITING, DeliveryStatus.DELIVERING]
    desk.end(both, verdict.entry, DeliveryStatus.DELIVERED)
    assert desk.begin(verdict.entry) is None, "still on their way"
    desk.end(claim, first.entry, DeliveryStatus.DELIVERED)
    assert desk.begin(verdict.entry) is None
    assert desk.read(verdict.entry.id).deliveries[0].status is DeliveryStatus.SKIPPED


def test_words_that_were_not_delivered_in_the_end_go_out_with_the_other_item(desk: Desk) -> None:
    claim, first = desk.claim(ID, to=("crm",), words=True)
    both, verdict = desk.claim(CANONICAL, to=("crm", "slack"), words=True)
    desk.end(both, verdict.entry, DeliveryStatus.DELIVERED)
    desk.give_back(claim, first.entry)
    assert desk.begin(verdict.entry)
    assert isinstance(desk.claim(MESSAGE_ID, to=("crm",), words=True)[1], Duplicate), "these words are taken now"


# Delivering what is stored


def test_what_is_due_is_handed_to_one_and_begun_by_one(desk: Desk) -> None:
    entry = desk.store(ID)
    assert desk.journal.due({"crm": 10}, 20_000) == [(entry.id, "crm")]
    assert desk.journal.due({"crm": 10}, 20_000) == []
    begun = desk.begin(entry, owner="one")
    assert begun and begun.payload == b"payload"
    assert desk.begin(entry, owner="two") is None
    again = desk.begin(entry, owner="one")
    assert again and again.delivery.begins == 1, "a lost reply begins nothing twice"


def test_what_its_worker_left_behind_is_due_again(desk: Desk) -> None:
    entry = desk.store(ID)
    desk.begin(entry, owner="one")
    desk.pass_ms(LEASE_MS)
    assert desk.journal.due({"crm": 10}, 20_000) == [(entry.id, "crm")]
    assert desk.begin(entry, owner="two")


def test_no_room_at_a_destination_leaves_its_deliveries_alone(desk: Desk) -> None:
    first, _ = desk.store(ID), desk.store(CANONICAL, to=("slack",))
    assert desk.journal.due({"crm": 1, "slack": 0}, 20_000) == [(first.id, "crm")]


def test_a_finished_delivery_marks_what_it_carried(desk: Desk) -> None:
    entry = desk.store(ID, shared=(GROUP,))
    begun = desk.begin(entry)
    assert begun
    after = desk.finish(begun, DeliveryStatus.DELIVERED)
    assert after and after.deliveries[0].status is DeliveryStatus.DELIVERED and not after.has_open_deliveries
    assert desk.begin(entry) is None
    assert isinstance(desk.claim(CANONICAL, shared=(GROUP,))[1], Duplicate)


def test_a_worker_that_lost_its_delivery_decides_nothing_but_its_success_counts(desk: Desk) -> None:
    entry = desk.store(ID)
    slow = desk.begin(entry, owner="slow")
    assert slow
    desk.pass_ms(LEASE_MS)
    assert desk.begin(entry, owner="quick")
    assert desk.finish(slow, DeliveryStatus.DEAD, owner="slow") is None
    after = desk.finish(slow, DeliveryStatus.DELIVERED, owner="slow")
    assert after and after.deliveries[0].status is DeliveryStatus.DELIVERED


def test_a_payload_that_kills_its_workers_ends_as_a_dead_letter(desk: Desk) -> None:
    entry = desk.store(ID)
    for _ in range(MOST_BEGINS):
        assert desk.begin(entry)
        desk.pass_ms(LEASE_MS)
    assert desk.begin(entry) is None
    assert desk.read(entry.id).deliveries[0].status is DeliveryStatus.DEAD


def test_what_waits_is_kept_however_long(desk: Desk) -> None:
    entry = desk.store(ID, shared=(GROUP,))
    desk.pass_ms(100 * DAY_MS)
    assert isinstance(desk.claim(CANONICAL, shared=(GROUP,))[1], Duplicate), "it still holds its group"
    assert desk.begin(entry)
    assert isinstance(desk.claim(ID)[1], Duplicate)


# Followers


def test_a_follower_stays_skipped_when_the_first_is_delivered(desk: Desk) -> None:
    first = desk.store(ID, shared=(GROUP,))
    claim, verdict = desk.claim(CANONICAL, shared=(GROUP,))
    assert isinstance(verdict, Duplicate) and verdict.entry and verdict.stop.follows
    assert desk.skip(claim, verdict)
    begun = desk.begin(first)
    assert begun
    desk.finish(begun, DeliveryStatus.DELIVERED)
    assert desk.journal.due({"crm": 10}, 1000) == []
    assert desk.read(verdict.entry.id).released_ms is None


def test_the_oldest_follower_goes_out_when_the_first_is_dead_and_the_others_follow_it(desk: Desk) -> None:
    first = desk.store(ID, shared=(GROUP,))
    skipped = []
    for name in (CANONICAL, MESSAGE_ID):
        claim, verdict = desk.claim(name, shared=(GROUP,))
        assert isinstance(verdict, Duplicate) and verdict.entry
        desk.skip(claim, verdict)
        skipped.append(verdict.entry)
        desk.pass_ms(1000)
    begun = desk.begin(first)
    assert begun
    desk.finish(begun, DeliveryStatus.DEAD)
    oldest, other = skipped
    assert desk.journal.due({"crm": 10}, 1000) == [(oldest.id, "crm")]
    stop = desk.read(other.id).stop
    assert stop and stop.original == oldest.id
    begun = desk.begin(oldest)
    assert begun and begun.payload == b"payload"
    desk.finish(begun, DeliveryStatus.DEAD)
    assert desk.journal.due({"crm": 10}, 1000) == [(other.id, "crm")]


def test_one_whose_original_died_before_it_was_settled_is_not_skipped(desk: Desk) -> None:
    first = desk.store(ID, shared=(GROUP,))
    claim, verdict = desk.claim(CANONICAL, shared=(GROUP,))
    begun = desk.begin(first)
    assert begun and isinstance(verdict, Duplicate)
    desk.finish(begun, DeliveryStatus.DEAD)
    assert not desk.skip(claim, verdict)
    assert isinstance(desk.claim(CANONICAL, shared=(GROUP,))[1], Claimed)


# Forgetting


def test_a_forgotten_name_is_as_if_it_had_never_been(desk: Desk) -> None:
    desk.deliver(ID, shared=(GROUP,))
    assert desk.journal.forget([ID, GROUP]).names == 2
    assert isinstance(desk.claim(ID, shared=(GROUP,))[1], Claimed)


def test_what_is_still_to_be_delivered_keeps_its_own_names_and_loses_its_group(desk: Desk) -> None:
    entry = desk.store(ID, shared=(GROUP,))
    forgotten = desk.journal.forget([ID, GROUP])
    assert (forgotten.names, forgotten.kept) == (1, (entry.id,))
    assert isinstance(desk.claim(ID)[1], Duplicate)
    begun = desk.begin(entry)
    assert begun
    desk.finish(begun, DeliveryStatus.DELIVERED)
    assert isinstance(desk.claim(CANONICAL, shared=(GROUP,))[1], Claimed), "its end does not mark the group again"


# For scripts


def test_a_lock_is_held_by_one_and_blocks_nobody_once_it_is_over(desk: Desk) -> None:
    claim, verdict = desk.claim(LOCK, to=())
    _, second = desk.claim(LOCK, to=())
    assert isinstance(second, InFlight) and second.gate is Gate.LOCK
    assert desk.journal.settle(claim, verdict.entry, Settlement(Ending.DONE))
    assert isinstance(desk.claim(LOCK, to=())[1], Claimed)


def test_a_post_that_was_published_takes_its_media_with_it(desk: Desk) -> None:
    claim, verdict = desk.claim(MESSAGE_ID, to=(), shared=(FILE_X,))
    desk.journal.settle(claim, verdict.entry, Settlement(Ending.DONE))
    assert isinstance(desk.claim(ID, to=(), shared=(FILE_X,))[1], Duplicate)


def test_a_post_that_was_given_up_leaves_its_media_free(desk: Desk) -> None:
    claim, verdict = desk.claim(MESSAGE_ID, to=(), shared=(FILE_X,))
    desk.journal.settle(claim, verdict.entry, Settlement(Ending.DONE, retries_left=0))
    assert isinstance(desk.claim(ID, to=(), shared=(FILE_X,))[1], Claimed)


# Many at once


def test_of_many_at_once_exactly_one_wins(desk: Desk) -> None:
    with ThreadPoolExecutor(32) as pool:
        verdicts = list(pool.map(lambda _: desk.claim(ID, MESSAGE_ID, shared=(GROUP,))[1], range(64)))
    assert sum(isinstance(each, Claimed) for each in verdicts) == 1
    assert sum(isinstance(each, InFlight) for each in verdicts) == 63
