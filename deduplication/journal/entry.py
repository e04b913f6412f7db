"""The values of the journal: an entry for each item received, with a delivery for each of its destinations.

``encode`` is the one layout of an entry: the row in SQLite, the event on the stream, the stored delivery in Redis.
"""

from __future__ import annotations

import itertools
import json
import os
import secrets
import zlib
from collections.abc import Callable
from dataclasses import fields
from enum import StrEnum
from hashlib import blake2b
from operator import ne
from string import ascii_lowercase
from typing import Any

from deduplication.names import WEEK_MS, Gate, Kind, Name
from deduplication.values import changed, frozen

BY_SCRIPT = ""  # the destination of a claim whose owner publishes the item itself: reservations

_PAIRS = [one + two for one in ascii_lowercase + "234567" for two in ascii_lowercase + "234567"]
_secret, _numbers = secrets.token_bytes(32), itertools.count()


def new_entry_id() -> str:
    """Twelve letters and digits that cannot be guessed. Random bytes for each would be a system call, at which another
    thread may take over. The process is part of it because a forked one has the same secret and numbers."""
    number = int.from_bytes(blake2b(b"%d %d" % (os.getpid(), next(_numbers)), key=_secret, digest_size=8).digest())
    return "".join([_PAIRS[number >> shift & 1023] for shift in range(0, 60, 10)])


class DeliveryStatus(StrEnum):
    """CLAIMED: a process works on it until its lease ends. RETURNED: its provider was asked to retry.

    The order says which one describes an entry with several deliveries: the first that one of them has.
    """

    CLAIMED = "claimed"
    RETURNED = "returned"
    WAITING = "waiting"
    DEAD = "dead"
    DELIVERED = "delivered"
    SKIPPED = "skipped"


OPEN = frozenset((DeliveryStatus.CLAIMED, DeliveryStatus.WAITING))
ENDED = frozenset((DeliveryStatus.DELIVERED, DeliveryStatus.DEAD, DeliveryStatus.SKIPPED))
SETTLED = ENDED | {DeliveryStatus.WAITING}


@frozen
class Attempt:
    """One POST. ``status_code`` is None if there was no response; ``error`` then says why."""

    at_ms: int
    latency_ms: int
    status_code: int | None = None
    error: str | None = None


@frozen
class Delivery:
    """One destination of an entry. Times are milliseconds since 1970.

    ``generation`` counts how often it was replayed or released after its end: a lower one is older.
    ``content`` is the name of its words at the destination, ``waits_for`` a shared name that another item holds.
    ``missing_ms`` is when its destination was first found to be missing from the configuration. ``had_already``: where
    a later copy of the email brought it here, the other destinations of that copy, which an earlier one had gone to.

    The rest is known on one machine only and never encoded: the owner of the claim, the end of its lease on the
    clock of Redis or the machine that granted it, and whether Redis accepted a waiting delivery (rule 6).
    """

    destination: str
    webhook_id: str = ""
    status: DeliveryStatus = DeliveryStatus.CLAIMED
    generation: int = 0
    tries: int = 0
    attempts: tuple[Attempt, ...] = ()
    ended_ms: int | None = None
    next_try_ms: int | None = None
    receiver_id: str | None = None
    reason: str | None = None
    content: Name | None = None
    waits_for: Name | None = None
    missing_ms: int | None = None
    server: str = ""
    had_already: tuple[str, ...] = ()
    owner: str = ""
    lease_until_ms: int = 0
    is_accepted: bool = True

    def is_live(self, now_ms: int) -> bool:
        """A process works on it, by the clock that its lease is counted by."""
        return self.status is DeliveryStatus.CLAIMED and self.lease_until_ms > now_ms


@frozen
class Stop:
    """Why an item is not sent: the name it met, and the entry it repeats (None: marked by an import, another program
    or an email that this machine never knew)."""

    name: Name
    original: str | None = None
    first_seen_ms: int | None = None

    @property
    def gate(self) -> Gate:
        return self.name.gate


