"""The email itself, and how its sender and subject are read."""

from __future__ import annotations

import base64
import email.errors
import email.header
import hashlib
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from functools import cached_property
from typing import Any

from deduplication.body import html_links, html_text, images_of, plain_links, plain_text
from deduplication.dates import parse_date

_BRACKETED = re.compile(r"<\s*([^<>\s@]+@[^<>\s@]+)\s*>")
_INSIDE, _AT_THE_ENDS = r"[^\s<>,;:\"()\[\]@]", r"[^\s<>,;:\"()\[\]@.']"
_BARE = re.compile(rf"(?<!{_INSIDE})[.']*({_AT_THE_ENDS}{_INSIDE}*@{_INSIDE}*{_AT_THE_ENDS})")
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*+("?)')  # up to the end where it is not closed, so that it is read only once
_ENCODED_WORD = r"=\?[^?\s]+\?[bq]\?[^?\r\n]*\?="
_ENCODED_WORDS = re.compile(rf"{_ENCODED_WORD}(?:\s+{_ENCODED_WORD})*", re.IGNORECASE)


@dataclass(frozen=True)
class Attachment:
    """``content`` (Base64) only where attachments are asked for inline; ``sha256`` is empty where the door has none.

    ``text_sha256`` is that of a text with LF at its line ends, where it has others: they change from door to door.
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
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, str):
                object.__setattr__(self, each.name, well_formed(value))

    @cached_property
    def sender_email(self) -> str:
        return address_of(self.sender)

    @cached_property
    def clean_subject(self) -> str:
        return decode_subject(self.subject)

    @cached_property
    def date_utc(self) -> datetime | None:
        return parse_date(self.date)

    @property
    def is_html(self) -> bool:
        return bool(self.html) and not self.html.isspace()

    @property
    def body(self) -> str:
        """The HTML where there is some, else the text: of the two, what mail programs show."""
        return self.html if self.is_html else self.plain

    @cached_property
    def text(self) -> str:
        return html_text(self.html) if self.is_html else plain_text(self.plain)

    @cached_property
    def links(self) -> tuple[str, ...]:
        return html_links(self.html) if self.is_html else plain_links(self.plain)

    @cached_property
    def images(self) -> tuple[str, ...]:
        return images_of(self.html) if self.is_html else ()


def well_formed(text: str) -> str:
    """JSON may carry half a surrogate pair, which no hash, file or socket takes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def address_of(sender: str) -> str:
    """The address alone, in lower case; empty if there is none. Bracketed beats whatever the name contains."""
    found = _BRACKETED.findall(sender)
    if found:
        return str(found[-1]).lower()
    bare = _BARE.search(sender)
    return bare[1].lower() if bare else ""


def addresses_in(text: str) -> list[str]:
    """Each address of a list such as "Ada <a@example.org>, b@example.org", in lower case."""
    unquoted = _QUOTED.sub(lambda quoted: " " if quoted[1] else quoted[0], text)
    return [address for address in map(address_of, re.split("[,;]", unquoted)) if address]


def decode_subject(subject: str) -> str:
    """Unfolded, encoded words decoded, NFC, white space collapsed."""
    unfolded = re.sub(r"\r?\n[ \t]*|[\r\n]+", " ", subject)
    decoded = well_formed(_ENCODED_WORDS.sub(_decoded, unfolded))
    return " ".join(unicodedata.normalize("NFC", decoded).split())


def _decoded(words: re.Match[str]) -> str:
    """Only the encoded words go through the library: it mangles raw 8-bit text beside them."""
    try:
        return "".join(raw.decode(charset or "ascii") for raw, charset in email.header.decode_header(words[0]))
    except (LookupError, ValueError, email.errors.HeaderParseError):  # unknown charset, damaged base64
        return words[0]
