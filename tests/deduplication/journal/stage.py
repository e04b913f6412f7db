"""A fleet on a stage: two machines, one with two processes, and a Redis that goes, comes and forgets.

Redis is real; its time and its run_id are handed in, so that nothing happens by itself. Requests and replies get lost
between the client and the socket. The judge is a counting sink: an email is posted once, but in the windows that
docs/architecture.md names.
"""

import contextlib
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest
import redis
from msgspec.structs import replace

from deduplication.errors import StoreUnavailable
from deduplication.journal.coordinator import Claimed, Lent
from deduplication.journal.entry import DeliveryStatus, Entry
from deduplication.journal.rules import Judgement, Repeat
from tests.deduplication.journal.world import HOLD_MS, LEASE_MS, Email, Line, Machine, TimeOfRedis
from tests.support.redis_server import RedisServer

EMAILS = (
    Email("a", destinations=("crm",)),
    Email("b", destinations=("crm", "chat"), message_id="<b@x>"),
    Email("g1", group="lot_3", destinations=("crm",)),
    Email("g2", group="lot_3", destinations=("crm",)),
)


@dataclass(eq=False)
class Flight:
    """A request, or a stored delivery that was taken. ``posted`` is None before the POST, and False if it failed."""

    process: Machine
    email: Email
    destinations: list[str]
    until_ms: int
    claimed: Claimed | None = None
    lent: Lent | None = None
    posted: bool | None = None


@dataclass
class Judge:
    """``excused``: emails in a window; ``asked``: those that came; ``answered``: their provider was told 2xx."""

    posts: Counter[tuple[str, str]] = field(default_factory=Counter)
    posted_by: dict[str, set[str]] = field(default_factory=dict)
    excused: set[str] = field(default_factory=set)
    asked: set[str] = field(default_factory=set)
    answered: set[str] = field(default_factory=set)
    has_lost_disk: bool = False
    has_lost_memory: bool = False

    def post(self, email: Email, destination: str, machine: str) -> None:
        self.posts[email.key, destination] += 1
        self.posted_by.setdefault(email.key, set()).add(machine)
        count = self.posts[email.key, destination]
        assert count == 1 or email.key in self.excused, f"{email.key} was posted to {destination} twice"

    def excuse(self, email: Email) -> None:
        """A window for an email is one for its group as well."""
        self.excused.add(email.key)
        if email.group:
            self.excused |= {each.key for each in EMAILS if each.group == email.group}


