"""Reads a raw email (RFC 5322 and MIME) into an Email.

Parts are found here, on the bytes, in one pass: the standard library's parser takes a minute and a half for a
Content-Type of 120 KB, half a minute for 5 MB of empty parts, 26 times the memory for short lines, and raises on some
malformed headers (cpython issues 103800, 105802, 151857). The library is used for single values, cut to size.
"""

from __future__ import annotations

import email.message
import html
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from deduplication.email import MOST_HEADERS, Email, File, address_of, decode_header, fitting_headers
from deduplication.spool import LARGE_BYTES, Blob, Content, chunks_of, spooled, transformed
from deduplication.text import base64_chunks, decoded, quoted_printable_chunks, strictly_decoded, well_formed
from deduplication.values import frozen

MAX_HEADER_BYTES = 64 * 1024
MAX_PARAMETERS = 100
MAX_REPEATS_OF_A_HEADER = 100
MAX_PARTS = 1000
MAX_DEPTH = 50

DELIVERED_HEADERS = ("delivered-to", "x-original-to", "envelope-to")
RECIPIENT_HEADERS = (*DELIVERED_HEADERS, "to", "cc")
SPAM_HEADERS = ("X-Spam-Status", "X-Spam-Flag", "X-Spam-Score", "X-SES-Spam-Verdict", "X-SES-Virus-Verdict")
OTHER_HEADERS = (
    "Subject", "From", "Date", "Message-Id", "In-Reply-To", "References", "List-Id",
    "Content-Type", "Content-Disposition", "Content-Transfer-Encoding",
)  # fmt: skip
_FOUND_HEADERS = [name.lower().encode() for name in (*RECIPIENT_HEADERS, *SPAM_HEADERS, *OTHER_HEADERS)]
_READ_HEADERS = {*_FOUND_HEADERS, b"reply-to", b"return-path", b"content-id"}

_CR_ALONE = re.compile(rb"[^\r\n]*\r(?:[ \t]|[!-9;-~]+:|\r[^\n])")
_BEFORE_THE_HEADERS = re.compile(rb"(?:\xef\xbb\xbf)?\s*+(?:>?From (?![ \t]*:)[^\n]*\n)?[ \t]*+")
_HEADER = re.compile(rb"(?!--)([!-9;-~]*+)[ \t]*+:([^\n]*+(?:\n[ \t][^\n]*+)*+)\n?")
_EMPTY_LINE = re.compile(rb"\n\r*\n")
_STRAY_LINES = re.compile(
    rb"(?:(?!--)[^\r\n][^\n]*+\n){1,20}?(?=(" + b"|".join(sorted(_FOUND_HEADERS)) + rb")[ \t]*:)", re.IGNORECASE
)
_BLANK_LINE = re.compile(rb"\r*\n")
_END_OF_HEADERS, _MAYBE_BOUNDARY = re.compile(rb"\n\r?\n"), re.compile(rb"\n--")
_MEDIA_TYPE = re.compile(rb"[\s\"]*([\w!#$&^.*+-]{1,127}/[\w!#$&^.*+-]{1,127})")
_MISSING_SEMICOLON = re.compile(rb"(\A[^ ;=]++) (?=[\w*-]+=)|(?<![;=]) (?=boundary ?=)", re.IGNORECASE)
_KEYWORD = re.compile(rb"[\s\"]*([\w-]{1,40})")


