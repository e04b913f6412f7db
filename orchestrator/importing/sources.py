"""Files with emails: an mbox, a Maildir, a folder of .eml files, or a CSV of ids, read one email at a time.

Python's mailbox module is not used: for it, every line that begins with "From " begins a message.
"""

import csv
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain, count
from pathlib import Path

from deduplication.dates import parse_date
from deduplication.email import Email
from deduplication.names import Kind, Name
from deduplication.values import frozen
from orchestrator.item import Item, email_item

# As in RFC 4155, and with the dates that Thunderbird, Gmail and others write. "From now on" is not a separator.
_SEPARATOR = re.compile(
    rb"From [^\r\n]*\b(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)\b[^\r\n]*"
    rb"\b(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)\b[^\r\n]*\b\d\d:\d\d"
)
_BLANK_LINES = (b"\n", b"\r\n")
_QUOTED_FROM = re.compile(rb"^>(>*From )", re.MULTILINE)
_EMAIL_ID = re.compile("[0-9a-f]{32}")
NEEDED = "email_id and date; or subject, sender and date; or message_id"


class Unreadable(Exception):
    """A path without emails, or a row by which no email can be recognised."""


@frozen
class Piece:
    """One message or CSV row, and its place in the source. ``error``: why there is neither ``raw`` nor ``row``."""

    where: str
    raw: bytes = b""
    row: dict[str, str] | None = None
    error: str = ""


def open_source(path: Path, most_bytes: int) -> Iterator[Piece]:
    """A message of more than ``most_bytes`` is an error. Raises Unreadable."""
    try:
        if path.is_dir():
            return _read_files(sorted(_files_below(path)), most_bytes)
        if not path.is_file():  # opening a pipe would wait for its writer
            raise Unreadable(f"{path} is neither a file nor a folder")
        if path.suffix.lower() == ".eml":
            return _read_files([path], most_bytes)
        if path.suffix.lower() == ".csv":
            return _read_csv(path)
        with path.open("rb") as file:
            if _SEPARATOR.match(file.read(64 * 1024).lstrip()):
                return _read_mbox(path, most_bytes)
    except OSError as error:
        raise Unreadable(f"{path} cannot be read: {error.strerror}") from error
    raise Unreadable(f"{path} is not an mbox: it does not begin with a line such as From - Mon Nov 16 09:00:00 2026")


def _read_mbox(path: Path, most_bytes: int) -> Iterator[Piece]:
    """A separator follows an empty line, or begins the file."""
    with path.open("rb") as file:
        at, start, lines, size = 0, -1, list[bytes](), 0  # start of the message; -1 before the first separator
        is_after_blank = True
        for line in chain(file, [b""]):  # the end of the file ends a message as well
            if not line or (is_after_blank and _SEPARATOR.match(line)):
                if lines and lines[-1] in _BLANK_LINES:
                    lines.pop()  # it belongs to the separator
                if start >= 0:
                    raw = _QUOTED_FROM.sub(rb"\1", b"".join(lines))
                    yield _message(f"message at byte {start}", raw, size, most_bytes)
                start, lines, size = at, [], 0
            else:
                size += len(line)
                if size <= most_bytes:
                    lines.append(line)
            is_after_blank = line in _BLANK_LINES
            at += len(line)


def _files_below(folder: Path) -> Iterator[Path]:
    if (folder / "cur").is_dir() and (folder / "new").is_dir():  # a Maildir
        yield from (path for sub in ("cur", "new") for path in (folder / sub).iterdir() if path.name[0] != ".")
    else:
        below = (Path(parent, name) for parent, _, names in os.walk(folder) for name in names)
        yield from (path for path in below if path.suffix.lower() == ".eml")


def _read_files(paths: list[Path], most_bytes: int) -> Iterator[Piece]:
    for path in paths:
        try:
            if not path.is_file():
                raise OSError(None, "not a regular file")
            with path.open("rb") as file:
                raw = file.read(most_bytes + 1)
        except OSError as problem:
            yield Piece(str(path), error=str(problem.strerror))
        else:
            yield _message(str(path), raw, len(raw), most_bytes)


def _message(where: str, raw: bytes, size: int, most_bytes: int) -> Piece:
    if size > most_bytes:
        return Piece(where, error=f"larger than MAX_BODY_MB ({most_bytes / 1024 / 1024:g} MB)")
    return Piece(where, raw) if raw.strip() else Piece(where, error="empty")


def _read_csv(path: Path) -> Iterator[Piece]:
    """Column names in any case; separated by commas, semicolons or tabs, as in the first line."""
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
        first = file.readline()
        delimiter = max(",;\t", key=first.count)
        columns = [name.strip().lower() for name in next(csv.reader([first], delimiter=delimiter), [])]
        reader = csv.reader(file, delimiter=delimiter)
        for number in count(2):
            try:
                values = [value.strip() for value in next(reader)]
                if len(values) > len(columns):
                    raise csv.Error("more fields than the first line")
            except StopIteration:
                return
            except csv.Error as problem:
                yield Piece(f"row {number}", error=str(problem))
            else:
                if values:
                    yield Piece(f"row {number}", row=dict(zip(columns, values, strict=False)))


def row_item(row: Mapping[str, str], provider: str, ids_kept_ms: int | None) -> Item:
    """Body and files are unknown and, unless both columns are there, so are subject and sender. Raises Unreadable."""
    email_id, date, message_id = row.get("email_id", "").lower(), row.get("date", ""), row.get("message_id", "")
    moment = parse_date(date)
    if date and moment is None:
        raise Unreadable("date must be a time such as 2026-11-16T09:00:00Z")
    if email_id and (moment is None or not _EMAIL_ID.fullmatch(email_id)):
        raise Unreadable("email_id must be 32 hexadecimal digits, with the date of the email in another column")
    email = Email(
        subject=row.get("subject", ""),
        sender=row.get("sender", ""),
        date=date,
        message_id=message_id,
        provider=provider,
        tells_body=False,
        tells_files=False,
    )
    item = email_item(email, ids_kept_ms)
    names = [Name(Kind.EMAIL_ID, moment.date().isoformat(), email_id, ids_kept_ms)] if email_id and moment else []
    if message_id.strip(" <>"):
        names += [name for name in item.own_names if name.kind is Kind.POST]
    if row.get("sender") and date and "subject" in row:
        return replace(item, own_names=tuple(dict.fromkeys((*names, *item.own_names))))
    if not names:
        raise Unreadable(f"needs {NEEDED}")
    return replace(item, id=names[0].value, key=names[0].value, own_names=tuple(names), fingerprint="")
