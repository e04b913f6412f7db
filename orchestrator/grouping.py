"""Which items of one request can be claimed together (pure)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet

from deduplication.claims import Name


def groups(names: Mapping[int, AbstractSet[Name]], most: int) -> Iterator[list[int]]:
    """In groups of which no two have a name in common: of two that do, the later one is in a later group.

    ``names``: those of each item. All others keep their order, but for what is passed over to fill a group.
    """
    waiting = deque(names)
    while waiting:
        group: list[int] = []
        passed_over: list[int] = []
        met: set[Name] = set()
        while waiting and len(group) < most and len(passed_over) < most:
            item = waiting.popleft()
            (group if met.isdisjoint(names[item]) else passed_over).append(item)
            met |= names[item]
        waiting.extendleft(reversed(passed_over))
        yield group
