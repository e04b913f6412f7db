"""A fleet on a stage: two machines, one with two processes, and a Redis that goes, comes and forgets.

Redis is real; its time and its run_id are handed in, so that nothing happens by itself. Requests and replies get lost
between the client and the socket. The judge is a counting sink: an email is posted once, but in the windows that
docs/architecture.md names.
"""

import contextlib
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest
import redis
from msgspec.structs import replace

from deduplication import again, erasing
from deduplication.errors import StoreUnavailable
from deduplication.journal.coordinator import Claimed, Lent
from deduplication.journal.entry import SETTLED, DeliveryStatus, Entry
from deduplication.journal.registry import read_reference
from deduplication.journal.rules import Judgement, Repeat, shared_names
from deduplication.names import Gate, Name
from tests.deduplication.journal.world import (
    HOLD_MS,
    LEASE_MS,
    Email,
    Line,
    Machine,
    TimeOfRedis,
    ask,
    returned,
    skipped,
)
from tests.support.redis_server import RedisServer

BOTH = ("crm", "chat")
CASTS = (  # emails with the same key are requests of one email
    (Email("a"), Email("b", destinations=BOTH, message_id="<b@x>"), Email("b", message_id="<b@x>")),
    (Email("a"), Email("g1", group="lot_3"), Email("g2", group="lot_3"), Email("g3", group="lot_3", destinations=BOTH)),
    (Email("m1", media=("x",)), Email("m2", media=("x",), destinations=BOTH), Email("m3", media=("x", "y"))),
    (Email("w1", words=True, destinations=BOTH), Email("w2", words=True), Email("w3", words=True)),
    (Email("n1", group="lot_3", media=("x",)), Email("n2", media=("x",), words=True), Email("n3", group="lot_3")),
    (
        Email("v", message_id="<v@x>", media=("x",)),
        Email("v", message_id="<v@x>", media=("x", "y"), group="lot_3", day="2026-11-18", destinations=BOTH),
        Email("u", media=("y",)),
        Email("g1", group="lot_3"),
    ),
)
GATES = (Gate.SUBJECT_GROUP, Gate.MEDIA, Gate.CONTENT)
FAILURES = ("stored", "returned", "dead", "skipped")


@dataclass(eq=False)
class Flight:
    """A request, or a stored delivery that was taken. ``posted``: who received it, None before the POST."""

    process: Machine
    email: Email
    destinations: list[str]
    until_ms: int
    claimed: Claimed | None = None
    lent: Lent | None = None
    posted: list[str] | None = None

    def shared_names(self, destination: str) -> list[Name]:
        """Those that a POST marks."""
        held = self.lent or self.claimed
        return list(shared_names(held.entry, destination)) if held else []


@dataclass
class Judge:
    """``excused``: emails in a window; ``asked``: those that came; ``answered``: their provider was told 2xx.

    ``again``: how often an operator let an email be sent again; ``sent``: the emails that marked a shared name;
    ``released``: emails for which shared names do not count; ``unsure``: names that an operator may have changed;
    ``retries``: the fewest that an entry was returned with.
    """

    posts: Counter[tuple[str, str]] = field(default_factory=Counter)
    again: Counter[tuple[str, str]] = field(default_factory=Counter)
    sent: dict[Name, set[str]] = field(default_factory=lambda: defaultdict(set))
    released: set[str] = field(default_factory=set)
    erased: set[str] = field(default_factory=set)
    unsure: set[Name] = field(default_factory=set)
    retries: dict[str, int] = field(default_factory=dict)
    posted_by: dict[str, set[str]] = field(default_factory=dict)
    excused: set[str] = field(default_factory=set)
    asked: set[str] = field(default_factory=set)
    answered: set[str] = field(default_factory=set)
    has_lost_disk: bool = False
    has_lost_memory: bool = False

    def post(self, flight: Flight, destination: str) -> None:
        key = flight.email.key
        self.posts[key, destination] += 1
        self.posted_by.setdefault(key, set()).add(flight.process.name)
        is_first = self.posts[key, destination] <= 1 + self.again[key, destination]
        assert is_first or key in self.excused, f"{key} was posted to {destination} twice"
        marked = flight.shared_names(destination)
        names = marked if flight.lent else gates_of(flight.email, destination)
        for gate in GATES:
            by = [self.sent[name] for name in names if name.gate is gate]
            is_repeat = bool(by) and all(keys and key not in keys for keys in by)
            assert not is_repeat or key in self.excused | self.released, f"the {gate} of {key} was sent by {by}"
        for name in marked:
            if name in names:
                self.sent[name].add(key)
            else:  # another request of the email had it
                self.unsure.add(name)


