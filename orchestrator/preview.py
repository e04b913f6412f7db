"""What an email would meet, for ``mailonce check``: nothing is sent, asked or recorded."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from deduplication.content import content_name
from deduplication.subject_group import generate_subject_group_id
from orchestrator.config import Config
from orchestrator.delivery.courier import content_window_ms
from orchestrator.explain import explained
from orchestrator.intake import for_recipient
from orchestrator.item import Item
from orchestrator.routing import Route
from orchestrator.settings import Settings
from orchestrator.wiring import make_naming, make_router


def preview(settings: Settings, config: Config, item: Item) -> str:
    router = make_router(settings, config)
    route = router.pick(item)
    item, route = for_recipient(item, route)
    naming = make_naming(settings, config)
    group = generate_subject_group_id(item.subject, naming.patterns, route.group_mode)
    names = (*item.own_names, *naming.shared_names(item, group, route, datetime.now(UTC)))
    lines = [
        "This email",
        explained(router.explain(item)),
        f"takes the route {route.name!r}, to {', '.join(route.destinations_for(item))}",
        *([f"counts only if it is newer than the service: {item.moment or 'undated'}"] if route.realtime_only else []),
        "is known by",
        *(f"  {name.gate}: {name.label}" for name in names),
        *_at_destinations(config, item, route),
    ]
    return "\n".join(lines)


def _at_destinations(config: Config, item: Item, route: Route) -> Iterator[str]:
    for destination in route.destinations_for(item):
        own_ms = config.destinations[destination].content_window_ms
        content = content_name(destination, item.text, content_window_ms(own_ms, item, route.content))
        yield f"at {destination}: {f'content {content.value}' if content else 'no content gate'}"
