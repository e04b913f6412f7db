"""Which route an item takes: the first whose conditions hold."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from deduplication.media import MediaMode
from deduplication.subject_group import GroupMode, normalize_no_accents_lower_trim
from orchestrator.config import Condition, RouteConfig
from orchestrator.item import Item


@dataclass(frozen=True)
class Route:
    """What happens to an item that takes it."""

    name: str
    destinations: tuple[str, ...]
    group_mode: GroupMode
    media: MediaMode = MediaMode.LISTED
    realtime_only: bool = False

    def destinations_for(self, item: Item) -> tuple[str, ...]:
        """A sender may ask for fewer of them, never for others; for none of them, for all."""
        wanted = tuple(each for each in self.destinations if each in (item.destinations or ()))
        return wanted or self.destinations


class Router:
    """``defaults`` fills in what a route leaves open. The last route matches everything (config.py sees to it)."""

    def __init__(self, routes: Sequence[RouteConfig], defaults: Route) -> None:
        self._routes = routes
        self._defaults = defaults

    def pick(self, item: Item) -> Route:
        matched = next(route for route in self._routes if _matches(route, item))
        return Route(
            matched.name,
            matched.destinations or self._defaults.destinations,
            matched.subject_groups or self._defaults.group_mode,
            matched.media,
            matched.realtime_only,
        )


def _matches(route: RouteConfig, item: Item) -> bool:
    combine = any if route.any else all
    return not route.match or combine(_holds(condition, item) for condition in route.match)


def _holds(condition: Condition, item: Item) -> bool:
    value = item.fields[condition.field]
    folded = normalize_no_accents_lower_trim(value)
    if condition.regex is not None:
        return any(re.search(condition.regex, text, re.IGNORECASE) for text in (folded, value))
    wanted = normalize_no_accents_lower_trim(condition.equals or condition.contains or "")
    return folded == wanted if condition.equals is not None else wanted in folded
