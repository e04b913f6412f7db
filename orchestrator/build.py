"""Builds the service from its settings: the only place that decides which parts are used."""

from __future__ import annotations

import logging
import os
import secrets
import sqlite3
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from deduplication.errors import DeduplicationError, StoreMisconfigured
from deduplication.journal.base import Journal, Retention
from deduplication.journal.failover import FailoverJournal
from deduplication.journal.redis import RedisJournal, translated_errors
from deduplication.journal.redis_figures import RedisFigures
from deduplication.journal.side import Side, machine_name
from deduplication.journal.sqlite import SqliteJournal
from deduplication.journal.storage import DiskRoom
from deduplication.journal.upgrade import upgrade_folder, upgrade_redis
from deduplication.locks import PublicationLocks, new_server_id
from deduplication.realtime_guard import RealtimeGuard
from deduplication.redis_client import connect
from orchestrator.config.model import LOG_URL, Config, DestinationConfig, load_config
from orchestrator.config.settings import Settings, SettingsError
from orchestrator.delivery.counters import RedisCounters, SqliteCounters, open_counters, process_counters
from orchestrator.delivery.destination_states import DestinationStates
from orchestrator.delivery.due import Chore, DueDeliveries
from orchestrator.delivery.guard import Guard, Limits, parse_rate
from orchestrator.delivery.http import HttpDestination, HttpOptions, LogDestination
from orchestrator.delivery.queue import Queue, QueueMisconfigured, QueueUnavailable
from orchestrator.delivery.resolution import LinkResolver
from orchestrator.delivery.sender import Clock, DestinationPolicy, Sender
from orchestrator.delivery.webhook import Destination
from orchestrator.guesses import GuessLimit
from orchestrator.intake import Intake, Naming, Sources
from orchestrator.leases import LeaseKeeper
from orchestrator.metrics.counted import Counted, Recorder
from orchestrator.metrics.history import KEPT_S, History
from orchestrator.metrics.meter import Meter
from orchestrator.metrics.tally import Tally, open_tally
from orchestrator.operations import decision_index
from orchestrator.operations.alert_facts import FactsReader
from orchestrator.operations.alert_watch import Alerting, AlertWatch
from orchestrator.operations.decision_index import DecisionIndex
from orchestrator.operations.health import HealthChecks
from orchestrator.operations.providers import ProvidersSeen
from orchestrator.operations.storage import StorageWatch
from orchestrator.operations.waiting import OldestWaiting
from orchestrator.privacy import Privacy
from orchestrator.routing import Route, Router
from orchestrator.service_note import leave_note
from orchestrator.sign_outs import SignOuts
from orchestrator.tokens import Tokens, ensure_tokens, show_new

log = logging.getLogger(__name__)

LOCKS_EVERY_S = 300
STORAGE_EVERY_S = 1
GUESSES_TIMEOUT_S = 1.0  # of Redis; then each process counts alone, so that a scrape is not held up
THREADS_FOR_DUE = 2  # a destination, beside those of the requests
LOCAL_BUSY_TIMEOUT_S = 1.0  # while Redis is away a provider rather hears "retry later" than waits


@dataclass(frozen=True)
class Parts:
    """What every process is made of, whether it takes emails, delivers them, or serves an operator."""

    settings: Settings
    config: Config
    journal: Journal
    guard: Guard
    guesses: GuessLimit
    sign_outs: SignOuts
    leases: LeaseKeeper
    sender: Sender
    locks: PublicationLocks
    storage: StorageWatch
    oldest: OldestWaiting
    meter: Meter
    counted: Counted
    privacy: Privacy
    decisions: DecisionIndex
    providers: ProvidersSeen
    sources: Sources
    closing: tuple[Callable[[], None], ...]

    def close(self) -> None:
        """Deliveries under way are finished first."""
        for pool in self.sender.pools.values():
            pool.shutdown()
        for close in self.closing:
            close()


