"""What single pages promise: failures.md, security.md, tools.md."""

from __future__ import annotations

import re

import pytest

from orchestrator.importing.sources import NEEDED
from orchestrator.operations.conditions import AlertCondition
from routes.command_line import main
from tests.faults.scenarios import SCENARIOS
from tests.faults.world import Scenario
from tests.support.surroundings import ROOT

FAILURES = (ROOT / "docs/failures.md").read_text()
SOURCES = "\n".join(
    path.read_text() for folder in ("deduplication", "orchestrator", "routes") for path in (ROOT / folder).rglob("*.py")
)


def doubled(scenario: Scenario) -> str:
    window = f"window ({scenario.window})" if len(scenario.window) == 1 else scenario.window
    return f"at most {scenario.most_doubles}: {window}" if scenario.most_doubles else window or "0"


def test_every_fault_has_its_row_with_the_duplicates_that_make_faults_allows() -> None:
    (table,) = re.findall(r"^\| fault \| doubled \|\n\|---\|---\|\n((?:\|.*\n)+)", FAILURES, re.MULTILINE)
    assert table.splitlines() == [f"| {each.name} | {doubled(each)} |" for each in SCENARIOS]


@pytest.mark.parametrize("words", re.findall(r'(?:[Ll]og|warning|see): "([^"]+)"|see "([^"]+)" in the log', FAILURES))
def test_the_words_to_look_for_in_the_log_are_those_of_the_code(words: tuple[str, str]) -> None:
    """With ... for what differs each time."""
    for piece in max(words).split("..."):
        assert piece in SOURCES.replace("%s", "").replace('"\n', ""), piece


def test_what_health_says_is_what_it_can_say() -> None:
    for check, status in re.findall(r"^\| `(\w+): ([a-z ]+)`", FAILURES, re.MULTILINE):
        assert f'"{status}"' in SOURCES, f"{check}: {status}"


def test_every_alarm_is_found_by_its_name() -> None:
    (table,) = re.findall(r"^\| you see \|.*\n((?:\|.*\n)+)", FAILURES, re.MULTILINE)
    seen = "\n".join(row.split(" | ")[0] for row in table.splitlines())
    assert [condition for condition in AlertCondition if f"`{condition}`" not in seen] == []


def test_every_promise_of_the_security_page_names_a_test() -> None:
    """That there is such a test, test_names.py sees."""
    lines = [line for line in (ROOT / "docs/security.md").read_text().splitlines() if line.startswith("| ")]
    rows = [line for line in lines if not line.endswith("| test |")]
    assert len(rows) > 30
    assert [row for row in rows if not re.search(r"`test_\w+`[^|]*\|$", row)] == []


def test_the_tools_page_has_the_port_of_listen_and_the_columns_of_an_import() -> None:
    page = (ROOT / "docs/tools.md").read_text().replace("`", "")
    (port,) = (each for each in main.commands["listen"].params if each.name == "port")
    assert f"http://127.0.0.1:{port.default}/" in page
    assert NEEDED in page
