"""What stores/base.py promises, over every store."""

from __future__ import annotations

from dataclasses import replace

import pytest

from deduplication.claims import WEEK_MS, Claim, Claimed, Duplicate, Gate, InFlight, Kind, Name, Verdict
from deduplication.stores.base import Pattern, State
from tests.support.stores import Bench

LEASE_MS = 60_000
EMAIL = Name(Kind.EMAIL_ID, "2026-11-16", "e1")
CANONICAL = Name(Kind.EMAIL_ID, "2026-11-16", "c1")
POST = Name(Kind.POST, "", "<m1@example.org>", WEEK_MS)
GROUP = Name(Kind.SUBJECT_GROUP, "2026-11", "lot_1", WEEK_MS)
MEDIA = Name(Kind.MEDIA, "", "https://files.example/a", WEEK_MS)


def claim(owner: str, *names: Name, item: str = "e1", fingerprint: str = "f1") -> Claim:
    return Claim(item, names or (EMAIL, POST, GROUP), fingerprint, owner, LEASE_MS)


def claimed(verdict: Verdict) -> Claimed:
    assert isinstance(verdict, Claimed)
    return verdict


def states(bench: Bench, name: Name) -> set[tuple[str, State]]:
    return {(r.fingerprint, r.state) for r in bench.store.find(Pattern(name.kind, name.scope, name.value))}


def test_a_new_item_is_claimed(bench: Bench) -> None:
    assert claimed(bench.store.claim(claim("a"))).retries_left is None
    assert states(bench, EMAIL) == {("f1", State.PENDING)}


def test_a_second_owner_waits_for_the_lease(bench: Bench) -> None:
    bench.store.claim(claim("a"))
    bench.advance(10_000)
    verdict = bench.another.claim(claim("b"))
    assert isinstance(verdict, InFlight)
    assert (verdict.gate, verdict.name) == (Gate.IDENTITY, EMAIL.label)
    assert 45_000 < verdict.retry_after_ms <= 50_000


def test_a_settled_item_is_a_duplicate_that_names_the_original(bench: Bench) -> None:
    bench.store.claim(claim("a"))
    assert bench.store.commit(claim("a"))
    verdict = bench.another.claim(claim("b", CANONICAL, POST, item="other notation"))
    assert isinstance(verdict, Duplicate)
    assert (verdict.gate, verdict.name, verdict.original) == (Gate.IDENTITY, POST.label, "e1")
    assert verdict.first_seen_ms


def test_the_same_owner_gets_the_same_answer_at_every_stage(bench: Bench) -> None:
    first = bench.store.claim(claim("a"))
    assert bench.store.claim(claim("a")) == first
    bench.store.commit(claim("a"))
    assert bench.store.claim(claim("a")) == first

    skipped = claim("b", Name(Kind.EMAIL_ID, "2026-11-16", "e2"), GROUP, item="e2", fingerprint="f2")
    verdict = bench.store.claim(skipped)
    assert isinstance(verdict, Duplicate)
    assert verdict.gate is Gate.SUBJECT_GROUP
    assert bench.store.claim(skipped) == verdict


def test_all_names_are_reserved_or_none(bench: Bench) -> None:
    bench.store.claim(claim("a", GROUP, item="other"))
    assert isinstance(bench.store.claim(claim("b", EMAIL, POST, GROUP, MEDIA)), InFlight)
    for name in (EMAIL, POST, MEDIA):
        assert states(bench, name) == set()


def test_release_gives_every_name_back_with_the_retries_left(bench: Bench) -> None:
    bench.store.claim(claim("a"))
    assert bench.store.release(claim("a"), retries_left=4)
    assert claimed(bench.another.claim(claim("b"))).retries_left == 4


def test_retries_left_never_rise(bench: Bench) -> None:
    for owner, given in (("a", 2), ("b", 7)):
        bench.store.claim(claim(owner))
        bench.store.release(claim(owner), retries_left=given)
    assert claimed(bench.store.claim(claim("c"))).retries_left == 2


