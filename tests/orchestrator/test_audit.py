"""What is kept in notes of the journal beside entries: actions of operators, digests, and sessions of the web page."""

import time
from functools import partial
from pathlib import Path

import pytest

from deduplication import members
from deduplication.clock import Clock
from deduplication.journal.entry import About, Entry
from deduplication.journal.sqlite import Journal
from orchestrator.audit import FILE, SHARED, SHARED_MS, acting_as, audit, keep_audit, read_actions, share_actions
from orchestrator.privacy import Privacy
from orchestrator.sessions import LISTED_MS, MOST_LISTED, SESSION_KEY, end_session, has_ended, shared_key

NOW_MS = 1_800_000_000_000


def test_who_did_what_is_listed_the_newest_first(tmp_path: Path) -> None:
    journal = Journal(":memory:")
    assert read_actions(journal, tmp_path, most=10) == []
    before_ms = time.time() * 1000
    handler = keep_audit(tmp_path, "service")
    try:
        audit.warning("AUDIT replay delivery=%s", "one:crm")
        with acting_as("page, Ada: Lovelace"):
            audit.warning("AUDIT pause destination=crm reason=%s", "moves\nto: another")
    finally:
        audit.removeHandler(handler)
        handler.close()
    newest, oldest = read_actions(journal, tmp_path, most=10)
    assert (oldest.by, oldest.what, oldest.details) == ("service", "replay", "delivery=one:crm")
    assert newest.by == "page, Ada: Lovelace"
    assert (newest.what, newest.details) == ("pause", "destination=crm reason=moves\\nto: another")
    assert before_ms - 1000 <= oldest.at_ms <= newest.at_ms <= time.time() * 1000
    assert read_actions(journal, tmp_path, most=1) == [newest]


@pytest.mark.parametrize("damage", [b"\xff\xfe\n", b"not a line of ours\n", b"\n"])
def test_lines_in_another_format_are_skipped(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / FILE).write_bytes(damage + b"2026-11-16 09:00:00,123 service: AUDIT reset scope=all\n" + damage)
    journal = Journal(":memory:")
    assert [action.what for action in read_actions(journal, tmp_path, most=10)] == ["reset"]


def test_each_machine_shares_its_newest_actions_and_a_silent_one_is_forgotten_after_a_month(tmp_path: Path) -> None:
    now_ms = NOW_MS
    one, two = (Journal(":memory:", Clock(lambda: now_ms, lambda: 0)) for _ in range(2))
    lines = [f"2026-11-16 09:{number:02}:00,000 service: AUDIT reset scope=all" for number in range(59)]
    (tmp_path / FILE).write_text("\n".join(lines) + "\n")
    share_actions(one, tmp_path)
    with one.reading() as step, two.step() as other:
        ((key, (at_ms, text)),) = members.notes(step).items()
        members.put_note(other, key, text, at_ms)
    actions = read_actions(two, tmp_path / "none", most=100)
    assert (len(actions), {action.machine for action in actions}) == (SHARED, {one.machine})
    assert actions == read_actions(one, tmp_path, most=100)[:SHARED]
    now_ms += SHARED_MS + 1
    share_actions(two, tmp_path / "none")
    assert read_actions(two, tmp_path / "none", most=100) == []


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
    stored_before = Entry(
        "e", "machine", (), about=About("id", "gmail", "all", SUBJECT, SENDER, recipient="me@blower.example")
    )
    assert one.shown(stored_before).about == About("id", "gmail", "all")
    assert Privacy(journal).shown(stored_before) == stored_before
    journal.close()
    other.close()


def test_all_processes_of_a_machine_have_the_same_key(tmp_path: Path) -> None:
    one, other = (Journal(tmp_path / "journal.db") for _ in range(2))
    key = shared_key(one, SESSION_KEY)
    assert shared_key(other, SESSION_KEY) == shared_key(one, SESSION_KEY) == key
    assert len(key) == 32


def test_the_key_of_a_machine_that_joins_does_not_replace_that_of_the_fleet() -> None:
    made = []
    for now_ms in (NOW_MS, NOW_MS + 60_000):
        journal = Journal(":memory:", Clock(partial(int, now_ms), lambda: 0))
        shared_key(journal, SESSION_KEY)
        with journal.reading() as step:
            made.append(members.notes(step)[SESSION_KEY])
    assert made[0] > made[1], "of two notes with one key the later one counts"


def test_the_list_is_bounded_in_time_and_length() -> None:
    now_ms = NOW_MS
    journal = Journal(":memory:", Clock(lambda: now_ms, lambda: 0))
    end_session(journal, "old")
    now_ms += LISTED_MS
    for number in range(MOST_LISTED + 1):
        end_session(journal, f"s{number}")
    listed = [session for session in ("old", "s0", "s1", f"s{MOST_LISTED}") if has_ended(journal, session)]
    assert listed == ["s1", f"s{MOST_LISTED}"], "s0 is more than the list holds"
    with journal.reading() as step:
        assert len(members.notes(step)) == 1
