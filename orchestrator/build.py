"""Builds the service from its settings: the only place that decides which parts are used."""

from __future__ import annotations

import logging
import sqlite3
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from deduplication.errors import StoreMisconfigured, StoreUnavailable
from deduplication.journal.coordinator import Coordinator
from deduplication.journal.fleet import Fleet, FleetOptions
from deduplication.journal.registry import Registry, RegistryOptions
from deduplication.journal.sqlite import Journal
from deduplication.locks import PublicationLocks, new_server_id
from deduplication.realtime_guard import RealtimeGuard
from deduplication.redis_client import Client, connect
from deduplication.redis_state import check_start as check_redis
from deduplication.retention import Retention
from orchestrator.config.model import LOG_URL, Config, DestinationConfig, load_config
from orchestrator.config.settings import OnFailure, Settings, SettingsError
from orchestrator.delivery.counters import RedisCounters, SqliteCounters, open_counters, process_counters
from orchestrator.delivery.destination_states import DestinationStates
from orchestrator.delivery.guard import Guard, Limits, parse_rate
from orchestrator.delivery.http import HttpDestination, HttpOptions, LogDestination
from orchestrator.delivery.queue import Queue, QueueMisconfigured, QueueUnavailable
from orchestrator.delivery.resolution import LinkResolver
from orchestrator.delivery.retrier import Retrier
from orchestrator.delivery.sender import RATE_PATIENCE_S, DestinationPolicy, Sender
from orchestrator.delivery.webhook import Destination
from orchestrator.guesses import GuessLimit
from orchestrator.logs import quiet
from orchestrator.metrics.counts import Counts
from orchestrator.metrics.meter import Meter
from orchestrator.operations.alarms import Alarms
from orchestrator.operations.fleet_state import Observer
from orchestrator.operations.health import HealthChecks
from orchestrator.operations.providers import ProvidersSeen
from orchestrator.operations.watch import Watch
from orchestrator.pipeline import Naming, Pipeline, PipelineOptions
from orchestrator.privacy import Privacy
from orchestrator.routing import Route, Router
from orchestrator.service_note import leave_note
from orchestrator.tokens import Tokens, ensure_tokens, show_new

log = logging.getLogger(__name__)

RETRIER_THREADS = 2  # for each destination, beside those of the requests
GUESSES_TIMEOUT_S = 1.0  # of Redis; after that each process counts alone, so that a scrape does not wait


@dataclass(frozen=True)
class Service:
    """One process of Mailonce. ``fleet`` is None without a REDIS_URL, ``queue`` if requests deliver."""

    settings: Settings
    config: Config
    tokens: Tokens
    server: str
    coordinator: Coordinator
    fleet: Fleet | None
    guard: Guard
    guesses: GuessLimit
    states: DestinationStates
    sender: Sender
    retrier: Retrier
    pipeline: Pipeline
    locks: PublicationLocks
    queue: Queue | None
    meter: Meter
    counts: Counts
    providers: ProvidersSeen
    observer: Observer
    alarms: Alarms
    health: HealthChecks
    watch: Watch
    privacy: Privacy
    closing: tuple[Callable[[], None], ...]

    @property
    def journal(self) -> Journal:
        return self.coordinator.journal

    def start(self, *, delivers: bool) -> None:
        """Begins the work behind the requests. ``delivers``: whether this process sends what is stored."""
        leave_note(self.settings, self.config)
        self.watch.start()
        if self.fleet:
            self.fleet.start()
        if delivers:
            self.retrier.start()

    def close(self) -> None:
        """Lets what is under way finish."""
        self.retrier.close()
        self.sender.close()
        if self.queue:
            self.queue.close()
        self.watch.close()
        if self.fleet:
            self.fleet.close()
        for close in self.closing:
            close()
        self.coordinator.close()


def build(settings: Settings, config: Config | None = None) -> Service:
    """The service of a web process, at work. Raises SettingsError if something in the settings is wrong."""
    service = build_service(settings, config or load_config(settings))
    show_new(service.tokens)
    service.start(delivers=service.queue is None)
    return service


