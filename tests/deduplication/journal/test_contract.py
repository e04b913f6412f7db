"""What every journal promises (deduplication/journal/base.py), said one promise at a time."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from deduplication.claims import WEEK_MS, Gate, Kind, Name, Pattern
from deduplication.journal.base import (
    MOST_BEGINS,
    Begun,
    Claim,
    Claimed,
    Duplicate,
    Ending,
    InFlight,
    Released,
    Replayed,
    Retention,
    Settlement,
    Wanted,
)
from deduplication.journal.entry import About, Attempt, Delivery, DeliveryStatus, Entry, State
from tests.support.journals import JOURNALS, JournalBench, open_journal
from tests.support.redis_server import RedisServer

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
PROOF = Name(Kind.PROOF, "", "token", WEEK_MS)
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
        self.kind = bench.kind
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

    def kill(self, *own: Name, **more: Any) -> Entry:
        return self._take_to(DeliveryStatus.DEAD, *own, **more)

    def suppress(self, *own: Name, **more: Any) -> Entry:
        """One that is stopped by a shared name."""
        claim, verdict = self.claim(*own, **more)
        assert isinstance(verdict, Duplicate) and verdict.entry, verdict
        assert self.skip(claim, verdict)
        return self.read(verdict.entry.id)

    def send(self, entry: Entry, status: DeliveryStatus, destination: str = "crm") -> Entry:
        """What a worker does with what is stored."""
        begun = self.begin(entry, destination)
        assert begun, self.read(entry.id)
        after = self.finish(begun, status)
        assert after
        return after

    def end_each(self, claim: Claim, entry: Entry, *statuses: DeliveryStatus) -> Entry:
        ended = tuple(
            replace(each, status=status, next_try_ms=1 if status.is_open else None)
            for each, status in zip(entry.deliveries, statuses, strict=True)
        )
        assert self.journal.settle(claim, entry, Settlement(Ending.DONE, "told", ended, payload=b"payload"))
        return self.read(entry.id)

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
    assert (entry.id, entry.owner, entry.state) == (claim.entry, claim.owner, State.PENDING)
    store = "" if desk.kind in ("redis", "failover") else "local"
    assert entry.about == replace(about, store=store), "nothing is spent on what is the rule"
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


@pytest.mark.parametrize(
    ("status", "fate"),
    [(DeliveryStatus.DELIVERED, "over"), (DeliveryStatus.WAITING, "open"), (DeliveryStatus.DEAD, "dead")],
)
def test_a_repeat_says_what_has_become_of_the_first(desk: Desk, status: DeliveryStatus, fate: str) -> None:
    claim, verdict = desk.claim()
    desk.end(claim, verdict.entry, status)
    _, again = desk.claim()
    assert (again.answer, again.fate) == ("told", fate)


def test_a_proof_that_was_accepted_is_good_for_no_other_item(desk: Desk) -> None:
    first = desk.deliver(ID, PROOF, fingerprint=TEXT)
    _, other = desk.claim(CANONICAL, PROOF, fingerprint=OTHER_TEXT)
    assert isinstance(other, Duplicate)
    assert (other.stop.gate, other.stop.original, other.entry) == (Gate.PROOF, first.id, None)
    _, again = desk.claim(ID, PROOF, fingerprint=TEXT)
    assert again.stop.gate is Gate.IDENTITY
    assert desk.read(first.id).repeats == 1


def test_a_proof_under_way_makes_another_item_wait_and_one_that_failed_is_free(desk: Desk) -> None:
    claim, verdict = desk.claim(ID, PROOF, fingerprint=TEXT)
    _, other = desk.claim(CANONICAL, PROOF, fingerprint=OTHER_TEXT)
    assert isinstance(other, InFlight)
    assert other.gate is Gate.PROOF
    desk.give_back(claim, verdict.entry)
    _, other = desk.claim(CANONICAL, PROOF, fingerprint=OTHER_TEXT)
    assert isinstance(other, Claimed)


def test_a_proof_is_remembered_when_its_item_is_not(desk: Desk) -> None:
    desk.deliver(ID, PROOF, fingerprint=TEXT)
    desk.journal.forget([ID])
    _, other = desk.claim(CANONICAL, PROOF, fingerprint=OTHER_TEXT)
    assert other.stop.gate is Gate.PROOF


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


@pytest.mark.parametrize("fingerprint", ["", "-.f1.-.-.-.-.-"])
def test_an_undated_id_does_not_speak_for_texts_that_nobody_knows(desk: Desk, fingerprint: str) -> None:
    desk.deliver(UNDATED, fingerprint=fingerprint)
    assert isinstance(desk.claim(UNDATED, fingerprint=fingerprint)[1], Claimed)


def test_a_repeat_fills_in_what_was_not_known_and_leaves_the_rest_as_it_is(desk: Desk) -> None:
    first = desk.deliver(ID, fingerprint="t1.-.-.-.-.-.-")
    for told, known in (
        ("t1.-.-.-.-.-.-", "t1.-.-.-.-.-.-"),
        ("-.f1.-.-.-.-.-", "t1.f1.-.-.-.-.-"),
        ("", "t1.f1.-.-.-.-.-"),
        ("t1.f1.n1.-.-.-.-", "t1.f1.n1.-.-.-.-"),
    ):
        assert isinstance(desk.claim(ID, fingerprint=told)[1], Duplicate)
        assert desk.read(first.id).fingerprint == known


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


def test_what_was_only_printed_is_in_the_way_of_what_is_only_printed(desk: Desk) -> None:
    first = desk.deliver(ID, shared=(GROUP,), to=("log",), words=True, is_trial=True)
    _, second = desk.claim(CANONICAL, shared=(GROUP,), to=("log",), is_trial=True)
    assert (second.stop.gate, second.stop.original) == (Gate.SUBJECT_GROUP, first.id)
    _, same_words = desk.claim(MESSAGE_ID, to=("log",), words=True, is_trial=True)
    assert same_words.stop.gate is Gate.CONTENT
    assert not desk.journal.look([GROUP])[0].is_marked
    _, real = desk.claim(UNDATED, shared=(GROUP,), to=("log",), words=True, fingerprint=TEXT)
    assert isinstance(real, Claimed)


def test_what_is_only_printed_takes_a_name_of_one_that_is_no_longer_kept(desk: Desk) -> None:
    """Its mark is over and so is its row: the name is nobody's, however long a reference lies about."""
    desk.deliver(ID, words=True)
    desk.pass_ms(8 * DAY_MS)
    printed = desk.deliver(MESSAGE_ID, words=True, is_trial=True)
    (found,) = desk.journal.look([words_at("crm")])
    assert [entry.id for entry in found.entries] == [printed.id]


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


