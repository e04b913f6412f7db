"""How JSON bodies are read."""

from __future__ import annotations

from typing import Any

import pytest

from routes.payload import MAX_NESTING, InvalidPayload, parse_json


@pytest.mark.parametrize("pair", ["[]", '{"a":}'])
def test_nesting_is_limited(pair: str) -> None:
    def nested(levels: int) -> bytes:
        return (pair[:-1] * (levels - 1) + "[]" + pair[-1] * (levels - 1)).encode()

    assert parse_json(nested(MAX_NESTING))
    with pytest.raises(InvalidPayload, match="levels of nesting"):
        parse_json(nested(MAX_NESTING + 1))


def test_siblings_do_not_count_as_nesting() -> None:
    assert len(parse_json(b"[" + b",".join([b"[]"] * 2 * MAX_NESTING) + b"]")) == 2 * MAX_NESTING


@pytest.mark.parametrize(
    ("body", "value"),
    [
        (b'{"a": "\xed\xa0\xbd"}', {"a": "\ufffd"}),
        (rb'{"a\ud83d": ["\ud83d"]}', {"a\ufffd": ["\ufffd"]}),
        (rb'["\ud83d\ude00", "\\ud83d", 1.5, 1e400]', ["\U0001f600", r"\ud83d", 1.5, "1e400"]),
        (b"1" * 1001, "1" * 1001),
        (b"1" * 1000, int("1" * 1000)),
    ],
)
def test_every_value_can_be_written_out_again(body: bytes, value: Any) -> None:
    assert parse_json(body) == value


@pytest.mark.parametrize("body", [b"NaN", b"[Infinity]", b'{"a": -Infinity}', b"\xff", b"", b"[" * 100_000])
def test_what_is_not_json_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidPayload, match="not valid JSON"):
        parse_json(body)
