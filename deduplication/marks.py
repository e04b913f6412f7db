"""How names are visible in Redis: to an operator, and to other programs, which read and write them."""

from __future__ import annotations

import re
from typing import Any

from deduplication.names import Kind, Name
from deduplication.values import frozen

HAS_PENDING = (Kind.POST, Kind.MEDIA)  # kinds whose mark shows that an item is being delivered


@frozen
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
    wanted = Name(kind, "*" if scope is None else _literally(scope), f"{_literally(value or '')}*")
    has_scope, is_group = kind in (Kind.SUBJECT_GROUP, Kind.CONTENT), kind is Kind.SUBJECT_GROUP
    found: dict[Name, None] = {}
    for group_ttl in (False, True) if is_group else (False,):
        mark, head = mark_of(wanted, group_ttl), mark_of(Name(kind, "", ""), group_ttl).key.rstrip(":")
        keys = client.scan_iter(match=f"{_literally(prefix)}{mark.key}", count=1000)
        if mark.member is not None and scope is not None:  # the one Set: Redis may have millions of keys
            keys = [f"{prefix}{mark_of(Name(kind, scope, ''), group_ttl).key}".encode()]
        for key in keys:
            rest = key.decode().removeprefix(f"{prefix}{head}:")
            if mark.member is None:
                of_scope, _, text = rest.partition(":") if has_scope else ("", "", rest)
                found[Name(kind, of_scope, text)] = None
                continue
            if value is None or is_group:
                members = client.sscan_iter(key, match=mark.member, count=1000)
            else:  # a day may have a million ids
                members = [value.encode()] if client.sismember(key, value) else []
            start = f"{rest}:" if is_group else ""
            found |= {Name(kind, rest, member.decode().removeprefix(start)): None for member in members}
    return list(found)


def _literally(text: str) -> str:
    """In a pattern of Redis."""
    return re.sub(r"([*?\[\]\\])", r"\\\1", text)
