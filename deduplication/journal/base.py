"""What every journal promises. tests/deduplication/journal/test_contract.py holds each of them to it.

The journal has one *entry* for each item received. Its names are the index to it; its deliveries are inside. Every step
below is atomic, and all times are the journal's own. docs/architecture-old.md tells why the rules are as they are.

* ``claim`` asks for an item by all its names at once. It answers

  - ``Duplicate`` without an entry: an exact repeat of a settled item; the repeat is counted in the same step. At the
    gate ``proof`` it is another item, that comes with a proof which was good for the first; it is not counted.
  - ``Duplicate`` with an entry: stopped by a name it shares with another item, or by a mark that another program made.
    The entry is the owner's, and becomes done in the settlement that stores its payload.
  - ``InFlight``: another owner is at this item, or at one that holds a shared name. Nothing changed.
  - ``Claimed``: the entry is the owner's until the lease ends, with all that is known of its deliveries. Media that
    other items brought and destinations that had the same words before are left out.

  The same owner asking again gets the same answer, and may ask with other shared names: those it no longer makes are
  given back.
* ``claim_many`` and ``settle_many`` take these steps for several items in one round trip, or one transaction. Each item
  is as atomic as ever, and for itself: an error that is its own stands in the place of its answer, and only what keeps
  all of them from being answered is raised. Items that share a name do not belong into one call: of two, the second
  would hear that the first is under way.
* ``before_sending`` is the last look before a POST: None if the lease is over, else the entry with what an earlier
  owner turns out to have delivered without settling it. ``note_delivered`` is said right after the POST.
* ``settle`` ends a claim: done (the provider is told 2xx) or free (it keeps the item and sends it again). Own names are
  marked once it is done. Shared names are marked at the first delivery, held while a delivery is open, and given back
  otherwise. Said again by the same owner it gets the same answer. An owner that lost the entry decides nothing any
  more, but what it delivered is taken as a fact. A stopped item whose original turned out dead meanwhile is not
  settled: False.
* ``renew`` starts the lease anew: of the claim, or of one delivery that was begun. False: it is no longer the owner's.
* ``due`` hands out deliveries of done entries whose time has come, and moves each on by ``hold_ms`` so that one process
  gets it. ``begin`` takes one for its owner: None if there is nothing to do (settled, begun elsewhere, its words are
  on their way there). The third begin without a finish makes it dead. ``finish`` records what became of it.
* ``recover`` hands out what waits longer than it need, once a destination is well again: deliveries whose next try lies
  beyond the hold (what is due within it may be in somebody's hands) and that were last tried before ``well_since_ms``.
  They are gone through in the order of their next try, from ``from_ms`` on; the answer says where to go on. What fails
  after that keeps its own schedule. ``expire`` gives up what has waited since before a time, of the first so many of a
  destination, and answers with their ids.
* ``states`` are those of the destinations that anything is known of, for the whole fleet: paused or not, and when they
  were last well. ``put_states`` adds what is told (destination_state.py says what counts), and answers with all.
* ``memo`` is a text under a name, for whoever keeps something beside the entries; ``change_memo`` changes it where it
  is still as it was before (None: there was none). On two sides each has its own.
* ``under_way`` lists what someone is at now: locks, and deliveries of requests and workers. A request at an item that
  first came hours ago may be missing. ``drop_lapsed_locks`` removes what crashed holders left; on Redis that goes by
  itself.
* The last delivery of an entry to end decides for its shared names: delivered somewhere, they stay; dead everywhere,
  they are free, and the oldest item stopped by them goes out in its place.
* ``replay`` sends an entry to one of its destinations again, past all gates, as a new generation of that delivery with
  its attempts kept. Refused, in this order: nothing is known of it; the destination has it or was to be left out,
  unless forced; someone is at it now; its payload is gone. It takes the shared names that nobody else has now, and
  those that are marked stay so whatever becomes of it. Forced on one that was skipped, it is a release. One that waits
  anyway is tried now, unless forced: due at once, its schedule from the beginning, and all else as it is.
* ``release`` lets an entry go out, or those of its deliveries, that was skipped: once, and past all shared names, of
  which it takes none. It follows nobody any more. Refused where nothing is skipped, where another entry under its own
  names was delivered (unless forced), and where its payload is gone.
* ``reopen`` drops what is known of one destination, its words there included, and gives the entry back: a re-send joins
  it and goes to that destination alone. False where there is no such delivery, or something of the entry is still to
  be delivered.
* ``payload`` is what is kept to be sent: while a delivery is open, and of what ended dead or skipped as long as the
  entry. Once all is delivered it goes, at once or after the time that Retention gives. ``storage`` tells what payloads
  take and may take. A settlement that needs more for what is to be sent raises NoRoom, and settles nothing; what was
  dead or skipped is settled without its payload then. What is skipped uses only what others leave, and the oldest goes
  first. ``locate_payloads`` tells where the payloads of entries are now.
* ``read`` gives an entry by its id, ``find`` goes through them, newest first, and reads nothing outside of its window.
  ``destinations`` are those that something waits for; on Redis there may be more.
* ``read_all`` gives several entries by their ids, those that are known, in one step.
* ``news`` tells of the entries that came since it was last asked, wherever they stand among the others, and of those
  that were taken up again after their end, or given back; then, a page at a time, of those that came before it was
  first asked, the newest first. ``places`` is what it answered last, "" at first. One may be told more than once.
* ``shared_key`` is a key that all who share the journal have; ``candidate`` becomes it where there is none.
* ``list_deliveries`` goes along the index of what waits, by the next try, or of what is dead, newest death first, from
  after a position that it gave before. Waiting is what the journal itself will hand out: not what was given back to its
  provider. What gets another time meanwhile may be met twice or not at all. ``count_deliveries`` tells the size of
  these indexes, by destination; what is begun counts as waiting until it is finished.
* ``look`` tells for each name whether it is marked, and the entries that have or hold it now. ``names`` searches for
  every name that is marked, also by other programs, or that an item has or holds; one may come more than once.
* ``forget`` drops names as if they had never been. An entry that is still to be delivered keeps its own names. One that
  no destination has loses its marks alone: it is free, and a re-send joins it, with its history and payload.

A journal that cannot answer raises StoreUnavailable, one that is set up wrongly StoreMisconfigured.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, TypeVar

from deduplication.claims import WEEK_MS, Gate, Name, Pattern
from deduplication.errors import DeduplicationError
from deduplication.journal.destination_state import DestinationState
from deduplication.journal.entry import About, Delivery, DeliveryStatus, Entry, Fate, Stop
from deduplication.journal.following import News
from deduplication.journal.listing import ALL, Count, Listed, PayloadPlace, Position, Window
from deduplication.journal.storage import Storage

T = TypeVar("T")

MOST_BEGINS = 3
MOST_LOOKED_AT = 200  # in one step, of what waits


@dataclass(frozen=True)
class Wanted:
    """A destination the item is to go to."""

    destination: str
    webhook_id: str
    content: Name | None = None


@dataclass(frozen=True)
class Claim:
    """``entry`` is the id that the item's entry gets if it has none. ``own`` names in the order in which they count."""

    entry: str
    owner: str
    own: tuple[Name, ...]
    shared: tuple[Name, ...] = ()
    destinations: tuple[Wanted, ...] = ()
    fingerprint: str = ""
    lease_ms: int = 60_000
    about: About = About()
    is_trial: bool = False


