"""Sending a recorded delivery again, at an operator's word."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from deduplication.stores.base import Store
from orchestrator.audit import audit
from orchestrator.delivery.dispatch import delivery_name
from orchestrator.delivery.ledger.base import Ledger, Wanted
from orchestrator.delivery.record import Delivery, DeliveryStatus
from orchestrator.delivery.schedule import asked_again


class Answer(StrEnum):
    REPLAYED = "replayed"
    WOULD_REPLAY = "would_replay"
    UNKNOWN = "unknown"
    ALREADY_DELIVERED = "already_delivered"
    UNDER_WAY = "under_way"
    NO_PAYLOAD = "no_payload"


@dataclass(frozen=True)
class How:
    """``force``: also what was delivered already. ``new_id``: under a webhook-id that the receiver has not seen."""

    force: bool = False
    new_id: bool = False
    dry_run: bool = False


@dataclass(frozen=True)
class Replays:
    """A replay is past identity and content, but not past "this destination has it", unless forced."""

    ledger: Ledger
    store: Store
    now_ms: Callable[[], int]
    new_token: Callable[[], str]

    def replay(self, delivery_id: str, how: How) -> Answer:
        """Makes it due; whoever looks after the schedule sends it."""
        delivery = self.ledger.get(delivery_id)
        answer = _judge(delivery, how)
        if delivery is None or answer is not Answer.REPLAYED:
            return answer
        if how.dry_run:
            return Answer.WOULD_REPLAY
        if how.force:
            self.store.forget([delivery_name(delivery)])
        webhook_id = f"msg_{self.new_token()}" if how.new_id else None
        self.ledger.save(asked_again(delivery, self.now_ms(), webhook_id))
        audit.warning("AUDIT replay delivery=%s force=%s new_id=%s", delivery_id, how.force, how.new_id)
        return answer

    def replay_all(self, wanted: Wanted, how: How) -> Iterator[Answer]:
        """One answer for each record that fits, as they are gone through."""
        for delivery in self.ledger.find(wanted):
            yield self.replay(delivery.id, how)


def _judge(delivery: Delivery | None, how: How) -> Answer:
    if delivery is None:
        return Answer.UNKNOWN
    if delivery.status in (DeliveryStatus.DELIVERED, DeliveryStatus.SKIPPED) and not how.force:
        return Answer.ALREADY_DELIVERED
    if delivery.status is DeliveryStatus.DELIVERING:
        return Answer.UNDER_WAY
    return Answer.REPLAYED if delivery.payload is not None else Answer.NO_PAYLOAD
