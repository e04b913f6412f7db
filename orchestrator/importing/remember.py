"""Emails that were handled before Mailonce: remembered, so that they are recognised from then on and never sent; or, in
a dry run, what the service would have done with them.

A remembered email is a mark for each of its names, with its fingerprint: what remains of an email that was delivered
long ago. There is no entry and no payload, so it can be neither replayed nor released.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from msgspec import structs

from deduplication.clock import Clock, system_clock
from deduplication.journal.coordinator import Claimed, Coordinator
from deduplication.journal.entry import Delivery, DeliveryStatus, Stop
from deduplication.journal.rules import Busy, Claim, Known, Repeat, Take, identify
from deduplication.journal.sqlite import Journal, Step
from deduplication.names import Gate, Kind, Name
from deduplication.realtime_guard import RealtimeGuard
from deduplication.subject_group import month_of
from deduplication.values import frozen
from orchestrator.delivery.sender import Sender
from orchestrator.item import Item
from orchestrator.metrics.meter import GROUPS, ROUTE, Meter
from orchestrator.pipeline import RULES, Pipeline

REMEMBERED = {
    "imported": "imported",
    "groups": "subject groups of this month",
    "known": "already known, or repeated in the source",
    "left": "skipped: in progress, returned to their provider, or with the id of another email",
}
MOST_EXAMPLES = 3
COUNTED = {
    "new": "new: their webhooks would have been sent",
    Gate.IDENTITY: "duplicates of an earlier email",
    Gate.SUBJECT_GROUP: "stopped by subject_group",
    Gate.MEDIA: "stopped by media",
    Gate.CONTENT: "stopped by content",
    ROUTE: "dropped by a route",
    "groups": "subject groups, counted by month",
    "left_out": "deliveries of new emails skipped by the content gate of their destination",
}


def remember(pipeline: Pipeline, items: Iterable[Item]) -> Counter[str]:
    """Counts by the keys of REMEMBERED. Raises StoreUnavailable; it may then be repeated with all items.

    Marks are written to the journal first. Marks that it already has are written to Redis again, in case an earlier run
    was stopped in between.
    """
    counts, marked = Counter[str](), list[Name]()
    parts = (part for item in items for part in pipeline.router.split(item))
    claims = [(part, pipeline.prepare(part, pipeline.router.pick(part)).claim) for part in parts]
    with pipeline.coordinator.journal.step() as step:
        for item, claim in claims:
            result, names = _remember_one(pipeline, step, item, claim)
            marked += names
            counts[result] += 1
            counts["groups"] += any(name.kind is Kind.SUBJECT_GROUP for name in names)
    if pipeline.coordinator.registry and marked:
        pipeline.coordinator.registry.announce(marks=marked)
    return counts


def _remember_one(pipeline: Pipeline, step: Step, item: Item, claim: Claim) -> tuple[str, list[Name]]:
    """The result, and the names that are marked."""
    known = step.known((*claim.identity, *claim.shared), claim.fingerprint)
    found = identify(claim, known)
    if isinstance(found, Busy) or (isinstance(found, Take) and found.candidates):
        return "left", []
    own = [name for name in claim.own if not name.needs_agreement]
    if not isinstance(found, Take):
        is_mark = isinstance(found, Repeat) and not found.of.deliveries
        return "known", own if is_mark else []
    marked = own if found.stop else _free(known, own)  # a mark of another program has no fingerprint, and gets one
    result = "known" if found.stop else "imported" if marked else "left"
    if result == "imported":
        marked += _free(known, _still_shared(pipeline, claim.shared, item.moment))
    for name in marked:
        until_ms = None if name.kept_ms is None else step.now_ms + name.kept_ms
        step.put_mark(name.label, until_ms, claim.fingerprint if name.is_own else "")
    return result, marked


def _still_shared(pipeline: Pipeline, names: Iterable[Name], moment: datetime | None) -> Iterator[Name]:
    """Names that would still stop other emails, had this one been received at its own date: groups of this month, media
    of the last seven days."""
    if moment is None:
        return
    settings = pipeline.settings
    age_ms = max(0, int((pipeline.now() - moment).total_seconds() * 1000))
    for name in names:
        is_group = name.kind is Kind.SUBJECT_GROUP
        if is_group and name.scope != month_of(settings.timezone, moment):
            continue
        if is_group and not settings.subject_group_ttl_seconds:
            yield name  # it ends with its month
        elif (left_ms := (name.kept_ms or 0) - age_ms) > 0:
            yield Name(name.kind, name.scope, name.value, left_ms)


def _free(known: Known, names: Iterable[Name]) -> list[Name]:
    return [name for name in names if not (known.of(name).is_marked or known.of(name).entries)]


# A dry run


@frozen
class _Rehearsing(Sender):
    """Sends nothing, and is always successful."""

    def send(self, claimed: Claimed, *_: object) -> tuple[Delivery, ...]:
        return tuple(structs.replace(delivery, status=DeliveryStatus.DELIVERED) for delivery in claimed.to_send)


def rehearse(pipeline: Pipeline, path: Path, items: Iterable[Item]) -> tuple[Counter[str], list[str]]:
    """What the service would have done with these emails, by its own routes and rules, on an empty journal at ``path``:
    counts by the keys of COUNTED, and some examples of what each gate stopped.

    Each email is received at its own date, in the order of the source. Nothing is sent.
    """
    counts, examples = Counter[str](dict.fromkeys(COUNTED, 0)), list[str]()
    now = moment = datetime.now(UTC)
    clock = Clock(lambda: int(moment.timestamp() * 1000), system_clock().steady_ms)
    coordinator = Coordinator(Journal(path, clock))
    meter = Meter(coordinator.journal)
    meter.count = lambda event: counts.update(groups=GROUPS in event)
    pipeline = replace(
        pipeline,
        coordinator=coordinator,
        sender=_Rehearsing(**vars(pipeline.sender)),
        guard=RealtimeGuard(datetime.fromtimestamp(0, UTC)),
        meter=meter,
        settings=pipeline.settings.model_copy(update={"deliver_by": "requests", "keep_suppressed": False}),
        now=lambda: moment,
    )
    for item in (part for given in items for part in pipeline.router.split(given)):
        if item.moment:  # an undated email is received at the time of the one before it, none later than now
            moment = min(item.moment, now)
        outcome = pipeline.receive(item)
        gate = outcome.reason.gate if outcome.reason else RULES.get(outcome.status, "")
        counts[gate or "new"] += 1
        if not gate:
            counts["left_out"] += sum(delivery.status is DeliveryStatus.SKIPPED for delivery in outcome.deliveries)
        elif outcome.reason and counts[gate] <= MOST_EXAMPLES:
            examples.append(_example(pipeline, item, outcome.reason))
    coordinator.close()
    return counts, examples


def _example(pipeline: Pipeline, item: Item, stop: Stop) -> str:
    subject, sender = (pipeline.privacy.text(next(iter(item.values(name)), "")) for name in ("subject", "sender"))
    with pipeline.coordinator.journal.reading() as step:
        first = step.read(stop.original) if stop.original else None
    before = f'"{first.about.subject}" from {first.about.sender}' if first else "an unknown email"
    return f'{stop.gate}: "{subject}" from {sender}, after {before} ({stop.name.value[:80]})'
