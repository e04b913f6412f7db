"""Links lead somewhere, even when the pages are read as plain Markdown."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.docs.pages import FOR_CONTRIBUTORS, PAGES, anchors, inline, links, name_of
from tests.support.surroundings import ROOT

NAV = re.compile(r"^\s+- .*: (\S+\.md)$", re.MULTILINE)


@pytest.mark.parametrize("page", (*PAGES, *FOR_CONTRIBUTORS), ids=name_of)
def test_links_within_the_repository_exist_and_pictures_say_what_they_show(page: Path) -> None:
    lost = [link for link in links(page) if not re.match(r"https?://", link) and not _exists(page, link)]
    assert not lost, f"{name_of(page)} links to nowhere: {lost}"
    assert all(token.content for token in inline(page) if token.type == "image")


def _exists(page: Path, link: str) -> bool:
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
