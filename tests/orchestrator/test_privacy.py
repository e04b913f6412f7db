"""PRIVACY=strict: digests of who wrote about what. tests/routes/test_api_decisions.py sees them at work."""

from __future__ import annotations

from deduplication.journal.entry import About, Entry, State
from deduplication.journal.memory import MemoryJournal
from orchestrator.privacy import Privacy, PrivacyMode
from orchestrator.shared_key import ASK_EVERY_S

SUBJECT, SENDER = "Grievance about lot 456", "whistle@blower.example"


def test_all_make_the_same_digests_and_only_with_the_key() -> None:
    journal, other = MemoryJournal(), MemoryJournal()
    one, two = (Privacy(journal, PrivacyMode.STRICT) for _ in range(2))
    assert one.text(SENDER) == two.text(SENDER.upper()) != Privacy(other, PrivacyMode.STRICT).text(SENDER)
    assert one.text(one.text(SENDER)) == one.text(SENDER)
    assert one.text("x" * 500) == one.text("x" * 120), "no more of it is kept"
    about = one.about(About("id", "gmail", "all", SUBJECT, SENDER))
    entry = Entry("e", (), (), "", State.DONE, "", 1, 0, 0, about)
    assert one.shown(entry).about == Privacy(journal).shown(entry).about == About("id", "gmail", "all")
    assert Privacy(journal).about(about) == about


def test_the_key_of_the_journal_is_asked_for_again() -> None:
    journal, now = MemoryJournal(), [0.0]
    privacy = Privacy(journal, PrivacyMode.STRICT, lambda: now[0])
    before = privacy.text(SENDER)
    journal._rows.shared_key = b"another"
    privacy.look_after_key()
    assert privacy.text(SENDER) == before
    now[0] += ASK_EVERY_S
    privacy.look_after_key()
    assert privacy.text(SENDER) != before
