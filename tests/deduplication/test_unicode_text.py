"""Texts of whatever marks get their normal form, and none of them takes long."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deduplication.body import plain_text
from deduplication.email import decode_subject
from deduplication.subject_group import normalize_no_accents_lower_trim
from deduplication.unicode_text import nfc


@given(st.text(st.characters(), max_size=30))
def test_it_is_the_normal_form(text: str) -> None:
    assert nfc(text) == unicodedata.normalize("NFC", text)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("read", [nfc, plain_text, decode_subject, normalize_no_accents_lower_trim])
@pytest.mark.parametrize("piece", ["\u0301\u0316", "e\u0301", "é", "\ufdfa"])
def test_a_million_of_anything_is_read_in_no_time(read: object, piece: str) -> None:
    assert callable(read)
    assert read("e" + piece * 1_000_000)
