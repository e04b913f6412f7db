"""By which names an email is recognised as itself (DESIGN 2)."""

from __future__ import annotations

import hashlib
import json

from deduplication.claims import WEEK_MS, Kind, Name
from deduplication.email import Email, address_of, well_formed

UNDATED = "undated"
MAX_POST_KEY = 512


def compute_email_id(*, subject: str, sender: str, date: str) -> str:
    """MD5 of ``subject|sender|date`` as received; of the sender, the address alone in lower case."""
    return _md5(f"{subject}|{address_of(sender) or sender}|{date}")


def compute_canonical_id(email: Email) -> str:
    """The same, whatever notation the subject and the date came in."""
    moment = email.date_utc
    date = moment.strftime("%Y-%m-%dT%H:%M:%SZ") if moment else " ".join(email.date.split())
    return _md5(f"{email.clean_subject}|{email.sender_email or email.sender}|{date}")


def compute_post_key(email: Email) -> str:
    """The provider's event id, else the Message-ID, else ``subject::date::sender``; empty where a part is missing.

    With the sender, because two people may well write "STOP" in the same second.
    """
    chosen = email.event_id.strip() or _message_id(email)
    if chosen:
        return bounded_key(chosen)
    parts = (email.subject.strip(), email.date.strip(), email.sender_email)
    return bounded_key("::".join(parts)) if all(parts) else ""


def compute_fingerprint(email: Email) -> str:
    """SHA-256 of the text a reader sees; empty (unknown) without text.

    An undated email's id matches every other undated one of that subject, so there the Message-ID joins in, and no
    text is a text like any other: as unknown it would suppress all that follow.
    """
    text = email.text if email.date_utc else json.dumps([email.text, _message_id(email)])
    return hashlib.sha256(text.encode()).hexdigest() if text else ""


def own_names(email: Email, ids_kept_ms: int | None) -> list[Name]:
    """Every name the email is recognised by; the first is its email id."""
    day = email.date_utc.date().isoformat() if email.date_utc else UNDATED
    email_id = compute_email_id(subject=email.subject, sender=email.sender, date=email.date)
    ids = dict.fromkeys([email_id, compute_canonical_id(email)])
    names = [Name(Kind.EMAIL_ID, day, value, ids_kept_ms) for value in ids]
    post_key = compute_post_key(email)
    return [*names, Name(Kind.POST, "", post_key, WEEK_MS)] if post_key else names


def _message_id(email: Email) -> str:
    """With or without its brackets it is the same."""
    return email.message_id.strip().strip("<>").strip()


def bounded_key(key: str) -> str:
    """Senders choose these: a megabyte of Message-ID must not become a megabyte of key."""
    return key if len(key) <= MAX_POST_KEY else f"sha256:{hashlib.sha256(key.encode()).hexdigest()}"


def _md5(text: str) -> str:
    return hashlib.md5(well_formed(text).encode(), usedforsecurity=False).hexdigest()
