"""The values of the journal: an entry for each item received, with a delivery for each of its destinations.

An entry has one encoding, which is used for the row in SQLite, the event on the stream and the stored delivery in
Redis.
"""

from __future__ import annotations

import base64
import random
import zlib
from collections.abc import Sequence
from enum import StrEnum
from functools import lru_cache
from typing import Any

from msgspec import MsgspecError, Struct, json
from msgspec.structs import replace

from deduplication.names import WEEK_MS, Gate, Kind, Name

BY_SCRIPT = ""  # the destination of a claim whose owner publishes the item itself: reservations


def new_entry_id() -> str:
    """Twelve letters and digits. They need not be secret, and reading the system's random bytes would be a call at
    which another thread takes over. Python seeds its generator again in each forked process."""
    return base64.b32encode(random.randbytes(8))[:12].decode().lower()  # noqa: S311


class DeliveryStatus(StrEnum):
    """CLAIMED: a process works on it until its lease ends. RETURNED: its provider was asked to retry.

    An entry with several deliveries is described by the first status, in this order, that one of them has.
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


class Attempt(Struct, frozen=True, omit_defaults=True):
    """One POST. ``status_code`` is None if there was no response; ``error`` then says why."""

    at_ms: int
    latency_ms: int
    status_code: int | None = None
    error: str | None = None


class Delivery(Struct, frozen=True, omit_defaults=True):
    """One destination of an entry. Times are milliseconds since 1970.

    ``generation`` counts how often it was replayed or released after its end: a lower one is older.
    ``content`` is the name of its words at the destination, ``waits_for`` a shared name that another item holds.
    ``missing_ms`` is when its destination was first missing from the configuration. If a later copy of the email
    caused this delivery, ``had_already`` lists the copy's other destinations, which had received an earlier one.

    The last four fields are known on one machine only: the owner of the claim, the end of its lease (by the clock of
    Redis, or of the machine that granted it), whether Redis accepted a waiting delivery (rule 6), and how many attempts
    began without an outcome (rule 18).
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
    begins: int = 0

    def is_live(self, now_ms: int) -> bool:
        """Whether a process works on it. ``now_ms`` is of the clock that its lease is counted by."""
        return self.status is DeliveryStatus.CLAIMED and self.lease_until_ms > now_ms

    def is_busy(self, now_ms: int) -> bool:
        """Whether it is still to be made: it waits, or a process works on it."""
        return self.status is DeliveryStatus.WAITING or self.is_live(now_ms)


class Stop(Struct, frozen=True, omit_defaults=True):
    """Why an item is not sent: the name that was taken, and the entry that it repeats. ``original`` is None if an
    import, another program or an email unknown to this machine marked the name. ``is_held``: the name is not marked
    but held by that entry, so the item waits for it."""

    name: Name
    original: str | None = None
    first_seen_ms: int | None = None
    is_held: bool = False

    @property
    def gate(self) -> Gate:
        return self.name.gate

    @property
    def reason(self) -> str:
        return f"repeats {self.name.label}{f' of {self.original}' if self.original else ''}"


class About(Struct, frozen=True, omit_defaults=True):
    """Fields shown in lists and used for search. ``alone``: it was claimed without Redis. ``recipient`` is the first
    one and the number of others. ``thread`` is the conversation that a reply belongs to."""

    item: str = ""
    provider: str = ""
    route: str = ""
    subject: str = ""
    sender: str = ""
    server: str = ""
    alone: bool = False
    recipient: str = ""
    thread: str = ""