def build_service(settings: Settings, config: Config, *, is_worker: bool = False) -> Service:
    """All parts of a process; nothing is started yet."""
    make_data_dir(settings)
    tokens = ensure_tokens(settings)
    server = new_server_id()
    coordinator = build_coordinator(settings, is_trial=config.is_trial)
    meter = Meter(config.destinations)
    states = DestinationStates(coordinator.journal)
    redis_timeout_s = settings.redis_timeout_ms / 1000
    counters = _counters(settings, redis_timeout_s)
    guess_counters = _counters(settings, min(GUESSES_TIMEOUT_S, redis_timeout_s)) if settings.redis_url else counters
    alone = process_counters()  # while the shared ones are away
    limits = {name: _limits(each) for name, each in config.destinations.items()}
    guard = Guard(counters, alone, limits, is_gone=lambda: coordinator.redis.status == "gone")
    pool_size = max(settings.web_threads, settings.worker_threads)
    sender = Sender(
        coordinator=coordinator,
        policies={name: _policy(name, each, pool_size) for name, each in config.destinations.items()},
        guard=guard,
        pools={name: ThreadPoolExecutor(settings.web_threads, f"to-{name}") for name in config.destinations},
        states=states,
        meter=meter,
        server=server,
        on_recovery=lambda destination: retrier.recover(destination),
    )
    retrier = Retrier(coordinator, sender, config.destinations, RETRIER_THREADS, settings.lease_margin_s)
    queue = build_queue(settings)
    privacy = Privacy(coordinator.journal, settings.privacy)
    pipeline = Pipeline(
        coordinator=coordinator,
        router=make_router(settings, config),
        sender=sender,
        retrier=retrier,
        naming=make_naming(settings, config),
        guard=RealtimeGuard(settings.service_started_at),
        privacy=privacy,
        meter=meter,
        options=PipelineOptions(
            server=server,
            lease_ms=settings.lease_ms,
            budget_s=settings.delivery_budget_s,
            keeps_suppressed=settings.keep_suppressed,
            keeps_delivered=settings.delivered_payload_days > 0,
        ),
        queue=queue,
        resolve=LinkResolver(config.media.resolve).resolve if config.media.resolve else None,
    )
    observer = Observer(
        settings,
        config,
        coordinator,
        guard,
        states,
        queue,
        members=lambda: fleet.members if fleet else {},
        is_worker=is_worker,
    )
    fleet = build_fleet(settings, coordinator, lambda: observer.about() | {"server": server}, is_trial=config.is_trial)
    counts, providers = Counts(coordinator.journal, meter), ProvidersSeen(coordinator.journal)
    alarms = build_alarms(config, coordinator, observer)
    return Service(
        settings=settings,
        config=config,
        tokens=tokens,
        server=server,
        coordinator=coordinator,
        fleet=fleet,
        guard=guard,
        guesses=GuessLimit(guess_counters, alone),
        states=states,
        sender=sender,
        retrier=retrier,
        pipeline=pipeline,
        locks=PublicationLocks(coordinator, server),
        queue=queue,
        meter=meter,
        counts=counts,
        providers=providers,
        observer=observer,
        alarms=alarms,
        health=HealthChecks(settings, observer, alarms),
        watch=Watch(coordinator, meter, counts, providers, observer, alarms),
        privacy=privacy,
        closing=(counters.close, guess_counters.close, alone.close),
    )


def build_coordinator(settings: Settings, *, is_trial: bool = False) -> Coordinator:
    """The journal of this machine and, with a REDIS_URL, the registry. Emails that are only printed go to another
    journal, and to other keys in Redis: they must not count as delivered once a destination is configured."""
    retention = Retention(
        entry_ms=settings.decision_ms,
        dead_ms=settings.dead_letter_ms,
        delivered_payload_ms=settings.delivered_payload_ms,
        disk_free_bytes=settings.disk_free_bytes,
    )
    journal = Journal(settings.data_dir / ("trial.db" if is_trial else "journal.db"), retention=retention)
    registry = build_registry(settings, journal, is_trial=is_trial) if settings.redis_url else None
    return Coordinator(
        journal,
        registry,
        is_open=settings.on_store_failure is OnFailure.OPEN,
        hold_within_ms=settings.redis_timeout_ms,
    )


