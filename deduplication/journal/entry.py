"""The values of the journal: an entry for each item received, with a delivery for each of its destinations.

``encode`` is the one layout of an entry: the row in SQLite, the event on the stream, the stored delivery in Redis.
"""

from __future__ import annotations

import random
import zlib
from base64 import b32encode
from enum import StrEnum
from functools import lru_cache
from typing import Any

from msgspec import Struct, json
from msgspec.structs import replace

from deduplication.names import WEEK_MS, Gate, Kind, Name

BY_SCRIPT = ""  # the destination of a claim whose owner publishes the item itself: reservations


def new_entry_id() -> str:
    """Twelve letters and digits, and no secret. Random bytes of the system would be a call at which another thread may
    take over; Python seeds its own ones again in each forked process."""
    return b32encode(random.randbytes(8))[:12].decode().lower()  # noqa: S311


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


class Stop(Struct, frozen=True, omit_defaults=True):
    """Why an item is not sent: the name it met, and the entry it repeats (None: marked by an import, another program
    or an email that this machine never knew)."""

    name: Name
    original: str | None = None
    first_seen_ms: int | None = None

    @property
    def gate(self) -> Gate:
        return self.name.gate


class About(Struct, frozen=True, omit_defaults=True):
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


class Entry(Struct, frozen=True, omit_defaults=True):
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
        return replace(self, deliveries=known)

    def with_delivery(self, delivery: Delivery) -> Entry:
        others = tuple(each for each in self.deliveries if each.destination != delivery.destination)
        return replace(self, deliveries=(*others, delivery))


SOME_NAME = Name(Kind.LOCK, "", "")  # in place of the name that a delivery waits for, where it is not known

_CODES = dict(zip(Kind, "epgmcl", strict=True))
_KINDS = {code: kind for kind, code in _CODES.items()}
_KEPT = {Kind.EMAIL_ID: None, Kind.POST: WEEK_MS, Kind.MEDIA: WEEK_MS}  # said only where it differs


def _name_text(name: Name) -> str:
    kept = "" if _KEPT.get(name.kind, 0) == name.kept_ms else "-" if name.kept_ms is None else str(name.kept_ms)
    return f"{_CODES[name.kind]}{kept}:{name.scope}:{name.value}"


@lru_cache(maxsize=4096)
def _name(_: type, text: str) -> Name:
    head, scope, value = text.split(":", 2)
    kind, kept = _KINDS[head[0]], head[1:]
    return Name(kind, scope, value, _KEPT.get(kind) if not kept else None if kept == "-" else int(kept))


_encoder = json.Encoder(enc_hook=_name_text)
_decoder = json.Decoder(Entry, dec_hook=_name)
_event_decoder = json.Decoder(tuple[str, str, Entry], dec_hook=_name)
decode = _decoder.decode


def encode(entry: Entry) -> str:
    """Without what one machine alone knows of the deliveries."""
    shared = tuple([replace(each, owner="", lease_until_ms=0, is_accepted=True) for each in entry.deliveries])
    return _encoder.encode(replace(entry, deliveries=shared)).decode()


def to_json(value: Any) -> str:
    return json.encode(value).decode()


# An event is an entry of half a kilobyte, and 600,000 of them are kept in the memory of the shared Redis. Compressed
# with what most of them have in common, it takes less than half of that.
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


def pack_event(text: str) -> bytes:
    packer = zlib.compressobj(6, zlib.DEFLATED, _WINDOW, _MEMORY, zlib.Z_DEFAULT_STRATEGY, _COMMON)
    return packer.compress(text.encode()) + packer.flush()


def decode_event(text: str) -> Entry:
    return _event_decoder.decode(text)[2]


def unpack_event(packed: bytes) -> str:
    """Empty if it cannot be read: it is of another program, or of a version with another layout."""
    try:
        return zlib.decompressobj(_WINDOW, _COMMON).decompress(packed).decode()
    except (zlib.error, UnicodeDecodeError):
        return ""
