"""Log formats: one line for each event, with ids and never with contents."""

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Literal

LogFormat = Literal["text", "json"]

FORMAT = "%(asctime)s %(levelname)s %(name)s%(request)s: %(message)s"
MAX_LINE_CHARS = 4000

request_id: ContextVar[str] = ContextVar("request_id", default="")  # of the request that this thread handles


class LineFormatter(logging.Formatter):
    """No value breaks out of its line: unprintable characters are escaped, lines of tracebacks are marked."""

    def format(self, record: logging.LogRecord) -> str:
        record.message = record.getMessage()
        record.asctime = self.formatTime(record)
        request = request_id.get()
        record.request = f" [{request}]" if request else ""
        return "\n  | ".join(map(_escaped, [self.formatMessage(record), *_traceback(self, record)]))


class JsonFormatter(logging.Formatter):
    """One object a line, which includes the values of the message by name if the caller named them."""

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = dict(record.args) if isinstance(record.args, dict) else {}
        fields |= {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")[:-6] + "Z",
            "level": record.levelname,
            "logger": record.name,
            "pid": record.process,
            "message": _shortened(record.getMessage()),
        }
        if request := request_id.get():
            fields["request_id"] = request
        if traceback := _traceback(self, record):
            fields["traceback"] = [_shortened(line) for line in traceback]
        return json.dumps(fields, default=str)


def _traceback(formatter: logging.Formatter, record: logging.LogRecord) -> list[str]:
    texts = [formatter.formatException(record.exc_info)] if record.exc_info else []
    return [line for text in (*texts, record.stack_info) if text for line in text.split("\n")]


def _shortened(line: str) -> str:
    return line if len(line) <= MAX_LINE_CHARS else f"{line[:MAX_LINE_CHARS]} ... ({len(line)} characters)"


def _escaped(line: str) -> str:
    line = _shortened(line)
    if line.isprintable():
        return line
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in line)


@contextmanager
def quiet() -> Iterator[None]:
    """Suppresses lines below ERROR."""
    root, level = logging.getLogger(), logging.getLogger().level
    root.setLevel(logging.ERROR)
    try:
        yield
    finally:
        root.setLevel(level)


def configure_logging(level: str, log_format: LogFormat) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if log_format == "json" else LineFormatter(FORMAT))
    logging.basicConfig(level=level, handlers=[handler])
    # Our formats show neither the place in the code nor the thread; finding them took a third of the time of a line.
    logging._srcfile = None  # documented by logging
    logging.logThreads = logging.logMultiprocessing = False
    logging.getLogger("urllib3").setLevel(logging.CRITICAL)  # it logs whole addresses; we log its errors ourselves
