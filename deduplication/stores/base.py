"""What every store promises. tests/deduplication/test_store_contract.py holds each of them to it.

A store remembers, for each name, who holds it and whether it is done. All times are the store's own.

* ``claim`` is one atomic step: all names are reserved, or none. It answers

  - ``Duplicate`` if a name of an earlier gate is done. An own name counts only where no part of the fingerprints that
    both know differs, and an undated id only where they agree in all (fingerprint.py says when). If a *shared* name
    (group, media) is done, the item is settled in the same step: its own names become done, so that it is never asked
    about again. Of several media all must be done; those that are done otherwise are left out of the claim.
  - ``InFlight`` if another owner holds a name and its lease has not run out;
  - ``Claimed`` otherwise, with a fencing number higher than any given before.

  The same owner asking again gets the same answer: a lost reply is never a duplicate.
* ``move(claim, to)`` is ``claim(to)`` by the same owner which also gives back, in the same step, the names that only
  the old claim has. If the answer is ``InFlight``, nothing changes.
* ``commit`` makes the names done. A name that someone else has taken over stays theirs; a name that was forgotten in
  between becomes done all the same, because the delivery did happen. True if no name was lost to another owner.
* ``release`` gives the names back; own names keep the retries left (never more than before). With 0 left the item is
  a dead letter: its own names are done, the shared ones are free for others. True if the owner still held them all.
* ``renew`` starts the lease anew. True if the owner still holds every name.
* ``drop_lapsed`` forgets names of a kind that are pending, but whose lease is over. Returns how many.
* ``forget`` drops names as if they had never been. ``read`` looks up given names and ``find`` searches for names;
  neither changes anything.

A store that cannot answer raises StoreUnavailable, one that is set up wrongly StoreMisconfigured.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from deduplication.claims import Claim, Gate, Kind, Name, Verdict


class State(StrEnum):
    PENDING = "pending"
    FREE = "free"
    DONE = "done"


@dataclass(frozen=True)
class Record:
    """What is known of one name and one fingerprint.

    ``gate``, ``by``, ``original`` and ``original_seen_ms`` are set where the item was settled without a delivery: the
    gate and name that stopped it, and the item it repeats. ``siblings`` are the labels of all names of the item.
    ``expires_ms`` None is for ever. ``mirrored_ms`` (local stores only): when Redis was last known to know it.
    """

    name: Name
    fingerprint: str
    state: State
    owner: str = ""
    item: str | None = None
    fence: int = 0
    lease_until_ms: int = 0
    retries_left: int | None = None
    first_seen_ms: int | None = None
    gate: Gate | None = None
    by: str | None = None
    original: str | None = None
    original_seen_ms: int | None = None
    siblings: tuple[str, ...] = ()
    expires_ms: int | None = None
    mirrored_ms: int | None = None


@dataclass(frozen=True)
class Pattern:
    """Which names to look at; None matches anything."""

    kind: Kind | None = None
    scope: str | None = None
    value: str | None = None

    def matches(self, name: Name) -> bool:
        return self.kind in (None, name.kind) and self.scope in (None, name.scope) and self.value in (None, name.value)


class Store(Protocol):
    def claim(self, claim: Claim) -> Verdict: ...
    def move(self, claim: Claim, to: Claim) -> Verdict: ...
    def commit(self, claim: Claim) -> bool: ...
    def release(self, claim: Claim, retries_left: int | None) -> bool: ...
    def renew(self, claim: Claim) -> bool: ...
    def drop_lapsed(self, kind: Kind) -> int: ...
    def read(self, names: Iterable[Name]) -> Iterator[Record]: ...
    def find(self, pattern: Pattern) -> Iterator[Record]: ...
    def forget(self, names: Iterable[Name]) -> int: ...
    def now_ms(self) -> int:
        """The store's own time."""
        ...

    def check(self) -> None:
        """Raises if the store could not take a claim now."""
        ...

    def close(self) -> None: ...
