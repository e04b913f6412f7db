"""A row of a CSV as an item: no more is known of it than its columns say."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from deduplication.claims import WEEK_MS, Kind, Name
from deduplication.dates import parse_date
from deduplication.email import Email
from deduplication.identity import bounded_key
from orchestrator.item import Item, email_item

TAKES = "email_id and date; or subject, sender and date; or message_id"
_EMAIL_ID = re.compile("[0-9a-f]{32}")


class InvalidRow(Exception):
    """Nothing can be recognised by it."""


def row_item(row: Mapping[str, str], provider: str, ids_kept_ms: int | None) -> Item:
    """Its body and files are unknown, and so are, without both columns, its subject and sender: they speak for nobody.

    Raises InvalidRow.
    """
    given = {name: row.get(name, "") for name in ("email_id", "subject", "sender", "date", "message_id")}
    email_id, message_id = given["email_id"].lower(), given["message_id"].strip().strip("<>").strip()
    is_told = bool(given["sender"] and given["date"] and "subject" in row)
    moment = parse_date(given["date"])
    if given["date"] and moment is None:
        raise InvalidRow("date takes a time such as 2026-11-16T09:00:00Z")
    names = []
    if email_id:
        if not _EMAIL_ID.fullmatch(email_id) or moment is None:
            raise InvalidRow("email_id takes 32 hexadecimal digits, and beside them the date of the email")
        names.append(Name(Kind.EMAIL_ID, moment.date().isoformat(), email_id, ids_kept_ms))
    if message_id:
        names.append(Name(Kind.POST, "", bounded_key(message_id), WEEK_MS))
    email = Email(
        subject=given["subject"],
        sender=given["sender"],
        date=given["date"],
        message_id=given["message_id"],
        provider=provider,
        tells_body=False,
        tells_files=False,
    )
    item = email_item(email, ids_kept_ms)
    if is_told:
        names = list(dict.fromkeys((*names, *item.own_names)))
        return replace(item, own_names=tuple(names))
    if not names:
        raise InvalidRow(f"it takes {TAKES}")
    return replace(item, id=names[0].value, key=names[0].value, own_names=tuple(names), fingerprint="")
