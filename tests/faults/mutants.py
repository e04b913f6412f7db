"""The rules of the failover, each left out in turn. A scenario must notice: make faults ARGS=mutants.

A process that imports this, and whose environment has FAULTS_MUTANT, goes without that rule.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deduplication.journal import failover, sqlite
from deduplication.journal.base import Claimed
from deduplication.journal.clock import Clock, system_clock
from deduplication.journal.entry import Entry
from deduplication.journal.failover import FailoverJournal
from deduplication.journal.side import MachineSide, Side
from deduplication.journal.spool import Note, Spool, SpoolFile


@dataclass(frozen=True)
class Mutant:
    """``caught_by``: the scenarios that should notice, the surest first."""

    leave_out: Callable[[], None]
    caught_by: tuple[str, ...]


def put(owner: Any, name: str, what: Any) -> None:
    setattr(owner, name, what)


class OwnSide(MachineSide):
    def __init__(self, folder: Path) -> None:
        own = folder / f"side-of-{os.getpid()}"
        own.mkdir(exist_ok=True)
        super().__init__(own)


def each_process_on_its_own_side() -> None:
    put(failover, "MachineSide", OwnSide)


def no_look_at_the_number() -> None:
    put(Note, "read", lambda _: 0)


def nothing_noted_after_the_post() -> None:
    put(FailoverJournal, "note_delivered", lambda *_: None)


def no_look_at_earlier_deliveries() -> None:
    def before_sending(self: FailoverJournal, claimed: Claimed) -> Entry | None:
        return claimed.entry if claimed.entry.lease_until_ms > self._clock.steady_ms() else None

    put(FailoverJournal, "before_sending", before_sending)


def no_patience() -> None:
    put(failover, "SILENT_TICKS", 1)
    put(failover, "REFUSED_TICKS", 1)


def back_to_redis_without_telling_it() -> None:
    real = FailoverJournal._tell_untold

    def tell_untold(self: FailoverJournal, older_than_ms: int = 0) -> None:
        if older_than_ms:  # behind the requests, later
            real(self, older_than_ms)

    put(FailoverJournal, "_tell_untold", tell_untold)


def unanswered_told_at_leisure() -> None:
    real = FailoverJournal._tell_untold

    def tell_untold(self: FailoverJournal, older_than_ms: int = 0) -> None:
        real(self, failover.CONFIRMED_WITHIN_MS if self.standing.side is Side.REDIS else older_than_ms)

    put(FailoverJournal, "_tell_untold", tell_untold)


def no_hold() -> None:
    real = FailoverJournal._merge

    def merge(self: FailoverJournal, entries: Sequence[Entry], hold_ms: int = 0) -> None:
        real(self, entries, min(hold_ms, 1))

    put(FailoverJournal, "_merge", merge)


def grants_not_noted() -> None:
    real = Spool.append

    def append(self: Spool, kind: str, *values: Any) -> SpoolFile:
        return real(self, "told") if kind == "granted" else real(self, kind, *values)

    put(Spool, "append", append)


def copies_not_kept() -> None:
    put(FailoverJournal, "_append_copies", lambda self, _copies: self._spool.append("told"))


def leases_by_the_time_of_day() -> None:
    def settable_clock(boot: int = 0) -> Clock:
        now_ms = system_clock(boot).now_ms
        return Clock(now_ms, now_ms)

    put(sqlite, "system_clock", settable_clock)


MUTANTS = {
    "each process on its own side": Mutant(each_process_on_its_own_side, ("one process cut off from Redis",)),
    "lost memory not noticed": Mutant(
        no_look_at_the_number, ("older snapshot and restart", "FLUSHALL, one server busy", "kill -9 Redis, AOF off")
    ),
    "nothing noted after the POST": Mutant(
        nothing_noted_after_the_post, ("kill -9 a process after note_delivered", "back between claim and settlement")
    ),
    "no look at earlier deliveries": Mutant(no_look_at_earlier_deliveries, ("kill -9 a process after note_delivered",)),
    "Redis left at the first timeout": Mutant(no_patience, ("SIGSTOP Redis 3 s", "Redis slow, 1.5 s")),
    "back to Redis without telling it": Mutant(
        back_to_redis_without_telling_it, ("network cut", "deliveries under way when Redis goes")
    ),
    "unanswered settlements told later": Mutant(unanswered_told_at_leisure, ("settlements lost",)),
    "no hold after a loss of memory": Mutant(no_hold, ("FLUSHALL, one server busy",)),
    "grants not in the spool": Mutant(grants_not_noted, ("deliveries under way when Redis goes",)),
    "copies of what waits not kept": Mutant(copies_not_kept, ("queue: kill -9 Redis, AOF off",)),
    "leases by the time of day": Mutant(
        leases_by_the_time_of_day, ("clock two minutes forward", "clock a day back after kill -9")
    ),
}

if chosen := os.environ.get("FAULTS_MUTANT"):
    MUTANTS[chosen].leave_out()
