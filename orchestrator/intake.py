"""The way of an item: route, claim, deliver, settle."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, tzinfo
from enum import StrEnum

from deduplication.claims import Claim, Claimed, Duplicate, Gate, InFlight, Kind, Name, Verdict
from deduplication.errors import StoreUnavailable
from deduplication.media import MediaMode, delivery_links, media_name
from deduplication.realtime_guard import RealtimeGuard
from deduplication.stores.base import Store
from deduplication.subject_group import SubjectPattern, generate_subject_group_id, group_name, month_of
from orchestrator.delivery.dispatch import Dispatcher, Sent
from orchestrator.item import Item
from orchestrator.leases import LeaseKeeper
from orchestrator.routing import Route, Router

log = logging.getLogger(__name__)

FIRST_RETRIES = 8
MOST_MEDIA = 50  # one claim, one script: a newsletter of links must not make it a long one
RETRY_AFTER_FAILURE_S = 10
MAX_WAIT_FOR_ANOTHER_S = 10


class Status(StrEnum):
    PROCESSED = "processed"
    ALREADY_PROCESSED = "already_processed"
    ALREADY_PROCESSING = "already_processing"
    SKIPPED_SUBJECT_GROUP = "skipped_subject_group"
    SKIPPED_MEDIA = "skipped_media"
    SKIPPED_CONTENT = "skipped_content"
    SKIPPED_OLD = "skipped_old"
    RETRY_LATER = "retry_later"


_SKIPPED_AT = {
    Gate.IDENTITY: Status.ALREADY_PROCESSED,
    Gate.SUBJECT_GROUP: Status.SKIPPED_SUBJECT_GROUP,
    Gate.MEDIA: Status.SKIPPED_MEDIA,
    Gate.CONTENT: Status.SKIPPED_CONTENT,
    Gate.DELIVERY: Status.ALREADY_PROCESSED,
    Gate.LOCK: Status.ALREADY_PROCESSED,
}


@dataclass(frozen=True)
class Outcome:
    """What became of one item."""

    status: Status
    item_id: str
    subject_group: str | None = None
    reason: Duplicate | InFlight | None = None
    retry_after_s: int | None = None


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
class Intake:
    store: Store
    leases: LeaseKeeper
    router: Router
    dispatcher: Dispatcher
    naming: Naming
    guard: RealtimeGuard
    sources: Sources
    resolve: Callable[[str], str] | None = None

    def receive(self, item: Item) -> Outcome:
        """Ends with the item delivered, recognised as a settled one, skipped with a reason, or given back."""
        route = self.router.pick(item)
        if route.realtime_only and not self.guard.is_new_message(item.moment, item.source):
            log.info("item %s: older than the service, and its route takes new ones only", item.id)
            return Outcome(Status.SKIPPED_OLD, item.id)
        group = generate_subject_group_id(item.subject, self.naming.patterns, route.group_mode)
        claim = self._claim_for(item, group, route)
        asked_at = self.sources.monotonic()
        try:
            verdict = self.store.claim(claim)
            if isinstance(verdict, Claimed):
                claim, verdict = self._moved_to_final_links(claim.without(verdict.left_out), verdict, item, route)
        except StoreUnavailable as error:
            log.error("item %s: %s; asking for a retry", item.id, error)
            return Outcome(Status.RETRY_LATER, item.id, group, retry_after_s=RETRY_AFTER_FAILURE_S)
        return self._follow(claim, verdict, item, route, asked_at)

    def _follow(self, claim: Claim, verdict: Verdict, item: Item, route: Route, asked_at: float) -> Outcome:
        group = _group_of(claim)
        match verdict:
            case Duplicate():
                log.info("item %s: stopped at %s, repeats %s", item.id, verdict.gate, verdict.original)
                return Outcome(_SKIPPED_AT[verdict.gate], item.id, group, verdict)
            case InFlight():
                log.info("item %s: another request holds its %s", item.id, verdict.gate)
                return _in_flight(item, group, verdict)
            case Claimed():
                if not self._is_still_ours(claim, asked_at):
                    log.warning("item %s: its lease ran out before it was sent", item.id)
                    return Outcome(Status.RETRY_LATER, item.id, group, retry_after_s=RETRY_AFTER_FAILURE_S)
                return self._deliver_and_settle(claim, verdict, item, route)

    def _claim_for(self, item: Item, group: str | None, route: Route) -> Claim:
        """With one destination everything is claimed in one step; with several, each of them is asked on its own."""
        now = self.sources.now()
        shared = self.naming.shared_names(item, group, route, now)
        at_destinations = [self.dispatcher.names_at(destination, item) for destination in route.destinations_for(item)]
        flat = tuple(name for names in at_destinations for name in names)
        alone = len(at_destinations) == 1
        return Claim(
            item.id,
            (*item.own_names, *shared, *(flat if alone else ())),
            item.fingerprint,
            self.sources.new_token(),
            self.leases.lease_ms,
            related=() if alone else flat,
        )

    def _moved_to_final_links(self, claim: Claim, claimed: Claimed, item: Item, route: Route) -> tuple[Claim, Verdict]:
        """Where a link leads elsewhere in the end, the reservation follows it there."""
        if self.resolve is None:
            return claim, claimed
        table = self.naming.identity_parameters
        finals = {media_name(link, table): self.resolve(link) for link in self.naming.media_links(item, route)}
        names = tuple(media_name(finals[name], table) if name in finals else name for name in claim.names)
        if names == claim.names:
            return claim, claimed
        moved = replace(claim, names=names)
        verdict = self.store.move(claim, moved)
        if isinstance(verdict, InFlight):
            self.store.release(claim, claimed.retries_left)
        elif isinstance(verdict, Claimed):
            log.info("item %s: reservation moved to where its links lead", item.id)
            return moved.without(verdict.left_out), verdict
        return moved, verdict

    def _is_still_ours(self, claim: Claim, asked_at: float) -> bool:
        """A process may be stopped for minutes at any line; after that, another may have taken over."""
        waited_ms = (self.sources.monotonic() - asked_at) * 1000
        return waited_ms < claim.lease_ms / 2 or self.store.renew(claim)

    def _deliver_and_settle(self, claim: Claim, claimed: Claimed, item: Item, route: Route) -> Outcome:
        group = _group_of(claim)
        received_at = self.sources.now().astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        enriched = replace(item, payload={**item.payload, "received_at": received_at, "subject_group": group})
        destinations = route.destinations_for(item)
        sent = Sent(complete=False)
        try:
            with self.leases.holding(claim):
                if len(destinations) == 1:
                    sent = self.dispatcher.send(enriched, destinations[0])
                else:
                    sent = self.dispatcher.send_to_each(enriched, destinations, self.sources.new_token)
        finally:
            if not sent.complete:  # the provider keeps the email, so the last retry is never used up
                before = FIRST_RETRIES if claimed.retries_left is None else claimed.retries_left
                self.leases.release(claim, retries_left=max(1, before - 1))
        if not sent.complete:
            wait_s = max(RETRY_AFTER_FAILURE_S, sent.retry_after_s or 0)
            return Outcome(Status.RETRY_LATER, item.id, group, retry_after_s=wait_s)
        self.leases.commit(claim)
        return Outcome(Status.SKIPPED_CONTENT if sent.reason else Status.PROCESSED, item.id, group, sent.reason)


def _group_of(claim: Claim) -> str | None:
    return next((name.value for name in claim.names if name.kind is Kind.SUBJECT_GROUP), None)


def _in_flight(item: Item, group: str | None, verdict: InFlight) -> Outcome:
    wait_s = min(MAX_WAIT_FOR_ANOTHER_S, -(-verdict.retry_after_ms // 1000))
    return Outcome(Status.ALREADY_PROCESSING, item.id, group, verdict, retry_after_s=max(1, wait_s))
