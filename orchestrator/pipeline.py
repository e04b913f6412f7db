"""The way of an item, top to bottom: pick the route, claim, send, settle. docs/architecture.md has the rules."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, tzinfo
from enum import StrEnum

from deduplication.content import content_name
from deduplication.errors import NoRoom, StoreUnavailable
from deduplication.journal.coordinator import Claimed, Coordinator
from deduplication.journal.entry import Delivery, DeliveryStatus, Entry, Stop, changed, new_entry_id
from deduplication.journal.rules import Busy, Claim, Repeat, Take, Wanted
from deduplication.media import MediaMode, delivery_links, media_name
from deduplication.names import Gate, Name
from deduplication.realtime_guard import RealtimeGuard
from deduplication.subject_group import (
    GroupMode,
    SubjectPattern,
    generate_subject_group_id,
    group_name,
    month_of,
)
from orchestrator.delivery.queue import Queue, QueueUnavailable
from orchestrator.delivery.retrier import Retrier
from orchestrator.delivery.schedule import put_off
from orchestrator.delivery.sender import Budget, Sender
from orchestrator.delivery.webhook import Payload, pack, shown_timestamp, webhook_id
from orchestrator.item import Item
from orchestrator.metrics.meter import REALTIME, Meter
from orchestrator.privacy import Privacy
from orchestrator.routing import Route, Router

log = logging.getLogger(__name__)

MOST_MEDIA = 50  # a newsletter of links must not make one claim a long script
RETRY_AFTER_FAILURE_S = 10
MOST_WAIT_FOR_ANOTHER_S = 10


class Status(StrEnum):
    """What its sender is told of an item."""

    PROCESSED = "processed"
    QUEUED = "queued"
    DEAD_LETTERED = "dead_lettered"
    ALREADY_PROCESSED = "already_processed"
    ALREADY_PROCESSING = "already_processing"
    SKIPPED_SUBJECT_GROUP = "skipped_subject_group"
    SKIPPED_MEDIA = "skipped_media"
    SKIPPED_CONTENT = "skipped_content"
    SKIPPED_OLD = "skipped_old"
    RETRY_LATER = "retry_later"


SKIPPED_AT = {
    Gate.IDENTITY: Status.ALREADY_PROCESSED,
    Gate.SUBJECT_GROUP: Status.SKIPPED_SUBJECT_GROUP,
    Gate.MEDIA: Status.SKIPPED_MEDIA,
    Gate.CONTENT: Status.SKIPPED_CONTENT,
}


class ProofUsed(Exception):
    """The proof of the item's origin was accepted with another item, and proves no second one."""


@dataclass(frozen=True)
class Outcome:
    """What happened to one item and to each of its deliveries. ``id``: its entry in the journal, if it has one.

    ``error`` says why it must be sent again, ``warnings`` what of it could not be read.
    """

    status: Status
    item_id: str
    id: str = ""
    subject_group: str | None = None
    reason: Stop | None = None
    retry_after_s: int | None = None
    deliveries: tuple[Delivery, ...] = ()
    error: str = ""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Naming:
    """What the names of an item depend on besides the item."""

    tz: tzinfo
    patterns: Sequence[SubjectPattern]
    group_ttl_seconds: int
    media_hosts: Collection[str]
    identity_parameters: Mapping[str, Collection[str]]

    def shared_names(self, group: str | None, links: Sequence[str], now: datetime) -> tuple[Name, ...]:
        """Names that other items may have too: its subject group and its media."""
        names = [group_name(group, month_of(self.tz, now), self.group_ttl_seconds)] if group else []
        return tuple(dict.fromkeys([*names, *(media_name(link, self.identity_parameters) for link in links)]))

    def media_links(self, item: Item, route: Route) -> tuple[str, ...]:
        if route.media is MediaMode.OFF:
            return ()
        found = delivery_links(item.links, route.media, self.media_hosts, self.identity_parameters)
        return (*item.media, *found)[:MOST_MEDIA]


@dataclass(frozen=True)
class Case:
    """An item on its way: what it claims, and what will be sent. ``links``: those that count as its media."""

    item: Item
    group: str | None
    links: tuple[str, ...]
    claim: Claim
    payload: Payload
    now: datetime

    def outcome(self, status: Status, entry: Entry | None = None, **more: object) -> Outcome:
        known = {"id": entry.id, "deliveries": entry.deliveries, **more} if entry else more
        return Outcome(status, self.item.id, subject_group=self.group, **known)  # type: ignore[arg-type]

    def retry_later(self, error: str) -> Outcome:
        return self.outcome(Status.RETRY_LATER, error=error, retry_after_s=RETRY_AFTER_FAILURE_S)


