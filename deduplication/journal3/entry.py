"""The values of the journal: an entry for each item received, with a delivery for each of its destinations.

``encode`` is the one layout of an entry: the row in SQLite, the event on the stream, the stored delivery in Redis.
"""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

from deduplication.claims import WEEK_MS, Gate, Kind, Name

BY_SCRIPT = ""  # the destination of a claim whose owner publishes the item itself: reservations, locks

Value = TypeVar("Value", "Entry", "Delivery")


def new_entry_id() -> str:
    """Twelve letters and digits that nobody can guess."""
    return base64.b32encode(secrets.token_bytes(8)).decode().lower()[:12]


def changed(value: Value, **changes: Any) -> Value:
    """dataclasses.replace in a fifth of its time: an entry changes several times on the way of an email."""
    if not changes.keys() <= value.__dict__.keys():
        raise TypeError(f"{type(value).__name__} has no such fields: {', '.join(changes)}")
    copy = object.__new__(type(value))
    copy.__dict__.update(value.__dict__, **changes)
    return copy


class DeliveryStatus(StrEnum):
    """CLAIMED: a process works on it until its lease ends. RETURNED: its provider was asked to retry."""

    CLAIMED = "claimed"
    RETURNED = "returned"
    WAITING = "waiting"
    DELIVERED = "delivered"
    DEAD = "dead"
    SKIPPED = "skipped"

    @property
    def is_open(self) -> bool:
        return self in (DeliveryStatus.CLAIMED, DeliveryStatus.WAITING)


SETTLED = frozenset((DeliveryStatus.WAITING, DeliveryStatus.DELIVERED, DeliveryStatus.DEAD, DeliveryStatus.SKIPPED))


@dataclass(frozen=True)
class Attempt:
    """One POST. ``status_code`` is None if there was no response; ``error`` then says why."""

    at_ms: int
    latency_ms: int
    status_code: int | None = None
    error: str | None = None


@dataclass(frozen=True)
class Delivery:
    """One destination of an entry. Times are milliseconds since 1970.

    ``generation`` counts how often it was replayed or released after its end: a lower one is older news.
    ``content`` is the name of its words at the destination, ``waits_for`` a shared name that another item holds.
    ``missing_ms`` is when its destination was first found to be missing from the configuration.

    The rest is known on one machine only and never encoded: the owner of the claim, the end of its lease on the
    clock of whoever granted it, and whether Redis accepted a waiting delivery (rule 6).
    """

    destination: str
    webhook_id: str = ""
    status: DeliveryStatus = DeliveryStatus.CLAIMED
    generation: int = 0
    tries: int = 0
    next_try_ms: int | None = None
    ended_ms: int | None = None
    receiver_id: str | None = None
    reason: str | None = None
    content: Name | None = None
    waits_for: Name | None = None
    attempts: tuple[Attempt, ...] = ()
    missing_ms: int | None = None
    server: str = ""
    owner: str = ""
    lease_until_ms: int = 0
    is_accepted: bool = True


@dataclass(frozen=True)
class Stop:
    """Why an item is not sent: the name it met, and the entry it repeats (None: marked by another program)."""

    name: Name
    original: str | None = None
    first_seen_ms: int | None = None

    @property
    def gate(self) -> Gate:
        return self.name.gate


@dataclass(frozen=True)
class About:
    """Fields shown in lists and used for search. ``alone``: claimed without Redis, by this machine's journal."""

    item: str = ""
    provider: str = ""
    route: str = ""
    subject: str = ""
    sender: str = ""
    server: str = ""
    alone: bool = False


@dataclass(frozen=True)
class Entry:
    """One item. ``own`` names say which item it is; ``shared`` are those it holds or has marked.

    ``machine`` received it first. ``answer`` is the status its provider was told. ``reset`` is the number of the
    latest reset of its names that it knows (rule 22). ``retries_left`` belongs to reservations, ``fence`` to locks.
    ``proof`` is the proof of origin and the email it proves, "proof=email", both as digests (rule 28).
    """

    id: str
    machine: str
    own: tuple[Name, ...]
    shared: tuple[Name, ...] = ()
    fingerprint: str = ""
    created_ms: int = 0
    reset: int = 0
    about: About = About()
    deliveries: tuple[Delivery, ...] = ()
    answer: str = ""
    settled_ms: int | None = None
    stop: Stop | None = None
    released_ms: int | None = None
    retries_left: int | None = None
    fence: int = 0
    proof: str = ""

    @property
    def is_lock(self) -> bool:
        """Locks are in the journal, but in no list, and nothing is remembered of one that was released."""
        return bool(self.own) and self.own[0].kind is Kind.LOCK

    @property
    def is_open(self) -> bool:
        return any(each.status.is_open for each in self.deliveries)

    @property
    def is_delivered_somewhere(self) -> bool:
        return any(each.status is DeliveryStatus.DELIVERED for each in self.deliveries)

    @property
    def is_delivered_everywhere(self) -> bool:
        return all(each.status is DeliveryStatus.DELIVERED for each in self.deliveries)

    @property
    def names(self) -> tuple[Name, ...]:
        """Own names, shared names, and its words at each destination."""
        return (*self.own, *self.shared, *(each.content for each in self.deliveries if each.content))

    def delivery_to(self, destination: str) -> Delivery | None:
        return next((each for each in self.deliveries if each.destination == destination), None)

    def with_delivery(self, delivery: Delivery) -> Entry:
        others = tuple(each for each in self.deliveries if each.destination != delivery.destination)
        return changed(self, deliveries=(*others, delivery))