@dataclass(frozen=True)
class Service:
    """Everything the routes need. ``queue`` None: requests deliver."""

    parts: Parts
    tokens: Tokens
    intake: Intake
    health: HealthChecks
    queue: Queue | None
    due: DueDeliveries | None
    recorder: Recorder
    watch: AlertWatch

    @property
    def settings(self) -> Settings:
        return self.parts.settings

    @property
    def config(self) -> Config:
        return self.parts.config

    @property
    def journal(self) -> Journal:
        return self.parts.journal

    def close(self) -> None:
        """Lets what is under way finish."""
        if self.due:
            self.due.close()
        if self.queue:
            self.queue.close()
        self.watch.close()
        self.recorder.close()
        self.parts.close()


def build(settings: Settings, sources: Sources | None = None, config: Config | None = None) -> Service:
    """The service of a web process. Raises SettingsError if something in the settings or mailonce.toml is wrong."""
    config = config or load_config(settings)
    make_data_dir(settings)
    tokens = ensure_tokens(settings)
    show_new(tokens)
    leave_note(settings, config)
    queue = build_queue(settings)
    parts = build_parts(settings, config, sources, slot="web")
    watch = build_watch(parts)
    health = HealthChecks(parts.sender, settings.memory_limit_mb, parts.storage, watch, queue)
    for warning in health.report().warnings:
        log.warning("WARNING: %s", warning)
    follow_redis(parts.journal)
    parts.sender.states.refresh()  # before the first email would have to
    parts.decisions.start()
    due = None
    if queue is None or isinstance(parts.journal, FailoverJournal):
        # With a queue the workers do it, but for what lies on this machine alone: there may be none here.
        due = build_due(parts, THREADS_FOR_DUE, only_here=queue is not None)
        due.start()
    recorder = build_recorder(parts)
    recorder.start()
    watch.start()
    return Service(parts, tokens, build_intake(parts, queue), health, queue, due, recorder, watch)


def build_parts(settings: Settings, config: Config, sources: Sources | None = None, slot: str = "") -> Parts:
    """``slot``: web or worker, for a process that counts what it does; one for an operator counts nothing."""
    make_data_dir(settings)
    sources = sources or system_sources()
    server = new_server_id()
    journal = build_journal(settings)
    counted, close_counted = build_counted(settings, journal, slot)
    meter = Meter(counted.tally, config.destinations)
    if isinstance(journal, FailoverJournal):
        journal.count_step = meter.count_redis_step
    leases = LeaseKeeper(journal, settings.lease_ms)
    redis_timeout_s = settings.redis_timeout_ms / 1000
    counters = _counters(settings, redis_timeout_s)
    guess_counters = _counters(settings, min(GUESSES_TIMEOUT_S, redis_timeout_s)) if settings.redis_url else counters
    alone = process_counters()  # while the shared ones are away
    guard = Guard(counters, alone, {name: _limits(each) for name, each in config.destinations.items()})
    pool_size = max(settings.web_threads, settings.worker_threads)
    sender = Sender(
        journal=journal,
        leases=leases,
        policies={name: _policy(name, each, pool_size) for name, each in config.destinations.items()},
        guard=guard,
        pools={name: ThreadPoolExecutor(settings.web_threads, f"to-{name}") for name in config.destinations},
        new_token=sources.new_token,
        states=DestinationStates(journal),
        clock=Clock(journal.now_ms),
        server=server,
        meter=meter,
    )
    index_file = settings.data_dir / decision_index.FILE if os.access(settings.data_dir, os.W_OK) else None
    privacy = Privacy(journal, settings.privacy)
    decisions = DecisionIndex(journal, privacy, retention_of(settings), index_file, disk_room(settings))
    return Parts(
        settings=settings,
        config=config,
        journal=journal,
        guard=guard,
        guesses=GuessLimit(guess_counters, alone),
        sign_outs=SignOuts(journal),
        leases=leases,
        sender=sender,
        locks=PublicationLocks(journal, server, sources.new_token),
        storage=StorageWatch(journal),
        oldest=OldestWaiting(journal),
        meter=meter,
        counted=counted,
        privacy=privacy,
        decisions=decisions,
        providers=ProvidersSeen(journal),
        sources=sources,
        closing=(
            leases.close,
            decisions.close,
            counters.close,
            guess_counters.close,
            alone.close,
            journal.close,
            close_counted,
        ),
    )


