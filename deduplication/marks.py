"""The marks of names in Redis, which operators read, and other programs read and write."""

import re
from typing import Any

from deduplication.names import Kind, Name
from deduplication.values import frozen

HAS_PENDING = (Kind.POST, Kind.MEDIA)  # kinds whose mark shows that an item is being delivered


@frozen
class Mark:
    """Where a name is in Redis: a member of a Set, or (without ``member``) a String and its values."""

    key: str
    member: str | None = None
    done: str = "1"
    pending: str | None = None


def mark_of(name: Name, group_ttl: bool) -> Mark:
    """The layout of marks is public: docs/architecture.md, names."""
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
    """Finds names by their marks, even if no journal knows them; None matches everything. Only for resets, because it
    scans Redis. Finds all shared names that begin with ``value``, because their scope may follow."""
    pattern = Name(kind, "*" if scope is None else _escape_pattern(scope), f"{_escape_pattern(value or '')}*")
    has_scope, is_group = kind in (Kind.SUBJECT_GROUP, Kind.CONTENT), kind is Kind.SUBJECT_GROUP
    names: list[Name] = []
    for group_ttl in (False, True) if is_group else (False,):
        mark, head = mark_of(pattern, group_ttl), mark_of(Name(kind, "", ""), group_ttl).key.rstrip(":")
        keys = client.scan_iter(match=f"{_escape_pattern(prefix)}{mark.key}", count=1000)
        if mark.member is not None and scope is not None:  # no scan for a single Set: Redis may have millions of keys
            keys = [f"{prefix}{mark_of(Name(kind, scope, ''), group_ttl).key}".encode()]
        for key in keys:
            rest = key.decode().removeprefix(f"{prefix}{head}:")
            if mark.member is None:
                of_scope, _, text = rest.partition(":") if has_scope else ("", "", rest)
                names.append(Name(kind, of_scope, text))
            elif value is None or is_group:
                members = client.sscan_iter(key, match=mark.member, count=1000)
                names += [Name(kind, rest, member.decode().removeprefix(f"{rest}:")) for member in members]
            elif client.sismember(key, value):  # no scan: a day may have a million ids
                names.append(Name(kind, rest, value))
    return names


def _escape_pattern(text: str) -> str:
    """Nothing else, because Redis finds the hash tag of a Cluster only in a pattern without a backslash before it."""
    return re.sub(r"([*?\[\]\\])", r"\\\1", text)
