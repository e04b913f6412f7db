"""routes/providers/forms.py: bodies of HTML forms; fields.py: headers of an email in every notation."""

import tracemalloc
from typing import Any
from urllib.parse import quote_plus, urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deduplication import spool
from deduplication.spool import Spool, read_all, spooled
from routes.payload import InvalidPayload
from routes.providers.fields import MailHeaders
from routes.providers.forms import parse_form

MULTIPART = "multipart/form-data; boundary=b0undary"
FILE = b'--b0undary\r\nContent-Disposition: form-data; name="f"; filename="dump.sql"\r\n\r\n'
FIELD = b'\r\n--b0undary\r\nContent-Disposition: form-data; name="a"\r\n\r\nb\r\n--b0undary--\r\n'
URLENCODED = "application/x-www-form-urlencoded"


@given(st.dictionaries(st.text("ab=&%+ é", min_size=1), st.binary() | st.text("\r\n =_%+~.").map(str.encode)))
def test_every_byte_of_an_urlencoded_form_is_read_back(fields: dict[str, bytes]) -> None:
    form = parse_form(URLENCODED, urlencode(fields).encode())
    assert {name: form.first(name) for name in form.fields} == fields


@given(st.binary())
def test_escapes_may_be_in_small_letters_and_left_out_where_they_can_be(value: bytes) -> None:
    escaped = "".join(f"%{byte:02x}" for byte in value).encode()
    sparing = quote_plus(value, safe="=_!~*'()/:?#[]@$,;\r\n").encode()
    assert [parse_form(URLENCODED, b"a=" + each).first("a") for each in (escaped, sparing)] == [value, value]


@pytest.mark.parametrize("body", [b"a=%", b"a=%4", b"a=%4&b=1", b"a=%%41", b"a=%zz", b"%=a", b"a=100% sure"])
def test_half_an_escape_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidPayload, match="not valid application/x-www-form-urlencoded"):
        parse_form(URLENCODED, body)


def test_reading_takes_memory_as_the_body_does_whatever_a_stranger_sends() -> None:
    body = b"a=" + b"%22" * 1_000_000
    tracemalloc.start()
    try:
        parse_form(URLENCODED, body).first("a")
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 5 * len(body)


def test_a_large_attachment_stays_on_the_disk_even_if_its_lines_begin_with_hyphens() -> None:
    body = spooled([FILE, *[b"--\n-- Table\n--\n\nINSERT;\n\n" * 1000] * 200, FIELD], Spool())
    tracemalloc.start()
    try:
        form = parse_form(MULTIPART, body)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < len(body) / 4
    assert len(form.uploads[0][1].data or b"") == len(body) - len(FILE + FIELD)


@pytest.mark.parametrize("chunk_bytes", range(2, 20))
def test_a_form_on_the_disk_reads_the_same_wherever_its_chunks_end(
    monkeypatch: pytest.MonkeyPatch, chunk_bytes: int
) -> None:
    monkeypatch.setattr(spool, "CHUNK_BYTES", chunk_bytes)
    monkeypatch.setattr(spool, "LARGE_BYTES", 2)
    content = b"--\n\n--b0und\r\n\r\n--b0undary2\n\nend"
    form = parse_form(MULTIPART, spooled([FILE, content, FIELD], Spool()))
    assert read_all(form.uploads[0][1].data or b"") == content
    assert form.first("a") == b"b"


@pytest.mark.parametrize(
    "given",
    [
        [["in-reply-to", "<1@a>"], ["In-Reply-To", "<2@a>"], ["x"], 5],
        [{"Name": "In-Reply-To", "Value": "<1@a>"}, {"name": "In-Reply-To", "value": "<2@a>"}, {}],
        {"in_reply_to": "<1@a>", "In-Reply-To": "<2@a>", "Date": 5},
        {"In-Reply-To": ["<1@a>", "<2@a>"], "Date": []},
    ],
)
def test_of_headers_with_one_name_the_first_counts_in_every_notation(given: Any) -> None:
    headers = MailHeaders(given)
    assert (headers["In-Reply-To"], headers["Date"]) == ("<1@a>", "")
    assert headers.named(("In-Reply-To", "Date")) == {"In-Reply-To": "<1@a>"}
    added = headers.added_to({"recipients": []})
    assert added["in_reply_to"] == "<1@a>"
    assert [value for _, value in added["headers"]] == ["<1@a>", "<2@a>"]
