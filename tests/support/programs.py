"""Programs of the system that some tests need."""

from __future__ import annotations

import os
import shutil

import pytest


def program(name: str, package: str) -> str:
    """Where it is missing, that is a failure in CI; elsewhere the test is skipped."""
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")
    if found:
        return found
    how = f"{name} is not on PATH; apt-get install {package} brings it"
    if os.environ.get("CI"):
        pytest.fail(how)
    pytest.skip(how)