class Stage:
    def __init__(self, server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
        server.client.flushall()
        self.time, self.runs, self.judge = TimeOfRedis(server, monkeypatch), 1, Judge()
        self.flights: list[Flight] = []
        self.snapshot: dict[Any, Any] = {}
        self.raw = redis.Redis(port=server.port)
        self.lines = [Line(), Line(), Line()]
        first = Machine(server.url, self.time, wrap=self.lines[0].wrap)
        second = Machine(server.url, self.time, wrap=self.lines[1].wrap, folder=first.folder, host=first.host)
        third = Machine(server.url, self.time, wrap=self.lines[2].wrap)
        self.processes = [first, second, third]
        self.beat()
        self.time.pass_ms(HOLD_MS + 1)
        self.beat()

    def close(self) -> None:
        for process in self.processes[1:]:
            process.stop()
        self.processes[0].close()
        self.processes[2].close()
        for client in (self.raw, *(each for line in self.lines for each in line.clients)):
            client.close()

    # What happens by itself

    def tick(self, process: Machine) -> None:
        with contextlib.suppress(StoreUnavailable):
            process.tick()

    def follow(self, process: Machine) -> None:
        with contextlib.suppress(StoreUnavailable):
            if process.coordinator.redis.status == "up":
                process.follow()

    def beat(self) -> None:
        """What happens every second: each process that reaches Redis publishes and reads."""
        for process in (*self.processes, *self.processes):
            self.tick(process)
            self.follow(process)

    def pass_time(self, ms: int) -> None:
        """With everything that happens every second, before and after."""
        self.beat()
        cut = [process for process, line in zip(self.processes, self.lines, strict=True) if line.is_cut]
        if ms >= LEASE_MS:
            for flight in self.flights:
                if flight.posted:
                    self.judge.excuse(flight.email)  # window a: it stands still between POST and note, past its lease
            for process in cut:
                self._excuse_unpublished(process)  # window c
        if self.judge.has_lost_memory and ms >= HOLD_MS and cut:
            names = {process.name for process in cut}  # window d: who knew does not reach Redis within HOLD
            for email in EMAILS:
                if self.judge.posted_by.get(email.key, set()) & names:
                    self.judge.excuse(email)
            for flight in self.flights:
                if flight.process in cut:
                    self.judge.excuse(flight.email)
        self.time.pass_ms(ms)
        self.beat()

    def wait_until_open(self) -> None:
        """A new era grants names again, and every process knows it."""
        self.pass_time(HOLD_MS + 1)
        self.pass_time(3_000)

    def _excuse_unpublished(self, process: Machine) -> None:
        with process.journal.reading() as step:
            unpublished = step.outbox(100)
        for _, _, entry in unpublished:
            self.judge.excuse(_email_of(entry))

    # Requests and stored deliveries

    def ask(self, email: Email, process: Machine) -> Claimed | Judgement | None:
        """None: the provider is asked to retry."""
        self.judge.asked.add(email.key)
        try:
            found = process.coordinator.claim(email.claim(process.coordinator.new_owner()))
        except StoreUnavailable:
            return None
        if isinstance(found, Repeat):
            self.judge.answered.add(email.key)
        if isinstance(found, Claimed):
            if found.is_alone:
                self.judge.excuse(email)  # window b: claimed without Redis
            destinations = [each.destination for each in found.to_send]
            self.flights.append(Flight(process, email, destinations, found.lease_until_ms, found))
        return found

    def take(self, process: Machine, destination: str) -> list[Flight]:
        try:
            lent = process.coordinator.take(destination, 5, LEASE_MS)
        except StoreUnavailable:
            return []
        assert all(each.payload == b"payload" for each in lent)
        flights = [
            Flight(process, _email_of(each.entry), [each.delivery.destination], each.until_ms, lent=each)
            for each in lent
        ]
        self.flights += flights
        return flights

    def post(self, flight: Flight, succeeds: bool = True) -> None:
        if flight.until_ms <= self.time.steady_ms:  # the check just before the POST
            self.flights.remove(flight)
            return
        flight.posted = succeeds
        if succeeds:
            for destination in flight.destinations:
                self.judge.post(flight.email, destination, flight.process.name)

    def settle(self, flight: Flight, stores: bool = True) -> None:
        self.flights.remove(flight)
        with contextlib.suppress(StoreUnavailable):
            if flight.lent:
                self._finish(flight, flight.lent)
            elif flight.claimed:
                self._settle(flight, flight.claimed, stores)

    def _finish(self, flight: Flight, lent: Lent) -> None:
        later = replace(lent.delivery, next_try_ms=self.time.now_ms, tries=lent.delivery.tries + 1)
        done = replace(lent.delivery, status=DeliveryStatus.DELIVERED)
        flight.process.coordinator.finish(lent, done if flight.posted else later)

    def _settle(self, flight: Flight, claimed: Claimed, stores: bool) -> None:
        """What failed is stored or returned; without Redis nothing is stored (rule 7)."""
        failed = DeliveryStatus.WAITING if stores and not claimed.is_alone else DeliveryStatus.RETURNED
        status = DeliveryStatus.DELIVERED if flight.posted else failed
        ends = [
            replace(each, status=status if each.status is DeliveryStatus.CLAIMED else each.status)
            for each in claimed.plan
        ]
        ends = [
            replace(each, next_try_ms=self.time.now_ms) if each.status is DeliveryStatus.WAITING else each
            for each in ends
        ]
        is_kept = any(each.status in (DeliveryStatus.WAITING, DeliveryStatus.SKIPPED) for each in ends)
        payload = b"payload" if is_kept else None
        settled = flight.process.coordinator.settle(claimed, ends, "answer", payload)
        if settled.is_safe and not any(each.status is DeliveryStatus.RETURNED for each in ends):
            self.judge.answered.add(flight.email.key)

    # Faults

    def kill(self, process: Machine) -> None:
        self._end_flights(process)
        process.restart()

    def _end_flights(self, process: Machine) -> None:
        for flight in self.flights:
            if flight.process is process and flight.posted:
                self.judge.excuse(flight.email)  # window a
        self.flights = [each for each in self.flights if each.process is not process]

    def lose_disk(self) -> None:
        process = self.processes[2]
        self.judge.has_lost_disk = True
        self._excuse_unpublished(process)
        if self.judge.has_lost_memory:
            for email in EMAILS:
                if process.name in self.judge.posted_by.get(email.key, set()):
                    self.judge.excuse(email)
        self._end_flights(process)
        process.lose_disk()

    def save_snapshot(self) -> None:
        keys = [key for key in self.raw.scan_iter() if not key.startswith(b"test:")]
        self.snapshot = {key: self.raw.dump(key) for key in keys}

    def restart_redis(self, keeps: Literal["all", "snapshot", "nothing"]) -> None:
        """``nothing``: it was emptied while it ran on."""
        for line in self.lines:
            line.late.clear()
        if keeps != "all":
            self.judge.has_lost_memory = True
            self.raw.flushall()
        if keeps == "snapshot":
            for key, value in self.snapshot.items():
                self.raw.restore(key, 0, value)
        if keeps != "nothing":
            self.runs += 1
        self.raw.mset({"test:now": self.time.now_ms, "test:run": self.runs})

    def run_late_requests(self) -> None:
        for line in self.lines:
            late, line.late = line.late, []
            for each in late:
                each()

    # The end

    def end_well(self) -> None:
        """Everything recovers, and the providers retry. Then every email is delivered, or skipped for its group."""
        for line in self.lines:
            line.is_cut, line.next_fault = False, ""
        self.run_late_requests()
        for flight in list(self.flights):
            self._complete(flight)
        asked = set(self.judge.asked)
        for turn in range(6):
            self.pass_time(LEASE_MS + 1_000)
            for email in EMAILS:
                if email.key in asked:
                    self.ask(email, self.processes[turn % 3])
                for destination in email.destinations:
                    self.take(self.processes[(turn + 1) % 3], destination)
                for flight in list(self.flights):
                    self._complete(flight)
        assert asked <= self.judge.answered, f"no answer for {asked - self.judge.answered}"
        is_group_out = any(self.judge.posts[email.key, "crm"] for email in EMAILS if email.group)
        is_excused = self.judge.has_lost_disk and self.judge.has_lost_memory
        for email in EMAILS:
            if email.key in asked and not (email.group and is_group_out) and not is_excused:
                for destination in email.destinations:
                    is_ended = self.judge.posts[email.key, destination] or self._is_dead(email, destination)
                    assert is_ended, f"{email.key} was lost"

    def _is_dead(self, email: Email, destination: str) -> bool:
        """Its takers died three times: a dead letter, which a person can see."""
        with self.processes[0].journal.reading() as step:
            entries = [entry for _, entry in step.read_rows("1 = 1", ())]
        made = [entry.delivery_to(destination) for entry in entries if entry.about.item == f"id-{email.key}"]
        return any(each is not None and each.status is DeliveryStatus.DEAD for each in made)

    def _complete(self, flight: Flight) -> None:
        if flight.posted is None:
            self.post(flight)
        if flight in self.flights:
            self.settle(flight)


def _email_of(entry: Entry) -> Email:
    return next(email for email in EMAILS if f"id-{email.key}" == entry.about.item)
