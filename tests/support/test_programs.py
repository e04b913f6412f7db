from __future__ import annotations

import pytest

from tests.support.programs import program


def test_a_missing_program_fails_in_ci_and_is_skipped_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="apt-get install prometheus"):
        program("no-such-program", "prometheus")
    monkeypatch.delenv("CI")
    with pytest.raises(pytest.skip.Exception, match="apt-get install prometheus"):
        program("no-such-program", "prometheus")
