"""Names: what an item is recognised by, and where it can be stopped."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

WEEK_MS = 7 * 24 * 3600 * 1000
UNDATED = "undated"  # in place of the day of an email without a date


class Kind(StrEnum):
    """The sort of a name; docs/architecture.md has a table of how each is made and kept."""

    EMAIL_ID = "email_id"
    POST = "post"
    SUBJECT_GROUP = "subject_group"
    MEDIA = "media"
    CONTENT = "content"
    LOCK = "lock"


class Gate(StrEnum):
    """Where an email can be stopped, in the order in which the gates are asked."""

    IDENTITY = "identity"
    SUBJECT_GROUP = "subject_group"
    MEDIA = "media"
    CONTENT = "content"
    LOCK = "lock"


GATE_OF = {
    Kind.EMAIL_ID: Gate.IDENTITY,
    Kind.POST: Gate.IDENTITY,
    Kind.SUBJECT_GROUP: Gate.SUBJECT_GROUP,
    Kind.MEDIA: Gate.MEDIA,
    Kind.CONTENT: Gate.CONTENT,
    Kind.LOCK: Gate.LOCK,
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
