"""The version of this package."""

from __future__ import annotations

from functools import cache
from importlib import metadata


@cache
def our_version() -> str:
    return metadata.version("mailonce")