@dataclass(frozen=True)
class Claimed:
    """``is_first``: nobody held the item before; otherwise it may have been delivered without being settled."""

    entry: Entry
    left_out: tuple[str, ...] = ()
    is_first: bool = True


@dataclass(frozen=True)
class Duplicate:
    """Of an exact repeat: ``answer`` is what the first one's provider was told, ``fate`` what has become of it."""

    stop: Stop
    answer: str = ""
    fate: Fate = Fate.OVER
    entry: Entry | None = None


@dataclass(frozen=True)
class InFlight:
    gate: Gate
    name: str
    retry_after_ms: int


Verdict = Claimed | Duplicate | InFlight


class Ending(StrEnum):
    """How a claim ends."""

    DONE = "done"
    FREE = "free"


@dataclass(frozen=True)
class Settlement:
    """``deliveries``: those that became something. ``answer`` is the status its provider is told."""

    ending: Ending
    answer: str = ""
    deliveries: tuple[Delivery, ...] = ()
    retries_left: int | None = None
    payload: bytes | None = None


@dataclass(frozen=True)
class Settling:
    """One of several settlements: which claim ends, on which entry, and how."""

    claim: Claim
    entry: Entry
    settlement: Settlement


def answer_or_raise(answer: T | DeduplicationError) -> T:
    """Of one of several: its answer, or its own error."""
    if isinstance(answer, DeduplicationError):
        raise answer
    return answer


@dataclass(frozen=True)
class Begun:
    entry: Entry
    delivery: Delivery
    payload: bytes | None


@dataclass(frozen=True)
class Recovered:
    """``go_on_ms``: from where to ask for more; None: that was all."""

    entries: tuple[str, ...]
    go_on_ms: int | None