def test_with_no_retries_left_the_item_is_settled_and_its_group_is_free(bench: Bench) -> None:
    bench.store.claim(claim("a"))
    bench.store.release(claim("a"), retries_left=0)
    assert isinstance(bench.store.claim(claim("b")), Duplicate)
    other = claim("c", Name(Kind.EMAIL_ID, "2026-11-16", "e2"), GROUP, item="e2", fingerprint="f2")
    assert isinstance(bench.store.claim(other), Claimed)


@pytest.mark.parametrize("step", ["commit", "release", "renew"])
def test_a_stale_owner_changes_nothing(bench: Bench, step: str) -> None:
    bench.store.claim(claim("stale"))
    bench.advance(LEASE_MS + 1)
    claimed(bench.another.claim(claim("heir")))
    before = list(bench.store.find(Pattern()))
    arguments = {"retries_left": 0} if step == "release" else {}
    assert getattr(bench.store, step)(claim("stale"), **arguments) is False
    assert list(bench.store.find(Pattern())) == before
    assert bench.another.commit(claim("heir")) is True


def test_a_stale_owner_still_settles_the_names_nobody_took(bench: Bench) -> None:
    bench.store.claim(claim("slow"))
    bench.advance(LEASE_MS + 1)
    bench.another.claim(claim("other", GROUP, item="e2"))
    assert bench.store.commit(claim("slow")) is False
    assert states(bench, EMAIL) == {("f1", State.DONE)}
    assert states(bench, GROUP) == {("", State.PENDING)}


def test_commit_after_the_names_were_forgotten_still_marks_what_was_delivered(bench: Bench) -> None:
    bench.store.claim(claim("a"))
    bench.another.forget([EMAIL, POST, GROUP])
    assert bench.store.commit(claim("a"))
    assert isinstance(bench.another.claim(claim("b")), Duplicate)


def test_commit_twice_is_commit_once(bench: Bench) -> None:
    bench.store.claim(claim("a"))
    assert bench.store.commit(claim("a"))
    before = list(bench.store.find(Pattern()))
    assert bench.store.commit(claim("a"))
    assert list(bench.store.find(Pattern())) == before


def test_a_settled_claim_cannot_be_released(bench: Bench) -> None:
    bench.store.claim(claim("a"))
    bench.store.commit(claim("a"))
    assert bench.store.release(claim("a"), retries_left=3) is False
    assert isinstance(bench.store.claim(claim("b")), Duplicate)


def test_renew_starts_the_lease_anew(bench: Bench) -> None:
    bench.store.claim(claim("a"))
    bench.advance(LEASE_MS - 10_000)
    assert bench.store.renew(claim("a"))
    bench.advance(LEASE_MS - 10_000)
    assert isinstance(bench.another.claim(claim("b")), InFlight)


def test_the_same_name_with_another_fingerprint_is_another_item(bench: Bench) -> None:
    for fingerprint in ("f1", "f2"):
        mine = claim(f"first {fingerprint}", EMAIL, POST, fingerprint=fingerprint)
        assert isinstance(bench.store.claim(mine), Claimed)
        assert bench.store.commit(mine)
    for fingerprint in ("f1", "f2"):
        again = claim(f"again {fingerprint}", EMAIL, POST, fingerprint=fingerprint)
        assert isinstance(bench.store.claim(again), Duplicate)


def test_both_items_of_one_name_may_be_in_flight_at_once(bench: Bench) -> None:
    one, two = claim("a", EMAIL, POST, fingerprint="f1"), claim("b", EMAIL, POST, fingerprint="f2")
    assert isinstance(bench.store.claim(one), Claimed)
    assert isinstance(bench.store.claim(two), Claimed)
    assert bench.store.commit(one)
    assert bench.store.release(two, retries_left=3)
    assert isinstance(bench.store.claim(claim("c", EMAIL, POST, fingerprint="f1")), Duplicate)
    assert isinstance(bench.store.claim(claim("d", EMAIL, POST, fingerprint="f2")), Claimed)


