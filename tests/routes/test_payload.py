"""How JSON bodies are read."""

import json
from typing import Any

import pytest

from deduplication import spool
from deduplication.spool import Blob, Spool, spooled
from routes import payload
from routes.payload import MAX_NESTING, InvalidPayload, parse_json, with_texts


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
    on_disk = spooled([body], Spool())
    assert parse_json(body) == parse_json(on_disk) == parse_json(on_disk, files="content") == value


@pytest.mark.parametrize("body", [b"NaN", b"[Infinity]", b'{"a": -Infinity}', b"\xff", b"", b"[" * 100_000])
def test_what_is_not_json_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidPayload, match="not valid JSON"):
        parse_json(body)


@pytest.mark.parametrize("chunk_bytes", range(2, 15))
def test_a_document_on_the_disk_reads_the_same_wherever_its_chunks_end(
    monkeypatch: pytest.MonkeyPatch, chunk_bytes: int
) -> None:
    texts = ['a"\\', "é\U0001f600\n/\\u00e9", "\\\\\\", "", "QUJD" * 5, "\udc00x\ud83d"]
    document = [{"content": text, "text": text, "more": {"content": [text], "n": 1}} for text in texts]
    monkeypatch.setattr(spool, "CHUNK_BYTES", chunk_bytes)
    monkeypatch.setattr(payload, "CHUNK_BYTES", chunk_bytes)
    monkeypatch.setattr(spool, "LARGE_BYTES", 2)
    for body in (json.dumps(document), json.dumps(document[:-1], ensure_ascii=False, indent=1)):
        raw = body.encode().replace(b"/", b"\\/")
        on_disk = spooled([raw], Spool())
        read = parse_json(on_disk, files="content")
        assert isinstance(read[0]["content"], Blob)
        assert with_texts(read)[:-1] == parse_json(raw)[:-1]
