"""What the README shows works as shown."""

from __future__ import annotations

import re
import secrets
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from flask import Flask
from werkzeug.serving import make_server

from deduplication.stores.memory import MemoryStore, Shelf
from orchestrator.config import load_config
from orchestrator.delivery.fetching import fetch
from orchestrator.delivery.http import HttpDestination, HttpOptions
from orchestrator.delivery.webhook import DeliveryFailed, Webhook
from orchestrator.settings import Settings, load_settings
from routes.providers.base import Surroundings
from routes.providers.registry import TYPES, open_providers
from tests.support.curl import read_curl
from tests.support.server import Server
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
    first, dead, replays, messages, reset = answers
    assert [each["status"] for each in messages["results"]] == ["processed", "already_processed"]
    assert (first["status"], first["subject_group"]) == ("processed", "lot_456")
    assert first["email_id"] in README
    assert dead == {"success": True, "deliveries": [], "more": False}
    assert (replays["dry_run"], replays["matched"]) == (True, 0)
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


@pytest.mark.parametrize("module", ["reservations", "locks", "content", "realtime_guard"])
def test_the_example_of_every_vocabulary_runs(module: str) -> None:
    (block,) = commands(f"from deduplication.{module} import")
    store = MemoryStore(shelf=Shelf())
    given = {"store": store, "new_token": lambda: secrets.token_hex(8), "text": "Hello", "timestamp": time.time() + 1}
    exec(block, {**given, "post": {"id": 1, "url": "https://a.example/1"}})  # noqa: S102 - our own README


def test_the_shown_receiver_verifies_and_deduplicates(tmp_path: Path) -> None:
    """Two attempts of one webhook, one of them forged."""
    (block,) = commands("from flask import Flask, abort")
    secret = "whsec_" + "A" * 32
    given: dict[str, Any] = {"SECRET": secret, "__name__": "receiver"}
    exec(block, given)  # noqa: S102 - our own README
    with serving(given["app"]) as url:
        good = HttpDestination("crm", HttpOptions(f"{url}/hooks/mail", (secret,)), pool_size=1)
        webhook = Webhook("msg_1", {"email_id": "e1", "subject": "Signé 🖋"})
        assert [good.deliver(webhook).receiver_id for _ in range(2)] == ["e1", "e1"]
        forged = HttpDestination("crm", HttpOptions(f"{url}/hooks/mail", ("whsec_" + "B" * 32,)), pool_size=1)
        with pytest.raises(DeliveryFailed, match="answered 401"):
            forged.deliver(webhook)
    assert given["seen"] == {"msg_1": "e1"}


@contextmanager
def serving(app: Flask) -> Iterator[str]:
    server = make_server("127.0.0.1", 0, app)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_every_setting_stands_in_the_table() -> None:
    for name in Settings.model_fields:
        assert name.upper() in README, name


@pytest.mark.parametrize("target", ["run", "test", "lint", "demo", "bench", "faults"])
def test_every_make_target_exists(target: str) -> None:
    assert f"make {target}" in README
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