def parse_mime(given: Content, **fields: Any) -> Email:
    """Never raises: of a damaged email, what can be read. Without a readable From the sender is empty.

    ``fields`` are those of Email.received: ``subject`` and ``sender`` are used if the headers have none, ``to``, ``cc``
    and ``spam`` are added to those of the headers, and others replace what was read. Time and memory grow with the
    length alone; the contents of large parts are read from the disk when they are needed.
    """
    source = _lift(given) if isinstance(given, Blob) else _Source(given)
    if _CR_ALONE.match(source.raw):  # lines end in CR alone; a stray CR does not make them so
        source.raw = source.raw.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    raw = source.raw
    start = _end_of(_BEFORE_THE_HEADERS, raw, 0)
    empty_line = _EMPTY_LINE.search(raw, start)
    written: list[tuple[bytes, bytes]] = []
    head = _read_entity(raw, start, empty_line.start() if empty_line else 0, written)
    kept = fitting_headers(written)
    read = {
        "provider": "mime",
        "date": head.text("date"),
        **_read_contents(list(source.parts(head, len(raw), {}))),
        "message_id": head.text("message-id"),
        "delivered_headers": [head.text(name) for name in DELIVERED_HEADERS],
        "headers": head.texts(kept),
        "headers_omitted": head.count - len(kept),
        "return_path": head.text("return-path") or None,
        "in_reply_to": head.text("in-reply-to"),
        "references": head.text("references"),
        **fields,
        "subject": decode_header(head.text("subject")) or fields.get("subject", ""),
        "sender": _readable_sender(head.text("from")) or fields.get("sender", ""),
        "to": [head.text("to"), *fields.get("to", ())],
        "cc": [head.text("cc"), *fields.get("cc", ())],
        "reply_to": [head.text("reply-to"), *fields.get("reply_to", ())],
        "spam": {**{name: head.text(name.lower()) for name in SPAM_HEADERS}, **fields.get("spam", {})},
    }
    return Email.received(**read)


@dataclass
class _Source:
    """The message. The contents of large parts may be on the disk, with their numbers between random marks here."""

    raw: bytes
    mark: bytes = b""
    large: Sequence[Blob] = ()
    left: int = MAX_PARTS

    def content(self, start: int, end: int) -> Content:
        """With the contents in place of their numbers."""
        encoded = self.raw[start:end]
        if not self.large or self.mark not in encoded:
            return encoded
        texts = enumerate(encoded.split(self.mark))
        pieces = [piece for place, text in texts if (piece := self.large[int(text)] if place % 2 else text)]
        if len(pieces) == 1:
            return pieces[0]
        return spooled((chunk for piece in pieces for chunk in chunks_of(piece)), self.large[0].spool)

    def parts(self, entity: _Entity, end: int, branches: Mapping[int, int], depth: int = 0) -> Iterator[_Leaf]:
        """What is not itself a multipart, in order: at most MAX_PARTS, in multiparts nested at most MAX_DEPTH deep. A
        multipart in which its boundary does not occur is text.

        ``branches``: of each multipart/alternative around it, by its position, the branch that it belongs to.
        """
        around, is_divided = entity, False
        for start, part_end in self._between_boundaries(entity, end):
            is_divided = True
            self.left -= 1
            if self.left < 0 or depth == MAX_DEPTH:
                yield _Leaf(File("", "application/octet-stream", self.content(start, end)))
                return
            part = _read_entity(self.raw, start)
            if part.boundary == entity.boundary and part_end < end:
                around = part  # the parts that follow belong to it
                continue
            is_alternative = around.content_type == "multipart/alternative"
            inner = {**branches, around.content_start: start} if is_alternative else branches
            yield from self.parts(part, part_end, inner, depth + 1)
        if not is_divided:
            yield entity.leaf(self.content(entity.content_start, end), branches)

    def _between_boundaries(self, entity: _Entity, end: int) -> Iterator[tuple[int, int]]:
        """Where its parts begin and end. The line feed before a line with a boundary belongs to that."""
        if not entity.boundary:
            return
        mark, start = b"\n--" + entity.boundary, -1
        found = self.raw.find(mark, entity.content_start - 1, end)
        while found >= 0:
            line_end = self.raw.find(b"\n", found + 1, end)
            line_end = end if line_end < 0 else line_end
            rest = self.raw[found + len(mark) : line_end].rstrip()
            if rest in (b"", b"--"):
                if start >= 0:
                    yield start, found - (self.raw[found - 1] == ord("\r"))
                if rest:
                    return
                start = line_end + 1
            found = self.raw.find(mark, line_end, end)
        if start >= 0:
            yield start, end


def _lift(raw: Blob) -> _Source:
    """The message without the contents of large parts: what is between an empty line and the next line that begins
    with "--" is never a header or a boundary, whatever the boundaries are."""
    mark, large = secrets.token_hex(16).encode(), list[Blob]()
    kept, position, start = b"", 0, 0
    if len(raw) <= LARGE_BYTES or _CR_ALONE.match(raw.read(0, LARGE_BYTES)):
        return _Source(raw.read())
    for _ in range(MAX_PARTS):
        headers = raw.search(_END_OF_HEADERS, start)
        if headers is None:
            break
        line = raw.search(_MAYBE_BOUNDARY, headers[1] - 1)
        end = line[0] if line else len(raw)
        if end - headers[1] > LARGE_BYTES:
            kept += raw.read(position, headers[1]) + b"%s%d%s" % (mark, len(large), mark)
            position = end - (raw.read(end - 1, end) == b"\r")  # the line feed before a boundary may be a CR LF
            large.append(raw.part(headers[1], position))
        if line is None:
            break
        start = line[1]
    return _Source(kept + raw.read(position), mark, large)