class Replayed(StrEnum):
    """What became of a wish to send it there again."""

    REPLAYED = "replayed"
    UNKNOWN = "unknown"
    ALREADY_DELIVERED = "already_delivered"
    UNDER_WAY = "under_way"
    NO_PAYLOAD = "no_payload"


class Released(StrEnum):
    """What became of a wish to send what was skipped."""

    RELEASED = "released"
    ALREADY_RELEASED = "already_released"
    UNKNOWN = "unknown"
    NOT_SUPPRESSED = "not_suppressed"
    ALREADY_DELIVERED = "already_delivered"
    NO_PAYLOAD = "no_payload"


@dataclass(frozen=True)
class UnderWay:
    """A lock (``delivery`` None), or one delivery that a request or a worker is at. ``until_ms`` is the time of day."""

    entry: Entry
    delivery: Delivery | None
    until_ms: int


@dataclass(frozen=True)
class Found:
    """What is known of a name now."""

    name: Name
    is_marked: bool
    entries: tuple[Entry, ...] = ()


@dataclass(frozen=True)
class Retention:
    """How long entries are kept; what is still to be delivered is kept for as long as it is.

    ``delivered_payload_ms``: a payload of which everything was delivered; 0 drops it at once.
    """

    entry_ms: int = WEEK_MS
    dead_ms: int = 30 * 24 * 3600 * 1000
    delivered_payload_ms: int = 0


DEFAULT_RETENTION = Retention()


@dataclass(frozen=True)
class Forgotten:
    """How many names are gone, and the entries that keep theirs because they are still to be delivered."""

    names: int
    kept: tuple[str, ...] = ()


class Journal(Protocol):
    def claim(self, claim: Claim) -> Verdict: ...
    def claim_many(self, claims: Sequence[Claim]) -> list[Verdict | DeduplicationError]: ...
    def settle(self, claim: Claim, entry: Entry, settlement: Settlement) -> bool: ...
    def settle_many(self, settlings: Sequence[Settling]) -> list[bool | DeduplicationError]: ...
    def before_sending(self, claimed: Claimed) -> Entry | None: ...
    def note_delivered(self, entry: Entry, delivery: Delivery) -> None: ...
    def renew(self, entry: str, owner: str, lease_ms: int, destination: str | None = None) -> bool: ...
    def due(self, room: Mapping[str, int], hold_ms: int) -> list[tuple[str, str]]: ...
    def begin(self, entry: str, destination: str, owner: str, lease_ms: int, server: str = "") -> Begun | None: ...
    def finish(self, entry: str, owner: str, delivery: Delivery) -> Entry | None: ...
    def replay(
        self, entry: str, destination: str, *, force: bool = False, webhook_id: str | None = None
    ) -> Replayed: ...
    def release(self, entry: str, *, force: bool = False) -> Released: ...
    def reopen(self, entry: str, destination: str) -> bool: ...
    def destinations(self) -> list[str]: ...
    def recover(self, destination: str, well_since_ms: int, from_ms: int, limit: int, hold_ms: int) -> Recovered: ...
    def expire(self, destination: str, before_ms: int, limit: int, reason: str) -> list[str]: ...
    def states(self) -> dict[str, DestinationState]: ...
    def put_states(self, states: Mapping[str, DestinationState]) -> dict[str, DestinationState]: ...
    def memo(self, name: str) -> str | None: ...
    def change_memo(self, name: str, before: str | None, memo: str) -> bool: ...
    def under_way(self) -> list[UnderWay]: ...
    def drop_lapsed_locks(self) -> int: ...
    def read(self, entry: str) -> Entry | None: ...
    def payload(self, entry: str) -> bytes | None: ...
    def storage(self) -> Storage: ...
    def locate_payloads(self, entries: Sequence[str]) -> dict[str, PayloadPlace]: ...
    def find(self, window: Window = ALL) -> Iterator[Entry]: ...
    def read_all(self, entries: Sequence[str]) -> dict[str, Entry]: ...
    def news(self, places: str, limit: int) -> News: ...
    def shared_key(self, candidate: bytes) -> bytes: ...
    def list_deliveries(
        self, status: DeliveryStatus, destination: str | None = None, after: Position | None = None
    ) -> Iterator[Listed]:
        """``status``: waiting or dead."""
        ...

    def count_deliveries(self) -> dict[str, Count]: ...
    def look(self, names: Sequence[Name]) -> list[Found]: ...
    def names(self, pattern: Pattern) -> Iterator[Name]: ...
    def forget(self, names: Sequence[Name]) -> Forgotten: ...
    def now_ms(self) -> int: ...
    def lease_time_ms(self) -> int:
        """What the leases in its entries are measured by."""
        ...

    def check(self) -> None: ...
    def close(self) -> None: ...