def build_counted(settings: Settings, journal: Journal, slot: str) -> tuple[Counted, Callable[[], None]]:
    """And how to close it."""
    folder = settings.data_dir / "metrics"
    own = open_tally(folder, slot) if slot else None
    try:
        history = History(settings.data_dir / "figures.db")
    except sqlite3.Error as error:
        log.error("WARNING: figures.db cannot be used (%s): figures over time are this process's alone", error)
        history = History(Path(":memory:"))
    shared = None
    if isinstance(journal, FailoverJournal):
        with translated_errors():  # the client of a Cluster looks for it at once
            client = connect(settings.redis_url, settings.redis_timeout_ms / 1000)
        shared = RedisFigures(client, machine_name(settings.data_dir), settings.redis_prefix, KEPT_S)

    def is_reachable() -> bool:
        return not isinstance(journal, FailoverJournal) or journal.standing.side is Side.REDIS

    counted = Counted(folder, own.tally if own else Tally(), history, shared, is_reachable, is_filed=own is not None)

    def close() -> None:
        for each in (own, history, shared):
            if each:
                each.close()

    return counted, close


def build_recorder(parts: Parts) -> Recorder:
    journal = parts.journal
    side = (lambda: journal.standing.side) if isinstance(journal, FailoverJournal) else None
    return Recorder(parts.counted, parts.meter, side)


def build_watch(parts: Parts) -> AlertWatch:
    alerts = parts.config.alerts
    facts = FactsReader(parts.journal, parts.sender, parts.counted, parts.oldest, bool(parts.settings.queue_url))
    tell = HttpDestination("alerts", HttpOptions(alerts.url, alerts.secret), pool_size=1) if alerts.url else None
    how = Alerting(tell, int(alerts.after_s * 1000), frozenset(alerts.off))
    return AlertWatch(parts.journal, facts.read, how, also=(parts.providers.write, parts.sign_outs.tell))


def build_intake(parts: Parts, queue: Queue | None = None) -> Intake:
    settings, config = parts.settings, parts.config
    return Intake(
        journal=parts.journal,
        leases=parts.leases,
        router=make_router(settings, config),
        sender=parts.sender,
        naming=make_naming(settings, config),
        guard=RealtimeGuard(settings.service_started_at),
        sources=parts.sources,
        privacy=parts.privacy,
        resolve=LinkResolver(config.media.resolve).resolve if config.media.resolve else None,
        queue=queue,
        is_trial=config.is_trial,
        keeps_delivered=settings.delivered_payload_days > 0,
        keeps_suppressed=settings.keep_suppressed,
        note_old=parts.decisions.note_old,
        server=parts.sender.server,
        meter=parts.meter,
    )


