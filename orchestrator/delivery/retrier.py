"""Delivers what is stored and due: what failed, what was replayed or released, and with DELIVER_BY=workers everything.

Any process may do it; the store hands each delivery to one of them (rule 18).
"""

import logging
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from deduplication.again import make_due
from deduplication.background import Threads
from deduplication.errors import StoreUnavailable, try_to
from deduplication.journal.coordinator import Lent
from deduplication.journal.entry import DeliveryStatus
from orchestrator.delivery.guard import Blocker
from orchestrator.delivery.sender import MOST_AGE_MS, TOO_OLD, Sender, put_off

log = logging.getLogger(__name__)

TICK_S = 1.0
WATCH_S = 0.05
BATCH_S = 0.5  # how long the deliveries that a thread takes at a time should keep it busy
MOST_AT_ONCE = 20
MOST_COMPARED = 50  # deliveries, when a probe is chosen
_DUE = """SELECT name FROM waiting_destinations WHERE EXISTS (SELECT 1 FROM deliveries WHERE status = 'waiting'
    AND destination = name AND next_try_ms <= ? AND lease_until_ms <= ?)"""


class Retrier:
    """Looks every second; a worker also as soon as something due is in this machine's journal. Each destination has
    threads of its own, so that a slow one never delays another.

    A paused destination is not looked at. One that is failing gets a delivery as a probe after each pause, whatever its
    next try; once one succeeds, everything that waits for it becomes due, and is sent at a growing pace.
    """

    def __init__(self, sender: Sender, threads: int, margin_s: float, *, is_worker: bool = False) -> None:
        """``threads``: for each destination. ``margin_s``: how much longer than an attempt its lease is."""
        self._sender = sender
        self._coordinator = sender.coordinator
        self._margin_s = margin_s
        self._pools = {name: ThreadPoolExecutor(threads, f"due-{name}") for name in sender.destinations}
        self._woken: set[str] = set()  # destinations where a thread is about to look
        self._batches: dict[str, int] = {}
        self._threads = Threads("retrier", self._tick_on, *([self._watch] if is_worker else []))
        self._stop = self._threads.stop
        self.start = self._threads.start

    def close(self) -> None:
        """Deliveries under way are finished."""
        self._threads.close()
        for pool in self._pools.values():
            pool.shutdown(cancel_futures=True)

    def _tick_on(self) -> None:
        self._stop.wait(TICK_S)
        self.tick()

    def tick(self) -> None:
        for name in self._pools:
            self.wake(name)
        for name in set(self._coordinator.destinations_with_waiting()).difference(self._pools):
            self.deliver_due(name)  # no longer in mailonce.toml: nothing is sent

    def wake(self, destination: str) -> None:
        """One more of the destination's threads looks for what is due there, unless one is about to."""
        if destination not in self._woken and not self._stop.is_set():
            self._woken.add(destination)
            self._pools[destination].submit(try_to, partial(self._drain, destination), f"destination {destination}")

    def _watch(self) -> None:
        """Wakes the destinations where something is due whenever the journal has changed: a request stored it, or the
        fleet's follower learnt that another machine stored it. Not while Redis cannot be asked."""
        coordinator, journal, seen = self._coordinator, self._coordinator.journal, None
        with journal.reading() as step:  # each query reads what is there by then; the version is of this connection
            while not self._stop.wait(WATCH_S):
                version = step.query("PRAGMA data_version")
                if version != seen and (coordinator.registry is None or coordinator.redis.status == "up"):
                    seen = version
                    due = step.query(_DUE, (journal.clock.now_ms(), journal.clock.steady_ms()))
                    for name in self._pools.keys() & {name for (name,) in due}:
                        self.wake(name)

    def _drain(self, destination: str) -> None:
        """One thread: until nothing more is due, or the destination is in trouble. If there is something, another one
        joins it."""
        self._woken.discard(destination)
        while self.deliver_due(destination) and self._sender.guard.breaker(destination) == "closed":
            self.wake(destination)

    def deliver_due(self, destination: str) -> int:
        """Takes some of what is due there and delivers it in this thread; how many there were."""
        wanted = self._wanted(destination)
        if not wanted or self._stop.is_set():
            return 0
        lent = self._coordinator.take(destination, wanted, self._lease_ms(destination))
        started = time.monotonic()
        for taken in lent:
            self._deliver(taken)
        if lent:
            attempt_s = max(0.001, (time.monotonic() - started) / len(lent))
            self._batches[destination] = max(1, min(MOST_AT_ONCE, int(BATCH_S / attempt_s)))
        return len(lent)

    def _lease_ms(self, destination: str) -> int:
        return int((self._sender.limit_s(destination) + self._margin_s) * 1000)

    def _wanted(self, destination: str) -> int:
        """How many deliveries are worth an attempt now: a batch, one as a probe, or none."""
        blocker = self._sender.guard.lasting_blocker(destination)
        if blocker is Blocker.NO_DESTINATION:
            return MOST_AT_ONCE  # they are settled without a POST
        if blocker:
            return 0
        with self._coordinator.journal.reading() as step:
            breaker, left_s = self._sender.guard.read_breaker(step, destination)
        if breaker == "open":
            return 0
        if left_s <= 0:
            self._choose_probe(destination)
        return 1 if breaker == "half-open" else self._batches.get(destination, 1)

    def _choose_probe(self, destination: str) -> None:
        """The newest one that was never tried, else the one whose last attempt was longest ago.

        A receiver may fail for some emails only: those that have failed say little about it. One that waits for a name
        or that another process has cannot be sent now.
        """
        waiting = "SELECT seq FROM deliveries WHERE status = 'waiting' AND destination = ? ORDER BY seq"
        with self._coordinator.journal.reading() as step:
            newest = step.read_rows(f"seq IN ({waiting} DESC LIMIT ?) ORDER BY seq DESC", (destination, MOST_COMPARED))
            oldest = step.read_rows(f"seq IN ({waiting} LIMIT 1)", (destination,))
        found = [(entry, entry.delivery_to(destination)) for _, entry in (*newest, *oldest)]
        free = [(entry, delivery) for entry, delivery in found if delivery and not delivery.waits_for]
        free.sort(key=lambda each: each[1].attempts[-1].at_ms if each[1].attempts else 0)
        next((entry for entry, delivery in free if make_due(self._coordinator, entry, delivery)), None)

    def _deliver(self, lent: Lent) -> None:
        """Whatever goes wrong, its lease ends and it is handed out again."""
        destination, clock = lent.delivery.destination, self._coordinator.journal.clock
        if lent.until_ms - clock.steady_ms() <= self._sender.limit_s(destination) * 1000:  # rule 4
            outcome = put_off(lent.delivery, "taken, but not begun in time", clock.now_ms())
        else:
            outcome = self._sender.send_stored(lent)
        try:
            if not self._coordinator.finish(lent, outcome):
                log.warning("entry %s: another process has taken over %s", lent.entry.id, destination)
        except StoreUnavailable as error:
            log.error("entry %s: %s is tried again later: %s", lent.entry.id, destination, error)
            return
        if outcome.status is DeliveryStatus.DEAD and outcome.reason and TOO_OLD in outcome.reason:
            self._give_up(destination)

    def _give_up(self, destination: str) -> None:
        """A probe that waited for 76 hours failed: others as old are not sent, but become dead letters at once."""
        now_ms, reason = self._coordinator.journal.clock.now_ms(), f"{destination}: {TOO_OLD}"
        while lent := self._coordinator.take(destination, 100, self._lease_ms(destination)):
            young = 0
            for taken in lent:
                if now_ms - taken.entry.created_ms > MOST_AGE_MS and not taken.delivery.generation:
                    ended = self._sender.give_up(taken.delivery, reason)
                else:
                    ended = put_off(taken.delivery, f"{destination}: {Blocker.BREAKER_OPEN}", now_ms)
                    young += 1
                self._coordinator.finish(taken, ended)
            if young:
                return
