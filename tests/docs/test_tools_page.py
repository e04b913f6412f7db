"""The port and the columns that docs/tools.md names."""

from __future__ import annotations

import re

from orchestrator.importing.items import NEEDED
from routes.command_line import main
from tests.support.surroundings import ROOT

PAGE = (ROOT / "docs/tools.md").read_text()


def test_the_port_that_the_page_names_is_the_default() -> None:
    (port,) = (each for each in main.commands["listen"].params if each.name == "port")
    assert f"http://127.0.0.1:{port.default}/" in PAGE


def test_the_columns_are_those_that_are_read() -> None:
    assert NEEDED in re.sub("`", "", PAGE)
