from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from deduplication.claims import Kind, Name
from orchestrator.grouping import groups

NAMES = [Name(Kind.POST, "", str(number)) for number in range(6)]


def test_what_shares_nothing_goes_in_order_and_in_full_groups() -> None:
    names = {number: {Name(Kind.POST, "", str(number))} for number in range(7)}
    assert list(groups(names, most=3)) == [[0, 1, 2], [3, 4, 5], [6]]


def test_of_those_that_share_a_name_each_waits_for_the_one_before() -> None:
    shared, own = NAMES[0], {number: Name(Kind.MEDIA, "", str(number)) for number in range(4)}
    names = {0: {own[0], shared}, 1: {own[1], shared}, 2: {own[2], shared}, 3: {own[3]}}
    assert list(groups(names, most=50)) == [[0, 3], [1], [2]]


@given(st.lists(st.sets(st.sampled_from(NAMES), max_size=3), max_size=20), st.integers(1, 4))
def test_every_item_comes_once_and_sharers_come_in_order(items: list[set[Name]], most: int) -> None:
    names = dict(enumerate(items))
    found = list(groups(names, most))
    assert sorted(item for group in found for item in group) == list(names)
    assert all(0 < len(group) <= most for group in found)
    place = {item: number for number, group in enumerate(found) for item in group}
    for item, its_names in names.items():
        for earlier in range(item):
            if its_names & names[earlier]:
                assert place[earlier] < place[item]
