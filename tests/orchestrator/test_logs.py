"""Each event is one line, whatever its text contains."""

import json
import logging
from datetime import UTC, datetime
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from orchestrator.logs import FORMAT, MAX_LINE_CHARS, JsonFormatter, LineFormatter, request_id

FORGED = "x\n2026-11-16 09:00:00 WARNING orchestrator.operations.reset: AUDIT reset scope=all"


def record(message: str, *values: object, error: BaseException | None = None) -> logging.LogRecord:
    exc_info = (type(error), error, error.__traceback__) if error else None
    made = logging.LogRecord("orchestrator.x", logging.ERROR, __file__, 1, message, values, exc_info)
    made.exc_text = FORGED  # as another handler's formatter leaves it
    return made


def as_text(*values: Any, **named: Any) -> list[str]:
    return LineFormatter(FORMAT).format(record(*values, **named)).split("\n")


def as_json(*values: Any, **named: Any) -> dict[str, Any]:
    line = JsonFormatter().format(record(*values, **named))
    assert line.isprintable() and line.isascii()
    fields: dict[str, Any] = json.loads(line)
    return fields


@given(st.text(st.characters()))
@example(FORGED)
@example("a\rb\x0bc\x0cd\x1b[2Je\x85f\u2028g\u202eh\ud800")
def test_any_text_is_one_printable_line(value: str) -> None:
    (line,) = as_text("item %s: delivered", value)
    assert line.isprintable()
    assert line.endswith(": delivered")
    line.encode()
    assert as_json("%s", value)["message"] == value[:MAX_LINE_CHARS]


def test_the_lines_of_a_traceback_are_marked() -> None:
    try:
        raise RuntimeError(FORGED)
    except RuntimeError as error:
        first, *traceback = as_text("unexpected", error=error)
        fields = as_json("unexpected", error=error)
    assert first.endswith("unexpected") and fields["message"] == "unexpected"
    assert any("RuntimeError" in line for line in traceback) and all(line.startswith("  | ") for line in traceback)
    assert any("RuntimeError" in line for line in fields["traceback"])
    stack = logging.LogRecord("x", logging.ERROR, __file__, 1, "here", (), None, sinfo="Stack:\n  line")
    assert LineFormatter(FORMAT).format(stack).split("\n")[1:] == ["  | Stack:", "  |   line"]


def test_the_length_of_a_line_is_limited() -> None:
    (line,) = as_text("%s", "x" * 1_000_000)
    assert len(line) < MAX_LINE_CHARS + 100 and "characters)" in line
    assert len(as_json("%s", "x" * 1_000_000)["message"]) < MAX_LINE_CHARS + 100


def test_a_line_has_the_id_of_its_request() -> None:
    token = request_id.set("abc-1")
    text, fields = as_text("delivered"), as_json("delivered")
    request_id.reset(token)
    assert text[0].endswith(" ERROR orchestrator.x [abc-1]: delivered")
    assert fields["request_id"] == "abc-1"


def test_json_has_the_named_values_of_the_message() -> None:
    line = as_json("entry %(entry)s: in %(ms)d ms", {"entry": "k3v7", "ms": 12, "status_code": None})
    assert datetime.fromisoformat(line.pop("time")).tzinfo is UTC
    assert line.pop("pid") > 0
    assert line == {
        "level": "ERROR",
        "logger": "orchestrator.x",
        "message": "entry k3v7: in 12 ms",
        "entry": "k3v7",
        "ms": 12,
        "status_code": None,
    }
    assert as_text("delivered")[0].endswith(" ERROR orchestrator.x: delivered")


def test_named_values_cannot_replace_fields_of_the_line() -> None:
    line = as_json("%(message)s", {"message": "forged", "level": "INFO", "pid": 1})
    assert (line["message"], line["level"]) == ("forged", "ERROR")
    assert line["pid"] != 1