def _readable_sender(sender: str) -> str:
    """With its name decoded, unless that would bring in another address than the one of the header itself."""
    decoded = decode_header(sender)
    return decoded if address_of(decoded) == address_of(sender) else sender


@frozen
class _Leaf:
    """A part without parts. A text with a file name is both a file and a text."""

    file: File | None = None
    text: str | None = None
    is_html: bool = False
    branches: Mapping[int, int] = field(default_factory=dict)


_Parameter = tuple[str, str]  # a value, its bytes as Latin-1, and the charset that the notation of RFC 2231 names
_ABSENT: _Parameter = ("", "")


@frozen
class _Entity:
    """A message or one of its parts: the headers that are read here, and where its content begins."""

    headers: Mapping[str, list[bytes]]
    content_start: int
    content_type: str
    parameters: Mapping[str, _Parameter]  # of the content type
    count: int  # of all its headers

    def first(self, name: str) -> bytes:
        return self.headers.get(name, [b""])[0]

    def text(self, name: str) -> str:
        """On one line. Raw 8-bit text is UTF-8 if it can be, else in the charset of the content."""
        values = self.headers.get(name)
        if not values:
            return ""
        return self.on_one_line(b", ".join(values) if name in RECIPIENT_HEADERS else values[0])

    def on_one_line(self, value: bytes) -> str:
        return " ".join(_header_text(value[:MAX_HEADER_BYTES], self.charset).split())

    def texts(self, headers: Sequence[tuple[bytes, bytes]]) -> tuple[tuple[str, str], ...]:
        """Decoded all at once, unless one of them is not UTF-8."""
        names = b"\0".join([name for name, _ in headers]).decode("ascii").split("\0")
        decoded = strictly_decoded(b"\0".join([value for _, value in headers]), "utf-8")
        values = [] if decoded is None else decoded.split("\0")
        if len(values) == len(headers):
            values = [" ".join(text.split()) if "\n" in text else text.strip() for text in values]
        else:
            values = [self.on_one_line(value) for _, value in headers]
        return tuple(zip(names, values, strict=False))  # without headers, there is one empty name

    @property
    def charset(self) -> str:
        return self.parameters.get("charset", _ABSENT)[0]

    @property
    def boundary(self) -> bytes:
        """Empty for all that is not a multipart."""
        is_multipart = self.content_type.startswith("multipart/")
        name = self.parameters.get("boundary", _ABSENT)[0] if is_multipart else ""
        return name.encode("latin-1", "replace").rstrip()

    @property
    def file_name(self) -> str:
        disposition = _parameters(self.first("content-disposition"))
        text, charset = disposition.get("filename") or self.parameters.get("name") or _ABSENT
        name = text.encode("latin-1", "replace")
        return decode_header(decoded(name, charset) if charset else _header_text(name, self.charset))

    def leaf(self, encoded: Content, branches: Mapping[int, int]) -> _Leaf:
        decode = _DECODERS.get(_matched(_KEYWORD, self.first("content-transfer-encoding")), iter)
        name, disposition, text = self.file_name, _matched(_KEYWORD, self.first("content-disposition")), None
        is_text = self.content_type in ("text/plain", "text/html") or self.content_type.startswith("multipart/")
        is_shown = is_text and disposition != "attachment"  # a multipart without parts is text, too
        content = encoded if decode is iter or is_shown else transformed(encoded, decode)
        if is_shown:
            shown = b"".join(decode(chunks_of(encoded)))
            content, text = shown, decoded(shown, self.charset) if shown and not shown.isspace() else None
        file = None
        if name or not is_shown:
            content_id = self.text("content-id")
            is_inline = disposition == "inline" or (not disposition and bool(content_id))
            file = File(name, self.content_type, content, content_id=content_id, inline=is_inline)
        return _Leaf(file, text, self.content_type == "text/html", branches)


