"""What would happen to an email, for ``mailonce check``: nothing is sent or recorded."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from deduplication.content import content_name
from deduplication.journal.entry import DeliveryStatus, Entry
from deduplication.journal.rules import Busy, Judgement, Known, Repeat, Take, judge
from deduplication.names import Name
from deduplication.subject_group import generate_subject_group_id
from orchestrator.build import Service, make_naming, make_router
from orchestrator.config.model import Config
from orchestrator.config.settings import Settings
from orchestrator.item import Item
from orchestrator.operations.explain import explained
from orchestrator.operations.words import shown_moment
from orchestrator.pipeline import SKIPPED_AT, Status, for_recipient, repeat_status


def preview(settings: Settings, config: Config, item: Item) -> str:
    """Its route, its destinations and its names, by the configuration alone."""
    router, naming = make_router(settings, config), make_naming(settings, config)
    route = router.pick(item)
    item, route = for_recipient(item, route)
    group = generate_subject_group_id(item.subject, naming.patterns, route.group_mode)
    shared = naming.shared_names(group, naming.media_links(item, route), datetime.now(UTC))
    lines = [
        "This email",
        explained(router.explain(item)),
        f"takes the route {route.name!r}, to {', '.join(route.destinations_for(item))}",
        *([f"counts only if it is newer than the service: {item.moment or 'undated'}"] if route.realtime_only else []),
        "is recognised by",
        *(f"  {name.gate}: {name.label}" for name in (*item.own_names, *shared)),
    ]
    for destination in route.destinations_for(item):
        window_ms = route.content_window_ms(config.destinations[destination].content_window_ms, item)
        content = content_name(destination, item.text, window_ms) if window_ms else None
        lines.append(f"at {destination}: {f'content {content.value}' if content else 'no content gate'}")
    return "\n".join(lines)


def judged(service: Service, item: Item) -> str:
    """Which of its names are taken, and what would happen to it now, by the journal of this machine and its rules."""
    pipeline = service.pipeline
    claim = pipeline.prepare(item, pipeline.router.pick(item)).claim
    with service.journal.reading() as step:
        known = step.known((*claim.identity, *claim.gates), claim.fingerprint)
    taken = [f"  {line}" for name in known.names for line in _taken(name, known)]
    wanted = {each.destination for each in claim.destinations}
    head = ["has these names taken", *taken] if taken else ["has no name taken"]
    return "\n".join([*head, _verdict(judge(claim, known), wanted)])


def _taken(name: Name, known: Known) -> Iterator[str]:
    state = known.of(name)
    done = [entry for entry in state.entries if entry.is_delivered_somewhere]
    if state.is_marked or done:
        by = ", ".join(f"{entry.id} since {shown_moment(entry.created_ms)}" for entry in state.entries)
        yield f"{name.label}: done, by {by or 'another program'}"
        return
    for entry in state.entries:
        left_ms = max((each.lease_until_ms for each in entry.deliveries), default=0) - known.now_ms
        if any(each.status is DeliveryStatus.CLAIMED for each in entry.deliveries) and left_ms > 0:
            yield f"{name.label}: held by {entry.id}, for another {left_ms} ms"
        elif entry.is_open:
            yield f"{name.label}: held by {entry.id}, which waits for its next try"


def _verdict(judgement: Judgement, wanted: set[str]) -> str:
    match judgement:
        case Repeat(of=None, name=name):
            return f"would be {Status.ALREADY_PROCESSED}: {name.label} is done, by another program"
        case Repeat(of=Entry() as original, name=name):
            return f"would be {repeat_status(original, wanted)}: it repeats {original.id} ({name.label})"
        case Busy(name=held, retry_after_ms=left_ms):
            return f"would be {Status.ALREADY_PROCESSING}: {held} is held for another {left_ms} ms"
        case Take(stop=stop) if stop:
            by = stop.original or "another program"
            return f"would be {SKIPPED_AT[stop.gate]}: {stop.name.label} is taken, by {by}"
        case _:
            return "would be new, and delivered"
