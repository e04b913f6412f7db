from __future__ import annotations

from pathlib import Path

from deduplication.one_process import one_process


def test_one_at_a_time(tmp_path: Path) -> None:
    with one_process(tmp_path / "lock") as first, one_process(tmp_path / "lock") as second:
        assert (first, second) == (True, False)
    with one_process(tmp_path / "lock") as again:
        assert again