@frozen
class About:
    """Fields shown in lists and used for search. ``alone``: claimed without Redis, by this machine's journal.
    ``recipient``: the first one, and how many more there are. ``thread``: of a reply, the conversation that it belongs
    to."""

    item: str = ""
    provider: str = ""
    route: str = ""
    subject: str = ""
    sender: str = ""
    server: str = ""
    alone: bool = False
    recipient: str = ""
    thread: str = ""


@frozen
class Entry:
    """One item. ``own`` names say which item it is; ``shared`` are those it holds or has marked.

    ``machine`` received it first. ``answer`` is the status that its provider received. ``reset`` is the number of the
    latest reset of its names that it knows (rule 22). ``retries_left`` belongs to reservations.
    ``proof`` is the proof of origin and the email it proves, "proof=email", both as digests (rule 28). ``is_evicted``:
    it was suppressed, and its payload made room for newer ones.
    """

    id: str
    machine: str
    own: tuple[Name, ...]
    created_ms: int = 0
    fingerprint: str = ""
    reset: int = 0
    about: About = About()
    deliveries: tuple[Delivery, ...] = ()
    answer: str = ""
    settled_ms: int | None = None
    shared: tuple[Name, ...] = ()
    stop: Stop | None = None
    released_ms: int | None = None
    retries_left: int | None = None
    proof: str = ""
    is_evicted: bool = False

    @property
    def is_open(self) -> bool:
        return any(each.status in OPEN for each in self.deliveries)

    @property
    def is_delivered_somewhere(self) -> bool:
        return any(each.status is DeliveryStatus.DELIVERED for each in self.deliveries)

    @property
    def is_delivered_everywhere(self) -> bool:
        return all(each.status is DeliveryStatus.DELIVERED for each in self.deliveries)

    @property
    def outcome(self) -> str:
        """One status for all its deliveries; "" without any."""
        if len(self.deliveries) == 1:
            return self.deliveries[0].status.value
        statuses = {each.status for each in self.deliveries}
        return next((status.value for status in DeliveryStatus if status in statuses), "")

    @property
    def names(self) -> tuple[Name, ...]:
        """Own names, shared names, and its words at each destination."""
        return (*self.own, *self.shared, *(each.content for each in self.deliveries if each.content))

    def delivery_to(self, destination: str) -> Delivery | None:
        return next((each for each in self.deliveries if each.destination == destination), None)

    def without_claims(self) -> Entry:
        """A claim counts on its own machine only, and its lease is of that machine's clock."""
        known = tuple(each for each in self.deliveries if each.status is not DeliveryStatus.CLAIMED)
        return changed(self, deliveries=known)

    def with_delivery(self, delivery: Delivery) -> Entry:
        others = tuple(each for each in self.deliveries if each.destination != delivery.destination)
        return changed(self, deliveries=(*others, delivery))


# The layout: the fields in their order, and nothing behind the last value that says anything. An entry is written for
# every email, and the stream is kept in the memory of the shared Redis.

SOME_NAME = Name(Kind.LOCK, "", "")  # in place of the name that a delivery waits for, where it is not known
to_json: Callable[[Any], str] = json.JSONEncoder(ensure_ascii=False, check_circular=False, separators=(",", ":")).encode

_CODES = dict(zip(Kind, "epgmcl", strict=True))
_KINDS = {code: kind for kind, code in _CODES.items()}
_KEPT = {Kind.EMAIL_ID: None, Kind.POST: WEEK_MS, Kind.MEDIA: WEEK_MS}  # said only where it differs
MOST_RECENT = 2_000
_RECENT: dict[str, Entry] = {}  # by their texts: an entry is read several times soon after it was written
_LOCAL = 3  # the last fields of a delivery are known on one machine only
_ENTRY, _ABOUT = ([field.default for field in fields(kind)] for kind in (Entry, About))
_DELIVERY = [field.default for field in fields(Delivery)][:-_LOCAL]