def build_journal(settings: Settings) -> Journal:
    """The journal of this machine; with REDIS_URL, Redis over it."""
    retention = retention_of(settings)
    path = settings.data_dir / "journal.db"
    room = disk_room(settings)
    if not settings.redis_url:
        local = SqliteJournal(path, retention=retention, room=room)
        upgrade_folder(settings.data_dir, local)
        return local
    with translated_errors():  # the client of a Cluster looks for it at once
        client = connect(settings.redis_url, settings.redis_timeout_ms / 1000, decode_responses=False)
    prefix = settings.redis_prefix

    def on_redis(machine: str) -> RedisJournal:
        return RedisJournal(
            client,
            machine,
            prefix,
            group_ttl=settings.subject_group_ttl_seconds > 0,
            retention=retention,
            most_payload_bytes=settings.payload_bytes,
        )

    try:
        local = SqliteJournal(
            path,
            retention=retention,
            busy_timeout_s=LOCAL_BUSY_TIMEOUT_S,
            marks_kept_ms=settings.local_retention_ms,
            room=room,
        )
        machine = machine_name(settings.data_dir)
    except (DeduplicationError, OSError) as error:
        log.error("WARNING: DATA_DIR cannot be written (%s): while Redis is away, emails are asked to retry", error)
        return on_redis(new_server_id())
    upgrade_folder(settings.data_dir, local)
    redis = on_redis(machine)
    try:
        return FailoverJournal(
            redis,
            local,
            settings.data_dir,
            settings.on_store_failure,
            prepare_redis=lambda: upgrade_redis(client, prefix, redis),
        )
    except StoreMisconfigured as error:
        raise SettingsError(f"REDIS_URL takes a Redis that we can use; {error}") from error


def disk_room(settings: Settings) -> DiskRoom:
    return DiskRoom(settings.data_dir, settings.payload_disk_bytes, settings.disk_free_bytes)


def retention_of(settings: Settings) -> Retention:
    return Retention(settings.decision_ms, settings.dead_letter_ms, settings.delivered_payload_ms)


def build_queue(settings: Settings) -> Queue | None:
    if not settings.queue_url:
        return None
    try:
        from orchestrator.delivery.dramatiq_queue import DramatiqQueue  # needs the extra "queue"
    except ModuleNotFoundError as error:
        how = "make run brings it, and so does .venv/bin/pip install -c constraints.txt -e '.[queue]'"
        raise SettingsError(f"QUEUE_URL takes the extra queue ({error}); {how}") from error
    return DramatiqQueue(settings.queue_url, settings.redis_timeout_ms / 1000)


def build_due(parts: Parts, threads_each: int, *, only_here: bool = False) -> DueDeliveries:
    """``only_here``: of what waits, that which no other machine can deliver."""
    chores = (
        Chore(LOCKS_EVERY_S, parts.locks.cleanup_expired_locks),
        Chore(STORAGE_EVERY_S, parts.storage.look),
    )
    journal = parts.journal
    ask = journal.due_here if only_here and isinstance(journal, FailoverJournal) else None
    return DueDeliveries(journal, parts.sender, parts.config.destinations, threads_each, chores, ask)


def check_start(settings: Settings, config: Config) -> None:
    """Opens once, before there is a socket or a process, what every process will need: a wrong setting stops the start.

    A queue that is away does not: meanwhile requests deliver.
    """
    queue = build_queue(settings)
    parts = build_parts(settings, config)
    try:
        if queue:
            queue.check()
    except QueueMisconfigured as error:
        raise SettingsError(f"QUEUE_URL takes a queue that we can use; {error}") from error
    except QueueUnavailable as error:
        log.error("WARNING: QUEUE_URL: %s. Until it is back, requests deliver.", error)
    finally:
        parts.close()
        if queue:
            queue.close()


def follow_redis(journal: Journal) -> None:
    if isinstance(journal, FailoverJournal):
        journal.start()


def make_data_dir(settings: Settings) -> None:
    """With Redis and tokens given, the service can do without the folder, if it must."""
    try:
        settings.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        if not (settings.redis_url and settings.ingress_token and settings.admin_token):
            raise SettingsError(f"DATA_DIR takes a folder that can be written; {error}") from error


def system_sources() -> Sources:
    return Sources(now=lambda: datetime.now(UTC), new_token=lambda: secrets.token_urlsafe(9))


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
    return DestinationPolicy(
        destination=_destination(name, config, pool_size),
        content_window_ms=config.content_window_ms,
        max_attempts=config.max_attempts,
        is_enabled=config.enabled,
    )


def _destination(name: str, config: DestinationConfig, pool_size: int) -> Destination:
    if config.url == LOG_URL:
        return LogDestination(_print)
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


def _print(text: str) -> None:
    print(text, file=sys.stdout, flush=True)
