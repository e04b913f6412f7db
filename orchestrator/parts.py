"""What every process is made of, whether it takes emails, delivers them, or serves an operator."""

from __future__ import annotations

import logging
import secrets
import sqlite3
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from deduplication.errors import DeduplicationError, StoreMisconfigured
from deduplication.journal.redis import translated_errors
from deduplication.locks import PublicationLocks, new_server_id
from deduplication.redis_client import connect
from deduplication.stores.base import Store
from deduplication.stores.failover import FailoverStore, Mode
from deduplication.stores.local import LocalStore
from deduplication.stores.memory import MemoryStore
from deduplication.stores.redis import RedisStore
from deduplication.stores.spelling import Speller
from deduplication.stores.sqlite import SqliteStore
from orchestrator.config import LOG_URL, Config, DestinationConfig
from orchestrator.delivery.counters import RedisCounters, SqliteCounters, open_counters, process_counters
from orchestrator.delivery.courier import Clock, Courier, Place
from orchestrator.delivery.dispatch import Dispatcher
from orchestrator.delivery.guard import Guard, Limits, parse_rate
from orchestrator.delivery.http import HttpDestination, HttpOptions, LogDestination
from orchestrator.delivery.ledger.base import Ledger, Retention
from orchestrator.delivery.ledger.failover import FailoverLedger
from orchestrator.delivery.ledger.redis import RedisLedger
from orchestrator.delivery.ledger.sqlite import SqliteLedger
from orchestrator.delivery.replay import Replays
from orchestrator.delivery.webhook import Destination
from orchestrator.intake import Sources
from orchestrator.leases import LeaseKeeper
from orchestrator.settings import Settings, SettingsError
from orchestrator.store_time import StoreTime

log = logging.getLogger(__name__)

PAYLOADS_TAKE = 4  # times as long as names: they may be several megabytes
LOCAL_BUSY_TIMEOUT_S = 1.0  # while Redis is away a provider rather hears "retry later" than waits


@dataclass(frozen=True)
class Parts:
    config: Config
    store: Store
    ledger: Ledger
    guard: Guard
    leases: LeaseKeeper
    dispatcher: Dispatcher
    replays: Replays
    locks: PublicationLocks
    time: StoreTime
    sources: Sources
    closing: tuple[Callable[[], None], ...]

    def close(self) -> None:
        """Deliveries under way are finished first."""
        for pool in self.dispatcher.pools.values():
            pool.shutdown()
        for close in self.closing:
            close()


def system_sources() -> Sources:
    return Sources(now=lambda: datetime.now(UTC), new_token=lambda: secrets.token_urlsafe(16))


def build_parts(settings: Settings, config: Config, sources: Sources | None = None) -> Parts:
    if config.is_trial:
        settings = settings.for_trial
    make_data_dir(settings)
    sources = sources or system_sources()
    store = build_store(settings)
    ledger = _ledger(settings, store)
    time = StoreTime(store.now_ms)
    leases = LeaseKeeper(store, settings.lease_ms)
    counters = _counters(settings)
    limits = {name: _limits(each) for name, each in config.destinations.items()}
    guard = Guard(counters, process_counters(), limits)
    dispatcher = Dispatcher(
        store=store,
        leases=leases,
        ledger=ledger,
        courier=Courier(_places(settings, config), guard, Clock(time.now_ms)),
        pools={name: ThreadPoolExecutor(settings.web_threads, f"to-{name}") for name in config.destinations},
        new_token=sources.new_token,
        has_workers=bool(settings.queue_url),
        keeps_delivered_payloads=settings.delivered_payload_days > 0,
    )
    return Parts(
        config=config,
        store=store,
        ledger=ledger,
        guard=guard,
        leases=leases,
        dispatcher=dispatcher,
        replays=Replays(ledger, store, time.now_ms, sources.new_token),
        locks=PublicationLocks(store, new_server_id(), sources.new_token),
        time=time,
        sources=sources,
        closing=(leases.close, ledger.close, counters.close, store.close),
    )


def make_data_dir(settings: Settings) -> None:
    """With Redis and tokens given, the service can do without the folder, if it must."""
    try:
        settings.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        if not (settings.redis_url and settings.ingress_token and settings.admin_token):
            raise SettingsError(f"DATA_DIR takes a folder that can be written; {error}") from error


def build_store(settings: Settings) -> Store:
    path = settings.data_dir / "mailonce.db"
    if not settings.redis_url:
        return SqliteStore(path)
    with translated_errors():  # the client of a Cluster looks for it at once
        client = connect(settings.redis_url, settings.redis_timeout_ms / 1000)
    speller = Speller(settings.redis_prefix, group_ttl=settings.subject_group_ttl_seconds > 0)
    try:
        return FailoverStore(RedisStore(client, speller), _local_store(settings, path), settings.on_store_failure)
    except StoreMisconfigured as error:
        raise SettingsError(f"REDIS_URL takes a Redis that we can use; {error}") from error


def _local_store(settings: Settings, path: Path) -> LocalStore:
    try:
        return SqliteStore(path, retention_ms=settings.local_retention_ms, busy_timeout_s=LOCAL_BUSY_TIMEOUT_S)
    except DeduplicationError as error:
        log.error(
            "WARNING: DATA_DIR cannot be written (%s). If Redis goes away, each worker remembers alone, in memory: "
            "an email that meets two workers is then delivered twice.",
            error,
        )
        return MemoryStore(retention_ms=settings.local_retention_ms)


def _ledger(settings: Settings, store: Store) -> Ledger:
    retention = Retention(others_ms=settings.dead_letter_ms)
    if settings.delivered_payload_ms:
        retention = Retention(settings.delivered_payload_ms, settings.dead_letter_ms)
    path = settings.data_dir / "deliveries.db"
    if not isinstance(store, FailoverStore):
        return SqliteLedger(path, retention)
    client = connect(settings.redis_url, settings.redis_timeout_ms * PAYLOADS_TAKE / 1000)
    shared = RedisLedger(client, settings.redis_prefix, retention)
    try:
        local = SqliteLedger(path, retention, busy_timeout_s=LOCAL_BUSY_TIMEOUT_S)
    except DeduplicationError as error:
        log.error("WARNING: DATA_DIR cannot be written (%s): delivery records are kept on Redis alone", error)
        return shared
    return FailoverLedger(shared, local, lambda: store.mode is Mode.REDIS)


def _counters(settings: Settings) -> SqliteCounters | RedisCounters:
    timeout_s, path = settings.redis_timeout_ms / 1000, settings.data_dir / "counters.db"
    try:
        return open_counters(settings.redis_url, timeout_s, settings.redis_prefix, path)
    except sqlite3.Error as error:
        log.error("WARNING: %s cannot be used (%s): each process counts rates and failures alone", path, error)
        return process_counters()


def _limits(config: DestinationConfig) -> Limits:
    rate = parse_rate(config.rate) if config.rate else None
    attempt_s = config.connect_timeout_s + config.read_timeout_s
    return Limits(rate, config.breaker_failures, config.breaker_pause_s, probe_lease_s=max(15.0, 2 * attempt_s))


def _places(settings: Settings, config: Config) -> dict[str, Place]:
    pool_size = max(settings.web_threads, settings.worker_threads)
    return {name: _place(name, each, pool_size) for name, each in config.destinations.items()}


def _place(name: str, config: DestinationConfig, pool_size: int) -> Place:
    return Place(
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
