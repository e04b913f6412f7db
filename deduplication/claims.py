"""The one claim primitive: names, the claim over them, and the three verdicts on it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum

WEEK_MS = 7 * 24 * 3600 * 1000
PENDING_KEPT_MS = WEEK_MS  # how long a record that never became done is remembered
UNDATED = "undated"  # in place of the day of an email without a date
_SCOPE = re.compile(r"[^:]*")


class Kind(StrEnum):
    """What sort of name it is; how each is kept stands in DESIGN 2 and, for Redis, in stores/redis.py."""

    EMAIL_ID = "email_id"
    POST = "post"
    SUBJECT_GROUP = "subject_group"
    MEDIA = "media"
    CONTENT = "content"
    DELIVERY = "delivery"
    LOCK = "lock"


class Gate(StrEnum):
    """Where an email can be stopped, in the order in which the gates are asked."""

    IDENTITY = "identity"
    SUBJECT_GROUP = "subject_group"
    MEDIA = "media"
    CONTENT = "content"
    DELIVERY = "delivery"
    LOCK = "lock"


GATE_OF = {
    Kind.EMAIL_ID: Gate.IDENTITY,
    Kind.POST: Gate.IDENTITY,
    Kind.SUBJECT_GROUP: Gate.SUBJECT_GROUP,
    Kind.MEDIA: Gate.MEDIA,
    Kind.CONTENT: Gate.CONTENT,
    Kind.DELIVERY: Gate.DELIVERY,
    Kind.LOCK: Gate.LOCK,
}
_GATE_ORDER = {gate: position for position, gate in enumerate(Gate)}


@dataclass(frozen=True)
class Name:
    """One name an item is known by. ``kept_ms`` is how long it stays once done; None is for ever."""

    kind: Kind
    scope: str
    value: str
    kept_ms: int | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if not _SCOPE.fullmatch(self.scope):
            raise ValueError(f"scope {self.scope!r} holds a colon: a label could no longer be read back")

    @property
    def gate(self) -> Gate:
        return GATE_OF[self.kind]

    @property
    def is_own(self) -> bool:
        """Own names say which item it is; the others (group, media...) are shared with other items."""
        return self.gate is Gate.IDENTITY

    @property
    def needs_agreement(self) -> bool:
        """An undated id is that of every other email of the subject and sender: by itself it says nothing."""
        return self.kind is Kind.EMAIL_ID and self.scope == UNDATED

    @property
    def label(self) -> str:
        return f"{self.kind}:{self.scope}:{self.value}"

    @classmethod
    def from_label(cls, label: str) -> Name:
        kind, scope, value = label.split(":", 2)
        return cls(Kind(kind), scope, value)


@dataclass(frozen=True)
class Claim:
    """A claim on all names of one item; it is also the handle by which its owner settles it.

    ``fingerprint`` (a Fingerprint, written out; empty means unknown) tells apart items that share an own name.
    ``related`` names are not claimed here, but go with the item when it is forgotten.
    """

    item: str
    names: tuple[Name, ...]
    fingerprint: str
    owner: str
    lease_ms: int
    related: tuple[Name, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", in_gate_order(self.names))

    def fingerprint_for(self, name: Name) -> str:
        """Shared names do not care what else the item says: they have a single record."""
        return self.fingerprint if name.is_own else ""

    def holds_siblings(self, name: Name) -> bool:
        """The item's first name lists all others, so that one id is enough to find and forget them."""
        return name.is_own and name == self.names[0]

    def given_back_by(self, to: Claim) -> tuple[Name, ...]:
        """The names that a move to another claim gives back."""
        return tuple(name for name in self.names if name not in to.names)

    def without(self, labels: Collection[str]) -> Claim:
        """What is left to settle if these names were left out."""
        return replace(self, names=tuple(name for name in self.names if name.label not in labels))

    @property
    def labels(self) -> list[str]:
        """All names of the item."""
        return [name.label for name in (*self.names, *self.related)]


def in_gate_order(names: Iterable[Name]) -> tuple[Name, ...]:
    """Distinct names, sorted by gate; within a gate in the order given."""
    return tuple(sorted(dict.fromkeys(names), key=lambda name: _GATE_ORDER[name.gate]))


@dataclass(frozen=True)
class Claimed:
    """All names are reserved for the owner until the lease ends, but for those ``left_out``: media that are done.

    Of an item with several media only those are new that no other item brought; it is stopped if all are known.
    """

    fence: int
    retries_left: int | None
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True)
class Duplicate:
    """A settled item already holds one of the names."""

    gate: Gate
    name: str
    original: str | None
    first_seen_ms: int | None


@dataclass(frozen=True)
class InFlight:
    """Another owner holds one of the names and has not settled yet."""

    gate: Gate
    name: str
    retry_after_ms: int


Verdict = Claimed | Duplicate | InFlight
