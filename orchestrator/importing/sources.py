"""Where mail lies in files: an mbox, a Maildir, a folder of .eml files, or a CSV of ids. Read once, in flat memory.

Python's own mailbox module reads a whole mbox before its first message and keeps in memory where each begins; it cannot
begin in the middle either. So the line that separates two messages is looked for here.
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
from typing import Protocol

CHUNK_BYTES = 64 * 1024  # of a line: somebody may have written one of a gigabyte
HEAD_BYTES = 4096
MOST_FIELD_CHARS = 128 * 1024
_DELIMITERS = ",;\t"
# As RFC 4155 has it, and with what Thunderbird, Gmail and others make of the date. "From now on" begins no message.
_SEPARATOR = re.compile(
    rb"From [^\r\n]*\b(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)\b[^\r\n]*"
    rb"\b(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)\b[^\r\n]*\b\d\d:\d\d"
)
_BLANK_LINES = (b"\n", b"\r\n")
_QUOTED_FROM = re.compile(rb"^>(>*From )", re.MULTILINE)


class NoSource(Exception):
    """It is nothing that mail can be read from."""


@dataclass(frozen=True)
class Piece:
    """One message or row. ``where``: how a person finds it. ``after``: from where to go on behind it. ``read``: how
    much of the source's ``total`` has been read by then. ``error``: why there is neither ``raw`` nor ``row``."""

    where: str
    after: str
    read: int
    raw: bytes = b""
    row: dict[str, str] | None = None
    error: str = ""


class Source(Protocol):
    @property
    def path(self) -> Path: ...

    @property
    def kind(self) -> str: ...

    @property
    def total(self) -> int:
        """In bytes, or files: how much there is to read."""
        ...

    def head(self) -> str:
        """How it begins. ``begins_with`` tells whether it still does: under this name there may be another one now."""
        ...

    def begins_with(self, head: str) -> bool: ...

    def pieces(self, after: str) -> Iterator[Piece]:
        """From behind a piece, "" for all. Where that place is no longer one, from the beginning."""
        ...


def open_source(path: Path, most_bytes: int) -> Source:
    """``most_bytes``: of one message; a larger one is passed over. Raises NoSource."""
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            is_maildir = (path / "cur").is_dir() and (path / "new").is_dir()
            return Folder(path, most_bytes, "Maildir" if is_maildir else "folder")
        if not stat.S_ISREG(mode):
            raise NoSource(f"{path} is neither a file nor a folder")
        if path.suffix.lower() == ".eml":
            return Folder(path, most_bytes, "file")
        if path.suffix.lower() == ".csv":
            return Csv(path)
        with path.open("rb") as file:
            if not _SEPARATOR.match(file.read(CHUNK_BYTES).lstrip()):
                raise NoSource(
                    f"{path} is no mbox: it does not begin with a line such as From - Mon Nov 16 09:00:00 2026"
                )
    except OSError as error:
        raise NoSource(f"{path} cannot be read: {error.strerror}") from error
    return Mbox(path, most_bytes)


@dataclass(frozen=True)
class _OneFile:
    """What was read of it before is known by how it begins."""

    path: Path

    @property
    def total(self) -> int:
        return self.path.stat().st_size

    def head(self) -> str:
        return _head(self.path, HEAD_BYTES)

    def begins_with(self, head: str) -> bool:
        return _head(self.path, int(head.partition(":")[0])) == head  # it may have been shorter then


@dataclass(frozen=True)
class Mbox(_OneFile):
    most_bytes: int
    kind: str = "mbox"

    def pieces(self, after: str) -> Iterator[Piece]:
        with self.path.open("rb") as file:
            start = int(after or 0)
            file.seek(start)
            is_end = start == self.total
            if start and not is_end and not _SEPARATOR.match(file.readline(CHUNK_BYTES)):
                start = 0
            file.seek(start)
            yield from self._split(file, start)

    def _split(self, file: io.BufferedReader, at: int) -> Iterator[Piece]:
        """A separator follows on an empty line, or begins the file."""
        start, lines, size = at, list[bytes](), 0
        begins_line, is_after_blank, is_open = True, True, False
        while chunk := file.readline(CHUNK_BYTES):
            if is_after_blank and _SEPARATOR.match(chunk):
                if is_open:
                    yield self._piece(start, at, lines, size)
                start, lines, size, is_open = at, [], 0, True
            elif is_open:
                size += len(chunk)
                if size <= self.most_bytes:
                    lines.append(chunk)
            at += len(chunk)
            is_after_blank = begins_line and chunk in _BLANK_LINES
            begins_line = chunk.endswith(b"\n")
        if is_open:
            yield self._piece(start, at, lines, size)

    def _piece(self, start: int, end: int, lines: list[bytes], size: int) -> Piece:
        where = f"the message at byte {start}"
        if size > self.most_bytes:
            return Piece(where, str(end), end, error=_too_large(self.most_bytes))
        if lines and lines[-1] in _BLANK_LINES:
            lines.pop()  # it belongs to the separator
        return Piece(where, str(end), end, _QUOTED_FROM.sub(rb"\1", b"".join(lines)))


