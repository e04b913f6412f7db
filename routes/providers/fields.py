"""The fields of a provider's request: JSON objects, and headers in the notations in use."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Self

from deduplication.email import MOST_HEADERS, Attachment, fitting, header_key
from deduplication.spool import Blob, Content, transformed
from deduplication.text import base64_chunks
from routes.mime import DELIVERED_HEADERS
from routes.payload import InvalidPayload, with_texts

_PARTS = {"subject": "Subject", "sender": "From", "date": "Date", "message_id": "Message-ID"}
_REPLY = {"in_reply_to": "In-Reply-To", "references": "References"}
_SIZE = re.compile("[0-9]{1,15}")
_NEEDS_QUOTES = re.compile(r"[\"(),:;<>@\[\\\]]")


class FileFields(NamedTuple):
    """A provider's names for the fields of an attachment; ``contents``: those that may have it, in Base64. Samples are
    written by the same names."""

    name: str
    content_type: str
    contents: tuple[str, ...] = ()
    size: str = ""
    content_id: str = ""
    disposition: str = ""


class Document(dict[str, Any]):
    """A JSON object. Only ``of`` and ``text`` raise InvalidPayload: invalid parts that an email does not need are
    ignored. What is read of it has a place in the email; ``unread`` is the rest."""

    def __init__(self, value: Mapping[str, Any]) -> None:
        super().__init__(value)
        self._read: dict[str, list[Document]] = {}  # with the objects in it that were read in turn

    @classmethod
    def of(cls, value: Any) -> Self:
        if not isinstance(value, dict):
            raise InvalidPayload(f"the body must be a JSON object, got {type(value).__name__}")
        return cls(value)

    def text(self, field: str) -> str:
        """Absent and null are empty; any other value that is not a string is refused."""
        value = self.get(field)
        if value is None:
            return ""
        if not isinstance(value, str):
            raise InvalidPayload(f"{field} must be a string, got {type(value).__name__}", field=field)
        return value

    def texts(self, fields: Mapping[str, str]) -> dict[str, Any]:
        """For Provider.email, by our names for them; ``fields`` are the provider's."""
        return {part: self.text(field) for part, field in fields.items()}

    def optional(self, field: str) -> str:
        """A text; empty for any other value."""
        value = self.get(field)
        return value if isinstance(value, str) else ""

    def object(self, field: str) -> Document:
        value = self.get(field)
        return self._inner(field, [value])[0] if isinstance(value, dict) else Document({})

    def objects(self, field: str) -> list[Document]:
        """Of a list, or by their names."""
        value = self.get(field)
        inner = list(value.values()) if isinstance(value, dict) else value
        return self._inner(field, inner if isinstance(inner, list) else [])

    def _inner(self, field: str, values: Iterable[Any]) -> list[Document]:
        if not self._read[field]:
            self._read[field] = [Document(value) for value in values if isinstance(value, dict)]
        return self._read[field]

    def get(self, field: str, default: Any = None) -> Any:
        self._read.setdefault(field, [])
        return super().get(field, default)

    def skip(self, *fields: str) -> None:
        """The same is read elsewhere."""
        self._read |= {field: [] for field in fields}

    @property
    def unread(self) -> dict[str, Any]:
        """Fields that were not read, but for empty ones."""
        rest: dict[str, Any] = {}
        for field, value in self.items():
            if field in self._read:
                inner = [left for document in self._read[field] if (left := document.unread)]
                value = inner if isinstance(value, list) else next(iter(inner), None)
            if value not in (None, "", [], {}):
                rest[field] = with_texts(value)
        return rest

    def size(self, field: str) -> int:
        """A number of bytes, which may be written as a text, or 0."""
        size = str(self.get(field))
        return int(size) if _SIZE.fullmatch(size) else 0

    def files(self, field: str, names: FileFields) -> list[Attachment]:
        """Of a list of attachments; of those that have a Content-ID and no disposition, the HTML shows them. Mandrill
        says of texts that they are not in Base64."""
        found = []
        for file in self.objects(field):
            content_id, disposition = file.optional(names.content_id), file.optional(names.disposition).lower()
            decode = file.content if file.get("base64") is False else file.base64
            content = next((decode(name) for name in names.contents if name in file), None)
            name, content_type = file.optional(names.name), file.optional(names.content_type)
            is_inline = disposition == "inline" or (bool(content_id) and not disposition)
            shown: dict[str, Any] = {"content_id": content_id, "inline": is_inline, "data": content}
            found.append(Attachment(name, content_type, file.size(names.size), **shown))
        return found

    def base64(self, field: str) -> Content | None:
        """None if it is not Base64: an attachment that cannot be decoded does not reject the email."""
        value = self.get(field)
        if isinstance(value, Blob):
            return transformed(value, base64_chunks)
        try:
            return base64.b64decode(value) if isinstance(value, str) else None
        except (binascii.Error, ValueError):
            return None

    def content(self, field: str) -> Content:
        """A text in UTF-8; empty for any other value."""
        value = self.get(field)
        return value if isinstance(value, Blob) else self.optional(field).encode()


