"""Names: by what an item is recognised, and where it can be stopped. journal/base.py claims them."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

WEEK_MS = 7 * 24 * 3600 * 1000
UNDATED = "undated"  # in place of the day of an email without a date


class Kind(StrEnum):
    """What sort of name it is; how each is kept stands in docs/architecture-old.md and, for Redis, in journal/lua."""

    EMAIL_ID = "email_id"
    POST = "post"
    PROOF = "proof"
    SUBJECT_GROUP = "subject_group"
    MEDIA = "media"
    CONTENT = "content"
    LOCK = "lock"
    DELIVERY = "delivery"  # of the version before the journal: upgrade.py reads it, nobody writes it


class Gate(StrEnum):
    """Where an email can be stopped, in the order in which the gates are asked."""

    PROOF = "proof"
    IDENTITY = "identity"
    SUBJECT_GROUP = "subject_group"
    MEDIA = "media"
    CONTENT = "content"
    LOCK = "lock"
    DELIVERY = "delivery"


GATE_OF = {
    Kind.EMAIL_ID: Gate.IDENTITY,
    Kind.POST: Gate.IDENTITY,
    Kind.PROOF: Gate.PROOF,
    Kind.SUBJECT_GROUP: Gate.SUBJECT_GROUP,
    Kind.MEDIA: Gate.MEDIA,
    Kind.CONTENT: Gate.CONTENT,
    Kind.LOCK: Gate.LOCK,
    Kind.DELIVERY: Gate.DELIVERY,
}


@dataclass(frozen=True)
class Name:
    """One name an item is known by. ``kept_ms`` is how long it stays once done; None is for ever."""

    kind: Kind
    scope: str
    value: str
    kept_ms: int | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if ":" in self.scope:
            raise ValueError(f"scope {self.scope!r} holds a colon: a label could no longer be read back")

    @property
    def gate(self) -> Gate:
        return GATE_OF[self.kind]

    @property
    def is_own(self) -> bool:
        """Own names say which item it is; the others (group, media...) are shared with other items.

        A proof is one too: what its provider signed with it is good for this item and no other.
        """
        return self.gate in (Gate.IDENTITY, Gate.PROOF)

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
class Pattern:
    """Which names to look at; None matches anything."""

    kind: Kind | None = None
    scope: str | None = None
    value: str | None = None

    @property
    def name(self) -> Name | None:
        """The one it means, where it can be only one: posts and media have no scope."""
        scope = "" if self.kind in (Kind.POST, Kind.PROOF, Kind.MEDIA) else self.scope
        if self.kind is None or scope is None or self.value is None:
            return None
        return Name(self.kind, scope, self.value)

    def matches(self, name: Name) -> bool:
        return self.kind in (None, name.kind) and self.scope in (None, name.scope) and self.value in (None, name.value)
