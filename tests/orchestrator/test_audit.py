from __future__ import annotations

import time
from pathlib import Path

import pytest

from orchestrator.audit import FILE, MOST_READ_BYTES, acting_as, audit, keep_audit, read_actions


def test_who_did_what_is_listed_the_newest_first(tmp_path: Path) -> None:
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


def test_there_may_be_no_list_yet(tmp_path: Path) -> None:
    assert read_actions(tmp_path, most=10) == []


@pytest.mark.parametrize("damage", [b"\xff\xfe\n", b"not a line of ours\n", b"\n"])
def test_what_cannot_be_read_is_left_out(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / FILE).write_bytes(damage + b"2026-11-16 09:00:00,123 service: AUDIT reset scope=all\n" + damage)
    assert [act.what for act in read_actions(tmp_path, most=10)] == ["reset"]


def test_of_a_long_list_only_the_end_is_read(tmp_path: Path) -> None:
    line = "2026-11-16 09:00:00,123 service: AUDIT replay delivery=number-%07d\n"
    (tmp_path / FILE).write_text("".join(line % number for number in range(2 * MOST_READ_BYTES // len(line))))
    acts = read_actions(tmp_path, most=10**6)
    assert 0 < len(acts) <= MOST_READ_BYTES // (len(line) - 4)
