"""Each promise of docs/security.md names the test that holds it; that there is such a test, test_names.py sees."""

from __future__ import annotations

import re

from tests.support.surroundings import ROOT

PAGE = ROOT / "docs/security.md"


def test_every_promise_names_a_test() -> None:
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    rows = [line for line in lines if not line.endswith("| test |")]
    assert len(rows) > 30
    assert [row for row in rows if not re.search(r"`test_\w+`[^|]*\|$", row)] == []
