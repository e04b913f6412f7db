"""The pages for contributors: commands, links and hooks."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib

import yaml

from tests.support.surroundings import ROOT, clean_environment

CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def steps(*words: str) -> list[str]:
    """What make would run, apart from the setting up."""
    shown = subprocess.run(
        ["make", "--dry-run", "--old-file=.venv/.ready", *words, f"PYTHON={sys.executable}", "VENV=.venv"],
        cwd=ROOT,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert shown.returncode == 0, shown.stderr
    return shown.stdout.splitlines()


def test_the_hooks_run_what_make_lint_runs() -> None:
    (local,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert local["repo"] == "local", "nothing is downloaded"
    assert [hook["entry"] for hook in local["hooks"]] == steps("lint")
    for hook in local["hooks"]:
        assert (hook["language"], hook["pass_filenames"], hook["always_run"]) == ("system", False, True), hook["id"]


def test_the_commands_that_are_shown_can_be_run() -> None:
    for command in re.findall(r"(?:`|^    )make ([^`\n]+)", CONTRIBUTING, re.MULTILINE):
        assert steps(*re.findall(r"\w+=\"[^\"]*\"|\S+", command)), command


def test_the_example_of_one_test_finds_some() -> None:
    lines = re.findall(r"^    \.venv/bin/python -m pytest (\S+)(?: -k (\w+))?$", CONTRIBUTING, re.MULTILINE)
    assert len(lines) == 2
    for path, word in lines:
        assert re.search(rf"^def test_\w*{word}", (ROOT / path).read_text(), re.MULTILINE), word


def test_the_latest_version_is_the_one_that_gets_fixes() -> None:
    rows = re.findall(r"^\| ([\d.]+) \| (yes|no) \|$", (ROOT / "SECURITY.md").read_text(), re.MULTILINE)
    assert [version for version, fixes in rows if fixes == "yes"] == [VERSION.rpartition(".")[0]]