@pytest.mark.parametrize("status", [DeliveryStatus.DELIVERED, DeliveryStatus.WAITING])
def test_a_settlement_whose_answer_was_lost_is_said_again_with_the_same_answer(
    desk: Desk, status: DeliveryStatus
) -> None:
    claim, verdict = desk.claim()
    assert desk.end(claim, verdict.entry, status)
    before = desk.read(verdict.entry.id)
    assert desk.end(claim, verdict.entry, status)
    assert desk.read(verdict.entry.id) == before


def test_a_payload_of_any_size_is_kept_as_it_is(desk: Desk) -> None:
    payload = bytes(range(256)) * 4096
    claim, verdict = desk.claim()
    waiting = replace(verdict.entry.deliveries[0], status=DeliveryStatus.WAITING, next_try_ms=1)
    assert desk.journal.settle(claim, verdict.entry, Settlement(Ending.DONE, "told", (waiting,), payload=payload))
    desk.pass_ms(40 * DAY_MS)
    begun = desk.begin(verdict.entry)
    assert begun and begun.payload == payload


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


@pytest.mark.parametrize("shared", [GROUP, replace(FILE_X, kept_ms=20 * DAY_MS)])
def test_a_mark_tells_the_original_for_as_long_as_it_lasts(desk: Desk, shared: Name) -> None:
    first = desk.deliver(ID, shared=(shared,))
    desk.pass_ms(15 * DAY_MS)
    assert desk.journal.read(first.id) is None
    _, verdict = desk.claim(CANONICAL, shared=(shared,))
    assert isinstance(verdict, Duplicate) and verdict.stop.original == first.id


def test_from_the_first_delivery_on_the_mark_decides_though_another_destination_still_waits(desk: Desk) -> None:
    claim, verdict = desk.claim(ID, to=("crm", "slack"), shared=(replace(GROUP, kept_ms=DAY_MS),))
    entry = desk.end_each(claim, verdict.entry, DeliveryStatus.DELIVERED, DeliveryStatus.WAITING)
    stopped = desk.suppress(CANONICAL, shared=(GROUP,))
    assert stopped.stop and stopped.stop.original == entry.id and not stopped.stop.follows
    desk.pass_ms(2 * DAY_MS)
    assert isinstance(desk.claim(MESSAGE_ID, shared=(GROUP,))[1], Claimed)


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


def test_destinations_are_those_that_something_waits_for(desk: Desk) -> None:
    assert desk.journal.destinations() == []
    desk.deliver(ID, to=("crm", "mail"))
    desk.store(CANONICAL, to=("slack", "crm"))
    assert desk.journal.destinations() == ["crm", "slack"]


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


def test_a_follower_that_goes_out_is_still_asked_about_its_words(desk: Desk) -> None:
    desk.deliver(MESSAGE_ID, words=True)
    first = desk.store(ID, shared=(GROUP,))
    follower = desk.suppress(CANONICAL, shared=(GROUP,), words=True)
    desk.send(first, DeliveryStatus.DEAD)
    released = desk.read(follower.id)
    assert (released.generation, released.deliveries[0].generation) == (1, 1)
    assert desk.begin(follower) is None
    assert desk.read(follower.id).deliveries[0].status is DeliveryStatus.SKIPPED


def test_one_whose_original_died_before_it_was_settled_is_not_skipped(desk: Desk) -> None:
    first = desk.store(ID, shared=(GROUP,))
    claim, verdict = desk.claim(CANONICAL, shared=(GROUP,))
    begun = desk.begin(first)
    assert begun and isinstance(verdict, Duplicate)
    desk.finish(begun, DeliveryStatus.DEAD)
    assert not desk.skip(claim, verdict)
    assert isinstance(desk.claim(CANONICAL, shared=(GROUP,))[1], Claimed)


