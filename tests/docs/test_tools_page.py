"""docs/tools.md, beside what tests/docs/ does with every page: the port and the columns that it names."""

from __future__ import annotations

import re

from orchestrator.importing.rows import TAKES
from routes.command_line import main
from tests.support.surroundings import ROOT

PAGE = (ROOT / "docs/tools.md").read_text()


def test_the_port_that_the_page_names_is_the_default() -> None:
    (port,) = (each for each in main.commands["listen"].params if each.name == "port")
    assert f"http://127.0.0.1:{port.default}/" in PAGE


def test_the_columns_are_those_that_are_read() -> None:
    assert TAKES in re.sub("`", "", PAGE)
