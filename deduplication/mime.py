"""A raw email, as a mail server pipes it, read into an Email.

Where parts begin and end is found here, on the bytes, in one pass: the standard library's parser takes a minute and a
half over a Content-Type of 120 KB, half a minute over 5 MB of empty parts, 26 times the memory for short lines, and
raises on some malformed headers (cpython issues 103800, 105802, 151857). What a single value means, a parameter or an
encoded word, the library tells, of values cut to size.
"""

from __future__ import annotations

import binascii
import codecs
import email.message
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from deduplication.email import Attachment, Email, address_of, addresses_in, decode_subject, well_formed

MAX_HEADER_BYTES = 64 * 1024
MAX_PARAMETERS = 100
MAX_REPEATS_OF_A_HEADER = 100
MAX_PARTS = 1000

RECIPIENT_HEADERS = ("delivered-to", "x-original-to", "envelope-to", "to", "cc")
SPAM_HEADERS = ("X-Spam-Status", "X-Spam-Flag", "X-Spam-Score", "X-SES-Spam-Verdict", "X-SES-Virus-Verdict")
EXTRA_HEADERS = ("In-Reply-To", "References", "List-Id")
OTHER_HEADERS = (
    "Subject", "From", "Date", "Message-Id", "Content-Type", "Content-Disposition", "Content-Transfer-Encoding",
)  # fmt: skip
_READ_HEADERS = {name.lower().encode() for name in (*RECIPIENT_HEADERS, *SPAM_HEADERS, *EXTRA_HEADERS, *OTHER_HEADERS)}

