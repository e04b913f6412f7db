"""Decisions: what happened to each email and why, and releasing what a gate stopped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, StrictBool

from deduplication import again
from deduplication.journal.entry import DeliveryStatus, Entry
from deduplication.journal.sqlite import Step
from deduplication.names import Gate
from orchestrator.audit import audit
from orchestrator.operations.cursors import read_cursor, read_number, write_cursor
from orchestrator.operations.deliveries import (
    PAGE,
    DeliveryBrief,
    DeliveryView,
    Storage,
    Time,
    deliver_now,
    read_payload,
    view_delivery,
)
from orchestrator.operations.explain import explain, said_at
from orchestrator.operations.search import DecisionFilter, catch_up, find_by_id, select, status_of
from orchestrator.pipeline import Status

if TYPE_CHECKING:
    from orchestrator.build import Service

RELEASED, WOULD_RELEASE = "released", "would_release"
GATES = (Gate.IDENTITY, Gate.SUBJECT_GROUP, Gate.MEDIA, Gate.CONTENT)  # in the order in which they are asked


class _Decision(BaseModel):
    id: str
    email_id: str
    status: Status = Field(description="What its provider was told, brought up to date.")
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
    subject: str
    received_at: Time
    settled_at: Time | None
    took_ms: int | None
    store: str = Field(description="`redis`, or `local`: decided by the journal of one machine.")
    released_at: Time | None
    releasable_until: Time | None


class Decision(_Decision):
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


class DecisionInFull(_Decision):
    server: str
    machine: str
    names: list[NameView]
    gates: list[GateReport] = Field(description="What each gate decided, up to the one that stopped it.")
    original_email: Decision | None
    deliveries: list[DeliveryView]
    payload_bytes: int
    payload_machine: str | None = Field(description="The machine that has the payload, if it is another one.")
    payload: Mapping[str, Any] | None = Field(description="What is sent, as long as it is stored on this machine.")


# Reading


def list_decisions(service: Service, wanted: DecisionFilter, limit: int, cursor: str | None = None) -> DecisionPage:
    """Newest first. Raises InvalidCursor if the cursor is not one of this list."""
    entries, following = find_entries(service, wanted, limit, cursor)
    with service.journal.reading() as step:
        decisions = [_view(service, step, entry) for entry in entries]
    return DecisionPage(decisions=decisions, more=following is not None, next=following)


def find_entries(
    service: Service, wanted: DecisionFilter, limit: int, cursor: str | None = None, has: DeliveryStatus | None = None
) -> tuple[list[Entry], str | None]:
    """A page, and the cursor of the next one. ``has``: only emails with such a delivery."""
    if wanted.q or wanted.sender:
        catch_up(service.journal)
    with service.journal.reading() as step:
        query = select(step, wanted, service.privacy, has)
        if cursor:
            query.after(read_number(read_cursor(cursor, 1)[0]))
        rows = step.query(f"{query.sql(f'{query.place}, e.seq')} LIMIT ?", (*query.values, limit + 1))
        entries = _read(service, step, [seq for _, seq in rows[:limit]])
    return entries, write_cursor(rows[limit - 1][0]) if len(rows) > limit else None


def count_decisions(service: Service, wanted: DecisionFilter, most: int, has: DeliveryStatus | None = None) -> int:
    """At most ``most``."""
    with service.journal.reading() as step:
        query = select(step, wanted, service.privacy, has)
        found = step.query(f"SELECT count(*) FROM ({query.sql('1')} LIMIT ?)", (*query.values, most))  # noqa: S608
    return int(found[0][0])


def _read(service: Service, step: Step, seqs: Sequence[int]) -> list[Entry]:
    """In this order, with no more of subject and sender than may be shown."""
    found = dict(step.read_rows(f"seq IN ({','.join(map(str, seqs))})", ()))
    return [service.privacy.shown(found[seq]) for seq in seqs if seq in found]


def read_decision(service: Service, text: str) -> DecisionInFull | None:
    """By id, email id, Message-ID or webhook-id; the newest, if there are several."""
    catch_up(service.journal)
    with service.journal.reading() as step:
        entries = _read(service, step, find_by_id(step, text)[:1])
        if not entries:
            return None
        entry = entries[0]
        brief = _view(service, step, entry)
        deliveries = _view_deliveries(service, step, entry)
        original = _original(service, step, entry)
        original_email = _view(service, step, original) if original else None
    shown = {name: value for name, value in brief if name != "deliveries"}
    elsewhere = any(each.storage is Storage.ANOTHER_MACHINE for each in deliveries)
    return DecisionInFull(
        **shown,
        server=entry.about.server,
        machine=entry.machine,
        names=[NameView(gate=name.gate, name=name.label, is_own=name.is_own) for name in entry.names],
        gates=_gate_reports(entry),
        original_email=original_email,
        deliveries=deliveries,
        payload_bytes=max((each.payload_bytes for each in deliveries), default=0),
        payload_machine=entry.machine if elsewhere else None,
        payload=read_payload(service, entry.id),
    )


def _original(service: Service, step: Step, entry: Entry) -> Entry | None:
    found = step.read(entry.stop.original) if entry.stop and entry.stop.original else None
    return service.privacy.shown(found) if found else None


def _view(service: Service, step: Step, entry: Entry) -> Decision:
    stop, about = entry.stop, entry.about
    deliveries = _view_deliveries(service, step, entry)
    status = status_of(entry, step.steady_ms)
    query = "SELECT coalesce(sum(count), 0), max(last_ms) FROM repeats WHERE entry = ?"
    repeats, last_repeat_ms = step.query(query, (entry.id,))[0]
    when = partial(said_at, now_ms=step.now_ms, tz=service.settings.tz)
    reason = explain(entry, status, _original(service, step, entry), deliveries, when)
    if repeats:
        times = "once" if repeats == 1 else f"{repeats} times"
        reason += f". It was received again {times}, last at {when(last_repeat_ms)}, and was not sent again"
    is_first = not any(each.generation for each in entry.deliveries)
    took_ms = entry.settled_ms - entry.created_ms if entry.settled_ms is not None and is_first else None
    is_local = about.alone or service.coordinator.registry is None
    return Decision(
        id=entry.id,
        email_id=about.item,
        status=status,
        gate=stop.gate if stop else None,
        reason=reason,
        name=stop.name.label if stop else None,
        original=stop.original if stop else None,
        first_seen=stop.first_seen_ms if stop else None,
        repeats=repeats,
        last_repeat=last_repeat_ms,
        provider=about.provider,
        route=about.route,
        sender=about.sender,
        subject=about.subject,
        received_at=entry.created_ms,
        settled_at=entry.settled_ms,
        took_ms=took_ms,
        store="local" if is_local else "redis",
        released_at=entry.released_ms,
        releasable_until=_releasable_until_ms(service, entry, deliveries),
        deliveries=deliveries,
    )


def _view_deliveries(service: Service, step: Step, entry: Entry) -> list[DeliveryView]:
    deliveries = sorted(entry.deliveries, key=lambda each: each.destination)
    return [view_delivery(service, step, entry, each) for each in deliveries]


def _releasable_until_ms(service: Service, entry: Entry, deliveries: Sequence[DeliveryView]) -> int | None:
    """None if nothing of it was skipped, or its payload is not stored."""
    skipped = [each for each in deliveries if each.status is DeliveryStatus.SKIPPED]
    if not any(each.storage is not Storage.NONE for each in skipped):
        return None
    is_dead = any(each.status is DeliveryStatus.DEAD for each in deliveries)
    return entry.created_ms + (service.settings.dead_letter_ms if is_dead else service.settings.decision_ms)


def _gate_reports(entry: Entry) -> list[GateReport]:
    reports = []
    for gate in GATES:
        labels = ", ".join(name.label for name in entry.names if name.gate is gate)
        if entry.stop and entry.stop.gate is gate:
            reports.append(GateReport(gate=gate, said=f"stopped: {entry.stop.name.label} is taken"))
            break
        reports.append(GateReport(gate=gate, said=f"passed: {labels}" if labels else "not asked"))
    return reports


# Releasing


class Release(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    force: StrictBool = Field(default=False, description="Even if the same email was delivered under another id.")
    dry_run: StrictBool = Field(default=False, description="Only say what would happen.")


def release(service: Service, id_: str, how: Release, by: str, *, at_once: bool = False) -> str:
    """Sends what a gate stopped, once. ``at_once``: before returning, unless workers do that. Returns RELEASED,
    WOULD_RELEASE or a Refusal."""
    refusal = again.release(service.coordinator, id_, force=how.force, dry_run=how.dry_run)
    if refusal:
        return refusal
    if how.dry_run:
        return WOULD_RELEASE
    audit.warning("AUDIT release entry=%s force=%s by=%s", id_, how.force, by)
    if at_once:
        with service.journal.reading() as step:
            entry = step.read(id_)
        for each in entry.deliveries if entry else ():
            if each.status is DeliveryStatus.WAITING:
                deliver_now(service, each.destination)
    return RELEASED


def release_matching(service: Service, wanted: DecisionFilter, how: Release, by: str) -> Counter[str]:
    """How many emails ended how; those of which nothing was stopped are not looked at."""
    answers: Counter[str] = Counter()
    cursor: str | None = None
    while True:
        entries, cursor = find_entries(service, wanted, PAGE, cursor, DeliveryStatus.SKIPPED)
        answers.update(release(service, entry.id, how, by) for entry in entries)
        if cursor is None:
            return answers