def build_fleet(
    settings: Settings,
    coordinator: Coordinator,
    about: Callable[[], dict[str, Any]] | None = None,
    *,
    is_trial: bool = False,
) -> Fleet | None:
    """``about``: what other machines see of this one; None for a script, which is no member."""
    if coordinator.registry is None:
        return None
    options = FleetOptions(
        events_ms=settings.decision_ms,
        events_bytes=settings.stream_bytes,
        block_ms=min(1_000, settings.redis_timeout_ms // 2),
        about=about,
    )
    return Fleet(coordinator, build_registry(settings, coordinator.journal, is_trial=is_trial), options)


def build_alarms(config: Config, coordinator: Coordinator, observer: Observer) -> Alarms:
    alerts = config.alerts
    return Alarms(
        coordinator.journal,
        HttpDestination("alerts", HttpOptions(alerts.url, alerts.secret), pool_size=1) if alerts.url else None,
        after_ms=int(alerts.after_s * 1000),
        off=frozenset(alerts.off),
        shared=observer.shared,
        is_redis_up=lambda: coordinator.redis.status == "up",
    )


def build_registry(settings: Settings, journal: Journal, *, is_trial: bool = False) -> Registry:
    longest_lease_ms = settings.lease_ms + 60_000
    options = RegistryOptions(
        prefix=f"{settings.redis_prefix}{'trial:' if is_trial else ''}",
        group_ttl=settings.subject_group_ttl_seconds > 0,
        entry_ms=settings.decision_ms,
        hold_ms=2 * settings.redis_timeout_ms + 2_000
        if settings.on_store_failure is OnFailure.OPEN
        else longest_lease_ms,
        payload_bytes=settings.payload_bytes,
    )

    @lru_cache
    def connected(more_s: int) -> Client:
        return connect(settings.redis_url, settings.redis_timeout_ms / 1000 + more_s, decode_responses=False)

    return Registry(connected(0), journal.machine, journal.clock, options, connected)


def build_queue(settings: Settings) -> Queue | None:
    if not settings.queue_url:
        return None
    try:
        from orchestrator.delivery.dramatiq_queue import DramatiqQueue  # needs the extra "queue"
    except ModuleNotFoundError as error:
        how = "make run installs it, and so does .venv/bin/pip install -c constraints.txt -e '.[queue]'"
        raise SettingsError(f"QUEUE_URL needs the extra queue ({error}); {how}") from error
    return DramatiqQueue(settings.queue_url, settings.redis_timeout_ms / 1000)


def check_start(settings: Settings, config: Config) -> None:
    """Opens once, before there is a socket or a process, what every process will need: a wrong setting stops the start.

    A Redis or a queue that is away does not.
    """
    with quiet():
        service = build_service(settings, config)
    try:
        if service.coordinator.registry:
            check_redis(service.coordinator.registry)
    except StoreMisconfigured as error:
        raise SettingsError(f"REDIS_URL must be a Redis that Mailonce can use; {error}") from error
    except StoreUnavailable as error:
        log.warning("WARNING: REDIS_URL: %s. Until Redis is back, this machine's journal decides.", error)
    try:
        if service.queue:
            service.queue.check()
    except QueueMisconfigured as error:
        raise SettingsError(f"QUEUE_URL must be a queue that Mailonce can use; {error}") from error
    except QueueUnavailable as error:
        log.error("WARNING: QUEUE_URL: %s. Until it is back, requests deliver.", error)
    finally:
        service.close()


def make_data_dir(settings: Settings) -> None:
    try:
        settings.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise SettingsError(f"DATA_DIR must be a folder that can be written; {error}") from error


def make_router(settings: Settings, config: Config) -> Router:
    return Router(config.routes, Route("default", tuple(config.destinations), settings.subject_groups))


def make_naming(settings: Settings, config: Config) -> Naming:
    return Naming(
        tz=settings.tz,
        patterns=config.patterns,
        group_ttl_seconds=settings.subject_group_ttl_seconds,
        media_hosts=config.media.hosts,
        identity_parameters=config.media.identity_parameters,
    )


def _counters(settings: Settings, timeout_s: float) -> SqliteCounters | RedisCounters:
    path = settings.data_dir / "counters.db"
    try:
        return open_counters(settings.redis_url, timeout_s, settings.redis_prefix, path)
    except sqlite3.Error as error:
        log.error("WARNING: %s cannot be used (%s): each process counts rates and failures alone", path, error)
        return process_counters()


def _limits(config: DestinationConfig) -> Limits:
    rate = parse_rate(config.rate) if config.rate else None
    attempt_s = config.connect_timeout_s + config.read_timeout_s
    return Limits(rate, config.breaker_failures, config.breaker_pause_s, probe_lease_s=max(15.0, 2 * attempt_s))


def _policy(name: str, config: DestinationConfig, pool_size: int) -> DestinationPolicy:
    rate_s = RATE_PATIENCE_S if config.rate else 0.0
    return DestinationPolicy(
        destination=_destination(name, config, pool_size),
        content_window_ms=config.content_window_ms,
        max_attempts=config.max_attempts,
        is_enabled=config.enabled,
        limit_s=config.connect_timeout_s + config.read_timeout_s + rate_s,
    )


def _destination(name: str, config: DestinationConfig, pool_size: int) -> Destination:
    if config.url == LOG_URL:
        return LogDestination(lambda text: print(text, file=sys.stdout, flush=True))
    options = HttpOptions(
        url=config.url,
        secrets=config.secret,
        format=config.format,
        fallback_form=config.fallback_form,
        headers=config.headers,
        connect_timeout_s=config.connect_timeout_s,
        read_timeout_s=config.read_timeout_s,
    )
    return HttpDestination(name, options, pool_size)
