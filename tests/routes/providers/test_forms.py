"""routes/providers/forms.py: bodies of HTML forms; fields.py: headers of an email in every notation."""

import tracemalloc
from typing import Any
from urllib.parse import quote_plus, urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routes.payload import InvalidPayload
from routes.providers.fields import MailHeaders
from routes.providers.forms import parse_form

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
