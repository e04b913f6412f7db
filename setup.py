"""What pyproject.toml has no words for: the files that a wheel puts beside the packages, into share/mailonce."""

from pathlib import Path

from setuptools import setup

FOLDERS = ("deploy", "docs", "examples")
FILES = ("CHANGELOG.md", "constraints.txt")
NOT_OURS = {"__pycache__", "node_modules", ".env"}  # what running an example leaves behind


def shared() -> list[tuple[str, list[str]]]:
    """As setuptools wants it: each folder with its files."""
    found = [("share/mailonce", [name for name in FILES if Path(name).is_file()])]
    for top in FOLDERS:
        for folder in sorted({path.parent for path in Path(top).rglob("*") if path.is_file()}):
            if NOT_OURS.isdisjoint(folder.parts):
                files = [str(path) for path in sorted(folder.iterdir()) if path.is_file() and path.name not in NOT_OURS]
                found.append((f"share/mailonce/{folder.as_posix()}", files))
    return found


setup(data_files=shared())
