"""The fields of a provider's request: JSON objects, and headers in the notations in use."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable
from typing import Any, Self

from deduplication.email import File, HeaderList, header_key
from deduplication.mime import DELIVERED_HEADERS, envelope_of
from deduplication.text import well_formed
from routes.payload import InvalidPayload

_PARTS = {"subject": "Subject", "sender": "From", "date": "Date", "message_id": "Message-ID"}
_SIZE = re.compile("[0-9]{1,15}")
_NEEDS_QUOTES = re.compile(r"[\"(),:;<>@\[\\\]]")


class Document(dict[str, Any]):
    """A JSON object. Only ``of`` and ``text`` raise InvalidPayload: invalid parts that an email does not need are
    ignored."""

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

    def optional(self, field: str) -> str:
        """A text; empty for any other value."""
        value = self.get(field)
        return value if isinstance(value, str) else ""

    def object(self, field: str) -> Document:
        value = self.get(field)
        return Document(value if isinstance(value, dict) else {})

    def objects(self, field: str) -> list[Document]:
        value = self.get(field)
        return [Document(item) for item in value if isinstance(item, dict)] if isinstance(value, list) else []

    def size(self, field: str) -> int:
        """A number of bytes, which may be written as a text, or 0."""
        size = str(self.get(field))
        return int(size) if _SIZE.fullmatch(size) else 0

    def files(
        self, field: str, name: str, content_type: str, contents: tuple[str, ...] = (), size: str = ""
    ) -> list[File]:
        """Of a list of attachments, by the provider's names; the first of ``contents`` that one has, in Base64."""
        return [
            File(
                file.optional(name),
                file.optional(content_type),
                next((file.base64(each) for each in contents if each in file), None),
                file.size(size),
            )
            for file in self.objects(field)
        ]

    def base64(self, field: str) -> bytes | None:
        """None if it is not Base64: an attachment that cannot be decoded does not reject the email."""
        try:
            return base64.b64decode(self[field]) if isinstance(self.get(field), str) else None
        except (binascii.Error, ValueError):
            return None


class MailHeaders:
    """Headers of an email, by their names in any case and with - or _; of several with one name, the first.

    Notations in use: [["Date", "..."]] (Mailgun), [{"Name": "Date", "Value": "..."}] (Postmark), {"Date": "..."} and
    {"Received": ["...", "..."]} (the others). What cannot be read is left out.
    """

    def __init__(self, given: Any) -> None:
        pairs = given.items() if isinstance(given, dict) else map(_pair, given) if isinstance(given, list) else ()
        self._values: dict[str, str] = {}
        self._list = HeaderList[str]()
        for name, value in pairs:
            texts = [text for text in (value if isinstance(value, list) else [value]) if isinstance(text, str)]
            if isinstance(name, str) and texts:
                self._values.setdefault(header_key(name), texts[0])
                for text in texts:
                    self._list.add(well_formed(name), " ".join(well_formed(text).split()))

    def __getitem__(self, name: str) -> str:
        return self._values.get(header_key(name), "")

    def named(self, names: Iterable[str]) -> dict[str, str]:
        return {name: self[name] for name in names if self[name]}

    def added_to(self, fields: dict[str, Any]) -> dict[str, Any]:
        """The fields of Email.received. Where a header and a field say the same, the header counts."""
        return {
            **envelope_of(self.__getitem__),
            **fields,
            **{part: self[name] or fields.get(part, "") for part, name in _PARTS.items()},
            "delivered_headers": [self[name] for name in DELIVERED_HEADERS],
            "to": [*fields.get("to", ()), self["To"]],
            "cc": [*fields.get("cc", ()), self["Cc"]],
            "reply_to": [*fields.get("reply_to", ()), self["Reply-To"]],
            "headers": tuple(self._list.kept),
            "headers_omitted": self._list.omitted,
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
