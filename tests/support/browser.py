"""A real Chromium for the tests of the page: Debian's, driven by playwright."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, Page, sync_playwright

from tests.support.programs import program

FLAGS = [
    "--no-sandbox",  # tests may run as root
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def fill_in_sign_in(page: Page, url: str, token: str) -> None:
    """Returns once the next page has its script."""
    page.goto(f"{url}/sign-in")
    page.fill("#token", token)
    page.fill("#name", "Ada")
    with page.expect_navigation():
        page.click("button.primary")


@contextmanager
def open_browser() -> Iterator[Browser]:
    path = program("chromium", "chromium")
    with tempfile.TemporaryDirectory(prefix="mailonce-browser-", ignore_cleanup_errors=True) as home:
        surroundings: dict[str, str | float | bool] = {"PATH": os.environ["PATH"], "HOME": home}
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=path, args=FLAGS, env=surroundings)
            yield browser
            browser.close()
