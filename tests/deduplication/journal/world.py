"""Machines of a fleet in one process, each with its own journal, against a real Redis. Time is handed in."""

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hiredis
import pytest
import redis
from msgspec.structs import replace

from deduplication.clock import Clock
from deduplication.content import content_name
from deduplication.files import Retention
from deduplication.journal import registry as registry_module
from deduplication.journal.coordinator import Claimed, Coordinator, Lent, Settled
from deduplication.journal.entry import About, DeliveryStatus, Entry, new_entry_id
from deduplication.journal.fleet import Fleet
from deduplication.journal.registry import Registry, RegistryOptions
from deduplication.journal.rules import Claim, Judgement, Wanted
from deduplication.journal.sqlite import Journal
from deduplication.names import WEEK_MS, Fingerprint, Kind, Name, digest
from deduplication.redis_client import connect, exchange
from tests.support.redis_server import RedisServer

START_MS = 1_780_000_000_000
HOLD_MS = 1_000
LEASE_MS = 25_000


@dataclass
class Time:
    """The clocks of all machines; Redis has its own."""

    now_ms: int = START_MS
    steady_ms: int = 1_000_000

    def clock(self) -> Clock:
        return Clock(lambda: self.now_ms, lambda: self.steady_ms)

    def pass_ms(self, ms: int) -> None:
        self.now_ms += ms
        self.steady_ms += ms


class Machine:
    """``url`` None: a service without Redis. Its threads do not run: ``tick`` and ``follow`` are called by the test."""

    def __init__(
        self,
        url: str | None,
        time: Time,
        *,
        options: RegistryOptions | None = None,
        host: str = "",
        timeout_s: float = 10.0,  # on a busy machine, Redis answers late
        folder: Path | None = None,
        wrap: Callable[[Any], Any] = lambda client: client,
        retention: Retention | None = None,
    ) -> None:
        self.folder = folder or Path(tempfile.mkdtemp(prefix="mailonce-machine-"))
        self.wrap = wrap
        self.url, self.time, self.host, self.timeout_s = url, time, host or str(self.folder), timeout_s
        self.options = options or RegistryOptions(hold_ms=HOLD_MS)
        self.is_open, self.retention = True, retention
        self.clients: list[Any] = []
        self.start()

    def start(self) -> None:
        self.journal = Journal(self.folder / "journal.db", self.time.clock(), self.host, self.retention)
        if self.url is None:
            self.coordinator = Coordinator(self.journal)
            return
        registry = Registry(self.connect, self.journal.machine, self.journal.clock, self.options)
        self.coordinator = Coordinator(self.journal, registry, is_open=self.is_open)
        self.fleet = Fleet(self.coordinator)

    def connect(self, more_s: int) -> Any:
        assert self.url
        self.clients.append(connect(self.url, self.timeout_s + more_s, decode_responses=False))
        return self.wrap(self.clients[-1])

    def restart(self) -> None:
        """The processes die and start again; nothing is finished."""
        self.stop()
        self.start()

    def lose_disk(self) -> None:
        self.stop()
        shutil.rmtree(self.folder)
        self.folder.mkdir()
        self.start()

    def stop(self) -> None:
        self.journal.close()
        for client in self.clients:
            client.close()

    def close(self) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def name(self) -> str:
        return self.journal.machine

    @property
    def client(self) -> Any:
        """Its last one, without ``wrap``."""
        return self.clients[-1]

    @property
    def registry(self) -> Registry:
        assert self.coordinator.registry
        return self.coordinator.registry

    def tick(self) -> None:
        """All that the fleet's threads do but following, even if another process leads."""
        if self.url:
            self.fleet.check()
            while self.coordinator.publish_waiting():
                pass
            self.fleet.restore()

    def follow(self) -> None:
        if self.url:
            while self.fleet.follow():
                pass


def handed(script: str) -> str:
    """The script with the time and the run_id of the test."""
    now = "{math.floor(call('GET', 'test:now') / 1000), call('GET', 'test:now') % 1000 * 1000}"
    run = "('run_id:' .. call('GET', 'test:run'))"
    return script.replace("call('TIME')", now).replace("redis.pcall('INFO', 'server')", run)