@pytest.mark.parametrize(("first", "second"), [("f1", ""), ("", "f1"), ("", "")])
def test_an_unknown_fingerprint_matches_any(bench: Bench, first: str, second: str) -> None:
    one = claim("a", EMAIL, fingerprint=first)
    bench.store.claim(one)
    assert isinstance(bench.store.claim(claim("b", EMAIL, fingerprint=second)), InFlight)
    bench.store.commit(one)
    assert isinstance(bench.store.claim(claim("b", EMAIL, fingerprint=second)), Duplicate)


SAME = [
    ("t.c.n.-.l.-.-", "t.c.n.-.l.-.-"),
    ("t.c.n.-.l.-.-", "t.-.n.s.l.-.-"),  # one door hands over the files, the other tells of them
    ("t.c.n.-.l.-.-", "t.c.other.-.l.-"),  # a file without a name has a different one at every door
    ("t.c.n.-.l.-.-", "t.c.-.-.-.-.-"),  # a text alone has no links to compare
    ("t.c.n.-.l.-.-", "t"),  # as it was written before there were parts
    ("t.c.n.-.l.-.-", "-.-.-.-.-.-.-"),
    ("-.-.n.s.-.-.-", "t.c.n.-.l.-.-"),
]
DIFFERENT = [
    ("t.c.n.-.l.-.-", "other.c.n.-.l.-"),
    ("t.c.n.-.l.-.-", "t.other.n.-.l.-"),
    ("t.c.n.-.l.-.-", "t.-.other.s.l.-"),
    ("t.c.n.-.l.-.-", "t.c.n.-.other.-"),
    ("t.-.n.s.l.-.-", "t.-.n.other.l.-"),
    ("t.0.0.-.l.-.-", "t.c.n.-.l.-.-"),
    ("t.0.0.-.l.-.-", "t.-.n.s.l.-.-"),
    ("0.0.0.-.0.-.-", "t.0.0.-.-.-.-"),
    ("t.c.n.-.l.-.-", "other"),
]
UNDATED = Name(Kind.EMAIL_ID, "undated", "u1")


@pytest.mark.parametrize(("first", "second"), SAME)
def test_what_only_one_side_knows_tells_no_items_apart(bench: Bench, first: str, second: str) -> None:
    one, two = claim("a", EMAIL, POST, fingerprint=first), claim("b", EMAIL, POST, fingerprint=second)
    bench.store.claim(one)
    assert isinstance(bench.another.claim(two), InFlight)
    bench.store.commit(one)
    assert isinstance(bench.another.claim(two), Duplicate)
    assert isinstance(bench.store.claim(one), Claimed), "same owner, same answer"


@pytest.mark.parametrize(("first", "second"), DIFFERENT)
def test_a_part_that_both_know_and_that_differs_makes_another_item(bench: Bench, first: str, second: str) -> None:
    for owner, fingerprint in (("a", first), ("b", second)):
        mine = claim(owner, EMAIL, POST, fingerprint=fingerprint)
        assert isinstance(bench.store.claim(mine), Claimed)
        assert bench.store.commit(mine)
    for owner, fingerprint in (("c", first), ("d", second)):
        assert isinstance(bench.another.claim(claim(owner, EMAIL, POST, fingerprint=fingerprint)), Duplicate)


