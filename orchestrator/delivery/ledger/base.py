"""What every ledger promises. tests/orchestrator/ledger/test_ledger_contract.py holds each of them to it.

* ``add`` records deliveries in one durable step; one whose id is known stays as it is, unless it waits without a
  payload, or is dead.
* ``save`` puts a record in place of the one with its id. What was delivered stays delivered: a record that is not is
  taken only if it was scheduled after that delivery (a replay). Waiting and dead records are durable once ``save``
  returns; a delivered one may be lost to a power cut.
* ``due`` hands out open records (without payloads) whose ``next_try_ms`` has come, oldest first, and moves each to
  now + ``hold_ms`` in the same step, so that of several processes one gets it, and so that it comes again if that one
  dies.
* ``hold`` moves on what ``due`` handed out, to now + ``hold_ms``, unless something became of it since.
* ``begin`` is ``get`` for whoever is about to deliver: a waiting (or delivering) record becomes delivering, its next
  try moves to now + ``hold_ms``, and it is returned with its payload; None for one that is settled or unknown.
* ``find`` goes through the records by creation, oldest first, without their payloads; ``counts`` counts them by
  destination and status. Neither sees records that have expired.
* ``forget`` drops records.

A ledger that cannot answer raises StoreUnavailable; one that is set up wrongly StoreMisconfigured.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from deduplication.claims import WEEK_MS
from orchestrator.delivery.record import Delivery, DeliveryStatus

FOR_EVER_MS = 253_402_300_799_000  # the end of the year 9999

Counts = dict[tuple[str, DeliveryStatus], int]


@dataclass(frozen=True)
class Retention:
    """How long records are kept: delivered ones from their delivery, all others from their last attempt.

    What is still to be delivered from here never expires.
    """

    delivered_ms: int = WEEK_MS
    others_ms: int = 30 * 24 * 3600 * 1000

    def expires_ms(self, delivery: Delivery) -> int:
        if delivery.status is DeliveryStatus.DELIVERED and delivery.delivered_ms is not None:
            return delivery.delivered_ms + self.delivered_ms
        if delivery.status.is_open and delivery.next_try_ms is not None:
            return FOR_EVER_MS
        last_ms = max([delivery.scheduled_ms, *(attempt.at_ms for attempt in delivery.attempts)])
        return last_ms + self.others_ms


DEFAULT_RETENTION = Retention()


def would_undo(new: Delivery, known: Delivery) -> bool:
    """What was delivered stays delivered, unless it was asked for again after that."""
    if known.status is not DeliveryStatus.DELIVERED or new.status is DeliveryStatus.DELIVERED:
        return False
    return new.scheduled_ms <= (known.delivered_ms or known.scheduled_ms)


@dataclass(frozen=True)
class Wanted:
    """Which records to look at; None matches anything. ``since_ms`` and ``until_ms`` are of the creation."""

    status: DeliveryStatus | None = None
    destination: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None

    def matches(self, delivery: Delivery) -> bool:
        return (
            self.status in (None, delivery.status)
            and self.destination in (None, delivery.destination)
            and (self.since_ms is None or delivery.created_ms >= self.since_ms)
            and (self.until_ms is None or delivery.created_ms < self.until_ms)
        )


class Ledger(Protocol):
    def add(self, deliveries: Sequence[Delivery]) -> None: ...
    def save(self, delivery: Delivery) -> None: ...
    def get(self, delivery_id: str) -> Delivery | None: ...
    def find(self, wanted: Wanted) -> Iterator[Delivery]: ...
    def counts(self) -> Counts: ...
    def begin(self, delivery_id: str, hold_ms: int) -> Delivery | None: ...
    def due(self, limit: int, hold_ms: int) -> list[Delivery]: ...
    def hold(self, deliveries: Sequence[Delivery], hold_ms: int) -> None: ...
    def forget(self, delivery_ids: Iterable[str]) -> int: ...
    def follow(self) -> None:
        """What has to be done now and then, in the background: purging, moving records to where they belong."""
        ...

    def close(self) -> None: ...
