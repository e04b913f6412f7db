"""The pipeline without HTTP around it: a real journal, and destinations that react as a test says.

What tests see of it: an email is sent, a status comes back, and destinations have received webhooks.
"""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, cast

from deduplication.errors import StoreUnavailable
from deduplication.journal.entry import Delivery, Entry
from deduplication.media import MediaMode
from deduplication.realtime_guard import RealtimeGuard
from deduplication.subject_group import GroupMode
from orchestrator.config.model import LOG_URL, Config, DestinationConfig
from orchestrator.config.settings import load_settings
from orchestrator.delivery.counters import Counters
from orchestrator.delivery.guard import Guard
from orchestrator.delivery.retrier import Retrier
from orchestrator.delivery.sender import Sender
from orchestrator.delivery.webhook import Payload, PostResult, Webhook, unpack
from orchestrator.item import Item, email_item
from orchestrator.metrics.meter import Meter
from orchestrator.pipeline import Outcome, Pipeline
from orchestrator.privacy import Privacy
from orchestrator.routing import Route, Router
from routes.providers import gmail
from tests.deduplication.journal.world import Machine, Time
from tests.support.server import email

LEASE_MS = 7_000  # shorter than a request may take: who sleeps over it has time left to do wrong
MAX_ATTEMPTS = 4
DEFAULTS = {"subject_groups": GroupMode.PATTERNS, "media": MediaMode.LISTED}
STARTED = datetime(2026, 11, 16, tzinfo=UTC)

DOWN = PostResult(500, "answered 500")
MISPLACED = PostResult(404, "answered 404")
REFUSES = PostResult(422, "answered 422")
Reaction = PostResult | Exception | Callable[[], object] | None


class ModuleTime(Time):
    """In place of the module ``time`` as well: it moves on by what is slept and by what a test lets pass."""

    def monotonic(self) -> float:
        return self.steady_ms / 1000

    def sleep(self, seconds: float) -> None:
        self.pass_ms(round(seconds * 1000))


def limited(**limits: Any) -> DestinationConfig:
    return DestinationConfig(url=LOG_URL, **limits)


@dataclass
class FakeDestination:
    """Reacts to one webhook after the other as ``reactions`` says, and accepts all after that. Those with a subject in
    ``by_subject`` get the reactions listed there, whatever their order.

    A reaction is a failure, an error to raise, None to take it, or something to do in the middle of taking it. With
    ``max_attempts`` 1, which may be set at any time, the first failure is final: a dead letter.
    """

    reactions: list[Reaction] = field(default_factory=list)
    by_subject: dict[str, list[Reaction]] = field(default_factory=dict)
    asked: list[Webhook] = field(default_factory=list)
    taken: list[Webhook] = field(default_factory=list)
    max_attempts: int = MAX_ATTEMPTS

    @property
    def config(self) -> DestinationConfig:
        return limited(max_attempts=self.max_attempts, connect_timeout_s=0.5, read_timeout_s=0.5)

    def deliver(self, webhook: Webhook, within_s: float | None = None) -> PostResult:
        self.asked.append(webhook)
        reactions = self.by_subject.get(webhook.payload.get("subject", ""), self.reactions)
        reaction = reactions.pop(0) if reactions else None
        if isinstance(reaction, Exception):
            raise reaction
        if isinstance(reaction, PostResult):
            return reaction
        if reaction:
            reaction()
        self.taken.append(webhook)
        return PostResult(200)


@dataclass(frozen=True)
class PipelineBench:
    """``failing`` names the verbs of the coordinator that raise StoreUnavailable."""

    pipeline: Pipeline
    retrier: Retrier
    destinations: Mapping[str, FakeDestination]
    machine: Machine
    failing: set[str] = field(default_factory=set)

    def let_time_pass(self, ms: int) -> None:
        self.machine.time.pass_ms(ms)

    def send(self, **fields: Any) -> Outcome:
        """An email, as a provider would hand it over: the answer. Publishing follows behind the request."""
        return self.receive(item(**fields))

    def receive(self, received: Item) -> Outcome:
        try:
            return self.pipeline.receive(received)
        finally:
            self.machine.tick()

    def status_of(self, **fields: Any) -> str:
        return str(self.send(**fields).status)

    def entry(self, **fields: Any) -> Entry:
        """What the journal has of the email."""
        with self.machine.journal.reading() as step:
            asked = item(**fields)
            known = step.known(asked.own_names, asked.fingerprint)
            ids = {each.id for state in known.names.values() for each in state.entries}
            assert len(ids) == 1, ids
            entry = step.read(ids.pop())
        assert entry is not None
        return entry

    def delivery(self, destination: str = "crm", **fields: Any) -> Delivery:
        known = self.entry(**fields).delivery_to(destination)
        assert known is not None
        return known

    def payload(self, **fields: Any) -> Payload | None:
        with self.machine.journal.reading() as step:
            stored = step.payload(self.entry(**fields).id)
        return unpack(stored) if stored else None

    def deliver_due(self) -> int:
        """What every process does each second: how many deliveries were due."""
        found = 0
        for name in self.destinations:
            while sent := self.retrier.deliver_due(name):
                found += sent
        return found


def item(**fields: Any) -> Item:
    return email_item(gmail.parse(email(**fields)), ids_kept_ms=None)


class Failing:
    """The coordinator, but for the verbs that fail."""

    def __init__(self, coordinator: Any, failing: set[str]) -> None:
        self._coordinator = coordinator
        self._failing = failing
        self.after_claim: Callable[[], object] | None = None

    def __getattr__(self, name: str) -> Any:
        if name in self._failing:
            raise StoreUnavailable(f"no {name} for now")
        return getattr(self._coordinator, name)

    def claim(self, claim: Any) -> Any:
        claimed = self._coordinator.claim(claim)
        happens, self.after_claim = self.after_claim, None
        if happens:
            happens()
        return claimed


@contextmanager
def open_pipeline(
    machine: Machine,
    destinations: Mapping[str, FakeDestination],
    *,
    by_workers: bool = False,
    limits: DestinationConfig | None = None,
    **route: Any,
) -> Iterator[PipelineBench]:
    """One process on the machine. ``route`` is what the one route says."""
    failing: set[str] = set()
    coordinator: Any = Failing(machine.coordinator, failing)
    with ExitStack() as stack:
        sender = Sender(
            coordinator=coordinator,
            destinations=cast(Any, destinations),
            guard=Guard(
                Counters(machine.coordinator), dict.fromkeys(destinations, limits or limited(breaker_failures=0))
            ),
            pools={name: stack.enter_context(ThreadPoolExecutor(4)) for name in destinations},
            meter=Meter(machine.journal),
        )
        retrier = Retrier(sender, threads=1, margin_s=1.0)
        stack.callback(retrier.close)
        pipeline = Pipeline(
            coordinator=coordinator,
            router=Router((), Route("all", tuple(destinations), **DEFAULTS | route)),
            sender=sender,
            guard=RealtimeGuard(STARTED),
            privacy=Privacy(machine.journal),
            meter=sender.meter,
            settings=load_settings(lease_seconds=LEASE_MS / 1000, deliver_by="workers" if by_workers else "requests"),
            config=Config(),
            now=lambda: datetime.fromtimestamp(machine.time.now_ms / 1000, UTC),
        )
        yield PipelineBench(pipeline, retrier, destinations, machine, failing)
