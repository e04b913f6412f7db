"""What an item says, part by part: by this, two items that share a name are told apart.

A part is known, be it that there is nothing there, or unknown, because not every door tells everything. Only what both
sides know can speak against them being the same.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

NOTHING_THERE = "0"
_UNKNOWN = "-"
_DIGEST_CHARS = 24


@dataclass(frozen=True)
class Fingerprint:
    """Of each part a digest, as ``digest`` and ``digest_of_all`` make it; None where the door does not tell.

    ``text`` is what a reader sees, ``files`` the contents of the files, ``links`` where links lead and images lie.
    ``file_names`` are for doors that do not hand over the contents, and ``file_sizes`` are known at those alone: what
    they count, the file or its Base64, can only be compared with their own. ``ids`` is the Message-ID, or else the
    event id, of an undated email: it sets it apart from other undated ones, not from its own dated form. ``head`` is
    its subject and sender: a device may give all its emails one Message-ID, and say everything in the subject.
    """

    text: str | None = None
    files: str | None = None
    file_names: str | None = None
    file_sizes: str | None = None
    links: str | None = None
    ids: str | None = None
    head: str | None = None

    @property
    def parts(self) -> tuple[str | None, ...]:
        return self.text, self.files, self.file_names, self.file_sizes, self.links, self.ids, self.head

    def __str__(self) -> str:
        """``text.files.file_names.file_sizes.links.ids.head``, "-" for what is unknown; empty where all of it is."""
        parts = self.parts
        return ".".join([part or _UNKNOWN for part in parts]) if any(parts) else ""

    @classmethod
    @lru_cache(maxsize=512)  # a repeat is compared with what came before it, most often a moment ago
    def parse(cls, written: str) -> Fingerprint:
        """Without a dot it is older than the parts: the SHA-256 of the text, of which nothing else is known."""
        if "." not in written:
            return cls(text=written[:_DIGEST_CHARS] or None)
        return cls(*(None if part == _UNKNOWN else part for part in written.split(".")))


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_CHARS] if text else NOTHING_THERE


def digest_of_all(values: Iterable[str]) -> str:
    """In whatever order they come."""
    ordered = sorted(values)
    return digest(json.dumps(ordered)) if ordered else NOTHING_THERE


def conflicts(one: Fingerprint, other: Fingerprint) -> bool:
    """Whether a part that both know differs.

    Where both know the files themselves, their names say nothing more: each door has its own for a file without one.
    """
    pairs = [(one.text, other.text), (one.files, other.files), (one.file_sizes, other.file_sizes)]
    pairs += [(one.links, other.links), (one.head, other.head)]
    if one.files is None or other.files is None:
        pairs.append((one.file_names, other.file_names))
    return any(ours is not None and theirs is not None and ours != theirs for ours, theirs in pairs)


def filled(known: Fingerprint, more: Fingerprint) -> Fingerprint:
    """What is known, and of the rest what the other one tells: a repeat may fill in a part, never change one."""
    parts = zip(known.parts, more.parts, strict=True)
    return Fingerprint(*(ours if ours is not None else theirs for ours, theirs in parts))


def agree(one: Fingerprint, other: Fingerprint) -> bool:
    """Whether they say the same in all they say, the text at least: enough where the name they share says nothing."""
    return one.text is not None and one == other
