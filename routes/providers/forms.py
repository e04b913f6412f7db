"""Bodies of HTML forms, as bytes for each field: not all fields are UTF-8, and other fields name their charsets."""

from __future__ import annotations

import re
from binascii import a2b_qp
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cache

from werkzeug.datastructures import Headers
from werkzeug.exceptions import RequestEntityTooLarge
from werkzeug.http import parse_options_header
from werkzeug.sansio.multipart import Data, Epilogue, Field, File, MultipartDecoder

from deduplication import email
from routes.payload import InvalidPayload, parse_json
from routes.providers.fields import Document

MOST_PARTS = 10_000  # Mailgun makes a field of every header
MAX_NAME_BYTES = 1000
_HALF_AN_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_BACKSLASH = re.compile(r'\\([\\"]?)')
MAX_PART_HEADERS_BYTES = 1024 * 1024  # of all parts together; reading them is slow


@dataclass(frozen=True)
class Upload(email.File):
    field: str = ""


@dataclass(frozen=True)
class Form:
    """``read`` decodes a value as it was sent, when it is needed: of an unproven form, only the proof is decoded."""

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


def parse_form(content_type: str, body: bytes) -> Form:
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


def _urlencoded(body: bytes) -> Form:
    """The values are decoded when they are read."""
    if body.count(b"&") > MOST_PARTS:
        raise InvalidPayload(f"the body must have at most {MOST_PARTS} fields")
    if _HALF_AN_ESCAPE.search(body):
        raise InvalidPayload("the body is not valid application/x-www-form-urlencoded")
    fields: dict[str, list[bytes]] = {}
    for pair in body.split(b"&"):
        name, _, value = pair.partition(b"=")
        if name:
            fields.setdefault(_unquoted(name[:MAX_NAME_BYTES]).decode("utf-8", "replace"), []).append(value)
    return Form(fields, read=cache(_unquoted))


def _unquoted(raw: bytes) -> bytes:
    """By way of quoted-printable, which is decoded in C: unquote_to_bytes took 2 GB for 25 MB of escapes."""
    return a2b_qp(raw.replace(b"+", b" ").replace(b"=", b"=3D").replace(b"%", b"="))


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


def _multipart(body: bytes, boundary: bytes) -> Form:
    if not boundary:
        raise ValueError("no boundary")
    decoder = _LenientDecoder(boundary, max_parts=MOST_PARTS)
    decoder.receive_data(body)
    decoder.receive_data(None)
    fields: dict[str, list[bytes]] = {}
    uploads: list[Upload] = []
    event, part, content = decoder.next_event(), None, bytearray()
    while not isinstance(event, Epilogue):
        if isinstance(event, Field | File):
            part, content = event, bytearray()
        elif isinstance(event, Data):
            content += event.data
            if isinstance(part, Field) and not event.more_data:
                fields.setdefault(part.name or "", []).append(bytes(content))
            elif isinstance(part, File) and not event.more_data:
                content_type = part.headers.get("Content-Type", "")
                uploads.append(Upload(part.filename, content_type, bytes(content), field=part.name or ""))
        event = decoder.next_event()
    return Form(fields, tuple(uploads))
