"""Deliveries: what was sent where, what waits and why, what is dead, and sending it again."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, PlainSerializer, StrictBool, WithJsonSchema

from deduplication import again
from deduplication.again import Refusal
from deduplication.errors import StoreUnavailable
from deduplication.journal.entry import Attempt, Delivery, DeliveryStatus, Entry
from deduplication.journal.sqlite import Step
from orchestrator.audit import audit
from orchestrator.delivery.sender import Hold
from orchestrator.delivery.webhook import Payload, unpack
from orchestrator.operations.cursors import InvalidCursor, read_cursor, read_number, write_cursor
from orchestrator.operations.search import PLACE, DeliveryFilter, Query, catch_up, select

if TYPE_CHECKING:
    from orchestrator.build import Service

REPLAYED, WOULD_REPLAY = "replayed", "would_replay"
PAGE = 500  # for actions on all that match
BEING_DELIVERED = "being delivered"
RETURNED = "returned to the provider for retry"


def shown_time(moment_ms: int) -> str:
    return datetime.fromtimestamp(moment_ms / 1000, UTC).isoformat(timespec="milliseconds")


Time = Annotated[
    int,
    PlainSerializer(shown_time, return_type=str, when_used="json"),
    WithJsonSchema({"type": "string", "format": "date-time"}),
]
"""Milliseconds since 1970; in JSON, ISO 8601."""


class Storage(StrEnum):
    """Where the payload is. ANOTHER_MACHINE: that machine has it, if it was kept at all."""

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
    tries: int
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


def delivery_id(entry: str, destination: str) -> str:
    return f"{entry}:{destination}"


# Reading


def list_deliveries(service: Service, wanted: DeliveryFilter, limit: int, cursor: str | None = None) -> DeliveryPage:
    """Waiting ones by their next try, dead ones by their end, all others by receipt of the email, newest first.

    Raises InvalidCursor if the cursor is not one of this list.
    """
    rows, following = find_deliveries(service, wanted, limit, cursor)
    with service.journal.reading() as step:
        views = [view_delivery(service, step, *row) for row in rows]
    return DeliveryPage(deliveries=views, more=following is not None, next=following)


def find_deliveries(
    service: Service, wanted: DeliveryFilter, limit: int, cursor: str | None = None
) -> tuple[list[tuple[Entry, Delivery]], str | None]:
    if wanted.q or wanted.sender:
        catch_up(service.journal)
    with service.journal.reading() as step:
        query = select(step, wanted, service.privacy)
        kind, at, order = _join_deliveries(query, wanted)
        if cursor:
            _go_on(query, kind, at, cursor)
        columns = f"{at}, e.seq, d.destination, e.id"
        found = step.query(f"{query.sql(columns, order)} LIMIT ?", (*query.values, limit + 1))
        page = found[:limit]
        entries = {entry_id: step.read(entry_id) for *_, entry_id in page}
    shown = [(entries[entry_id], destination) for _, _, destination, entry_id in page]
    rows = [
        (service.privacy.shown(entry), delivery)
        for entry, destination in shown
        if entry and (delivery := entry.delivery_to(destination))
    ]
    return rows, write_cursor(kind, *(each or 0 for each in page[-1][:3])) if len(found) > limit else None


def count_deliveries(service: Service, wanted: DeliveryFilter, most: int) -> int:
    """At most ``most``."""
    with service.journal.reading() as step:
        query = select(step, wanted, service.privacy)
        _join_deliveries(query, wanted)
        found = step.query(f"SELECT count(*) FROM ({query.sql('1')} LIMIT ?)", (*query.values, most))  # noqa: S608
    return int(found[0][0])


def _join_deliveries(query: Query, wanted: DeliveryFilter) -> tuple[str, str, str]:
    """Makes it a query on deliveries ``d``: which list it is, the SQL of a delivery's place in it, and its order."""
    if wanted.destination:
        query.require("d.destination = ?", wanted.destination)
    if wanted.status:
        query.require(f"d.status = '{wanted.status}'")  # no parameter, or the partial indexes would not be used
    if query.place == PLACE and wanted.status is DeliveryStatus.WAITING:
        query.source = "deliveries d CROSS JOIN entries e ON e.seq = d.seq"
        return "waiting", "d.next_try_ms", "d.next_try_ms, d.seq, d.destination"
    if query.place == PLACE and wanted.status is DeliveryStatus.DEAD:
        query.source = "deliveries d CROSS JOIN entries e ON e.seq = d.seq"
        return "dead", "d.ended_ms", "d.ended_ms DESC, d.seq DESC, d.destination DESC"
    query.source += " CROSS JOIN deliveries d ON d.seq = e.seq"
    # A search would sort all that it finds; the deliveries of one email come in the order of their key anyway.
    order = f"{query.order}, d.destination" if query.place == PLACE else query.order
    return f"all{wanted.status or ''}", query.place, order