_CR_ALONE = re.compile(rb"[^\r\n]*\r(?:[ \t]|[!-9;-~]+:|\r[^\n])")
_BEFORE_THE_HEADERS = re.compile(rb"(?:\xef\xbb\xbf)?[\r\n]*+(?:>?From [^\n]*\n)?")
_HEADER = re.compile(rb"(?!--)([!-9;-~]*+)[ \t]*+:([^\n]*+(?:\n[ \t][^\n]*+)*+)\n?")
_BLANK_LINE = re.compile(rb"\r*\n")
_MEDIA_TYPE = re.compile(rb"[\s\"]*([\w!#$&^.+-]{1,127}/[\w!#$&^.+-]{1,127})")
_KEYWORD = re.compile(rb"[\s\"]*([\w-]{1,40})")
_CHARSET = re.compile(r"[\w.:-]{1,40}", re.ASCII)
_NOT_BASE64 = bytes(set(range(256)) - set(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/="))

_NOT_CHARSETS = {"idna", "punycode", "unicode-escape", "raw-unicode-escape", "undefined"}  # but Python decodes them
# As mail programs read them: what is declared is often the smaller relative of what was written.
_READ_AS = {
    "ascii": "utf-8", "iso8859-1": "cp1252", "iso8859-9": "cp1254", "tis-620": "cp874", "gb2312": "gb18030",
    "gbk": "gb18030", "shift_jis": "cp932", "euc_kr": "cp949", "iso2022_jp": "iso2022_jp_ext",
    "x-sjis": "cp932", "windows-874": "cp874", "iso-8859-8-i": "iso8859-8", "iso-8859-8-e": "iso8859-8",
}  # fmt: skip


def parse_mime(
    raw: bytes,
    *,
    provider: str = "mime",
    event_id: str = "",
    recipients: Sequence[str] = (),
    inline_attachment_bytes: int = 0,
) -> Email:
    """Never raises: of a damaged email, what can be read. Without a readable From the sender is empty.

    ``recipients`` come before those of the headers. Attachments carry their content, whole, while it fits into
    ``inline_attachment_bytes`` in total. Time grows with the length alone, and memory stays below ten times it.
    """
    message = _with_line_feeds(raw)
    head = _read_entity(message, _end_of(_BEFORE_THE_HEADERS, message, 0))
    contents = _read_contents(_parts(message, head), inline_attachment_bytes)
    return Email(
        subject=decode_subject(head.text("subject")),
        sender=_readable_sender(head.text("from")),
        date=head.text("date"),
        html=contents.texts.get("text/html", ""),
        plain=contents.texts.get("text/plain", ""),
        message_id=head.text("message-id"),
        event_id=event_id,
        provider=provider,
        recipients=_recipients(head, recipients),
        attachments=contents.attachments,
        spam={name: value for name in SPAM_HEADERS if (value := head.text(name.lower()))},
        extra={name.lower().replace("-", "_"): value for name in EXTRA_HEADERS if (value := head.text(name.lower()))},
    )


def _readable_sender(sender: str) -> str:
    """With its name decoded, unless that would bring in another address than the one of the header itself."""
    decoded = decode_subject(sender)
    return decoded if address_of(decoded) == address_of(sender) else sender


def _recipients(head: _Entity, handed_in: Sequence[str]) -> tuple[str, ...]:
    first = [address_of(each) or well_formed(each).strip().lower() for each in handed_in]
    named = [address for name in RECIPIENT_HEADERS for address in addresses_in(head.text(name))]
    return tuple(dict.fromkeys(address for address in [*first, *named] if address))


def _with_line_feeds(raw: bytes) -> bytes:
    """Where lines end in CR alone, with LF instead; a stray CR does not make them so."""
    return raw.replace(b"\r\n", b"\n").replace(b"\r", b"\n") if _CR_ALONE.match(raw) else raw


@dataclass(frozen=True)
class _Parameter:
    """``charset`` where the notation of RFC 2231 names one."""

    value: bytes
    charset: str = ""


@dataclass(frozen=True)
class _Entity:
    """The headers, of those that are read here, of a message or one of its parts, and where its content begins."""

    headers: Mapping[str, list[bytes]]
    content_start: int

    def first(self, name: str) -> bytes:
        return self.headers.get(name, [b""])[0]

    def text(self, name: str) -> str:
        """On one line. Raw 8-bit text is UTF-8 if it can be, else in the charset of the content."""
        value = b", ".join(self.headers.get(name, [])) if name in RECIPIENT_HEADERS else self.first(name)
        return " ".join(_header_text(value[:MAX_HEADER_BYTES], self.charset).split())

    @cached_property
    def content_type(self) -> str:
        return _matched(_MEDIA_TYPE, self.first("content-type")) or "text/plain"

    @cached_property
    def _type_parameters(self) -> Mapping[str, _Parameter]:
        return _parameters(self.first("content-type"))

    @cached_property
    def charset(self) -> str:
        return self._type_parameters.get("charset", _Parameter(b"")).value.decode("latin-1")

    @cached_property
    def boundary(self) -> bytes:
        """Empty for all that is not a multipart."""
        is_multipart = self.content_type.startswith("multipart/")
        return self._type_parameters.get("boundary", _Parameter(b"")).value.rstrip() if is_multipart else b""

    @cached_property
    def file_name(self) -> str:
        disposition = _parameters(self.first("content-disposition"))
        name = disposition.get("filename") or self._type_parameters.get("name") or _Parameter(b"")
        return decode_subject(
            _decoded(name.value, name.charset) if name.charset else _header_text(name.value, self.charset)
        )

    @cached_property
    def is_attachment(self) -> bool:
        return bool(self.file_name) or _matched(_KEYWORD, self.first("content-disposition")) == "attachment"

    def transfer_decoded(self, content: bytes) -> bytes:
        match _matched(_KEYWORD, self.first("content-transfer-encoding")):
            case "base64":
                return _base64_decoded(content)
            case "quoted-printable":
                return binascii.a2b_qp(content)
        return content


def _matched(pattern: re.Pattern[bytes], value: bytes) -> str:
    match = pattern.match(value)
    return match[1].decode("ascii").lower() if match else ""


def _end_of(pattern: re.Pattern[bytes], raw: bytes, start: int) -> int:
    match = pattern.match(raw, start)
    return match.end() if match else start


def _read_entity(raw: bytes, start: int) -> _Entity:
    """The headers end at an empty line, or at one that is no header: then it belongs to the content."""
    headers: dict[str, list[bytes]] = {}
    while header := _HEADER.match(raw, start):
        start = header.end()
        name = header[1].lower()
        if name in _READ_HEADERS and len(values := headers.setdefault(name.decode(), [])) < MAX_REPEATS_OF_A_HEADER:
            values.append(header[2])
    return _Entity(headers, _end_of(_BLANK_LINE, raw, start))


def _parameters(value: bytes) -> Mapping[str, _Parameter]:
    """Of a header such as Content-Type, the first of each name. Latin-1 stands for the bytes as they are."""
    holder = email.message.Message()
    bounded = b";".join(value[:MAX_HEADER_BYTES].split(b";")[: MAX_PARAMETERS + 1])
    holder["Content-Type"] = b" ".join(bounded.split()).decode("latin-1")
    try:
        _, *parameters = holder.get_params() or [("", "")]
    except (ValueError, TypeError):  # at a number of 5000 digits in name*0=, at name*= beside name*0=
        return {}
    return {name.lower(): _parameter(value) for name, value in reversed(parameters)}


def _parameter(value: str | tuple[str | None, str | None, str]) -> _Parameter:
    if isinstance(value, tuple):
        return _Parameter(value[2].encode("latin-1", "replace"), value[0] or "")
    return _Parameter(value.encode("latin-1", "replace"))


@dataclass(frozen=True)
class _Delimiter:
    """The line between two parts, or after the last. It begins with the line feed that is before it."""

    boundary: bytes
    start: int
    end: int
    closes: bool


def _next_delimiter(raw: bytes, start: int, boundaries: Mapping[bytes, None]) -> _Delimiter | None:
    found = raw.find(b"\n--", max(start - 1, 0)) if boundaries else -1
    while found >= 0:
        line_end = raw.find(b"\n", found + 1)
        end = len(raw) if line_end < 0 else line_end
        line = raw[found + 3 : end].rstrip()
        for boundary in (line, line.removesuffix(b"--")):
            if boundary in boundaries:
                return _Delimiter(boundary, found, min(end + 1, len(raw)), closes=boundary != line)
        found = raw.find(b"\n--", end)
    return None


def _parts(raw: bytes, head: _Entity) -> Iterator[tuple[_Entity, bytes]]:
    """All that is not itself a multipart, in order, with its content; without recursion, however deep it is nested.

    A multipart in which its boundary does not occur is text. What comes after MAX_PARTS is one part, undivided.
    """
    boundaries: dict[bytes, None] = {}  # of the multiparts around this place, the outermost first
    entity = head
    for _ in range(MAX_PARTS):
        if entity.boundary:
            boundaries[entity.boundary] = None
        delimiter = _next_delimiter(raw, entity.content_start, boundaries)
        if not entity.boundary or delimiter is None or delimiter.boundary != entity.boundary:
            yield entity, _content(raw, entity, delimiter)
        delimiter = _opening(raw, delimiter, boundaries)
        if delimiter is None:
            return
        position = delimiter.end
        entity = _read_entity(raw, position)
    yield _Entity({"content-type": [b"application/octet-stream"]}, position), raw[position:]


def _content(raw: bytes, entity: _Entity, delimiter: _Delimiter | None) -> bytes:
    if delimiter is None:
        return raw[entity.content_start :]
    return raw[entity.content_start : max(delimiter.start, entity.content_start)].removesuffix(b"\r")


def _opening(raw: bytes, delimiter: _Delimiter | None, boundaries: dict[bytes, None]) -> _Delimiter | None:
    """The delimiter that the next part follows on: this one, or the next of those around what it closes."""
    while delimiter:
        while next(reversed(boundaries)) != delimiter.boundary:
            boundaries.popitem()
        if not delimiter.closes:
            return delimiter
        boundaries.popitem()
        delimiter = _next_delimiter(raw, delimiter.end, boundaries)
    return None


@dataclass(frozen=True)
class _Contents:
    texts: Mapping[str, str]
    attachments: tuple[Attachment, ...]


def _read_contents(parts: Iterable[tuple[_Entity, bytes]], inline_bytes: int) -> _Contents:
    """The first text of each type that is not blank, and all the rest as attachments."""
    texts: dict[str, str] = {}
    attachments: list[Attachment] = []
    for entity, encoded in parts:
        content = entity.transfer_decoded(encoded)
        del encoded  # an email of 25 MB is not held twice while its text is decoded
        kind = _kind_of_text(entity)
        if kind and (not content or content.isspace()):
            continue
        if kind and kind not in texts:
            texts[kind] = _decoded(content, entity.charset)
            continue
        is_inline = len(content) <= inline_bytes > 0
        attachments.append(Attachment.of(entity.file_name, entity.content_type, content, inline=is_inline))
        inline_bytes -= len(content) if attachments[-1].content is not None else 0
    return _Contents(texts, tuple(attachments))


def _kind_of_text(entity: _Entity) -> str:
    """Empty for an attachment."""
    kind = "text/plain" if entity.content_type.startswith("multipart/") else entity.content_type
    return kind if kind in ("text/plain", "text/html") and not entity.is_attachment else ""


def _base64_decoded(content: bytes) -> bytes:
    """As far as the padding; what is no Base64 before it does not count, nor does half a byte at the end."""
    letters = content.translate(None, _NOT_BASE64).partition(b"=")[0]
    return binascii.a2b_base64(letters[: len(letters) - (len(letters) % 4 == 1)] + b"==")


def _header_text(value: bytes, charset: str) -> str:
    text = _strictly_decoded(value, "utf-8")
    return _decoded(value, charset) if text is None else text


def _decoded(content: bytes, charset: str) -> str:
    """In the charset declared if that can be, else in the one that it looks like."""
    declared = _codec(charset)
    text = _strictly_decoded(content, declared)
    if text is None and not content.isascii():
        text = _strictly_decoded(content, "utf-8")
    return well_formed(_loosely_decoded(content, declared) if text is None else text).removeprefix("\ufeff")


def _codec(charset: str) -> str:
    """UTF-8 for one that is unknown or none at all."""
    name = charset.strip(" '\"").lower()
    if not _CHARSET.fullmatch(name):
        return "utf-8"
    try:
        known = codecs.lookup(_READ_AS.get(name, name)).name
        b"\0\0\0\0".decode(known, "replace")  # rot13 and its like are codecs, but no charsets
    except (LookupError, ValueError):
        return "utf-8"
    return "utf-8" if known in _NOT_CHARSETS else _READ_AS.get(known, known)


def _strictly_decoded(content: bytes, codec: str) -> str | None:
    try:
        return content.decode(codec)
    except ValueError:
        return None


def _loosely_decoded(content: bytes, codec: str) -> str:
    """Damaged multi-byte text is still shorter than its bytes by more than what is lost; else it was never that."""
    damaged = content.decode(codec, "replace")
    if len(content) - len(damaged) > damaged.count("\ufffd"):
        return damaged
    return _strictly_decoded(content, "cp1252") or content.decode("latin-1")