def test_words_whose_window_is_over_stop_nobody_though_their_email_still_waits_elsewhere(desk: Desk) -> None:
    claim, verdict = desk.claim(ID, to=("crm", "slack"), words=True)
    ends = {"crm": DeliveryStatus.DELIVERED, "slack": DeliveryStatus.WAITING}
    ended = tuple(
        replace(each, status=ends[each.destination], next_try_ms=1 if each.destination == "slack" else None)
        for each in verdict.entry.deliveries
    )
    assert desk.journal.settle(claim, verdict.entry, Settlement(Ending.DONE, "queued", ended, payload=b"payload"))
    desk.pass_ms(3 * DAY_MS + 1)
    assert isinstance(desk.claim(CANONICAL, to=("crm",), words=True)[1], Claimed)
    assert isinstance(desk.claim(MESSAGE_ID, to=("slack",), words=True)[1], Duplicate), "there they still wait"


# Looking at names


def test_a_look_tells_the_mark_and_the_entries_of_each_name_and_changes_nothing(desk: Desk) -> None:
    delivered = desk.deliver(ID, shared=(GROUP,))
    claim, verdict = desk.claim(CANONICAL, MESSAGE_ID, shared=(FILE_X,))
    asked = [GROUP, FILE_X, MESSAGE_ID, FILE_Y, ID]
    for _ in range(2):
        found = desk.journal.look(asked)
        assert [each.name for each in found] == asked
        assert [each.is_marked for each in found] == [True, False, False, False, True]
        assert [[entry.id for entry in each.entries] for each in found] == [
            [delivered.id],
            [verdict.entry.id],
            [verdict.entry.id],
            [],
            [delivered.id],
        ]
    assert desk.end(claim, verdict.entry, DeliveryStatus.DELIVERED)
    assert desk.journal.look([FILE_X])[0].is_marked
    assert desk.journal.look([]) == []


def test_a_look_sees_both_of_two_texts_and_nothing_of_what_was_given_back(desk: Desk) -> None:
    first, second = desk.deliver(ID, fingerprint=TEXT), desk.deliver(ID, fingerprint=OTHER_TEXT)
    claim, verdict = desk.claim(MESSAGE_ID, shared=(GROUP,))
    desk.give_back(claim, verdict.entry, retries_left=2)
    both, post, group = desk.journal.look([ID, MESSAGE_ID, GROUP])
    assert {entry.id for entry in both.entries} == {first.id, second.id}
    assert [entry.retries_left for entry in post.entries] == [2]
    assert (group.is_marked, group.entries) == (False, ())


def test_a_mark_that_is_over_leaves_nothing_to_see(desk: Desk) -> None:
    desk.deliver(ID, words=True)
    assert desk.journal.look([words_at("crm")])[0].is_marked
    desk.pass_ms(3 * DAY_MS + 1)
    (found,) = desk.journal.look([words_at("crm")])
    assert (found.is_marked, found.entries) == (False, ())


def test_names_are_found_by_kind_scope_and_value_whatever_became_of_them(desk: Desk) -> None:
    desk.deliver(ID, shared=(GROUP, FILE_X), words=True)
    file_z = Name(Kind.MEDIA, "", "https://files.example/z", WEEK_MS)
    desk.store(UNDATED, shared=(Name(Kind.SUBJECT_GROUP, "2026-12", "lot:1"), file_z))
    desk.claim(CANONICAL, shared=(FILE_Y,))
    claim, verdict = desk.claim(MESSAGE_ID, to=())
    desk.give_back(claim, verdict.entry)
    desk.claim(LOCK, to=())

    def found(*pattern: Any) -> set[tuple[str, str]]:
        return {(name.scope, name.value) for name in desk.journal.names(Pattern(*pattern))}

    assert found(Kind.EMAIL_ID) == {("2026-11-16", "id"), ("2026-11-16", "canonical"), ("undated", "id")}
    assert found(Kind.EMAIL_ID, "undated") == {("undated", "id")}
    assert found(Kind.EMAIL_ID, None, "id") == {("2026-11-16", "id"), ("undated", "id")}
    assert found(Kind.SUBJECT_GROUP) == {("2026-11", "lot_456"), ("2026-12", "lot:1")}
    assert found(Kind.SUBJECT_GROUP, "2026-12", "lot:1") == {("2026-12", "lot:1")}
    assert found(Kind.SUBJECT_GROUP, "2026-12", "lot") == set()
    assert found(Kind.POST) == {("", MESSAGE_ID.value)}
    assert found(Kind.MEDIA) == {("", FILE_X.value), ("", FILE_Y.value), ("", file_z.value)}
    assert found(Kind.MEDIA, None, FILE_Y.value) == {("", FILE_Y.value)}
    assert found(Kind.CONTENT, "crm") == {("crm", "words")}
    assert found(Kind.LOCK) == {("crm", "item")}
    everything = {name.label for name in desk.journal.names(Pattern())}
    assert {ID.label, UNDATED.label, FILE_Y.label, GROUP.label, MESSAGE_ID.label} <= everything


