"""The email itself, and how its sender and subject are read."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from itertools import groupby
from typing import Any

from deduplication.body import Html, plain_links, plain_text
from deduplication.dates import parse_date
from deduplication.decoding import base64_decoded, decoded
from deduplication.kept_property import kept_property
from deduplication.limits import MAX_HEADER_CHARS, MAX_NAME_CHARS, MOST_ATTACHMENTS, MOST_RECIPIENTS
from deduplication.unicode_text import nfc

_QUOTED = r'"(?:[^"\\]|\\.)*+"'
_ATOM = r'[^\s<>,;:"()\[\]@]'
_ATOMS = re.compile(rf"{_ATOM}+")
# Each piece of a list of addresses is read once: a quoted text is part of an address only right before its @.
_PIECE = re.compile(
    rf"<\s*(?P<bracketed>(?:{_QUOTED}|[^<>\s@\"]++)@[^<>\s@\"]++)\s*>"
    rf"|(?P<bare>(?:{_QUOTED}|{_ATOM}++)@{_ATOM}++)(?!@)|{_QUOTED}|(?:{_ATOM}|@)++|(?P<end>[,;])",
    re.DOTALL,
)
# What nearly all senders look like, in a fifth of the time: a name, or one in quotes, and an address without oddities.
_USUAL_SENDER = re.compile(
    r'(?:[^"(),;:<>@\[\]\\]{0,200}|"[^"\\]{0,200}" ?)'
    r"<([a-zA-Z0-9_+=-][a-zA-Z0-9._+=-]{0,200}@[a-zA-Z0-9.-]{0,200}[a-zA-Z0-9])>"
)
_NOTHING_BUT_QUOTED = re.compile(r'[\s<]*"([^"\\]*)"[\s>]*')
_QUOTED_OR_COMMENT = re.compile(r'"(?:[^"\\]|\\.)*+(?P<closed>"?)|\(', re.DOTALL)
_WITHIN_COMMENTS = re.compile(r"\\.|[()]", re.DOTALL)
_ENCODED_WORD = re.compile(r"=\?([^?\s*]+)(?:\*[^?\s]*)?\?([bq])\?([^?\r\n]*)\?=", re.IGNORECASE)
_ENCODED_WORDS = re.compile(rf"{_ENCODED_WORD.pattern}(?:\s*{_ENCODED_WORD.pattern})*", re.IGNORECASE)
_FOLD = re.compile(r"\r?\n[ \t]*|[\r\n]+")
_NOT_IN_A_FILE_NAME = re.compile(r"[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")  # the last turn "fdp.exe" around


@dataclass(frozen=True)
class Attachment:
    """``name`` is the file's alone, without its path; ``content`` (Base64) is there only where asked for inline.

    ``sha256`` is empty where the contents did not come along. ``text_sha256`` is that of a text with LF at its line
    ends, where it has others: they change from door to door.
    """

    name: str
    content_type: str
    size_bytes: int
    sha256: str
    content: str | None = None
    text_sha256: str = ""

    @classmethod
    def of(cls, name: str, content_type: str, content: bytes, *, inline: bool) -> Attachment:
        is_text = b"\0" not in content[:8000]
        lines = content.replace(b"\r\n", b"\n") if is_text else content
        return cls(
            name=name,
            content_type=content_type,
            size_bytes=len(content),
            sha256=hashlib.sha256(content).hexdigest(),
            content=base64.b64encode(content).decode() if inline else None,
            text_sha256=hashlib.sha256(lines).hexdigest() if len(lines) < len(content) else "",
        )

    def __post_init__(self) -> None:
        name = _NOT_IN_A_FILE_NAME.sub("", well_formed(self.name[:MAX_HEADER_CHARS])).rstrip("/\\ ")
        object.__setattr__(self, "name", re.split(r"[/\\]", name)[-1].strip()[:MAX_NAME_CHARS])
        content_type = well_formed(self.content_type).partition(";")[0].strip().lower()
        object.__setattr__(self, "content_type", content_type)


_TEXTS = ("subject", "sender", "date", "html", "plain", "message_id", "event_id", "provider")


@dataclass(frozen=True)
class Email:
    """One email as a provider handed it over. ``subject``, ``sender`` and ``date`` are as received.

    ``html`` and ``plain`` are its HTML and its text, each as received and empty where there is none: what a body is, is
    never guessed from what it holds. ``event_id`` is the provider's own id, stable over its retries. ``recipients``:
    first where it was delivered to, then whom else it names. ``spam`` holds the provider's verdicts, by their names.

    Some doors do not tell everything: ``tells_body`` and ``tells_files`` say whether an empty body, and no attachments,
    mean that there are none.
    """

    subject: str = ""
    sender: str = ""
    date: str = ""
    html: str = ""
    plain: str = ""
    message_id: str = ""
    event_id: str = ""
    provider: str = ""
    recipients: tuple[str, ...] = ()
    attachments: tuple[Attachment, ...] = ()
    tells_body: bool = True
    tells_files: bool = True
    spam: Mapping[str, str] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in _TEXTS:
            value = getattr(self, name)
            if not value.isascii():
                object.__setattr__(self, name, well_formed(value))
        if self.recipients:
            recipients = tuple(each[:MAX_NAME_CHARS] for each in self.recipients[:MOST_RECIPIENTS])
            object.__setattr__(self, "recipients", recipients)
        if len(self.attachments) > MOST_ATTACHMENTS:
            object.__setattr__(self, "attachments", self.attachments[:MOST_ATTACHMENTS])
        if self.spam:
            object.__setattr__(self, "spam", {name: value[:MAX_HEADER_CHARS] for name, value in self.spam.items()})

    @kept_property
    def sender_email(self) -> str:
        return address_of(self.sender)

    @kept_property
    def clean_subject(self) -> str:
        return decode_subject(self.subject)

    @kept_property
    def date_utc(self) -> datetime | None:
        return parse_date(self.date)

    @kept_property
    def is_html(self) -> bool:
        return bool(self.html) and not self.html.isspace()

    @property
    def body(self) -> str:
        """The HTML where there is some, else the text: of the two, what mail programs show."""
        return self.html if self.is_html else self.plain

    @kept_property
    def text(self) -> str:
        return self._read_html.text if self.is_html else plain_text(self.plain)

    @kept_property
    def links(self) -> tuple[str, ...]:
        return self._read_html.links if self.is_html else plain_links(self.plain)

    @property
    def images(self) -> tuple[str, ...]:
        return self._read_html.images if self.is_html else ()

    @property
    def targets(self) -> tuple[str, ...]:
        """What the HTML leads to or shows; what a text leads to stands in it."""
        return self._read_html.targets if self.is_html else ()

    @kept_property
    def _read_html(self) -> Html:
        return Html(self.html)


def well_formed(text: str) -> str:
    """JSON may carry half a surrogate pair, which no hash, file or socket takes."""
    if text.isascii():
        return text
    for charset in ("latin-1", "utf-8"):  # the first takes a tenth of the time, and will do for half of the world
        try:
            text.encode(charset)
        except UnicodeEncodeError:
            continue
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def address_of(sender: str) -> str:
    """The address alone, in lower case, of the first author; empty if there is none."""
    usual = _USUAL_SENDER.fullmatch(sender)
    return usual[1].lower() if usual else next(_addresses(sender), "")


def addresses_in(text: str) -> list[str]:
    """Each address of a list such as "Ada <a@example.org>, b@example.org", in lower case."""
    return list(_addresses(text))


def _addresses(text: str) -> Iterator[str]:
    """Bracketed beats whatever the name contains, and what is quoted or a comment never counts.

    In "ceo@bank.example"@evil.example the quotes belong to the address: who reads what is inside lets anybody in.
    """
    text = text[:MAX_HEADER_CHARS]
    whole = _NOTHING_BUT_QUOTED.fullmatch(text)
    bracketed = bare = ""
    for piece in _PIECE.finditer(whole[1] if whole else _without_comments(text)):
        bracketed = _normalised(piece["bracketed"]) or bracketed
        bare = bare or _normalised(piece["bare"])
        if piece["end"]:
            yield from filter(None, [bracketed or bare])
            bracketed = bare = ""
    yield from filter(None, [bracketed or bare])


def _normalised(address: str | None) -> str:
    """Without quotes that are not needed, and the marks that a sentence left at the ends."""
    if not address:
        return ""
    local, _, domain = address.lower().rpartition("@")
    unquoted = local[1:-1] if local.startswith('"') else local
    plain = unquoted.lstrip(".'") if _ATOMS.fullmatch(unquoted) else local
    domain = domain.rstrip(".'")
    return f"{plain}@{domain}" if plain and domain else ""


def _without_comments(text: str) -> str:
    """They may be nested. What follows a quote or comment that is never closed is ordinary text: it is read once."""
    kept, depth, start, position = [], 0, 0, 0
    while mark := (_WITHIN_COMMENTS if depth else _QUOTED_OR_COMMENT).search(text, position):
        position = mark.end()
        if mark[0] == "(":
            if depth == 0:
                kept.append(text[start : mark.start()])
                start = mark.start()
            depth += 1
        elif mark[0] == ")":
            depth -= 1
            if depth == 0:
                start = position
        elif depth == 0 and not mark["closed"]:
            return " ".join([*kept, text[start : mark.start()], text[mark.start() :].replace('"', " ")])
    return " ".join([*kept, text[start:].replace('"', " ") if depth else text[start:]])


def decode_subject(subject: str) -> str:
    """Unfolded, encoded words decoded, NFC, white space collapsed."""
    text = subject[:MAX_HEADER_CHARS]
    if "=?" in text:
        text = _ENCODED_WORDS.sub(_decoded, _FOLD.sub(" ", text))
    return " ".join(nfc(well_formed(text)).split())


def _decoded(words: re.Match[str]) -> str:
    """Encoded words that follow each other, read as a body in their charset is; a character may be cut in two."""
    text = ""
    for charset, run in groupby(_ENCODED_WORD.findall(words[0]), key=lambda word: word[0].lower()):
        text += decoded(b"".join(_decoded_word(encoding, word) for _, encoding, word in run), charset)
    return text


def _decoded_word(encoding: str, word: str) -> bytes:
    raw = word.encode("utf-8", "replace")
    return base64_decoded(raw) if encoding in "bB" else binascii.a2b_qp(raw, header=True)
