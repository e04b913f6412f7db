"""Actions of operators: in DATA_DIR/audit.log, whatever LOG_LEVEL is, and in the log."""

from __future__ import annotations

import logging
import os
import re
from collections import deque
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

_acting: ContextVar[str] = ContextVar("_acting", default="")
_LINE = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}) (.*?): AUDIT (\S+) ?(.*)")


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
    """Those of the last ``most`` lines, newest first. Lines in another format are skipped."""
    try:
        with (data_dir / FILE).open(encoding="utf-8", errors="replace") as file:
            newest = reversed(deque(file, maxlen=most))
    except FileNotFoundError:
        return []
    actions = []
    for time, by, what, details in (found.groups() for line in newest if (found := _LINE.match(line))):
        moment = datetime.fromisoformat(time).astimezone()  # logging writes local time
        actions.append(Action(round(moment.timestamp() * 1000), by, what, details))
    return actions
