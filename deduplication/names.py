"""Names: what an item is recognised by, and the gates that can stop it; and fingerprints, by which two items that share
a name are distinguished.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

WEEK_MS = 7 * 24 * 3600 * 1000
UNDATED = "undated"  # instead of the day, for an email without a date
NOTHING_THERE = "0"
_DIGEST_CHARS = 20
_DIGEST = re.compile("[0-9a-f]+")
_SHORT_CHARS = 8
MAX_POST_KEY = 512


class Kind(StrEnum):
    """The kind of a name; a table in docs/architecture.md says how each is made and kept."""

    EMAIL_ID = "email_id"
    POST = "post"
    SUBJECT_GROUP = "subject_group"
    MEDIA = "media"
    CONTENT = "content"
    LOCK = "lock"


class Gate(StrEnum):
    """Where an email can be stopped, in the order of evaluation."""

    IDENTITY = "identity"
    SUBJECT_GROUP = "subject_group"
    MEDIA = "media"
    CONTENT = "content"
    LOCK = "lock"


GATE_OF = {kind: Gate.IDENTITY if kind in (Kind.EMAIL_ID, Kind.POST) else Gate(kind) for kind in Kind}


class Name:
    """One name an item is known by; its ``label`` says which one. ``kept_ms`` is how long it stays once done; None is
    for ever.

    Own names (``is_own``) say which item it is; the others (group, media...) are shared with other items. An undated id
    is that of every email of the same subject and sender, so it ``needs_agreement`` of the fingerprint.
    """

    def __init__(self, kind: Kind, scope: str, value: str, kept_ms: int | None = None) -> None:
        if ":" in scope:
            raise ValueError(f"scope must not contain a colon, got {scope!r}: it separates the parts of a label")
        self.kind, self.scope, self.value, self.kept_ms = kind, scope, value, kept_ms
        self.label = f"{kind}:{scope}:{value}"
        self.gate = GATE_OF[kind]
        self.is_own = self.gate is Gate.IDENTITY
        self.needs_agreement = kind is Kind.EMAIL_ID and scope == UNDATED

    @classmethod
    def from_label(cls, label: str, kept_ms: int | None = None) -> Name:
        kind, scope, value = label.split(":", 2)
        return cls(Kind(kind), scope, value, kept_ms)

    def with_value(self, value: str) -> Name:
        return Name(self.kind, self.scope, value, self.kept_ms)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Name) and self.label == other.label

    def __hash__(self) -> int:
        return hash(self.label)

    def __repr__(self) -> str:
        return f"Name({self.label!r}, kept_ms={self.kept_ms})"


class Fingerprint(NamedTuple):
    """A digest of each part of an item, as ``digest`` and ``digest_of_all`` make it. A part is known (even if it is
    empty) or None, because not every provider sends everything.

    ``text`` is what a reader sees, ``files`` the contents of the files, ``links`` the targets of links and images.
    ``file_names`` are for providers that do not send the contents. Only for these ``file_sizes`` is known: whether it
    counts the file or its Base64 differs between providers. ``ids`` is the Message-ID, or else the event id, of an
    undated email: it distinguishes it from other undated ones, not from its own dated form. It is the Message-ID of an
    email whose files are unknown. ``head`` is the subject and sender, ``date`` the moment of the Date header: a device
    may give all its emails one Message-ID, and differ only in these. A date that may be another than that of the header
    is followed by "@" and a digest of the provider: it differs from dates of the same provider only.

    ``first_html`` is "text+links" of the first of several HTML parts, empty if there are no others: some providers
    omit the others, and of their emails it is None. ``untagged`` are the heads without the first tag, the first two
    tags... in front of the subject, such as [EXT], joined by "+".
    """

    text: str | None = None
    files: str | None = None
    file_names: str | None = None
    file_sizes: str | None = None
    links: str | None = None
    ids: str | None = None
    head: str | None = None
    date: str | None = None
    first_html: str | None = None
    untagged: str | None = None

    def __str__(self) -> str:
        """The parts in their order with dots between them, nothing for an unknown one, and no dots at the end."""
        return ".".join([part or "" for part in self]).rstrip(".")

    @classmethod
    @lru_cache(maxsize=512)  # a repeat is compared with an earlier email, usually a recent one
    def parse(cls, written: str) -> Fingerprint:
        return cls(*(part or None for part in written.split(".")))


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_CHARS] if text else NOTHING_THERE


def digest_of_all(values: Iterable[str]) -> str:
    """Whatever their order."""
    ordered = sorted(values)
    return digest(json.dumps(ordered)) if ordered else NOTHING_THERE


def bounded_key(key: str) -> str:
    """Senders choose these: a Message-ID of a megabyte must not become a key of a megabyte."""
    return key if len(key) <= MAX_POST_KEY else f"sha256:{hashlib.sha256(key.encode()).hexdigest()}"


def shortened(fingerprint: str) -> str:
    """A fingerprint as it is kept beside a mark, perhaps for ever: compare it with others that were shortened."""
    return _DIGEST.sub(lambda found: found[0][:_SHORT_CHARS], fingerprint)


def conflicts(one: Fingerprint, other: Fingerprint) -> bool:
    """Whether a part that is known of both differs.

    The names of files count only if their contents are unknown: providers invent names for files without one. The
    Message-IDs count only if nothing is known of the files of either.
    """
    if one == other:  # as with almost every repeat
        return False
    if _differ(one.text, other.text) or _differ(one.links, other.links):
        one, other = _as_far_as_known(one, other), _as_far_as_known(other, one)
    pairs = [(one.text, other.text), (one.files, other.files), (one.file_sizes, other.file_sizes)]
    pairs += [(one.links, other.links), (one.head, other.head)]
    if one.files is None or other.files is None:
        pairs.append((one.file_names, other.file_names))
    known_of_files = {one.files, other.files, one.file_names, other.file_names}
    if known_of_files == {None} and NOTHING_THERE not in (one.ids, other.ids):
        pairs.append((one.ids, other.ids))
    if one.date and other.date and one.date.partition("@")[2] == other.date.partition("@")[2]:
        pairs.append((one.date, other.date))
    return any(_differ(ours, theirs) for ours, theirs in pairs)


def _differ(ours: str | None, theirs: str | None) -> bool:
    return ours is not None and theirs is not None and ours != theirs


def _as_far_as_known(one: Fingerprint, other: Fingerprint) -> Fingerprint:
    """With the text and links of its first HTML part, if the provider of the other may have omitted all others."""
    if other.first_html is not None or one.first_html in (None, NOTHING_THERE):
        return one
    text, links = one.first_html.split("+")
    return one._replace(text=text, links=links)


def differs_by_tag(one: Fingerprint, other: Fingerprint) -> bool:
    """Whether only tags in front of one of the subjects differ. The text and the moment must be known of both."""
    heads = ((one.head, other.untagged), (other.head, one.untagged))
    if not any(head in (untagged or "").split("+") for head, untagged in heads):
        return False
    if not (one.text and other.text and one.date and other.date):
        return False
    is_same_moment = one.date.partition("@")[0] == other.date.partition("@")[0]
    return is_same_moment and not conflicts(one._replace(head=other.head), other)


def filled(known: Fingerprint, more: Fingerprint) -> Fingerprint:
    """``known`` with its unknown parts taken from ``more``: a repeat may add a part, never change one."""
    return Fingerprint(*(ours if ours is not None else theirs for ours, theirs in zip(known, more, strict=True)))