def test_a_claim_may_meet_several_records_and_waits_for_the_one_it_could_be(bench: Bench) -> None:
    """One that says less than two different items could be either of them: it is neither as long as one is open."""
    one, two = (claim(owner, EMAIL, fingerprint=f"t.{owner}.n.-.l.-") for owner in "ab")
    bench.store.claim(one)
    bench.store.claim(two)
    vague = claim("c", EMAIL, fingerprint="t.-.n.s.l.-.-")
    assert isinstance(bench.another.claim(vague), InFlight)
    bench.store.release(one, retries_left=None)
    assert isinstance(bench.another.claim(vague), InFlight)
    bench.store.commit(two)
    assert isinstance(bench.another.claim(vague), Duplicate)
    assert isinstance(bench.another.claim(replace(one, owner="d")), Claimed)


@pytest.mark.parametrize("fingerprint", ["", "-.0.0.-.-.-.-", "-.-.n.s.-.i.-"])
def test_an_undated_id_stops_nothing_that_does_not_say_what_its_text_is(bench: Bench, fingerprint: str) -> None:
    for owner in "abc":
        mine = claim(owner, UNDATED, fingerprint=fingerprint)
        assert isinstance(bench.store.claim(mine), Claimed)
        bench.store.claim(claim(f"beside {owner}", UNDATED, fingerprint=fingerprint))
        bench.store.commit(mine)
    bench.store.release(claim("beside c", UNDATED, fingerprint=fingerprint), retries_left=0)
    assert claimed(bench.store.claim(claim("d", UNDATED, fingerprint=fingerprint))).retries_left is None


@pytest.mark.parametrize("fingerprint", ["t.c.n.-.l.0.-", "t.-.-.-.-.i.-", "0.0.0.-.0.0.-"])
def test_an_undated_id_that_says_the_same_in_all_is_the_same_item(bench: Bench, fingerprint: str) -> None:
    first, second = (claim(owner, UNDATED, fingerprint=fingerprint) for owner in "ab")
    bench.store.claim(first)
    assert isinstance(bench.another.claim(second), InFlight)
    bench.store.commit(first)
    assert isinstance(bench.another.claim(second), Duplicate)


@pytest.mark.parametrize("second", ["t.c.n.-.l.j.-", "t.c.n.-.-.i.-", "t.-.n.s.l.i.-", "t", ""])
def test_an_undated_id_that_says_less_or_has_another_message_id_is_another_item(bench: Bench, second: str) -> None:
    first = claim("a", UNDATED, fingerprint="t.c.n.-.l.i.-")
    bench.store.claim(first)
    bench.store.commit(first)
    assert isinstance(bench.another.claim(claim("b", UNDATED, fingerprint=second)), Claimed)


def test_under_a_name_of_its_own_the_undated_form_of_an_item_is_known_to_the_dated_one(bench: Bench) -> None:
    undated = claim("a", UNDATED, POST, fingerprint="t.c.n.-.l.i.-")
    bench.store.claim(undated)
    bench.store.commit(undated)
    assert isinstance(bench.another.claim(claim("b", EMAIL, POST, fingerprint="t.c.n.-.l.-.-")), Duplicate)


@pytest.mark.parametrize("shared", [GROUP, MEDIA])
def test_an_item_stopped_by_a_shared_name_is_settled_in_the_same_step(bench: Bench, shared: Name) -> None:
    original = claim("a", EMAIL, shared)
    bench.store.claim(original)
    bench.store.commit(original)
    other = Name(Kind.EMAIL_ID, "2026-11-17", "e2")
    verdict = bench.store.claim(claim("b", other, shared, item="e2", fingerprint="f2"))
    assert isinstance(verdict, Duplicate)
    assert (verdict.gate, verdict.name, verdict.original) == (shared.gate, shared.label, "e1")
    (skipped,) = bench.store.find(Pattern(Kind.EMAIL_ID, value="e2"))
    assert (skipped.state, skipped.gate, skipped.by, skipped.original) == (State.DONE, shared.gate, shared.label, "e1")
    again = bench.store.claim(claim("c", other, item="e2", fingerprint="f2"))
    assert isinstance(again, Duplicate)
    assert (again.gate, again.original) == (Gate.IDENTITY, "e2")


