"""Headers of an email in every notation."""

from __future__ import annotations

from typing import Any

import pytest

from routes.providers.fields import MailHeaders


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
    added = headers.added_to({"recipients": []})
    assert added["in_reply_to"] == "<1@a>"
    assert [value for _, value in added["headers"]] == ["<1@a>", "<2@a>"]