def gates_of(email: Email, destination: str) -> list[Name]:
    """The names that it shares with other emails there."""
    claim = email.claim("")
    words = [wanted.content for wanted in claim.destinations if wanted.content and wanted.destination == destination]
    return [*claim.shared, *words]


class Stage:
    def __init__(self, server: RedisServer, monkeypatch: pytest.MonkeyPatch, emails: Sequence[Email]) -> None:
        self.emails = emails
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
                    self._excuse(flight.email)  # window a: it stands still between POST and note, past its lease
            for process in cut:
                self._excuse_unpublished(process)  # window c
        if self.judge.has_lost_memory and ms >= HOLD_MS and cut:
            names = {process.name for process in cut}  # window d: who knew does not reach Redis within HOLD
            for email in self.emails:
                if self.judge.posted_by.get(email.key, set()) & names:
                    self._excuse(email)
            for flight in self.flights:
                if flight.process in cut:
                    self._excuse(flight.email)
        self.time.pass_ms(ms)
        self.beat()

    def wait_until_open(self) -> None:
        """A new era grants names again, and every process knows it."""
        self.pass_time(HOLD_MS + 1)
        self.pass_time(3_000)

    def _excuse(self, email: Email) -> None:
        """A window for an email is one for those that share a name with it as well."""
        shared = {name for one in self.emails if one.key == email.key for name in self._all_gates(one)}
        self.judge.excused |= {one.key for one in self.emails if shared & self._all_gates(one)} | {email.key}

    def _all_gates(self, email: Email) -> set[Name]:
        return {name for destination in email.destinations for name in gates_of(email, destination)}

    def _email_of(self, entry: Entry) -> Email:
        return next(email for email in self.emails if f"id-{email.key}" == entry.about.item)

    def _excuse_unpublished(self, process: Machine) -> None:
        with process.journal.reading() as step:
            unpublished = step.outbox(100)
        for _, _, entry in unpublished:
            self._excuse(self._email_of(entry))

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
                self._excuse(email)  # window b: claimed without Redis
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
            Flight(process, self._email_of(each.entry), [each.delivery.destination], each.until_ms, lent=each)
            for each in lent
        ]
        self.flights += flights
        return flights

    def post(self, flight: Flight, count: int = 2) -> None:
        """``count``: how many destinations receive it."""
        if flight.until_ms <= self.time.steady_ms:  # the check just before the POST
            self.flights.remove(flight)
            return
        flight.posted = flight.destinations[:count]
        for destination in flight.posted:
            self.judge.post(flight, destination)

    def settle(self, flight: Flight, failed: str = "stored") -> None:
        self.flights.remove(flight)
        with contextlib.suppress(StoreUnavailable):
            if flight.lent:
                self._finish(flight, flight.lent, failed)
            elif flight.claimed:
                self._settle(flight, flight.claimed, failed)

    def _finish(self, flight: Flight, lent: Lent, failed: str) -> None:
        later = replace(lent.delivery, next_try_ms=self.time.now_ms, tries=lent.delivery.tries + 1)
        ended = {"dead": DeliveryStatus.DEAD, "skipped": DeliveryStatus.SKIPPED}
        status = DeliveryStatus.DELIVERED if flight.posted else ended.get(failed)
        flight.process.coordinator.finish(lent, replace(lent.delivery, status=status) if status else later)

    def _settle(self, flight: Flight, claimed: Claimed, failed: str) -> None:
        """What failed is stored or returned; without Redis nothing is stored (rule 7)."""
        is_stored = failed == "stored" and not claimed.is_alone
        ends = []
        for planned in claimed.plan:
            status = planned.status
            if status is DeliveryStatus.CLAIMED:
                status = DeliveryStatus.WAITING if is_stored else DeliveryStatus.RETURNED
            if planned.destination in (flight.posted or ()):
                status = DeliveryStatus.DELIVERED
            next_try_ms = self.time.now_ms if status is DeliveryStatus.WAITING else None
            ends.append(replace(planned, status=status, next_try_ms=next_try_ms))
        is_kept = any(each.status in (DeliveryStatus.WAITING, DeliveryStatus.SKIPPED) for each in ends)
        payload = b"payload" if is_kept else None
        is_returned = any(each.status is DeliveryStatus.RETURNED for each in ends)
        left = max(1, (claimed.entry.retries_left or 9) - 1) if is_returned else None
        settled = flight.process.coordinator.settle(claimed, ends, "answer", payload, left)
        if settled.entry and left:
            self.judge.retries[settled.entry.id] = min(left, self.judge.retries.get(settled.entry.id, left))
        if settled.is_safe and not is_returned:
            self.judge.answered.add(flight.email.key)

    def late(self, process: Machine, step: str) -> None:
        """A step of one process, before or after those of others."""
        with contextlib.suppress(StoreUnavailable):
            getattr(process.coordinator, step)()

    # Operators. What raises StoreUnavailable may have been done.

    def forget(self, process: Machine, email: Email, name: Name) -> None:
        before = self.judge.unsure - {name}
        self.judge.unsure = before | {name}
        with contextlib.suppress(StoreUnavailable):
            is_kept = bool(again.forget(process.coordinator, {name.label: name}))
            if is_kept:
                return
            self.judge.unsure = before
        self.judge.sent.pop(name, None)
        for destination in BOTH if name.is_own else ():
            self.judge.again[email.key, destination] += 1

    def mark(self, process: Machine, name: Name) -> None:
        self.judge.unsure.add(name)
        with contextlib.suppress(StoreUnavailable):
            again.mark(process.coordinator, [name])

    def send_again(self, process: Machine, entry: Entry, destination: str | None) -> None:
        self.judge.released.add(self._email_of(entry).key)
        with contextlib.suppress(StoreUnavailable):
            again.replay(process.coordinator, entry.id, destination)

    def reopen(self, process: Machine, entry: Entry, destination: str) -> None:
        key = self._email_of(entry).key
        if again.reopen(process.coordinator, entry.id, destination):
            self.judge.again[key, destination] += 1
            self.judge.released.add(key)

    def erase(self, process: Machine, entry: Entry) -> None:
        self.judge.erased.add(self._email_of(entry).key)
        with contextlib.suppress(StoreUnavailable):
            erasing.erase(process.coordinator, [entry])

    def entries(self, process: Machine) -> list[Entry]:
        with process.journal.reading() as step:
            return [entry for _, entry in step.read_rows("1 = 1 ORDER BY seq", ())]

    # Faults

    def kill(self, process: Machine) -> None:
        self._end_flights(process)
        process.restart()

    def _end_flights(self, process: Machine) -> None:
        for flight in self.flights:
            if flight.process is process and flight.posted:
                self._excuse(flight.email)  # window a
        self.flights = [each for each in self.flights if each.process is not process]

    def lose_disk(self) -> None:
        process = self.processes[2]
        self.judge.has_lost_disk = True
        self.judge.retries.clear()
        self._excuse_unpublished(process)
        if self.judge.has_lost_memory:
            for email in self.emails:
                if process.name in self.judge.posted_by.get(email.key, set()):
                    self._excuse(email)
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
            for email in self.emails:
                if email.key in asked:
                    self.ask(email, self.processes[turn % 3])
                for destination in email.destinations:
                    self.take(self.processes[(turn + 1) % 3], destination)
                for flight in list(self.flights):
                    self._complete(flight)
        assert asked <= self.judge.answered, f"no answer for {asked - self.judge.answered}"
        if not (self.judge.has_lost_disk and self.judge.has_lost_memory):  # window e
            self._check_ends(asked - self.judge.erased)
            self._check_agreement()
        self._check_names()

    def _check_ends(self, asked: set[str]) -> None:
        """What was answered was sent, or a person can see it, and release it."""
        for email in self.emails:
            for destination in email.destinations if email.key in asked else ():
                is_ended = self.judge.posts[email.key, destination] or self._is_kept(email, destination)
                assert is_ended, f"{email.key} was lost at {destination}"

    def _is_kept(self, email: Email, destination: str) -> bool:
        for process in self.processes:
            for entry in self.entries(process):
                delivery = entry.delivery_to(destination) if entry.about.item == f"id-{email.key}" else None
                if delivery and delivery.status is DeliveryStatus.DEAD:
                    return True
                with process.journal.reading() as step:
                    if delivery and delivery.status is DeliveryStatus.SKIPPED and step.payload(entry.id):
                        return True
        return False

    def _check_agreement(self) -> None:
        """Both machines and Redis know the same ends, and publishing and following again changes nothing."""
        self.beat()
        known = [{one.id: ends for one in self.entries(each) if (ends := _ends(one))} for each in self.processes]
        assert known[0] == known[2], "the machines disagree"
        for id_, ends in known[0].items():
            text: Any = self.raw.get(f"e:{id_}")
            in_redis = _ends(read_reference(id_, text.decode())) if text else {}
            assert in_redis == ends, f"Redis has {in_redis}, and the machines have {ends}"
            assert "waiting" not in {status for status, _ in ends.values()}, f"{id_} still waits"
        for process in self.processes:
            for entry in self.entries(process):
                left = self.judge.retries.get(entry.id, entry.retries_left)
                assert entry.retries_left == left, f"{entry.id} has {entry.retries_left} retries left, not {left}"
        before = [self.entries(process) for process in self.processes], sorted(self.raw.scan_iter("[en]:*"))
        self.beat()
        after = [self.entries(process) for process in self.processes], sorted(self.raw.scan_iter("[en]:*"))
        assert before == after, "publishing and following again changed something"

    def _check_names(self) -> None:
        """Another email with a shared name is sent if the name is free, and skipped if it is marked."""
        places = {name: to for one in self.emails for to in one.destinations for name in gates_of(one, to)}
        for number, (name, destination) in enumerate(places.items()):
            has = {name.gate: name.value}
            for process in (self.processes[0], self.processes[2]):
                fresh = Email(
                    f"fresh {number} {process.name}",
                    group=has.get(Gate.SUBJECT_GROUP, ""),
                    media=(has[Gate.MEDIA],) if Gate.MEDIA in has else (),
                    words=Gate.CONTENT in has,
                    destinations=(destination,),
                )
                found = ask(process, fresh)
                assert isinstance(found, Claimed), f"{name}: {found}"
                status = found.plan[0].status
                returned(process, found) if found.to_send else skipped(process, found)
                process.coordinator.publish_settled()
                assert status is not DeliveryStatus.WAITING, f"nobody holds {name}, and another email waits for it"
                owners = self.judge.sent.get(name, set())
                if name not in self.judge.unsure and not owners & self.judge.excused and not self.judge.erased & owners:
                    assert (status is DeliveryStatus.SKIPPED) == bool(owners), f"{name} was sent by {owners}: {status}"

    def _complete(self, flight: Flight) -> None:
        if flight.posted is None:
            self.post(flight)
        if flight in self.flights:
            self.settle(flight)


def _ends(entry: Entry) -> dict[str, tuple[str, int]]:
    ended = [delivery for delivery in entry.deliveries if delivery.status in SETTLED]
    return {delivery.destination: (delivery.status.value, delivery.generation) for delivery in ended}