_DECODERS: Mapping[str, Callable[[Iterable[bytes]], Iterator[bytes]]] = {
    "base64": base64_chunks,
    "quoted-printable": quoted_printable_chunks,
}


def _matched(pattern: re.Pattern[bytes], value: bytes) -> str:
    match = pattern.match(value)
    return match[1].decode("ascii").lower() if match else ""


def _end_of(pattern: re.Pattern[bytes], raw: bytes, start: int) -> int:
    match = pattern.match(raw, start)
    return match.end() if match else start


def _read_entity(
    raw: bytes, start: int, reads_on_until: int = 0, written: list[tuple[bytes, bytes]] | None = None
) -> _Entity:
    """The headers end at an empty line, or at one that is no header: then it belongs to the content.

    Up to ``reads_on_until`` such lines are skipped, if one of our headers that was missing follows. ``written`` gets
    the first MOST_HEADERS as they are.
    """
    headers: dict[str, list[bytes]] = {}
    count = 0
    while True:
        header = _HEADER.match(raw, start)
        if header is None and (stray := _STRAY_LINES.match(raw, start, reads_on_until)):
            header = None if stray[1].lower().decode() in headers else _HEADER.match(raw, stray.end())
        if header is None:
            break
        start = header.end()
        count += 1
        if written is not None and count <= MOST_HEADERS:
            written.append((header[1], header[2]))
        name = header[1].lower()
        if name in _READ_HEADERS and len(values := headers.setdefault(name.decode(), [])) < MAX_REPEATS_OF_A_HEADER:
            values.append(header[2])
    given = headers.get("content-type", [b""])[0]
    content_type = _matched(_MEDIA_TYPE, given) or "text/plain"
    return _Entity(headers, _end_of(_BLANK_LINE, raw, start), content_type, _parameters(given), count)


def _parameters(value: bytes) -> Mapping[str, _Parameter]:
    """Of a header such as Content-Type, the first of each name. Latin-1 keeps the bytes as they are."""
    if not value:
        return {}
    holder = email.message.Message()
    bounded = b";".join(value[:MAX_HEADER_BYTES].split(b";")[: MAX_PARAMETERS + 1])
    separated = _MISSING_SEMICOLON.sub(rb"\1; ", b" ".join(bounded.split()))
    holder["Content-Type"] = separated.decode("latin-1")
    try:
        _, *parameters = holder.get_params() or [("", "")]
    except (ValueError, TypeError):  # at a number of 5000 digits in name*0=, at name*= beside name*0=
        return {}
    return {
        name.lower(): (value[2], value[0] or "") if isinstance(value, tuple) else (value, "")
        for name, value in reversed(parameters)
    }


def _read_contents(leaves: Sequence[_Leaf]) -> dict[str, Any]:
    """The HTML and the text that a reader sees, and all other parts as files.

    A text with a file name is a file, unless there is no other text: some programs name even those.
    """
    named = [leaf for leaf in leaves if leaf.text is not None and leaf.file]
    texts = [leaf for leaf in leaves if leaf.text is not None and not leaf.file]
    files = [leaf.file for leaf in leaves if leaf.file and (texts or leaf.text is None)]
    texts = texts or named
    html_parts = _html_parts(texts)
    return {
        "html": "\n".join(html_parts),
        "first_html": next(leaf.text for leaf in texts if leaf.is_html) if len(html_parts) > 1 else "",
        "plain": "\n".join(leaf.text or "" for leaf in texts if not leaf.is_html),
        "files": files,
    }


def _html_parts(texts: Sequence[_Leaf]) -> list[str]:
    """As mail programs show it: with the texts around the HTML in their places, but for those it is the alternative to.

    Empty if there is no HTML.
    """
    html_branches: dict[int, set[int]] = {}
    for alternative, branch in (pair for leaf in texts if leaf.is_html for pair in leaf.branches.items()):
        html_branches.setdefault(alternative, set()).add(branch)
    shown = [
        leaf.text or "" if leaf.is_html else f"<pre>{html.escape(leaf.text or '', quote=False)}</pre>"
        for leaf in texts
        if leaf.is_html
        or not any(html_branches.get(place, set()) - {branch} for place, branch in leaf.branches.items())
    ]
    return shown if any(leaf.is_html for leaf in texts) else []


def _header_text(value: bytes, charset: str) -> str:
    text = strictly_decoded(value, "utf-8")
    return well_formed(decoded(value, charset) if text is None else text)
