"""Large contents stay on the disk: a request's body in a temporary file, and its decoded parts behind it."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path

from deduplication.values import frozen

LARGE_BYTES = 64 * 1024  # contents up to here are held in memory
CHUNK_BYTES = 256 * 1024


class Spool:
    """A temporary file without a name; it is gone with the last reference to it. Raises OSError on a full disk."""

    def __init__(self, folder: Path | None = None) -> None:
        self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115
        self.size = 0

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            self._file.close()

    def write(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            left = left[self._file.write(left) :]
        self.size += len(data)

    def read(self, start: int, end: int) -> bytes:
        """Without a position of its own, so that threads may share it."""
        return os.pread(self._file.fileno(), max(0, end - start), start)


@frozen
class Blob:
    """A part of a spool, which is read in chunks, as often as needed; positions are counted from its start."""

    spool: Spool
    start: int
    end: int

    def __len__(self) -> int:
        return self.end - self.start

    def part(self, start: int, end: int) -> Blob:
        return Blob(self.spool, self.start + start, self.start + end)

    def read(self, start: int = 0, end: int | None = None) -> bytes:
        end = len(self) if end is None else min(end, len(self))
        return self.spool.read(self.start + start, self.start + max(start, end))

    def chunks(self) -> Iterator[bytes]:
        for start in range(0, len(self), CHUNK_BYTES):
            yield self.read(start, start + CHUNK_BYTES)

    def search(self, pattern: re.Pattern[bytes], start: int = 0, longest: int = 4) -> tuple[int, int] | None:
        """Where a pattern, which matches at most ``longest`` bytes, occurs for the first time."""
        for position in range(start, len(self), CHUNK_BYTES):
            found = pattern.search(self.read(position, position + CHUNK_BYTES + longest - 1))
            if found and (found.start() < CHUNK_BYTES or position + CHUNK_BYTES >= len(self)):
                return position + found.start(), position + found.end()
        return None


Content = bytes | Blob
"""Small contents are bytes, large ones are on the disk."""


def spooled(chunks: Iterable[bytes], spool: Spool) -> Blob:
    start = spool.size
    for chunk in chunks:
        spool.write(chunk)
    return Blob(spool, start, spool.size)


def transformed(content: Content, change: Callable[[Iterable[bytes]], Iterator[bytes]]) -> Content:
    """Such as decoded. What is large is written behind everything else in its spool."""
    if isinstance(content, Blob):
        return spooled(change(content.chunks()), content.spool)
    return b"".join(change((content,)))


def collected(chunks: Iterable[bytes], folder: Path | None) -> Content:
    """On the disk if it is large, and there is a folder for it."""
    head, rest = b"", iter(chunks)
    for chunk in rest:
        head += chunk
        if folder and len(head) > LARGE_BYTES:
            return spooled(chain((head,), rest), Spool(folder))
    return head


def chunks_of(content: Content) -> Iterator[bytes]:
    return content.chunks() if isinstance(content, Blob) else iter((content,))


def read_all(content: Content) -> bytes:
    return content.read() if isinstance(content, Blob) else content
