"""What the README shows works as shown."""

from __future__ import annotations

import json
import re
import secrets
import subprocess
import textwrap
import time
from pathlib import Path

import pytest

from deduplication.stores.memory import MemoryStore, Shelf
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
    first, messages, reset = answers
    assert [each["status"] for each in messages["results"]] == ["processed", "already_processed"]
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
    shipped = load_config(load_settings())
    assert shown.patterns == shipped.patterns
    gates = [[(r.match, r.subject_groups, r.media, r.realtime_only) for r in c.routes] for c in (shown, shipped)]
    assert gates[0] == gates[1]


def test_the_shown_media_section_loads(tmp_path: Path) -> None:
    (block,) = [block for block in blocks() if block.startswith("[media]")]
    path = tmp_path / "mailonce.toml"
    path.write_text(block)
    config = load_config(load_settings(mailonce_config=path))
    assert config.media.resolve == ("bit.ly",)
    assert config.media.identity_parameters["files.example"] == ("id",)


@pytest.mark.parametrize("module", ["reservations", "locks", "content", "realtime_guard"])
def test_the_example_of_every_vocabulary_runs(module: str) -> None:
    (block,) = commands(f"from deduplication.{module} import")
    store = MemoryStore(shelf=Shelf())
    given = {"store": store, "new_token": lambda: secrets.token_hex(8), "text": "Hello", "timestamp": time.time() + 1}
    exec(block, {**given, "post": {"id": 1, "url": "https://a.example/1"}})  # noqa: S102 - our own README


def test_every_setting_stands_in_the_table() -> None:
    for name in Settings.model_fields:
        assert name.upper() in README, name


@pytest.mark.parametrize("target", ["run", "test", "lint", "demo", "bench", "faults"])
def test_every_make_target_exists(target: str) -> None:
    assert f"make {target}" in README
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
