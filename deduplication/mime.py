"""A raw email, as a mail server pipes it, read into an Email.

Where parts begin and end is found here, on the bytes, in one pass: the standard library's parser takes a minute and a
half over a Content-Type of 120 KB, half a minute over 5 MB of empty parts, 26 times the memory for short lines, and
raises on some malformed headers (cpython issues 103800, 105802, 151857). What a single value means, a parameter or an
encoded word, the library tells, of values cut to size.
"""

from __future__ import annotations

import binascii
import email.message
import html
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from deduplication.decoding import base64_decoded, decoded, strictly_decoded
from deduplication.email import Attachment, Email, address_of, addresses_in, decode_subject, well_formed
from deduplication.kept_property import kept_property

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
_BEFORE_THE_HEADERS = re.compile(rb"(?:\xef\xbb\xbf)?\s*+(?:>?From (?![ \t]*:)[^\n]*\n)?[ \t]*+")
_HEADER = re.compile(rb"(?!--)([!-9;-~]*+)[ \t]*+:([^\n]*+(?:\n[ \t][^\n]*+)*+)\n?")
_BLANK_LINE = re.compile(rb"\r*\n")
_MEDIA_TYPE = re.compile(rb"[\s\"]*([\w!#$&^.*+-]{1,127}/[\w!#$&^.*+-]{1,127})")
_MISSING_SEMICOLON = re.compile(rb"(\A[^ ;=]++) (?=[\w*-]+=)|(?<![;=]) (?=boundary ?=)", re.IGNORECASE)
_KEYWORD = re.compile(rb"[\s\"]*([\w-]{1,40})")


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
        html=contents.html,
        plain=contents.plain,
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

    @kept_property
    def content_type(self) -> str:
        return _matched(_MEDIA_TYPE, self.first("content-type")) or "text/plain"

    @kept_property
    def _type_parameters(self) -> Mapping[str, _Parameter]:
        return _parameters(self.first("content-type"))

    @kept_property
    def charset(self) -> str:
        return self._type_parameters.get("charset", _Parameter(b"")).value.decode("latin-1")

    @kept_property
    def boundary(self) -> bytes:
        """Empty for all that is not a multipart."""
        is_multipart = self.content_type.startswith("multipart/")
        return self._type_parameters.get("boundary", _Parameter(b"")).value.rstrip() if is_multipart else b""

    @kept_property
    def file_name(self) -> str:
        disposition = _parameters(self.first("content-disposition"))
        name = disposition.get("filename") or self._type_parameters.get("name") or _Parameter(b"")
        return decode_subject(
            decoded(name.value, name.charset) if name.charset else _header_text(name.value, self.charset)
        )

    @kept_property
    def is_text(self) -> bool:
        """A multipart without parts is text, too."""
        return self.content_type in ("text/plain", "text/html") or self.content_type.startswith("multipart/")

    @kept_property
    def is_attachment(self) -> bool:
        return _matched(_KEYWORD, self.first("content-disposition")) == "attachment"

    def transfer_decoded(self, content: bytes) -> bytes:
        match _matched(_KEYWORD, self.first("content-transfer-encoding")):
            case "base64":
                return base64_decoded(content)
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


def _next_delimiter(raw: bytes, start: int, boundaries: Mapping[bytes, _Multipart]) -> _Delimiter | None:
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


@dataclass
class _Multipart:
    """One that is open; ``branch`` is where the part of it that is being read begins."""

    start: int
    is_alternative: bool
    branch: int = 0


@dataclass(frozen=True)
class _Part:
    """``branches``: of each multipart/alternative around it, known by its start, the branch that it stands in."""

    entity: _Entity
    encoded: bytes
    branches: Mapping[int, int]


