"""What an email would meet, for ``mailonce check``: nothing is sent or recorded."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from deduplication.content import content_name
from deduplication.journal.base import Found, InFlight
from deduplication.journal.entry import Stop
from deduplication.journal.verdict import Judgement, Repeat, Take, judge, known_of
from deduplication.subject_group import generate_subject_group_id
from orchestrator.build import Parts, build_intake, make_naming, make_router
from orchestrator.config.model import Config
from orchestrator.config.settings import Settings
from orchestrator.intake import SKIPPED_AT, for_recipient, repeat_status
from orchestrator.item import Item
from orchestrator.operations.explain import explained
from orchestrator.operations.words import shown_moment
from orchestrator.routing import Route


def preview(settings: Settings, config: Config, item: Item) -> str:
    router = make_router(settings, config)
    route = router.pick(item)
    item, route = for_recipient(item, route)
    naming = make_naming(settings, config)
    group = generate_subject_group_id(item.subject, naming.patterns, route.group_mode)
    shared = naming.shared_names(group, naming.media_links(item, route), datetime.now(UTC))
    lines = [
        "This email",
        explained(router.explain(item)),
        f"takes the route {route.name!r}, to {', '.join(route.destinations_for(item))}",
        *([f"counts only if it is newer than the service: {item.moment or 'undated'}"] if route.realtime_only else []),
        "is known by",
        *(f"  {name.gate}: {name.label}" for name in (*item.own_names, *shared)),
        *_at_destinations(config, item, route),
    ]
    return "\n".join(lines)


def _at_destinations(config: Config, item: Item, route: Route) -> Iterator[str]:
    for destination in route.destinations_for(item):
        own_ms = config.destinations[destination].content_window_ms
        content = content_name(destination, item.text, route.content_window_ms(own_ms, item))
        yield f"at {destination}: {f'content {content.value}' if content else 'no content gate'}"


def judged(parts: Parts, item: Item) -> str:
    """Which of its names are taken, and what would become of it now. The journal is only read: what it knows of these
    names is judged here, by its own rules.
    """
    intake = build_intake(parts)
    claim = intake.prepare(item, intake.router.pick(item)).claim
    contents = [each.content for each in claim.destinations if each.content]
    found = parts.journal.look((*claim.own, *claim.shared, *contents))
    known = known_of(found, parts.journal.lease_time_ms(), parts.journal.now_ms())
    taken = [f"  {line}" for each in found for line in _taken(each, known.steady_ms)]
    told = _told(judge(claim, known))
    return "\n".join([*(["has these names taken", *taken] if taken else ["has no name taken"]), told])


def _taken(found: Found, lease_time_ms: int) -> Iterator[str]:
    if found.is_marked:
        by = ", ".join(f"{entry.id} since {shown_moment(entry.created_ms)}" for entry in found.entries)
        yield f"{found.name.label}: done, by {by or 'another program'}"
        return
    for entry in found.entries:
        if entry.is_held(lease_time_ms):
            yield f"{found.name.label}: held by {entry.id}, for another {entry.lease_until_ms - lease_time_ms} ms"
        elif entry.has_open_deliveries:
            yield f"{found.name.label}: held by {entry.id}, which waits for its next try"


def _told(judgement: Judgement) -> str:
    match judgement:
        case Repeat(of=original, name=name):
            return f"would be {repeat_status(original.answer, original.fate)}: {name.label} is done, by {original.id}"
        case Take(stop=Stop() as stop):
            return (
                f"would be {SKIPPED_AT[stop.gate]}: {stop.name.label} is taken, by {stop.original or 'another program'}"
            )
        case InFlight():
            return f"would be already_processing: {judgement.name} is held for another {judgement.retry_after_ms} ms"
        case _:
            return "would be new, and delivered"