def test_an_item_that_meets_a_pending_shared_name_waits_unsettled(bench: Bench) -> None:
    bench.store.claim(claim("a", EMAIL, GROUP))
    other = claim("b", Name(Kind.EMAIL_ID, "2026-11-17", "e2"), GROUP, item="e2", fingerprint="f2")
    verdict = bench.store.claim(other)
    assert isinstance(verdict, InFlight)
    assert verdict.gate is Gate.SUBJECT_GROUP
    bench.store.release(claim("a", EMAIL, GROUP), retries_left=3)
    assert isinstance(bench.store.claim(other), Claimed)


def test_an_earlier_gate_speaks_first(bench: Bench) -> None:
    bench.store.claim(claim("a", GROUP, item="e9"))
    bench.store.commit(claim("a", GROUP, item="e9"))
    bench.store.claim(claim("b", EMAIL))
    verdict = bench.store.claim(claim("c", GROUP, EMAIL))
    assert isinstance(verdict, InFlight)
    assert verdict.gate is Gate.IDENTITY


def test_done_names_expire_when_their_time_is_over(bench: Bench) -> None:
    bench.store.claim(claim("a"))
    bench.store.commit(claim("a"))
    bench.advance(WEEK_MS + 1)
    assert isinstance(bench.store.claim(claim("b", POST, GROUP)), Claimed)
    assert isinstance(bench.store.claim(claim("c", EMAIL)), Duplicate), "an email id is kept for ever"


def test_a_pending_name_without_a_live_lease_is_forgotten_after_a_week(bench: Bench) -> None:
    bench.store.claim(claim("a"))
    bench.advance(WEEK_MS + 1)
    assert list(bench.store.find(Pattern())) == []


def test_fencing_numbers_rise_over_takeover_release_and_forgetting(bench: Bench) -> None:
    fences = []
    for owner in "abcd":
        fences.append(claimed(bench.store.claim(claim(owner))).fence)
        if owner == "a":
            bench.advance(LEASE_MS + 1)
        elif owner == "b":
            bench.store.release(claim(owner), retries_left=1)
        else:
            bench.store.forget([EMAIL, POST, GROUP])
    assert fences == sorted(set(fences))


def test_forget_says_how_many_names_it_knew(bench: Bench) -> None:
    bench.store.claim(claim("a"))
    bench.store.commit(claim("a"))
    assert bench.another.forget([EMAIL, GROUP, MEDIA, EMAIL]) == 2
    assert bench.store.forget([EMAIL, GROUP]) == 0
    assert states(bench, POST) == {("f1", State.DONE)}


def test_the_first_name_lists_its_siblings(bench: Bench) -> None:
    bench.store.claim(claim("a", GROUP, EMAIL, POST, CANONICAL))
    bench.store.commit(claim("a", GROUP, EMAIL, POST, CANONICAL))
    (record,) = bench.store.find(Pattern(value="e1"))
    assert {Name.from_label(label) for label in record.siblings} == {EMAIL, CANONICAL, POST, GROUP}


def test_find_narrows_by_kind_scope_and_value(bench: Bench) -> None:
    odd = Name(Kind.MEDIA, "", "https://files.example/[a]*?\\x:y")
    bench.store.claim(claim("a", EMAIL, POST, odd, MEDIA))
    assert {r.name for r in bench.store.find(Pattern(Kind.MEDIA))} == {odd, MEDIA}
    assert {r.name for r in bench.store.find(Pattern(Kind.MEDIA, "", odd.value))} == {odd}
    assert {r.name for r in bench.store.find(Pattern(scope="2026-11-16"))} == {EMAIL}
    assert {r.name for r in bench.store.find(Pattern())} == {EMAIL, POST, odd, MEDIA}


def test_check_passes_while_the_store_works(bench: Bench) -> None:
    bench.store.check()


OTHER_MEDIA = Name(Kind.MEDIA, "", "https://files.example/final", WEEK_MS)


