"""Actions of operators: in DATA_DIR/audit.log, whatever LOG_LEVEL is, and in the log."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from deduplication.files import PRIVATE, make_private
from orchestrator.logs import LineFormatter

audit = logging.getLogger("mailonce.audit")

FILE = "audit.log"
MOST_READ_BYTES = 1024 * 1024

_acting: ContextVar[str] = ContextVar("_acting", default="")
_LINE = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d),(\d{3}) (.*?): AUDIT (\S+) ?(.*)")


@contextmanager
def acting_as(by: str) -> Iterator[None]:
    """Names the person behind the actions inside; otherwise the lines name the process."""
    token = _acting.set(by)
    try:
        yield
    finally:
        _acting.reset(token)


def keep_audit(data_dir: Path, by: str) -> logging.Handler:
    """Writes audit.log from now on. The handler is returned for callers that remove it before the process ends."""
    handler: logging.Handler
    try:
        os.close(os.open(data_dir / FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND, PRIVATE))
        make_private(data_dir / FILE)
        handler = logging.FileHandler(data_dir / FILE, encoding="utf-8")
    except OSError as error:
        audit.error("%s cannot be written (%s): actions of operators are only in the log", data_dir / FILE, error)
        handler = logging.NullHandler()

    def add_actor(record: logging.LogRecord) -> bool:
        record.by = _acting.get() or by
        return True

    handler.addFilter(add_actor)
    handler.setFormatter(LineFormatter("%(asctime)s %(by)s: %(message)s"))
    audit.addHandler(handler)
    audit.setLevel(logging.INFO)
    return handler


@dataclass(frozen=True)
class Action:
    at_ms: int
    by: str
    what: str
    details: str


def read_actions(data_dir: Path, most: int) -> list[Action]:
    """Newest first. Only the end of a long file is read, and lines in another format are skipped."""
    try:
        with (data_dir / FILE).open("rb") as file:
            start = max(0, file.seek(0, os.SEEK_END) - MOST_READ_BYTES)
            file.seek(start)
            lines = file.read().decode(errors="replace").splitlines()
    except FileNotFoundError:
        return []
    whole = lines[1:] if start else lines  # the first may be half a line
    found = [match for line in whole if (match := _LINE.fullmatch(line))][-most:]
    actions = []
    for time, ms, by, what, details in (match.groups() for match in reversed(found)):
        local = datetime.strptime(time, "%Y-%m-%d %H:%M:%S").astimezone()  # logging writes local time
        actions.append(Action(int(local.timestamp() * 1000) + int(ms), by, what, details))
    return actions