def _parts(raw: bytes, head: _Entity) -> Iterator[_Part]:
    """All that is not itself a multipart, in order, with its content; without recursion, however deep it is nested.

    A multipart in which its boundary does not occur is text. What comes after MAX_PARTS is one part, undivided.
    """
    boundaries: dict[bytes, _Multipart] = {}  # of the multiparts around this place, the outermost first
    entity = head
    for _ in range(MAX_PARTS):
        if entity.boundary:
            is_alternative = entity.content_type == "multipart/alternative"
            boundaries[entity.boundary] = _Multipart(entity.content_start, is_alternative)
        delimiter = _next_delimiter(raw, entity.content_start, boundaries)
        if not entity.boundary or delimiter is None or delimiter.boundary != entity.boundary:
            branches = {each.start: each.branch for each in boundaries.values() if each.is_alternative}
            yield _Part(entity, _content(raw, entity, delimiter), branches)
        delimiter = _opening(raw, delimiter, boundaries)
        if delimiter is None:
            return
        position = boundaries[delimiter.boundary].branch = delimiter.end
        entity = _read_entity(raw, position)
    yield _Part(_Entity({"content-type": [b"application/octet-stream"]}, position), raw[position:], {})


def _content(raw: bytes, entity: _Entity, delimiter: _Delimiter | None) -> bytes:
    if delimiter is None:
        return raw[entity.content_start :]
    return raw[entity.content_start : max(delimiter.start, entity.content_start)].removesuffix(b"\r")


def _opening(raw: bytes, delimiter: _Delimiter | None, boundaries: dict[bytes, _Multipart]) -> _Delimiter | None:
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
class _Text:
    is_html: bool
    text: str
    branches: Mapping[int, int]


@dataclass(frozen=True)
class _Contents:
    html: str
    plain: str
    attachments: tuple[Attachment, ...]


def _read_contents(parts: Iterable[_Part], inline_bytes: int) -> _Contents:
    """The texts that a reader sees, and all the rest as attachments.

    A text with a file name is a file, unless there is no other: some name even what they write.
    """
    texts: list[_Text] = []
    named: dict[int, _Text] = {}  # by their places among the attachments
    attachments: list[Attachment] = []
    for part in parts:
        entity, content = part.entity, part.entity.transfer_decoded(part.encoded)
        branches = part.branches
        del part  # an email of 25 MB is not held twice while its text is decoded
        is_shown = entity.is_text and not entity.is_attachment
        if is_shown and content and not content.isspace():
            text = _Text(entity.content_type == "text/html", decoded(content, entity.charset), branches)
            if entity.file_name:
                named[len(attachments)] = text
            else:
                texts.append(text)
        if is_shown and not entity.file_name:
            continue
        is_inline = len(content) <= inline_bytes > 0
        attachments.append(Attachment.of(entity.file_name, entity.content_type, content, inline=is_inline))
        inline_bytes -= len(content) if attachments[-1].content is not None else 0
    if not texts:
        texts = list(named.values())
        attachments = [each for place, each in enumerate(attachments) if place not in named]
    return _Contents(
        _joined_html(texts), "\n".join(each.text for each in texts if not each.is_html), tuple(attachments)
    )


def _joined_html(texts: Sequence[_Text]) -> str:
    """As mail programs show it: with the texts around the HTML in their places, but for those it is the alternative to.

    Empty where there is no HTML.
    """
    html_branches: dict[int, set[int]] = {}
    for alternative, branch in (pair for each in texts if each.is_html for pair in each.branches.items()):
        html_branches.setdefault(alternative, set()).add(branch)
    shown = [
        each.text if each.is_html else f"<pre>{html.escape(each.text, quote=False)}</pre>"
        for each in texts
        if each.is_html
        or not any(html_branches.get(place, set()) - {branch} for place, branch in each.branches.items())
    ]
    return "\n".join(shown) if any(each.is_html for each in texts) else ""


def _header_text(value: bytes, charset: str) -> str:
    text = strictly_decoded(value, "utf-8")
    return well_formed(decoded(value, charset) if text is None else text)
