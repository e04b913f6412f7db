"""One line an event, whatever stands in it."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.logs import FORMAT, MAX_LINE_CHARS, LineFormatter

FORGED = "x\n2026-11-16 09:00:00 WARNING orchestrator.operations.reset: AUDIT reset scope=all"


def formatted(message: str, *values: object, error: BaseException | None = None) -> list[str]:
    exc_info = (type(error), error, error.__traceback__) if error else None
    record = logging.LogRecord("orchestrator.x", logging.ERROR, __file__, 1, message, values, exc_info)
    record.exc_text = FORGED  # as another handler's formatter leaves it
    return LineFormatter(FORMAT).format(record).split("\n")


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
    assert LineFormatter(FORMAT).format(record).split("\n")[1:] == ["  | Stack:", "  |   line"]


def test_no_line_is_longer_than_its_bound() -> None:
    (line,) = formatted("%s", "x" * 1_000_000)
    assert len(line) < MAX_LINE_CHARS + 100
    assert "characters)" in line
