"""Which way an item takes: what the routes say whose conditions hold."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

from deduplication.content import WINDOW_MS
from deduplication.limits import MAX_FOLDED_CHARS
from deduplication.media import MediaMode
from deduplication.regexes import is_in
from deduplication.subject_group import GroupMode, normalize_no_accents_lower_trim
from orchestrator.config.model import Condition, RouteConfig
from orchestrator.item import Item

MOST_CHARS_FOR_A_REGEX = 100_000  # a sender decides how long a text is

T = TypeVar("T")


@dataclass(frozen=True)
class Route:
    """What happens to an item that takes it. ``content`` None: as the destination says."""

    name: str
    destinations: tuple[str, ...]
    group_mode: GroupMode
    media: MediaMode = MediaMode.LISTED
    realtime_only: bool = False
    content: bool | None = None
    identity_by_recipient: bool = False

    def destinations_for(self, item: Item) -> tuple[str, ...]:
        """A sender may ask for fewer of them, never for others; for none of them, for all."""
        wanted = tuple(each for each in self.destinations if each in (item.destinations or ()))
        return wanted or self.destinations

    def content_window_ms(self, own_ms: int | None, item: Item) -> int:
        """How long the same words are a repeat at a destination that says ``own_ms``; 0: there is no content gate."""
        if self.content is False:
            return 0
        if own_ms is not None:
            return own_ms
        return WINDOW_MS if self.content or item.is_message else 0


@dataclass(frozen=True)
class Trial:
    """How one route fares with an item. ``held`` goes with the route's conditions, one by one.

    ``reached`` False: a route before it had stopped, so that it has no say even if it matches.
    """

    route: RouteConfig
    held: tuple[bool, ...]
    matched: bool
    reached: bool


class Router:
    """``defaults`` fills in what no matching route says. The last route matches everything (config.py sees to it)."""

    def __init__(self, routes: Sequence[RouteConfig], defaults: Route) -> None:
        self._routes = routes
        self._defaults = defaults
        self._made = lru_cache(maxsize=1000)(self._make)  # of all that may match together, few ever do

    def pick(self, item: Item) -> Route:
        """All destinations of the matching routes up to the first that stops; of each gate, the first word on it."""
        return self._made(tuple(self._taken(item)))

    def _make(self, positions: tuple[int, ...]) -> Route:
        taken = [self._routes[position] for position in positions]
        named = dict.fromkeys(name for route in taken for name in route.destinations or ())
        defaults = self._defaults
        return Route(
            name=" + ".join(route.name for route in taken),
            destinations=tuple(named) or defaults.destinations,
            group_mode=_first(taken, lambda route: route.subject_groups, defaults.group_mode),
            media=_first(taken, lambda route: route.media, defaults.media),
            realtime_only=_first(taken, lambda route: route.realtime_only, defaults.realtime_only),
            content=_first(taken, lambda route: route.content, defaults.content),
            identity_by_recipient=_first(
                taken, lambda route: route.identity_by_recipient, defaults.identity_by_recipient
            ),
        )

    def explain(self, item: Item) -> list[Trial]:
        """Every route with every condition, also those that ``pick`` need not look at."""
        reader = _Reader(item)
        trials: list[Trial] = []
        reached = True
        for route in self._routes:
            held = tuple(reader.holds(condition) for condition in route.match)
            matched = _combined(route, held)
            trials.append(Trial(route, held, matched, reached))
            reached = reached and not (matched and route.stop)
        return trials

    def _taken(self, item: Item) -> Iterator[int]:
        """The positions of the matching routes."""
        reader = _Reader(item)
        for position, route in enumerate(self._routes):
            if _combined(route, map(reader.holds, route.match)):
                yield position
                if route.stop:
                    return


def _first(routes: Sequence[RouteConfig], said: Callable[[RouteConfig], T | None], otherwise: T) -> T:
    return next((word for word in map(said, routes) if word is not None), otherwise)


def _combined(route: RouteConfig, held: Iterable[bool]) -> bool:
    return not route.match or (any(held) if route.any else all(held))


class _Reader:
    """Reads the fields of one item for conditions; folding a long body takes its time, so it is done once."""

    def __init__(self, item: Item) -> None:
        self._item = item
        self._folded: dict[str, tuple[str, ...]] = {}

    def holds(self, condition: Condition) -> bool:
        """For any value of the field. A field without a value reads as empty text."""
        texts = self._texts(condition.field) if condition.exact else self._folded_texts(condition.field)
        if condition.regex is None:
            return any(_says(condition, text) for text in texts)
        if condition.exact:
            return _finds(condition.regex, texts, ignore_case=False)
        return _finds(condition.regex, (*texts, *self._texts(condition.field)), ignore_case=True)

    def _texts(self, field: str) -> tuple[str, ...]:
        return self._item.fields.get(field) or ("",)

    def _folded_texts(self, field: str) -> tuple[str, ...]:
        if field not in self._folded:
            self._folded[field] = tuple(
                normalize_no_accents_lower_trim(text[:MAX_FOLDED_CHARS]) for text in self._texts(field)
            )
        return self._folded[field]


def _says(condition: Condition, text: str) -> bool:
    fold = str if condition.exact else normalize_no_accents_lower_trim
    if condition.equals is not None:
        return text == fold(condition.equals)
    return fold(condition.contains or "") in text


def _finds(regex: str, texts: Iterable[str], *, ignore_case: bool) -> bool:
    """Only the first MOST_CHARS_FOR_A_REGEX characters of a text are searched; contains and equals see all of it."""
    return any(is_in(regex, text[:MOST_CHARS_FOR_A_REGEX], ignore_case=ignore_case) for text in texts)
