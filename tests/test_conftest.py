"""Property tests try new examples in each run, in CI too, and a run can be had again by its seed."""

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


def test_each_run_tries_other_examples_and_the_printed_seed_tries_them_again(tmp_path: Path) -> None:
    first, second = run(tmp_path / "first"), run(tmp_path / "second")
    assert first[0] != second[0]
    assert first[1] != second[1]
    assert run(tmp_path / "again", f"--hypothesis-seed={first[0]}") == first
    assert run(tmp_path / "spread", f"--hypothesis-seed={first[0]}", "-n2") == first, "also over several processes"
