"""How names are visible in Redis: to an operator, and to other programs, which read and write them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from deduplication.names import Kind, Name

_SETS = {Kind.EMAIL_ID: "processed_ids:", Kind.SUBJECT_GROUP: "subject_groups:"}
_STRINGS = {
    Kind.POST: "post:",
    Kind.SUBJECT_GROUP: "ttl:subject_groups:",
    Kind.MEDIA: "media:",
    Kind.CONTENT: "dedup:",
}


HAS_PENDING = (Kind.POST, Kind.MEDIA)  # kinds whose mark shows that an item is being delivered


@dataclass(frozen=True)
class Mark:
    """Where a name is visible in Redis: a member of a Set, or the value of a String."""

    key: str
    member: str | None = None
    done: str = "1"
    pending: str | None = None


def mark_of(name: Name, group_ttl: bool) -> Mark:
    """As an operator sees it and other programs read and write it (docs/architecture.md, names)."""
    match name.kind:
        case Kind.EMAIL_ID:
            return Mark(f"processed_ids:{name.scope}", name.value)
        case Kind.POST:
            return Mark(f"post:{name.value}", done="0", pending="pending")
        case Kind.SUBJECT_GROUP:
            member = f"{name.scope}:{name.value}"
            return Mark(f"ttl:subject_groups:{member}") if group_ttl else Mark(f"subject_groups:{name.scope}", member)
        case Kind.MEDIA:
            return Mark(f"media:{name.value}", pending="pending")
        case Kind.CONTENT:
            return Mark(f"dedup:{name.scope}:{name.value}")
        case Kind.LOCK:
            return Mark(f"lock:{name.scope}:{name.value}")


def find_marks(client: Any, prefix: str, kind: Kind, scope: str | None, value: str | None) -> list[Name]:
    """Names by their marks, even those that no journal knows; None matches everything. It scans: for resets.

    Of shared names, all that begin with ``value``: the senders among whom they count may follow it.
    """
    found: dict[Name, None] = {}
    if kind in _SETS:
        found |= dict.fromkeys(_members_of_sets(client, f"{prefix}{_SETS[kind]}", kind, scope, value))
    if kind in _STRINGS:
        found |= dict.fromkeys(_keys_of_strings(client, f"{prefix}{_STRINGS[kind]}", kind, scope, value or ""))
    return list(found)


def _members_of_sets(client: Any, head: str, kind: Kind, scope: str | None, value: str | None) -> Iterator[Name]:
    for key in _scan(client, head) if scope is None else [f"{head}{scope}"]:
        day = key.removeprefix(head)
        start = f"{day}:" if kind is Kind.SUBJECT_GROUP else ""
        if kind is Kind.EMAIL_ID and value is not None:  # a day may have a million
            members = [value.encode()] if client.sismember(key, value) else []
        else:
            members = client.sscan_iter(key, match=_beginning(f"{start}{value or ''}"), count=1000)
        yield from (Name(kind, day, member.decode().removeprefix(start)) for member in members)


def _keys_of_strings(client: Any, head: str, kind: Kind, scope: str | None, value: str) -> Iterator[Name]:
    has_scope = kind in (Kind.SUBJECT_GROUP, Kind.CONTENT)
    start = f"{head}{scope}:" if has_scope and scope is not None else head
    is_next = scope is not None or not has_scope  # otherwise any scope is between head and value
    for key in _scan(client, f"{start}{value}" if is_next else start):
        of_scope, _, rest = key.removeprefix(head).partition(":") if has_scope else ("", "", key.removeprefix(head))
        yield Name(kind, of_scope, rest)


def _scan(client: Any, start: str) -> list[str]:
    return [key.decode() for key in client.scan_iter(match=_beginning(start), count=1000)]


def _beginning(start: str) -> str:
    return re.sub(r"([*?\[\]\\])", r"\\\1", start) + "*"
