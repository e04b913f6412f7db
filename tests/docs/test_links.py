"""Links lead somewhere, also for who reads the pages as plain Markdown."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.docs.pages import PAGES, anchors, code_in_lines, inline, links, name_of
from tests.support.surroundings import ROOT

NAV = re.compile(r"^\s+- .*: (\S+\.md)$", re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_within_the_repository_exist(page: Path) -> None:
    lost = [link for link in links(page) if not re.match(r"https?://", link) and not _exists(page, link)]
    assert not lost, f"{name_of(page)} links to nowhere: {lost}"


def _exists(page: Path, link: str) -> bool:
    path, _, anchor = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    if not target.is_relative_to(ROOT) or not target.exists():
        return False
    return not anchor or anchor in anchors(target)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_pictures_say_what_they_show(page: Path) -> None:
    assert all(token.content for token in inline(page) if token.type == "image")


@pytest.mark.parametrize("name", ["gates", "setups", "way"])
def test_drawings_have_a_title_a_description_and_both_schemes(name: str) -> None:
    drawing = ElementTree.parse(ROOT / f"docs/assets/{name}.svg").getroot()  # noqa: S314 - our own file
    texts = {element.tag.rpartition("}")[2]: element.text for element in drawing}
    assert texts["title"] and texts["desc"]
    assert drawing.attrib["aria-labelledby"] == "title desc"
    assert "prefers-color-scheme: dark" in str(texts["style"])


def test_every_page_is_in_the_navigation_in_its_order() -> None:
    listed = NAV.findall((ROOT / "mkdocs.yml").read_text())
    assert sorted(listed) == sorted(page.name for page in (ROOT / "docs").glob("*.md"))
    assert listed[0] == "index.md"


def test_every_page_is_one_click_from_the_start() -> None:
    start = {link.partition("#")[0] for link in links(ROOT / "docs/index.md")}
    assert {page.name for page in (ROOT / "docs").glob("*.md")} <= start | {"index.md"}


@pytest.mark.parametrize(
    "question",
    [
        "Is it working?",
        "What was stopped, why, and can I send it anyway?",
        "What happened to the email from X at 14:02?",
        "How do I back up, and restore?",
        "How do I upgrade?",
        "How do I move to Redis?",
        "How do I add a second server?",
        "How do I rotate each secret?",
        "Why does my provider get 401?",
        "What does it cost at a million emails a day?",
    ],
)
def test_the_start_leads_to_the_answer_of_each_question(question: str) -> None:
    text = (ROOT / "docs/index.md").read_text()
    assert re.search(rf"\[{re.escape(question)}\]\(\w+\.md#[\w-]+\)", text)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_paths_that_are_named_exist(page: Path) -> None:
    ours = re.compile(r"(?:deploy|docs|examples|tests|routes|orchestrator|deduplication)/[\w./-]*")
    named = [span for span in code_in_lines(page) if ours.fullmatch(span)]
    assert not [path for path in named if not (ROOT / path).exists()]
