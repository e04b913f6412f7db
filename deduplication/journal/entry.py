"""What the journal keeps of one item: its names, its state, the decision about it, and its deliveries."""

from __future__ import annotations

import base64
import secrets
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

from deduplication.claims import Gate, Kind, Name

Kept = TypeVar("Kept", "Entry", "Delivery")

ATTEMPTS_KEPT = 20
ENTRY_ID_BITS = 60


def new_entry_id() -> str:
    """Twelve letters and digits that nobody can guess."""
    return base64.b32encode(secrets.token_bytes(8)).decode().lower()[: ENTRY_ID_BITS // 5]


def changed(value: Kept, **changes: Any) -> Kept:
    """dataclasses.replace in a fifth of its time: an entry changes a dozen times on the way of an email."""
    if not changes.keys() <= value.__dict__.keys():
        raise TypeError(f"{type(value).__name__} has no such fields: {', '.join(changes)}")
    copy = object.__new__(type(value))
    copy.__dict__.update(value.__dict__, **changes)
    return copy


class State(StrEnum):
    """Pending: someone is at it, until the lease ends. Free: given back. Done: the provider was told 2xx."""

    PENDING = "pending"
    FREE = "free"
    DONE = "done"


class DeliveryStatus(StrEnum):
    """Skipped: by a gate, or because the destination had the same content before."""

    WAITING = "waiting"
    DELIVERING = "delivering"
    DELIVERED = "delivered"
    DEAD = "dead"
    SKIPPED = "skipped"

    @property
    def is_open(self) -> bool:
        return self in (DeliveryStatus.WAITING, DeliveryStatus.DELIVERING)


@dataclass(frozen=True)
class Attempt:
    """One POST. ``status_code`` None: there was no answer, and ``error`` says why."""

    at_ms: int
    latency_ms: int
    status_code: int | None = None
    error: str | None = None


@dataclass(frozen=True)
class Delivery:
    """One destination of an entry. Times are milliseconds since 1970, of the journal's clock.

    ``webhook_id`` is made at the first claim and never changes. ``owner``, ``lease_until_ms`` and ``fence`` belong to
    the worker that has begun it; while a request delivers, the entry's own hold. ``begins`` counts how often it was
    begun without being finished, ``generation`` how often it was asked for again after its end. ``content`` is the name
    of its words at the destination, None without that gate; ``awaits_content``: another item has them there for now.
    ``missing_ms``: when its destination was first found to be gone. ``server``: the one that began it last.
    """

    destination: str
    webhook_id: str
    status: DeliveryStatus = DeliveryStatus.DELIVERING
    generation: int = 0
    tries: int = 0
    begins: int = 0
    next_try_ms: int | None = None
    delivered_ms: int | None = None
    owner: str = ""
    lease_until_ms: int = 0
    fence: int = 0
    receiver_id: str | None = None
    reason: str | None = None
    content: Name | None = None
    awaits_content: bool = False
    attempts: tuple[Attempt, ...] = ()
    missing_ms: int | None = None
    server: str = ""

    @property
    def last_attempt_ms(self) -> int:
        """0: it was never tried."""
        return self.attempts[-1].at_ms if self.attempts else 0


@dataclass(frozen=True)
class Stop:
    """Why an item is not sent: the name it met, and the item it repeats (None: marked by another program).

    ``follows``: that one waits for its next try. If it ends dead everywhere, this item goes out after all.
    """

    name: Name
    original: str | None = None
    first_seen_ms: int | None = None
    follows: bool = False

    @property
    def gate(self) -> Gate:
        return self.name.gate


class Fate(StrEnum):
    """What has become of an item that is done: something of it waits, something is dead, or it is over."""

    OPEN = "open"
    DEAD = "dead"
    OVER = "over"


@dataclass(frozen=True)
class About:
    """What a person looks for an item by. ``store``: which journal decided, "" for the one that all machines share."""

    item: str = ""
    provider: str = ""
    route: str = ""
    subject: str = ""
    sender: str = ""
    server: str = ""
    store: str = ""


@dataclass(frozen=True)
class Entry:
    """``own`` names say which item it is, ``shared`` are those it holds. ``is_trial``: only printed; it marks nothing.

    ``answer`` is what its provider was told. ``repeated_by`` is the token of the last repeat, so that a lost reply is
    not counted twice. ``released_ms``: it was stopped, and went out after all. ``generation``: how often it was taken
    up again after its end; a machine that comes with an older one has older news. ``payload_bytes``: what is kept to be
    sent, 0 for nothing. ``payload_machine``: the one whose disk alone has that, and which alone delivers it; "" where
    the journal itself has it.
    """

    id: str
    own: tuple[Name, ...]
    shared: tuple[Name, ...]
    fingerprint: str
    state: State
    owner: str
    fence: int
    lease_until_ms: int
    created_ms: int
    about: About = About()
    deliveries: tuple[Delivery, ...] = ()
    retries_left: int | None = None
    answer: str = ""
    settled_ms: int | None = None
    stop: Stop | None = None
    released_ms: int | None = None
    repeats: int = 0
    repeated_ms: int | None = None
    repeated_by: str = ""
    is_trial: bool = False
    generation: int = 0
    payload_bytes: int = 0
    payload_machine: str = ""

    def is_held(self, now_ms: int) -> bool:
        return self.state is State.PENDING and self.lease_until_ms > now_ms

    @property
    def is_lock(self) -> bool:
        """An entry too, but not an item that anybody sent: it is not listed, and not kept when it is over, unless
        something was delivered under it (the words that a script marks)."""
        return bool(self.own) and self.own[0].kind is Kind.LOCK

    @property
    def has_open_deliveries(self) -> bool:
        return self.state is State.DONE and any(each.status.is_open for each in self.deliveries)

    @property
    def waits_since_ms(self) -> int:
        """Since when it has to be delivered: it came, or was taken up again."""
        return max(self.created_ms, self.settled_ms or 0, self.released_ms or 0)

    @property
    def fate(self) -> Fate:
        if self.has_open_deliveries:
            return Fate.OPEN
        is_dead = any(each.status is DeliveryStatus.DEAD for each in self.deliveries)
        return Fate.DEAD if is_dead else Fate.OVER

    @property
    def needs_payload(self) -> bool:
        """It is still to be sent, or a person may ask for it. Under way: only if it had come to an end before."""
        if self.state is not State.DONE:
            return self.generation > 0
        return any(each.status is not DeliveryStatus.DELIVERED for each in self.deliveries)

    @property
    def is_suppressed(self) -> bool:
        """Skipped for good: its payload is kept only for a person who may release it."""
        is_over = self.state is State.DONE and self.stop is not None and self.released_ms is None
        return is_over and not self.is_to_be_sent

    @property
    def is_to_be_sent(self) -> bool:
        """Something of it waits, or may have to go out in place of the item it follows: not without a payload."""
        follows = self.stop is not None and self.stop.follows and self.released_ms is None
        return self.state is State.DONE and (follows or self.has_open_deliveries)

    @property
    def is_undelivered(self) -> bool:
        """It is over, and no destination has it: dead or skipped everywhere."""
        ends = (DeliveryStatus.DEAD, DeliveryStatus.SKIPPED)
        is_ended = self.state is not State.PENDING and bool(self.deliveries)
        return is_ended and all(each.status in ends for each in self.deliveries)

    @property
    def next_generation(self) -> int:
        return max(self.generation, *(each.generation for each in self.deliveries), 0) + 1

    @property
    def is_delivered_somewhere(self) -> bool:
        """A claim without destinations is a script's: what it settles is what it published, unless it gave up."""
        if self.is_trial:
            return False
        if not self.deliveries:
            return self.state is State.DONE and self.retries_left != 0 and self.stop is None
        return any(each.status is DeliveryStatus.DELIVERED for each in self.deliveries)

    @property
    def is_delivered_everywhere(self) -> bool:
        return bool(self.deliveries) and all(each.status is DeliveryStatus.DELIVERED for each in self.deliveries)

    @property
    def names(self) -> tuple[Name, ...]:
        """Own names, the shared ones it holds, and its words at each destination."""
        return (*self.own, *self.shared, *(each.content for each in self.deliveries if each.content))

    def delivery_to(self, destination: str) -> Delivery | None:
        return next((each for each in self.deliveries if each.destination == destination), None)

    def has_open_delivery_to(self, destination: str) -> bool:
        delivery = self.delivery_to(destination)
        return self.state is State.DONE and delivery is not None and delivery.status.is_open

    def with_delivery(self, delivery: Delivery) -> Entry:
        after = [delivery if each.destination == delivery.destination else each for each in self.deliveries]
        return changed(self, deliveries=tuple(after))

    def with_fact(self, delivered: Delivery) -> Entry:
        """It was delivered, by whomever: that counts, also if it was asked for again meanwhile."""
        before = self.delivery_to(delivered.destination)
        return self.with_delivery(changed(delivered, generation=before.generation)) if before else self
