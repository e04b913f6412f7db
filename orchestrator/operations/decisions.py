"""What happened to each email and why, and to each of its deliveries."""

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, tzinfo
from functools import partial
from typing import Annotated, Any, Literal

from msgspec.structs import asdict, replace
from pydantic import BaseModel, Field, PlainSerializer, WithJsonSchema

from deduplication.journal.entry import Delivery, DeliveryStatus, Entry, Stop
from deduplication.journal.sqlite import Step
from deduplication.names import Gate
from orchestrator.build import Service
from orchestrator.delivery.guard import Blocker
from orchestrator.delivery.webhook import Payload, unpack
from orchestrator.files import missing_files
from orchestrator.operations.search import (
    OUTCOME_OF,
    DecisionFilter,
    DeliveryFilter,
    EmailOutcome,
    catch_up,
    find_by_key,
    find_ids,
    read_status,
)
from orchestrator.operations.times import shown_moment
from orchestrator.pipeline import Status

SAME = {
    Gate.IDENTITY: "the same, but for a tag in front of its subject,",  # an exact repeat has no entry of its own
    Gate.SUBJECT_GROUP: "same subject group",
    Gate.MEDIA: "same file",
    Gate.CONTENT: "same text",
}
"""What an email shares with the one that it repeats, by gate, in the order in which these are evaluated."""

Time = Annotated[
    int,
    PlainSerializer(partial(shown_moment, timespec="milliseconds"), return_type=str, when_used="json"),
    WithJsonSchema({"type": "string", "format": "date-time"}),
]
"""Milliseconds since 1970; in JSON, ISO 8601."""
When = Callable[[int], str]


Storage = Literal["journal", "redis", "another_machine", "none"]
"""Where the payload is; ``another_machine`` received the email, and has the payload if it was kept at all."""


class AttemptView(BaseModel):
    at: Time
    latency_ms: int
    status_code: int | None
    error: str | None


class DeliveryView(BaseModel):
    id: str = Field(description="The email's id, a colon and the destination.")
    destination: str
    status: DeliveryStatus
    reason: str | None = Field(description="Why it waits now, or why it ended as it did.")
    tries: int = Field(description="Attempts since it was last replayed or released, without probes.")
    max_attempts: int | None
    next_try: Time | None
    delivered: Time | None
    receiver_id: str | None
    email_id: str
    provider: str
    sender: str
    subject: str
    webhook_id: str
    created: Time
    age_s: int
    attempts: list[AttemptView]
    storage: Storage
    payload_bytes: int
    payload_machine: str | None = Field(description="The machine that has the payload, if it is another one.")


class DeliveryInFull(DeliveryView):
    payload: Mapping[str, Any] | None = Field(description="What is sent, as long as it is stored on this machine.")


class DeliveryPage(BaseModel):
    deliveries: list[DeliveryView]
    more: bool
    next: str | None = Field(description="`cursor` of the next page.")


class Decision(BaseModel):
    id: str
    email_id: str
    status: Status = Field(description="The answer to its provider, brought up to date.")
    outcome: EmailOutcome = Field(description="What happened to it, in one word.")
    gate: Gate | None = Field(description="The gate that stopped it.")
    reason: str = Field(description="What happened to it and why, in one sentence.")
    name: str | None = Field(description="The name that it met at the gate.")
    original: str | None = Field(description="The email that it repeats.")
    first_seen: Time | None
    repeats: int = Field(description="How often the same email was received again.")
    last_repeat: Time | None
    provider: str
    route: str
    sender: str
    recipient: str = Field(description="The first one, and how many more there are.")
    subject: str
    received_at: Time
    settled_at: Time | None
    took_ms: int | None
    store: str = Field(description="`redis`, or `local`: decided by the journal of one machine.")
    released_at: Time | None
    releasable_until: Time | None
    deliveries: list[DeliveryView]


class DecisionPage(BaseModel):
    decisions: list[Decision]
    more: bool
    next: str | None = Field(description="`cursor` of the next page.")


class NameView(BaseModel):
    gate: Gate
    name: str
    is_own: bool


class GateReport(BaseModel):
    gate: Gate
    said: str


