"""The command line in this process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from routes.command_line import main

Run = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """In a folder of its own, on the data that ``start_app`` uses."""
    monkeypatch.setenv("DATA_DIR", str(tmp_path / "data"))

    def call(*words: str) -> Result:
        result = CliRunner().invoke(main, words)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.output
        return result

    return call
