"""``make docs``: the site builds without a warning, reads as written, and loads nothing from elsewhere."""

import importlib.util
import os
import re
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.support.browser import open_browser
from tests.support.surroundings import ROOT, clean_environment, output_of

NAMES = [page.stem for page in sorted((ROOT / "docs").glob("*.md"))]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if importlib.util.find_spec("material") is None:
        how = "the documentation is built with the extra docs: make docs installs it"
        if os.environ.get("CI"):
            pytest.fail(how)
        pytest.skip(how)
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    output_of(command, env=clean_environment(NO_MKDOCS_2_WARNING="1"))
    return folder


@pytest.mark.parametrize("name", NAMES)
def test_lists_and_tables_of_a_page_are_such(site: Path, name: str) -> None:
    page = (site / f"{name}.html").read_text()
    (article,) = re.findall(r"<article.*?</article>", page, re.DOTALL)
    swallowed = re.findall(r"<p>(?:(?!</p>).)*\n(?:- |\d+\. |\|).*", article)
    assert swallowed == [], "mkdocs needs an empty line before it"
    assert "```" not in re.sub(r"<(pre|code)\b.*?</\1>", "", article, flags=re.DOTALL)


def test_the_search_finds_every_page(site: Path) -> None:
    index = (site / "search/search_index.json").read_text()
    assert [name for name in NAMES if f'"{name}.html' not in index] == []


def test_a_browser_loads_every_page_from_the_site_alone_and_without_errors(site: Path) -> None:
    address = "http://docs.example"
    with open_browser() as browser:
        page = browser.new_page()
        page.route(f"{address}/**", lambda route: route.fulfill(path=site / urlsplit(route.request.url).path[1:]))
        asked: list[str] = []
        complaints: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        for name in NAMES:
            page.goto(f"{address}/{name}.html", wait_until="networkidle")
            for picture in page.locator("article img").all():
                assert picture.evaluate("image => image.complete && image.naturalWidth > 0")
        page.get_by_placeholder("Search").click()
        page.keyboard.type("breaker")
        page.locator(".md-search-result__item a").first.wait_for()
    assert asked
    assert [url for url in asked if not url.startswith((address, "data:", "blob:"))] == []
    assert complaints == []
