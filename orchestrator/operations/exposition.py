"""/metrics: what this machine has counted, and the state of the fleet, as Prometheus reads it.

Counters are of this machine, over all its processes, and go on after a restart: sum them over servers. Gauges are facts
of the fleet, the same on every server: take the maximum.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from deduplication.errors import DeduplicationError
from deduplication.names import Gate
from orchestrator.metrics import meter
from orchestrator.metrics.counts import read_sums
from orchestrator.metrics.sums import Sums
from orchestrator.operations.fleet_state import DestinationView, FleetState
from orchestrator.version import our_version

if TYPE_CHECKING:
    from orchestrator.build import Service

Labels = tuple[str, ...]
GATES = (Gate.IDENTITY, Gate.SUBJECT_GROUP, Gate.MEDIA, Gate.CONTENT, meter.REALTIME)
OUTCOMES = (meter.DELIVERED, meter.FAILED, meter.DEAD, meter.SKIPPED)
_WHERE = ("destination",)


class Exposition(Collector):
    def __init__(self, service: Service) -> None:
        self._service = service

    def render(self, accept: str) -> tuple[bytes, str]:
        """The text and its content type."""
        encode, content_type = choose_encoder(accept)
        return encode(self), content_type

    def collect(self) -> Iterator[Metric]:
        yield _gauge("mailonce_build_info", "The running version.", {(our_version(),): 1}, "version")
        state = None
        with suppress(DeduplicationError):  # mailonce_journal_answers says so
            self._service.counts.flush()
            with self._service.journal.reading() as step:
                sums = Sums(read_sums(step, step.machine))
            state = self._service.observer.fleet_state()
        yield _gauge("mailonce_journal_answers", "1 if the journal can be read.", {(): state is not None})
        if state:
            yield from _counters(sums, self._service.config.destinations)
            yield from _histograms(sums, self._service.config.destinations)
            yield from _fleet(state)
            yield from _destinations(state.destinations)


def _counters(sums: Sums, destinations: Iterable[str]) -> Iterator[Metric]:
    stopped: dict[Labels, float] = {(gate,): 0 for gate in GATES}
    attempts: dict[Labels, float] = {(name, outcome): 0 for name in destinations for outcome in OUTCOMES}
    seconds: dict[Labels, float] = {(status,): 0 for status in ("up", "suspected", "gone")}
    for name, text, metric, numbers, labels in (
        ("mailonce_emails", "Emails by answer.", meter.EMAILS, {}, ("provider", "status")),
        ("mailonce_duplicates", "Stopped emails by gate.", meter.STOPPED, stopped, ("gate",)),
        ("mailonce_subject_groups", "Subject groups created.", meter.GROUPS, {(): 0.0}, ()),
        ("mailonce_deliveries", "Attempts by outcome.", meter.DELIVERIES, attempts, ("destination", "outcome")),
        ("mailonce_redis_steps", "Steps asked of Redis.", meter.REDIS_STEPS, {(): 0.0}, ()),
        ("mailonce_redis_errors", "Steps that failed, by class.", meter.REDIS_ERRORS, {}, ("class",)),
        ("mailonce_redis_seconds", "Time of processes by status of Redis.", meter.REDIS_S, seconds, ("status",)),
    ):
        yield _counter(name, text, numbers | sums.labelled(metric), *labels)
    yield _gauge("mailonce_hit_ratio", "Share of received emails that were stopped, ever.", {(): sums.hit_rate or 0})


def _histograms(sums: Sums, destinations: Iterable[str]) -> Iterator[Metric]:
    known = {labels[:1] for labels in sums.labelled(meter.DELIVERY_S)} | {(name,) for name in destinations}
    for name, text, metric, labelled in (
        ("mailonce_decision_seconds", "From the route to the journal's decision.", meter.DECISION_S, {()}),
        ("mailonce_request_seconds", "A provider's request, from its headers to the answer.", meter.REQUEST_S, {()}),
        ("mailonce_delivery_seconds", "One POST.", meter.DELIVERY_S, known),
    ):
        family = HistogramMetricFamily(name, text, labels=_WHERE if labelled is known else ())
        for labels in sorted(labelled):
            histogram = sums.histogram(metric, *labels)
            up_to = list(zip(meter.BUCKETS, map(float, accumulate(histogram.counts)), strict=True))
            family.add_metric(labels, up_to, histogram.sum_s)
        yield family


def _fleet(state: FleetState) -> Iterator[Metric]:
    if state.redis_status:
        is_alone = state.redis_status == "gone"
        yield _gauge("mailonce_local_journal", "1 while Redis is gone: this machine decides alone.", {(): is_alone})
        yield _gauge("mailonce_unpublished_entries", "Entries to publish.", {(): state.unpublished})
        behind = {} if state.behind_s is None else {(): state.behind_s}
        yield _gauge("mailonce_behind_seconds", "Since this machine had read all of the stream.", behind)
        yield _gauge("mailonce_members", "Machines of the fleet.", {(): len(state.members)})
    if state.redis:
        policy = {(state.redis.maxmemory_policy,): 1} if state.redis.maxmemory_policy else {}
        yield _gauge("mailonce_redis_maxmemory_policy", "Must be noeviction.", policy, "policy")
        evicted = {} if state.redis.evicted_keys is None else {(): state.redis.evicted_keys}
        yield _counter("mailonce_redis_evicted_keys", "Keys that Redis evicted since it started.", evicted)
    if state.workers is not None:
        yield _gauge("mailonce_workers_alive", "Worker processes of the queue.", {(): state.workers})
    if state.outside and state.outside.depths is not None:
        depths = {(name,): depth for name, depth in state.outside.depths.items()}
        yield _gauge("mailonce_queue_depth", "Messages in the queue.", depths, *_WHERE)


def _destinations(views: Mapping[str, DestinationView]) -> Iterator[Metric]:
    """Destinations that are no longer configured count as one, so that labels are bounded."""
    known = {name: each for name, each in views.items() if each.is_enabled is not None}
    others = [each for each in views.values() if each.is_enabled is None]
    waiting: dict[Labels, float] = {(name,): each.waiting for name, each in known.items()}
    dead: dict[Labels, float] = {(name,): each.dead for name, each in known.items()}
    oldest: dict[Labels, float] = {(name,): each.oldest_s or 0 for name, each in known.items()}
    if others:
        waiting[meter.OTHER,] = sum(each.waiting for each in others)
        dead[meter.OTHER,] = sum(each.dead for each in others)
        oldest[meter.OTHER,] = max(each.oldest_s or 0 for each in others)
    yield _gauge("mailonce_deliveries_waiting", "Deliveries that wait.", waiting, *_WHERE)
    yield _gauge("mailonce_dead_letters", "Dead letters that are kept.", dead, *_WHERE)
    yield _gauge("mailonce_oldest_waiting_seconds", "Age of the oldest delivery that waits, or 0.", oldest, *_WHERE)
    states = ("closed", "half-open", "open")
    breakers = {(name, each): view.breaker == each for name, view in known.items() for each in states}
    yield _gauge("mailonce_breaker_state", "1 for the present state.", breakers, *_WHERE, "state")
    paused = {(name,): view.paused.is_paused for name, view in known.items()}
    yield _gauge("mailonce_destination_paused", "1 while nothing is sent there until it is resumed.", paused, *_WHERE)
    enabled = {(name,): bool(view.is_enabled) for name, view in known.items()}
    yield _gauge("mailonce_destination_enabled", "0 for enabled = false in mailonce.toml.", enabled, *_WHERE)


def _gauge(name: str, text: str, numbers: Mapping[Any, float], *labels: str) -> Metric:
    return _filled(GaugeMetricFamily(name, text, labels=labels), numbers)


def _counter(name: str, text: str, numbers: Mapping[Any, float], *labels: str) -> Metric:
    return _filled(CounterMetricFamily(name, text, labels=labels), numbers)


def _filled(family: GaugeMetricFamily | CounterMetricFamily, numbers: Mapping[Any, float]) -> Metric:
    for labels, number in numbers.items():
        family.add_metric(labels, number)
    return family
