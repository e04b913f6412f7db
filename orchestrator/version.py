"""The version of this package."""

from __future__ import annotations

from functools import cache
from importlib import metadata


@cache
def our_version() -> str:
    try:
        return metadata.version("mailonce")
    except metadata.PackageNotFoundError:  # a checkout that is not installed
        return "0"