def test_a_name_that_was_forgotten_or_is_over_is_found_no_more(desk: Desk) -> None:
    desk.deliver(ID, MESSAGE_ID, shared=(GROUP, FILE_X))
    desk.journal.forget([ID, GROUP])
    desk.pass_ms(9 * DAY_MS)
    assert list(desk.journal.names(Pattern())) == []


def test_there_may_be_more_names_than_fit_on_a_page(desk: Desk) -> None:
    files = tuple(Name(Kind.MEDIA, "", f"https://files.example/{number}", WEEK_MS) for number in range(1201))
    desk.deliver(ID, shared=files)
    assert set(desk.journal.names(Pattern(Kind.MEDIA))) == set(files)


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


def test_what_no_destination_has_is_joined_by_a_resend_with_its_history(desk: Desk) -> None:
    dead = desk.kill(ID, MESSAGE_ID)
    assert desk.journal.forget([ID, MESSAGE_ID]).names == 2
    free = desk.read(dead.id)
    assert (free.state, free.own, free.generation) == (State.FREE, (ID, MESSAGE_ID), 1)
    assert desk.journal.payload(dead.id) == b"payload"
    _, verdict = desk.claim(ID)
    assert isinstance(verdict, Claimed) and verdict.entry.id == dead.id
    assert verdict.entry.deliveries[0].webhook_id == dead.deliveries[0].webhook_id


def test_what_was_skipped_and_forgotten_is_asked_anew(desk: Desk) -> None:
    desk.deliver(ID, shared=(GROUP,))
    skipped = desk.suppress(CANONICAL, shared=(GROUP,))
    assert desk.journal.release(skipped.id) is Released.RELEASED
    desk.send(skipped, DeliveryStatus.DEAD)
    desk.journal.forget([CANONICAL])
    free = desk.read(skipped.id)
    assert (free.state, free.stop, free.released_ms) == (State.FREE, None, None)
    assert desk.suppress(CANONICAL, shared=(GROUP,)).id == skipped.id, "its group is still taken"
    desk.journal.forget([CANONICAL, GROUP])
    _, verdict = desk.claim(CANONICAL, shared=(GROUP,))
    assert isinstance(verdict, Claimed) and verdict.entry.id == skipped.id


def test_a_forgotten_mark_is_gone_also_where_the_entry_stays(desk: Desk) -> None:
    desk.kill(ID)
    desk.journal.forget([ID])
    desk.pass_ms(31 * DAY_MS)
    assert isinstance(desk.claim(ID)[1], Claimed)


# Sent again


def test_a_dead_letter_is_replayed_as_a_new_generation(desk: Desk) -> None:
    dead = desk.kill(ID)
    assert desk.journal.replay(dead.id, "crm") is Replayed.REPLAYED
    entry = desk.read(dead.id)
    delivery = entry.deliveries[0]
    assert (delivery.status, delivery.generation, delivery.tries, delivery.begins) == (DeliveryStatus.WAITING, 1, 0, 0)
    assert (delivery.reason, delivery.webhook_id) == ("replayed", dead.deliveries[0].webhook_id)
    assert (entry.state, entry.generation) == (State.DONE, 1)
    assert desk.journal.due({"crm": 10}, 1000) == [(dead.id, "crm")]
    begun = desk.begin(dead)
    assert begun and begun.payload == b"payload"


def test_a_replay_keeps_the_attempts_and_forgets_what_came_of_them(desk: Desk) -> None:
    claim, verdict = desk.claim(ID, words=True)
    known = replace(
        verdict.entry.deliveries[0],
        status=DeliveryStatus.DEAD,
        tries=3,
        begins=2,
        delivered_ms=5,
        owner="worker",
        lease_until_ms=1,
        receiver_id="r1",
        missing_ms=7,
        attempts=(Attempt(1, 2, 200),),
    )
    settlement = Settlement(Ending.DONE, "told", (known,), payload=b"payload")
    assert desk.journal.settle(claim, verdict.entry, settlement)
    assert desk.read(verdict.entry.id).deliveries == (known,)
    assert desk.journal.replay(verdict.entry.id, "crm", webhook_id="msg_new") is Replayed.REPLAYED
    again = desk.read(verdict.entry.id).deliveries[0]
    assert again == Delivery(
        destination="crm",
        webhook_id="msg_new",
        status=DeliveryStatus.WAITING,
        generation=1,
        next_try_ms=again.next_try_ms,
        reason="replayed",
        attempts=known.attempts,
    )


def test_replay_is_refused_in_this_order(desk: Desk) -> None:
    assert desk.journal.replay("nobody", "crm") is Replayed.UNKNOWN
    delivered = desk.deliver(ID)
    assert desk.journal.replay(delivered.id, "elsewhere", force=True) is Replayed.UNKNOWN
    assert desk.journal.replay(delivered.id, "crm") is Replayed.ALREADY_DELIVERED
    assert desk.journal.replay(delivered.id, "crm", force=True) is Replayed.NO_PAYLOAD
    _, verdict = desk.claim(CANONICAL)
    assert desk.journal.replay(verdict.entry.id, "crm") is Replayed.UNDER_WAY, "not: no payload"
    stored = desk.store(MESSAGE_ID)
    desk.begin(stored)
    assert desk.journal.replay(stored.id, "crm") is Replayed.UNDER_WAY
    desk.pass_ms(LEASE_MS)
    assert desk.journal.replay(stored.id, "crm") is Replayed.REPLAYED