class MissingFile(BaseModel):
    sha256: str
    missing: str = Field(description="Why it could not be stored.")


class DecisionInFull(Decision):
    server: str
    machine: str
    missing_files: list[MissingFile] = Field(description="Files without a link, on the machine that received it.")
    names: list[NameView]
    gates: list[GateReport] = Field(description="What each gate decided, up to the one that stopped it.")
    original_email: Decision | None
    payload_bytes: int
    payload_machine: str | None = Field(description="The machine that has the payload, if it is another one.")
    payload: Mapping[str, Any] | None = Field(description="What is sent, as long as it is stored on this machine.")


# Reading


def list_decisions(service: Service, wanted: DecisionFilter, limit: int, cursor: str | None = None) -> DecisionPage:
    """Newest first. Raises InvalidCursor if the cursor is not one of this list."""
    ids, following = find_ids(service, wanted, limit, cursor)
    with service.journal.reading() as step:
        decisions = [_view(service, step, entry) for id_ in ids if (entry := _read(service, step, id_))]
    return DecisionPage(decisions=decisions, more=following is not None, next=following)


def list_deliveries(service: Service, wanted: DeliveryFilter, limit: int, cursor: str | None = None) -> DeliveryPage:
    """Waiting ones by their next attempt, dead ones by their end, all others by receipt of the email, newest first.

    Raises InvalidCursor if the cursor is not one of this list.
    """
    ids, following = find_ids(service, wanted, limit, cursor)
    with service.journal.reading() as step:
        deliveries = [view for id_ in ids for view in _view_delivery(service, step, id_)]
    return DeliveryPage(deliveries=deliveries, more=following is not None, next=following)


def read_decision(service: Service, text: str) -> DecisionInFull | None:
    """By id, email id, Message-ID or webhook-id; the newest, if there are several."""
    catch_up(service.journal)
    with service.journal.reading() as step:
        entry = _read(service, step, find_by_key(step, text, service.privacy))
        if entry is None:
            return None
        original = _read(service, step, entry.stop.original if entry.stop else None)
        brief, stored = _view(service, step, entry), step.payload(entry.id)
        return DecisionInFull(
            **dict(brief),
            server=entry.about.server,
            machine=entry.machine,
            missing_files=[MissingFile(sha256=sha256, missing=why) for sha256, why in missing_files(step, entry.id)],
            names=[NameView(gate=name.gate, name=name.label, is_own=name.is_own) for name in entry.names],
            gates=list(_gate_reports(entry)),
            original_email=_view(service, step, original) if original else None,
            payload_bytes=max((delivery.payload_bytes for delivery in brief.deliveries), default=0),
            payload_machine=next((view.payload_machine for view in brief.deliveries if view.payload_machine), None),
            payload=unpack(stored) if stored else None,
        )


def read_delivery(service: Service, id_: str) -> DeliveryInFull | None:
    with service.journal.reading() as step:
        found = _view_delivery(service, step, id_)
    payload = read_payload(service, id_.partition(":")[0])
    return DeliveryInFull(**dict(found[0]), payload=payload) if found else None


def read_payload(service: Service, entry_id: str) -> Payload | None:
    with service.journal.reading() as step:
        stored = step.payload(entry_id)
    return unpack(stored) if stored else None


def _read(service: Service, step: Step, entry_id: str | None) -> Entry | None:
    """As operators see it: no more of subject and sender than may be shown, and each delivery with why it waits now."""
    entry = step.read(entry_id) if entry_id else None
    if entry is None:
        return None
    deliveries = (_explained(service, step, delivery) for _, delivery in sorted(entry.by_destination.items()))
    return replace(service.privacy.shown(entry), deliveries=tuple(deliveries))