class TimeOfRedis(Time):
    """It passes in Redis, too."""

    def __init__(self, server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self._client = server.client
        monkeypatch.setattr(registry_module, "SCRIPT", handed(registry_module.SCRIPT))
        self._client.mset({"test:now": self.now_ms, "test:run": "1"})

    def pass_ms(self, ms: int) -> None:
        super().pass_ms(ms)
        for key in self._client.scan_iter():
            left_ms = self._client.pttl(key)
            if left_ms >= 0:
                self._client.pexpire(key, max(0, left_ms - ms))
        self._client.set("test:now", self.now_ms)


class Line:
    """The connection of one process: it can be cut, lose a reply, or deliver a request late."""

    def __init__(self) -> None:
        self.is_cut = False
        self.next_fault = ""
        self.late: list[Callable[[], Any]] = []
        self.clients: list[Any] = []  # those of dead processes, too: what they sent may still arrive

    def wrap(self, client: Any) -> Any:
        line = self
        self.clients.append(client)

        class Connection:
            def send_packed_command(self, packed: list[bytes], check_health: bool) -> None:
                reader = hiredis.Reader()
                reader.feed(b"".join(packed))
                commands = list(iter(reader.gets, False))
                self.answers = line.call(lambda: exchange(client, commands))

            def read_response(self) -> Any:
                answer = self.answers.pop(0)
                if isinstance(answer, redis.exceptions.ResponseError):
                    raise answer
                return answer

            def disconnect(self) -> None:
                pass

        class Pool:
            get_connection = Connection

            def release(self, connection: Connection) -> None:
                pass

        class Client:
            connection_pool = Pool()

            def __getattr__(self, name: str) -> Any:
                method = getattr(client, name)
                if callable(method):
                    return lambda *arguments, **more: line.pass_on(lambda: method(*arguments, **more))
                return method

        return Client()

    def pass_on(self, ask: Callable[[], Any]) -> Any:
        if self.is_cut:
            raise redis.exceptions.ConnectionError("cut by the test")
        return ask()

    def call(self, ask: Callable[[], Any]) -> Any:
        fault, self.next_fault = self.next_fault, ""
        if self.is_cut:
            raise redis.exceptions.ConnectionError("cut by the test")
        if fault == "reply lost":
            ask()
            raise redis.exceptions.TimeoutError("reply lost by the test")
        if fault == "late":
            self.late.append(ask)
            raise redis.exceptions.TimeoutError("late by the test")
        return ask()


@dataclass
class Email:
    """What the tests claim. ``text`` and ``key`` make its fingerprint and its names."""

    key: str = "one"
    text: str = "text"
    day: str = "2026-11-17"
    message_id: str = ""
    group: str = ""
    media: tuple[str, ...] = ()
    destinations: tuple[str, ...] = ("crm",)
    words: bool = False
    proof: str = ""
    sender: str = "a@example.com"

    def claim(self, owner: str, lease_ms: int = LEASE_MS) -> Claim:
        fingerprint = str(Fingerprint(text=digest(self.text), head=digest(self.key)))
        own = [Name(Kind.EMAIL_ID, self.day, f"id-{self.key}")]
        if self.message_id:
            own.append(Name(Kind.POST, "", self.message_id, WEEK_MS))
        shared = [Name(Kind.SUBJECT_GROUP, "2026-11", self.group, WEEK_MS)] if self.group else []
        shared += [Name(Kind.MEDIA, "", each, WEEK_MS) for each in self.media]
        return Claim(
            entry=new_entry_id(),
            owner=owner,
            own=tuple(own),
            shared=tuple(shared),
            destinations=tuple(
                Wanted(each, f"msg_{self.key}_{each}", content_name(each, self.text) if self.words else None)
                for each in self.destinations
            ),
            fingerprint=fingerprint,
            lease_ms=lease_ms,
            about=About(item=f"id-{self.key}", provider="gmail", subject="Subject", sender=self.sender),
            proof=self.proof,
            key=f"{self.key}:{self.text}" if self.proof else "",
        )


def ask(machine: Machine, email: Email, lease_ms: int = LEASE_MS) -> Claimed | Judgement:
    return machine.coordinator.claim(email.claim(machine.coordinator.new_owner(), lease_ms))


def claimed(machine: Machine, email: Email, lease_ms: int = LEASE_MS) -> Claimed:
    found = ask(machine, email, lease_ms)
    assert isinstance(found, Claimed), found
    return found


def delivered(machine: Machine, claim: Claimed, *only: str) -> Settled:
    ends = [
        replace(each, status=DeliveryStatus.DELIVERED) for each in claim.to_send if not only or each.destination in only
    ]
    return machine.coordinator.settle(claim, ends, "processed")


def stored(machine: Machine, claim: Claimed, in_ms: int = 0, payload: bytes = b"payload") -> Settled:
    later = {"status": DeliveryStatus.WAITING, "next_try_ms": machine.time.now_ms + in_ms}
    ends = [replace(each, **later, tries=each.tries + 1) for each in claim.plan]
    return machine.coordinator.settle(claim, ends, "queued", payload)


def returned(machine: Machine, claim: Claimed, retries_left: int | None = None) -> Settled:
    ends = [replace(each, status=DeliveryStatus.RETURNED) for each in claim.to_send]
    return machine.coordinator.settle(claim, ends, retries_left=retries_left)


def skipped(machine: Machine, claim: Claimed, payload: bytes = b"payload") -> Settled:
    return machine.coordinator.settle(claim, claim.plan, "skipped", payload)


def send(machine: Machine, email: Email) -> Settled:
    return delivered(machine, claimed(machine, email))


def read(machine: Machine, entry_id: str) -> Entry:
    with machine.journal.reading() as step:
        found = step.read(entry_id)
    assert found
    return found


def take(machine: Machine, destination: str = "crm", limit: int = 10) -> list[Lent]:
    return machine.coordinator.take(destination, limit, LEASE_MS)