def test_one_destination_is_replayed_while_another_is_at_work(desk: Desk) -> None:
    claim, verdict = desk.claim(ID, to=("crm", "slack"))
    entry = desk.end_each(claim, verdict.entry, DeliveryStatus.DEAD, DeliveryStatus.WAITING)
    desk.begin(entry, "slack")
    assert desk.journal.replay(entry.id, "crm") is Replayed.REPLAYED
    assert desk.read(entry.id).deliveries[1].status is DeliveryStatus.DELIVERING


def test_what_a_resend_left_open_is_delivered_with_a_replay(desk: Desk) -> None:
    dead = desk.kill(ID, to=("crm", "slack"))
    desk.journal.forget([ID])
    assert isinstance(desk.claim(ID, to=("crm", "slack"))[1], Claimed)
    desk.pass_ms(LEASE_MS)
    assert desk.journal.replay(dead.id, "crm") is Replayed.REPLAYED
    assert set(desk.journal.due({"crm": 1, "slack": 1}, 1000)) == {(dead.id, "crm"), (dead.id, "slack")}


def test_a_worker_of_an_earlier_generation_decides_nothing_but_its_success_counts(desk: Desk) -> None:
    entry = desk.store(ID)
    slow = desk.begin(entry, owner="slow")
    assert slow
    desk.pass_ms(LEASE_MS)
    assert desk.journal.replay(entry.id, "crm", force=True) is Replayed.REPLAYED
    assert desk.finish(slow, DeliveryStatus.DEAD, owner="slow") is None
    after = desk.finish(slow, DeliveryStatus.DELIVERED, owner="slow")
    assert after and (after.deliveries[0].status, after.deliveries[0].generation) == (DeliveryStatus.DELIVERED, 1)


def test_what_a_stale_owner_delivered_ends_the_replay_too(desk: Desk) -> None:
    stale, first = desk.claim(ID, shared=(GROUP,))
    desk.pass_ms(LEASE_MS)
    entry = desk.kill(ID, shared=(GROUP,))
    assert desk.journal.replay(entry.id, "crm") is Replayed.REPLAYED
    follower = desk.suppress(CANONICAL, shared=(GROUP,))
    assert not desk.end(stale, first.entry, DeliveryStatus.DELIVERED)
    delivery = desk.read(entry.id).deliveries[0]
    assert (delivery.status, delivery.generation) == (DeliveryStatus.DELIVERED, 1)
    stop = desk.read(follower.id).stop
    assert stop and not stop.follows and desk.journal.payload(entry.id) is None


def test_a_replay_goes_past_its_content_gate(desk: Desk) -> None:
    desk.deliver(ID, words=True)
    skipped = desk.suppress(CANONICAL, words=True)
    assert desk.journal.replay(skipped.id, "crm") is Replayed.ALREADY_DELIVERED
    assert desk.journal.replay(skipped.id, "crm", force=True) is Replayed.REPLAYED
    desk.send(skipped, DeliveryStatus.DELIVERED)


def test_a_replayed_item_takes_the_shared_names_that_nobody_else_has(desk: Desk) -> None:
    dead = desk.kill(ID, shared=(GROUP, FILE_X))
    other = desk.store(CANONICAL, shared=(FILE_X,))
    assert desk.journal.replay(dead.id, "crm") is Replayed.REPLAYED
    assert desk.read(dead.id).shared == (GROUP,)
    desk.send(dead, DeliveryStatus.DELIVERED)
    stopped = desk.suppress(MESSAGE_ID, shared=(GROUP,))
    assert stopped.stop and stopped.stop.original == dead.id
    stopped = desk.suppress(UNDATED, shared=(FILE_X,))
    assert stopped.stop and stopped.stop.original == other.id


def test_a_shared_name_that_is_marked_stays_so_whatever_becomes_of_the_replay(desk: Desk) -> None:
    claim, verdict = desk.claim(ID, to=("crm", "slack"), shared=(GROUP,))
    entry = desk.end_each(claim, verdict.entry, DeliveryStatus.DELIVERED, DeliveryStatus.DEAD)
    assert desk.journal.replay(entry.id, "crm", force=True) is Replayed.REPLAYED
    desk.send(entry, DeliveryStatus.DEAD)
    stopped = desk.suppress(CANONICAL, shared=(GROUP,))
    assert stopped.stop and stopped.stop.original == entry.id and not stopped.stop.follows


def test_followers_of_what_was_delivered_stay_skipped_when_its_replay_dies(desk: Desk) -> None:
    first = desk.store(ID, to=("crm", "slack"), shared=(GROUP,))
    follower = desk.suppress(CANONICAL, shared=(GROUP,))
    desk.send(first, DeliveryStatus.DELIVERED)
    desk.send(first, DeliveryStatus.DEAD, "slack")
    stop = desk.read(follower.id).stop
    assert stop and not stop.follows
    assert desk.journal.replay(first.id, "crm", force=True) is Replayed.REPLAYED
    desk.send(first, DeliveryStatus.DEAD)
    assert desk.journal.due({"crm": 10}, 1000) == []


