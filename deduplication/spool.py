"""Keeps large contents on the disk: a temporary file has the body of a request, followed by its decoded parts."""

from __future__ import annotations

import os
import re
import secrets
import tempfile
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from pathlib import Path

from deduplication.values import frozen

LARGE_BYTES = 64 * 1024  # contents up to this size are kept in memory
CHUNK_BYTES = 256 * 1024
MOST_RUNS = 1000  # of an outline, long or not; no real email has more, and finding each one reads a chunk


class Spool:
    """A temporary file without a name, deleted with the last reference to it. Raises OSError if the disk is full."""

    def __init__(self, folder: Path | None = None) -> None:
        self.file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115
        self.size = 0

    def __del__(self) -> None:
        if hasattr(self, "file"):
            self.file.close()

    def write(self, data: bytes) -> None:
        unwritten = memoryview(data)
        while unwritten:
            unwritten = unwritten[self.file.write(unwritten) :]
        self.size += len(data)


@frozen
class Blob:
    """A part of a spool, which can be read in chunks and repeatedly. Positions are relative to its start."""

    spool: Spool
    start: int
    end: int

    def __len__(self) -> int:
        return self.end - self.start

    def read(self, start: int = 0, end: int | None = None) -> bytes:
        """Safe for use in several threads, because pread does not use the position of the file."""
        end = len(self) if end is None else min(end, len(self))
        return os.pread(self.spool.file.fileno(), max(0, end - start), self.start + start)

    def search(self, pattern: re.Pattern[bytes], start: int = 0, longest: int = 4) -> tuple[int, int] | None:
        """The start and end of the first match of a pattern that matches at most ``longest`` bytes."""
        for position in range(start, len(self), CHUNK_BYTES):
            match = pattern.search(self.read(position, position + CHUNK_BYTES + longest - 1))
            if match and (match.start() < CHUNK_BYTES or position + CHUNK_BYTES >= len(self)):
                return position + match.start(), position + match.end()
        return None


Content = bytes | Blob
"""Small contents are bytes; large contents are on the disk."""


class Outline:
    """A content as its parser reads it: in ``text``, marks replace long runs, which stay on the disk.

    ``find_runs`` yields where those runs may start and end that the parser does not need to read.
    """

    def __init__(self, content: Content, find_runs: Callable[[Blob], Iterable[tuple[int, int]]]) -> None:
        self._runs: list[Blob] = []
        if isinstance(content, bytes):
            self.text = content
            return
        self._mark = secrets.token_hex(16).encode()
        pieces, position = list[bytes](), 0
        for start, end in islice(find_runs(content), MOST_RUNS):
            if end - start > LARGE_BYTES:
                pieces.append(content.read(position, start) + b"%s%d%s" % (self._mark, len(self._runs), self._mark))
                self._runs.append(Blob(content.spool, content.start + start, content.start + end))
                position = end
        self.text = b"".join([*pieces, content.read(position)])

    def restored(self, text: bytes) -> Content:
        """A part of the text, with the runs in place of their marks."""
        if not self._runs or self._mark not in text:
            return text
        texts = enumerate(text.split(self._mark))
        pieces = [piece for index, text in texts if (piece := self._runs[int(text)] if index % 2 else text)]
        if len(pieces) == 1:
            return pieces[0]
        return spooled((chunk for piece in pieces for chunk in chunks_of(piece)), self._runs[0].spool)


def spooled(chunks: Iterable[bytes], spool: Spool) -> Blob:
    """Appends chunks to a spool, and returns that part."""
    start = spool.size
    for chunk in chunks:
        spool.write(chunk)
    return Blob(spool, start, spool.size)


def transformed(content: Content, change: Callable[[Iterable[bytes]], Iterator[bytes]]) -> Content:
    """Decodes or otherwise changes contents. Large results are appended to the spool of the contents."""
    changed = change(chunks_of(content))
    return spooled(changed, content.spool) if isinstance(content, Blob) else b"".join(changed)


def collected(chunks: Iterable[bytes], folder: Path | None) -> Content:
    """Reads all chunks: to a spool in the folder if they are large, else, or without a folder, to memory."""
    head, rest = b"", iter(chunks)
    for chunk in rest:
        head += chunk
        if folder and len(head) > LARGE_BYTES:
            return spooled(chain((head,), rest), Spool(folder))
    return head


def chunks_of(content: Content) -> Iterator[bytes]:
    if isinstance(content, bytes):
        return iter((content,))
    return (content.read(start, start + CHUNK_BYTES) for start in range(0, len(content), CHUNK_BYTES))


def read_all(content: Content) -> bytes:
    return content.read() if isinstance(content, Blob) else content