def _go_on(query: Query, kind: str, at: str, cursor: str) -> None:
    given, at_text, seq_text, destination = read_cursor(cursor, 4)
    if given != kind:
        raise InvalidCursor("a cursor of another list")
    place, seq = read_number(at_text), read_number(seq_text)
    if kind in ("waiting", "dead"):
        compare = ">" if kind == "waiting" else "<"
        query.require(f"({at}, d.seq, d.destination) {compare} (?, ?, ?)", place, seq, destination)
    else:
        query.after(place, "<=")
        query.require(f"({at} < ? OR d.destination > ?)", place, destination)


def read_delivery(service: Service, id_: str) -> DeliveryInFull | None:
    entry_id, _, destination = id_.partition(":")
    with service.journal.reading() as step:
        entry = step.read(entry_id)
        delivery = entry.delivery_to(destination) if entry else None
        if entry is None or delivery is None:
            return None
        view = view_delivery(service, step, service.privacy.shown(entry), delivery)
    return DeliveryInFull(**dict(view), payload=read_payload(service, entry_id))


def read_payload(service: Service, entry_id: str) -> Payload | None:
    with service.journal.reading() as step:
        stored = step.payload(entry_id)
    return unpack(stored) if stored else None


def view_delivery(service: Service, step: Step, entry: Entry, delivery: Delivery) -> DeliveryView:
    config = service.config.destinations.get(delivery.destination)
    (size,) = step.query(
        "SELECT coalesce(sum(length(p.content)), 0) FROM payloads p JOIN entries e ON e.seq = p.seq WHERE e.id = ?",
        (entry.id,),
    )[0]
    storage = _storage(service, entry, delivery, size)
    is_waiting, is_delivered = (delivery.status is each for each in (DeliveryStatus.WAITING, DeliveryStatus.DELIVERED))
    return DeliveryView(
        id=delivery_id(entry.id, delivery.destination),
        email_id=entry.about.item,
        provider=entry.about.provider,
        sender=entry.about.sender,
        subject=entry.about.subject,
        destination=delivery.destination,
        status=delivery.status,
        webhook_id=delivery.webhook_id,
        created=entry.created_ms,
        age_s=max(0, step.now_ms - entry.created_ms) // 1000,
        delivered=delivery.ended_ms if is_delivered else None,
        next_try=delivery.next_try_ms if is_waiting else None,
        tries=delivery.tries,
        max_attempts=config.max_attempts if config else None,
        attempts=[_view_attempt(each) for each in delivery.attempts],
        receiver_id=delivery.receiver_id,
        reason=_reason(service, delivery, step.steady_ms),
        storage=storage,
        payload_bytes=size,
        payload_machine=entry.machine if storage is Storage.ANOTHER_MACHINE else None,
    )


def _view_attempt(attempt: Attempt) -> AttemptView:
    return AttemptView(
        at=attempt.at_ms, latency_ms=attempt.latency_ms, status_code=attempt.status_code, error=attempt.error
    )