# Released


def test_what_was_skipped_is_released_once_and_takes_no_shared_name(desk: Desk) -> None:
    first = desk.deliver(ID, shared=(GROUP,))
    skipped = desk.suppress(CANONICAL, shared=(GROUP,))
    assert desk.journal.release(skipped.id) is Released.RELEASED
    assert desk.journal.release(skipped.id) is Released.ALREADY_RELEASED
    entry = desk.read(skipped.id)
    delivery = entry.deliveries[0]
    assert (delivery.status, delivery.reason, delivery.generation) == (DeliveryStatus.WAITING, "released", 1)
    assert (entry.shared, entry.generation, entry.released_ms is not None) == ((), 1, True)
    assert desk.journal.due({"crm": 10}, 1000) == [(skipped.id, "crm")]
    desk.send(skipped, DeliveryStatus.DEAD)
    stopped = desk.suppress(MESSAGE_ID, shared=(GROUP,))
    assert stopped.stop and stopped.stop.original == first.id
    assert desk.journal.release(skipped.id) is Released.ALREADY_RELEASED


def test_a_release_goes_past_the_words_that_stopped_it(desk: Desk) -> None:
    desk.deliver(ID, words=True)
    skipped = desk.suppress(CANONICAL, words=True)
    assert desk.journal.release(skipped.id) is Released.RELEASED
    assert desk.read(skipped.id).deliveries[0].content is None
    desk.send(skipped, DeliveryStatus.DELIVERED)


def test_of_an_item_skipped_at_some_destinations_those_are_released(desk: Desk) -> None:
    desk.deliver(ID, to=("crm",), words=True)
    claim, verdict = desk.claim(CANONICAL, to=("crm", "slack"), words=True, shared=(GROUP,))
    entry = desk.end_each(claim, verdict.entry, DeliveryStatus.SKIPPED, DeliveryStatus.DEAD)
    other = desk.deliver(MESSAGE_ID, shared=(GROUP,))
    assert desk.journal.release(entry.id) is Released.RELEASED
    statuses = [each.status for each in desk.read(entry.id).deliveries]
    assert statuses == [DeliveryStatus.WAITING, DeliveryStatus.DEAD]
    desk.send(entry, DeliveryStatus.DELIVERED)
    stopped = desk.suppress(UNDATED, shared=(GROUP,))
    assert stopped.stop and stopped.stop.original == other.id, "a release takes no shared name"


def test_a_released_follower_follows_nobody(desk: Desk) -> None:
    first = desk.store(ID, shared=(GROUP,))
    oldest = desk.suppress(CANONICAL, shared=(GROUP,))
    desk.pass_ms(1000)
    other = desk.suppress(MESSAGE_ID, shared=(GROUP,))
    assert desk.journal.release(oldest.id) is Released.RELEASED
    stop = desk.read(oldest.id).stop
    assert stop and not stop.follows
    desk.send(oldest, DeliveryStatus.DELIVERED)
    desk.send(first, DeliveryStatus.DEAD)
    assert desk.journal.due({"crm": 10}, 1000) == [(other.id, "crm")], "the next one goes in its place"


def test_a_follower_that_was_replayed_by_force_follows_nobody(desk: Desk) -> None:
    first = desk.store(ID, shared=(GROUP,))
    follower = desk.suppress(CANONICAL, shared=(GROUP,))
    assert desk.journal.replay(follower.id, "crm", force=True) is Replayed.REPLAYED
    assert desk.read(follower.id).released_ms is not None
    desk.send(follower, DeliveryStatus.DELIVERED)
    desk.send(first, DeliveryStatus.DEAD)
    assert desk.read(follower.id).generation == 1


def test_release_says_why_not(desk: Desk) -> None:
    assert desk.journal.release("nobody") is Released.UNKNOWN
    assert desk.journal.release(desk.deliver(ID, shared=(GROUP,)).id) is Released.NOT_SUPPRESSED
    assert desk.journal.release(desk.kill(CANONICAL).id) is Released.NOT_SUPPRESSED
    claim, verdict = desk.claim(MESSAGE_ID, shared=(GROUP,))
    assert isinstance(verdict, Duplicate) and verdict.entry
    assert desk.journal.release(verdict.entry.id) is Released.NOT_SUPPRESSED, "it is under way"
    assert desk.journal.settle(claim, verdict.entry, Settlement(Ending.DONE, "skipped"))
    assert desk.journal.release(verdict.entry.id) is Released.NO_PAYLOAD


def test_what_was_delivered_as_another_entry_is_released_only_by_force(desk: Desk) -> None:
    slow, verdict = desk.claim(ID)
    desk.pass_ms(WEEK_MS + DAY_MS)
    desk.deliver(CANONICAL, shared=(GROUP,))
    skipped = desk.suppress(ID, shared=(GROUP,))
    assert desk.end(slow, verdict.entry, DeliveryStatus.DELIVERED), "its entry was gone, and is there again"
    assert desk.journal.release(skipped.id) is Released.ALREADY_DELIVERED
    assert desk.journal.release(skipped.id, force=True) is Released.RELEASED