@dataclass(frozen=True)
class PipelineOptions:
    """``lease_ms``: how long a crashed request blocks its email; ``budget_s``: how long it may wait for receivers.

    ``keeps_suppressed``, ``keeps_delivered``: whether these emails keep their payload, for release and forced replay.
    """

    server: str = ""
    lease_ms: int = 25_000
    budget_s: float = 8.0
    keeps_suppressed: bool = True
    keeps_delivered: bool = False


@dataclass(frozen=True)
class Pipeline:
    """``queue`` is None if requests deliver. ``resolve`` follows links to where they lead, if that is configured."""

    coordinator: Coordinator
    router: Router
    sender: Sender
    retrier: Retrier
    naming: Naming
    guard: RealtimeGuard
    privacy: Privacy
    meter: Meter
    options: PipelineOptions
    queue: Queue | None = None
    resolve: Callable[[Sequence[str]], Sequence[str]] | None = None
    now: Callable[[], datetime] = lambda: datetime.now(UTC)

    def receive(self, item: Item) -> Outcome:
        """Ends with the item delivered, stored, dead, recognised, skipped, or returned to its sender for a retry."""
        started = time.monotonic()
        outcome = self._decide(item)
        log_decision(item, outcome, time.monotonic() - started)
        self._count(item, outcome)
        return replace(outcome, warnings=item.warnings) if item.warnings else outcome

    def _count(self, item: Item, outcome: Outcome) -> None:
        gate = outcome.reason.gate if outcome.reason else None
        is_old = outcome.status is Status.SKIPPED_OLD
        self.meter.count_email(item.provider, outcome.status, REALTIME if is_old else gate)
        if outcome.subject_group and gate is None and outcome.status in (Status.PROCESSED, Status.QUEUED):
            self.meter.count_group()
        for delivery in outcome.deliveries:
            if delivery.status is DeliveryStatus.SKIPPED:
                self.meter.count_attempt(delivery.destination, delivery.status)

    def _decide(self, item: Item) -> Outcome:
        started = time.monotonic()
        route = self.router.pick(item)
        case = self.prepare(item, route)
        try:
            if route.realtime_only and self._is_old(case):
                return self._skip_old(case)
            if self.resolve and case.links:
                case = self._follow_links(case)
            found = self.coordinator.claim(case.claim)
        except StoreUnavailable as error:
            log.error("item %s: its sender is asked to retry: %s", item.id, error)
            return case.retry_later("the store is away")  # the error may name an internal address
        self.meter.time_decision(time.monotonic() - started)
        if isinstance(found, Claimed):
            return self._deliver(case, found)
        if isinstance(found, Repeat):
            return self._repeat(case, found)
        if isinstance(found, Busy):
            return self._busy(case, found)
        raise ProofUsed

    # Before the claim

    def prepare(self, item: Item, route: Route) -> Case:
        """Its names, its destinations, and what they will be sent."""
        proof, proof_key = item.proof, _digest(f"{item.key}|{item.fingerprint}")  # never scoped to a recipient (28)
        item, route = for_recipient(item, route)
        now = self.now()
        owner = self.coordinator.new_owner()
        group = generate_subject_group_id(item.subject, self.naming.patterns, route.group_mode)
        links = self.naming.media_links(item, route)
        key = item.key if item.is_recognisable else f"{item.key}|{owner}"  # unrecognisable: counts as a new one
        claim = Claim(
            entry=new_entry_id(),
            owner=owner,
            own=self.privacy.names(item.own_names) if item.is_named_by_words else item.own_names,
            shared=self.naming.shared_names(group, links, now),
            destinations=tuple(self._wanted(name, key, item, route) for name in route.destinations_for(item)),
            fingerprint=item.fingerprint,
            lease_ms=self.options.lease_ms,
            about=self.privacy.about(item.about(route.name, self.options.server)),
            proof=_digest(proof) if proof else "",
            key=proof_key,
        )
        received_at = shown_timestamp(now)
        head = {"type": item.event, "timestamp": received_at}
        payload = {**head, **item.payload, "received_at": received_at, "subject_group": group}
        return Case(item, group, links, claim, payload, now)

    def _wanted(self, destination: str, key: str, item: Item, route: Route) -> Wanted:
        own_ms = self.sender.policies[destination].content_window_ms
        window_ms = route.content_window_ms(own_ms, item)
        return Wanted(
            destination,
            webhook_id(destination, key),
            content_name(destination, item.text, window_ms) if window_ms else None,
            distinct_id=webhook_id(destination, key, item.fingerprint),
        )

    def _is_old(self, case: Case) -> bool:
        """An item that is being delivered never is: its retry after our restart is older than our start (28)."""
        if self.guard.is_new_message(case.item.moment, case.item.source):
            return False
        found = self.coordinator.look(case.claim)
        if isinstance(found, Take):
            return not any(entry.is_open for entry in found.candidates)
        return isinstance(found, Repeat) and not (found.of and found.of.is_open)

    def _skip_old(self, case: Case) -> Outcome:
        """It takes no names; an entry of its own, the same for every repeat, says so and can be released."""
        claim = case.claim
        skipped = tuple(
            Delivery(each.destination, each.webhook_id, DeliveryStatus.SKIPPED, reason="older than the service")
            for each in claim.destinations
        )
        entry = Entry(
            id="old" + _digest(f"{case.item.key}|{claim.fingerprint}")[:12],
            machine=self.coordinator.journal.machine,
            own=(),
            fingerprint=claim.fingerprint,
            created_ms=self.coordinator.journal.clock.now_ms(),
            about=claim.about,
            deliveries=skipped,
            answer=Status.SKIPPED_OLD,
        )
        self.coordinator.record(entry, pack(case.payload) if self.options.keeps_suppressed else None)
        return Outcome(Status.SKIPPED_OLD, case.item.id, entry.id)

    def _follow_links(self, case: Case) -> Case:
        """Where a link leads elsewhere in the end, that address is the medium; repeats are not followed."""
        if not isinstance(self.coordinator.look(case.claim), Take) or self.resolve is None:
            return case
        links = tuple(dict.fromkeys(self.resolve(case.links)))
        shared = self.naming.shared_names(case.group, links, case.now)
        return replace(case, links=links, claim=replace(case.claim, shared=shared))

    # After it

    def _repeat(self, case: Case, repeat: Repeat) -> Outcome:
        original = repeat.of
        stop = Stop(repeat.name, original.id, original.created_ms) if original else Stop(repeat.name)
        wanted = {each.destination for each in case.claim.destinations}
        status = repeat_status(original, wanted) if original else Status.ALREADY_PROCESSED
        return case.outcome(status, id=stop.original or "", reason=stop)

    def _busy(self, case: Case, busy: Busy) -> Outcome:
        wait_s = max(1, min(MOST_WAIT_FOR_ANOTHER_S, -(-busy.retry_after_ms // 1000)))
        error = f"another request is processing it, or an email with the same {busy.gate}"
        return case.outcome(Status.ALREADY_PROCESSING, error=error, retry_after_s=wait_s)

    def _deliver(self, case: Case, claimed: Claimed) -> Outcome:
        going = claimed.to_send
        if not going:
            return self._settle(case, claimed, claimed.not_to_send)
        if self.queue:
            now_ms = self.coordinator.journal.clock.now_ms()
            stored = [put_off(each, "queued", now_ms) for each in going]
            outcome = self._settle(case, claimed, (*claimed.not_to_send, *stored))
            return self._announce(case, outcome) if outcome.status is Status.QUEUED else outcome
        budget = Budget(time.monotonic() + self.options.budget_s)
        if not self.coordinator.is_live(claimed, int(self.options.budget_s * 1000)):
            return self._return(case, claimed, "it took too long to get to it")
        try:
            sent = self.sender.send(claimed, case.payload, budget)
        except BaseException:
            self._return(case, claimed, "an unexpected error")
            raise
        return self._settle(case, claimed, (*claimed.not_to_send, *sent))

    def _announce(self, case: Case, outcome: Outcome) -> Outcome:
        """Wakes workers for what was stored. If the queue is away, it is delivered here and now."""
        for delivery in outcome.deliveries:
            if delivery.status is DeliveryStatus.WAITING and delivery.waits_for is None:
                try:
                    self.queue.put(delivery.destination)  # type: ignore[union-attr]
                except QueueUnavailable as error:
                    log.error("item %s: not announced, delivering at once: %s", case.item.id, error)
                    return self._deliver_stored(case, outcome)
        return outcome

    def _deliver_stored(self, case: Case, outcome: Outcome) -> Outcome:
        try:
            for delivery in outcome.deliveries:
                self.retrier.deliver_due(delivery.destination)
            with self.coordinator.journal.reading() as step:
                entry = step.read(outcome.id)
        except StoreUnavailable as error:
            log.warning("item %s: it waits for the next try: %s", case.item.id, error)
            return outcome
        return case.outcome(status_of(entry), entry) if entry else outcome

    def _settle(self, case: Case, claimed: Claimed, outcomes: Sequence[Delivery]) -> Outcome:
        """Only what is delivered for sure, or stored where it is safe, is answered with 2xx (rule 6)."""
        is_alone = claimed.held is None and self.coordinator.registry is not None
        if is_alone and any(each.status is DeliveryStatus.WAITING for each in outcomes):
            return self._return(case, claimed, "not delivered, and Redis is away", outcomes)
        entry = claimed.entry
        for each in outcomes:
            entry = entry.with_delivery(each)
        status = SKIPPED_AT[entry.stop.gate] if entry.stop and _is_skipped(entry) else status_of(entry)
        payload = pack(case.payload) if self._keeps_payload(entry) else None
        try:
            settled = self.coordinator.settle(claimed, outcomes, status, payload)
        except NoRoom as error:
            log.warning("item %s: %s", case.item.id, error)
            return self._return(case, claimed, "not delivered, and there is no room to store it", outcomes)
        if not settled.is_safe:
            return case.retry_later("it could not be recorded")
        return case.outcome(status, settled.entry or entry, reason=entry.stop if _is_skipped(entry) else None)

    def _keeps_payload(self, entry: Entry) -> bool:
        statuses = {each.status for each in entry.deliveries}
        if statuses <= {DeliveryStatus.DELIVERED}:
            return self.options.keeps_delivered
        if statuses <= {DeliveryStatus.DELIVERED, DeliveryStatus.SKIPPED}:
            return self.options.keeps_suppressed or self.options.keeps_delivered
        return True

    def _return(self, case: Case, claimed: Claimed, error: str, outcomes: Sequence[Delivery] = ()) -> Outcome:
        """Its sender keeps it and tries again. Destinations that already received it keep that status."""
        delivered = [each for each in outcomes if each.status is DeliveryStatus.DELIVERED]
        known = {each.destination for each in delivered}
        returned = [
            changed(each, status=DeliveryStatus.RETURNED, waits_for=None)
            for each in claimed.plan
            if each.destination not in known
        ]
        try:
            self.coordinator.settle(claimed, [*delivered, *returned])
        except StoreUnavailable as unavailable:
            log.warning("item %s: its claim ends with its lease: %s", case.item.id, unavailable)
        return case.retry_later(error)


def log_decision(item: Item, outcome: Outcome, took_s: float) -> None:
    """One line for each item."""
    line = "item %(item)s: %(status)s, entry %(entry)s, by %(provider)s in %(ms)d ms"
    values: dict[str, object] = {
        "item": outcome.item_id,
        "status": outcome.status.value,
        "entry": outcome.id or None,
        "provider": item.provider,
        "ms": int(took_s * 1000),
    }
    if outcome.reason:
        line += ", at %(gate)s, repeats %(original)s"
        values |= {"gate": outcome.reason.gate.value, "original": outcome.reason.original}
    if outcome.error:
        line += ", %(error)s"
        values["error"] = outcome.error
    log.info(line, values)


def for_recipient(item: Item, route: Route) -> tuple[Item, Route]:
    """Where each recipient counts separately, an email to another recipient is stopped by no shared name."""
    if not route.identity_by_recipient:
        return item, route
    return item.for_recipient(), replace(route, group_mode=GroupMode.OFF, media=MediaMode.OFF, content=False)


def repeat_status(original: Entry, wanted: Collection[str]) -> Status:
    """What is answered to a repeat: what has happened to the original at the destinations that the repeat is for."""
    statuses = {each.status for each in original.deliveries if each.destination in wanted}
    if any(status.is_open for status in statuses):
        return Status.QUEUED
    if DeliveryStatus.DEAD in statuses:
        return Status.DEAD_LETTERED
    is_skipped = statuses == {DeliveryStatus.SKIPPED} and original.answer in SKIPPED_AT.values()
    return Status(original.answer) if is_skipped else Status.ALREADY_PROCESSED


def status_of(entry: Entry) -> Status:
    statuses = {delivery.status for delivery in entry.deliveries}
    if any(status.is_open for status in statuses):
        return Status.QUEUED
    return Status.DEAD_LETTERED if DeliveryStatus.DEAD in statuses else Status.PROCESSED


def _is_skipped(entry: Entry) -> bool:
    return all(each.status is DeliveryStatus.SKIPPED for each in entry.deliveries)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:32]
