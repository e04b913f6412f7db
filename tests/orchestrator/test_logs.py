"""Each event is one line, whatever its text contains."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.logs import MAX_LINE_CHARS, JsonFormatter, LineFormatter, Seconds, request_id

FORGED = "x\n2026-11-16 09:00:00 WARNING orchestrator.operations.reset: AUDIT reset scope=all"


def formatted(message: str, *values: object, error: BaseException | None = None) -> list[str]:
    exc_info = (type(error), error, error.__traceback__) if error else None
    record = logging.LogRecord("orchestrator.x", logging.ERROR, __file__, 1, message, values, exc_info)
    record.exc_text = FORGED  # as another handler's formatter leaves it
    return LineFormatter().format(record).split("\n")


@pytest.mark.parametrize(
    "value", [FORGED, "a\rb", "a\x0bb", "a\x0cb", "a\x1b[2Jb", "a\x85b", "a\u2028b", "a\u202eb", "\ud800"]
)
def test_no_value_breaks_out_of_its_line(value: str) -> None:
    (line,) = formatted("item %s: delivered", value)
    assert line.isprintable()
    assert line.endswith(": delivered")
    line.encode()


@given(st.text(st.characters()))
def test_any_text_is_one_printable_line(value: str) -> None:
    (line,) = formatted("%s", value)
    assert line.isprintable()


def test_a_traceback_follows_in_lines_that_are_marked_as_its_own() -> None:
    try:
        raise RuntimeError(FORGED)
    except RuntimeError as error:
        first, *traceback = formatted("unexpected", error=error)
    assert first.endswith("unexpected")
    assert any("RuntimeError" in line for line in traceback)
    assert all(line.startswith("  | ") for line in traceback)


def test_a_stack_is_marked_too() -> None:
    record = logging.LogRecord("x", logging.ERROR, __file__, 1, "here", (), None, sinfo="Stack:\n  line")
    assert LineFormatter().format(record).split("\n")[1:] == ["  | Stack:", "  |   line"]


def test_the_length_of_a_line_is_limited() -> None:
    assert len(said("%s", "x" * 1_000_000)["message"]) < MAX_LINE_CHARS + 100
    (line,) = formatted("%s", "x" * 1_000_000)
    assert len(line) < MAX_LINE_CHARS + 100
    assert "characters)" in line


def test_a_line_says_the_request_it_belongs_to() -> None:
    token = request_id.set("abc-1")
    try:
        (line,) = formatted("delivered")
    finally:
        request_id.reset(token)
    assert line.endswith(" ERROR orchestrator.x [abc-1]: delivered")
    assert formatted("delivered")[0].endswith(" ERROR orchestrator.x: delivered")


def said(message: str, *values: object, error: BaseException | None = None) -> dict[str, Any]:
    exc_info = (type(error), error, error.__traceback__) if error else None
    record = logging.LogRecord("orchestrator.x", logging.ERROR, __file__, 1, message, values, exc_info)
    line = JsonFormatter().format(record)
    assert line.isprintable()
    assert line.isascii()
    spoken: dict[str, Any] = json.loads(line)
    return spoken


def test_as_json_a_line_has_its_parts_by_name() -> None:
    token = request_id.set("abc-1")
    try:
        line = said("entry %(entry)s: in %(ms)d ms", {"entry": "k3v7", "ms": 12, "status_code": None})
    finally:
        request_id.reset(token)
    assert datetime.fromisoformat(line.pop("time")).tzinfo is UTC
    assert line.pop("pid") > 0
    assert line == {
        "level": "ERROR",
        "logger": "orchestrator.x",
        "request_id": "abc-1",
        "message": "entry k3v7: in 12 ms",
        "entry": "k3v7",
        "ms": 12,
        "status_code": None,
    }


def test_what_a_line_is_made_of_never_passes_for_the_line_itself() -> None:
    line = said("%(message)s", {"message": "forged", "level": "INFO", "pid": 1})
    assert (line["message"], line["level"]) == ("forged", "ERROR")
    assert line["pid"] != 1


@given(st.text(st.characters()))
def test_as_json_any_text_is_one_line(value: str) -> None:
    assert said("%s", value)["message"] == value[:MAX_LINE_CHARS]


def test_as_json_a_traceback_is_part_of_its_line() -> None:
    try:
        raise RuntimeError(FORGED)
    except RuntimeError as error:
        line = said("unexpected", error=error)
    assert line["message"] == "unexpected"
    assert any("RuntimeError" in each for each in line["traceback"])


def test_the_time_of_a_line_is_its_own() -> None:
    """It is written anew only once a second."""
    seconds = Seconds("%Y-%m-%dT%H:%M:%S", is_utc=True)
    moments = [0.5, 0.9, 1.0, 1_800_000_000.25, 0.1]
    shown = ["1970-01-01T00:00:00", "1970-01-01T00:00:00", "1970-01-01T00:00:01", "2027-01-15T08:00:00"]
    assert [seconds.at(moment) for moment in moments] == [*shown, shown[0]]
