"""Which route an email takes: the first whose conditions hold."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from deduplication.email import Email
from deduplication.subject_group import GroupMode, normalize_no_accents_lower_trim
from orchestrator.config import Condition, RouteConfig


@dataclass(frozen=True)
class Route:
    """What happens to an email that takes it."""

    name: str
    destination: str
    group_mode: GroupMode


class Router:
    """``defaults`` fills in what a route leaves open. The last route matches everything (config.py sees to it)."""

    def __init__(self, routes: Sequence[RouteConfig], defaults: Route) -> None:
        self._routes = routes
        self._defaults = defaults

    def pick(self, email: Email) -> Route:
        matched = next(route for route in self._routes if _matches(route, email))
        return Route(
            matched.name,
            matched.destinations[0] if matched.destinations else self._defaults.destination,
            matched.subject_groups or self._defaults.group_mode,
        )


_ATTRIBUTES = {"subject": "clean_subject", "sender": "sender_email", "body": "text", "provider": "provider"}


def _matches(route: RouteConfig, email: Email) -> bool:
    combine = any if route.any else all
    return not route.match or combine(_holds(condition, email) for condition in route.match)


def _holds(condition: Condition, email: Email) -> bool:
    value = getattr(email, _ATTRIBUTES[condition.field])
    folded = normalize_no_accents_lower_trim(value)
    if condition.regex is not None:
        return any(re.search(condition.regex, text, re.IGNORECASE) for text in (folded, value))
    wanted = normalize_no_accents_lower_trim(condition.equals or condition.contains or "")
    return folded == wanted if condition.equals is not None else wanted in folded
