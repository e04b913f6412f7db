"""What the README shows works as shown."""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
import subprocess
import sys
import textwrap
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest
import requests

from orchestrator.config.model import load_config
from orchestrator.config.settings import Settings, load_settings
from orchestrator.delivery.fetching import fetch
from orchestrator.delivery.http import HttpDestination, HttpOptions
from orchestrator.delivery.webhook import DeliveryFailed, Webhook
from orchestrator.item import message_item
from orchestrator.operations.alerts import AlertCondition
from routes.providers.base import Surroundings
from routes.providers.message import parse
from routes.providers.registry import TYPES, open_providers
from tests.support.curl import read_curl
from tests.support.redis_server import RedisServer, free_port
from tests.support.server import INGRESS_TOKEN, Server, email
from tests.support.sink import Sink
from tests.support.surroundings import ROOT

README = (ROOT / "README.md").read_text()


def blocks() -> list[str]:
    """Every indented block, dedented."""
    found = re.findall(r"(?:^(?: {4,}.*)?\n)+", README, re.MULTILINE)
    return [textwrap.dedent(block).strip() for block in found if block.strip()]


def commands(word: str) -> list[str]:
    return [block for block in blocks() if block.startswith(word)]


def test_the_curl_lines_can_be_pasted(tmp_path: Path) -> None:
    with Server(tmp_path / "data", INGRESS_TOKEN="", ADMIN_TOKEN="") as server:
        answers: list[dict[str, Any]] = []
        for line in "\n\n".join(commands("curl")).split("\n\n"):
            pasted = line.replace("http://127.0.0.1:8000", server.url)
            answers.append(read_curl(pasted, tmp_path).send().json())
        first_line = commands("curl")[0].replace("http://127.0.0.1:8000", server.url)
        other_body = read_curl(first_line.replace('"Hello"', '"Something else"'), tmp_path).send().json()
    first, dead, replays, decisions, releases, messages, reset = answers
    assert [each["status"] for each in messages["results"]] == ["processed", "already_processed"]
    assert first["status"] == other_body["status"] == "processed", "what a newcomer tries next is no duplicate"
    assert first["email_id"] in README
    assert dead == {"success": True, "deliveries": [], "more": False, "next": None}
    assert (replays["dry_run"], replays["matched"]) == (True, 0)
    assert decisions == {"success": True, "decisions": [], "more": False, "next": None}
    assert releases == {"success": True, "dry_run": True, "matched": 0}
    assert reset["success"] is True
    assert reset["dry_run"] is True
    assert reset["names"] == 3


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


def test_the_shown_alerts_section_loads_with_what_ships_and_every_condition_has_its_row(tmp_path: Path) -> None:
    (block,) = [block for block in blocks() if block.startswith("[alerts]")]
    path = tmp_path / "mailonce.toml"
    path.write_text(block)
    shown, shipped = load_config(load_settings(mailonce_config=path)).alerts, load_config(load_settings()).alerts
    assert (shown.after_s, shown.off, shown.secret) == (shipped.after_s, shipped.off, shipped.secret)
    assert shown.url
    rows = re.findall(r"^\| `(\w+)` \| .* \|$", README, re.MULTILINE)
    assert set(AlertCondition) <= set(rows)


def test_the_shown_providers_load_and_every_provider_has_its_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAILGUN_SIGNING_KEY", "key-of-the-readme")
    (block,) = [block for block in blocks() if block.startswith("[providers.mailgun]")]
    path = tmp_path / "mailonce.toml"
    path.write_text(block)
    opened = open_providers(load_config(load_settings(mailonce_config=path)), Surroundings((), fetch))
    assert {"mailgun", "helpdesk"} <= opened.keys()
    for name in TYPES.keys() - {"json"}:
        assert f"/api/ingress/{name}" in README
        reject = TYPES[name].statuses.rejected or "4xx"
        (row,) = re.findall(rf"^\| .*/api/ingress/{name}`.*$", README, re.MULTILINE)
        assert str(reject) in row
        assert f"/ {TYPES[name].statuses.retry} |" in row


