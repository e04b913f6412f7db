"""The version of this package."""

from functools import cache
from importlib import metadata


@cache
def our_version() -> str:
    return metadata.version("mailonce")
