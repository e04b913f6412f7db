"""Bodies of HTML forms, as bytes for each field: not all fields are UTF-8, and other fields name their charsets."""

import re
from binascii import a2b_qp
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from werkzeug.http import parse_options_header

from deduplication.email import Attachment
from deduplication.spool import Blob, Content, Outline, chunks_of, transformed
from deduplication.values import frozen
from routes.mime import ABSENT, Source, read_entity
from routes.payload import InvalidPayload, parse_json
from routes.providers.fields import Document

MOST_PARTS = 10_000  # Mailgun makes a field of every header
MAX_NAME_BYTES = 1000
_EQUALS, _AMPERSAND = re.compile(b"="), re.compile(b"&")
_HALF_AN_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")
MAX_PART_HEADERS_BYTES = 1024 * 1024  # of all parts together; reading them is slow


@frozen
class Form:
    """``decode`` decodes a value as it was sent, when it is needed: of an unproven form, only the proof is decoded."""

    fields: Mapping[str, list[Content]]
    uploads: Sequence[tuple[str, Attachment]] = ()  # with the names of their fields
    decode: Callable[[Iterable[bytes]], Iterator[bytes]] = iter

    def __contains__(self, field: str) -> bool:
        return field in self.fields

    def chunks(self, raw: Content) -> Iterator[bytes]:
        """Of a large value, nothing is written to the disk."""
        return self.decode(chunks_of(raw))

    def content(self, field: str) -> Content:
        return transformed(self.fields[field][0], self.decode) if field in self.fields else b""

    def first(self, field: str) -> bytes:
        return b"".join(self.chunks(self.fields[field][0])) if field in self.fields else b""

    def last(self, field: str) -> bytes:
        return b"".join(self.chunks(self.fields[field][-1])) if field in self.fields else b""

    def text(self, field: str) -> str:
        return self.first(field).decode("utf-8", "replace")

    def texts(self, fields: Mapping[str, str]) -> dict[str, Any]:
        """For Provider.email, by our names for them; ``fields`` are the provider's."""
        return {part: self.text(field) for part, field in fields.items()}

    def object(self, field: str) -> Document:
        """The JSON object in a field; empty if it is missing or invalid, because the email can be read without it."""
        try:
            value = parse_json(self.first(field))
        except InvalidPayload:
            value = {}
        return Document(value if isinstance(value, dict) else {})

    def besides(self, fields: Collection[str]) -> dict[str, str]:
        """All other fields that are not empty."""
        return {name: text for name in self.fields if name not in fields and (text := self.text(name))}


def parse_form(content_type: str, body: Content) -> Form:
    """Raises InvalidPayload."""
    media_type, parameters = parse_options_header(content_type)
    if media_type == "application/x-www-form-urlencoded":
        return _urlencoded(body)
    if media_type != "multipart/form-data":
        raise InvalidPayload("Content-Type must be multipart/form-data or application/x-www-form-urlencoded")
    return _multipart(body, parameters.get("boundary", "").encode())


def _urlencoded(body: Content) -> Form:
    """The values are decoded when they are read."""
    outline = Outline(body, _find_values)
    pairs = outline.text.split(b"&", MOST_PARTS + 1)
    if len(pairs) > MOST_PARTS:
        raise InvalidPayload(f"the body must have at most {MOST_PARTS} fields")
    if body.search(_HALF_AN_ESCAPE, longest=3) if isinstance(body, Blob) else _HALF_AN_ESCAPE.search(body):
        raise InvalidPayload("the body is not valid application/x-www-form-urlencoded")
    fields: dict[str, list[Content]] = {}
    for pair in pairs:
        name, _, value = pair.partition(b"=")
        if name:
            decoded = b"".join(_unquoted((name[:MAX_NAME_BYTES],))).decode("utf-8", "replace")
            fields.setdefault(decoded, []).append(outline.restored(value))
    return Form(fields, decode=_unquoted)


def _find_values(body: Blob) -> Iterator[tuple[int, int]]:
    start = 0
    while equals := body.search(_EQUALS, start):
        ampersand = body.search(_AMPERSAND, equals[1])
        end, start = ampersand or (len(body), len(body))
        yield equals[1], end


def _unquoted(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """By way of quoted-printable, which is decoded in C: unquote_to_bytes took 2 GB for 25 MB of escapes."""
    left = b""
    for chunk in chain(chunks, (b"",)):
        text = left + chunk
        cut = text.rfind(b"%", -2) if chunk else -1  # an escape may be in two chunks
        left = text[cut:] if cut >= 0 else b""
        text = text[: len(text) - len(left)]
        yield a2b_qp(text.replace(b"+", b" ").replace(b"=", b"=3D").replace(b"%", b"="))


def _multipart(body: Content, boundary: bytes) -> Form:
    source = Source(body, boundary)
    source.raw = b"\n" + source.raw  # the first line may be a boundary
    fields: dict[str, list[Content]] = {}
    uploads: list[tuple[str, Attachment]] = []
    headers_bytes = 0
    for count, (start, end) in enumerate(source.between_boundaries(boundary, 1, len(source.raw))):
        part = read_entity(source.raw, start)
        headers_bytes += part.content_start - start
        if count == MOST_PARTS or headers_bytes > MAX_PART_HEADERS_BYTES:
            raise InvalidPayload(
                f"the body must have at most {MOST_PARTS} parts, with {MAX_PART_HEADERS_BYTES} bytes of headers"
            )
        name = part.decode_parameter(part.disposition.get("name", ABSENT))
        content = source.content(part.content_start, end)
        if "filename" in part.disposition:
            uploads.append((name, part.to_file(content)))
        else:
            fields.setdefault(name, []).append(content)
    if not boundary or b"\n--" + boundary + b"--" not in source.raw:
        raise InvalidPayload("the body is not valid multipart/form-data")
    return Form(fields, uploads)