# The layout. Positions instead of keys, and nothing behind the last value that says anything: an entry is written for
# every email, and the stream is kept in the memory of the shared Redis.

to_json: Callable[[Any], str] = json.JSONEncoder(ensure_ascii=False, check_circular=False, separators=(",", ":")).encode

_CODES = {
    Kind.EMAIL_ID: "e",
    Kind.POST: "p",
    Kind.SUBJECT_GROUP: "g",
    Kind.MEDIA: "m",
    Kind.CONTENT: "c",
    Kind.LOCK: "l",
}
_KINDS = {code: kind for kind, code in _CODES.items()}
_KEPT = {Kind.EMAIL_ID: None, Kind.POST: WEEK_MS, Kind.MEDIA: WEEK_MS}  # said only where it differs
_ABOUT = ("item", "provider", "route", "subject", "sender", "server", "alone")
_STATUSES = {status.value: status for status in DeliveryStatus}


def encode(entry: Entry) -> str:
    about = entry.about
    return to_json(
        _trimmed(
            [
                entry.id,
                entry.machine,
                entry.created_ms,
                entry.fingerprint,
                entry.reset,
                [_name_text(each) for each in entry.own],
                [about.item, about.provider, about.route, about.subject, about.sender, about.server, about.alone],
                [_delivery_values(each) for each in entry.deliveries],
                entry.answer,
                entry.settled_ms,
                [_name_text(each) for each in entry.shared] or None,
                _stop_values(entry.stop) if entry.stop else None,
                entry.released_ms,
                entry.retries_left,
                entry.fence or None,
                entry.proof or None,
            ]
        )
    )


def decode(text: str | bytes) -> Entry:
    values = json.loads(text)
    values += [None] * (16 - len(values))
    id_, machine, created, fingerprint, reset, own, about, deliveries, answer, settled, *rest = values
    shared, stop, released, retries_left, fence, proof = rest
    return Entry(
        id=id_,
        machine=machine,
        own=tuple(map(_name, own)),
        shared=tuple(map(_name, shared or ())),
        fingerprint=fingerprint,
        created_ms=created,
        reset=reset,
        about=About(**dict(zip(_ABOUT, about, strict=True))),
        deliveries=tuple(map(_delivery, deliveries)),
        answer=answer or "",
        settled_ms=settled,
        stop=Stop(_name(stop[0]), stop[1], stop[2]) if stop else None,
        released_ms=released,
        retries_left=retries_left,
        fence=fence or 0,
        proof=proof or "",
    )


def _trimmed(values: list[Any]) -> list[Any]:
    while values and values[-1] is None:
        values.pop()
    return values


def _name_text(name: Name) -> str:
    kept = "" if _KEPT.get(name.kind, 0) == name.kept_ms else "-" if name.kept_ms is None else str(name.kept_ms)
    return f"{_CODES[name.kind]}{kept}:{name.scope}:{name.value}"


def _name(text: str) -> Name:
    head, scope, value = text.split(":", 2)
    kind, kept = _KINDS[head[0]], head[1:]
    return Name(kind, scope, value, _KEPT.get(kind) if not kept else None if kept == "-" else int(kept))


def _stop_values(stop: Stop) -> list[Any]:
    return [_name_text(stop.name), stop.original, stop.first_seen_ms]


def _delivery_values(delivery: Delivery) -> list[Any]:
    return _trimmed(
        [
            delivery.destination,
            delivery.webhook_id,
            delivery.status,
            delivery.generation,
            delivery.tries,
            [[each.at_ms, each.latency_ms, each.status_code, each.error] for each in delivery.attempts],
            delivery.ended_ms,
            delivery.next_try_ms,
            delivery.receiver_id,
            delivery.reason,
            _name_text(delivery.content) if delivery.content else None,
            _name_text(delivery.waits_for) if delivery.waits_for else None,
            delivery.missing_ms,
            delivery.server or None,
        ]
    )


def _delivery(values: list[Any]) -> Delivery:
    values += [None] * (14 - len(values))
    destination, webhook_id, status, generation, tries, attempts, ended, next_try, receiver_id, *rest = values
    reason, content, waits_for, missing, server = rest
    return Delivery(
        destination=destination,
        webhook_id=webhook_id,
        status=_STATUSES[status],
        generation=generation,
        tries=tries,
        next_try_ms=next_try,
        ended_ms=ended,
        receiver_id=receiver_id,
        reason=reason,
        content=_name(content) if content else None,
        waits_for=_name(waits_for) if waits_for else None,
        attempts=tuple(Attempt(*each) for each in attempts),
        missing_ms=missing,
        server=server or "",
    )