def _storage(service: Service, entry: Entry, delivery: Delivery, size: int) -> Storage:
    if delivery.status is DeliveryStatus.WAITING and service.coordinator.registry:
        return Storage.REDIS
    if size:
        return Storage.JOURNAL
    keeps = delivery.status in (DeliveryStatus.SKIPPED, DeliveryStatus.DEAD)
    return Storage.ANOTHER_MACHINE if keeps and entry.machine != service.journal.machine else Storage.NONE


def _reason(service: Service, delivery: Delivery, steady_ms: int) -> str | None:
    if delivery.status is DeliveryStatus.CLAIMED and delivery.lease_until_ms > steady_ms:
        return BEING_DELIVERED
    if delivery.status in (DeliveryStatus.CLAIMED, DeliveryStatus.RETURNED):
        return RETURNED
    if delivery.status is DeliveryStatus.WAITING and (hold := why_held_back(service, delivery.destination)):
        return f"{delivery.destination}: {hold}"
    return delivery.reason


def why_held_back(service: Service, destination: str) -> str | None:
    """Why nothing stored is sent there now, with the reason that a person gave; None if it works."""
    hold = service.sender.why_held_back(destination)
    reason = service.states.of(destination).reason if hold is Hold.PAUSED else ""
    return f"{hold} ({reason})" if reason else hold


# Replaying


class Replay(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    force: StrictBool = Field(default=False, description="Include deliveries already received.")
    new_id: StrictBool = Field(default=False, description="With a new webhook-id: the receiver sees another event.")
    dry_run: StrictBool = Field(default=False, description="Only say what would happen.")


def replay(service: Service, id_: str, how: Replay, *, at_once: bool = False) -> str:
    """Makes a delivery due now. ``at_once``: sends it before returning, unless workers do that. Returns REPLAYED,
    WOULD_REPLAY or a Refusal."""
    entry, _, destination = id_.partition(":")
    webhook_id = f"msg_{secrets.token_hex(16)}" if how.new_id else ""
    refusal = again.replay(
        service.coordinator, entry, destination, force=how.force, webhook_id=webhook_id, dry_run=how.dry_run
    )
    if refusal:
        return refusal
    if how.dry_run:
        return WOULD_REPLAY
    audit.warning("AUDIT replay delivery=%s force=%s new_id=%s", id_, how.force, how.new_id)
    if at_once:
        deliver_now(service, destination)
    return REPLAYED


def replay_email(service: Service, entry_id: str, how: Replay, *, at_once: bool = False) -> str:
    """All deliveries of an email that are dead or waiting. REPLAYED if there was one, otherwise why not."""
    with service.journal.reading() as step:
        entry = step.read(entry_id)
    if entry is None:
        return Refusal.UNKNOWN
    unfinished = (DeliveryStatus.WAITING, DeliveryStatus.DEAD)
    left = [each for each in entry.deliveries if each.status in unfinished or how.force]
    answers = [replay(service, delivery_id(entry_id, each.destination), how, at_once=at_once) for each in left]
    return max(answers, key=lambda answer: answer == REPLAYED, default=Refusal.ALREADY_DELIVERED)


def replay_matching(service: Service, wanted: DeliveryFilter, how: Replay) -> Counter[str]:
    """How many deliveries ended how. All are found first: replaying one changes its place in the list."""
    ids: list[str] = []
    cursor: str | None = None
    while not ids or cursor:
        rows, cursor = find_deliveries(service, wanted, PAGE, cursor)
        ids += [delivery_id(entry.id, delivery.destination) for entry, delivery in rows]
        if not rows:
            break
    return Counter(replay(service, id_, how) for id_ in ids)


def deliver_now(service: Service, destination: str) -> None:
    """Sends what is due there in this thread, so that an operator sees the result; with a queue, workers do it."""
    if service.queue is None:
        with suppress(StoreUnavailable):
            service.retrier.deliver_due(destination)
