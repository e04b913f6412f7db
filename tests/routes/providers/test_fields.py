"""Fields of JSON documents, and headers in every notation."""

from __future__ import annotations

from typing import Any

import pytest

from routes.providers.fields import Document, MailHeaders


@pytest.mark.parametrize(
    ("given", "size"),
    [(5120, 5120), (0, 0), (-1, 0), (True, 0), (False, 0), (1.5, 0), ("5120", 5120), ("9" * 16, 0), (None, 0)],
)
def test_a_size_is_a_number_of_bytes_or_0(given: Any, size: int) -> None:
    found = Document(size=given).size("size")
    assert (found, type(found)) == (size, int)
    assert Document().size("size") == 0


@pytest.mark.parametrize(
    "given",
    [
        [["in-reply-to", "<1@a>"], ["In-Reply-To", "<2@a>"], ["x"], 5],
        [{"Name": "In-Reply-To", "Value": "<1@a>"}, {"name": "In-Reply-To", "value": "<2@a>"}, {}],
        {"in_reply_to": "<1@a>", "In-Reply-To": "<2@a>", "Date": 5},
        {"In-Reply-To": ["<1@a>", "<2@a>"], "Date": []},
    ],
)
def test_of_headers_with_one_name_the_first_counts_in_every_notation(given: Any) -> None:
    headers = MailHeaders(given)
    assert (headers["In-Reply-To"], headers["Date"]) == ("<1@a>", "")
    assert headers.named(("In-Reply-To", "Date")) == {"In-Reply-To": "<1@a>"}
    assert headers.added_to({"recipients": []})["extra"] == {"in_reply_to": "<1@a>"}
