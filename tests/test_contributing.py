"""What contributors are told is true: commands, links, hooks and templates."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.surroundings import ROOT, clean_environment

PAGES = ("CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", ".github/pull_request_template.md")
TEMPLATES = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"))
FORMS = [path for path in TEMPLATES if path.name != "config.yml"]
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


def loaded(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def test_the_hooks_run_what_make_lint_runs() -> None:
    (local,) = loaded(ROOT / ".pre-commit-config.yaml")["repos"]
    assert local["repo"] == "local", "nothing is downloaded"
    assert [hook["entry"] for hook in local["hooks"]] == steps("lint")
    for hook in local["hooks"]:
        assert (hook["language"], hook["pass_filenames"], hook["always_run"]) == ("system", False, True), hook["id"]


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_somewhere(page: str) -> None:
    for link in re.findall(r"\]\(([^)]+)\)", (ROOT / page).read_text()):
        assert link.startswith("https://") or (ROOT / link).exists(), link


@pytest.mark.parametrize("page", PAGES)
def test_every_make_command_and_file_exists(page: str) -> None:
    text = (ROOT / page).read_text()
    for command in re.findall(r"(?:`|^    )make ([^`\n]+)", text, re.MULTILINE):
        assert steps(*re.findall(r"\w+=\"[^\"]*\"|\S+", command)), command
    for path in re.findall(r"\b(?:tests|deploy|docs|routes|orchestrator|deduplication)/[\w./]*", text):
        assert (ROOT / path.rstrip(".")).exists(), path


def test_the_example_of_one_test_finds_some() -> None:
    lines = re.findall(r"^    \.venv/bin/python -m pytest (\S+)(?: -k (\w+))?$", CONTRIBUTING, re.MULTILINE)
    assert len(lines) == 2
    for path, word in lines:
        assert re.search(rf"^def test_\w*{word}", (ROOT / path).read_text(), re.MULTILINE), word


def test_the_latest_version_is_the_one_that_gets_fixes() -> None:
    rows = re.findall(r"^\| ([\d.]+) \| (yes|no) \|$", (ROOT / "SECURITY.md").read_text(), re.MULTILINE)
    assert [version for version, fixes in rows if fixes == "yes"] == [VERSION.rpartition(".")[0]]


def test_nothing_is_promised_at_an_address_that_is_not_ours() -> None:
    for page in (*PAGES, *(str(path.relative_to(ROOT)) for path in TEMPLATES)):
        addresses = set(re.findall(r"[\w.+-]+@[\w-]+\.[\w.-]+", (ROOT / page).read_text()))
        assert {each for each in addresses if not each.endswith("@example.org")} == set(), page


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_an_issue_form_is_one_that_github_takes(path: Path) -> None:
    """By the rules of its documentation: a form that breaks one is left out without a word."""
    form = loaded(path)
    assert {"name", "description", "body"} <= set(form) <= {"name", "description", "body", "labels", "title"}
    asked = [field for field in form["body"] if field["type"] != "markdown"]
    assert asked, "it asks for something"
    ids = [field["id"] for field in asked]
    assert len(set(ids)) == len(ids) and all(re.fullmatch(r"[\w-]+", each) for each in ids)
    labels = [field["attributes"]["label"] for field in asked]
    assert len(set(labels)) == len(labels)
    for field in form["body"]:
        assert field["type"] in {"markdown", "textarea", "input", "dropdown", "checkboxes"}
        assert set(field) <= {"type", "id", "attributes", "validations"}
        if field["type"] == "markdown":
            assert field["attributes"]["value"].strip()
        if field["type"] == "dropdown":
            options = field["attributes"]["options"]
            assert all(isinstance(each, str) for each in options) and len(set(options)) == len(options)
        if field["type"] == "checkboxes":
            assert all(each["label"] for each in field["attributes"]["options"])