def paste(block: str, folder: Path, **more: str) -> str:
    """Into a fresh interpreter, with nothing in front of it. What it prints."""
    ran = subprocess.run(
        [sys.executable, "-"],
        input=block,
        cwd=folder,
        env={"PATH": os.environ["PATH"], **more},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def python_blocks() -> list[str]:
    return [block for block in blocks() if re.match(r"(from|import) \w", block)]


@pytest.mark.parametrize(
    ("module", "first", "again"),
    [
        ("reservations", "publish it\n", ""),
        ("locks", "publish it, under the number 1\n", "publish it, under the number 2\n"),
        ("content", "forward it\n", ""),
        ("realtime_guard", "handle it\n", "handle it\n"),
    ],
)
def test_the_example_of_every_vocabulary_can_be_pasted(tmp_path: Path, module: str, first: str, again: str) -> None:
    (block,) = [each for each in python_blocks() if f"from deduplication.{module} import" in each]
    assert [paste(block, tmp_path) for _ in range(2)] == [first, again]


def test_the_example_for_scripts_on_redis_can_be_pasted(tmp_path: Path, redis_server: RedisServer) -> None:
    (block,) = [each for each in python_blocks() if "from deduplication.redis_client import" in each]
    pasted = block.replace("redis://127.0.0.1:6379/0", redis_server.url)
    assert pasted != block
    assert [paste(pasted, tmp_path) for _ in range(2)] == ["process it\n", ""]
    assert redis_server.client.keys() == ["processed_ids:2026-11-16"]


def test_no_python_of_the_readme_is_left_untried() -> None:
    assert len(python_blocks()) == 6, "those above, and the receiver below"


def test_the_shown_receiver_verifies_and_deduplicates(tmp_path: Path) -> None:
    """Two attempts of one webhook, one of them forged."""
    (block,) = commands("from flask import Flask, abort")
    (secret,) = re.findall('SECRET = "(.*?)"', block)
    port = free_port()
    (tmp_path / "receiver.py").write_text(block.replace("port=9000", f"port={port}"))
    (tmp_path / ".venv").symlink_to(sys.prefix)
    assert "`.venv/bin/python receiver.py`" in README
    process = subprocess.Popen(
        [".venv/bin/python", "receiver.py"], cwd=tmp_path, env={"PATH": "/usr/bin:/bin"}, stderr=subprocess.DEVNULL
    )
    try:
        url = f"http://127.0.0.1:{port}/hooks/mail"
        _wait_for(port, process)
        good = HttpDestination("crm", HttpOptions(url, (secret,)), pool_size=1)
        attempts = [Webhook("msg_1", {"email_id": email_id, "subject": "Signé 🖋"}) for email_id in ("e1", "e2")]
        assert [good.deliver(webhook).receiver_id for webhook in attempts] == ["e1", "e1"], "the first one counts"
        post = message_item(parse({"source": "tg:news", "id": "1", "text": "Hello"}, ()))
        assert good.deliver(Webhook("msg_2", dict(post.payload))).receiver_id == post.key
        forged = HttpDestination("crm", HttpOptions(url, ("whsec_" + "B" * 32,)), pool_size=1)
        with pytest.raises(DeliveryFailed, match="answered 401"):
            forged.deliver(attempts[0])
    finally:
        process.terminate()
        process.wait()


def test_the_fields_of_the_webhooks_are_those_that_are_listed(tmp_path: Path) -> None:
    with Sink() as sink, Server(tmp_path, WEBHOOK_URL=sink.url) as server:
        server.post(email())
        requests.post(
            f"{server.url}/api/ingress/message",
            json={"source": "tg:news", "id": "1", "text": "Hello"},
            headers={"Authorization": f"Bearer {INGRESS_TOKEN}"},
            timeout=60,
        )
    listed = re.findall(r"(?:as JSON|other fields): (`.*?)\.\s", README, re.DOTALL)
    of_every_webhook = {"type", "timestamp"}
    told = [of_every_webhook | set(re.findall(r"`(\w+)`", each)) for each in listed]
    assert [set(got.payload) for got in sink.accepted] == told


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 30
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=5).close()
            return
        except OSError:
            assert process.poll() is None and time.monotonic() < deadline, "the receiver did not start"
            time.sleep(0.02)


def shown_commands() -> list[str]:
    """Every use of the command, in a block or within a line."""
    return re.findall(r"(?:^ +|`)(\S*\bmailonce(?: [^`\n]+)?)(?:`|$)", README, re.MULTILINE)


def test_the_commands_can_be_pasted(tmp_path: Path) -> None:
    """In the folder of the service, as a new user has them: nothing on PATH, and no environment."""
    (tmp_path / ".venv").symlink_to(sys.prefix)
    (tmp_path / "mailonce.toml").write_text("[providers.mailgun]\nsigning_key = 'key-of-the-readme'\n")
    pasted = [each for each in shown_commands() if " " in each]
    assert {each.split()[1] for each in pasted} == {
        "stats",
        "reset",
        "decisions",
        "why",
        "release",
        "deliveries",
        "replay",
        "pause",
        "resume",
        "worker",
        "check",
        "sample",
    }
    server = Server(tmp_path / "data")
    server.folder = tmp_path
    (first_email,) = re.findall(r"-d '(\{.*?\})'", commands("curl")[0], re.DOTALL)
    with server:
        server.post(json.loads(first_email))
        for line in pasted:
            assert line.startswith(".venv/bin/mailonce "), f"{line!r} is not on PATH"
            words = [*shlex.split(line), *(["--help"] if line.endswith(" worker") else [])]
            subprocess.run(
                words, cwd=tmp_path, env={"PATH": "/usr/bin:/bin"}, capture_output=True, check=True, timeout=60
            )


def test_prose_is_wrapped() -> None:
    prose = [line for line in README.splitlines() if not line.startswith(("|", "    "))]
    assert [line for line in prose if len(line) > 125] == []


def test_every_setting_stands_in_the_table() -> None:
    for name in Settings.model_fields:
        assert name.upper() in README, name


@pytest.mark.parametrize("target", ["run", "test", "lint", "demo", "bench", "faults"])
def test_every_make_target_exists(target: str) -> None:
    assert f"make {target}" in README
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_every_dependency_has_its_reason() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"], *(each for extra in project["optional-dependencies"].values() for each in extra)]
    names = {re.split(r"[\[>=<]", each)[0] for each in asked} - {"mailonce"}
    said = set(re.findall(r"[\w-]+", (ROOT / "docs/dependencies.md").read_text()))
    untold = {name for name in names if name not in said and not (name.startswith("types-") and "types-" in said)}
    assert not untold, "docs/dependencies.md says why"
