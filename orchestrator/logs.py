"""How the log looks: one line an event, ids and never contents."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal

LogFormat = Literal["text", "json"]

FORMAT = "%(asctime)s %(levelname)s %(name)s%(request)s: %(message)s"
MAX_LINE_CHARS = 4000

request_id: ContextVar[str] = ContextVar("request_id", default="")  # of the request that this thread is at


class LineFormatter(logging.Formatter):
    """No value breaks out of its line: what is not printable is escaped. Only tracebacks follow, each line marked."""

    def __init__(self, line: str = FORMAT) -> None:
        super().__init__(line)
        self._clock = Seconds("%Y-%m-%d %H:%M:%S", is_utc=False)

    def format(self, record: logging.LogRecord) -> str:
        record.message = record.getMessage()
        record.asctime = f"{self._clock.at(record.created)},{int(record.msecs):03d}"
        at_request = request_id.get()
        record.request = f" [{at_request}]" if at_request else ""
        line = escaped(self.formatMessage(record))
        if not record.exc_info and not record.stack_info:
            return line
        return "\n".join([line, *(f"  | {escaped(each)}" for each in _stack(self, record))])


class JsonFormatter(logging.Formatter):
    """One object a line. What a line was made of stands in it by its name as well, where the caller gave it names."""

    def __init__(self) -> None:
        super().__init__()
        self._clock = Seconds("%Y-%m-%dT%H:%M:%S", is_utc=True)

    def format(self, record: logging.LogRecord) -> str:
        said: dict[str, Any] = {
            "time": f"{self._clock.at(record.created)}.{int(record.msecs):03d}Z",
            "level": record.levelname,
            "logger": record.name,
            "pid": record.process,
            "message": cut(record.getMessage()),
        }
        if at_request := request_id.get():
            said["request_id"] = at_request
        if isinstance(record.args, dict):
            said = {**record.args, **said}
        if record.exc_info or record.stack_info:
            said["traceback"] = [cut(each) for each in _stack(self, record)]
        return json.dumps(said, default=str)


class Seconds:
    """The time of day up to its seconds; written anew once a second, not once a line."""

    def __init__(self, format: str, *, is_utc: bool) -> None:
        self._format = format
        self._broken_down = time.gmtime if is_utc else time.localtime
        self._last = (-1, "")

    def at(self, moment_s: float) -> str:
        second, shown = self._last
        if second != int(moment_s):
            second = int(moment_s)
            shown = time.strftime(self._format, self._broken_down(second))
            self._last = (second, shown)
        return shown


def _stack(formatter: logging.Formatter, record: logging.LogRecord) -> list[str]:
    traceback = formatter.formatException(record.exc_info).split("\n") if record.exc_info else []
    stack = record.stack_info.split("\n") if record.stack_info else []
    return [*traceback, *stack]


def cut(line: str) -> str:
    return line if len(line) <= MAX_LINE_CHARS else f"{line[:MAX_LINE_CHARS]} ... ({len(line)} characters)"


def escaped(line: str) -> str:
    line = cut(line)
    if line.isprintable():
        return line
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in line)


def make_formatter(log_format: LogFormat) -> logging.Formatter:
    return JsonFormatter() if log_format == "json" else LineFormatter()


@contextmanager
def quiet() -> Iterator[None]:
    """Without the lines that a part logs when it is built."""
    root, level = logging.getLogger(), logging.getLogger().level
    root.setLevel(logging.ERROR)
    try:
        yield
    finally:
        root.setLevel(level)


def configure_logging(level: str, log_format: LogFormat) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(make_formatter(log_format))
    logging.basicConfig(level=level, handlers=[handler])
    # Nobody is shown where in the code a line was written, or by which thread: to find out took a third of its time.
    logging._srcfile = None  # as logging's own documentation tells
    logging.logThreads = logging.logMultiprocessing = False
    for chatty in ("urllib3", "pika"):  # their lines hold whole addresses, with paths, queries and logins
        logging.getLogger(chatty).setLevel(logging.CRITICAL)  # and what is wrong is told by us, without a traceback
