"""What the tests and the processes they start see of the machine: its programs, and nothing of whoever runs them."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).parents[2]
_KEPT = ("PATH", "TMPDIR", "CI", "TERM", "COLUMNS", "LANG", "LC_ALL")


def clean_environment(**settings: str) -> dict[str, str]:
    """For a process that a test starts, in a folder of its own: ours can be imported, and only ``settings`` are set."""
    return {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)} | settings


def forget_environment() -> None:
    """For this process: no setting, proxy, home or configuration of whoever runs the tests gets in."""
    for name in set(os.environ) - set(_KEPT):
        if not name.startswith("PYTEST_"):
            del os.environ[name]
