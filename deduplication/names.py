"""Names, by which items are recognised and stopped, and fingerprints, which distinguish items that share a name."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

WEEK_MS = 7 * 24 * 3600 * 1000
UNDATED = "undated"  # replaces the day in the id of an email without a date
NOTHING_THERE = "0"
_DIGEST_CHARS = 20
_DIGEST = re.compile("[0-9a-f]+")
_SHORT_CHARS = 8
MAX_POST_KEY_CHARS = 512


class Kind(StrEnum):
    """The kinds of names; a table in docs/architecture.md says how each is made and how long it is kept."""

    EMAIL_ID = "email_id"
    POST = "post"
    SUBJECT_GROUP = "subject_group"
    MEDIA = "media"
    CONTENT = "content"
    LOCK = "lock"


class Gate(StrEnum):
    """The gates that can stop an email, in the order of evaluation."""

    IDENTITY = "identity"
    SUBJECT_GROUP = "subject_group"
    MEDIA = "media"
    CONTENT = "content"
    LOCK = "lock"


GATE_OF = {kind: Gate.IDENTITY if kind in (Kind.EMAIL_ID, Kind.POST) else Gate(kind) for kind in Kind}


class Name:
    """A name of an item, identified by its ``label``. ``kept_ms`` is how long it is kept once done, None for ever.

    Own names (``is_own``) identify the item; the others (group, media...) are shared with other items. All emails of
    one sender with one subject have the same undated id, so it counts only if the fingerprints agree
    (``needs_agreement``).
    """

    def __init__(self, kind: Kind, scope: str, value: str, kept_ms: int | None = None) -> None:
        if ":" in scope:
            raise ValueError(f"scope must not contain a colon, which separates the parts of a label, got {scope!r}")
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
    """A digest of each part of an item, made by ``digest`` or ``digest_of_all``. None means that the part is unknown,
    because the provider did not send it; an empty part is known.

    ``text`` is the visible text, ``files`` the contents of the files, ``links`` the targets of links and images.
    ``file_names`` are for providers that do not send the contents. Only for these, ``file_sizes`` is known, because
    some providers count the bytes of the file, others those of its Base64. ``ids`` is set for undated emails, which the
    Message-ID or else the event id distinguishes from each other, and for emails with unknown files, where it is the
    Message-ID. ``head`` is the subject and sender, and ``date`` the moment of the Date header: the emails of a device
    that always sends the same Message-ID may differ only in these. If the date may not be from the Date header, "@" and
    a digest of the provider follow: such a date is only compared with dates of the same provider.

    ``first_html`` is "text+links" of the first of several HTML parts, empty if there is only one, and None if the
    provider may have omitted the others. ``untagged`` are the heads without the first tag before the subject, such as
    [EXT], without the first two, and so on, joined by "+".
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
        """The parts in their order, separated by dots. Unknown parts are empty; dots at the end are omitted."""
        return ".".join([part or "" for part in self]).rstrip(".")

    @classmethod
    @lru_cache(maxsize=128)  # repeats are compared with earlier emails, usually recent ones
    def parse(cls, text: str) -> Fingerprint:
        return cls(*(part or None for part in text.split(".")))


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_CHARS] if text else NOTHING_THERE


def digest_of_all(values: Iterable[str]) -> str:
    """The same digest for any order of the values."""
    ordered = sorted(values)
    return digest(json.dumps(ordered)) if ordered else NOTHING_THERE


def bounded_key(key: str) -> str:
    """A digest of a key that is too long: senders choose keys, and a Message-ID may have a megabyte."""
    return key if len(key) <= MAX_POST_KEY_CHARS else f"sha256:{hashlib.sha256(key.encode()).hexdigest()}"


def shortened(fingerprint: str) -> str:
    """The short form that is kept with a mark, perhaps for ever. It is only comparable with other short forms."""
    return _DIGEST.sub(lambda match: match[0][:_SHORT_CHARS], fingerprint)


def conflicts(one: Fingerprint, other: Fingerprint) -> bool:
    """Whether a part that both know differs.

    File names count only if the contents are unknown, because providers invent names for files without one. Message-IDs
    count only if nothing is known about the files of either item.
    """
    if one == other:  # almost every repeat
        return False
    if _differ(one.text, other.text) or _differ(one.links, other.links):
        one, other = _limit_to_first_html(one, other), _limit_to_first_html(other, one)
    pairs = [(one.text, other.text), (one.files, other.files), (one.file_sizes, other.file_sizes)]
    pairs += [(one.links, other.links), (one.head, other.head)]
    if one.files is None or other.files is None:
        pairs.append((one.file_names, other.file_names))
    are_files_unknown = {one.files, other.files, one.file_names, other.file_names} == {None}
    if are_files_unknown and NOTHING_THERE not in (one.ids, other.ids):
        pairs.append((one.ids, other.ids))
    if one.date and other.date and one.date.partition("@")[2] == other.date.partition("@")[2]:
        pairs.append((one.date, other.date))
    return any(_differ(ours, theirs) for ours, theirs in pairs)


def _differ(ours: str | None, theirs: str | None) -> bool:
    return ours is not None and theirs is not None and ours != theirs


def _limit_to_first_html(one: Fingerprint, other: Fingerprint) -> Fingerprint:
    """``one`` with the text and links of only its first HTML part, if the provider of ``other`` may have omitted the
    others."""
    if other.first_html is not None or one.first_html in (None, NOTHING_THERE):
        return one
    text, links = one.first_html.split("+")
    return one._replace(text=text, links=links)


def differs_by_tag(one: Fingerprint, other: Fingerprint) -> bool:
    """Whether only tags before one of the subjects differ. Both must have a known text and date."""
    heads = ((one.head, other.untagged), (other.head, one.untagged))
    if not any(head in (untagged or "").split("+") for head, untagged in heads):
        return False
    if not (one.text and other.text and one.date and other.date):
        return False
    is_same_moment = one.date.partition("@")[0] == other.date.partition("@")[0]
    return is_same_moment and not conflicts(one._replace(head=other.head), other)


def filled(known: Fingerprint, more: Fingerprint) -> Fingerprint:
    """``known``, with its unknown parts filled from ``more``. A repeat can add parts, but not change known ones."""
    return Fingerprint(*(ours if ours is not None else theirs for ours, theirs in zip(known, more, strict=True)))
