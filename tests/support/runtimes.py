"""Programs of other languages that a test needs: missing, they skip it on a machine of yours and fail it in CI."""

from __future__ import annotations

import os
import shutil

import pytest


def runtime(name: str, package: str) -> str:
    """Where it is; ``package`` is Debian's."""
    found = shutil.which(name)
    if found:
        return found
    how = f"{name} is not on PATH; apt-get install {package} brings it"
    if os.environ.get("CI"):
        pytest.fail(how)
    pytest.skip(how)
