"""Reads a raw email (RFC 5322 and MIME) into an Email.

The bytes are split into parts here, in one pass. The parser of the standard library takes 90 seconds for a Content-Type
of 120 KB, 30 seconds for 5 MB of empty parts, and 26 times the memory for short lines, and it raises on some malformed
headers (cpython issues 103800, 105802, 151857). The library only parses single values of limited length.
"""

from __future__ import annotations

import email.message
import html
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

from deduplication.email import MOST_HEADERS, Attachment, Email, address_of, decode_header, fitting
from deduplication.spool import LARGE_BYTES, Blob, Content, Outline, chunks_of, transformed
from deduplication.text import base64_chunks, decode_strictly, decoded, quoted_printable_chunks, well_formed
from deduplication.values import frozen, kept_property

MAX_HEADER_BYTES = 64 * 1024
MAX_PARAMETERS = 100
MAX_REPEATS_OF_A_HEADER = 100
MAX_PARTS = 1000
MAX_DEPTH = 50

DELIVERED_HEADERS = ("delivered-to", "x-original-to", "envelope-to")
RECIPIENT_HEADERS = (*DELIVERED_HEADERS, "to", "cc")
SPAM_HEADERS = ("X-Spam-Status", "X-Spam-Flag", "X-Spam-Score", "X-SES-Spam-Verdict", "X-SES-Virus-Verdict")
_READ_HEADERS = {
    *(name.lower().encode() for name in (*RECIPIENT_HEADERS, *SPAM_HEADERS)),
    b"subject", b"from", b"date", b"message-id", b"in-reply-to", b"references", b"reply-to", b"return-path",
    b"content-type", b"content-disposition", b"content-transfer-encoding", b"content-id",
}  # fmt: skip

_CR_ALONE = re.compile(rb"[^\r\n]*\r(?:[ \t]|[!-9;-~]+:|\r[^\n])")
_BEFORE_HEADERS = re.compile(rb"(?:\xef\xbb\xbf)?\s*+(?:>?From (?![ \t]*:)[^\n]*\n)?[ \t]*+")
_HEADER = re.compile(rb"(?!--)([!-9;-~]*+)[ \t]*+:([^\n]*+(?:\n[ \t][^\n]*+)*+)\n?")
_BLANK_LINE = re.compile(rb"\r*\n")
_END_OF_HEADERS = re.compile(rb"\n\r?\n")
_MEDIA_TYPE = re.compile(rb"[\s\"]*([\w!#$&^.*+-]{1,127}/[\w!#$&^.*+-]{1,127})")
_MISSING_SEMICOLON = re.compile(rb"(\A[^ ;=]++) (?=[\w*-]+=)|(?<![;=]) (?=boundary ?=)", re.IGNORECASE)
_KEYWORD = re.compile(rb"[\s\"]*([\w-]{1,40})")


def parse_mime(message: Content, **fields: Any) -> Email:
    """Never raises: it reads as much of a damaged email as possible. Without a readable From, the sender is empty.

    ``fields`` are arguments of Email.received: ``subject`` and ``sender`` are used if the headers have none, ``to``,
    ``cc``, ``reply_to`` and ``spam`` are added to those of the headers, and all others replace the email's own. Time
    and memory are linear in the length. Contents of large parts are read from the disk when they are needed.
    """
    source = Source(message)
    if _CR_ALONE.match(source.raw):  # all lines end in CR alone, as opposed to a stray CR
        source.raw = source.raw.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    head = read_entity(source.raw, _skip(_BEFORE_HEADERS, source.raw, 0))
    headers = fitting(head.first_headers)
    arguments = {
        "provider": "mime",
        "date": head.text("date"),
        **_read_contents(source.leaves(head, len(source.raw))),
        "message_id": head.text("message-id"),
        "delivered_headers": [head.text(name) for name in DELIVERED_HEADERS],
        "headers": head.decode_headers(headers),
        "headers_omitted": head.count - len(headers),
        "return_path": head.text("return-path") or None,
        "in_reply_to": head.text("in-reply-to"),
        "references": head.text("references"),
        **fields,
        "subject": decode_header(head.text("subject")) or fields.get("subject", ""),
        "sender": _decode_sender(head.text("from")) or fields.get("sender", ""),
        "to": [head.text("to"), *fields.get("to", ())],
        "cc": [head.text("cc"), *fields.get("cc", ())],
        "reply_to": [head.text("reply-to"), *fields.get("reply_to", ())],
        "spam": {**{name: head.text(name.lower()) for name in SPAM_HEADERS}, **fields.get("spam", {})},
    }
    return Email.received(**arguments)