def _explained(service: Service, step: Step, delivery: Delivery) -> Delivery:
    """With why it waits now, or why it ended as it did. While nothing is sent to its destination, it has no next try;
    one whose time has come is tried now. A claim whose lease has ended was returned, or its process was killed."""
    name, status, reason, next_try_ms = delivery.destination, delivery.status, delivery.reason, None
    if status is DeliveryStatus.RETURNED or (status is DeliveryStatus.CLAIMED and not delivery.is_live(step.steady_ms)):
        error = delivery.attempts[-1].error if delivery.attempts else None
        status, reason = DeliveryStatus.RETURNED, error or "its request ended without a result"
    elif status is DeliveryStatus.WAITING and (blocker := service.guard.blocker(name)):
        given = service.guard.pause_of(name).reason if blocker is Blocker.PAUSED else ""
        reason = f"{name}: {blocker}{f' ({given})' if given else ''}"
    elif status is DeliveryStatus.WAITING:
        next_try_ms = max(delivery.next_try_ms or 0, step.now_ms)
    return replace(delivery, status=status, reason=reason, next_try_ms=next_try_ms)


def _view(service: Service, step: Step, entry: Entry) -> Decision:
    stop, about = entry.stop, entry.about
    deliveries = _view_deliveries(service, step, entry)
    status = read_status(step, entry.id)
    query = "SELECT coalesce(sum(count), 0), max(last_ms) FROM repeats WHERE entry = ?"
    repeats, last_repeat_ms = step.query(query, (entry.id,))[0]
    when = partial(shown_time_of_day, now_ms=step.now_ms, tz=service.settings.timezone)
    reason = explain(entry, _read(service, step, stop.original if stop else None), when)
    if repeats:
        times = "once" if repeats == 1 else f"{repeats} times"
        reason += f". It was received again {times}, last at {when(last_repeat_ms)}, and was not sent again"
    stored = {view.status for view in deliveries if view.storage != "none"}
    return Decision(
        **asdict(about),
        id=entry.id,
        email_id=about.item,
        status=status,
        outcome=OUTCOME_OF.get(status, EmailOutcome.SUPPRESSED),
        gate=stop.gate if stop else None,
        reason=reason,
        name=stop.name.label if stop else None,
        original=stop.original if stop else None,
        first_seen=stop.first_seen_ms if stop else None,
        repeats=repeats,
        last_repeat=last_repeat_ms,
        received_at=entry.created_ms,
        settled_at=entry.settled_ms,
        took_ms=None if entry.settled_ms is None else entry.settled_ms - entry.created_ms,
        store="local" if about.alone or service.coordinator.registry is None else "redis",
        released_at=entry.released_ms,
        releasable_until=entry.created_ms + service.settings.decision_ms if DeliveryStatus.SKIPPED in stored else None,
        deliveries=deliveries,
    )


def _gate_reports(entry: Entry) -> Iterator[GateReport]:
    for gate in SAME:
        if entry.stop and entry.stop.gate is gate:
            yield GateReport(gate=gate, said=f"stopped: {entry.stop.name.label} is taken")
            return
        labels = ", ".join(name.label for name in entry.names if name.gate is gate)
        yield GateReport(gate=gate, said=f"passed: {labels}" if labels else "not asked")


def _view_delivery(service: Service, step: Step, id_: str) -> list[DeliveryView]:
    """The one with this id, if it is still stored."""
    entry_id, _, destination = id_.partition(":")
    entry = _read(service, step, entry_id)
    views = _view_deliveries(service, step, entry) if entry else []
    return [view for view in views if view.destination == destination]


def _view_deliveries(service: Service, step: Step, entry: Entry) -> list[DeliveryView]:
    rows = step.query("SELECT size FROM payloads WHERE seq = (SELECT seq FROM entries WHERE id = ?)", (entry.id,))
    size = rows[0][0] if rows else 0
    views = []
    for delivery in entry.deliveries:
        config, status = service.config.destinations.get(delivery.destination), delivery.status
        is_kept = status is DeliveryStatus.DEAD or (
            status is DeliveryStatus.SKIPPED and service.settings.keep_suppressed and not entry.is_evicted
        )
        storage: Storage = "another_machine" if is_kept and entry.machine != step.machine else "none"
        if status is DeliveryStatus.WAITING and service.coordinator.registry:
            storage = "redis"
        elif size:
            storage = "journal"
        fields = {
            "id": f"{entry.id}:{delivery.destination}",
            "max_attempts": config.max_attempts if config else None,
            "next_try": delivery.next_try_ms,
            "delivered": delivery.ended_ms if status is DeliveryStatus.DELIVERED else None,
            "email_id": entry.about.item,
            "created": entry.created_ms,
            "age_s": max(0, step.now_ms - entry.created_ms) // 1000,
            "attempts": [AttemptView(at=attempt.at_ms, **asdict(attempt)) for attempt in delivery.attempts],
            "storage": storage,
            "payload_bytes": size,
            "payload_machine": entry.machine if storage == "another_machine" else None,
        }
        views.append(DeliveryView.model_validate({**asdict(entry.about), **asdict(delivery), **fields}))
    return views


