"""docs/api.md: its reference is that of the service, and what it prints works."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.api_page import PAGE, page, read_document
from tests.support.curl import read_curl
from tests.support.server import ADMIN_TOKEN, Server


def test_the_reference_is_up_to_date() -> None:
    assert PAGE.read_text() == page(read_document()), "make docs-reference writes it anew"


def test_its_examples_are_true(tmp_path: Path) -> None:
    (command,) = re.findall(r"^    (curl .+)$", PAGE.read_text(), re.M)
    (printed,) = re.findall(r'^    (\{"type": "about:blank".+?\})$', PAGE.read_text(), re.M | re.S)
    with Server(tmp_path) as server:
        assert read_curl(command.replace("http://127.0.0.1:8000", server.url)).send().json()["openapi"] == "3.1.0"
        asked = f"curl -sS {server.url}/api/admin/decisions?limit=0 -H 'Authorization: Bearer {ADMIN_TOKEN}'"
        assert read_curl(asked).send().json() == json.loads(printed)
