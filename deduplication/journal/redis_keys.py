"""Where names stand visibly in Redis: keys that an operator reads and other programs write (lua/entry.lua, spell)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from deduplication.claims import Kind, Name, Pattern


@dataclass(frozen=True)
class Shown:
    """Keys, without the prefix, that show names of a kind: the members of a Set, or a String of one of these values."""

    kind: Kind
    type: Literal["set", "string"]
    glob: str
    start: str
    values: str = ""

    def is_shown_by(self, value: str) -> bool:
        """Whatever else stands in a key that looks like ours is another program's."""
        return re.fullmatch(self.values, value) is not None

    def read(self, key: str, member: str = "") -> Name:
        """Raises ValueError where it is no name of ours."""
        text = key.removeprefix(self.start)
        match self.kind:
            case Kind.EMAIL_ID:
                return Name(self.kind, text, member)
            case Kind.POST | Kind.MEDIA:
                return Name(self.kind, "", text)
            case _:
                scope, value = (member or text).split(":", 1)
                return Name(self.kind, scope, value)


def shown_names(pattern: Pattern) -> list[Shown]:
    scope, value = _glob_of(pattern.scope), _glob_of(pattern.value)
    shown = [
        Shown(Kind.EMAIL_ID, "set", scope, "processed_ids:"),
        Shown(Kind.POST, "string", value, "post:", values="pending|[0-9]+"),
        Shown(Kind.SUBJECT_GROUP, "set", scope, "subject_groups:"),
        Shown(Kind.SUBJECT_GROUP, "string", f"{scope}:{value}", "ttl:subject_groups:", values="1"),
        Shown(Kind.MEDIA, "string", value, "media:", values="pending|1"),
        Shown(Kind.CONTENT, "string", f"{scope}:{value}", "dedup:", values="1"),
        Shown(Kind.LOCK, "string", f"{scope}:{value}", "lock:", values="held"),
    ]
    return [each for each in shown if pattern.kind in (None, each.kind)]


def escape_glob(text: str) -> str:
    return "".join("\\" + char if char in "\\*?[]" else char for char in text)


def _glob_of(part: str | None) -> str:
    return "*" if part is None else escape_glob(part)
