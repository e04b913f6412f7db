"""What happened to each email and why, and to each of its deliveries."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, tzinfo
from enum import StrEnum
from functools import partial
from typing import Annotated, Any, cast

from msgspec.structs import asdict, replace
from pydantic import BaseModel, Field, PlainSerializer, WithJsonSchema

from deduplication.journal.entry import Delivery, DeliveryStatus, Entry, Stop
from deduplication.journal.sqlite import Step
from deduplication.names import Gate, Kind
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
    current_status,
    find_by_key,
    find_ids,
)
from orchestrator.pipeline import Status

GATES = {Gate.IDENTITY: "email id", Gate.SUBJECT_GROUP: "subject group", Gate.MEDIA: "file", Gate.CONTENT: "text"}
"""In the order in which they are evaluated, and what an email shares with another one that is stopped there."""

Time = Annotated[
    int,
    PlainSerializer(
        lambda ms: datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds"),
        return_type=str,
        when_used="json",
    ),
    WithJsonSchema({"type": "string", "format": "date-time"}),
]
"""Milliseconds since 1970; in JSON, ISO 8601."""
When = Callable[[int], str]


class Storage(StrEnum):
    """Where the payload is. ANOTHER_MACHINE: on the machine that received the email, if it was kept at all."""

    JOURNAL = "journal"
    REDIS = "redis"
    ANOTHER_MACHINE = "another_machine"
    NONE = "none"


class AttemptView(BaseModel):
    at: Time
    latency_ms: int
    status_code: int | None
    error: str | None


class DeliveryBrief(BaseModel):
    id: str = Field(description="The email's id, a colon and the destination.")
    destination: str
    status: DeliveryStatus
    reason: str | None = Field(description="Why it waits now, or why it ended as it did.")
    tries: int = Field(
        description="Attempts that count, since it was last replayed or released. Probes, and other attempts before "
        "the next try, do not count."
    )
    max_attempts: int | None
    next_try: Time | None
    delivered: Time | None
    receiver_id: str | None


class DeliveryView(DeliveryBrief):
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
    deliveries: Sequence[DeliveryBrief]


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
    missing_files: list[MissingFile] = Field(
        description="Attachments and raw emails that have no link, on the machine that received it."
    )
    names: list[NameView]
    gates: list[GateReport] = Field(description="What each gate decided, up to the one that stopped it.")
    original_email: Decision | None
    deliveries: Sequence[DeliveryView]
    payload_bytes: int
    payload_machine: str | None = Field(description="The machine that has the payload, if it is another one.")
    payload: Mapping[str, Any] | None = Field(description="What is sent, as long as it is stored on this machine.")


# Reading


def list_decisions(service: Service, wanted: DecisionFilter, limit: int, cursor: str | None = None) -> DecisionPage:
    """Newest first. Raises InvalidCursor if the cursor is not one of this list."""
    ids, following = find_ids(service, wanted, limit, cursor)
    with service.journal.reading() as step:
        entries = [entry for id_ in ids if (entry := _read(service, step, id_))]
        decisions = [_view(service, step, entry) for entry in entries]
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
        brief = _view(service, step, entry)
        original_email = _view(service, step, original) if original else None
        missing = missing_files(step, entry.id)
    deliveries = cast(Sequence[DeliveryView], brief.deliveries)
    return DecisionInFull(
        **dict(brief),
        server=entry.about.server,
        machine=entry.machine,
        missing_files=[MissingFile(sha256=sha256, missing=why) for sha256, why in missing],
        names=[NameView(gate=name.gate, name=name.label, is_own=name.is_own) for name in entry.names],
        gates=list(_gate_reports(entry)),
        original_email=original_email,
        payload_bytes=max((delivery.payload_bytes for delivery in deliveries), default=0),
        payload_machine=next((each.payload_machine for each in deliveries if each.payload_machine), None),
        payload=read_payload(service, entry.id),
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
    deliveries = sorted(entry.deliveries, key=lambda delivery: delivery.destination)
    return replace(
        service.privacy.shown(entry), deliveries=tuple(_explained(service, step, delivery) for delivery in deliveries)
    )


def _view(service: Service, step: Step, entry: Entry) -> Decision:
    stop, about, settings = entry.stop, entry.about, service.settings
    deliveries = _view_deliveries(service, step, entry)
    status = current_status(entry, step.steady_ms)
    query = "SELECT coalesce(sum(count), 0), max(last_ms) FROM repeats WHERE entry = ?"
    repeats, last_repeat_ms = step.query(query, (entry.id,))[0]
    when = partial(shown_time_of_day, now_ms=step.now_ms, tz=settings.timezone)
    reason = explain(entry, status, _read(service, step, stop.original if stop else None), when)
    for each in entry.deliveries:
        if each.had_already:
            had_it = _listed(each.had_already)
            reason += f". Sent to {each.destination} when it was received again; {had_it} had it already"
    if repeats:
        times = "once" if repeats == 1 else f"{repeats} times"
        reason += f". It was received again {times}, last at {when(last_repeat_ms)}, and was not sent again"
    stored = {view.status for view in deliveries if view.storage is not Storage.NONE}
    kept_ms = settings.dead_letter_ms if DeliveryStatus.DEAD in stored else settings.decision_ms
    was_sent_again = any(delivery.generation for delivery in entry.deliveries)
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
        took_ms=None if entry.settled_ms is None or was_sent_again else entry.settled_ms - entry.created_ms,
        store="local" if about.alone or service.coordinator.registry is None else "redis",
        released_at=entry.released_ms,
        releasable_until=entry.created_ms + kept_ms if DeliveryStatus.SKIPPED in stored else None,
        deliveries=deliveries,
    )


def _gate_reports(entry: Entry) -> Iterator[GateReport]:
    for gate in GATES:
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
        config = service.config.destinations.get(delivery.destination)
        storage = _storage(service, entry, delivery, size)
        fields = {
            "id": f"{entry.id}:{delivery.destination}",
            "max_attempts": config.max_attempts if config else None,
            "next_try": delivery.next_try_ms,
            "delivered": delivery.ended_ms if delivery.status is DeliveryStatus.DELIVERED else None,
            "email_id": entry.about.item,
            "created": entry.created_ms,
            "age_s": max(0, step.now_ms - entry.created_ms) // 1000,
            "attempts": [AttemptView(at=attempt.at_ms, **asdict(attempt)) for attempt in delivery.attempts],
            "storage": storage,
            "payload_bytes": size,
            "payload_machine": entry.machine if storage is Storage.ANOTHER_MACHINE else None,
        }
        views.append(DeliveryView.model_validate({**asdict(entry.about), **asdict(delivery), **fields}))
    return views


def _storage(service: Service, entry: Entry, delivery: Delivery, size: int) -> Storage:
    if delivery.status is DeliveryStatus.WAITING and service.coordinator.registry:
        return Storage.REDIS
    if size:
        return Storage.JOURNAL
    keeps_suppressed = service.settings.keep_suppressed and not entry.is_evicted
    keeps = delivery.status is DeliveryStatus.DEAD or (delivery.status is DeliveryStatus.SKIPPED and keeps_suppressed)
    return Storage.ANOTHER_MACHINE if keeps and entry.machine != service.journal.machine else Storage.NONE


def _explained(service: Service, step: Step, delivery: Delivery) -> Delivery:
    """With why it waits now, or why it ended as it did. While nothing is sent to its destination, it has no next try;
    one whose time has come is tried now."""
    reason, next_try_ms = delivery.reason, None
    if delivery.is_live(step.steady_ms):
        reason = "being delivered"
    elif delivery.status in (DeliveryStatus.CLAIMED, DeliveryStatus.RETURNED):
        reason = "returned to the provider for retry"
    elif delivery.status is DeliveryStatus.WAITING:
        name = delivery.destination
        if blocker := service.guard.blocker(name):
            given = service.guard.pause_of(name).reason if blocker is Blocker.PAUSED else ""  # by who paused it
            reason = f"{name}: {blocker}{f' ({given})' if given else ''}"
        else:
            next_try_ms = max(delivery.next_try_ms or 0, step.now_ms)
    return replace(delivery, reason=reason, next_try_ms=next_try_ms)


# Explaining, in one sentence


def explain(entry: Entry, status: Status, original: Entry | None, when: When) -> str:
    """``original``: the email that it repeats, if that is still in the journal."""
    if status is Status.RETRY_LATER:
        return _returned(entry, when)
    if status is Status.SKIPPED_OLD:
        return "Suppressed: it is older than the service, and its route accepts only new emails"
    if status is Status.SKIPPED_ROUTE:
        return f"Suppressed: {entry.deliveries[0].reason}"
    stopped = _met(entry.stop, original, when) if entry.stop else ""
    if stopped and entry.outcome == DeliveryStatus.SKIPPED:
        return f"{'Duplicate' if status is Status.ALREADY_PROCESSED else 'Suppressed'}: {stopped}"
    outcome = _outcome(entry, when)
    if entry.released_ms is None:
        return outcome[0].upper() + outcome[1:]
    return f"Released at {when(entry.released_ms)}, after it was stopped{f' ({stopped})' * bool(stopped)}: {outcome}"


def _returned(entry: Entry, when: When) -> str:
    delivered = _names(entry, DeliveryStatus.DELIVERED)
    but = f" (already delivered to {delivered})" if delivered else ""
    if entry.outcome == DeliveryStatus.CLAIMED:
        return (
            f"Not finished{but}: its request at {when(entry.created_ms)} ended without a result. It continues when "
            "the provider sends it again"
        )
    last = [delivery.attempts[-1] for delivery in entry.deliveries if delivery.attempts]
    error = next((f": {attempt.error}" for attempt in last if attempt.error), "")
    return f"Returned to its provider, which sends it again{but}{error}"


def _met(stop: Stop, original: Entry | None, when: When) -> str:
    """The name that it has in common with another email, and what happened to that one."""
    value = stop.name.value[:12] if stop.name.kind is Kind.CONTENT else stop.name.value
    what = f"{GATES.get(stop.gate, stop.gate)} {value}"
    if stop.original is None:
        return f"its {what} is marked as done by an import, another program or an email that this machine never knew"
    seen_ms = original.created_ms if original else stop.first_seen_ms
    other = f"the email of {when(seen_ms)}" if seen_ms is not None else f"email {stop.original}"
    same = "same first words" if stop.gate is Gate.CONTENT else f"same {what}"
    if stop.gate is Gate.IDENTITY:  # an exact repeat has no entry of its own
        same = "the same, but for a tag in front of its subject,"
    if original is None:
        return f"{same} as {other}, which is no longer stored"
    sender = f" from {original.about.sender}" if original.about.sender else ""
    return f"{same} as {other}{sender}, {_outcome(original)}"


def _outcome(entry: Entry, when: When | None = None) -> str:
    """One part for each kind of result, without times if ``when`` is None. Reasons begin with the destination, which
    the sentence has named already."""
    if not any(delivery.destination for delivery in entry.deliveries):
        return "published by a script"
    parts = []
    if received := [delivery for delivery in entry.deliveries if delivery.status is DeliveryStatus.DELIVERED]:
        last_ms = max(delivery.ended_ms or 0 for delivery in received)
        at = f" at {when(last_ms)}" if when and last_ms else ""
        parts.append(f"delivered to {_names(entry, DeliveryStatus.DELIVERED)}{at}")
    if claimed := _names(entry, DeliveryStatus.CLAIMED):
        parts.append(f"being delivered to {claimed}" + (f", since {when(entry.created_ms)}" if when else ""))
    words = {DeliveryStatus.WAITING: "waiting for {}", DeliveryStatus.DEAD: "dead letter at {}"}
    for delivery in entry.deliveries:
        if delivery.status in words:
            reason = (delivery.reason or "").removeprefix(f"{delivery.destination}: ")
            count = max(delivery.tries, len(delivery.attempts))  # probes do not count as tries
            tries = f" after {count} attempt{'s' * (count > 1)}" if count else ""
            next_try = f"; next attempt at {when(delivery.next_try_ms)}" if when and delivery.next_try_ms else ""
            sent = words[delivery.status].format(delivery.destination)
            parts.append(sent + tries + (f": {reason}" if reason else "") + next_try)
    if returned := _names(entry, DeliveryStatus.RETURNED):
        parts.append(f"returned to its provider for {returned}")
    if skipped := _names(entry, DeliveryStatus.SKIPPED):
        parts.append(f"not sent to {skipped}, which received the same text before")
    return "; ".join(parts)


def _names(entry: Entry, status: DeliveryStatus) -> str:
    return _listed([delivery.destination for delivery in entry.deliveries if delivery.status is status])


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def shown_time_of_day(moment_ms: int, now_ms: int, tz: tzinfo) -> str:
    """With the date, unless it is today."""
    moment, now = (datetime.fromtimestamp(at_ms / 1000, tz) for at_ms in (moment_ms, now_ms))
    return moment.strftime("%H:%M" if moment.date() == now.date() else "%Y-%m-%d %H:%M")
