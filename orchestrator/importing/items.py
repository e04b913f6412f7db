"""A message or a CSV row as an item."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from deduplication.dates import parse_date
from deduplication.email import Email
from deduplication.identity import bounded_key
from deduplication.names import WEEK_MS, Kind, Name
from orchestrator.item import Item, email_item

NEEDED = "email_id and date; or subject, sender and date; or message_id"
_EMAIL_ID = re.compile("[0-9a-f]{32}")


class InvalidRow(Exception):
    """No email can be recognised by it."""


def row_item(row: Mapping[str, str], provider: str, ids_kept_ms: int | None) -> Item:
    """Body and files are unknown and, unless both columns are there, so are subject and sender. Raises InvalidRow."""
    email_id, message_id = row.get("email_id", "").lower(), row.get("message_id", "").strip().strip("<>").strip()
    date = row.get("date", "")
    moment = parse_date(date)
    if date and moment is None:
        raise InvalidRow("date must be a time such as 2026-11-16T09:00:00Z")
    names = []
    if email_id:
        if not _EMAIL_ID.fullmatch(email_id) or moment is None:
            raise InvalidRow("email_id must be 32 hexadecimal digits, with the date of the email in another column")
        names.append(Name(Kind.EMAIL_ID, moment.date().isoformat(), email_id, ids_kept_ms))
    if message_id:
        names.append(Name(Kind.POST, "", bounded_key(message_id), WEEK_MS))
    email = Email(
        subject=row.get("subject", ""),
        sender=row.get("sender", ""),
        date=date,
        message_id=row.get("message_id", ""),
        provider=provider,
        tells_body=False,
        tells_files=False,
    )
    item = email_item(email, ids_kept_ms)
    if row.get("sender") and date and "subject" in row:
        return replace(item, own_names=tuple(dict.fromkeys((*names, *item.own_names))))
    if not names:
        raise InvalidRow(f"needs {NEEDED}")
    return replace(item, id=names[0].value, key=names[0].value, own_names=tuple(names), fingerprint="")
