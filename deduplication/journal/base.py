"""What every journal promises. tests/deduplication/journal/test_contract.py holds each of them to it.

The journal has one *entry* for each item received. Its names are the index to it; its deliveries are inside. Every step
below is atomic, and all times are the journal's own. docs/architecture.md tells why the rules are as they are.

* ``claim`` asks for an item by all its names at once. It answers

  - ``Duplicate`` without an entry: an exact repeat of a settled item; the repeat is counted in the same step.
  - ``Duplicate`` with an entry: stopped by a name it shares with another item, or by a mark that another program made.
    The entry is the owner's, and becomes done in the settlement that stores its payload.
  - ``InFlight``: another owner is at this item, or at one that holds a shared name. Nothing changed.
  - ``Claimed``: the entry is the owner's until the lease ends, with all that is known of its deliveries. Media that
    other items brought and destinations that had the same words before are left out.

  The same owner asking again gets the same answer, and may ask with other shared names: those it no longer makes are
  given back.
* ``before_sending`` is the last look before a POST: None if the lease is over, else the entry with what an earlier
  owner turns out to have delivered without settling it. ``note_delivered`` is said right after the POST.
* ``settle`` ends a claim: done (the provider is told 2xx) or free (it keeps the item and sends it again). Own names are
  marked once it is done. Shared names are marked at the first delivery, held while a delivery is open, and given back
  otherwise. An owner that lost the entry decides nothing any more, but what it delivered is taken as a fact. A stopped
  item whose original turned out dead meanwhile is not settled: False.
* ``renew`` starts the lease anew: of the claim, or of one delivery that was begun. False: it is no longer the owner's.
* ``due`` hands out deliveries of done entries whose time has come, and moves each on by ``hold_ms`` so that one process
  gets it. ``begin`` takes one for its owner: None if there is nothing to do (settled, begun elsewhere, its words are
  on their way there). The third begin without a finish makes it dead. ``finish`` records what became of it.
* The last delivery of an entry to end decides for its shared names: delivered somewhere, they stay; dead everywhere,
  they are free, and the oldest item stopped by them goes out in its place.
* ``read`` gives an entry by its id, ``find`` goes through them, newest first. ``payload`` is what is kept to be sent.
* ``forget`` drops names as if they had never been. An entry that is still to be delivered keeps its own names.

A journal that cannot answer raises StoreUnavailable, one that is set up wrongly StoreMisconfigured.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from deduplication.claims import WEEK_MS, Gate, Name
from deduplication.journal.entry import About, Delivery, Entry, Stop

MOST_BEGINS = 3


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
    stop: Stop
    answer: str = ""
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
class Begun:
    entry: Entry
    delivery: Delivery
    payload: bytes | None


@dataclass(frozen=True)
class Retention:
    """How long entries are kept; what is still to be delivered is kept for as long as it is."""

    entry_ms: int = WEEK_MS
    dead_ms: int = 30 * 24 * 3600 * 1000


DEFAULT_RETENTION = Retention()


@dataclass(frozen=True)
class Forgotten:
    """How many names are gone, and the entries that keep theirs because they are still to be delivered."""

    names: int
    kept: tuple[str, ...] = ()


class Journal(Protocol):
    def claim(self, claim: Claim) -> Verdict: ...
    def settle(self, claim: Claim, entry: Entry, settlement: Settlement) -> bool: ...
    def before_sending(self, claimed: Claimed) -> Entry | None: ...
    def note_delivered(self, entry: Entry, delivery: Delivery) -> None: ...
    def renew(self, entry: str, owner: str, lease_ms: int, destination: str | None = None) -> bool: ...
    def due(self, room: Mapping[str, int], hold_ms: int) -> list[tuple[str, str]]: ...
    def begin(self, entry: str, destination: str, owner: str, lease_ms: int) -> Begun | None: ...
    def finish(self, entry: str, owner: str, delivery: Delivery) -> Entry | None: ...
    def read(self, entry: str) -> Entry | None: ...
    def payload(self, entry: str) -> bytes | None: ...
    def find(self) -> Iterator[Entry]: ...
    def forget(self, names: Sequence[Name]) -> Forgotten: ...
    def now_ms(self) -> int: ...
    def check(self) -> None: ...
    def close(self) -> None: ...
