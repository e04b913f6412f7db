"""Files with emails: an mbox, a Maildir, a folder of .eml files, or a CSV of ids. Read once, in constant memory.

Python's mailbox module reads a whole mbox before its first message, and cannot resume in the middle of one.
"""

from __future__ import annotations

import csv
import hashlib
import io
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

CHUNK_BYTES = 64 * 1024  # of a line: a file may have one of a gigabyte
HEAD_BYTES = 1024
MOST_FIELD_CHARS = 128 * 1024
# As in RFC 4155, and with the dates that Thunderbird, Gmail and others write. "From now on" is not a separator.
_SEPARATOR = re.compile(
    rb"From [^\r\n]*\b(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)\b[^\r\n]*"
    rb"\b(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)\b[^\r\n]*\b\d\d:\d\d"
)
_BLANK_LINES = (b"\n", b"\r\n")
_QUOTED_FROM = re.compile(rb"^>(>*From )", re.MULTILINE)


class NoSource(Exception):
    """The path is not a file or folder with emails."""


@dataclass(frozen=True)
class Piece:
    """One message or row. ``where`` tells a person its place, ``after`` is the position behind it. ``read`` is how much
    of the source's ``total`` was read by then. ``error`` says why there is neither ``raw`` nor ``row``."""

    where: str
    after: str
    read: int
    raw: bytes = b""
    row: dict[str, str] | None = None
    error: str = ""


@dataclass(frozen=True)
class Source:
    """``kind`` is mbox, Maildir, folder, file or CSV. A message of more than ``most_bytes`` is an error."""

    path: Path
    kind: str
    most_bytes: int

    @property
    def total(self) -> int:
        """Bytes, or files of a folder."""
        return self.path.stat().st_size if self.kind in ("mbox", "CSV") else len(self._files())

    @property
    def key(self) -> str:
        """Identifies the source; another file at the same path has another key."""
        head = b""
        if self.kind in ("mbox", "CSV"):
            with self.path.open("rb") as file:
                head = file.read(HEAD_BYTES)
        return hashlib.sha256(os.fsencode(self.path) + b"\0" + head).hexdigest()[:16]

    def pieces(self, after: str = "") -> Iterator[Piece]:
        """From behind a position, "" for all; from the beginning if that position no longer exists."""
        if self.kind == "mbox":
            return self._messages(int(after or 0))
        return self._rows(int(after or 0)) if self.kind == "CSV" else self._contents(after)

    def _messages(self, start: int) -> Iterator[Piece]:
        with self.path.open("rb") as file:
            file.seek(start)
            if start and start != self.total and not _SEPARATOR.match(file.readline(CHUNK_BYTES)):
                start = 0
            file.seek(start)
            yield from self._split(file, start)

    def _split(self, file: io.BufferedReader, at: int) -> Iterator[Piece]:
        """A separator comes after an empty line, or begins the file."""
        start, lines, size = at, list[bytes](), 0
        begins_line, is_after_blank, is_open = True, True, False
        while chunk := file.readline(CHUNK_BYTES):
            if is_after_blank and _SEPARATOR.match(chunk):
                if is_open:
                    yield self._message(start, at, lines, size)
                start, lines, size, is_open = at, [], 0, True
            elif is_open:
                size += len(chunk)
                if size <= self.most_bytes:
                    lines.append(chunk)
            at += len(chunk)
            is_after_blank = begins_line and chunk in _BLANK_LINES
            begins_line = chunk.endswith(b"\n")
        if is_open:
            yield self._message(start, at, lines, size)

    def _message(self, start: int, end: int, lines: list[bytes], size: int) -> Piece:
        where = f"message at byte {start}"
        if size > self.most_bytes:
            return Piece(where, str(end), end, error=self._too_large)
        if lines and lines[-1] in _BLANK_LINES:
            lines.pop()  # it belongs to the separator
        return Piece(where, str(end), end, _QUOTED_FROM.sub(rb"\1", b"".join(lines)))

    def _files(self) -> list[tuple[str, Path]]:
        """Sorted, each with a name that stays: mail programs change what comes after the colon."""
        if self.kind == "file":
            return [(self.path.name, self.path)]
        if self.kind == "Maildir":
            found = [path for sub in ("cur", "new") for path in (self.path / sub).iterdir() if path.name[0] != "."]
            return sorted((path.name.partition(":")[0], path) for path in found)
        below = (Path(folder, name) for folder, _, names in os.walk(self.path) for name in names)
        return sorted((str(path.relative_to(self.path)), path) for path in below if path.suffix.lower() == ".eml")

    def _contents(self, after: str) -> Iterator[Piece]:
        for number, (name, path) in enumerate(self._files(), 1):
            if name <= after:
                continue
            raw, error = b"", ""
            try:
                if stat.S_ISREG(path.stat().st_mode):  # opening a pipe would wait for its writer
                    with path.open("rb") as file:
                        raw = file.read(self.most_bytes + 1)
                else:
                    error = "not a regular file"
            except OSError as problem:  # moved or removed meanwhile
                error = f"cannot be read: {problem.strerror}"
            if len(raw) > self.most_bytes:
                raw, error = b"", self._too_large
            yield Piece(str(path), name, number, raw, error=error)

    def _rows(self, after: int) -> Iterator[Piece]:
        """Column names in any case; separated by commas, semicolons or tabs, as in the first line."""
        with self.path.open("rb") as file:
            lines = (
                line.decode("utf-8", "replace").replace("\0", "")
                for line in iter(lambda: file.readline(CHUNK_BYTES), b"")
            )
            first = next(lines, "").removeprefix("\ufeff")
            delimiter = max(",;\t", key=first.count)
            columns = [name.strip().lower() for name in next(csv.reader([first], delimiter=delimiter), [])]
            csv.field_size_limit(MOST_FIELD_CHARS)
            reader, number = csv.reader(lines, delimiter=delimiter), 1
            while True:
                number += 1
                values, error = list[str](), ""
                try:
                    values = next(reader)
                except StopIteration:
                    return
                except csv.Error as problem:
                    error = str(problem)
                if len(values) > len(columns):
                    error = "more fields than the first line"
                if number > after and (values or error):
                    row = dict(zip(columns, (value.strip() for value in values), strict=False))
                    yield Piece(f"row {number}", str(number), file.tell(), row=None if error else row, error=error)

    @property
    def _too_large(self) -> str:
        return f"larger than MAX_BODY_MB ({self.most_bytes / 1024 / 1024:g} MB)"


def open_source(path: Path, most_bytes: int) -> Source:
    """Raises NoSource."""
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            is_maildir = (path / "cur").is_dir() and (path / "new").is_dir()
            return Source(path, "Maildir" if is_maildir else "folder", most_bytes)
        if not stat.S_ISREG(mode):
            raise NoSource(f"{path} is neither a file nor a folder")
        if kind := {".eml": "file", ".csv": "CSV"}.get(path.suffix.lower()):
            return Source(path, kind, most_bytes)
        with path.open("rb") as file:
            if _SEPARATOR.match(file.read(CHUNK_BYTES).lstrip()):
                return Source(path, "mbox", most_bytes)
    except OSError as error:
        raise NoSource(f"{path} cannot be read: {error.strerror}") from error
    raise NoSource(f"{path} is not an mbox: it does not begin with a line such as From - Mon Nov 16 09:00:00 2026")
