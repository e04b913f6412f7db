"""Sending again what operators choose: releasing emails that a gate stopped, and replaying deliveries."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field, StrictBool

from deduplication import again
from deduplication.again import Refusal
from deduplication.errors import StoreUnavailable
from deduplication.journal.entry import DeliveryStatus
from orchestrator.audit import audit
from orchestrator.operations.search import DecisionFilter, DeliveryFilter, Filter, find_ids

if TYPE_CHECKING:
    from orchestrator.build import Service

RELEASED, WOULD_RELEASE = "released", "would_release"
REPLAYED, WOULD_REPLAY = "replayed", "would_replay"


class Release(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    force: StrictBool = Field(default=False, description="Even if the same email was delivered under another id.")
    dry_run: StrictBool = Field(default=False, description="Only say what would happen.")


class Replay(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    force: StrictBool = Field(default=False, description="Include deliveries already received.")
    new_id: StrictBool = Field(default=False, description="With a new webhook-id: the receiver sees another event.")
    dry_run: StrictBool = Field(default=False, description="Only say what would happen.")


def release(service: Service, id_: str, how: Release, *, at_once: bool = False) -> str:
    """Sends what a gate stopped, once. ``at_once``: before returning, unless workers send. Returns RELEASED,
    WOULD_RELEASE or a Refusal."""
    refusal = again.release(service.coordinator, id_, force=how.force, dry_run=how.dry_run)
    if refusal or how.dry_run:
        return refusal or WOULD_RELEASE
    audit.warning("AUDIT release entry=%s force=%s", id_, how.force)
    if at_once:
        _deliver_now(service, id_)
    return RELEASED


def release_many(service: Service, wanted: DecisionFilter | Sequence[str], how: Release) -> Counter[str]:
    """The given ids, or all that match and have a skipped delivery. Returns how many had which result."""
    ids = find_ids(service, wanted, has=DeliveryStatus.SKIPPED)[0] if isinstance(wanted, Filter) else wanted
    return Counter(release(service, id_, how) for id_ in ids)


def replay(service: Service, id_: str, how: Replay, *, at_once: bool = False) -> str:
    """Makes a delivery due now. ``at_once``: sends it before returning, unless workers send. Returns REPLAYED,
    WOULD_REPLAY or a Refusal."""
    entry_id, _, destination = id_.partition(":")
    webhook_id = f"msg_{secrets.token_hex(16)}" if how.new_id else ""
    options = {"force": how.force, "dry_run": how.dry_run}
    refusal = again.replay(service.coordinator, entry_id, destination, webhook_id=webhook_id, **options)
    if refusal or how.dry_run:
        return refusal or WOULD_REPLAY
    audit.warning("AUDIT replay delivery=%s force=%s new_id=%s", id_, how.force, how.new_id)
    if at_once:
        _deliver_now(service, entry_id)
    return REPLAYED


def replay_email(service: Service, id_: str, how: Replay, *, at_once: bool = False) -> str:
    """All dead and waiting deliveries of an email. Returns REPLAYED if there was one, otherwise the reason."""
    with service.journal.reading() as step:
        entry = step.read(id_)
    if entry is None:
        return Refusal.UNKNOWN
    unfinished = (DeliveryStatus.WAITING, DeliveryStatus.DEAD)
    to_send = [delivery for delivery in entry.deliveries if delivery.status in unfinished or how.force]
    results = [replay(service, f"{id_}:{delivery.destination}", how, at_once=at_once) for delivery in to_send]
    return REPLAYED if REPLAYED in results else next(iter(results), Refusal.ALREADY_DELIVERED)


def replay_many(service: Service, wanted: DeliveryFilter | Sequence[str], how: Replay) -> Counter[str]:
    """The given ids, or all that match. Returns how many had which result."""
    ids = find_ids(service, wanted)[0] if isinstance(wanted, Filter) else wanted
    return Counter(replay(service, id_, how) for id_ in ids)


def _deliver_now(service: Service, entry_id: str) -> None:
    """Sends it in this thread, so that an operator sees the result; with a queue, workers send it."""
    if service.queue is not None:
        return
    with service.journal.reading() as step:
        entry = step.read(entry_id)
    for delivery in entry.deliveries if entry else ():
        if delivery.status is DeliveryStatus.WAITING:
            with suppress(StoreUnavailable):
                service.retrier.deliver_due(delivery.destination)