@dataclass(frozen=True)
class Folder:
    """``kind``: a Maildir, a folder of .eml files with all below it, or one such file. In the order of their names."""

    path: Path
    most_bytes: int
    kind: str

    @property
    def total(self) -> int:
        return len(self._files())

    def head(self) -> str:
        return ""

    def begins_with(self, head: str) -> bool:
        return True

    def _files(self) -> list[tuple[str, Path]]:
        """Each with the name it keeps: a mail program changes what follows on the colon."""
        if self.kind == "file":
            return [(self.path.name, self.path)]
        if self.kind == "Maildir":
            found = [path for sub in ("cur", "new") for path in (self.path / sub).iterdir() if path.name[0] != "."]
            return sorted((path.name.partition(":")[0], path) for path in found)
        below = (Path(folder, name) for folder, _, names in os.walk(self.path) for name in names)
        return sorted((str(path.relative_to(self.path)), path) for path in below if path.suffix.lower() == ".eml")

    def pieces(self, after: str) -> Iterator[Piece]:
        for number, (name, path) in enumerate(self._files(), 1):
            if name > after:
                yield self._piece(name, path, number)

    def _piece(self, name: str, path: Path, number: int) -> Piece:
        try:
            if not stat.S_ISREG(path.stat().st_mode):  # to open a pipe would wait for whoever writes to it
                return Piece(str(path), name, number, error="it is no ordinary file")
            with path.open("rb") as file:
                raw = file.read(self.most_bytes + 1)
        except OSError as error:  # moved or removed meanwhile
            return Piece(str(path), name, number, error=f"it cannot be read: {error.strerror}")
        if len(raw) > self.most_bytes:
            return Piece(str(path), name, number, error=_too_large(self.most_bytes))
        return Piece(str(path), name, number, raw)


@dataclass(frozen=True)
class Csv(_OneFile):
    """Names of columns in whatever case; commas, semicolons or tabs between them, as the first line has them."""

    kind: str = "CSV"

    def pieces(self, after: str) -> Iterator[Piece]:
        with self.path.open("rb") as file:
            read = 0

            def lines() -> Iterator[str]:
                nonlocal read
                while line := file.readline(CHUNK_BYTES):
                    read += len(line)
                    yield line.decode("utf-8", "replace").replace("\0", "")

            texts = lines()
            first = next(texts, "").removeprefix("\ufeff")
            delimiter = max(_DELIMITERS, key=first.count)
            columns = [name.strip().lower() for name in next(csv.reader([first], delimiter=delimiter), [])]
            reader = csv.reader(texts, delimiter=delimiter)
            csv.field_size_limit(MOST_FIELD_CHARS)
            number = 1
            while True:
                number += 1
                try:
                    values = next(reader)
                except StopIteration:
                    return
                except csv.Error as error:
                    values, wrong = [], str(error)
                else:
                    wrong = "" if len(values) <= len(columns) else "it has more fields than the first line"
                if number <= int(after or 0) or (not values and not wrong):
                    continue
                row = None if wrong else {name: value.strip() for name, value in zip(columns, values, strict=False)}
                yield Piece(f"row {number}", str(number), read, row=row, error=wrong)


def _head(path: Path, length: int) -> str:
    with path.open("rb") as file:
        start = file.read(length)
    return f"{len(start)}:{hashlib.sha256(start).hexdigest()[:16]}"


def _too_large(most_bytes: int) -> str:
    return f"it is larger than MAX_BODY_MB ({most_bytes / 1024 / 1024:g} MB), as no door takes it"