class MailHeaders:
    """Headers of an email, by their names in any case and with - or _; of several with one name, the first.

    Notations in use: [["Date", "..."]] (Mailgun), [{"Name": "Date", "Value": "..."}] (Postmark), {"Date": "..."} and
    {"Received": ["...", "..."]} (the others). What cannot be read is left out. Those that do not ``decide`` say nothing
    about which email it is: a script that sends them has said that in fields of its own.
    """

    def __init__(self, given: Any, *, decide: bool = True) -> None:
        self._decide = decide
        pairs = given.items() if isinstance(given, dict) else map(_pair, given) if isinstance(given, list) else ()
        self._values: dict[str, str] = {}
        self._pairs: list[tuple[str, str]] = []
        for name, value in pairs:
            texts = [text for text in (value if isinstance(value, list) else [value]) if isinstance(text, str)]
            if isinstance(name, str) and texts:
                self._values.setdefault(header_key(name), texts[0])
                self._pairs += [(name, " ".join(text.split()) if "\n" in text else text) for text in texts]

    def __getitem__(self, name: str) -> str:
        return self._values.get(header_key(name), "")

    def named(self, names: Iterable[str]) -> dict[str, str]:
        return {name: self[name] for name in names if self[name]}

    def added_to(self, fields: dict[str, Any]) -> dict[str, Any]:
        """The fields of Email.received. Where a header and a field say the same, the header counts."""
        parts = {**_PARTS, **_REPLY} if self._decide else _REPLY
        addresses = ("to", "cc", "reply_to") if self._decide else ("reply_to",)
        kept = fitting(self._pairs)[:MOST_HEADERS]
        return {
            "return_path": self["Return-Path"] or None,
            **fields,
            **{part: self[name] or fields.get(part, "") for part, name in parts.items()},
            **{part: [*fields.get(part, ()), text] for part in addresses if (text := self[part])},
            "delivered_headers": [text for name in DELIVERED_HEADERS if self._decide and (text := self[name])],
            "headers": tuple(kept),
            "headers_omitted": len(self._pairs) - len(kept),
        }


def _pair(given: Any) -> tuple[Any, Any]:
    if isinstance(given, dict):
        lower = {str(key).lower(): value for key, value in given.items()}
        return lower.get("name"), lower.get("value")
    return (given[0], given[1]) if isinstance(given, list) and len(given) == 2 else (None, None)


def nested(values: Iterable[tuple[list[str], Any]]) -> dict[str, Any]:
    """Each value at its path. One whose path leads through another value is left out."""
    document: dict[str, Any] = {}
    for (*steps, last), value in values:
        place: Any = document
        for step in steps:
            place = place.setdefault(step, {}) if isinstance(place, dict) else None
        if isinstance(place, dict):
            place[last] = value
    return document


def mailbox(name: str, address: str) -> str:
    """As in a From header. The name is quoted if it is more than words: it must not bring in another address."""
    name = " ".join(name.split())
    if not name or not address:
        return address
    if _NEEDS_QUOTES.search(name):
        name = '"' + re.sub(r'(["\\])', r"\\\1", name) + '"'
    return f"{name} <{address}>"