class Entry(Struct, frozen=True, omit_defaults=True):
    """One item. ``own`` names identify it; ``shared`` names are those that it holds or has marked.

    ``machine`` received it first. ``answer`` is the status that its provider received. ``reset`` is the number of the
    latest known reset of its names (rule 22). ``retries_left`` is for reservations. ``proof`` is "proof=email": the
    proof of origin and the email that it proves, both as digests (rule 28). ``is_evicted``: it was suppressed, and its
    payload was removed to make room.
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
    def statuses(self) -> set[DeliveryStatus]:
        return {delivery.status for delivery in self.deliveries}

    @property
    def is_open(self) -> bool:
        return not self.statuses.isdisjoint(OPEN)

    @property
    def is_delivered_somewhere(self) -> bool:
        return DeliveryStatus.DELIVERED in self.statuses

    @property
    def is_delivered_everywhere(self) -> bool:
        return self.statuses <= {DeliveryStatus.DELIVERED}

    @property
    def outcome(self) -> str:
        """One status for all its deliveries; "" without any."""
        if len(self.deliveries) == 1:
            return self.deliveries[0].status.value
        return next((status.value for status in DeliveryStatus if status in self.statuses), "")

    @property
    def names(self) -> tuple[Name, ...]:
        """Own names, shared names, and its words at each destination."""
        return (*self.own, *self.shared, *(delivery.content for delivery in self.deliveries if delivery.content))

    @property
    def by_destination(self) -> dict[str, Delivery]:
        return {delivery.destination: delivery for delivery in self.deliveries}

    def deliveries_with(self, status: DeliveryStatus) -> list[Delivery]:
        return [delivery for delivery in self.deliveries if delivery.status is status]

    def is_busy(self, now_ms: int) -> bool:
        return any(delivery.is_busy(now_ms) for delivery in self.deliveries)

    def delivery_to(self, destination: str) -> Delivery | None:
        return next((delivery for delivery in self.deliveries if delivery.destination == destination), None)

    def without_claims(self) -> Entry:
        """Claims count on their own machine only, and their leases are counted by its clock."""
        left = tuple(delivery for delivery in self.deliveries if delivery.status is not DeliveryStatus.CLAIMED)
        return replace(self, deliveries=left)

    def with_delivery(self, delivery: Delivery) -> Entry:
        others = tuple(other for other in self.deliveries if other.destination != delivery.destination)
        return replace(self, deliveries=(*others, delivery))


SOME_NAME = Name(Kind.LOCK, "", "")  # stands for the name that a delivery waits for, where that is not known

_CODES = dict(zip(Kind, "epgmcl", strict=True))
_KINDS = {code: kind for kind, code in _CODES.items()}
_KEPT = {Kind.EMAIL_ID: None, Kind.POST: WEEK_MS, Kind.MEDIA: WEEK_MS}  # written only where it differs


def _name_text(name: Name) -> str:
    kept = "" if _KEPT.get(name.kind, 0) == name.kept_ms else "-" if name.kept_ms is None else str(name.kept_ms)
    return f"{_CODES[name.kind]}{kept}:{name.scope}:{name.value}"


@lru_cache(maxsize=128)
def _name(_: type, text: str) -> Name:
    head, scope, value = text.split(":", 2)
    kind, kept = _KINDS[head[0]], head[1:]
    return Name(kind, scope, value, _KEPT.get(kind) if not kept else None if kept == "-" else int(kept))


_encoder = json.Encoder(enc_hook=_name_text)
decode = json.Decoder(Entry, dec_hook=_name).decode
_EVENTS = {  # kind, machine and values
    "E": tuple[str, str, Entry],
    "R": tuple[str, str, int, list[str]],  # reset: number, references
    "X": tuple[str, str, int, list[str], list[str]],  # erased: number, ids of entries, references
    "M": tuple[str, str, list[tuple[str, int | None]]],  # marks, and until when
    "N": tuple[str, str, list[tuple[str, int, int]]],  # repeats: entry, sum, time of the last one
    "Q": tuple[str, str, str, str, tuple[str, str | None, bool, str]],  # request: id, machine, what to replay
}
_event_decoders = {kind: json.Decoder(type_, dec_hook=_name) for kind, type_ in _EVENTS.items()}


def encode(value: Entry | Sequence[Any]) -> str:
    return _encoder.encode(value).decode()


def without_local_fields(entry: Entry) -> Entry:
    """For other machines: without the fields of deliveries that are known on one machine only."""
    local = {"owner": "", "lease_until_ms": 0, "is_accepted": True, "begins": 0}
    return replace(entry, deliveries=tuple([replace(delivery, **local) for delivery in entry.deliveries]))


# An event is an entry of 800 bytes, and Redis keeps 600,000 of them in memory. Compressed with a dictionary of what
# most events have in common, it takes a third of that.
_COMMON = (
    b'"skipped","waiting","dead","content":"c","waits_for":"g","stop":{"name":"g-:"reason":"next_try_ms":"reset":"gate"'
    b'"sendgrid","ses","mailgun","postmark","already_processed","skipped_subject_group","queued","Re: Fwd: :.0.0..0'
    b'["E","0123456789",{"id":"","machine":"","own":["e:2027-01-","e:2026-11-17:","p:<@mail.>"],"created_ms":17'
    b',"fingerprint":"","about":{"item":"","provider":"gmail","route":"default","subject":"","sender":"@gmail.com"'
    b',"server":"","recipient":"@example.com","thread":""},"deliveries":[{"destination":"crm","webhook_id":"msg_"'
    b',"status":"delivered","tries":1,"attempts":[{"at_ms":17,"latency_ms":1,"status_code":200}],"ended_ms":17'
    b',"server":""}],"answer":"processed","settled_ms":17}]'
)
_WINDOW, _MEMORY = -12, 5  # 4 KB: larger tables would cost more to set up than an event costs to compress


def pack_event(kind: str, machine: str, *values: Any) -> bytes:
    """An event of that kind, which the machine publishes."""
    shared = [without_local_fields(value) if isinstance(value, Entry) else value for value in values]
    packer = zlib.compressobj(6, zlib.DEFLATED, _WINDOW, _MEMORY, zlib.Z_DEFAULT_STRATEGY, _COMMON)
    return packer.compress(_encoder.encode([kind, machine, *shared])) + packer.flush()


def read_event(packed: bytes) -> Sequence[Any] | None:
    """Kind, machine and values; None if it cannot be read because another program or another version wrote it."""
    try:
        text = zlib.decompressobj(_WINDOW, _COMMON).decompress(packed)
        event: Sequence[Any] = _event_decoders[text[2:3].decode()].decode(text)
        return event
    except (zlib.error, MsgspecError, LookupError, UnicodeDecodeError):
        return None
