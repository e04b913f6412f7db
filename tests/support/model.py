"""What a claim may be answered, said as simply as possible: the yardstick for every store."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from deduplication.claims import PENDING_KEPT_MS, Claim, Claimed, Duplicate, InFlight, Name


@dataclass
class Mark:
    """What the model knows of one name and fingerprint."""

    done_until: float = 0
    owner: str = ""
    lease_until: float = 0
    pending_until: float = 0


def is_same(name: Name, one: str, other: str) -> bool:
    """Whether fingerprints stand for one item: no part that both know differs; for an undated id all are equal.

    text.files.names.sizes.links.ids, "-" for unknown. Names are not asked where the files are known, and ids never.
    """
    if name.scope == "undated":
        return one == other and one[:1] not in ("", "-")
    ours, theirs = ((each if "." in each else f"{each or '-'}.-.-.-.-").split(".") for each in (one, other))
    both = [place for place in range(5) if "-" not in (ours[place], theirs[place])]
    differs = [place for place in both if ours[place] != theirs[place] and not (place == 2 and 1 in both)]
    return not differs


@dataclass
class Model:
    now: int = 0
    marks: dict[tuple[Name, str], Mark] = field(default_factory=lambda: defaultdict(Mark))
    fences: dict[tuple[str, Name], tuple[int, str]] = field(default_factory=dict)

    def met(self, claim: Claim, name: Name) -> Iterator[Mark]:
        wanted = claim.fingerprint_for(name)
        for (known, fingerprint), mark in list(self.marks.items()):
            if known == name and is_same(name, fingerprint, wanted):
                yield mark

    def is_done(self, claim: Claim, name: Name) -> bool:
        return any(mark.done_until > self.now for mark in self.met(claim, name))

    def is_held(self, claim: Claim, name: Name) -> bool:
        return any(mark.owner != claim.owner and mark.lease_until > self.now for mark in self.met(claim, name))

    def expected(self, claim: Claim) -> type:
        """Which kind of verdict a claim by a new owner must get."""
        for gate in dict.fromkeys(name.gate for name in claim.names):
            names = [name for name in claim.names if name.gate is gate]
            if any(self.is_done(claim, name) for name in names):
                return Duplicate
            if any(self.is_held(claim, name) for name in names):
                return InFlight
        return Claimed

    def mark(self, claim: Claim, name: Name) -> Mark:
        return self.marks[name, claim.fingerprint_for(name)]

    def reserve(self, claim: Claim) -> None:
        for name in claim.names:
            self.marks[name, claim.fingerprint_for(name)] = Mark(
                owner=claim.owner,
                lease_until=self.now + claim.lease_ms,
                pending_until=self.now + PENDING_KEPT_MS,
            )

    def owns(self, claim: Claim, name: Name) -> bool:
        """Pending under this owner, whether or not its lease is over."""
        mark = self.mark(claim, name)
        return mark.owner == claim.owner and mark.pending_until > self.now

    def may_settle(self, claim: Claim, name: Name) -> bool:
        """Its own, or forgotten altogether."""
        mark = self.marks.get((name, claim.fingerprint_for(name)))
        if mark is None or max(mark.pending_until, mark.done_until) <= self.now:
            return True
        return mark.owner == claim.owner

    def settle(self, claim: Claim, name: Name) -> None:
        until = float("inf") if name.kept_ms is None else self.now + name.kept_ms
        self.marks[name, claim.fingerprint_for(name)] = Mark(done_until=until, owner=claim.owner)
