from __future__ import annotations

import time
from pathlib import Path

import pytest

from deduplication import members
from deduplication.clock import Clock
from deduplication.journal.sqlite import Journal
from orchestrator.audit import FILE, SHARED, SHARED_MS, acting_as, audit, keep_audit, read_actions, share_actions


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
    now_ms = 1_800_000_000_000
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
