"""The pipeline without HTTP around it: real names and records, and destinations that do as they are told.

What tests see of it is this: an email is sent, a status comes back, and destinations have got webhooks.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from deduplication.claims import Claim, Verdict
from deduplication.errors import StoreUnavailable
from deduplication.media import DEFAULT_HOSTS, IDENTITY_PARAMETERS
from deduplication.realtime_guard import RealtimeGuard
from deduplication.stores.base import Store
from deduplication.subject_group import DEFAULT_PATTERNS, GroupMode
from orchestrator.delivery.counters import process_counters
from orchestrator.delivery.courier import Clock, Courier, Place
from orchestrator.delivery.dispatch import Dispatcher
from orchestrator.delivery.guard import Guard, Limits
from orchestrator.delivery.ledger.sqlite import SqliteLedger
from orchestrator.delivery.outbox import Outbox, QueueUnavailable
from orchestrator.delivery.record import Delivery
from orchestrator.delivery.webhook import DeliveryFailed, Receipt, Webhook
from orchestrator.intake import Intake, Naming, Outcome, Sources
from orchestrator.item import email_item
from orchestrator.leases import LeaseKeeper
from orchestrator.routing import Route, Router
from routes.providers import gmail
from tests.support.server import email
from tests.support.stores import Bench, FakeClock

LEASE_MS = 7_000  # shorter than a request may take: who sleeps over it has time left to do wrong
MAX_ATTEMPTS = 3
STARTED = datetime(2026, 11, 16, tzinfo=UTC)

DOWN = DeliveryFailed("answered 500", permanent=False, status_code=500)
REFUSES = DeliveryFailed("answered 422", permanent=True, status_code=422)
Reaction = DeliveryFailed | Exception | Callable[[], object] | None


@dataclass
class FakeDestination:
    """Reacts to one webhook after the other as told, and takes all after that.

    A reaction is an error to raise, None to take it, or something to do in the middle of taking it.
    """

    reactions: list[Reaction] = field(default_factory=list)
    asked: list[Webhook] = field(default_factory=list)
    taken: list[Webhook] = field(default_factory=list)

    def deliver(self, webhook: Webhook, within_s: float | None = None) -> Receipt:
        self.asked.append(webhook)
        reaction = self.reactions.pop(0) if self.reactions else None
        if isinstance(reaction, Exception):
            raise reaction
        if reaction:
            reaction()
        self.taken.append(webhook)
        return Receipt(200)


@dataclass
class SwitchableStore:
    """The store under test, but for the steps that fail, and one thing that happens right after the next claim."""

    store: Store
    failing: set[str] = field(default_factory=set)
    after_claim: Callable[[], object] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    def claim(self, claim: Claim) -> Verdict:
        self._fail_if_told("claim")
        verdict = self.store.claim(claim)
        happens, self.after_claim = self.after_claim, None
        if happens:
            happens()
        return verdict

    def commit(self, claim: Claim) -> bool:
        self._fail_if_told("commit")
        return self.store.commit(claim)

    def _fail_if_told(self, step: str) -> None:
        if step in self.failing:
            raise StoreUnavailable(f"no {step} for now")


class FakeQueue:
    """Keeps what was announced, until the test lets a worker have it."""

    def __init__(self) -> None:
        self.is_away = False
        self.announced: list[str] = []

    def put(self, delivery_id: str, destination: str) -> None:
        self.check()
        self.announced.append(delivery_id)

    def check(self) -> None:
        if self.is_away:
            raise QueueUnavailable("connection refused")

    def close(self) -> None:
        """Nothing to close."""


@dataclass(frozen=True)
class Pipeline:
    intake: Intake
    destinations: Mapping[str, FakeDestination]
    store: SwitchableStore
    queue: FakeQueue
    let_time_pass: Callable[[int], None]

    @property
    def dispatcher(self) -> Dispatcher:
        return self.intake.dispatcher

    def send(self, **fields: Any) -> Outcome:
        """An email, as a provider would hand it over: what it is told."""
        return self.intake.receive(email_item(gmail.parse(email(**fields)), ids_kept_ms=None))

    def status_of(self, **fields: Any) -> str:
        return str(self.send(**fields).status)

    def record(self, destination: str = "crm", **fields: Any) -> Delivery:
        """What is on record of the email at that destination."""
        item = email_item(gmail.parse(email(**fields)), ids_kept_ms=None)
        (named,) = [
            each for each in self.intake.case_of(item, self.intake.router.pick(item)).deliveries
            if each.destination == destination
        ]  # fmt: skip
        known = self.dispatcher.ledger.get(named.id)
        assert known is not None, "there is no record of it"
        return known

    def let_the_worker_work(self) -> None:
        """With everything that was announced so far."""
        announced, self.queue.announced[:] = list(self.queue.announced), []
        for delivery_id in announced:
            self.dispatcher.deliver_or_leave(delivery_id)

    def settle_what_is_owed(self) -> None:
        """What the background does every second."""
        self.dispatcher.leases.pay_owed()


@contextmanager
def open_pipeline(
    bench: Bench,
    folder: Path,
    destinations: Mapping[str, FakeDestination],
    *,
    store: Store | None = None,
    with_queue: bool = False,
    **route: Any,
) -> Iterator[Pipeline]:
    """One server on the bench's names; ``store``: its own handle on them. ``route`` is what the one route says."""
    clock = FakeClock()

    def let_time_pass(ms: int) -> None:
        clock.advance(ms)
        bench.advance(ms)

    with ExitStack() as stack:
        switchable = SwitchableStore(store or bench.store)
        numbers = itertools.count()
        sources = Sources(
            now=lambda: datetime.fromtimestamp(clock.ms / 1000, UTC),
            new_token=lambda: f"{id(switchable)}-{next(numbers)}",
            monotonic=lambda: clock.ms / 1000,
        )
        leases = LeaseKeeper(switchable, LEASE_MS)
        stack.callback(leases.close)
        ledger = SqliteLedger(folder / "deliveries.db", now_ms=clock)
        stack.callback(ledger.close)
        limits = dict.fromkeys(destinations, Limits(breaker_failures=0))
        places = {name: Place(each, max_attempts=MAX_ATTEMPTS) for name, each in destinations.items()}
        guard = Guard(process_counters(), process_counters(), limits)
        dispatcher = Dispatcher(
            store=switchable,
            leases=leases,
            ledger=ledger,
            courier=Courier(places, guard, Clock(clock, sources.monotonic, lambda _seconds: None)),
            pools={name: stack.enter_context(ThreadPoolExecutor(4)) for name in destinations},
            new_token=sources.new_token,
            has_workers=with_queue,
        )
        queue = FakeQueue()
        intake = Intake(
            store=switchable,
            leases=leases,
            router=Router((), Route("all", tuple(destinations), **{"group_mode": GroupMode.PATTERNS} | route)),
            dispatcher=dispatcher,
            naming=Naming(UTC, DEFAULT_PATTERNS, 0, DEFAULT_HOSTS, IDENTITY_PARAMETERS),
            guard=RealtimeGuard(STARTED),
            sources=sources,
            outbox=Outbox(ledger, queue, clock) if with_queue else None,
        )
        yield Pipeline(intake, destinations, switchable, queue, let_time_pass)
