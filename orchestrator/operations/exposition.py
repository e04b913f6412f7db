"""/metrics: what this machine has counted, and what the journal, the queue and Redis say now, as Prometheus reads it.

Counters are this machine's own, over all its processes: sum them over servers. Gauges are facts of the fleet, the same
on every server: take one of them (docs/architecture-old.md, section 10).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as StillReading
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from itertools import accumulate
from typing import Any

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from deduplication.claims import Gate
from deduplication.errors import DeduplicationError
from deduplication.journal.failover import FailoverJournal
from deduplication.journal.listing import Count
from deduplication.journal.redis import RedisFacts
from deduplication.journal.side import Side
from deduplication.silence import waiting_once
from orchestrator.build import Parts
from orchestrator.delivery.guard import State
from orchestrator.delivery.queue import Queue, QueueUnavailable
from orchestrator.metrics.meter import (
    BUCKETS,
    DEAD,
    DECISION_S,
    DELIVERED,
    DELIVERIES,
    DELIVERY_S,
    EMAILS,
    FAILED,
    GROUPS,
    OTHER,
    REALTIME,
    REDIS_ERRORS,
    REDIS_STEPS,
    REQUEST_S,
    SIDE_S,
    SKIPPED,
    STOPPED,
)
from orchestrator.metrics.sums import Sums
from orchestrator.operations.figures import age_s

PATIENCE_S = 1.0  # what a scrape waits for the facts; it gets the rest in any case
BREAKER_STATES: tuple[State, ...] = ("closed", "half-open", "open")
GATES = (Gate.IDENTITY, Gate.SUBJECT_GROUP, Gate.MEDIA, Gate.CONTENT, REALTIME)


@dataclass(frozen=True)
class Facts:
    """None: who knows it does not answer, or there is nobody to ask."""

    counts: Mapping[str, Count] | None
    oldest_s: Mapping[str, int] | None
    breakers: Mapping[str, State]
    paused: Mapping[str, bool]
    depths: Mapping[str, int] | None
    workers: int | None
    redis: RedisFacts | None


def read_facts(parts: Parts, queue: Queue | None) -> Facts:
    """In a thread of its own, which does not wait for each question to a Redis that keeps silent."""
    with waiting_once():
        return _read_facts(parts, queue)


def _read_facts(parts: Parts, queue: Queue | None) -> Facts:
    destinations = parts.config.destinations
    counts, oldest_s, depths, redis = None, None, None, None
    with suppress(DeduplicationError):  # mailonce_journal_answers says so
        counts = parts.journal.count_deliveries()
        oldest_s = {name: age_s(parts, since_ms) for name, since_ms in parts.oldest.read(counts).items()}
        if isinstance(parts.journal, FailoverJournal) and parts.journal.standing.side is Side.REDIS:
            redis = parts.journal.redis_facts()
    with suppress(QueueUnavailable):
        depths = {name: queue.depth(name) for name in destinations} if queue else None
    return Facts(
        counts=counts,
        oldest_s=oldest_s,
        breakers={name: parts.guard.state(name) for name in destinations},
        paused={name: parts.sender.states.of(name).is_paused for name in destinations},
        depths=depths,
        workers=parts.counted.workers_alive() if queue else None,
        redis=redis,
    )


class Exposition(Collector):
    def __init__(self, parts: Parts, queue: Queue | None) -> None:
        self._parts = parts
        self._queue = queue
        self._reader = ThreadPoolExecutor(1, "facts")
        self._reading: Future[Facts] | None = None

    def render(self, accept: str) -> tuple[bytes, str]:
        """The text and its content type."""
        encode, content_type = choose_encoder(accept)
        return encode(self), content_type

    def collect(self) -> Iterator[Metric]:
        sums = self._parts.counted.here()
        yield _gauge("mailonce_build_info", "The version that runs.", ("version",), {(version("mailonce"),): 1})
        yield from _counters(sums, self._parts.config.destinations)
        yield from _histograms(sums, self._parts.config.destinations)
        yield from self._of_this_machine()
        facts = self._facts_in_time()
        answers = facts is not None and facts.counts is not None
        yield _gauge("mailonce_journal_answers", "1: the journal says what waits and what is dead.", (), {(): answers})
        if facts:
            yield from self._of_the_fleet(facts)

    def _of_this_machine(self) -> Iterator[Metric]:
        journal = self._parts.journal
        if isinstance(journal, FailoverJournal):
            is_local, untold = journal.standing.side is Side.LOCAL, journal.untold()
            yield _gauge("mailonce_local_journal", "1: Redis is away, this machine decides alone.", (), {(): is_local})
            unmerged = {(): untold.entries}
            yield _gauge("mailonce_unmerged_entries", "Entries whose names Redis has yet to be told.", (), unmerged)
            yield _gauge("mailonce_spool_bytes", "Behind the requests, to be drained.", (), {(): untold.spool_bytes})

    def _facts_in_time(self) -> Facts | None:
        """None: somebody takes too long to answer. One thread waits for him, whoever asks meanwhile."""
        reading = self._reading
        if reading is None or reading.done():
            reading = self._reading = self._reader.submit(read_facts, self._parts, self._queue)
        try:
            return reading.result(PATIENCE_S)
        except StillReading:
            return None

    def _of_the_fleet(self, facts: Facts) -> Iterator[Metric]:
        destinations = self._parts.config.destinations
        where = ("destination",)
        if facts.counts is not None and facts.oldest_s is not None:
            waiting = {name: count.waiting for name, count in facts.counts.items()}
            dead = {name: count.dead for name, count in facts.counts.items()}
            yield _gauge("mailonce_deliveries_waiting", "To be delivered.", where, _known(waiting, destinations))
            yield _gauge("mailonce_dead_letters", "Dead letters that are kept.", where, _known(dead, destinations))
            oldest = _known(facts.oldest_s, destinations, max)
            yield _gauge("mailonce_oldest_waiting_seconds", "Age of what waits longest; 0: nothing.", where, oldest)
        if facts.depths is not None:
            yield _gauge("mailonce_queue_depth", "Messages in the queue.", where, _known(facts.depths, destinations))
        if facts.workers is not None:
            yield _gauge("mailonce_workers_alive", "Worker processes of the queue.", (), {(): facts.workers})
        breakers = {(name, each): facts.breakers[name] == each for name in destinations for each in BREAKER_STATES}
        yield _gauge("mailonce_breaker_state", "1 for the state it is in.", (*where, "state"), breakers)
        paused = {(name,): facts.paused[name] for name in destinations}
        yield _gauge("mailonce_destination_paused", "1: nothing is sent there until it is resumed.", where, paused)
        enabled = {(name,): config.enabled for name, config in destinations.items()}
        yield _gauge("mailonce_destination_enabled", "0: enabled = false in mailonce.toml.", where, enabled)
        if facts.redis:
            policy = {(facts.redis.maxmemory_policy,): 1} if facts.redis.maxmemory_policy else {}
            yield _gauge("mailonce_redis_maxmemory_policy", "Must be noeviction.", ("policy",), policy)
            evicted = {(): facts.redis.evicted_keys} if facts.redis.evicted_keys is not None else {}
            yield _counter("mailonce_redis_evicted_keys", "By Redis, since it started.", (), evicted)


def _counters(sums: Sums, destinations: Iterable[str]) -> Iterator[Metric]:
    yield _counter("mailonce_emails", "Emails by what was answered.", ("provider", "status"), sums.labelled(EMAILS))
    stopped = dict.fromkeys(((gate,) for gate in GATES), 0.0) | sums.labelled(STOPPED)
    yield _counter("mailonce_duplicates", "Emails that were stopped, by gate.", ("gate",), stopped)
    yield _gauge(
        "mailonce_hit_ratio", "The stopped among the received, of this machine, ever.", (), {(): sums.hit_rate or 0}
    )
    yield _counter("mailonce_subject_groups", "Subject groups created.", (), {(): sums.counts.get(GROUPS, 0)})
    attempts = {(name, outcome): 0.0 for name in destinations for outcome in (DELIVERED, FAILED, DEAD, SKIPPED)}
    attempts |= {(labels[0], labels[1]): count for labels, count in sums.labelled(DELIVERIES).items()}
    yield _counter("mailonce_deliveries", "Attempts by their outcome.", ("destination", "outcome"), attempts)
    yield _counter("mailonce_redis_steps", "Steps asked of Redis.", (), {(): sums.counts.get(REDIS_STEPS, 0)})
    yield _counter("mailonce_redis_errors", "Those it failed, by class.", ("class",), sums.labelled(REDIS_ERRORS))
    sides = dict.fromkeys(((side,) for side in Side), 0.0) | sums.labelled(SIDE_S)
    yield _counter("mailonce_side_seconds", "Time of its processes on each side.", ("side",), sides)


def _histograms(sums: Sums, destinations: Iterable[str]) -> Iterator[Metric]:
    for name, text, metric in (
        ("mailonce_decision_seconds", "From the route to the verdict of the journal.", DECISION_S),
        ("mailonce_request_seconds", "A request of a provider, from its head to its answer.", REQUEST_S),
    ):
        family = HistogramMetricFamily(name, text)
        _add(family, [], sums, metric)
        yield family
    family = HistogramMetricFamily("mailonce_delivery_seconds", "One POST.", labels=("destination",))
    for destination in dict.fromkeys((*destinations, *(labels[0] for labels in sums.labelled(DELIVERY_S)))):
        _add(family, [destination], sums, DELIVERY_S)
    yield family


def _add(family: HistogramMetricFamily, labels: list[str], sums: Sums, metric: str) -> None:
    histogram = sums.histogram(metric, labels)
    up_to = list(zip(BUCKETS, map(float, accumulate(histogram.counts)), strict=True))
    family.add_metric(labels, up_to, histogram.sum_s)


def _known(
    numbers: Mapping[str, float], destinations: Iterable[str], together: Callable[[list[float]], float] = sum
) -> dict[tuple[str, ...], float]:
    """By destination, each of the configuration; what goes elsewhere is one."""
    known: dict[tuple[str, ...], float] = {(name,): numbers.get(name, 0) for name in destinations}
    others = [number for name, number in numbers.items() if (name,) not in known]
    return known | ({(OTHER,): together(others)} if others else {})


def _gauge(name: str, text: str, labels: tuple[str, ...], numbers: Mapping[Any, float]) -> Metric:
    return _filled(GaugeMetricFamily(name, text, labels=labels), numbers)


def _counter(name: str, text: str, labels: tuple[str, ...], numbers: Mapping[Any, float]) -> Metric:
    return _filled(CounterMetricFamily(name, text, labels=labels), numbers)


def _filled(family: GaugeMetricFamily | CounterMetricFamily, numbers: Mapping[Any, float]) -> Metric:
    for labels, number in numbers.items():
        family.add_metric(labels, number)
    return family
