"""GET /metrics for Prometheus, on a server and on a worker.

Counters are of this machine, over all its processes, and continue after a restart: sum them over servers. Gauges are
facts of the fleet, the same on every server: take the maximum.
"""

import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from functools import partial
from itertools import accumulate, product
from typing import Any

from flask import Flask, Response
from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from werkzeug.serving import make_server

from deduplication.errors import DeduplicationError
from deduplication.journal.entry import DeliveryStatus
from deduplication.names import Gate
from deduplication.redis_state import REDIS_ERRORS, REDIS_STEPS
from orchestrator.build import Service
from orchestrator.config.model import Config
from orchestrator.config.settings import Settings, SettingsError
from orchestrator.files import RESULTS
from orchestrator.metrics import meter
from orchestrator.metrics.meter import Sums
from orchestrator.operations.fleet_state import DestinationView, FleetState, fleet_state
from orchestrator.version import our_version
from routes.api import scrape
from routes.auth import TooManyGuesses, Unauthorized
from routes.responses import answer_error

Family = type[GaugeMetricFamily] | type[CounterMetricFamily]

COUNTED_GATES = (Gate.IDENTITY, Gate.SUBJECT_GROUP, Gate.MEDIA, Gate.CONTENT, meter.REALTIME, meter.ROUTE)
OUTCOMES = (DeliveryStatus.DELIVERED, meter.FAILED, DeliveryStatus.DEAD, DeliveryStatus.SKIPPED)
BREAKERS = ("closed", "half-open", "open")
REDIS_STATUSES = ("up", "suspected", "gone")


def exposition(service: Service, accept: str) -> Response:
    """In the format that ``accept`` asks for."""
    encode, content_type = choose_encoder(accept)
    return Response(encode(_Metrics(service)), content_type=content_type)


@contextmanager
def serving_metrics(settings: Settings, config: Config) -> Iterator[None]:
    """Serves them on WORKER_METRICS_PORT while the worker runs; its processes count in the journal of their machine."""
    if not settings.worker_metrics_port:
        yield
        return
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # no line for each scrape
    app = Flask(__name__)
    app.register_error_handler(Unauthorized, answer_error)
    app.register_error_handler(TooManyGuesses, answer_error)
    try:
        server = make_server(settings.host, settings.worker_metrics_port, app, threaded=True)
    except (OSError, SystemExit) as error:  # werkzeug ends the process if the port is in use
        raise SettingsError(f"WORKER_METRICS_PORT must be a free port, got {settings.worker_metrics_port}") from error
    app.add_url_rule("/metrics", view_func=scrape)
    app.extensions["mailonce"] = Service(settings, config)
    with closing(app.extensions["mailonce"]), server:
        threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
        try:
            yield
        finally:
            server.shutdown()


class _Metrics(Collector):
    def __init__(self, service: Service) -> None:
        self._service = service

    def collect(self) -> Iterator[Metric]:
        yield _gauge("build_info", "The running version.", {our_version(): 1}, "version")
        state = None
        with suppress(DeduplicationError):  # reported as mailonce_journal_answers
            self._service.meter.flush()
            with self._service.journal.reading() as step:
                sums = meter.read_sums(step, step.machine)
            state = fleet_state(self._service)
        yield _gauge("journal_answers", "1 if the journal can be read.", state is not None)
        if state:
            yield from _counted(sums, tuple(self._service.config.destinations))
            yield from _fleet(state)
            yield from _destinations(state.destinations)


