"""The parts of an email as providers spell them: headers, addresses, bodies, attachments."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from deduplication.body import looks_like_html
from deduplication.email import Attachment, addresses_in
from deduplication.mime import EXTRA_HEADERS, MAX_HEADER_BYTES

_MORE_THAN_WORDS = re.compile(r"[\"(),:;<>@\[\\\]]")
HeaderPairs = Sequence[tuple[str, str]]


def header_pairs(given: Any) -> list[tuple[str, str]]:
    """From any notation in use; what cannot be read is left out.

    [["Date", "..."]] (Mailgun), [{"Name": "Date", "Value": "..."}] (Postmark), {"Date": "..."} and
    {"Received": ["...", "..."]} (the others).
    """
    pairs = given.items() if isinstance(given, dict) else map(_pair, given) if isinstance(given, list) else ()
    return [(name, value) for name, values in pairs if isinstance(name, str) for value in _texts(values)]


def _pair(given: Any) -> tuple[Any, Any]:
    if isinstance(given, dict):
        lower = {str(key).lower(): value for key, value in given.items()}
        return lower.get("name"), lower.get("value")
    return (given[0], given[1]) if isinstance(given, list) and len(given) == 2 else (None, None)


def _texts(values: Any) -> list[str]:
    return [value for value in (values if isinstance(values, list) else [values]) if isinstance(value, str)]


def header(pairs: HeaderPairs, name: str) -> str:
    """The first of that name, in any case, with - or _."""
    wanted = _folded(name)
    return next((value for given, value in pairs if _folded(given) == wanted), "")


def headers_named(pairs: HeaderPairs, names: Iterable[str]) -> dict[str, str]:
    """Those that are there, such as a spam filter's verdicts."""
    found = {name: header(pairs, name) for name in names}
    return {name: value for name, value in found.items() if value}


def _folded(name: str) -> str:
    return name.lower().replace("_", "-")


def addresses(*given: Any) -> tuple[str, ...]:
    """The addresses alone, in lower case, each once, of texts such as "Ada <a@example.org>, b@example.org"."""
    named = (address for text in _flat(given) for address in addresses_in(text[:MAX_HEADER_BYTES]))
    return tuple(dict.fromkeys(named))


def mailbox(name: str, address: str) -> str:
    """As a header has it. In quotes, unless it is but words: a name brings in no address of its own."""
    name = " ".join(name.split())
    if not name or not address:
        return address
    if _MORE_THAN_WORDS.search(name):
        name = '"' + re.sub(r'(["\\])', r"\\\1", name) + '"'
    return f"{name} <{address}>"


def object_of(document: Mapping[str, Any], field: str) -> Mapping[str, Any]:
    """The object under a field; an empty one for anything else."""
    value = document.get(field)
    return value if isinstance(value, dict) else {}


def thread_of(pairs: HeaderPairs) -> dict[str, str]:
    """The headers that say what the email belongs to, under the names that raw emails have them by."""
    return {name.lower().replace("-", "_"): value for name, value in headers_named(pairs, EXTRA_HEADERS).items()}


def _flat(given: Iterable[Any]) -> Iterator[str]:
    for each in given:
        if isinstance(each, str):
            yield each
        elif isinstance(each, list | tuple):
            yield from _texts(list(each))


BODY_TYPES = ("html", "text")


def html_and_plain(html: str, plain: str, body: str, body_type: str = "") -> tuple[str, str]:
    """Where one ``body`` may be either. Said by nobody, it is HTML if it looks like it, or could beside a text.

    What is the same as the text beside it is that text: some scripts put it into both fields.
    """
    could_be = looks_like_html(body) or (bool(plain.strip()) and "<" not in body)
    is_html = could_be if not body_type else body_type == "html"
    html, plain = (html or body, plain) if is_html else (html, body or plain)
    html_lines, plain_lines = (text.replace("\r\n", "\n").strip() for text in (html, plain))
    return ("" if html_lines == plain_lines else html), plain


def scores(given: Mapping[str, Any]) -> dict[str, str]:
    """A spam filter's verdicts, as texts; those that are absent or no plain values are left out."""
    return {name: str(value) for name, value in given.items() if isinstance(value, str | int | float) and value != ""}


@dataclass(frozen=True)
class File:
    """``content`` None: it did not come along, or cannot be read."""

    name: str
    content_type: str
    content: bytes | None


def attachments_of(files: Iterable[File], inline_bytes: int) -> tuple[Attachment, ...]:
    """Described; with their contents as long as all that are handed on stay within ``inline_bytes``."""
    found, left = [], inline_bytes
    for file in files:
        if file.content is None:
            found.append(Attachment(file.name, file.content_type, size_bytes=0, sha256=""))
            continue
        inline = len(file.content) <= left
        left -= len(file.content) if inline else 0
        found.append(Attachment.of(file.name, file.content_type, file.content, inline=inline and inline_bytes > 0))
    return tuple(found)


def from_base64(text: Any) -> bytes | None:
    """None if it is not Base64: an attachment that cannot be read does not spoil the email."""
    try:
        return base64.b64decode(text) if isinstance(text, str) else None
    except (binascii.Error, ValueError):
        return None


def objects(given: Any) -> list[dict[str, Any]]:
    """The objects of a list, if it is one."""
    return [each for each in given if isinstance(each, dict)] if isinstance(given, list) else []


def text_of(document: Mapping[str, Any], field: str) -> str:
    """Of a part that the email can do without: whatever is not text is left out."""
    value = document.get(field)
    return value if isinstance(value, str) else ""


def size_of(document: Mapping[str, Any], field: str) -> int:
    """0 where it is no number of bytes; ``true`` is none, though Python takes it for one."""
    value = document.get(field)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
