"""By which names an email is recognised as itself."""

from __future__ import annotations

import hashlib
import json
import re

from deduplication.email import Email, address_of, well_formed
from deduplication.fingerprint import NOTHING_THERE, Fingerprint, digest, digest_of_all
from deduplication.limits import MAX_HEADER_CHARS
from deduplication.names import UNDATED, WEEK_MS, Kind, Name
from deduplication.unicode_text import nfc

MAX_POST_KEY = 512
_OUR_OWN = re.compile(r"[a-z0-9_:-]{1,80}(?:@[0-9a-f]{12})?")


def compute_email_id(*, subject: str, sender: str, date: str) -> str:
    """MD5 of ``subject|sender|date`` as received; of the sender, the address alone in lower case."""
    return _id_of(subject, address_of(sender) or sender, date)


def _id_of(subject: str, address: str, date: str) -> str:
    return hashlib.md5(well_formed(f"{subject}|{address}|{date}").encode(), usedforsecurity=False).hexdigest()


def compute_canonical_id(email: Email) -> str:
    """The same, whatever notation the subject and the date came in."""
    moment = email.date_utc
    date = moment.strftime("%Y-%m-%dT%H:%M:%SZ") if moment else " ".join(email.date.split())
    return _id_of(*_head(email), date)


def _head(email: Email) -> tuple[str, str]:
    """Subject and sender, whatever notation they came in."""
    return f"{email.clean_subject}{email.subject[MAX_HEADER_CHARS:]}", email.sender_email or email.sender


def compute_post_keys(email: Email) -> tuple[str, ...]:
    """The provider's event id and the Message-ID; where there is neither, ``subject::date::sender``, if all are there.

    With the sender, because two people may well write "STOP" in the same second.
    """
    named = dict.fromkeys(filter(None, (email.event_id.strip(), _message_id(email))))
    if named:
        return tuple(map(bounded_key, named))
    parts = (email.subject.strip(), email.date.strip(), email.sender_email)
    return (bounded_key("::".join(parts)),) if email.date_utc and all(parts) else ()


def is_recognisable(email: Email) -> bool:
    """Whether its coming again can be told from another one's coming.

    Not that of an undated email without event id and Message-ID, of whose text the door says nothing.
    """
    return bool(email.date_utc or compute_post_keys(email) or email.tells_body)


def compute_fingerprint(email: Email) -> Fingerprint:
    """What the email says, as far as its door tells."""
    files, are_told = email.attachments, email.tells_files
    contents = {each.text_sha256 or each.sha256 for each in files}
    names = [nfc(" ".join(each.name.split())) for each in files]
    sizes = [each.size_bytes for each in files]
    return Fingerprint(
        text=digest(email.text) if email.tells_body else None,
        files=digest_of_all(contents) if are_told and all(contents) else None,
        file_names=digest_of_all(names) if are_told and all(names) else None,
        file_sizes=digest_of_all(map(str, sizes)) if are_told and all(sizes) and not all(contents) else None,
        links=_links(email),
        ids=None if email.date_utc else digest(_message_id(email) or email.event_id.strip()),
        head=digest("|".join(_head(email))),
    )


def _links(email: Email) -> str | None:
    """Unknown of a text without HTML: its links stand in it, and another door may have made HTML of it."""
    if not email.tells_body or (email.text and not email.is_html):
        return None
    return digest(json.dumps(email.targets)) if email.targets else NOTHING_THERE


def own_names(email: Email, ids_kept_ms: int | None) -> list[Name]:
    """Every name the email is recognised by: its email id, the canonical one if it is another, then its post keys."""
    day = email.date_utc.date().isoformat() if email.date_utc else UNDATED
    email_id = _id_of(email.subject, email.sender_email or email.sender, email.date)
    ids = dict.fromkeys([email_id, compute_canonical_id(email)])
    return [
        *(Name(Kind.EMAIL_ID, day, value, ids_kept_ms) for value in ids),
        *(Name(Kind.POST, "", key, WEEK_MS) for key in compute_post_keys(email)),
    ]


def _message_id(email: Email) -> str:
    """With or without its brackets it is the same."""
    return email.message_id.strip().strip("<>").strip()


def bounded_key(key: str) -> str:
    """Senders choose these: a megabyte of Message-ID must not become a megabyte of key."""
    return key if len(key) <= MAX_POST_KEY else f"sha256:{hashlib.sha256(key.encode()).hexdigest()}"


def log_id(value: str) -> str:
    """How a log line names what somebody else chose, which may be a title, a link or a forged line: by its digest.

    What is made here (ids, days, months, groups by a pattern, names of destinations) reads as it is.
    """
    return (
        value if _OUR_OWN.fullmatch(value) else f"sha256:{hashlib.sha256(well_formed(value).encode()).hexdigest()[:16]}"
    )
