"""Fields of JSON documents with unexpected values."""

from __future__ import annotations

from typing import Any

import pytest

from routes.providers.fields import size_of


@pytest.mark.parametrize(
    ("given", "size"), [(5120, 5120), (0, 0), (-1, 0), (True, 0), (False, 0), (1.5, 0), ("5120", 0), (None, 0)]
)
def test_a_size_is_a_number_of_bytes_or_0(given: Any, size: int) -> None:
    found = size_of({"size": given}, "size")
    assert (found, type(found)) == (size, int)
    assert size_of({}, "size") == 0