def _counted(sums: Sums, destinations: tuple[str, ...]) -> Iterator[Metric]:
    """Expected labels start at 0, so that Prometheus sees their first increase."""
    attempts = dict.fromkeys(product(destinations, OUTCOMES), 0.0) | sums.by(meter.DELIVERIES, 0, 1)
    redis_s = dict.fromkeys(product(REDIS_STATUSES), 0.0) | sums.by(meter.REDIS_S, 0)
    stopped = {gate: sums.stopped_at.get(gate, 0) for gate in COUNTED_GATES}
    yield _counter("emails", "Emails by answer.", sums.by(meter.EMAILS, 0, 1), "provider", "status")
    yield _counter("duplicates", "Stopped emails by gate.", stopped, "gate")
    yield _counter("subject_groups", "Subject groups created.", sums.counts.get(meter.GROUPS, 0))
    yield _counter("deliveries", "Attempts by outcome.", attempts, "destination", "outcome")
    stored = dict.fromkeys(product(RESULTS), 0.0) | sums.by(meter.FILES, 0)
    yield _counter("files", "Attachments and raw emails to be linked, by result.", stored, "result")
    yield _counter("redis_steps", "Steps asked of Redis.", sums.counts.get(REDIS_STEPS, 0))
    yield _counter("redis_errors", "Failed steps, by class.", sums.by(REDIS_ERRORS, 0), "class")
    yield _counter("redis_seconds", "Time of processes by status of Redis.", redis_s, "status")
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
        policy = state.facts.maxmemory_policy
        yield _gauge("redis_maxmemory_policy", "Must be noeviction.", {policy: 1} if policy else {}, "policy")
        evicted = state.facts.evicted_keys
        yield _counter("redis_evicted_keys", "Keys that Redis evicted since it started.", evicted)
    if state.suppressed_share is not None:
        yield _gauge("suppressed_room_ratio", "Room that one sender domain takes, at the most.", state.suppressed_share)
    if state.workers is not None:
        yield _gauge("workers_alive", "Worker processes.", state.workers)


def _destinations(views: Mapping[str, DestinationView]) -> Iterator[Metric]:
    """What waits or is dead is exposed even where the destination is no longer configured."""
    known = {name: view for name, view in views.items() if view.enabled is not None}
    waiting = {name: view.waiting for name, view in views.items()}
    dead = {name: view.dead for name, view in views.items()}
    oldest = {name: view.oldest_s or 0 for name, view in views.items()}
    paused = {name: view.paused is not None for name, view in known.items()}
    enabled = {name: bool(view.enabled) for name, view in known.items()}
    breakers = {(name, state): view.breaker == state for name, view in known.items() for state in BREAKERS}
    yield _gauge("deliveries_waiting", "Deliveries that wait.", waiting, "destination")
    yield _gauge("dead_letters", "Dead letters that are kept.", dead, "destination")
    yield _gauge("oldest_waiting_seconds", "Age of the oldest delivery that waits, or 0.", oldest, "destination")
    yield _gauge("destination_paused", "1 while nothing is sent there until it is resumed.", paused, "destination")
    yield _gauge("destination_enabled", "0 for enabled = false in mailonce.toml.", enabled, "destination")
    yield _gauge("breaker_state", "1 for the present state.", breakers, "destination", "state")


def _family(kind: Family, name: str, text: str, values: float | Mapping[Any, float] | None, *labels: str) -> Metric:
    """``values``: one, or one for each label or tuple of labels. Nothing is exposed for None."""
    family = kind(f"mailonce_{name}", text, labels=labels)
    for label, value in (values if isinstance(values, Mapping) else {(): values}).items():
        if value is not None:
            family.add_metric((label,) if isinstance(label, str) else label, value)
    return family


_gauge, _counter = partial(_family, GaugeMetricFamily), partial(_family, CounterMetricFamily)


def _histogram(name: str, text: str, sums: Sums, metric: str, destinations: list[str] | None = None) -> Metric:
    labels = () if destinations is None else ("destination",)
    family = HistogramMetricFamily(f"mailonce_{name}", text, labels=labels)
    for place in [()] if destinations is None else [(name,) for name in destinations]:
        in_buckets, sum_s = sums.histogram(metric, *place)
        family.add_metric(place, list(zip(meter.BUCKETS, map(float, accumulate(in_buckets)), strict=True)), sum_s)
    return family