def test_an_item_of_another_text_under_its_names_does_not_keep_it_from_release(desk: Desk) -> None:
    desk.deliver(ID, shared=(GROUP,), fingerprint=TEXT)
    skipped = desk.suppress(ID, shared=(GROUP,), fingerprint=OTHER_TEXT)
    assert desk.journal.release(skipped.id) is Released.RELEASED


# Reopened


def test_a_reopened_destination_gets_the_resend_and_the_others_do_not(desk: Desk) -> None:
    first = desk.deliver(ID, to=("crm", "slack"), shared=(GROUP,), words=True)
    assert desk.journal.reopen(first.id, "crm")
    claim, verdict = desk.claim(ID, to=("crm", "slack"), shared=(GROUP,), words=True)
    assert isinstance(verdict, Claimed) and verdict.entry.id == first.id and not verdict.is_first
    assert [each.generation for each in verdict.entry.deliveries] == [1, 0]
    statuses = [each.status for each in verdict.entry.deliveries]
    assert statuses == [DeliveryStatus.DELIVERING, DeliveryStatus.DELIVERED]
    assert not desk.journal.reopen(first.id, "slack"), "a re-send is under way"
    entry = desk.journal.before_sending(verdict)
    assert entry and entry.deliveries[0].status is DeliveryStatus.DELIVERING, "an older copy does not count"
    assert desk.end(claim, verdict.entry, DeliveryStatus.DELIVERED)
    assert isinstance(desk.claim(ID)[1], Duplicate)


def test_a_resend_after_reopening_may_fail_and_come_again(desk: Desk) -> None:
    first = desk.deliver(ID, shared=(GROUP,))
    assert desk.journal.reopen(first.id, "crm")
    claim, verdict = desk.claim(ID, shared=(GROUP,))
    assert isinstance(verdict, Claimed)
    desk.give_back(claim, verdict.entry)
    assert isinstance(desk.claim(ID, shared=(GROUP,))[1], Claimed), "its own mark never stops it"
    stopped = desk.suppress(CANONICAL, shared=(GROUP,))
    assert stopped.stop and stopped.stop.original == first.id, "the group was brought, and others stay out"


def test_a_resend_that_nobody_ends_takes_no_mark_with_it(desk: Desk) -> None:
    first = desk.deliver(ID, shared=(GROUP,))
    assert desk.journal.reopen(first.id, "crm")
    assert isinstance(desk.claim(ID, shared=(GROUP,))[1], Claimed)
    desk.pass_ms(15 * DAY_MS)
    stopped = desk.suppress(CANONICAL, shared=(GROUP,))
    assert stopped.stop and stopped.stop.original == first.id


def test_an_owner_that_lost_the_entry_leaves_no_payload_behind(desk: Desk) -> None:
    claim, verdict = desk.claim(ID, to=("crm", "slack"))
    assert isinstance(verdict, Claimed) and desk.end(claim, verdict.entry, DeliveryStatus.DELIVERED)
    assert desk.journal.reopen(verdict.entry.id, "crm")
    waiting = replace(verdict.entry.deliveries[0], status=DeliveryStatus.WAITING, next_try_ms=1)
    late = Settlement(Ending.DONE, "queued", (waiting,), payload=b"payload")
    assert not desk.journal.settle(claim, verdict.entry, late)
    assert desk.journal.payload(verdict.entry.id) is None


def test_each_destination_that_is_reopened_is_a_generation_of_its_own(desk: Desk) -> None:
    first = desk.deliver(ID, to=("crm", "slack"))
    assert desk.journal.reopen(first.id, "crm") and desk.journal.reopen(first.id, "slack")
    assert not desk.journal.reopen(first.id, "slack"), "there is nothing left to drop"
    entry = desk.read(first.id)
    assert (entry.state, entry.deliveries, entry.generation) == (State.FREE, (), 2)


def test_reopening_frees_the_words_at_that_destination_alone(desk: Desk) -> None:
    first = desk.deliver(ID, to=("crm", "slack"), words=True)
    assert desk.journal.reopen(first.id, "crm")
    _, verdict = desk.claim(CANONICAL, to=("crm", "slack"), words=True)
    assert [each.status for each in verdict.entry.deliveries] == [DeliveryStatus.DELIVERING, DeliveryStatus.SKIPPED]


def test_the_words_of_another_item_stay_when_one_skipped_by_them_is_reopened(desk: Desk) -> None:
    desk.deliver(ID, words=True)
    skipped = desk.suppress(CANONICAL, words=True)
    assert desk.journal.reopen(skipped.id, "crm")
    desk.suppress(MESSAGE_ID, words=True)


