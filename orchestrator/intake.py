"""The way of an item: route, claim, deliver, settle."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, tzinfo
from enum import StrEnum

from deduplication.claims import Claim, Claimed, Duplicate, Gate, InFlight, Name, Verdict
from deduplication.errors import StoreUnavailable
from deduplication.media import MediaMode, delivery_links, media_name
from deduplication.realtime_guard import RealtimeGuard
from deduplication.stores.base import Store
from deduplication.subject_group import (
    GroupMode,
    SubjectPattern,
    generate_subject_group_id,
    group_name,
    month_of,
)
from orchestrator.delivery.courier import Budget
from orchestrator.delivery.dispatch import Dispatcher, Sent
from orchestrator.delivery.outbox import Outbox
from orchestrator.delivery.record import Delivery, DeliveryStatus
from orchestrator.item import Item
from orchestrator.leases import LeaseKeeper
from orchestrator.routing import Route, Router
from orchestrator.settings import DELIVERY_BUDGET_S

log = logging.getLogger(__name__)

MOST_MEDIA = 50  # one claim, one script: a newsletter of links must not make it a long one
RETRY_AFTER_FAILURE_S = 10
LONGEST_RETRY_AFTER_S = 3600
MAX_WAIT_FOR_ANOTHER_S = 10


class Status(StrEnum):
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
    Gate.DELIVERY: Status.ALREADY_PROCESSED,
    Gate.LOCK: Status.ALREADY_PROCESSED,
}


@dataclass(frozen=True)
class Outcome:
    """What became of one item, and of each of its deliveries.

    ``error``: why it has to be sent again; ``warnings``: what of it could not be read.
    """

    status: Status
    item_id: str
    subject_group: str | None = None
    reason: Duplicate | InFlight | None = None
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

    def shared_names(self, item: Item, group: str | None, route: Route, now: datetime) -> tuple[Name, ...]:
        """Those it has in common with other items: its subject group and its media."""
        names = [group_name(group, month_of(self.tz, now), self.group_ttl_seconds)] if group else []
        return (*names, *(media_name(link, self.identity_parameters) for link in self.media_links(item, route)))

    def media_links(self, item: Item, route: Route) -> tuple[str, ...]:
        if route.media is MediaMode.OFF:
            return ()
        found = delivery_links(item.links, route.media, self.media_hosts, self.identity_parameters)
        return (*item.media, *found)[:MOST_MEDIA]


@dataclass(frozen=True)
class Sources:
    """Where the time and the owner tokens come from."""

    now: Callable[[], datetime]
    new_token: Callable[[], str]
    monotonic: Callable[[], float] = time.monotonic


@dataclass(frozen=True)
class Case:
    """An item on its way: what it is, where it goes, and what it claims.

    ``is_folded``: it has one destination, whose names are claimed together with its own, in one step.
    """

    item: Item
    route: Route
    group: str | None
    deliveries: tuple[Delivery, ...]
    claim: Claim
    is_folded: bool
    budget: Budget


@dataclass(frozen=True)
class Intake:
    """``outbox`` None: the request itself delivers."""

    store: Store
    leases: LeaseKeeper
    router: Router
    dispatcher: Dispatcher
    naming: Naming
    guard: RealtimeGuard
    sources: Sources
    resolve: Callable[[str], str] | None = None
    outbox: Outbox | None = None

    def receive(self, item: Item) -> Outcome:
        """Ends with the item delivered, queued, dead, recognised as a settled one, skipped, or given back."""
        return replace(self._decide(item), warnings=item.warnings)

    def _decide(self, item: Item) -> Outcome:
        route = self.router.pick(item)
        if route.realtime_only and not self.guard.is_new_message(item.moment, item.source):
            log.info("item %s: older than the service, and its route takes new ones only", item.id)
            return Outcome(Status.SKIPPED_OLD, item.id)
        case = self.case_of(*for_recipient(item, route))
        asked_at = self.sources.monotonic()
        try:
            verdict = self.store.claim(case.claim)
            if isinstance(verdict, Claimed):
                case = replace(case, claim=case.claim.without(verdict.left_out))
                case, verdict = self._moved_to_final_links(case, verdict)
        except StoreUnavailable as error:
            return self._without_names(case, error)
        return self._follow(case, verdict, asked_at)

    def _follow(self, case: Case, verdict: Verdict, asked_at: float) -> Outcome:
        item, group = case.item, case.group
        match verdict:
            case Duplicate():
                log.info("item %s: stopped at %s, repeats %s", item.id, verdict.gate, verdict.original)
                return Outcome(SKIPPED_AT[verdict.gate], item.id, group, verdict)
            case InFlight():
                holder = self.dispatcher.holder(case.claim) if verdict.gate is Gate.LOCK else "another request"
                log.info("item %s: its %s is held by %s", item.id, verdict.gate, holder)
                return _in_flight(item, group, verdict)
            case Claimed():
                if not self._is_still_ours(case.claim, asked_at):
                    log.warning("item %s: its lease ran out before it was sent", item.id)
                    error = "it took too long to get to it"
                    return Outcome(Status.RETRY_LATER, item.id, group, None, RETRY_AFTER_FAILURE_S, error=error)
                return self._deliver_and_settle(case, verdict)

    def case_of(self, item: Item, route: Route) -> Case:
        """With one destination everything is claimed in one step; with several, each of them is asked on its own.

        So it is where the delivery comes later: with a queue, or while the destination is disabled.
        """
        now = self.sources.now()
        group = generate_subject_group_id(item.subject, self.naming.patterns, route.group_mode)
        received_at = now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        owner = self.sources.new_token()
        enriched = replace(
            item,
            key=item.key if item.is_recognisable else f"{item.key}|{owner}",  # as nobody knows, it is a new one
            payload={**item.payload, "received_at": received_at, "subject_group": group},
        )
        deliveries = self.dispatcher.deliveries_of(enriched, route)
        is_folded = len(deliveries) == 1 and not self.outbox and self.dispatcher.is_enabled(deliveries[0].destination)
        at_destinations = tuple(name for each in deliveries for name in self.dispatcher.names_at(each))
        claim = Claim(
            item.id,
            (
                *item.own_names,
                *self.naming.shared_names(item, group, route, now),
                *(at_destinations if is_folded else ()),
            ),
            item.fingerprint,
            owner,
            self.leases.lease_ms,
            related=() if is_folded else at_destinations,
        )
        budget = Budget(self.sources.monotonic() + DELIVERY_BUDGET_S, self.sources.monotonic)
        return Case(enriched, route, group, tuple(deliveries), claim, is_folded, budget)

    def _moved_to_final_links(self, case: Case, claimed: Claimed) -> tuple[Case, Verdict]:
        """Where a link leads elsewhere in the end, the reservation follows it there."""
        if self.resolve is None:
            return case, claimed
        table, claim = self.naming.identity_parameters, case.claim
        links = self.naming.media_links(case.item, case.route)
        finals = {media_name(link, table): self.resolve(link) for link in links}
        names = tuple(media_name(finals[name], table) if name in finals else name for name in claim.names)
        if names == claim.names:
            return case, claimed
        moved = replace(claim, names=names)
        verdict = self.store.move(claim, moved)
        if isinstance(verdict, InFlight):
            self.store.release(claim, claimed.retries_left)
        elif isinstance(verdict, Claimed):
            log.info("item %s: reservation moved to where its links lead", case.item.id)
            return replace(case, claim=moved.without(verdict.left_out)), verdict
        return replace(case, claim=moved), verdict

    def _is_still_ours(self, claim: Claim, asked_at: float) -> bool:
        """A process may be stopped for minutes at any line; after that, another may have taken over."""
        waited_ms = (self.sources.monotonic() - asked_at) * 1000
        return waited_ms < claim.lease_ms / 2 or self.store.renew(claim)

    def _without_names(self, case: Case, error: StoreUnavailable) -> Outcome:
        """No name can be asked: the delivery records may know it, otherwise the provider has to keep it."""
        if self.dispatcher.are_recorded_as_delivered(case.deliveries):
            log.warning("item %s: %s; delivered already, by its records", case.item.id, error)
            return Outcome(Status.ALREADY_PROCESSED, case.item.id, case.group, deliveries=case.deliveries)
        log.error("item %s: %s; asking for a retry", case.item.id, error)
        told = "the store is away"  # the error may name an address inside
        return Outcome(Status.RETRY_LATER, case.item.id, case.group, None, RETRY_AFTER_FAILURE_S, error=told)

    def _deliver_and_settle(self, case: Case, claimed: Claimed) -> Outcome:
        if claimed.retries_left is not None:  # it was tried before
            case = replace(case, deliveries=tuple(map(self.dispatcher.with_history, case.deliveries)))
        if case.is_folded:
            (delivery,) = case.deliveries
            return _outcome(case, [self.dispatcher.turn(delivery, case.claim, case.budget)])
        sent: list[Sent] = []
        try:
            with self.leases.holding(case.claim):
                sent = self._queued(case) or self.dispatcher.send_to_each(case.deliveries, case.budget)
        finally:
            self._settle(case, sent)
        return _outcome(case, sent)

    def _queued(self, case: Case) -> list[Sent]:
        """Empty without a queue, and where it cannot take them: then the request delivers."""
        if self.outbox is None or not self.outbox.put(case.deliveries):
            return []
        return [Sent(delivery, is_safe=True) for delivery in case.deliveries]

    def _settle(self, case: Case, sent: Sequence[Sent]) -> None:
        """Where every destination refused it for good, group and media are free for others."""
        if not sent or not all(each.is_safe for each in sent):
            failed = [each.delivery for each in sent if not each.is_safe] or case.deliveries
            self.leases.release(case.claim, max(map(self.dispatcher.retries_left, failed)))
        elif all(each.delivery.status is DeliveryStatus.DEAD for each in sent):
            self.leases.release(case.claim, 0)
        else:
            self.leases.commit(case.claim)


def for_recipient(item: Item, route: Route) -> tuple[Item, Route]:
    """Where each recipient counts on its own, an email to another of them is stopped by nothing they share."""
    if not route.identity_by_recipient:
        return item, route
    return item.for_recipient(), replace(route, group_mode=GroupMode.OFF, media=MediaMode.OFF)


def _outcome(case: Case, sent: Sequence[Sent]) -> Outcome:
    deliveries = tuple(each.delivery for each in sent)
    if not all(each.is_safe for each in sent):
        waits_s = [each.retry_after_s or 0 for each in sent if not each.is_safe]
        wait_s = min(LONGEST_RETRY_AFTER_S, max(RETRY_AFTER_FAILURE_S, *waits_s))
        failed = [each.delivery for each in sent if not each.is_safe]
        error = "; ".join(each.reason or f"{each.destination}: not through yet" for each in failed)
        return Outcome(Status.RETRY_LATER, case.item.id, case.group, None, wait_s, deliveries, error)
    reasons = [each.reason for each in sent]
    if reasons[0] and all(reasons):
        return Outcome(Status.SKIPPED_CONTENT, case.item.id, case.group, reasons[0], deliveries=deliveries)
    return Outcome(_safe_status(deliveries), case.item.id, case.group, deliveries=deliveries)


def _safe_status(deliveries: Sequence[Delivery]) -> Status:
    statuses = {delivery.status for delivery in deliveries}
    if DeliveryStatus.DEAD in statuses:
        return Status.DEAD_LETTERED
    return Status.PROCESSED if DeliveryStatus.DELIVERED in statuses else Status.QUEUED


def _in_flight(item: Item, group: str | None, verdict: InFlight) -> Outcome:
    wait_s = min(MAX_WAIT_FOR_ANOTHER_S, -(-verdict.retry_after_ms // 1000))
    error = f"another request is at it, or at an email with the same {verdict.gate}"
    return Outcome(Status.ALREADY_PROCESSING, item.id, group, verdict, max(1, wait_s), error=error)
