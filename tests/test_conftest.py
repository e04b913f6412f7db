"""Property tests try new examples in each run, in CI too, and its seed repeats a run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.support.surroundings import ROOT, clean_environment

PROPERTY = """
from hypothesis import given, strategies

@given(strategies.integers())
def test_of_a_property(number):
    with open("tried", "a") as tried:
        print(number, file=tried)
"""


def run(folder: Path, *options: str) -> tuple[str, str]:
    """The seed that was printed, and the examples that were tried."""
    folder.mkdir()
    (folder / "test_property.py").write_text(PROPERTY.replace('"tried"', repr(str(folder / "tried"))))
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-c", ROOT / "pyproject.toml", "-p", "tests.conftest", folder, *options],
        env=clean_environment(CI="true"),
        capture_output=True,
        text=True,
        check=True,
    )
    (seed,) = re.findall(r"^seed (\d+); make test SEED=\1 ", ran.stdout, re.MULTILINE)
    return seed, (folder / "tried").read_text()


def test_the_printed_seed_repeats_the_examples(tmp_path: Path) -> None:
    first = run(tmp_path / "first")
    assert run(tmp_path / "again", f"--hypothesis-seed={first[0]}", "-n1") == first
