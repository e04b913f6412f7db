"""What an email would meet, for ``mailonce check``: nothing is sent or recorded."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from deduplication.claims import Claimed, Duplicate, InFlight, Verdict
from deduplication.content import content_name
from deduplication.stores.base import Record, State
from deduplication.stores.memory import MemoryStore
from deduplication.subject_group import generate_subject_group_id
from orchestrator.config import Config
from orchestrator.delivery.courier import content_window_ms
from orchestrator.explain import explained
from orchestrator.intake import SKIPPED_AT, for_recipient
from orchestrator.item import Item
from orchestrator.parts import Parts
from orchestrator.routing import Route
from orchestrator.settings import Settings
from orchestrator.wiring import build_intake, make_naming, make_router


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


def judge(settings: Settings, parts: Parts, item: Item) -> str:
    """Which of its names are taken, and what would become of it now. The store is only read: its verdict is given by a
    copy of what it says about these names.
    """
    intake = build_intake(settings, parts)
    claim = intake.case_of(*for_recipient(item, intake.router.pick(item))).claim
    now_ms = parts.store.now_ms()
    records = list(parts.store.read([*claim.names, *claim.related]))
    verdict = MemoryStore.of(records, lambda: now_ms).claim(claim)
    taken = [f"  {line}" for line in map(_taken, records) if line]
    return "\n".join([*(["has these names taken", *taken] if taken else ["has no name taken"]), _verdict(verdict)])


def _taken(record: Record) -> str | None:
    match record.state:
        case State.DONE:
            return (
                f"{record.name.label}: done, by {record.item or 'another program'} since {_time(record.first_seen_ms)}"
            )
        case State.PENDING:
            return f"{record.name.label}: held by {record.item}, until {_time(record.lease_until_ms)}"
        case State.FREE:
            return None


def _verdict(verdict: Verdict) -> str:
    match verdict:
        case Duplicate():
            return f"would be {SKIPPED_AT[verdict.gate]}: {verdict.name} is done, by {verdict.original}"
        case InFlight():
            return f"would be already_processing: {verdict.name} is held for another {verdict.retry_after_ms} ms"
        case Claimed():
            return "would be new, and delivered"


def _time(moment_ms: int | None) -> str:
    if moment_ms is None:
        return "an unknown time"
    return datetime.fromtimestamp(moment_ms / 1000, UTC).isoformat(timespec="seconds")
