"""The audit list: who did what, from audit.log of this machine, the newest first."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from orchestrator.audit import FILE

MOST_READ_BYTES = 1024 * 1024
_LINE = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d),(\d{3}) (.*?): AUDIT (\S+) ?(.*)")


@dataclass(frozen=True)
class Act:
    """``at_ms`` is the time of day; ``details`` as written."""

    at_ms: int
    by: str
    what: str
    details: str


def read_acts(data_dir: Path, most: int) -> list[Act]:
    """Lines of an older form, or not ours, are left out. A long file is read from its end."""
    acts = [act for line in _last_lines(data_dir / FILE) if (act := _act(line))]
    return acts[-most:][::-1]


def _last_lines(path: Path) -> Iterator[str]:
    try:
        with path.open("rb") as file:
            start = max(0, file.seek(0, os.SEEK_END) - MOST_READ_BYTES)
            file.seek(start)
            lines = file.read().decode(errors="replace").splitlines()
    except FileNotFoundError:
        return
    yield from lines[1:] if start else lines  # the first may be half a line


def _act(line: str) -> Act | None:
    found = _LINE.fullmatch(line)
    if not found:
        return None
    written = datetime.strptime(found[1], "%Y-%m-%d %H:%M:%S").astimezone()  # logging writes this machine's time
    return Act(int(written.timestamp() * 1000) + int(found[2]), found[3], found[4], found[5])
