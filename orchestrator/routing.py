"""Which route an item takes: the settings of the routes whose conditions hold."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from deduplication.content import WINDOW_MS
from deduplication.media import MediaMode
from deduplication.subject_group import MAX_FOLDED_CHARS, GroupMode, normalize_no_accents_lower_trim
from deduplication.text import search
from deduplication.values import frozen
from orchestrator.config.model import Condition, DestinationConfig, RouteConfig
from orchestrator.item import Item

MOST_CHARS_FOR_A_REGEX = 100_000  # a sender decides how long a text is
RECIPIENT = "recipient"
# Fields that the first matching route with a value decides.
_GATES = ("subject_groups", "media", "realtime_only", "content", "identity_by_recipient")


@frozen
class Route:
    """How an item is handled. ``media`` None: those of messages count, those of emails do not, since replies and
    signatures repeat links. ``content`` None leaves it to the destination. ``dropped_by``: the route that drops it; its
    destinations are then those that it is sent to if it is released."""

    name: str
    destinations: tuple[str, ...]
    subject_groups: GroupMode
    media: MediaMode | None = None
    realtime_only: bool = False
    content: bool | None = None
    identity_by_recipient: bool = False
    dropped_by: str = ""

    def content_window_ms(self, destination: DestinationConfig, item: Item) -> int:
        """How long the same words are a duplicate there; 0 for no gate."""
        if self.content is False:
            return 0
        if destination.content_window_s is not None:
            return destination.content_window_s * 1000
        return WINDOW_MS if self.content or item.is_message else 0


@frozen
class Trial:
    """How one route was evaluated for an item: ``held`` has a value for each of its conditions.

    ``reached`` is False if an earlier route stopped, so that this one does not count even if it matches.
    """

    route: RouteConfig
    held: tuple[bool, ...]
    matched: bool
    reached: bool


class Router:
    """``defaults`` has the values that no matching route sets. The last route matches every item."""

    def __init__(self, routes: Sequence[RouteConfig], defaults: Route) -> None:
        self._routes = routes
        self._defaults = defaults

    def split(self, item: Item) -> list[Item]:
        """The item for each set of recipients that are handled alike: one for all whose routes have the same gates, and
        one for each recipient where these count separately."""
        recipients = item.recipients
        if not item.tells_recipients:
            found = dict.fromkeys((*recipients, *item.values("to"), *item.values("cc")))
            recipients = self._likely_recipients(tuple(found), item) if found else ()
        if len(recipients) < 2:
            return [item.delivered_to(recipients)] if recipients != item.recipients else [item]
        alike: dict[tuple[Route, str], list[str]] = {}
        for recipient in recipients:
            route = self.pick(item.delivered_to([recipient]))
            gates = replace(route, name="", destinations=())
            alike.setdefault((gates, recipient if route.identity_by_recipient else ""), []).append(recipient)
        return [item.delivered_to(each) for each in alike.values()]

    def _likely_recipients(self, addresses: tuple[str, ...], item: Item) -> tuple[str, ...]:
        """Those that a route asks for, since others may be somebody else's; or the first. Headers such as Delivered-To
        take precedence over To and Cc, which also name the recipients of other copies."""
        asked = [each for route in self._routes for each in route.match if each.field == RECIPIENT]
        ours = tuple(address for address in addresses if any(holds(item, address, each) for each in asked))
        return tuple(address for address in ours if address in item.recipients) or ours or addresses[:1]

    def pick(self, item: Item) -> Route:
        """For each recipient, all destinations of the matching routes up to the first that stops; for each gate the
        first value. A route that drops it stops too; the later ones say where it goes if it is released."""
        names: dict[str, None] = {}
        destinations: dict[str, None] = {}
        gates: dict[str, Any] = {}
        for recipient in item.recipients or ("",):
            is_taken = False
            for route in self._routes:
                held = (holds(item, recipient, each) for each in route.match)
                if (route.otherwise and is_taken) or (route.match and not (any if route.any else all)(held)):
                    continue
                if "dropped_by" not in gates:
                    names[route.name] = None
                if route.drop and not is_taken:
                    gates.setdefault("dropped_by", route.name)
                    continue
                is_taken = is_taken or bool(route.destinations)
                destinations |= dict.fromkeys(route.destinations or ())
                for gate in _GATES:
                    if (value := getattr(route, gate)) is not None:
                        gates.setdefault(gate, value)
                if route.stop:
                    break
        to = tuple(destinations) or self._defaults.destinations
        # A sender may choose some of them, never others; all of them if it chooses none.
        to = tuple(name for name in to if name in (item.destinations or ())) or to
        return replace(self._defaults, name=" + ".join(names), destinations=to, **gates)

    def explain(self, item: Item, recipient: str) -> Iterator[Trial]:
        """Every route with every condition, even those that ``pick`` does not evaluate."""
        reached, is_taken = True, False
        for route in self._routes:
            held = tuple(holds(item, recipient, each) for each in route.match)
            matched = not (route.otherwise and is_taken) and (not route.match or (any if route.any else all)(held))
            yield Trial(route, held, matched, reached)
            is_taken = is_taken or (matched and reached and bool(route.destinations))
            reached = reached and not (matched and route.stop)


def holds(item: Item, recipient: str, condition: Condition) -> bool:
    """Whether any value of the field satisfies it; a field without a value is an empty text."""
    is_recipient = condition.field == RECIPIENT
    texts = written = (recipient,) if is_recipient else item.values(condition.field) or ("",)
    if condition.over is not None:
        return int(texts[0]) > condition.over
    if condition.under is not None:
        return int(texts[0]) < condition.under
    if not condition.exact:
        key = recipient if is_recipient else condition.field  # no address is the name of a field
        if key not in item.folded:
            item.folded[key] = tuple(normalize_no_accents_lower_trim(text[:MAX_FOLDED_CHARS]) for text in written)
        texts = item.folded[key]
    if condition.regex is not None:
        # As written too: the expression itself may have accents.
        searched = {text[:MOST_CHARS_FOR_A_REGEX] for text in (*texts, *written)}
        return any(search(condition.regex, text, ignore_case=not condition.exact) for text in searched)
    if condition.equals is not None:
        return condition.text in texts
    return any(condition.text in text for text in texts)
