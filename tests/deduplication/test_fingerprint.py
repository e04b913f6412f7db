"""When two items that share a name are told apart, and how that is written down."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deduplication.fingerprint import Fingerprint, agree, conflicts, digest, digest_of_all, filled

WHOLE = Fingerprint(text="t", files="c", file_names="n", links="l", head="h")
COMPARED = ["text", "files", "file_names", "file_sizes", "links", "head"]

part = st.none() | st.sampled_from(["0", digest("a"), digest("b")])
fingerprints = st.builds(Fingerprint, part, part, part, part, part, part, part)


@pytest.mark.parametrize("name", ["text", "files", "links", "head"])
def test_one_part_that_both_know_and_that_differs_is_enough(name: str) -> None:
    assert conflicts(WHOLE, replace(WHOLE, **{name: "other"}))


@pytest.mark.parametrize("name", COMPARED)
def test_nothing_there_is_not_the_same_as_something(name: str) -> None:
    assert conflicts(Fingerprint(**{name: digest("")}), Fingerprint(**{name: digest("a")}))


@pytest.mark.parametrize("name", COMPARED)
def test_what_one_side_does_not_know_speaks_against_nothing(name: str) -> None:
    assert not conflicts(Fingerprint(**{name: "a"}), Fingerprint())


def test_names_of_files_count_only_where_the_files_are_not_known_to_both() -> None:
    renamed = replace(WHOLE, file_names="other")
    assert not conflicts(WHOLE, renamed)
    assert conflicts(WHOLE, replace(renamed, files=None))


@given(fingerprints, fingerprints)
def test_who_is_asked_first_does_not_matter_and_each_is_like_itself(one: Fingerprint, other: Fingerprint) -> None:
    assert conflicts(one, other) is conflicts(other, one)
    assert agree(one, other) is agree(other, one)
    assert not conflicts(one, one)
    assert not (agree(one, other) and conflicts(one, other))


def test_to_agree_both_must_say_the_same_in_all_and_what_the_text_is() -> None:
    assert agree(WHOLE, replace(WHOLE))
    assert agree(Fingerprint(text="t"), Fingerprint(text="t"))
    assert not agree(WHOLE, replace(WHOLE, links=None))
    assert not agree(WHOLE, replace(WHOLE, ids="i"))
    assert not agree(Fingerprint(files="c"), Fingerprint(files="c"))


def test_the_ids_of_an_undated_email_do_not_tell_it_from_its_dated_form() -> None:
    assert not conflicts(replace(WHOLE, ids="i"), WHOLE)
    assert not conflicts(replace(WHOLE, ids="i"), replace(WHOLE, ids="j"))


def test_it_is_written_part_by_part() -> None:
    assert str(WHOLE) == "t.c.n.-.l.-.h"
    assert str(Fingerprint(text=digest(""), files=digest_of_all([]))) == "0.0.-.-.-.-.-"
    assert str(Fingerprint()) == ""


@given(fingerprints)
def test_what_is_written_can_be_read_back(fingerprint: Fingerprint) -> None:
    assert Fingerprint.parse(str(fingerprint)) == fingerprint


def test_what_an_earlier_version_wrote_says_what_the_text_was() -> None:
    old = Fingerprint.parse(hashlib.sha256(b"Bonjour").hexdigest())
    assert old == Fingerprint(text=digest("Bonjour"))
    assert conflicts(old, Fingerprint(text=digest("Bonsoir")))


def test_the_order_does_not_matter_but_where_one_ends_and_another_begins_does() -> None:
    assert digest_of_all(["a", "b"]) == digest_of_all(["b", "a"])
    assert len({digest_of_all(each) for each in (["ab"], ["a", "b"], ["a", "b", "b"], [])}) == 4


def test_a_repeat_fills_in_what_was_unknown_and_changes_nothing() -> None:
    known, more = Fingerprint(text="t1", files="f1"), Fingerprint(text="t2", links="l1")
    assert filled(known, more) == Fingerprint(text="t1", files="f1", links="l1")