def encode(entry: Entry) -> str:
    values = list(entry.__dict__.values())
    values[2] = [_name_text(each) for each in entry.own]
    values[6] = _trimmed(list(entry.about.__dict__.values()), _ABOUT)
    values[7] = [_delivery_values(each) for each in entry.deliveries]
    values[10] = [_name_text(each) for each in entry.shared] or ()
    if entry.stop:
        values[11] = [_name_text(entry.stop.name), entry.stop.original, entry.stop.first_seen_ms]
    text = to_json(_trimmed(values, _ENTRY))
    if len(_RECENT) >= MOST_RECENT:
        _RECENT.clear()
    _RECENT[text] = entry
    return text


def decode(text: str) -> Entry:
    """What one machine alone knows of the deliveries is not to be relied on: of a recent entry it is still there."""
    return _RECENT.get(text) or decode_values(json.loads(text))


def decode_values(values: list[Any]) -> Entry:
    values += _ENTRY[len(values) :]
    values[2], values[10] = tuple(map(_name, values[2])), tuple(map(_name, values[10]))
    values[6] = About(*values[6])
    values[7] = tuple(map(_delivery, values[7]))
    if values[11]:
        name, *rest = values[11]
        values[11] = Stop(_name(name), *rest)
    return Entry(*values)


# An event is an entry of half a kilobyte, and 600,000 of them are kept in the memory of the shared Redis. Compressed
# with what most of them have in common, it takes less than half of that.
_COMMON = (
    b'"skipped","waiting","dead","queued","gmail","postmark","sendgrid","ses","mailgun","default",,0,["@gmail.com",'
    b'"Re: ","Fwd: "already_processed","skipped_subject_group",.0.0..0....."p::@mail."e:undated:0123456789abcdef",'
    b'"e-:2026-11-17:","e:2027-01-","@example.com","","delivered",0,1,[[17,200,null]],false],[["crm","msg_]],"processed",'
    b'17["E","'
)
_WINDOW, _MEMORY = -12, 5  # 4 KB: larger tables would cost more to set up than an event costs to compress


def pack_event(text: str) -> bytes:
    packer = zlib.compressobj(6, zlib.DEFLATED, _WINDOW, _MEMORY, zlib.Z_DEFAULT_STRATEGY, _COMMON)
    return packer.compress(text.encode()) + packer.flush()


def unpack_event(packed: bytes) -> str:
    """Empty if it cannot be read: it is of another program, or of a version with another layout."""
    try:
        return zlib.decompressobj(_WINDOW, _COMMON).decompress(packed).decode()
    except (zlib.error, UnicodeDecodeError):
        return ""


def _trimmed(values: list[Any], defaults: list[Any]) -> list[Any]:
    says_something = [*map(ne, values, defaults)][::-1]
    return values[: len(values) - says_something.index(True)] if True in says_something else []


def _name_text(name: Name) -> str:
    kept = "" if _KEPT.get(name.kind, 0) == name.kept_ms else "-" if name.kept_ms is None else str(name.kept_ms)
    return f"{_CODES[name.kind]}{kept}:{name.scope}:{name.value}"


def _name(text: str) -> Name:
    head, scope, value = text.split(":", 2)
    kind, kept = _KINDS[head[0]], head[1:]
    return Name(kind, scope, value, _KEPT.get(kind) if not kept else None if kept == "-" else int(kept))


def _delivery_values(delivery: Delivery) -> list[Any]:
    values = list(delivery.__dict__.values())[:-_LOCAL]
    values[5] = [list(each.__dict__.values()) for each in delivery.attempts] or ()
    values[10] = _name_text(delivery.content) if delivery.content else None
    values[11] = _name_text(delivery.waits_for) if delivery.waits_for else None
    return _trimmed(values, _DELIVERY)


def _delivery(values: list[Any]) -> Delivery:
    values += _DELIVERY[len(values) :]
    values[2] = DeliveryStatus(values[2])
    values[5] = tuple(Attempt(*each) for each in values[5])
    values[10], values[11] = (_name(each) if each else None for each in values[10:12])
    values[14] = tuple(values[14])
    return Delivery(*values)
