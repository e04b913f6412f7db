"""How Redis spells each kind of name (DESIGN 2): the keys and values that an operator sees and other programs use."""

from __future__ import annotations

from dataclasses import dataclass

from deduplication.claims import Kind, Name
from deduplication.stores.base import Pattern


@dataclass(frozen=True)
class Spelling:
    """How Redis writes one name: the only place that knows. Keys are without the prefix."""

    decides: str
    member: str | None = None
    history: str | None = None
    done: str | None = None
    pending: str | None = None
    counts: bool = False
    leased: bool = False  # the keys end with the lease


@dataclass(frozen=True)
class Speller:
    """Spells every kind of name (DESIGN 2). With a group TTL, a String decides and the Set is history."""

    prefix: str = ""
    group_ttl: bool = False

    def spell(self, name: Name) -> Spelling:
        match name.kind:
            case Kind.EMAIL_ID:
                return Spelling(f"processed_ids:{name.scope}", member=name.value)
            case Kind.POST:
                return Spelling(f"post:{name.value}", done="0", pending="pending", counts=True)
            case Kind.SUBJECT_GROUP if self.group_ttl:
                member = f"{name.scope}:{name.value}"
                groups = f"subject_groups:{name.scope}"
                return Spelling(f"ttl:subject_groups:{member}", member=member, history=groups, done="1")
            case Kind.SUBJECT_GROUP:
                return Spelling(f"subject_groups:{name.scope}", member=f"{name.scope}:{name.value}")
            case Kind.MEDIA:
                return Spelling(f"media:{name.value}", done="1", pending="pending")
            case Kind.CONTENT:
                return Spelling(f"dedup:{name.scope}:{name.value}", done="1")
            case Kind.DELIVERY:
                return Spelling(f"delivered:{name.scope}:{name.value}", done="1", pending="pending")
            case Kind.LOCK:
                return Spelling(f"lock:{name.scope}:{name.value}", done="released", pending="held", leased=True)

    def visible(self, pattern: Pattern) -> list[tuple[Kind, str]]:
        """Where names may stand that another program marked: (kind, glob over keys)."""
        scope, value = glob_of(pattern.scope), glob_of(pattern.value)
        globs = [
            (Kind.EMAIL_ID, f"processed_ids:{scope}"),
            (Kind.POST, f"post:{value}"),
            (Kind.SUBJECT_GROUP, f"subject_groups:{scope}"),
            (Kind.SUBJECT_GROUP, f"ttl:subject_groups:{scope}:{value}"),
            (Kind.MEDIA, f"media:{value}"),
            (Kind.CONTENT, f"dedup:{scope}:{value}"),
            (Kind.DELIVERY, f"delivered:{scope}:{value}"),
            (Kind.LOCK, f"lock:{scope}:{value}"),
        ]
        return [(kind, escape_glob(self.prefix) + glob) for kind, glob in globs if pattern.kind in (None, kind)]

    def read_back(self, kind: Kind, key: str, member: str | None) -> Name:
        """The name that a visible key, or a member of a visible Set, stands for."""
        text = key.removeprefix(self.prefix)
        match kind:
            case Kind.EMAIL_ID:
                return Name(kind, text.split(":", 1)[1], member or "")
            case Kind.SUBJECT_GROUP:
                scope, _, value = (member or text.removeprefix("ttl:subject_groups:")).partition(":")
                return Name(kind, scope, value)
            case Kind.POST | Kind.MEDIA:
                return Name(kind, "", text.split(":", 1)[1])
            case Kind.CONTENT | Kind.DELIVERY | Kind.LOCK:
                _, scope, value = text.split(":", 2)
                return Name(kind, scope, value)


def glob_of(part: str | None) -> str:
    return "*" if part is None else escape_glob(part)


def escape_glob(text: str) -> str:
    return "".join("\\" + char if char in "\\*?[]" else char for char in text)
