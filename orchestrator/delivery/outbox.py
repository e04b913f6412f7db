"""Handing deliveries over to the workers: recorded first, then announced in the queue."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from deduplication.errors import DeduplicationError
from orchestrator.delivery.ledger.base import Ledger
from orchestrator.delivery.record import Delivery

log = logging.getLogger(__name__)

# Later than any backlog should be; a message that is lost is made good by the schedule.
ANNOUNCED_AGAIN_AFTER_MS = 600_000


class QueueUnavailable(Exception):
    """The queue cannot take a message for now."""


class QueueMisconfigured(Exception):
    """The queue does not let us in: waiting will not cure it."""


class Queue(Protocol):
    def put(self, delivery_id: str, destination: str) -> None:
        """Once it returns, a worker will hear of it. Raises QueueUnavailable."""
        ...

    def check(self) -> None:
        """Raises QueueUnavailable or QueueMisconfigured if it could take no message now."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Outbox:
    ledger: Ledger
    queue: Queue
    now_ms: Callable[[], int]

    def put(self, deliveries: Sequence[Delivery]) -> bool:
        """True once all are stored and announced. Otherwise the caller delivers: what a worker did meanwhile, the
        claims know.
        """
        again_ms = self.now_ms() + ANNOUNCED_AGAIN_AFTER_MS
        try:
            self.ledger.add([replace(delivery, next_try_ms=again_ms) for delivery in deliveries])
            for delivery in deliveries:
                self.queue.put(delivery.id, delivery.destination)
        except (DeduplicationError, QueueUnavailable) as error:
            log.error("item %s: not queued, delivering at once: %s", deliveries[0].item, error)
            return False
        return True
