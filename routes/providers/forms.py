"""Bodies of HTML forms, as bytes for each field: not all fields are UTF-8, and other fields name their charsets."""

from __future__ import annotations

import re
from binascii import a2b_qp
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cache
from itertools import chain
from typing import Any

from werkzeug.datastructures import Headers
from werkzeug.exceptions import RequestEntityTooLarge
from werkzeug.http import parse_options_header
from werkzeug.sansio.multipart import Data, Epilogue, Field, File, MultipartDecoder, NeedData

from deduplication import email
from deduplication.spool import LARGE_BYTES, Blob, Content, chunks_of, read_all, transformed
from deduplication.values import frozen
from routes.payload import InvalidPayload, parse_json
from routes.providers.fields import Document

MOST_PARTS = 10_000  # Mailgun makes a field of every header
MAX_NAME_BYTES = 1000
_AMPERSAND = re.compile(b"&")
_HALF_AN_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_BACKSLASH = re.compile(r'\\([\\"]?)')
MAX_PART_HEADERS_BYTES = 1024 * 1024  # of all parts together; reading them is slow


@frozen
class Upload(email.File):
    field: str = ""


@frozen
class Form:
    """``read`` decodes a value as it was sent, when it is needed: of an unproven form, only the proof is decoded."""

    fields: Mapping[str, list[Content]]
    uploads: tuple[Upload, ...] = ()
    read: Callable[[Content], Content] = lambda raw: raw
    decode: Callable[[Iterable[bytes]], Iterator[bytes]] = iter

    def __contains__(self, field: str) -> bool:
        return field in self.fields

    def chunks(self, raw: Content) -> Iterable[bytes]:
        """As ``read``, but of a large value nothing is written to the disk."""
        return self.decode(raw.chunks()) if isinstance(raw, Blob) else (read_all(self.read(raw)),)

    def content(self, field: str) -> Content:
        return self.read(self.fields[field][0]) if field in self.fields else b""

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
    try:
        return _multipart(body, parameters.get("boundary", "").encode())
    except (ValueError, RequestEntityTooLarge) as error:
        raise InvalidPayload("the body is not valid multipart/form-data") from error


def _urlencoded(body: Content) -> Form:
    """The values are decoded when they are read."""
    pairs = _pairs_on_disk(body) if isinstance(body, Blob) else iter(body.split(b"&"))
    fields: dict[str, list[Content]] = {}
    for count, pair in enumerate(pairs):
        if count > MOST_PARTS:
            raise InvalidPayload(f"the body must have at most {MOST_PARTS} fields")
        head = pair if isinstance(pair, bytes) else pair.read(0, LARGE_BYTES)
        name, _, value = head.partition(b"=")
        if name:
            rest = value if isinstance(pair, bytes) else pair.part(len(name) + 1, len(pair))
            fields.setdefault(_decode(name[:MAX_NAME_BYTES]).decode("utf-8", "replace"), []).append(rest)
    if body.search(_HALF_AN_ESCAPE, longest=3) if isinstance(body, Blob) else _HALF_AN_ESCAPE.search(body):
        raise InvalidPayload("the body is not valid application/x-www-form-urlencoded")
    return Form(fields, read=cache(_unquoted), decode=_unquoted_chunks)


def _pairs_on_disk(body: Blob) -> Iterator[Content]:
    """Large ones are not read."""
    start, position = 0, 0
    for chunk in chain(body.chunks(), (b"&",)):
        for found in _AMPERSAND.finditer(chunk):
            pair = body.part(start, position + found.start())
            yield pair if len(pair) > LARGE_BYTES else pair.read()
            start = position + found.end()
        position += len(chunk)


def _unquoted(raw: Content) -> Content:
    return transformed(raw, _unquoted_chunks) if isinstance(raw, Blob) else _decode(raw)


def _decode(raw: bytes) -> bytes:
    """By way of quoted-printable, which is decoded in C: unquote_to_bytes took 2 GB for 25 MB of escapes."""
    return a2b_qp(raw.replace(b"+", b" ").replace(b"=", b"=3D").replace(b"%", b"="))


def _unquoted_chunks(chunks: Iterable[bytes]) -> Iterator[bytes]:
    left = b""
    for chunk in chunks:
        text = left + chunk
        cut = text.rfind(b"%", -2)  # an escape may be in two chunks
        left = text[cut:] if cut >= 0 else b""
        yield _decode(text[: len(text) - len(left)])
    yield _decode(left)


def keep_backslashes(header: str) -> str:
    r"""Those that escape nothing: of "\share\mail\x.msg" parse_options_header would make sharemailx.msg."""
    return _BACKSLASH.sub(lambda found: found[0] if found[1] else r"\\", header)


class _LenientDecoder(MultipartDecoder):
    """Accepts file names that are not UTF-8 or are paths of Windows, and limits the headers of all parts."""

    headers_bytes = 0

    def _parse_headers(self, data: bytes | bytearray) -> Headers:
        self.headers_bytes += len(data)
        if self.headers_bytes > MAX_PART_HEADERS_BYTES:
            raise ValueError(f"the headers of all parts must be at most {MAX_PART_HEADERS_BYTES} bytes")
        return super()._parse_headers(keep_backslashes(data.decode("utf-8", "replace")).encode())


def _multipart(body: Content, boundary: bytes) -> Form:
    """Of a body on the disk, large parts are written behind it."""
    if not boundary:
        raise ValueError("no boundary")
    decoder = _LenientDecoder(boundary, max_parts=MOST_PARTS)
    spool = body.spool if isinstance(body, Blob) else None
    fields: dict[str, list[Content]] = {}
    uploads: list[Upload] = []
    part, content, start = None, bytearray(), 0
    for chunk in chain(chunks_of(body), (None,)):
        decoder.receive_data(chunk)
        while not isinstance(event := decoder.next_event(), NeedData | Epilogue):
            if isinstance(event, Field | File):
                part, content, start = event, bytearray(), spool.size if spool else 0
            elif isinstance(event, Data):
                content += event.data
                if spool and (len(content) > LARGE_BYTES or spool.size > start):
                    spool.write(bytes(content))
                    content.clear()
                if event.more_data:
                    continue
                whole = Blob(spool, start, spool.size) if spool and spool.size > start else bytes(content)
                if isinstance(part, Field):
                    fields.setdefault(part.name or "", []).append(whole)
                elif isinstance(part, File):
                    content_type = part.headers.get("Content-Type", "")
                    uploads.append(Upload(part.filename, content_type, whole, field=part.name or ""))
    return Form(fields, tuple(uploads))