def test_what_is_still_to_be_delivered_is_not_reopened(desk: Desk) -> None:
    assert not desk.journal.reopen("nobody", "crm")
    claim, verdict = desk.claim(ID, to=("crm", "slack"))
    assert not desk.journal.reopen(verdict.entry.id, "crm"), "under way"
    entry = desk.end_each(claim, verdict.entry, DeliveryStatus.DELIVERED, DeliveryStatus.WAITING)
    assert not desk.journal.reopen(entry.id, "slack")
    assert not desk.journal.reopen(entry.id, "crm"), "the other would never be delivered"
    assert not desk.journal.reopen(entry.id, "elsewhere")
    assert desk.read(entry.id) == entry


# Payloads


def test_a_payload_goes_with_the_last_delivery(desk: Desk) -> None:
    entry = desk.store(ID, to=("crm", "slack"))
    desk.send(entry, DeliveryStatus.DELIVERED)
    assert desk.journal.payload(entry.id) == b"payload"
    desk.send(entry, DeliveryStatus.DELIVERED, "slack")
    assert desk.journal.payload(entry.id) is None


def test_what_goes_back_to_its_provider_leaves_no_payload(desk: Desk) -> None:
    claim, verdict = desk.claim(ID)
    assert desk.journal.settle(claim, verdict.entry, Settlement(Ending.FREE, payload=b"payload"))
    assert desk.journal.payload(verdict.entry.id) is None


def test_what_is_delivered_at_once_leaves_no_payload(desk: Desk) -> None:
    claim, verdict = desk.claim(ID)
    entry = desk.end_each(claim, verdict.entry, DeliveryStatus.DELIVERED)
    assert desk.journal.payload(entry.id) is None


def test_the_payload_of_a_dead_letter_lasts_as_long_as_its_entry(desk: Desk) -> None:
    claim, verdict = desk.claim(ID, to=("crm", "slack"))
    entry = desk.end_each(claim, verdict.entry, DeliveryStatus.DELIVERED, DeliveryStatus.DEAD)
    desk.pass_ms(29 * DAY_MS)
    assert desk.journal.payload(entry.id) == b"payload"
    assert desk.journal.replay(entry.id, "slack") is Replayed.REPLAYED
    desk.pass_ms(100 * DAY_MS)
    assert desk.journal.payload(entry.id) == b"payload", "it waits"
    desk.send(entry, DeliveryStatus.DEAD, "slack")
    assert desk.journal.payload(entry.id) == b"payload"


def test_a_dead_letter_that_dies_again_is_kept_anew(desk: Desk) -> None:
    entry = desk.kill(ID)
    desk.pass_ms(29 * DAY_MS)
    assert desk.journal.replay(entry.id, "crm") is Replayed.REPLAYED
    desk.send(entry, DeliveryStatus.DEAD)
    desk.pass_ms(29 * DAY_MS)
    assert desk.journal.payload(entry.id) == b"payload" and desk.journal.read(entry.id)


def test_the_payload_of_a_dead_letter_goes_when_a_resend_is_delivered(desk: Desk) -> None:
    dead = desk.kill(ID)
    desk.journal.forget([ID])
    assert desk.deliver(ID).id == dead.id
    assert desk.journal.payload(dead.id) is None


@pytest.fixture(params=JOURNALS)
def keeping(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Desk]:
    """Every journal in turn, set to keep the payloads of what was delivered for a day."""
    needs_redis = request.param in ("redis", "failover")
    server: RedisServer | None = request.getfixturevalue("redis_server") if needs_redis else None
    with open_journal(request.param, tmp_path, server, Retention(delivered_payload_ms=DAY_MS)) as bench:
        yield Desk(bench)


def test_a_delivered_payload_is_kept_as_long_as_retention_says(keeping: Desk) -> None:
    claim, verdict = keeping.claim(CANONICAL)
    at_once = keeping.end_each(claim, verdict.entry, DeliveryStatus.DELIVERED)
    stored = keeping.store(ID)
    keeping.send(stored, DeliveryStatus.DELIVERED)
    for entry in (at_once, stored):
        assert keeping.journal.payload(entry.id) == b"payload"
    keeping.pass_ms(DAY_MS // 2)
    assert keeping.journal.replay(stored.id, "crm", force=True) is Replayed.REPLAYED
    keeping.pass_ms(DAY_MS)
    assert keeping.journal.payload(stored.id) == b"payload", "it waits"
    assert keeping.journal.payload(at_once.id) is None


# For scripts


def test_a_lock_is_held_by_one_and_blocks_nobody_once_it_is_over(desk: Desk) -> None:
    claim, verdict = desk.claim(LOCK, to=())
    _, second = desk.claim(LOCK, to=())
    assert isinstance(second, InFlight) and second.gate is Gate.LOCK
    assert desk.journal.settle(claim, verdict.entry, Settlement(Ending.DONE))
    assert isinstance(desk.claim(LOCK, to=())[1], Claimed)


def test_a_lock_that_was_forgotten_is_not_taken_from_its_present_holder(desk: Desk) -> None:
    claim, verdict = desk.claim(LOCK)
    desk.pass_ms(8 * DAY_MS)
    _, heir = desk.claim(LOCK)
    assert isinstance(heir, Claimed)
    desk.end(claim, verdict.entry, DeliveryStatus.DELIVERED)
    assert isinstance(desk.claim(LOCK)[1], InFlight)


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
