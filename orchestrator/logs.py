"""How the log looks: one line an event, ids and never contents."""

from __future__ import annotations

import logging

FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
MAX_LINE_CHARS = 4000


class LineFormatter(logging.Formatter):
    """No value breaks out of its line: what is not printable is escaped. Only tracebacks follow, each line marked."""

    def format(self, record: logging.LogRecord) -> str:
        record.message = record.getMessage()
        record.asctime = self.formatTime(record, self.datefmt)
        traceback = self.formatException(record.exc_info).split("\n") if record.exc_info else []
        stack = record.stack_info.split("\n") if record.stack_info else []
        marked = (f"  | {escaped(line)}" for line in [*traceback, *stack])
        return "\n".join([escaped(self.formatMessage(record)), *marked])


def escaped(line: str) -> str:
    cut = line if len(line) <= MAX_LINE_CHARS else f"{line[:MAX_LINE_CHARS]} ... ({len(line)} characters)"
    if cut.isprintable():
        return cut
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in cut)


def configure_logging(level: str) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(LineFormatter(FORMAT))
    logging.basicConfig(level=level, handlers=[handler])
    for chatty in ("urllib3", "pika"):  # their lines hold whole addresses, with paths, queries and logins
        logging.getLogger(chatty).setLevel(logging.CRITICAL)  # and what is wrong is told by us, without a traceback
