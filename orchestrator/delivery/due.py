"""Delivers what is due: what failed for now, what was replayed or released, and what a lost message left behind."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from deduplication.errors import DeduplicationError
from deduplication.journal.base import MOST_LOOKED_AT, Journal
from deduplication.journal.entry import Delivery, DeliveryStatus
from orchestrator.delivery.schedule import MOST_AGE_MS, TOO_OLD
from orchestrator.delivery.sender import MOST_AT_ONCE, Sender

log = logging.getLogger(__name__)

TICK_S = 1.0
TAKEN_AHEAD = 10  # for each thread: enough to be busy until the next tick, and little to give back at the end
HOLD_MS = 60_000  # what was handed out and never begun is due again after this
FIRST_AFTER_TROUBLE = 2  # in the first second
MOST_A_SECOND = 40  # for each thread
GIVEN_UP_EVERY_S, GIVEN_UP_AT_ONCE = 60.0, 1_000


@dataclass(frozen=True)
class Chore:
    """Something to do every so often."""

    every_s: float
    do: Callable[[], object]


class Pace:
    """How many a destination is given in a second. After trouble few at first, twice as many with each second that goes
    well, half as many after one that does not. Never more than ``most``: emails that come meanwhile want their turn."""

    def __init__(self, at_once: int, most: int) -> None:
        self._at_once, self._most = at_once, most
        self._a_second = self._left = most
        self._has_failed = False

    @property
    def is_full(self) -> bool:
        """Whoever has done with what he was given need not wait for the next second."""
        return self._a_second >= self._at_once

    @property
    def room(self) -> int:
        return max(0, min(self._at_once, self._left))

    def start_anew(self) -> None:
        self._a_second = self._left = min(self._most, FIRST_AFTER_TROUBLE)

    def give(self, count: int) -> None:
        self._left -= count

    def note_failure(self) -> None:
        self._has_failed = True

    def next_second(self) -> None:
        if self._a_second < self._most:
            wanted = self._a_second // 2 if self._has_failed else self._a_second * 2
            self._a_second = min(self._most, max(wanted, FIRST_AFTER_TROUBLE))
        self._left, self._has_failed = self._a_second, False


@dataclass
class Recovery:
    """What waits longer than it need is gone through once for each time that a destination became well again."""

    well_since_ms: int
    from_ms: int | None = 0  # None: all of it was


class DueDeliveries:
    """Looks every second, and delivers in threads: for each destination its own, so that none waits for another.

    Every process does, web or worker; the journal hands each delivery to one of them. What waits behind a destination
    that is not well or paused is not even looked at, but for what waits too long to be sent at all. Once it is well,
    what waits for it goes out, paced: whatever process found out, and whatever becomes of that one.
    """

    def __init__(
        self,
        journal: Journal,
        sender: Sender,
        destinations: Iterable[str],
        threads_each: int,
        chores: Sequence[Chore] = (),
        ask: Callable[[Mapping[str, int], int], list[tuple[str, str]]] | None = None,
    ) -> None:
        """``ask`` for what is due, where that is not all of it: then others see to what was put off."""
        self._journal = journal
        self._ask = ask or journal.due
        self._is_for_all = ask is None
        self._sender = sender
        self._most_each = threads_each * TAKEN_AHEAD
        self._pools = {name: ThreadPoolExecutor(threads_each, f"due-{name}") for name in destinations}
        self._of_no_destination = ThreadPoolExecutor(1, "due")  # no longer in mailonce.toml: settled without a POST
        self._paces = {name: Pace(self._most_each, threads_each * MOST_A_SECOND) for name in self._pools}
        self._recoveries = {name: Recovery(0, None) for name in self._pools}
        self._at_work: Counter[str] = Counter()
        self._has_more: set[str] = set()
        self._lock = threading.Lock()
        own_chores = (Chore(GIVEN_UP_EVERY_S, self.give_up_what_is_too_old),) if self._is_for_all else ()
        all_chores = (*chores, *own_chores)
        self._chores = [(chore, time.monotonic() + chore.every_s) for chore in all_chores]
        self._stop = threading.Event()
        self._look_again = threading.Event()
        self._thread = threading.Thread(target=self._run, name="due", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """What is under way is finished; what only waits for a thread is due again later."""
        self._stop.set()
        self._look_again.set()
        if self._thread.is_alive():
            self._thread.join()
        for pool in (*self._pools.values(), self._of_no_destination):
            pool.shutdown(cancel_futures=True)

    def tick(self) -> None:
        """One second of the thread."""
        self._sender.states.refresh()
        with self._lock:
            for pace in self._paces.values():
                pace.next_second()
        self.look()

    def look(self) -> None:
        """Hands to the threads what they have room for."""
        names = {*self._pools, *self._journal.destinations()}
        room = {name: left for name in sorted(names) if (left := self._room_at(name)) > 0}
        found = self._ask(room, HOLD_MS)
        counts = Counter(destination for _, destination in found)
        # Of those that had no room now, nothing new is known: all their threads are busy with what was found before.
        self._has_more -= room.keys()
        self._has_more |= {name for name, left in room.items() if counts[name] == left}
        for entry, destination in found:
            self._hand_out(entry, destination)
        for name, left in room.items():
            if (
                self._is_for_all and name in self._pools and left > max(1, counts[name])
            ):  # 1: a probe, or the last place
                self._recover(name, left - counts[name])

    def _recover(self, destination: str, room: int) -> None:
        """Those that were last tried before it was well. What fails from now on keeps its own schedule."""
        recovery, well_since_ms = self._recoveries[destination], self._sender.states.of(destination).well_since_ms
        if well_since_ms > recovery.well_since_ms:
            recovery = self._recoveries[destination] = Recovery(well_since_ms)
        if recovery.from_ms is None:
            return
        found = self._journal.recover(destination, well_since_ms, recovery.from_ms, room, HOLD_MS)
        recovery.from_ms = found.go_on_ms
        if found.go_on_ms is not None:
            self._has_more.add(destination)
        for entry in found.entries:
            self._hand_out(entry, destination)

    def _hand_out(self, entry: str, destination: str) -> None:
        with self._lock:
            self._at_work[destination] += 1
            if destination in self._paces:
                self._paces[destination].give(1)
        self._pools.get(destination, self._of_no_destination).submit(self._deliver, entry, destination)

    def _room_at(self, destination: str) -> int:
        allowed = self._sender.room_at(destination)
        with self._lock:
            left = min(allowed, self._most_each - self._at_work[destination])
            pace = self._paces.get(destination)
            if pace is None:
                return left
            if allowed < MOST_AT_ONCE:
                pace.start_anew()
                return left
            return min(left, pace.room)

    def _deliver(self, entry: str, destination: str) -> None:
        sent: Delivery | None = None
        try:
            sent = self._sender.deliver_or_leave(entry, destination)
        finally:
            with self._lock:
                self._at_work[destination] -= 1
                pace = self._paces.get(destination)
                if pace and sent and sent.status is not DeliveryStatus.DELIVERED:
                    pace.note_failure()
                is_idle_soon = self._at_work[destination] <= self._most_each // 2
                if destination in self._has_more and is_idle_soon and pace and pace.is_full:
                    self._look_again.set()

    def give_up_what_is_too_old(self) -> None:
        """Behind a destination that is down hardly anything is tried, so hardly anything would end.

        The time stands still while it is paused: it counts from when it was last resumed.
        """
        for name in self._pools:
            before_ms = self._journal.now_ms() - MOST_AGE_MS
            if not self._sender.is_down(name) or self._sender.states.of(name).resumed_ms > before_ms:
                continue
            for _ in range(0, GIVEN_UP_AT_ONCE, MOST_LOOKED_AT):
                expired = self._journal.expire(name, before_ms, MOST_LOOKED_AT, f"{name}: {TOO_OLD}")
                if expired:
                    self._sender.meter.count_attempt(name, DeliveryStatus.DEAD, len(expired))
                    log.warning("destination %s: %d deliveries are dead letters: %s", name, len(expired), TOO_OLD)
                if len(expired) < MOST_LOOKED_AT:
                    break

    def _run(self) -> None:
        tick_at = time.monotonic() + TICK_S
        while True:
            self._look_again.wait(max(0.0, tick_at - time.monotonic()))
            self._look_again.clear()
            if self._stop.is_set():
                return
            try:
                if time.monotonic() < tick_at:
                    self.look()
                    continue
                tick_at = time.monotonic() + TICK_S
                self.tick()
                self._do_chores()
            except DeduplicationError as error:
                log.error("looking for due deliveries failed: %s", error)
            except Exception:
                log.exception("looking for due deliveries failed")

    def _do_chores(self) -> None:
        now = time.monotonic()
        for place, (chore, at) in enumerate(self._chores):
            if now >= at:
                self._chores[place] = (chore, now + chore.every_s)
                chore.do()
