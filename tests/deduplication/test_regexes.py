"""Regular expressions of mailonce.toml: what they take, and that no text can make one slow."""

from __future__ import annotations

import pytest

from deduplication.regexes import BadRegex, check, first_captured, is_in


@pytest.mark.timeout(60)
@pytest.mark.parametrize("regex", ["(a|a)*b", "(a+)+b", "(a*)*b", "(.*)(.*)(.*)(.*)c$", r"(\w+\s?)+!"])
def test_no_text_makes_one_slow(regex: str) -> None:
    assert not is_in(regex, "a" * 100_000)


@pytest.mark.parametrize(
    ("regex", "groups"), [("lot", 0), (r"lot (\d+)", 1), ("(?P<a>x)(y)", 2), (r"\pL+", 0), ("été", 0)]
)
def test_how_many_values_it_captures(regex: str, groups: int) -> None:
    assert check(regex) == groups


@pytest.mark.parametrize(
    ("regex", "complaint"),
    [
        ("(", r"missing \)"),
        ("a(?=b)", r"invalid perl operator.*no lookaround"),
        ("(?<!a)b", r"no lookaround"),
        (r"(a)\1", r"no backreferences"),
        (r"\bété\b", "beside other letters than ASCII"),
        ("\ud800", "surrogates not allowed"),
    ],
)
def test_what_it_has_not_is_said(regex: str, complaint: str) -> None:
    with pytest.raises(BadRegex, match=complaint):
        check(regex)


def test_case_matters_only_where_it_is_asked_for() -> None:
    assert is_in("ÉTÉ", "été")
    assert not is_in("ÉTÉ", "été", ignore_case=False)


def test_half_a_surrogate_pair_in_a_text_is_no_error() -> None:
    assert is_in("b", "a\ud800b")


@pytest.mark.parametrize(
    ("regex", "text", "captured"),
    [
        (r"lot (\S+)", "ÉTÉ: Lot №42 é", "№42"),
        (r"lot (\d+)", "lot x", ""),
        (r"lot(?: (\d+))?", "lot x", ""),
        (r"(\d+)", "a\ud800 7", "7"),
    ],
)
def test_what_it_captures_first_is_told_and_nothing_where_there_is_nothing(
    regex: str, text: str, captured: str
) -> None:
    assert first_captured(regex, text) == captured
