"""What single pages promise: README, api.md, failures.md, security.md, features.md, tools.md; and that links lead
somewhere, even when the pages are read as plain Markdown."""

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from deduplication.email import address_of
from deduplication.identity import compute_email_id
from orchestrator.config.model import AlertCondition
from orchestrator.importing.sources import NEEDED
from routes.command_line import main
from tests.api_page import PAGE as API_PAGE
from tests.api_page import page as api_page
from tests.api_page import read_document
from tests.docs.pages import FOR_CONTRIBUTORS, PAGES, anchors, blocks, inline, links, name_of
from tests.faults.scenarios import SCENARIOS
from tests.faults.world import Scenario
from tests.support.curl import read_curl
from tests.support.server import ADMIN_TOKEN, Server
from tests.support.surroundings import ROOT

README = ROOT / "README.md"
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


@pytest.mark.parametrize("page", ["security", "features"])
def test_every_promise_names_a_test(page: str) -> None:
    """test_names.py checks that it exists."""
    lines = [line for line in (ROOT / f"docs/{page}.md").read_text().splitlines() if line.startswith("| ")]
    rows = [line for line in lines if not line.endswith("| test |")]
    assert len(rows) > 30
    assert [row for row in rows if not re.search(r"`test_\w+`[^|]*\|$", row)] == []


def test_the_tools_page_has_the_port_of_listen_and_the_columns_of_an_import() -> None:
    page = (ROOT / "docs/tools.md").read_text().replace("`", "")
    (port,) = (each for each in main.commands["listen"].params if each.name == "port")
    assert f"http://127.0.0.1:{port.default}/" in page
    assert NEEDED in page


def test_the_email_that_the_readme_asks_about_is_the_one_it_sends() -> None:
    (sent,) = [block.text for block in blocks(README) if "/api/ingress/gmail" in block.text]
    (asked,) = [block.text for block in blocks(README) if "mailonce why" in block.text]
    email = json.loads(re.findall(r"-d '(.*)'", sent, re.DOTALL)[0])
    sender = address_of(email["sender"])
    assert compute_email_id(subject=email["subject"], sender=sender, date=email["date"]) in asked


def test_the_receiver_and_the_service_share_a_secret() -> None:
    texts = [block.text for block in blocks(README)]
    (secret,) = {found for text in texts for found in re.findall(r"whsec_\w+", text)}
    assert sum(secret in text for text in texts) == 2


def test_the_reference_of_the_api_is_up_to_date() -> None:
    assert API_PAGE.read_text() == api_page(read_document()), "stale: run make docs-reference"


def test_the_examples_of_the_api_are_true(tmp_path: Path) -> None:
    (command,) = re.findall(r"^    (curl .+)$", API_PAGE.read_text(), re.M)
    (printed,) = re.findall(r'^    (\{"type": "about:blank".+?\})$', API_PAGE.read_text(), re.M | re.S)
    with Server(tmp_path) as server:
        assert read_curl(command.replace("http://127.0.0.1:8000", server.url)).send().json()["openapi"] == "3.1.0"
        asked = f"curl -sS {server.url}/api/admin/decisions?limit=0 -H 'Authorization: Bearer {ADMIN_TOKEN}'"
        assert read_curl(asked).send().json() == json.loads(printed)


# Links

NAV = re.compile(r"^\s+- .*: (\S+\.md)$", re.MULTILINE)


@pytest.mark.parametrize("page", (*PAGES, *FOR_CONTRIBUTORS), ids=name_of)
def test_links_within_the_repository_exist_and_pictures_say_what_they_show(page: Path) -> None:
    lost = [link for link in links(page) if not re.match(r"https?://", link) and not _link_exists(page, link)]
    assert not lost, f"{name_of(page)} links to nowhere: {lost}"
    assert all(token.content for token in inline(page) if token.type == "image")


def _link_exists(page: Path, link: str) -> bool:
    path, _, anchor = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    if not target.is_relative_to(ROOT) or not target.exists():
        return False
    return not anchor or anchor in anchors(target)


@pytest.mark.parametrize("name", ["gates", "setups", "way"])
def test_drawings_have_a_title_a_description_and_both_schemes(name: str) -> None:
    drawing = ElementTree.parse(ROOT / f"docs/assets/{name}.svg").getroot()  # noqa: S314 - our own file
    texts = {element.tag.rpartition("}")[2]: element.text for element in drawing}
    assert texts["title"] and texts["desc"]
    assert drawing.attrib["aria-labelledby"] == "title desc"
    assert "prefers-color-scheme: dark" in str(texts["style"])


def test_every_page_is_in_the_navigation_and_one_click_from_the_start() -> None:
    pages = sorted(page.name for page in (ROOT / "docs").glob("*.md"))
    listed = NAV.findall((ROOT / "mkdocs.yml").read_text())
    assert (sorted(listed), listed[0]) == (pages, "index.md")
    assert set(pages) <= {link.partition("#")[0] for link in links(ROOT / "docs/index.md")} | {"index.md"}
