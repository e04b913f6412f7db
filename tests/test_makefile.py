"""make reports a missing Python, and installs for each target only its dependencies."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.surroundings import ROOT, clean_environment


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """One in which nothing was made yet."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


def make(checkout: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = clean_environment()
    return subprocess.run(["make", *words], cwd=checkout, env=environment, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("target", ["setup", "run", "test", "demo"])
def test_an_older_python_gets_one_line_that_3_11_is_needed(checkout: Path, target: str) -> None:
    old = checkout / "old-python"
    pretend = "import sys; sys.version_info, sys.version = (3, 10, 12), '3.10.12 (main)'; exec(sys.argv[1])"
    old.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{pretend}" "$2"\n')
    old.chmod(0o755)
    result = make(checkout, target, f"PYTHON={old}")
    assert result.returncode != 0
    (line,) = (result.stdout + result.stderr).splitlines()
    assert f"Mailonce needs Python 3.11 or newer; {old} is 3.10.12" in line
    assert not (checkout / ".venv").exists()


def test_a_python_that_is_not_there_is_named(checkout: Path) -> None:
    result = make(checkout, "run", "PYTHON=no-such-python")
    assert "no-such-python is not there" in result.stderr
    assert not (checkout / ".venv").exists()


@pytest.mark.parametrize(
    ("target", "installed"),
    [
        ("run", ["queue"]),
        ("setup", ["queue", "dev"]),
        ("test", ["queue", "dev"]),
        ("lint", ["queue", "dev"]),
        ("docs", ["queue", "docs"]),
    ],
)
def test_running_does_without_the_tools_for_tests(checkout: Path, target: str, installed: list[str]) -> None:
    steps = make(checkout, "--dry-run", target, f"PYTHON={sys.executable}").stdout
    assert [extra for extra in ("queue", "dev", "docs") if f"-e '.[{extra}]'" in steps] == installed
    assert steps.count('echo "Installing') == len(installed), "the first run takes a minute"


def test_a_seed_is_handed_on(checkout: Path) -> None:
    assert "--hypothesis-seed=7 " in make(checkout, "--dry-run", "test", "SEED=7", f"PYTHON={sys.executable}").stdout
    assert "seed" not in make(checkout, "--dry-run", "test", f"PYTHON={sys.executable}").stdout
