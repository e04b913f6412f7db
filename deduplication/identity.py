"""Computes the names that an email is recognised by, and its fingerprint."""

import hashlib
import json
import re
from collections.abc import Sequence
from contextlib import suppress

from deduplication.body import Html
from deduplication.dates import ASSUMED_UTC
from deduplication.email import MAX_HEADER_CHARS, Email, address_of, without_brackets
from deduplication.names import UNDATED, WEEK_MS, Fingerprint, Kind, Name, bounded_key, digest, digest_of_all
from deduplication.text import nfc, well_formed

MAX_LABEL_CHARS = 63
MAX_TAGS = 3
_TAG = re.compile(r"\[[^\[\]]{1,60}\]\s*")
_SAFE_VALUE = re.compile(r"[a-z0-9_:-]{1,80}(?:@[0-9a-f]{12})?")


def compute_email_id(*, subject: str, sender: str, date: str) -> str:
    """MD5 of ``subject|sender|date`` as received, with only the address of the sender, in lower case. For scripts."""
    return _md5_of(subject, address_of(sender) or sender, date)


def _md5_of(subject: str, address: str, date: str) -> str:
    return hashlib.md5(well_formed(f"{subject}|{address}|{date}").encode(), usedforsecurity=False).hexdigest()


def compute_canonical_id(email: Email) -> str:
    """The email id, but the same for all notations of subject, sender and date."""
    moment = email.date_utc
    date = f"{moment.replace(tzinfo=None).isoformat(timespec='seconds')}Z" if moment else " ".join(email.date.split())
    return _md5_of(*_canonical_head(email), date)


def _canonical_head(email: Email) -> tuple[str, str]:
    """Subject and sender, the same for all notations."""
    sender = email.sender_email or email.sender
    if "@xn--" in sender or ".xn--" in sender or not email.sender_email.isascii():
        sender = _with_unicode_domain(sender)
    return f"{email.clean_subject}{email.subject[MAX_HEADER_CHARS:]}", sender


def _with_unicode_domain(address: str) -> str:
    """bücher.example for xn--bcher-kva.example; a label that cannot be decoded is not changed."""
    local, _, domain = address.rpartition("@")
    labels = domain.split(".")
    for index, label in enumerate(labels):
        if label.startswith("xn--") and len(label) <= MAX_LABEL_CHARS:  # decoding takes quadratic time
            with suppress(ValueError):
                labels[index] = label.removeprefix("xn--").encode().decode("punycode").lower()
    return nfc(f"{local}@{'.'.join(labels)}")


def compute_post_keys(email: Email) -> tuple[str, ...]:
    """The provider's event id and the Message-ID; without both, ``subject::date::sender`` if none of these is empty.

    The sender is included because two people may write "STOP" in the same second.
    """
    ids = dict.fromkeys(filter(None, (email.event_id.strip(), without_brackets(email.message_id))))
    if ids:
        return tuple(map(bounded_key, ids))
    parts = (email.subject.strip(), email.date.strip(), email.sender_email)
    return (bounded_key("::".join(parts)),) if email.date_utc and all(parts) else ()


def compute_fingerprint(email: Email) -> Fingerprint:
    """A digest of each part that the provider includes."""
    files, are_known = email.attachments, email.tells_files
    contents = {file.text_sha256 or file.sha256 for file in files}
    names = [nfc(" ".join(file.name.split())) for file in files]
    sizes = [file.size_bytes for file in files]
    # The links of plain text are unknown: they are part of the text, and other providers may convert it to HTML.
    are_links_known = email.tells_body and (email.read_html or not email.text)
    targets = email.read_html.targets if email.read_html else ()
    moment, message_id, head = email.date_utc, without_brackets(email.message_id), _canonical_head(email)
    # If the text is unknown too, only the provider's own id distinguishes the email from a forged one.
    known_id = message_id or ("" if email.tells_body else email.event_id.strip())
    ids = digest(known_id) if known_id and not are_known else None
    source = f"@{digest(email.date_source)[:4]}" if email.date_source else ""
    return Fingerprint(
        text=digest(email.text) if email.tells_body else None,
        files=digest_of_all(contents) if are_known and all(contents) else None,
        file_names=digest_of_all(names) if are_known and all(names) else None,
        file_sizes=digest_of_all(map(str, sizes)) if are_known and all(sizes) and not all(contents) else None,
        links=_digest_links(targets) if are_links_known else None,
        ids=ids if moment else digest(message_id or email.event_id.strip()),
        head=digest("|".join(head)),
        date=f"{int(moment.timestamp()):x}{source}" if moment and moment.tzinfo is not ASSUMED_UTC else None,
        first_html=None if email.first_html is None else _digest_html(email.first_html),
        untagged=_digest_untagged_heads(*head) if head[0].startswith("[") else None,
    )


def _digest_html(html: str) -> str:
    if not html:
        return digest("")
    read = Html(html)
    return f"{digest(read.text)}+{_digest_links(read.targets)}"


def _digest_links(targets: Sequence[str]) -> str:
    """Depends on the order of the links, unlike the digest of files."""
    return digest(json.dumps(targets) if targets else "")


def _digest_untagged_heads(subject: str, sender: str) -> str | None:
    """The digests of the head without the first tag before the subject, without the first two tags, and so on."""
    heads: list[str] = []
    while len(heads) < MAX_TAGS and (tag := _TAG.match(subject)):
        subject = subject[tag.end() :]
        heads.append(digest(f"{subject}|{sender}"))
    return "+".join(heads) or None


def own_names(email: Email, ids_kept_ms: int | None) -> list[Name]:
    """The names that identify the email: its email id, the canonical id if it differs, and its post keys."""
    day = email.date_utc.date().isoformat() if email.date_utc else UNDATED
    email_id = _md5_of(email.subject, email.sender_email or email.sender, email.date)
    ids = dict.fromkeys([email_id, compute_canonical_id(email)])
    return [
        *(Name(Kind.EMAIL_ID, day, value, ids_kept_ms) for value in ids),
        *(Name(Kind.POST, "", key, WEEK_MS) for key in compute_post_keys(email)),
    ]


def log_id(value: str) -> str:
    """A value for log lines: a digest if the sender chose it, because it may be a title, a link or a forged log line.

    Values that Mailonce makes (ids, days, months, groups by a pattern, names of destinations) are not changed.
    """
    if _SAFE_VALUE.fullmatch(value):
        return value
    return f"sha256:{hashlib.sha256(well_formed(value).encode()).hexdigest()[:16]}"
