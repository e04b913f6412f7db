"""How JSON bodies are read."""

from __future__ import annotations

import pytest

from routes.providers.base import MAX_NESTING, InvalidPayload, parse_json


@pytest.mark.parametrize("pair", ["[]", '{"a":}'])
def test_nesting_is_limited(pair: str) -> None:
    def nested(levels: int) -> str:
        return pair[:-1] * (levels - 1) + "[]" + pair[-1] * (levels - 1)

    assert parse_json(nested(MAX_NESTING))
    with pytest.raises(InvalidPayload, match="levels of nesting"):
        parse_json(nested(MAX_NESTING + 1))


def test_siblings_do_not_count_as_nesting() -> None:
    assert len(parse_json(f"[{','.join(['[]'] * 2 * MAX_NESTING)}]")) == 2 * MAX_NESTING
