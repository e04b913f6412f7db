"""The way of an email: route, claim, deliver, settle."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from enum import StrEnum

from deduplication.claims import Claim, Claimed, Duplicate, Gate, InFlight
from deduplication.email import Email
from deduplication.errors import DeduplicationError, StoreUnavailable
from deduplication.identity import compute_canonical_id, compute_fingerprint, own_names
from deduplication.stores.base import Store
from deduplication.subject_group import SubjectPattern, generate_subject_group_id, group_name, month_of
from orchestrator.delivery.webhook import DeliveryFailed, Destination, Webhook, webhook_id
from orchestrator.leases import LeaseKeeper
from orchestrator.routing import Route, Router

log = logging.getLogger(__name__)

BODY_PREVIEW_CHARS = 200
FIRST_RETRIES = 8
RETRY_AFTER_FAILURE_S = 10
MAX_WAIT_FOR_ANOTHER_S = 10


class Status(StrEnum):
    PROCESSED = "processed"
    ALREADY_PROCESSED = "already_processed"
    ALREADY_PROCESSING = "already_processing"
    SKIPPED_SUBJECT_GROUP = "skipped_subject_group"
    SKIPPED_MEDIA = "skipped_media"
    RETRY_LATER = "retry_later"


_SKIPPED_AT = {
    Gate.IDENTITY: Status.ALREADY_PROCESSED,
    Gate.SUBJECT_GROUP: Status.SKIPPED_SUBJECT_GROUP,
    Gate.MEDIA: Status.SKIPPED_MEDIA,
}


@dataclass(frozen=True)
class Outcome:
    """What became of one email."""

    status: Status
    email_id: str
    subject_group: str | None = None
    reason: Duplicate | InFlight | None = None
    retry_after_s: int | None = None


@dataclass(frozen=True)
class Naming:
    """What the names of an email depend on besides the email."""

    tz: tzinfo
    patterns: Sequence[SubjectPattern]
    group_ttl_seconds: int
    ids_kept_ms: int | None


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
    destinations: Mapping[str, Destination]
    naming: Naming
    sources: Sources

    def receive(self, email: Email) -> Outcome:
        """Ends with the email delivered, recognised as a settled one, or given back for a retry."""
        route = self.router.pick(email)
        group = generate_subject_group_id(email.subject, self.naming.patterns, route.group_mode)
        claim = self._claim_for(email, group)
        asked_at = self.sources.monotonic()
        try:
            verdict = self.store.claim(claim)
        except StoreUnavailable as error:
            log.error("email %s: %s; asking for a retry", claim.item, error)
            return Outcome(Status.RETRY_LATER, claim.item, group, retry_after_s=RETRY_AFTER_FAILURE_S)
        match verdict:
            case Duplicate():
                log.info("email %s: stopped at %s, repeats %s", claim.item, verdict.gate, verdict.original)
                return Outcome(_SKIPPED_AT[verdict.gate], claim.item, group, verdict)
            case InFlight():
                log.info("email %s: another request holds its %s", claim.item, verdict.gate)
                return _in_flight(claim, group, verdict)
            case Claimed():
                if not self._is_still_ours(claim, asked_at):
                    log.warning("email %s: its lease ran out before it was sent", claim.item)
                    return Outcome(Status.RETRY_LATER, claim.item, group, retry_after_s=RETRY_AFTER_FAILURE_S)
                webhook = self._webhook(email, claim, group, route)
                return self._deliver_and_settle(claim, verdict, webhook, route)

    def _is_still_ours(self, claim: Claim, asked_at: float) -> bool:
        """A process may be stopped for minutes at any line; after that, another may have taken over."""
        waited_ms = (self.sources.monotonic() - asked_at) * 1000
        return waited_ms < claim.lease_ms / 2 or self.store.renew(claim)

    def _claim_for(self, email: Email, group: str | None) -> Claim:
        names = own_names(email, self.naming.ids_kept_ms)
        email_id = names[0].value
        if group:
            month = month_of(self.naming.tz, self.sources.now())
            names.append(group_name(group, month, self.naming.group_ttl_seconds))
        return Claim(email_id, tuple(names), compute_fingerprint(email), self.sources.new_token(), self.leases.lease_ms)

    def _webhook(self, email: Email, claim: Claim, group: str | None, route: Route) -> Webhook:
        return Webhook(
            webhook_id(compute_canonical_id(email), claim.fingerprint, route.destination),
            {
                "email_id": claim.item,
                "subject": email.clean_subject,
                "sender": email.sender,
                "sender_email": email.sender_email,
                "date": email.date,
                "received_at": self.sources.now().astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
                "body": email.body,
                "body_preview": email.text[:BODY_PREVIEW_CHARS],
                "subject_group": group,
                "links": list(email.links),
                "extra": dict(email.extra),
            },
        )

    def _deliver_and_settle(self, claim: Claim, claimed: Claimed, webhook: Webhook, route: Route) -> Outcome:
        group = webhook.payload["subject_group"]
        delivered = False
        try:
            with self.leases.holding(claim):
                self.destinations[route.destination].deliver(webhook)
                delivered = True
        except DeliveryFailed as failure:
            log.warning("email %s: delivery failed: %s", claim.item, failure)
            wait_s = max(RETRY_AFTER_FAILURE_S, failure.retry_after_s or 0)
            return Outcome(Status.RETRY_LATER, claim.item, group, retry_after_s=wait_s)
        finally:
            if not delivered:
                self._give_back(claim, claimed)
        self._commit(claim)
        log.info("email %s: delivered to %s as %s", claim.item, route.destination, webhook.webhook_id)
        return Outcome(Status.PROCESSED, claim.item, group)

    def _give_back(self, claim: Claim, claimed: Claimed) -> None:
        """The provider keeps the email, so the last retry is never used up."""
        before = FIRST_RETRIES if claimed.retries_left is None else claimed.retries_left
        try:
            self.store.release(claim, retries_left=max(1, before - 1))
        except DeduplicationError as error:
            log.error("email %s: not released, its lease will end: %s", claim.item, error)

    def _commit(self, claim: Claim) -> None:
        """The delivery is done, so a failing commit must not make the provider send the email again."""
        try:
            if not self.store.commit(claim):
                log.warning("email %s: another owner took over a name during the delivery", claim.item)
        except DeduplicationError as error:
            self.leases.owe_commit(claim)
            log.error("email %s: delivered, but not yet marked as done: %s", claim.item, error)


def _in_flight(claim: Claim, group: str | None, verdict: InFlight) -> Outcome:
    wait_s = min(MAX_WAIT_FOR_ANOTHER_S, -(-verdict.retry_after_ms // 1000))
    return Outcome(Status.ALREADY_PROCESSING, claim.item, group, verdict, retry_after_s=max(1, wait_s))