# Explaining, in one sentence

WORDS = {
    DeliveryStatus.CLAIMED: "being delivered to",
    DeliveryStatus.RETURNED: "returned to its provider for",
    DeliveryStatus.WAITING: "waiting for",
    DeliveryStatus.DEAD: "dead letter at",
    DeliveryStatus.DELIVERED: "delivered to",
    DeliveryStatus.SKIPPED: "not sent to",
}


def explain(entry: Entry, original: Entry | None, when: When) -> str:
    """``original``: the email that it repeats, if that is still in the journal."""
    sentence = _outcome(entry, when)
    if entry.released_ms is not None:
        sentence = f"released at {when(entry.released_ms)}: {sentence}"
    elif entry.outcome == DeliveryStatus.SKIPPED:
        is_repeat = entry.stop is not None and entry.stop.gate is Gate.IDENTITY
        why = _met(entry.stop, original, when) if entry.stop else entry.deliveries[0].reason
        sentence = f"{'duplicate' if is_repeat else 'suppressed'}: {why}"
    return sentence[0].upper() + sentence[1:]


def _met(stop: Stop, original: Entry | None, when: When) -> str:
    """The name that it has in common with another email, and what happened to that one."""
    if stop.original is None:
        what = f"{stop.name.kind.replace('_', ' ')} {stop.name.value}"
        return f"its {what} is marked as done by an import, another program or an email that is unknown here"
    seen_ms = original.created_ms if original else stop.first_seen_ms
    other = f"the email of {when(seen_ms)}" if seen_ms is not None else f"email {stop.original}"
    if original and original.about.sender:
        other += f" from {original.about.sender}"
    value = f" {stop.name.value}" if stop.gate in (Gate.SUBJECT_GROUP, Gate.MEDIA) else ""
    happened = _outcome(original) if original else "which is no longer stored"
    return f"{SAME[stop.gate]}{value} as {other}, {happened}"


def _outcome(entry: Entry, when: When | None = None) -> str:
    """One part for each kind of result, without times if ``when`` is None."""
    if not any(delivery.destination for delivery in entry.deliveries):
        return "published by a script"
    parts: dict[tuple[str, str], list[str]] = {}
    for delivery in entry.deliveries:
        more = " when it was received again" if delivery.had_already else ""
        if delivery.status in (DeliveryStatus.WAITING, DeliveryStatus.DEAD):
            count = max(delivery.tries, len(delivery.attempts))  # probes do not count as tries
            more += f" after {count} attempt{'s' * (count > 1)}" if count else ""
        if when and delivery.status is DeliveryStatus.DELIVERED and delivery.ended_ms:
            more += f" at {when(delivery.ended_ms)}"
        if delivery.reason:
            more += f": {delivery.reason.removeprefix(f'{delivery.destination}: ')}"
        if when and delivery.next_try_ms:
            more += f"; next attempt at {when(delivery.next_try_ms)}"
        parts.setdefault((WORDS[delivery.status], more), []).append(delivery.destination)
    return "; ".join(f"{words} {' and '.join(names)}{more}" for (words, more), names in parts.items())


def shown_time_of_day(moment_ms: int, now_ms: int, tz: tzinfo) -> str:
    """With the date, unless it is today."""
    moment, now = (datetime.fromtimestamp(at_ms / 1000, tz) for at_ms in (moment_ms, now_ms))
    return moment.strftime("%H:%M" if moment.date() == now.date() else "%Y-%m-%d %H:%M")
