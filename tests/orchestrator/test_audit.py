from __future__ import annotations

import time
from pathlib import Path

import pytest

from orchestrator.audit import FILE, acting_as, audit, keep_audit, read_actions


def test_who_did_what_is_listed_the_newest_first(tmp_path: Path) -> None:
    assert read_actions(tmp_path, most=10) == []
    before_ms = time.time() * 1000
    handler = keep_audit(tmp_path, "service")
    try:
        audit.warning("AUDIT replay delivery=%s", "one:crm")
        with acting_as("page, Ada: Lovelace"):
            audit.warning("AUDIT pause destination=crm reason=%s", "moves\nto: another")
    finally:
        audit.removeHandler(handler)
        handler.close()
    newest, oldest = read_actions(tmp_path, most=10)
    assert (oldest.by, oldest.what, oldest.details) == ("service", "replay", "delivery=one:crm")
    assert newest.by == "page, Ada: Lovelace"
    assert (newest.what, newest.details) == ("pause", "destination=crm reason=moves\\nto: another")
    assert before_ms - 1000 <= oldest.at_ms <= newest.at_ms <= time.time() * 1000
    assert read_actions(tmp_path, most=1) == [newest]


@pytest.mark.parametrize("damage", [b"\xff\xfe\n", b"not a line of ours\n", b"\n"])
def test_lines_in_another_format_are_skipped(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / FILE).write_bytes(damage + b"2026-11-16 09:00:00,123 service: AUDIT reset scope=all\n" + damage)
    assert [action.what for action in read_actions(tmp_path, most=10)] == ["reset"]
