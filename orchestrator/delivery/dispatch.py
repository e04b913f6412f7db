"""From an item to its destinations: content gate, earlier delivery, lock, POST, record."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from deduplication.claims import WEEK_MS, Claim, Claimed, Duplicate, Gate, Kind, Name
from deduplication.content import WINDOW_MS, content_name
from deduplication.errors import DeduplicationError
from deduplication.locks import lock_name
from deduplication.stores.base import Store
from orchestrator.delivery.webhook import DeliveryFailed, Destination, Webhook, webhook_id
from orchestrator.item import Item
from orchestrator.leases import LeaseKeeper

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Sent:
    """``complete``: every destination has it, or need not have it. ``reason`` is set if all were stopped by content."""

    complete: bool
    reason: Duplicate | None = None
    retry_after_s: int | None = None


@dataclass(frozen=True)
class Place:
    """A destination with its content window; None: none for emails, 72 h for messages."""

    destination: Destination
    content_window_ms: int | None = None

    def window_ms(self, item: Item) -> int:
        if self.content_window_ms is not None:
            return self.content_window_ms
        return WINDOW_MS if item.is_message else 0


@dataclass(frozen=True)
class Dispatcher:
    store: Store
    leases: LeaseKeeper
    places: Mapping[str, Place]

    def names_at(self, destination: str, item: Item) -> tuple[Name, ...]:
        """What the item must hold to be sent there: its content, its delivery record and the lock."""
        content = content_name(destination, item.text, self.places[destination].window_ms(item))
        record = Name(Kind.DELIVERY, destination, webhook_id(item.key, item.fingerprint, destination), WEEK_MS)
        return (*([content] if content else []), record, lock_name(item.id, destination))

    def send(self, item: Item, destination: str) -> Sent:
        """The POST itself; the names are held by the caller."""
        webhook = Webhook(webhook_id(item.key, item.fingerprint, destination), item.payload)
        try:
            self.places[destination].destination.deliver(webhook)
        except DeliveryFailed as failure:
            log.warning("item %s: delivery failed: %s", item.id, failure)
            return Sent(complete=False, retry_after_s=failure.retry_after_s)
        log.info("item %s: delivered to %s as %s", item.id, destination, webhook.webhook_id)
        return Sent(complete=True)

    def send_to_each(self, item: Item, destinations: Sequence[str], new_token: Callable[[], str]) -> Sent:
        """Each destination on its own: one that has it, or fails, does not matter to the others."""
        results = [self._send_under_claim(item, destination, new_token()) for destination in destinations]
        waits_s = [each.retry_after_s for each in results if each.retry_after_s is not None]
        reasons = [each.reason for each in results]
        return Sent(
            complete=all(each.complete for each in results),
            reason=reasons[0] if all(reasons) else None,
            retry_after_s=max(waits_s, default=None),
        )

    def _send_under_claim(self, item: Item, destination: str, owner: str) -> Sent:
        claim = Claim(item.id, self.names_at(destination, item), "", owner, self.leases.lease_ms)
        try:
            verdict = self.store.claim(claim)
        except DeduplicationError as error:
            log.error("item %s: %s cannot be claimed: %s", item.id, destination, error)
            return Sent(complete=False)
        if isinstance(verdict, Claimed):
            return self._send_and_record(item, destination, claim)
        if isinstance(verdict, Duplicate):
            log.info("item %s: %s had it already (%s)", item.id, destination, verdict.gate)
            return Sent(complete=True, reason=verdict if verdict.gate is Gate.CONTENT else None)
        log.info("item %s: %s is at it elsewhere, held by %s", item.id, destination, self._holder(claim))
        return Sent(complete=False, retry_after_s=-(-verdict.retry_after_ms // 1000))

    def _send_and_record(self, item: Item, destination: str, claim: Claim) -> Sent:
        sent = Sent(complete=False)
        try:
            with self.leases.holding(claim):
                sent = self.send(item, destination)
        finally:
            if not sent.complete:
                self.leases.release(claim, None)
        if sent.complete:
            self.leases.commit(claim)
        return sent

    def _holder(self, claim: Claim) -> str:
        records = self.store.read([name for name in claim.names if name.kind is Kind.LOCK])
        return next((record.item or "another" for record in records), "another")