class Source:
    """A message, or a form with its boundary. ``raw`` does not contain the contents of large parts."""

    def __init__(self, message: Content, boundary: bytes = b"") -> None:
        self._outline = Outline(message, partial(_find_contents, boundary=boundary))
        self.raw = self._outline.text
        self._parts_left = MAX_PARTS

    def content(self, start: int, end: int) -> Content:
        return self._outline.restored(self.raw[start:end])

    def leaves(self, entity: Entity, end: int, depth: int = 0) -> list[_Leaf]:
        """The parts that are not multiparts, in order: at most MAX_PARTS, in multiparts nested at most MAX_DEPTH deep.
        A multipart in which its boundary does not occur is a text."""
        branches: list[list[_Leaf]] = []
        for start, part_end in self.between_boundaries(entity.boundary, entity.content_start, end):
            self._parts_left -= 1
            if self._parts_left < 0 or depth == MAX_DEPTH:
                branches.append([_Leaf(Attachment("", "application/octet-stream", data=self.content(start, end)))])
                break
            branches.append(self.leaves(read_entity(self.raw, start), part_end, depth + 1))
        if entity.content_type == "multipart/alternative":
            with_html = [branch for branch in branches if any(leaf.is_html for leaf in branch)]
            for branch in branches:
                if any(other is not branch for other in with_html):
                    for leaf in branch:
                        leaf.has_alternative = not leaf.is_html
        return list(chain.from_iterable(branches)) or [entity.to_leaf(self.content(entity.content_start, end))]

    def between_boundaries(self, boundary: bytes, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Where the parts of a multipart start and end. The line end before a boundary belongs to the boundary."""
        delimiter, part_start = b"\n--" + boundary, -1
        position = self.raw.find(delimiter, start - 1, end) if boundary else -1
        while position >= 0:
            line_end = self.raw.find(b"\n", position + 1, end)
            line_end = end if line_end < 0 else line_end
            rest = self.raw[position + len(delimiter) : line_end].rstrip()
            if rest in (b"", b"--"):
                if part_start >= 0:
                    yield part_start, position - (self.raw[position - 1] == ord("\r"))
                if rest:
                    return
                part_start = line_end + 1
            position = self.raw.find(delimiter, line_end, end)
        if part_start >= 0:
            yield part_start, end


def _find_contents(message: Blob, boundary: bytes) -> Iterator[tuple[int, int]]:
    """Text between an empty line and the next line that begins with "--" and the boundary contains no headers and no
    boundaries. Of an email, the boundaries are not known yet: any line that begins with "--" may be one."""
    delimiter = re.compile(re.escape(b"\n--" + boundary))
    beginning = message.read(0, LARGE_BYTES)
    start = len(beginning) - len(beginning.lstrip())  # of the headers: empty lines may come before them
    while headers := message.search(_END_OF_HEADERS, start):
        line = message.search(delimiter, headers[1] - 1, longest=3 + len(boundary))
        end, start = line or (len(message), len(message))
        yield headers[1], end - (message.read(end - 1, end) == b"\r")  # the line before a boundary may end in CR LF


def _decode_sender(sender: str) -> str:
    """The sender with its name decoded, unless the decoded name would add another address."""
    decoded_sender = decode_header(sender)
    return decoded_sender if address_of(decoded_sender) == address_of(sender) else sender


@dataclass
class _Leaf:
    """A part that is not a multipart. A text with a file name is both a file and a text.

    ``has_alternative``: the HTML of the email says the same.
    """

    file: Attachment | None = None
    text: str | None = None
    is_html: bool = False
    has_alternative: bool = False


_Parameter = tuple[str, str]  # a value, its bytes as Latin-1, and its charset if written as in RFC 2231
ABSENT: _Parameter = ("", "")


@frozen
class Entity:
    """A message or one of its parts: the values of the headers in _READ_HEADERS, and where its content starts."""

    headers: Mapping[str, list[bytes]]
    first_headers: Sequence[tuple[bytes, bytes]]  # at most MOST_HEADERS, as received
    count: int  # of all headers
    content_start: int
    content_type: str
    parameters: Mapping[str, _Parameter]  # of the content type

    def first(self, name: str) -> bytes:
        return self.headers.get(name, [b""])[0]

    def text(self, name: str) -> str:
        """A header on one line; all headers of a name with recipients, joined by commas."""
        values = self.headers.get(name)
        if not values:
            return ""
        value = b", ".join(values) if name in RECIPIENT_HEADERS else values[0]
        return " ".join(_decode_8bit(value[:MAX_HEADER_BYTES], self.charset).split())

    def decode_headers(self, headers: Sequence[tuple[bytes, bytes]]) -> tuple[tuple[str, str], ...]:
        texts = ((name, _decode_8bit(value[:MAX_HEADER_BYTES], self.charset)) for name, value in headers)
        return tuple((name.decode(), " ".join(text.split()) if "\n" in text else text.strip()) for name, text in texts)

    @property
    def charset(self) -> str:
        return self.parameters.get("charset", ABSENT)[0]

    @property
    def boundary(self) -> bytes:
        """Empty if the entity is not a multipart."""
        is_multipart = self.content_type.startswith("multipart/")
        boundary = self.parameters.get("boundary", ABSENT)[0] if is_multipart else ""
        return boundary.encode("latin-1", "replace").rstrip()

    @kept_property
    def disposition(self) -> Mapping[str, _Parameter]:
        return _parameters(self.first("content-disposition"))

    @property
    def disposition_type(self) -> str:
        return _match_word(_KEYWORD, self.first("content-disposition"))

    @property
    def file_name(self) -> str:
        return self.decode_parameter(self.disposition.get("filename") or self.parameters.get("name") or ABSENT)

    def decode_parameter(self, parameter: _Parameter) -> str:
        text, charset = parameter
        value = text.encode("latin-1", "replace")
        return decode_header(decoded(value, charset) if charset else _decode_8bit(value, self.charset))

    def to_file(self, content: Content | None) -> Attachment:
        content_id, disposition = self.text("content-id"), self.disposition_type
        is_inline = disposition == "inline" or (not disposition and bool(content_id))
        return Attachment(self.file_name, self.content_type, content_id=content_id, inline=is_inline, data=content)

    def to_leaf(self, encoded: Content) -> _Leaf:
        decode = _DECODERS.get(_match_word(_KEYWORD, self.first("content-transfer-encoding")), iter)
        is_text = self.content_type in ("text/plain", "text/html") or self.content_type.startswith("multipart/")
        if not is_text or self.disposition_type == "attachment":  # a multipart without parts is a text, too
            return _Leaf(self.to_file(encoded if decode is iter else transformed(encoded, decode)))
        data = b"".join(decode(chunks_of(encoded)))
        text = decoded(data, self.charset) if data and not data.isspace() else None
        file = self.to_file(data) if self.file_name else None
        return _Leaf(file, text, text is not None and self.content_type == "text/html")


_DECODERS: Mapping[str, Callable[[Iterable[bytes]], Iterator[bytes]]] = {
    "base64": base64_chunks,
    "quoted-printable": quoted_printable_chunks,
}


def _match_word(pattern: re.Pattern[bytes], value: bytes) -> str:
    match = pattern.match(value)
    return match[1].decode("ascii").lower() if match else ""


def _skip(pattern: re.Pattern[bytes], raw: bytes, start: int) -> int:
    match = pattern.match(raw, start)
    return match.end() if match else start


def read_entity(raw: bytes, start: int) -> Entity:
    """Reads headers up to an empty line, or up to a line that is not a header, which then belongs to the content."""
    headers: dict[str, list[bytes]] = {}
    first_headers, count = list[tuple[bytes, bytes]](), 0
    while header := _HEADER.match(raw, start):
        start = header.end()
        count += 1
        if count <= MOST_HEADERS:
            first_headers.append((header[1], header[2]))
        name = header[1].lower()
        if name in _READ_HEADERS and len(values := headers.setdefault(name.decode(), [])) < MAX_REPEATS_OF_A_HEADER:
            values.append(header[2])
    content_start = _skip(_BLANK_LINE, raw, start)
    value = headers.get("content-type", [b""])[0]
    content_type = _match_word(_MEDIA_TYPE, value) or "text/plain"
    return Entity(headers, first_headers, count, content_start, content_type, _parameters(value))


def _parameters(value: bytes) -> Mapping[str, _Parameter]:
    """The parameters of a header such as Content-Type; the first of each name counts. Latin-1 preserves the bytes."""
    if b"=" not in value:
        return {}
    message = email.message.Message()
    limited = b";".join(value[:MAX_HEADER_BYTES].split(b";")[: MAX_PARAMETERS + 1])
    separated = _MISSING_SEMICOLON.sub(rb"\1; ", b" ".join(limited.split()))
    message["Content-Type"] = separated.decode("latin-1")
    try:
        _, *parameters = message.get_params() or [("", "")]
    except (ValueError, TypeError):  # name*0= with a number of 5,000 digits, or name*= together with name*0=
        return {}
    return {
        name.lower(): (value[2], value[0] or "") if isinstance(value, tuple) else (value, "")
        for name, value in reversed(parameters)
    }


def _read_contents(leaves: Sequence[_Leaf]) -> dict[str, Any]:
    """The visible HTML and text, and all other parts as files.

    A text with a file name is a file, unless there is no other text: some programs give a file name to every part.
    """
    texts = [leaf for leaf in leaves if leaf.text is not None and not leaf.file]
    files = [leaf.file for leaf in leaves if leaf.file and (texts or leaf.text is None)]
    texts = texts or [leaf for leaf in leaves if leaf.text is not None]
    first_html = next((leaf.text for leaf in texts if leaf.is_html), None)
    # As mail programs show an email with HTML: with the plain texts before and after it.
    shown = [leaf for leaf in texts if first_html is not None and not leaf.has_alternative]
    html_parts = [
        leaf.text or "" if leaf.is_html else f"<pre>{html.escape(leaf.text or '', quote=False)}</pre>" for leaf in shown
    ]
    return {
        "html": "\n".join(html_parts),
        "first_html": first_html if len(html_parts) > 1 else "",
        "plain": "\n".join(leaf.text or "" for leaf in texts if not leaf.is_html),
        "files": files,
    }


def _decode_8bit(value: bytes, charset: str) -> str:
    """Raw 8-bit text in a header is UTF-8 if it is valid, else in the charset of the content."""
    text = decode_strictly(value, "utf-8")
    return well_formed(decoded(value, charset) if text is None else text)
