"""Rows of a CSV as items."""

from __future__ import annotations

import pytest

from orchestrator.importing.items import InvalidRow, row_item


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({}, "needs email_id and date"),
        ({"subject": "Hello"}, "needs email_id and date"),
        ({"subject": "Hello", "sender": "a@b"}, "needs email_id and date"),
        ({"email_id": "fe4fc385494173f61585825e95d25317"}, "with the date"),
        ({"email_id": "no digest", "date": "2026-11-16"}, "32 hexadecimal digits"),
        ({"message_id": "<m1>", "date": "yesterday"}, "date must be a time"),
        ({"message_id": " <> "}, "needs email_id and date"),
    ],
)
def test_a_row_by_which_nothing_can_be_recognised_is_refused(row: dict[str, str], why: str) -> None:
    with pytest.raises(InvalidRow, match=why):
        row_item(row, "mime", None)


def test_all_columns_together_are_all_its_names() -> None:
    row = {"email_id": "a" * 32, "subject": "Hi", "sender": "a@example.org", "date": "2026-11-16", "message_id": "<m1>"}
    labels = [name.label for name in row_item(row, "mime", None).own_names]
    assert labels[:2] == [f"email_id:2026-11-16:{'a' * 32}", "post::m1"]
    assert len(labels) == len(set(labels)) == 4
