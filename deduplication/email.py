"""The email itself, and how its parts are read: addresses, encoded subjects, dates in every notation, text, links."""

from __future__ import annotations

import email.header
import email.utils
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta, timezone
from functools import cached_property
from typing import Any

from selectolax.lexbor import LexborHTMLParser

_BRACKETED = re.compile(r"<\s*([^<>\s@]+@[^<>\s@]+)\s*>")
_BARE = re.compile(r"[^\s<>,;:\"'()\[\]@]+@[^\s<>,;:\"'()\[\]@]+")
_LINK = re.compile(r"https?://[^\s<>\"'\u00a0]+", re.IGNORECASE)
_TAG = re.compile(r"<(?:!doctype|/?[a-z][a-z0-9]*)(?:\s[^<>]*)?/?>", re.IGNORECASE)
_COMMENT = re.compile(r"\s*\([^()]*\)\s*$")
_EPOCH = re.compile(r"\d{10}(?:\d{3})?(?:\.\d+)?")
_JAVASCRIPT = re.compile(r"(\w{3}) (\w{3}) (\d{1,2}) (\d{4}) (\d\d:\d\d:\d\d) (?:GMT|UTC)([+-]\d{4})?")
# Zone names that people's mail programs write and the standard library does not know. Hours from UTC.
_ZONES = {
    "WET": 0, "WEST": 1, "BST": 1, "IST": 5.5, "CET": 1, "MET": 1, "CEST": 2, "MEST": 2, "MESZ": 2, "MEZ": 1,
    "EET": 2, "EEST": 3, "MSK": 3, "JST": 9, "KST": 9, "HKT": 8, "SGT": 8, "AWST": 8, "AEST": 10, "AEDT": 11,
    "NZST": 12, "NZDT": 13, "AKST": -9, "AKDT": -8, "HST": -10,
}  # fmt: skip


@dataclass(frozen=True)
class Email:
    """One email as a provider handed it over. ``subject``, ``sender`` and ``date`` are as received."""

    subject: str = ""
    sender: str = ""
    date: str = ""
    body: str = ""
    message_id: str = ""
    event_id: str = ""
    provider: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, str):
                object.__setattr__(self, each.name, _well_formed(value))

    @cached_property
    def sender_email(self) -> str:
        return address_of(self.sender)

    @cached_property
    def clean_subject(self) -> str:
        return decode_subject(self.subject)

    @cached_property
    def date_utc(self) -> datetime | None:
        return parse_date(self.date)

    @cached_property
    def text(self) -> str:
        return plain_text(self.body)

    @cached_property
    def links(self) -> tuple[str, ...]:
        return links_of(self.body)


def _well_formed(text: str) -> str:
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
    _, parsed = email.utils.parseaddr(sender)
    bare = _BARE.search(parsed) or _BARE.search(sender)
    return bare.group().strip(".").lower() if bare else ""


def decode_subject(subject: str) -> str:
    """Unfolded, encoded words decoded, NFC, white space collapsed."""
    unfolded = re.sub(r"\r?\n[ \t]*|[\r\n]+", " ", subject)
    return " ".join(unicodedata.normalize("NFC", _decode_words(unfolded)).split())


def _decode_words(text: str) -> str:
    if "=?" not in text:
        return text
    try:
        return str(email.header.make_header(email.header.decode_header(text)))
    except (LookupError, ValueError, email.errors.HeaderParseError):  # unknown charset, damaged base64
        return text


def parse_date(date: str) -> datetime | None:
    """The moment in UTC, from any notation seen in mail; None if absent or unreadable.

    A time without a zone is UTC: never the server's own zone.
    """
    text = " ".join(date.split())
    if not text:
        return None
    for read in (_read_epoch, _read_iso, _read_javascript, _read_rfc2822):
        try:
            moment = read(text)
            if moment:
                return moment.replace(tzinfo=moment.tzinfo or UTC).astimezone(UTC)
        except (ValueError, OverflowError, TypeError, IndexError):
            continue
    return None


def _read_epoch(text: str) -> datetime | None:
    if not _EPOCH.fullmatch(text):
        return None
    number = float(text)
    return datetime.fromtimestamp(number / 1000 if number >= 1e11 else number, UTC)


def _read_iso(text: str) -> datetime | None:
    return datetime.fromisoformat(text)


def _read_javascript(text: str) -> datetime | None:
    """Date.toString(): Wed Oct 11 2017 18:31:04 GMT-0700 (Pacific Daylight Time)"""
    match = _JAVASCRIPT.match(text)
    if not match:
        return None
    weekday, month, day, year, clock, offset = match.groups()
    return email.utils.parsedate_to_datetime(f"{weekday}, {day} {month} {year} {clock} {offset or '+0000'}")


def _read_rfc2822(text: str) -> datetime | None:
    bare = _COMMENT.sub("", text)
    parsed = email.utils.parsedate_tz(bare)
    if parsed is None:
        return None
    zone = bare.rsplit(" ", 1)[-1].upper()
    offset = timedelta(hours=_ZONES[zone]) if zone in _ZONES else timedelta(seconds=parsed[9] or 0)
    return datetime(*parsed[:6], tzinfo=timezone(offset))


def plain_text(body: str) -> str:
    """What a reader sees: tags, scripts and styles gone, entities decoded, white space collapsed, NFC."""
    seen = _html_text(body) if _TAG.search(body) else body
    return unicodedata.normalize("NFC", " ".join(seen.split()))


def _html_text(body: str) -> str:
    tree = LexborHTMLParser(body)
    tree.strip_tags(["script", "style", "head"])
    return tree.body.text(separator=" ") if tree.body else ""


def links_of(body: str) -> tuple[str, ...]:
    """The web links of a text or HTML body, each once, in order."""
    if not _TAG.search(body):
        return tuple(dict.fromkeys(map(_trimmed, _LINK.findall(body))))
    targets = [node.attributes.get("href") or "" for node in LexborHTMLParser(body).css("a[href]")]
    hrefs = [target.strip() for target in targets if _LINK.match(target.strip())]
    written = map(_trimmed, _LINK.findall(plain_text(body)))
    return tuple(dict.fromkeys([*hrefs, *written]))


def _trimmed(link: str) -> str:
    """A link in running text without the punctuation that ends the sentence."""
    link = link.rstrip(".,;:!?'")
    while link.endswith(")") and link.count(")") > link.count("("):
        link = link[:-1].rstrip(".,;:!?'")
    return link
