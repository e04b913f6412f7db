from __future__ import annotations

import base64
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.operations.cursors import read_cursor, read_number, write_cursor


def packed(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def test_what_was_written_is_read() -> None:
    assert read_cursor(write_cursor("dead", 17, "entry", "crm, the new one"), 4) == [
        "dead",
        "17",
        "entry",
        "crm, the new one",
    ]
    assert read_cursor(write_cursor("", 17), 2) == ["", "17"]
    assert read_number(read_cursor(write_cursor((1 << 63) - 1), 1)[0]) == (1 << 63) - 1


@pytest.mark.parametrize("cursor", ["", "x", "é", "\ud800", "a b", "====", packed("one"), packed("one\ntwo\0")])
def test_what_nobody_has_written_is_none(cursor: str) -> None:
    with pytest.raises(ValueError):
        read_cursor(cursor, 2)


@pytest.mark.parametrize("part", ["", "-1", "1.5", "x", "٣", str(1 << 63), "9" * 5000])
def test_what_no_store_takes_is_no_number(part: str) -> None:
    with pytest.raises(ValueError):
        read_number(part)


@given(st.text(), st.integers(1, 4))
def test_whatever_comes_it_is_a_cursor_or_a_value_error(text: str, length: int) -> None:
    for cursor in (text, base64.urlsafe_b64encode(text.encode("utf-8", "replace")).decode()):
        with suppress(ValueError):
            assert len(read_cursor(cursor, length)) == length
