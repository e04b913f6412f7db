"""A real Chromium for the tests of the page: Debian's, driven by playwright."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = [
    "--no-sandbox",  # tests may run as root
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def chromium() -> str:
    """Where it is. Missing, it skips the test on a machine of yours and fails it in CI."""
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found:
        return found
    how = "the tests of the page need a Chromium on PATH: apt-get install chromium"
    if os.environ.get("CI"):
        pytest.fail(how)
    pytest.skip(how)


@contextmanager
def open_browser() -> Iterator[Browser]:
    path = chromium()
    with tempfile.TemporaryDirectory(prefix="mailonce-browser-", ignore_cleanup_errors=True) as home:
        surroundings: dict[str, str | float | bool] = {"PATH": os.environ["PATH"], "HOME": home}
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=path, args=FLAGS, env=surroundings)
            yield browser
            browser.close()
