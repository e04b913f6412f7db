"""PRIVACY=strict: only digests of subjects and senders. tests/routes/test_api.py tests the whole service."""

from __future__ import annotations

from deduplication.journal.entry import About, Entry
from deduplication.journal.sqlite import Journal
from orchestrator.privacy import Privacy

SUBJECT, SENDER = "Grievance about lot 456", "whistle@blower.example"


def test_all_make_the_same_digests_and_only_with_the_key() -> None:
    journal, other = Journal(":memory:"), Journal(":memory:")
    one, two = (Privacy(journal, is_strict=True) for _ in range(2))
    assert one.text(SENDER) == two.text(SENDER.upper()) != Privacy(other, is_strict=True).text(SENDER)
    assert one.text(one.text(SENDER)) == one.text(SENDER)
    assert one.text("x" * 500) == one.text("x" * 120), "no more of it is kept"
    about = one.about(About("id", "gmail", "all", SUBJECT, SENDER, recipient="me@blower.example"))
    entry = Entry("e", "machine", (), about=about)
    assert one.shown(entry).about == Privacy(journal).shown(entry).about == About("id", "gmail", "all")
    assert Privacy(journal).about(about) == about
    stored_before = Entry(
        "e", "machine", (), about=About("id", "gmail", "all", SUBJECT, SENDER, recipient="me@blower.example")
    )
    assert one.shown(stored_before).about == About("id", "gmail", "all")
    assert Privacy(journal).shown(stored_before) == stored_before
    journal.close()
    other.close()