def test_a_claim_moves_to_another_name_in_one_step(bench: Bench) -> None:
    raw, final = claim("a", EMAIL, POST, MEDIA), claim("a", EMAIL, POST, OTHER_MEDIA)
    bench.store.claim(raw)
    claimed(bench.store.move(raw, final))
    assert states(bench, MEDIA) == set()
    assert states(bench, OTHER_MEDIA) == {("", State.PENDING)}
    assert bench.store.commit(final)
    assert isinstance(bench.another.claim(claim("b", MEDIA, item="e2")), Claimed), "the raw name is free for others"
    assert isinstance(bench.another.claim(claim("c", OTHER_MEDIA, item="e3")), Duplicate)


def test_a_move_to_a_settled_name_settles_the_item_and_gives_the_old_name_back(bench: Bench) -> None:
    bench.store.claim(claim("x", OTHER_MEDIA, item="e9"))
    bench.store.commit(claim("x", OTHER_MEDIA, item="e9"))
    raw, final = claim("a", EMAIL, POST, MEDIA), claim("a", EMAIL, POST, OTHER_MEDIA)
    bench.store.claim(raw)
    verdict = bench.store.move(raw, final)
    assert isinstance(verdict, Duplicate)
    assert (verdict.gate, verdict.original) == (Gate.MEDIA, "e9")
    assert states(bench, POST) == {("f1", State.DONE)}
    assert states(bench, MEDIA) == set()


def test_a_move_to_a_name_another_holds_changes_nothing(bench: Bench) -> None:
    bench.another.claim(claim("x", OTHER_MEDIA, item="e9"))
    raw, final = claim("a", EMAIL, MEDIA), claim("a", EMAIL, OTHER_MEDIA)
    bench.store.claim(raw)
    assert isinstance(bench.store.move(raw, final), InFlight)
    assert states(bench, MEDIA) == {("", State.PENDING)}
    assert bench.store.commit(raw)


def test_a_move_gives_back_only_what_the_owner_still_holds(bench: Bench) -> None:
    raw, final = claim("stale", EMAIL, MEDIA), claim("stale", EMAIL, OTHER_MEDIA)
    bench.store.claim(raw)
    bench.advance(LEASE_MS + 1)
    bench.another.claim(claim("heir", MEDIA, item="e2"))
    bench.store.move(raw, final)
    (record,) = bench.store.find(Pattern(MEDIA.kind, MEDIA.scope, MEDIA.value))
    assert record.owner == "heir"


def test_related_names_are_listed_but_not_claimed(bench: Bench) -> None:
    delivery = Name(Kind.DELIVERY, "crm", "msg_1", WEEK_MS)
    listing = replace(claim("a", EMAIL), related=(delivery,))
    bench.store.claim(listing)
    (record,) = bench.store.find(Pattern(value="e1"))
    assert set(record.siblings) == {EMAIL.label, delivery.label}
    assert states(bench, delivery) == set()


def test_an_item_with_a_known_and_a_new_medium_goes_on_with_the_new_one(bench: Bench) -> None:
    bench.store.claim(claim("x", MEDIA, item="e9"))
    bench.store.commit(claim("x", MEDIA, item="e9"))
    both = claim("a", EMAIL, MEDIA, OTHER_MEDIA)
    verdict = claimed(bench.store.claim(both))
    assert verdict.left_out == (MEDIA.label,)
    assert bench.store.claim(both) == verdict, "same owner, same answer"
    assert bench.store.commit(both.without(verdict.left_out))
    assert {r.item for r in bench.store.read([MEDIA])} == {"e9"}
    assert {r.item for r in bench.store.read([OTHER_MEDIA])} == {"e1"}
    again = bench.store.claim(claim("b", CANONICAL, MEDIA, OTHER_MEDIA, item="c1", fingerprint="g"))
    assert isinstance(again, Duplicate), "now both are known"
    assert again.gate is Gate.MEDIA
