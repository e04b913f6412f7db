"""/metrics: what this machine has counted, and the state of the fleet, as Prometheus reads it.

Counters are of this machine, over all its processes, and continue after a restart: sum them over servers. Gauges are
facts of the fleet, the same on every server: take the maximum.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import accumulate, product
from typing import TYPE_CHECKING, Any

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from deduplication.errors import DeduplicationError
from deduplication.journal.entry import DeliveryStatus
from deduplication.names import Gate
from deduplication.redis_state import REDIS_ERRORS, REDIS_STEPS
from orchestrator.metrics import meter
from orchestrator.metrics.meter import Sums, read_sums
from orchestrator.operations.fleet_state import DestinationView, FleetState, fleet_state
from orchestrator.version import our_version

if TYPE_CHECKING:
    from orchestrator.build import Service

GATES = (Gate.IDENTITY, Gate.SUBJECT_GROUP, Gate.MEDIA, Gate.CONTENT, meter.REALTIME)
OUTCOMES = (DeliveryStatus.DELIVERED, meter.FAILED, DeliveryStatus.DEAD, DeliveryStatus.SKIPPED)
BREAKERS = ("closed", "half-open", "open")
REDIS_STATUSES = ("up", "suspected", "gone")
Values = float | None | Mapping[Any, float]
"""One value, or one for each label or tuple of labels; nothing is exposed for None."""


class Exposition(Collector):
    def __init__(self, service: Service) -> None:
        self._service = service

    def render(self, accept: str) -> tuple[bytes, str]:
        """The text and its content type."""
        encode, content_type = choose_encoder(accept)
        return encode(self), content_type

    def collect(self) -> Iterator[Metric]:
        yield _gauge("build_info", "The running version.", {our_version(): 1}, "version")
        state = None
        with suppress(DeduplicationError):  # reported as mailonce_journal_answers
            self._service.meter.flush()
            with self._service.journal.reading() as step:
                sums = read_sums(step, step.machine)
            state = fleet_state(self._service)
        yield _gauge("journal_answers", "1 if the journal can be read.", state is not None)
        if state:
            yield from _counted(sums, tuple(self._service.config.destinations))
            yield from _fleet(state)
            yield from _destinations(state.destinations)


def _counted(sums: Sums, destinations: tuple[str, ...]) -> Iterator[Metric]:
    """Expected labels start at 0, so that Prometheus sees their first increase."""

    def counted(name: str, text: str, metric: str, *labels: str, expected: Iterable[tuple[str, ...]] = ()) -> Metric:
        return _counter(name, text, dict.fromkeys(expected, 0.0) | sums.by(metric, *range(len(labels))), *labels)

    yield counted("emails", "Emails by answer.", meter.EMAILS, "provider", "status")
    stopped = {gate: sums.stopped_at.get(gate, 0) for gate in GATES}
    yield _counter("duplicates", "Stopped emails by gate.", stopped, "gate")
    yield counted("subject_groups", "Subject groups created.", meter.GROUPS, expected=[()])
    labels, expected = ("destination", "outcome"), product(destinations, OUTCOMES)
    yield counted("deliveries", "Attempts by outcome.", meter.DELIVERIES, *labels, expected=expected)
    yield counted("redis_steps", "Steps asked of Redis.", REDIS_STEPS, expected=[()])
    yield counted("redis_errors", "Failed steps, by class.", REDIS_ERRORS, "class")
    spent = "Time of processes by status of Redis."
    yield counted("redis_seconds", spent, meter.REDIS_S, "status", expected=product(REDIS_STATUSES))
    yield _gauge("hit_ratio", "Share of received emails that were stopped, ever.", sums.hit_rate or 0)
    yield _histogram("decision_seconds", "From the route to the journal's decision.", sums, meter.DECISION_S)
    yield _histogram("request_seconds", "A provider's request, from its headers to the answer.", sums, meter.REQUEST_S)
    known = sorted({*destinations, *(name for (name,) in sums.by(meter.DELIVERY_S, 0))})
    yield _histogram("delivery_seconds", "One POST.", sums, meter.DELIVERY_S, known)


def _fleet(state: FleetState) -> Iterator[Metric]:
    if state.redis_status:
        is_alone = state.redis_status == "gone"
        yield _gauge("local_journal", "1 while Redis is gone: this machine decides alone.", is_alone)
        yield _gauge("unpublished_entries", "Entries to publish.", state.unpublished)
        yield _gauge("behind_seconds", "Since this machine had read the whole stream.", state.behind_s)
        yield _gauge("members", "Machines of the fleet.", len(state.members))
    if state.redis:
        policy = state.redis.maxmemory_policy
        yield _gauge("redis_maxmemory_policy", "Must be noeviction.", {policy: 1} if policy else {}, "policy")
        evicted = state.redis.evicted_keys
        yield _counter("redis_evicted_keys", "Keys that Redis evicted since it started.", evicted)
    if state.workers is not None:
        yield _gauge("workers_alive", "Worker processes of the queue.", state.workers)
    if state.outside and state.outside.depths is not None:
        yield _gauge("queue_depth", "Messages in the queue.", state.outside.depths, "destination")


def _destinations(views: Mapping[str, DestinationView]) -> Iterator[Metric]:
    """What waits or is dead is exposed even where the destination is no longer configured."""
    known = {name: each for name, each in views.items() if each.enabled is not None}
    waiting = {name: each.waiting for name, each in views.items()}
    dead = {name: each.dead for name, each in views.items()}
    oldest = {name: each.oldest_s or 0 for name, each in views.items()}
    paused = {name: each.paused is not None for name, each in known.items()}
    enabled = {name: bool(each.enabled) for name, each in known.items()}
    breakers = {(name, state): each.breaker == state for name, each in known.items() for state in BREAKERS}
    yield _gauge("deliveries_waiting", "Deliveries that wait.", waiting, "destination")
    yield _gauge("dead_letters", "Dead letters that are kept.", dead, "destination")
    yield _gauge("oldest_waiting_seconds", "Age of the oldest delivery that waits, or 0.", oldest, "destination")
    yield _gauge("destination_paused", "1 while nothing is sent there until it is resumed.", paused, "destination")
    yield _gauge("destination_enabled", "0 for enabled = false in mailonce.toml.", enabled, "destination")
    yield _gauge("breaker_state", "1 for the present state.", breakers, "destination", "state")


def _gauge(name: str, text: str, values: Values, *labels: str) -> Metric:
    return _filled(GaugeMetricFamily(f"mailonce_{name}", text, labels=labels), values)


def _counter(name: str, text: str, values: Values, *labels: str) -> Metric:
    return _filled(CounterMetricFamily(f"mailonce_{name}", text, labels=labels), values)


def _filled(family: GaugeMetricFamily | CounterMetricFamily, values: Values) -> Metric:
    for labels, value in (values if isinstance(values, Mapping) else {(): values}).items():
        if value is not None:
            family.add_metric((labels,) if isinstance(labels, str) else labels, value)
    return family


def _histogram(name: str, text: str, sums: Sums, metric: str, destinations: list[str] | None = None) -> Metric:
    labels = () if destinations is None else ("destination",)
    family = HistogramMetricFamily(f"mailonce_{name}", text, labels=labels)
    for place in [()] if destinations is None else [(each,) for each in destinations]:
        in_buckets, sum_s = sums.histogram(metric, *place)
        family.add_metric(place, list(zip(meter.BUCKETS, map(float, accumulate(in_buckets)), strict=True)), sum_s)
    return family
