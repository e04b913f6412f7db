"""Which version this is."""

from __future__ import annotations

from importlib import metadata


def our_version() -> str:
    try:
        return metadata.version("mailonce")
    except metadata.PackageNotFoundError:  # a checkout that nobody has installed
        return "0"
