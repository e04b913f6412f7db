"""The pipeline without HTTP around it: a real journal, and destinations that do as they are told.

What tests see of it is this: an email is sent, a status comes back, and destinations have got webhooks.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from deduplication.errors import DeduplicationError, StoreUnavailable
from deduplication.journal.base import Claim, Journal, Settlement, Settling, Verdict
from deduplication.journal.entry import Delivery, Entry
from deduplication.media import DEFAULT_HOSTS, IDENTITY_PARAMETERS
from deduplication.realtime_guard import RealtimeGuard
from deduplication.subject_group import DEFAULT_PATTERNS, GroupMode
from orchestrator.delivery.counters import process_counters
from orchestrator.delivery.destination_states import DestinationStates
from orchestrator.delivery.guard import Guard, Limits
from orchestrator.delivery.queue import QueueUnavailable
from orchestrator.delivery.sender import Clock, DestinationPolicy, Sender
from orchestrator.delivery.webhook import DeliveryFailed, Payload, Receipt, Webhook, unpack
from orchestrator.intake import Intake, Naming, Outcome, Sources
from orchestrator.item import Item, email_item
from orchestrator.leases import LeaseKeeper
from orchestrator.privacy import Privacy
from orchestrator.routing import Route, Router
from orchestrator.several import Several
from routes.providers import gmail
from tests.support.journals import FakeClock, JournalBench
from tests.support.server import email

LEASE_MS = 7_000  # shorter than a request may take: who sleeps over it has time left to do wrong
MAX_ATTEMPTS = 3
STARTED = datetime(2026, 11, 16, tzinfo=UTC)

DOWN = DeliveryFailed("answered 500", permanent=False, status_code=500)
REFUSES = DeliveryFailed("answered 422", permanent=True, status_code=422)
Reaction = DeliveryFailed | Exception | Callable[[], object] | None


@dataclass
class FakeDestination:
    """Reacts to one webhook after the other as told, and takes all after that; to those of a subject in ``by_subject``
    as that says, whatever their order.

    A reaction is an error to raise, None to take it, or something to do in the middle of taking it.
    """

    reactions: list[Reaction] = field(default_factory=list)
    by_subject: dict[str, list[Reaction]] = field(default_factory=dict)
    asked: list[Webhook] = field(default_factory=list)
    taken: list[Webhook] = field(default_factory=list)

    def deliver(self, webhook: Webhook, within_s: float | None = None) -> Receipt:
        self.asked.append(webhook)
        reactions = self.by_subject.get(webhook.payload.get("subject", ""), self.reactions)
        reaction = reactions.pop(0) if reactions else None
        if isinstance(reaction, Exception):
            raise reaction
        if reaction:
            reaction()
        self.taken.append(webhook)
        return Receipt(200)


@dataclass
class SwitchableJournal:
    """The journal under test, but for the steps that fail, and one thing that happens right after the next claim."""

    journal: Journal
    failing: set[str] = field(default_factory=set)
    after_claim: Callable[[], object] | None = None

    def __getattr__(self, name: str) -> Any:
        self._fail_if_told(name)
        return getattr(self.journal, name)

    def claim(self, claim: Claim) -> Verdict:
        self._fail_if_told("claim")
        verdict = self.journal.claim(claim)
        happens, self.after_claim = self.after_claim, None
        if happens:
            happens()
        return verdict

    def claim_many(self, claims: Sequence[Claim]) -> list[Verdict | DeduplicationError]:
        self._fail_if_told("claim")
        return self.journal.claim_many(claims)

    def settle(self, claim: Claim, entry: Entry, settlement: Settlement) -> bool:
        self._fail_if_told("settle")
        return self.journal.settle(claim, entry, settlement)

    def settle_many(self, settlings: Sequence[Settling]) -> list[bool | DeduplicationError]:
        self._fail_if_told("settle")
        return self.journal.settle_many(settlings)

    def finish(self, entry: str, owner: str, delivery: Delivery) -> Entry | None:
        self._fail_if_told("finish")
        return self.journal.finish(entry, owner, delivery)

    def _fail_if_told(self, step: str) -> None:
        if step in self.failing:
            raise StoreUnavailable(f"no {step} for now")


class FakeQueue:
    """Keeps what was announced, until the test lets a worker have it."""

    def __init__(self) -> None:
        self.is_away = False
        self.announced: list[tuple[str, str]] = []

    def put(self, entry: str, destination: str) -> None:
        self.check()
        self.announced.append((entry, destination))

    def check(self) -> None:
        if self.is_away:
            raise QueueUnavailable("connection refused")

    def depth(self, destination: str) -> int:
        return sum(to == destination for _, to in self.announced)

    def close(self) -> None:
        """Nothing to close."""


@dataclass(frozen=True)
class Pipeline:
    intake: Intake
    destinations: Mapping[str, FakeDestination]
    journal: SwitchableJournal
    queue: FakeQueue
    let_time_pass: Callable[[int], None]

    @property
    def sender(self) -> Sender:
        return self.intake.sender

    def send(self, **fields: Any) -> Outcome:
        """An email, as a provider would hand it over: what it is told."""
        return self.intake.receive(item(**fields))

    def send_many(self, *emails: Mapping[str, Any]) -> list[Outcome | Exception]:
        """Several emails of one request."""
        return Several(self.intake).receive([item(**fields) for fields in emails])

    def status_of(self, **fields: Any) -> str:
        return str(self.send(**fields).status)

    def entry(self, **fields: Any) -> Entry:
        """What the journal has of the email."""
        own = item(**fields).own_names
        known: dict[str, Entry] = {each.id: each for found in self.journal.look(own) for each in found.entries}
        assert len(known) == 1, known
        return next(iter(known.values()))

    def delivery(self, destination: str = "crm", **fields: Any) -> Delivery:
        known = self.entry(**fields).delivery_to(destination)
        assert known is not None
        return known

    def payload(self, **fields: Any) -> Payload | None:
        kept = self.journal.payload(self.entry(**fields).id)
        return unpack(kept) if kept else None

    def deliver_announced(self) -> None:
        """What a worker does with everything that was announced so far."""
        announced, self.queue.announced[:] = list(self.queue.announced), []
        for entry, destination in announced:
            self.sender.deliver_or_leave(entry, destination)

    def deliver_due(self) -> int:
        """What every process does each second: how many were due."""
        due = self.journal.due(dict.fromkeys(self.destinations, 100), hold_ms=60_000)
        for entry, destination in due:
            self.sender.deliver_or_leave(entry, destination)
        return len(due)

    def settle_what_is_owed(self) -> None:
        """What the background does every second."""
        self.intake.leases.settle_owed()


def item(**fields: Any) -> Item:
    return email_item(gmail.parse(email(**fields)), ids_kept_ms=None)


@contextmanager
def open_pipeline(
    bench: JournalBench,
    destinations: Mapping[str, FakeDestination],
    *,
    journal: Journal | None = None,
    with_queue: bool = False,
    **route: Any,
) -> Iterator[Pipeline]:
    """One server on the bench's journal; ``journal``: its own handle on it. ``route`` is what the one route says."""
    clock = FakeClock()

    def let_time_pass(ms: int) -> None:
        clock.advance(ms)
        bench.advance(ms)

    with ExitStack() as stack:
        switchable = SwitchableJournal(journal or bench.journal)
        numbers = itertools.count()
        sources = Sources(
            now=lambda: datetime.fromtimestamp(clock.ms / 1000, UTC),
            new_token=lambda: f"{id(switchable)}-{next(numbers)}",
            monotonic=lambda: clock.ms / 1000,
        )
        leases = LeaseKeeper(switchable, LEASE_MS)
        stack.callback(leases.close)
        sender = Sender(
            journal=switchable,
            leases=leases,
            policies={name: DestinationPolicy(each, max_attempts=MAX_ATTEMPTS) for name, each in destinations.items()},
            guard=Guard(
                process_counters(), process_counters(), dict.fromkeys(destinations, Limits(breaker_failures=0))
            ),
            pools={name: stack.enter_context(ThreadPoolExecutor(4)) for name in destinations},
            new_token=sources.new_token,
            states=DestinationStates(switchable, sources.monotonic),
            clock=Clock(bench.journal.now_ms, sources.monotonic, lambda _seconds: None),
        )
        queue = FakeQueue()
        intake = Intake(
            journal=switchable,
            leases=leases,
            router=Router((), Route("all", tuple(destinations), **{"group_mode": GroupMode.PATTERNS} | route)),
            sender=sender,
            naming=Naming(UTC, DEFAULT_PATTERNS, 0, DEFAULT_HOSTS, IDENTITY_PARAMETERS),
            guard=RealtimeGuard(STARTED),
            sources=sources,
            privacy=Privacy(switchable),
            queue=queue if with_queue else None,
        )
        yield Pipeline(intake, destinations, switchable, queue, let_time_pass)
