"""Which items with the same name are different, and how fingerprints are written."""

from hypothesis import given
from hypothesis import strategies as st

from deduplication.names import Fingerprint, conflicts, digest, digest_of_all, filled

part = st.none() | st.sampled_from(["0", digest("a"), digest("b")])
dates = st.none() | st.sampled_from(["1", "2", "1@a", "2@a", "1@b"])
fingerprints = st.builds(Fingerprint, *[part] * 7, dates, st.none(), st.none())


@given(fingerprints, fingerprints)
def test_two_conflict_if_a_part_that_both_know_differs(one: Fingerprint, other: Fingerprint) -> None:
    """Names of files count only if the files are not known of both, ids only if nothing is known of the files of both,
    and dates only if both come from the same source."""
    compared = ["text", "files", "file_sizes", "links", "head"]
    compared += ["file_names"] if None in (one.files, other.files) else []
    nothing_known = {one.files, other.files, one.file_names, other.file_names} == {None}
    compared += ["ids"] if nothing_known and "0" not in (one.ids, other.ids) else []
    compared += ["date"] if len({date.partition("@")[2] for date in (one.date, other.date) if date}) == 1 else []
    pairs = [(getattr(one, name), getattr(other, name)) for name in compared]
    differs = any(ours != theirs for ours, theirs in pairs if None not in (ours, theirs))
    assert conflicts(one, other) is conflicts(other, one) is differs


def test_it_is_written_part_by_part() -> None:
    assert str(Fingerprint(text="t", files="c", file_names="n", links="l", head="h")) == "t.c.n..l..h"
    assert str(Fingerprint(text=digest(""), files=digest_of_all([]))) == "0.0"
    assert str(Fingerprint()) == ""


@given(fingerprints)
def test_what_is_written_can_be_read_back(fingerprint: Fingerprint) -> None:
    assert Fingerprint.parse(str(fingerprint)) == fingerprint


def test_the_order_does_not_matter_but_where_one_ends_and_another_begins_does() -> None:
    assert digest_of_all(["a", "b"]) == digest_of_all(["b", "a"])
    assert len({digest_of_all(each) for each in (["ab"], ["a", "b"], ["a", "b", "b"], [])}) == 4


def test_a_repeat_fills_in_what_was_unknown_and_changes_nothing() -> None:
    known, more = Fingerprint(text="t1", files="f1"), Fingerprint(text="t2", links="l1")
    assert filled(known, more) == Fingerprint(text="t1", files="f1", links="l1")
