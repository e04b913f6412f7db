"""Who forgot or sent again what: lines in audit.log of DATA_DIR, whatever LOG_LEVEL says, and in the log as well."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from deduplication.private_files import PRIVATE, make_private
from orchestrator.logs import LineFormatter

audit = logging.getLogger("mailonce.audit")

FILE = "audit.log"

_acting: ContextVar[str] = ContextVar("_acting", default="")


@contextmanager
def acting_as(by: str) -> Iterator[None]:
    """What is done inside is done by them, where more is known than which process it was."""
    token = _acting.set(by)
    try:
        yield
    finally:
        _acting.reset(token)


def keep_audit(data_dir: Path, by: str) -> logging.Handler:
    """For the whole process. The handler is for those who want to end it earlier."""
    handler: logging.Handler
    try:
        os.close(os.open(data_dir / FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND, PRIVATE))
        make_private(data_dir / FILE)
        handler = logging.FileHandler(data_dir / FILE, encoding="utf-8")
    except OSError as error:
        audit.error("%s cannot be written (%s): what operators do stands in the log only", data_dir / FILE, error)
        handler = logging.NullHandler()

    def say_who(record: logging.LogRecord) -> bool:
        record.by = _acting.get() or by
        return True

    handler.addFilter(say_who)
    handler.setFormatter(LineFormatter("%(asctime)s %(by)s: %(message)s"))
    audit.addHandler(handler)
    audit.setLevel(logging.INFO)
    return handler
