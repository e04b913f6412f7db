"""What the README shows works as shown."""

from __future__ import annotations

import json
import re
import subprocess
import textwrap
from pathlib import Path

import pytest

from orchestrator.config import load_config
from orchestrator.settings import Settings, load_settings
from tests.support.server import ROOT, Server

README = (ROOT / "README.md").read_text()


def blocks() -> list[str]:
    """Every indented block, dedented."""
    found = re.findall(r"(?:^(?: {4,}.*)?\n)+", README, re.MULTILINE)
    return [textwrap.dedent(block).strip() for block in found if block.strip()]


def commands(word: str) -> list[str]:
    return [block for block in blocks() if block.startswith(word)]


def test_the_curl_lines_can_be_pasted(tmp_path: Path) -> None:
    with Server(tmp_path / "data", INGRESS_TOKEN="", ADMIN_TOKEN="") as server:
        answers = []
        for line in commands("curl"):
            pasted = line.replace("http://127.0.0.1:8000", server.url)
            shown = subprocess.run(["bash", "-c", pasted], cwd=tmp_path, capture_output=True, text=True, check=True)
            answers.append(json.loads(shown.stdout))
    first, reset = answers
    assert (first["status"], first["subject_group"]) == ("processed", "lot_456")
    assert first["email_id"] in README
    assert reset["success"] is True
    assert reset["dry_run"] is True
    assert reset["names"] == 5


def test_the_shown_mailonce_toml_is_what_ships(tmp_path: Path) -> None:
    (block,) = [block for block in blocks() if block.startswith("[destinations.default]")]
    path = tmp_path / "mailonce.toml"
    path.write_text(block)
    shown = load_config(load_settings(mailonce_config=path))
    assert shown.patterns == load_config(load_settings()).patterns
    assert [(r.match, r.subject_groups) for r in shown.routes] == [
        (r.match, r.subject_groups) for r in load_config(load_settings()).routes
    ]


def test_every_setting_stands_in_the_table() -> None:
    for name in Settings.model_fields:
        assert name.upper() in README, name


@pytest.mark.parametrize("target", ["run", "test", "lint", "demo", "bench", "faults"])
def test_every_make_target_exists(target: str) -> None:
    assert f"make {target}" in README
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
