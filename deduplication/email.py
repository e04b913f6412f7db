"""The email itself: its parts as received, and what is read from them."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, fields
from datetime import datetime
from itertools import chain, groupby, islice
from typing import Any, AnyStr, TypeVar

from deduplication.authentication import UNKNOWN, Authentication, Result, authenticate
from deduplication.automated import MAX_PART_BYTES, REPORT_TYPES, Automated, classify
from deduplication.body import Html, looks_like_html, plain_links, plain_text
from deduplication.dates import parse_date
from deduplication.names import bounded_key
from deduplication.spool import Content, chunks_of, read_all
from deduplication.text import base64_decoded, decoded, nfc, well_formed, without_c1
from deduplication.values import frozen, kept_property

# Longer values are cut before they are worked at. The text of an email is not cut: its fingerprint covers all of it.
MAX_HEADER_CHARS = 64 * 1024  # subject, sender, date, Message-ID and other ids, each
MAX_NAME_CHARS = 1000  # of a file, of an address
MOST_RECIPIENTS = 1000
MOST_ATTACHMENTS = 1000
SHOWN_DATE = "%Y-%m-%dT%H:%M:%SZ"
MOST_LOOKED_AT = 8000  # bytes of a file: with a NUL among them it is no text
MOST_HEADERS = 200
MAX_HEADERS_CHARS = 64 * 1024  # of all headers that are handed on
MOST_REFERENCES = 200
MOST_REPORTS = 10
MAX_EXTRA_CHARS = 64 * 1024  # of all other fields that a provider sends

Value = TypeVar("Value")

_QUOTED = r'"(?:[^"\\]|\\.)*+"'
_ATOM = r'[^\s<>,;:"()\[\]@]'
_ATOMS = re.compile(rf"{_ATOM}+")
# Each piece of a list of addresses is read once: quoted text is part of an address only right before its @.
_PIECE = re.compile(
    rf"<\s*(?P<bracketed>(?:{_QUOTED}|[^<>\s@\"]++)@[^<>\s@\"]++)\s*>"
    rf"|(?P<bare>(?:{_QUOTED}|{_ATOM}++)@{_ATOM}++)(?!@)|{_QUOTED}|(?:{_ATOM}|@)++|(?P<end>[,;])",
    re.DOTALL,
)
_NOTHING_BUT_QUOTED = re.compile(r'[\s<]*"([^"\\]*)"[\s>]*')
_QUOTED_OR_COMMENT = re.compile(r'"(?:[^"\\]|\\.)*+(?P<closed>"?)|\(', re.DOTALL)
_WITHIN_COMMENTS = re.compile(r"\\.|[()]", re.DOTALL)
_ENCODED_WORD = re.compile(r"=\?([^?\s*]+)(?:\*[^?\s]*)?\?([bq])\?([^?\r\n]*)\?=", re.IGNORECASE)
_ENCODED_WORDS = re.compile(rf"{_ENCODED_WORD.pattern}(?:\s*{_ENCODED_WORD.pattern})*", re.IGNORECASE)
_NOT_ASCII = re.compile(r"([^\x00-\x7f]+)")
_FOLD = re.compile(r"\r?\n[ \t]*|[\r\n]+")
_BRACKETED = re.compile(r"<\s*([^<>\s]+)\s*>")
_NOT_IN_A_FILE_NAME = re.compile(r"[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")  # the last turn "fdp.exe" around


@frozen
class Attachment:
    """``name`` has no path; ``content`` (Base64) is set only where contents are wanted in the webhook, ``data`` where
    they are wanted by link. One that is ``inline`` is shown within the HTML, which refers to it by ``content_id``.

    ``sha256`` is empty if the contents were not sent. ``text_sha256`` is that of a text whose lines, the last one
    included, all end in LF, if it is another one: providers change line ends.
    """

    name: str
    content_type: str
    size_bytes: int
    sha256: str
    content: str | None = None
    text_sha256: str = ""
    content_id: str = ""
    inline: bool = False
    data: Content | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        name = _NOT_IN_A_FILE_NAME.sub("", well_formed(self.name[:MAX_HEADER_CHARS])).rstrip("/\\ ")
        self.__dict__.update(
            name=re.split(r"[/\\]", name)[-1].strip()[:MAX_NAME_CHARS],
            content_type=media_type(well_formed(self.content_type)),
            content_id=well_formed(self.content_id[:MAX_NAME_CHARS]).strip(" <>"),
        )


@frozen
class File:
    """A file as a provider describes it. ``content`` is None if it was not sent or cannot be decoded."""

    name: str
    content_type: str
    content: Content | None = None
    size_bytes: int = 0
    content_id: str = ""
    inline: bool = False


def _digests(content: Content) -> tuple[int, str, str]:
    """Its size, ``sha256`` and ``text_sha256``."""
    whole, lines, size_bytes, is_text, left, end = hashlib.sha256(), None, 0, True, b"", b""
    for chunk in (content,) if isinstance(content, bytes) else content.chunks():
        is_text = is_text and b"\0" not in chunk[: max(0, MOST_LOOKED_AT - size_bytes)]
        if is_text and lines is None and b"\r" in chunk:
            lines = whole.copy()  # all lines so far end in LF
        whole.update(chunk)
        size_bytes += len(chunk)
        if lines is not None:
            text = (left + chunk).replace(b"\r\n", b"\n")
            left = b"\r" if text.endswith(b"\r") else b""  # the next chunk may begin with its LF
            lines.update(text[: len(text) - len(left)])
        end = chunk[-1:]
    lines = lines or whole.copy()
    if end != b"\n":
        lines.update(left + b"\n")
    is_other = is_text and size_bytes and lines.digest() != whole.digest()
    return size_bytes, whole.hexdigest(), lines.hexdigest() if is_other else ""


@frozen
class Email:
    """One email. ``subject``, ``sender``, ``date``, ``html`` and ``plain`` (its text) are as received.

    ``event_id`` is the provider's own id, the same in its retries. ``recipients`` are the addresses that it was
    delivered to, ``to``, ``cc`` and ``reply_to`` those of its headers. ``spam`` holds the provider's verdicts by their
    names, ``verdicts`` what it says of SPF, DKIM and DMARC, ``extra`` what else it sent. ``headers`` are in order, with
    their names as received; ``headers_omitted`` and ``extra_omitted`` count those that did not fit. ``return_path`` is
    the sender of the envelope: empty for a notification, None if it is unknown. ``in_reply_to`` and ``references`` are
    Message-IDs without brackets. ``reply_text`` is the text without quotes, where the provider has one; ``reports`` are
    the parts that automated.py reads, ``trusted_authserv_ids`` the hosts whose Authentication-Results count.

    Some providers omit parts: ``tells_body`` and ``tells_files`` say whether an empty body, and no attachments, mean
    that there are none. Without ``tells_recipients``, ``recipients`` are at best from headers such as Delivered-To.
    ``first_html`` is the first part of an HTML body that was joined from several, empty if it has no others, and None
    if the provider may have omitted the others. ``date_source`` is the provider if the date may be another than that of
    the Date header, such as the time of receipt. ``original``: the raw email, where it is wanted by link.
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
    to: tuple[str, ...] = ()
    cc: tuple[str, ...] = ()
    attachments: tuple[Attachment, ...] = ()
    tells_body: bool = True
    tells_files: bool = True
    tells_recipients: bool = True
    first_html: str | None = None
    date_source: str = ""
    spam: Mapping[str, str] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)
    extra_omitted: int = 0
    headers: tuple[tuple[str, str], ...] = ()
    headers_omitted: int = 0
    reply_to: tuple[str, ...] = ()
    return_path: str | None = None
    in_reply_to: str = ""
    references: tuple[str, ...] = ()
    reply_text: str = ""
    provider_thread: str = ""
    verdicts: tuple[Result, ...] = ()
    trusted_authserv_ids: tuple[str, ...] = ()
    reports: tuple[tuple[str, bytes], ...] = ()
    original: Content | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in _TEXTS:
            value = getattr(self, name)
            if not value.isascii():
                object.__setattr__(self, name, well_formed(value))
        if len(self.attachments) > MOST_ATTACHMENTS:
            object.__setattr__(self, "attachments", self.attachments[:MOST_ATTACHMENTS])
        if self.spam:
            object.__setattr__(self, "spam", {name: value[:MAX_HEADER_CHARS] for name, value in self.spam.items()})

    @classmethod
    def received(
        cls,
        *,
        body: str | None = None,
        body_type: str = "",
        recipients: Iterable[Any] = (),
        delivered_headers: Iterable[Any] = (),
        files: Sequence[File | Attachment] = (),
        inline_bytes: int = 0,
        is_linked: bool = False,
        spam: Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> Email:
        """From a provider's fields. ``body`` may be HTML or text, as ``body_type`` says, or as it looks.

        Addresses are texts or lists of texts; ``recipients`` are those of the envelope, in whose place headers such as
        Delivered-To (``delivered_headers``) are read. Files are handed on with their contents while they fit into
        ``inline_bytes``, or if they ``is_linked``. Values of ``spam`` that are missing or not plain are left out.
        """
        if body is not None:
            fields |= _html_and_plain(fields["html"], fields["plain"], body, body_type)
        if spam:
            fields["spam"] = {
                name: str(value) for name, value in spam.items() if isinstance(value, str | int | float) and value != ""
            }
        if files:
            fields["attachments"] = _attachments(files, inline_bytes, is_linked)
            fields["reports"] = _reports(files)
        if extra := fields.get("extra"):
            sizes = (len(name) + len(v if isinstance(v, str) else json.dumps(v)) for name, v in extra.items())
            fields["extra"] = dict(_fitting(extra.items(), sizes, MAX_EXTRA_CHARS))
            fields["extra_omitted"] = len(extra) - len(fields["extra"])
        envelope = addresses_in(*recipients)
        fields |= {name: addresses_in(*fields.get(name, ())) for name in ("to", "cc", "reply_to")}
        if (sender := fields.get("return_path")) is not None:
            fields["return_path"] = address_of(sender) or without_brackets(sender)
        if in_reply_to := fields.get("in_reply_to"):
            fields["in_reply_to"] = next(iter(message_ids(in_reply_to)), "")
        if references := fields.pop("references", ""):
            fields["references"] = message_ids(references)
        return cls(recipients=envelope or addresses_in(*delivered_headers), tells_recipients=bool(envelope), **fields)

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
    def read_html(self) -> Html | None:
        """None if the email is plain text, even with an empty HTML part beside it."""
        html = Html(self.html) if self.html and not self.html.isspace() else None
        return None if html and html.is_empty and self.plain else html

    @property
    def body(self) -> str:
        """What mail programs show: the HTML if there is some, else the text."""
        return self.html if self.read_html else self.plain

    @kept_property
    def text(self) -> str:
        return self.read_html.text if self.read_html else plain_text(self.plain)

    @kept_property
    def links(self) -> tuple[str, ...]:
        return self.read_html.links if self.read_html else plain_links(self.plain)

    @kept_property
    def _by_name(self) -> Mapping[str, list[str]]:
        found: dict[str, list[str]] = {}
        for name, value in self.headers:
            found.setdefault(header_key(name), []).append(value)
        return found

    def header(self, name: str) -> str:
        """The first of that name, in any case; empty if there is none."""
        return next(iter(self.headers_named(name)), "")

    def headers_named(self, name: str) -> tuple[str, ...]:
        return tuple(self._by_name.get(header_key(name), ()))

    @kept_property
    def thread(self) -> str:
        """The same for all emails of a conversation: the Message-ID that it began with. Empty if there is none."""
        return bounded_key(
            self.references[0] if self.references else self.in_reply_to or without_brackets(self.message_id)
        )

    @property
    def envelope(self) -> dict[str, Any]:
        """What receivers are told of its headers. What is absent is None, but for the fields of version 1."""
        moment, extra = self.date_utc, self.extra
        if self.headers:  # version 1 had these among the extra fields
            named = {name: self.header(name) for name in ("in_reply_to", "references", "list_id")}
            extra = {**{name: value for name, value in named.items() if value}, **extra}
        return {
            "message_id": without_brackets(self.message_id),
            "extra": dict(extra),
            "provider_id": self.event_id.removeprefix(f"{self.provider}:") or None,
            "provider_thread": self.provider_thread or None,
            "to": list(self.to) or None,
            "cc": list(self.cc) or None,
            "reply_to": list(self.reply_to) or None,
            "return_path": self.return_path,
            "date_utc": moment and moment.strftime(SHOWN_DATE),
            "in_reply_to": self.in_reply_to or None,
            "references": list(self.references) or None,
            "thread": self.thread or None,
            "html": self.html or None,
            "text": self.plain or None,
            "reply_text": self.reply_text or None,
            "list": _list(self.header("List-Id"), self.header("List-Unsubscribe")) if self.headers else None,
            "automated": dict(vars(self.automated)) if self.automated else None,
            "authentication": dict(vars(self.authentication)),
            "headers": [{"name": name, "value": value} for name, value in self.headers] or None,
            "headers_omitted": self.headers_omitted,
            "extra_omitted": self.extra_omitted,
        }

    @kept_property
    def automated(self) -> Automated | None:
        """None if it is unknown, because the provider sends no headers."""
        if not (self.headers or self.reports or self.return_path == ""):
            return None
        return classify(self._by_name, self.return_path, self.reports)

    @kept_property
    def authentication(self) -> Authentication:
        if not (self.verdicts or self.headers):
            return UNKNOWN
        written = self._by_name.get("authentication-results", ())
        domain = self.sender_email.rpartition("@")[2]
        return authenticate(self.verdicts, self.provider, written, self.trusted_authserv_ids, domain)


_TEXTS = [each.name for each in fields(Email) if each.type == "str"]


def _html_and_plain(html: str, plain: str, body: str, body_type: str) -> dict[str, str]:
    """Without a type, a body is HTML if it looks like HTML, or if it could be and a text was sent as well.

    HTML that is the same as the text is that text: some scripts put it into both fields.
    """
    if body:
        could_be = looks_like_html(body) or (bool(plain.strip()) and "<" not in body)
        is_html = body_type == "html" if body_type else could_be
        html, plain = (html or body, plain) if is_html else (html, body)
    if html and html.replace("\r\n", "\n").strip() == plain.replace("\r\n", "\n").strip():
        html = ""
    return {"html": html, "plain": plain}


def _attachments(files: Sequence[File | Attachment], inline_bytes: int, is_linked: bool) -> tuple[Attachment, ...]:
    """With their contents while they are wanted in the webhook and fit, or by link."""
    found, left = [], inline_bytes
    for file in files:
        if isinstance(file, Attachment):
            found.append(file)
            continue
        given, content = file.content, None
        size_bytes, sha256, text_sha256 = (file.size_bytes, "", "") if given is None else _digests(given)
        if given is not None and size_bytes <= left > 0:
            content = base64.b64encode(read_all(given)).decode()
            left -= size_bytes
        shown = (file.content_id, file.inline, given if is_linked else None)
        found.append(Attachment(file.name, file.content_type, size_bytes, sha256, content, text_sha256, *shown))
    return tuple(found)


def _reports(files: Sequence[File | Attachment]) -> tuple[tuple[str, bytes], ...]:
    """The parts that say whether it is a bounce, a read receipt or an invitation."""
    found = (
        (kind, next(chunks_of(file.content))[:MAX_PART_BYTES])
        for file in files
        if isinstance(file, File) and file.content and (kind := media_type(file.content_type)) in REPORT_TYPES
    )
    return tuple(islice(found, MOST_REPORTS))


def _list(list_id: str, unsubscribe: str) -> dict[str, Any] | None:
    """The id is what is in brackets, behind a name for people."""
    named, addresses = _BRACKETED.search(list_id), _BRACKETED.findall(unsubscribe)
    found = {"id": (named[1] if named else list_id) or None, "unsubscribe": addresses or None}
    return found if any(found.values()) else None


def media_type(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


def fitting_headers(pairs: Sequence[tuple[AnyStr, AnyStr]]) -> Sequence[tuple[AnyStr, AnyStr]]:
    """As many as fit, in their order."""
    if len(pairs) <= MOST_HEADERS and sum(map(len, chain.from_iterable(pairs))) <= MAX_HEADERS_CHARS:
        return pairs
    return _fitting(pairs, (len(name) + len(value) for name, value in pairs), MAX_HEADERS_CHARS)[:MOST_HEADERS]


def _fitting(found: Iterable[Value], sizes: Iterable[int], left: int) -> list[Value]:
    """Those that fit into what the ones before them have left."""
    kept = []
    for each, size in zip(found, sizes, strict=True):
        if size <= left:
            left -= size
            kept.append(each)
    return kept


def header_key(name: str) -> str:
    """Some providers write In-Reply-To as in_reply_to."""
    return name.lower().replace("_", "-")


def without_brackets(message_id: str) -> str:
    return message_id.strip().strip("<>").strip()


def message_ids(text: str) -> tuple[str, ...]:
    """Those in brackets, or else the text if it is one word: at most MOST_REFERENCES, the first and the last ones."""
    text = well_formed(text[:MAX_HEADER_CHARS])
    found = _BRACKETED.findall(text) or (text.split() if len(text.split()) == 1 else [])
    return (*found[:1], *found[1:][-(MOST_REFERENCES - 1) :])


def address_of(sender: str) -> str:
    """The address alone, in lower case, of the first author; empty if there is none."""
    return next(_addresses(sender), "")


def addresses_in(*given: Any) -> tuple[str, ...]:
    """Each address once, in lower case, of texts such as "Ada <a@example.org>, b@example.org" and of lists of them."""
    if not any(given):
        return ()
    values = (text for value in given for text in (value if isinstance(value, list | tuple) else (value,)))
    texts = (well_formed(value) for value in values if value and isinstance(value, str))
    found = dict.fromkeys(address[:MAX_NAME_CHARS] for text in texts for address in _addresses(text))
    return tuple(found)[:MOST_RECIPIENTS]


def _addresses(text: str) -> Iterator[str]:
    """An address in brackets takes precedence over one in the name; quoted text and comments never count.

    In "ceo@bank.example"@evil.example the quotes belong to the address: reading their inside would let anyone pass.
    """
    text = text[:MAX_HEADER_CHARS]
    if '"' in text or "(" in text:
        whole = _NOTHING_BUT_QUOTED.fullmatch(text)
        text = whole[1] if whole else _without_comments(text)
    bracketed = bare = ""
    for piece in _PIECE.finditer(text):
        if piece["bracketed"]:
            bracketed = _normalised(piece["bracketed"]) or bracketed
        elif piece["bare"]:
            bare = bare or _normalised(piece["bare"])
        elif piece["end"]:
            yield from filter(None, [bracketed or bare])
            bracketed = bare = ""
    yield from filter(None, [bracketed or bare])


def _normalised(address: str) -> str:
    """Without unnecessary quotes, and punctuation at the ends."""
    local, _, domain = address.lower().rpartition("@")
    unquoted = local[1:-1] if local.startswith('"') else local
    plain = unquoted.lstrip(".'") if _ATOMS.fullmatch(unquoted) else local
    domain = domain.rstrip(".'")
    return f"{plain}@{domain}" if plain and domain else ""


def _without_comments(text: str) -> str:
    """They may be nested. Text after a quote or comment that is never closed is ordinary text: it is read once."""
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
    text = well_formed(subject[:MAX_HEADER_CHARS])
    if "=?" in text:
        text = well_formed(_ENCODED_WORDS.sub(_decoded, _FOLD.sub(" ", text)))
    return " ".join(nfc(text if text.isascii() else without_c1(text)).split())


def _decoded(words: re.Match[str]) -> str:
    """Adjacent words of one charset are joined first: a character may be split between them. Letters that should have
    been encoded are taken as they are."""
    text = ""
    for charset, run in groupby(_ENCODED_WORD.findall(words[0]), key=lambda word: word[0].lower()):
        raw = b""
        for _, encoding, word in run:
            if encoding in "bB":
                raw += base64_decoded(word.encode())
                continue
            for piece in _NOT_ASCII.split(word):
                if piece.isascii():
                    raw += binascii.a2b_qp(piece.encode(), header=True)
                else:
                    text += decoded(raw, charset) + piece
                    raw = b""
        text += decoded(raw, charset)
    return text
