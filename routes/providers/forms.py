"""Bodies of HTML forms, as bytes for each field: senders of mail do not all write UTF-8, and say so elsewhere."""

from __future__ import annotations

import re
from binascii import a2b_qp
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from werkzeug.datastructures import Headers
from werkzeug.exceptions import RequestEntityTooLarge
from werkzeug.http import parse_options_header
from werkzeug.sansio.multipart import Data, Epilogue, Field, File, MultipartDecoder

MOST_PARTS = 10_000  # Mailgun makes a field of every header
MAX_NAME_BYTES = 1000
_HALF_AN_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")
MAX_PART_HEADERS_BYTES = 1024 * 1024  # of all parts together; reading them is slow


class NotAForm(ValueError):
    """The body is not what its Content-Type says, or that says something else than a form."""


@dataclass(frozen=True)
class Upload:
    field: str
    name: str
    content_type: str
    content: bytes


@dataclass(frozen=True)
class Form:
    """``read`` turns a value as it was sent into what it means: of a stranger's form only what proves its origin."""

    fields: Mapping[str, list[bytes]]
    uploads: tuple[Upload, ...] = ()
    read: Callable[[bytes], bytes] = lambda raw: raw

    def __contains__(self, field: str) -> bool:
        return field in self.fields

    def first(self, field: str) -> bytes:
        return self.read(self.fields[field][0]) if field in self.fields else b""

    def last(self, field: str) -> bytes:
        return self.read(self.fields[field][-1]) if field in self.fields else b""

    def text(self, field: str) -> str:
        return self.first(field).decode("utf-8", "replace")


def parse_form(content_type: str, body: bytes) -> Form:
    media_type, parameters = parse_options_header(content_type)
    if media_type == "application/x-www-form-urlencoded":
        return Form(_grouped(_urlencoded(body)), read=cache(_unquoted))
    if media_type != "multipart/form-data":
        raise NotAForm("Content-Type takes multipart/form-data or application/x-www-form-urlencoded")
    try:
        return _multipart(body, parameters.get("boundary", "").encode())
    except (ValueError, RequestEntityTooLarge) as error:
        raise NotAForm("the body is not valid multipart/form-data") from error


def _urlencoded(body: bytes) -> Iterator[tuple[str, bytes]]:
    """The values are left as they are."""
    if body.count(b"&") > MOST_PARTS:
        raise NotAForm(f"the body takes at most {MOST_PARTS} fields")
    if _HALF_AN_ESCAPE.search(body):
        raise NotAForm("the body is not valid application/x-www-form-urlencoded")
    for pair in body.split(b"&"):
        name, _, value = pair.partition(b"=")
        if name:
            yield _unquoted(name[:MAX_NAME_BYTES]).decode("utf-8", "replace"), value


def _unquoted(raw: bytes) -> bytes:
    """As quoted-printable, which is read in C: unquote_to_bytes took 2 GB for 25 MB of a stranger's escapes."""
    return a2b_qp(raw.replace(b"+", b" ").replace(b"=", b"=3D").replace(b"%", b"="))


def _grouped(pairs: Iterator[tuple[str, bytes]]) -> dict[str, list[bytes]]:
    fields: dict[str, list[bytes]] = {}
    for name, value in pairs:
        fields.setdefault(name, []).append(value)
    return fields


class _LenientDecoder(MultipartDecoder):
    """A file name in Latin-1 does not spoil the whole email."""

    headers_bytes = 0

    def _parse_headers(self, data: bytes | bytearray) -> Headers:
        self.headers_bytes += len(data)
        if self.headers_bytes > MAX_PART_HEADERS_BYTES:
            raise ValueError("too much to read before the first byte of content")
        return super()._parse_headers(data.decode("utf-8", "replace").encode())


def _multipart(body: bytes, boundary: bytes) -> Form:
    if not boundary:
        raise ValueError("no boundary")
    parts = list(_parts(body, boundary))
    fields = ((part.name or "", content) for part, content in parts if isinstance(part, Field))
    uploads = (_upload(part, content) for part, content in parts if isinstance(part, File))
    return Form(_grouped(fields), tuple(uploads))


def _parts(body: bytes, boundary: bytes) -> Iterator[tuple[Field | File, bytes]]:
    decoder = _LenientDecoder(boundary, max_parts=MOST_PARTS)
    decoder.receive_data(body)
    decoder.receive_data(None)
    event, part, content = decoder.next_event(), None, bytearray()
    while not isinstance(event, Epilogue):
        if isinstance(event, Field | File):
            part, content = event, bytearray()
        elif isinstance(event, Data):
            content += event.data
            if part is not None and not event.more_data:
                yield part, bytes(content)
        event = decoder.next_event()


def _upload(part: File, content: bytes) -> Upload:
    return Upload(part.name or "", part.filename, part.headers.get("Content-Type", ""), content)
