"""An email: its parts as received, and what is computed from them."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, fields, replace
from datetime import datetime
from itertools import groupby, islice
from typing import Any, AnyStr

from deduplication.authentication import UNKNOWN, Authentication, Result, authenticate
from deduplication.automated import MAX_PART_BYTES, REPORT_TYPES, Automated, classify
from deduplication.body import Html, looks_like_html, plain_links, plain_text
from deduplication.dates import parse_date
from deduplication.names import bounded_key
from deduplication.spool import Content, chunks_of, read_all
from deduplication.text import QUOTED, base64_chunks, decoded, nfc, replace_c1, well_formed, without_comments
from deduplication.values import frozen, kept_property

# Longer values are cut before they are processed. The text of an email is not cut: its fingerprint covers all of it.
MAX_HEADER_CHARS = 64 * 1024  # each of subject, sender, date, Message-ID and other ids
MAX_NAME_CHARS = 1000  # of a file or an address
MAX_RECIPIENTS = 1000
MAX_ATTACHMENTS = 1000
SNIFFED_BYTES = 8000  # a file with a NUL among its first bytes is binary
MOST_HEADERS = 200
MAX_FIELDS_CHARS = 64 * 1024  # of all headers in the webhook, and of all fields without a place of their own
MAX_REFERENCES = 200
MAX_REPORTS = 10

_ATOM = r'[^\s<>,;:"()\[\]@]'
_ATOMS = re.compile(rf"{_ATOM}+")
# Each piece of a list of addresses is read once. Quoted text is part of an address only directly before its @.
_PIECE = re.compile(
    rf"<\s*(?P<bracketed>(?:{QUOTED}|[^<>\s@\"]++)@[^<>\s@\"]++)\s*>"
    rf"|(?P<bare>(?:{QUOTED}|{_ATOM}++)@{_ATOM}++)(?!@)|{QUOTED}|(?:{_ATOM}|@)++|(?P<end>[,;])",
    re.DOTALL,
)
_QUOTED_ONLY = re.compile(r'[\s<]*"([^"\\]*)"[\s>]*')
_ENCODED_WORD = re.compile(r"=\?([^?\s*]+)(?:\*[^?\s]*)?\?([bq])\?([^?\r\n]*)\?=", re.IGNORECASE)
_ENCODED_WORDS = re.compile(rf"{_ENCODED_WORD.pattern}(?:\s*{_ENCODED_WORD.pattern})*", re.IGNORECASE)
_FOLD = re.compile(r"\r?\n[ \t]*|[\r\n]+")
_BRACKETED = re.compile(r"<\s*([^<>\s]+)\s*>")
_FORBIDDEN_IN_FILE_NAME = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]"
)  # the last two ranges reverse text: "exe.pdf"


@frozen
class Attachment:
    """``name`` has no path. ``data`` is the contents, if they were sent and can be decoded; size and digests are
    computed. Email.received keeps them only if the webhook links to them, and sets ``content`` (Base64) if it includes
    them. An ``inline`` attachment is shown within the HTML, which refers to it by ``content_id``.

    ``sha256`` is empty if the contents were not sent. ``text_sha256`` is set for texts if it differs: the digest with
    LF at the end of every line, the last one included, because providers change line ends.
    """

    name: str
    content_type: str
    size_bytes: int = 0
    sha256: str = ""
    content: str | None = None
    text_sha256: str = ""
    content_id: str = ""
    inline: bool = False
    data: Content | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        name = _FORBIDDEN_IN_FILE_NAME.sub("", well_formed(self.name[:MAX_HEADER_CHARS])).rstrip("/\\ ")
        self.__dict__.update(
            name=re.split(r"[/\\]", name)[-1].strip()[:MAX_NAME_CHARS],
            content_type=well_formed(self.content_type).partition(";")[0].strip().lower(),
            content_id=well_formed(self.content_id[:MAX_NAME_CHARS]).strip(" <>"),
        )
        if self.data is not None and not self.sha256:
            self.__dict__.update(_compute_digests(self.data))


def _compute_digests(content: Content) -> dict[str, Any]:
    binary, text, last, pending = hashlib.sha256(), hashlib.sha256(), b"", b""
    is_text = b"\0" not in next(chunks_of(content), b"")[:SNIFFED_BYTES]
    for chunk in chunks_of(content):
        binary.update(chunk)
        if is_text:
            lines = (pending + chunk).replace(b"\r\n", b"\n")
            pending = b"\r" if lines.endswith(b"\r") else b""  # the next chunk may begin with LF
            text.update(lines.removesuffix(b"\r"))
            last = chunk[-1:]
    if last != b"\n":
        text.update(pending + b"\n")
    differs = is_text and content and text.digest() != binary.digest()
    text_sha256 = text.hexdigest() if differs else ""
    return {"size_bytes": len(content), "sha256": binary.hexdigest(), "text_sha256": text_sha256}


@frozen
class Email:
    """One email. ``subject``, ``sender``, ``date``, ``html`` and ``plain`` (its text) are as received.

    ``event_id`` is the provider's own id, the same in its retries. ``recipients`` are the envelope's addresses; ``to``,
    ``cc`` and ``reply_to`` come from the headers. ``spam`` maps the names of the provider's spam verdicts to their
    values, ``verdicts`` are its results of SPF, DKIM and DMARC, and ``extra`` has its other fields. ``headers`` are in
    order, with their names as received; ``headers_omitted`` and ``extra_omitted`` count those that did not fit.
    ``return_path`` is the sender of the envelope: empty for a notification, None if unknown. ``in_reply_to`` and
    ``references`` are Message-IDs without brackets. ``reply_text`` is the provider's version of the text without
    quotes. ``reports`` are the parts that automated.py reads, and ``trusted_authserv_ids`` the hosts whose
    Authentication-Results count.

    Some providers omit parts: ``tells_body`` and ``tells_files`` say whether an empty body and an empty list of
    attachments are known to be empty. Without ``tells_recipients``, ``recipients`` come from headers such as
    Delivered-To, if at all. ``first_html`` is the first part of an HTML body that was joined from several parts, empty
    if there is only one, and None if the provider may have omitted others. ``date_source`` is the provider if its date
    may differ from the Date header, such as the time of receipt. ``original`` is the raw email if the webhook links to
    it.
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
        self.__dict__.update({name: well_formed(self.__dict__[name]) for name in _TEXT_FIELDS})
        self.__dict__.update(
            attachments=self.attachments[:MAX_ATTACHMENTS],
            spam={name: value[:MAX_HEADER_CHARS] for name, value in self.spam.items()},
        )

    @classmethod
    def received(
        cls,
        *,
        body: str | None = None,
        body_type: str = "",
        recipients: Iterable[Any] = (),
        delivered_headers: Iterable[Any] = (),
        files: Sequence[Attachment] = (),
        inline_bytes: int = 0,
        is_linked: bool = False,
        spam: Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> Email:
        """An email from a provider's fields. ``body`` is HTML or text as ``body_type`` says, or else as it looks.

        Addresses are strings or lists of strings. Without ``recipients`` in the envelope, headers such as Delivered-To
        (``delivered_headers``) are read. Files keep their contents while these fit into ``inline_bytes``, or if they
        are to be linked (``is_linked``). Empty and nested values of ``spam`` are dropped.
        """
        if body is not None:
            fields |= _html_and_plain(fields["html"], fields["plain"], body, body_type)
        if spam:
            fields["spam"] = {
                name: str(value) for name, value in spam.items() if isinstance(value, str | int | float) and value != ""
            }
        if files:
            fields["attachments"] = tuple(_attachments(files, inline_bytes, is_linked))
            fields["reports"] = tuple(islice(_reports(files), MAX_REPORTS))
        if extra := fields.get("extra"):
            fields["extra"] = dict(fitting(extra.items()))
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
        return decode_header(self.subject)

    @kept_property
    def date_utc(self) -> datetime | None:
        return parse_date(self.date)

    @kept_property
    def read_html(self) -> Html | None:
        """None if the email is plain text, perhaps with an empty HTML part."""
        html = Html(self.html) if self.html and not self.html.isspace() else None
        return None if html and html.is_empty and self.plain else html

    @property
    def body(self) -> str:
        """The HTML, or the text of an email without HTML: the part that mail programs show."""
        return self.html if self.read_html else self.plain

    @kept_property
    def text(self) -> str:
        return self.read_html.text if self.read_html else plain_text(self.plain)

    @kept_property
    def links(self) -> tuple[str, ...]:
        return self.read_html.links if self.read_html else plain_links(self.plain)

    @kept_property
    def _headers_by_key(self) -> Mapping[str, list[str]]:
        values: dict[str, list[str]] = {}
        for name, value in self.headers:
            values.setdefault(header_key(name), []).append(value)
        return values

    def header(self, name: str) -> str:
        """The value of the first header with that name in any case, or an empty string."""
        return next(iter(self.headers_named(name)), "")

    def headers_named(self, name: str) -> tuple[str, ...]:
        return tuple(self._headers_by_key.get(header_key(name), ()))

    @kept_property
    def thread(self) -> str:
        """The same for all emails of a conversation: the Message-ID of its first email. Empty without a Message-ID."""
        first = next(iter(self.references), "") or self.in_reply_to or without_brackets(self.message_id)
        return bounded_key(first)

    @property
    def envelope(self) -> dict[str, Any]:
        """The fields of the webhook that come from headers: None if absent, except for fields of version 1."""
        moment = self.date_utc
        as_in_version_1 = ("in_reply_to", "references", "list_id") if self.headers else ()
        return {
            "message_id": without_brackets(self.message_id),
            "extra": {**{name: value for name in as_in_version_1 if (value := self.header(name))}, **self.extra},
            "provider_id": self.event_id.removeprefix(f"{self.provider}:") or None,
            "provider_thread": self.provider_thread or None,
            "to": list(self.to) or None,
            "cc": list(self.cc) or None,
            "reply_to": list(self.reply_to) or None,
            "return_path": self.return_path,
            "date_utc": moment and moment.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "in_reply_to": self.in_reply_to or None,
            "references": list(self.references) or None,
            "thread": self.thread or None,
            "html": self.html or None,
            "text": self.plain or None,
            "reply_text": self.reply_text or None,
            "list": _list_fields(self.header("List-Id"), self.header("List-Unsubscribe")) if self.headers else None,
            "automated": dict(vars(self.automated)) if self.automated else None,
            "authentication": dict(vars(self.authentication)),
            "headers": [{"name": name, "value": value} for name, value in self.headers] or None,
            "headers_omitted": self.headers_omitted,
            "extra_omitted": self.extra_omitted,
        }

    @kept_property
    def automated(self) -> Automated | None:
        """None if unknown, because the provider sends no headers."""
        if not (self.headers or self.reports or self.return_path == ""):
            return None
        return classify(self.header, self.return_path, self.reports)

    @kept_property
    def authentication(self) -> Authentication:
        if not (self.verdicts or self.headers):
            return UNKNOWN
        results = self.headers_named("Authentication-Results")
        domain = self.sender_email.rpartition("@")[2]
        return authenticate(self.verdicts, self.provider, results, self.trusted_authserv_ids, domain)


_TEXT_FIELDS = [text.name for text in fields(Email) if text.type == "str"]


def _html_and_plain(html: str, plain: str, body: str, body_type: str) -> dict[str, str]:
    """A body without a type is HTML if it looks like HTML, or if it has no "<" and a text was sent too.

    HTML that equals the text is dropped: some scripts put the text into both fields.
    """
    if body:
        may_be_html = looks_like_html(body) or (bool(plain.strip()) and "<" not in body)
        is_html = body_type == "html" if body_type else may_be_html
        html, plain = (html or body, plain) if is_html else (html, body)
    if html and html.replace("\r\n", "\n").strip() == plain.replace("\r\n", "\n").strip():
        html = ""
    return {"html": html, "plain": plain}


def _attachments(files: Sequence[Attachment], inline_bytes: int, is_linked: bool) -> Iterator[Attachment]:
    """With contents in the webhook while these fit into ``inline_bytes``, and with ``data`` if they are linked."""
    for file in files:
        if file.data is not None and (inline_bytes or not is_linked):
            content = None
            if file.size_bytes <= inline_bytes > 0:
                content = base64.b64encode(read_all(file.data)).decode()
                inline_bytes -= file.size_bytes
            yield replace(file, content=content, data=file.data if is_linked else None)
        else:
            yield file


def _reports(files: Sequence[Attachment]) -> Iterator[tuple[str, bytes]]:
    """The parts that show whether the email is a bounce, a read receipt or an invitation."""
    for file in files:
        if file.data and file.content_type in REPORT_TYPES:
            yield file.content_type, next(chunks_of(file.data))[:MAX_PART_BYTES]


def _list_fields(list_id: str, unsubscribe: str) -> dict[str, Any] | None:
    """The id of a list is in brackets, after its display name."""
    bracketed, addresses = _BRACKETED.search(list_id), _BRACKETED.findall(unsubscribe)
    fields = {"id": (bracketed[1] if bracketed else list_id) or None, "unsubscribe": addresses or None}
    return fields if any(fields.values()) else None


def fitting(pairs: Iterable[tuple[AnyStr, Any]]) -> list[tuple[AnyStr, Any]]:
    """The headers or other fields that fit into the webhook; one that is too long does not stop later ones."""
    limit, kept = MAX_FIELDS_CHARS, []
    for name, value in pairs:
        length = len(name) + len(value if isinstance(value, str | bytes) else json.dumps(value))
        if length <= limit:
            limit -= length
            kept.append((name, value))
    return kept


def header_key(name: str) -> str:
    """The same for In-Reply-To and in_reply_to, as some providers write it."""
    return name.lower().replace("_", "-")


def without_brackets(message_id: str) -> str:
    return message_id.strip().strip("<>").strip()


def message_ids(text: str) -> tuple[str, ...]:
    """The ids in brackets, or a single word without brackets. Of more than MAX_REFERENCES, the first and the last."""
    text = well_formed(text[:MAX_HEADER_CHARS])
    ids = _BRACKETED.findall(text) or (text.split() if len(text.split()) == 1 else [])
    return (*ids[:1], *ids[1:][-(MAX_REFERENCES - 1) :])


def address_of(sender: str) -> str:
    """The address of the first author, in lower case and without the name; empty if there is none."""
    return next(_addresses(sender), "")


def addresses_in(*values: Any) -> tuple[str, ...]:
    """The addresses, in lower case and without repetitions, in strings such as "Ada <a@example.org>, b@example.org" and
    in lists of them."""
    if not any(values):
        return ()
    items = (item for value in values for item in (value if isinstance(value, list | tuple) else (value,)))
    texts = (well_formed(item) for item in items if item and isinstance(item, str))
    addresses = dict.fromkeys(address[:MAX_NAME_CHARS] for text in texts for address in _addresses(text))
    return tuple(addresses)[:MAX_RECIPIENTS]


def _addresses(text: str) -> Iterator[str]:
    """An address in brackets takes precedence over one in the name; quoted text and comments never count.

    In "ceo@bank.example"@evil.example the quotes belong to the address. Anyone can put another address into quotes.
    """
    text = text[:MAX_HEADER_CHARS]
    if '"' in text or "(" in text:
        quoted = _QUOTED_ONLY.fullmatch(text)
        text = quoted[1] if quoted else without_comments(text, " ")
    bracketed = bare = ""
    for piece in _PIECE.finditer(text):
        if piece["bracketed"]:
            bracketed = _normalize_address(piece["bracketed"]) or bracketed
        elif piece["bare"]:
            bare = bare or _normalize_address(piece["bare"])
        elif piece["end"]:
            yield from filter(None, [bracketed or bare])
            bracketed = bare = ""
    yield from filter(None, [bracketed or bare])


def _normalize_address(address: str) -> str:
    """Removes unnecessary quotes, and punctuation at both ends. Empty if nothing is left on one side of the @."""
    local, _, domain = address.lower().rpartition("@")
    unquoted = local[1:-1] if local.startswith('"') else local
    plain = unquoted.lstrip(".'") if _ATOMS.fullmatch(unquoted) else local
    domain = domain.rstrip(".'")
    return f"{plain}@{domain}" if plain and domain else ""


def decode_header(header: str) -> str:
    """A header on one line, with its encoded words decoded, in NFC and with white space collapsed."""
    text = well_formed(header[:MAX_HEADER_CHARS])
    if "=?" in text:
        text = well_formed(_ENCODED_WORDS.sub(_decode_words, _FOLD.sub(" ", text)))
    return " ".join(nfc(text if text.isascii() else replace_c1(text)).split())


def _decode_words(words: re.Match[str]) -> str:
    """Joins adjacent words of one charset before decoding, because a character may be split between them."""
    text = ""
    for charset, run in groupby(_ENCODED_WORD.findall(words[0]), key=lambda word: word[0].lower()):
        raw = b""
        for _, encoding, word in run:
            letters = word.encode()
            raw += b"".join(base64_chunks([letters])) if encoding in "bB" else binascii.a2b_qp(letters, header=True)
        text += decoded(raw, charset)
    return text
