"""make, as CONTRIBUTING.md shows it: it names a missing Python, and installs for each target only its dependencies."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from tests.support.surroundings import ROOT, clean_environment

CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """One in which nothing was made yet."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


def make(checkout: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = clean_environment()
    return subprocess.run(["make", *words], cwd=checkout, env=environment, capture_output=True, text=True, timeout=60)


def steps(checkout: Path, *words: str) -> list[str]:
    """What make would run."""
    shown = make(checkout, "--dry-run", *words, f"PYTHON={sys.executable}")
    assert shown.returncode == 0, shown.stderr
    return shown.stdout.splitlines()


def test_a_python_that_is_missing_or_too_old_is_named_in_one_line(checkout: Path) -> None:
    old = checkout / "old-python"
    pretend = "import sys; sys.version_info, sys.version = (3, 10, 12), '3.10.12 (main)'; exec(sys.argv[1])"
    old.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{pretend}" "$2"\n')
    old.chmod(0o755)
    result = make(checkout, "run", f"PYTHON={old}")
    assert result.returncode != 0
    (line,) = (result.stdout + result.stderr).splitlines()
    assert f"Mailonce needs Python 3.11 or newer; {old} is 3.10.12" in line
    assert "no-such-python is not there" in make(checkout, "run", "PYTHON=no-such-python").stderr
    assert not (checkout / ".venv").exists()


def test_each_target_installs_what_it_needs_and_no_more(checkout: Path) -> None:
    for target, extras in {"run": ["queue"], "test": ["queue", "dev"], "docs": ["queue", "docs"]}.items():
        shown = "\n".join(steps(checkout, target))
        assert [extra for extra in ("queue", "dev", "docs") if f"-e '.[{extra}]'" in shown] == extras
        assert shown.count('echo "Installing') == len(extras), "the first run takes a minute"


def test_a_seed_is_handed_on(checkout: Path) -> None:
    assert "--hypothesis-seed=7 " in steps(checkout, "test", "SEED=7")[-1]
    assert "seed" not in steps(checkout, "test")[-1]


def test_the_hooks_run_what_make_lint_runs(checkout: Path) -> None:
    (local,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert local["repo"] == "local", "nothing is downloaded"
    entries = [hook["entry"] for hook in local["hooks"]]
    assert entries == steps(checkout, "lint")[-len(entries) :]
    for hook in local["hooks"]:
        assert (hook["language"], hook["pass_filenames"], hook["always_run"]) == ("system", False, True), hook["id"]


def test_the_commands_for_contributors_can_be_run(checkout: Path) -> None:
    for command in re.findall(r"(?:`|^    )make ([^`\n]+)", CONTRIBUTING, re.MULTILINE):
        assert steps(checkout, *re.findall(r"\w+=\"[^\"]*\"|\S+", command)), command
    examples = re.findall(r"^    \.venv/bin/python -m pytest (\S+)(?: -k (\w+))?$", CONTRIBUTING, re.MULTILINE)
    assert len(examples) == 2
    for path, word in examples:
        assert re.search(rf"^def test_\w*{word}", (ROOT / path).read_text(), re.MULTILINE), word


def test_the_latest_version_is_the_one_that_gets_fixes() -> None:
    rows = re.findall(r"^\| ([\d.]+) \| (yes|no) \|$", (ROOT / "SECURITY.md").read_text(), re.MULTILINE)
    assert [version for version, fixes in rows if fixes == "yes"] == [VERSION.rpartition(".")[0]]
