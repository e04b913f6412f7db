"""Builds the service from its settings: the only place that decides which parts are used."""

from __future__ import annotations

import logging
import secrets
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from deduplication.errors import DeduplicationError, StoreMisconfigured
from deduplication.locks import PublicationLocks, new_server_id
from deduplication.realtime_guard import RealtimeGuard
from deduplication.redis_client import connect
from deduplication.stores.base import Store
from deduplication.stores.failover import FailoverStore
from deduplication.stores.local import LocalStore
from deduplication.stores.memory import MemoryStore
from deduplication.stores.redis import RedisStore
from deduplication.stores.spelling import Speller
from deduplication.stores.sqlite import SqliteStore
from orchestrator.config import LOG_URL, Config, DestinationConfig, load_config
from orchestrator.delivery.dispatch import Dispatcher, Place
from orchestrator.delivery.resolution import LinkResolver
from orchestrator.delivery.webhook import Destination, HttpDestination, LogDestination
from orchestrator.health import HealthChecks
from orchestrator.intake import Intake, Naming, Sources
from orchestrator.leases import LeaseKeeper
from orchestrator.routing import Route, Router
from orchestrator.settings import Settings, SettingsError
from orchestrator.tokens import Tokens, ensure_tokens, show_new

log = logging.getLogger(__name__)

LOCAL_BUSY_TIMEOUT_S = 1.0  # while Redis is away a provider rather hears "retry later" than waits


@dataclass(frozen=True)
class Service:
    """Everything the routes need."""

    settings: Settings
    tokens: Tokens
    store: Store
    intake: Intake
    health: HealthChecks
    locks: PublicationLocks

    def close(self) -> None:
        self.intake.leases.close()
        self.store.close()


def system_sources() -> Sources:
    return Sources(now=lambda: datetime.now(UTC), new_token=lambda: secrets.token_urlsafe(16))


def build(settings: Settings, sources: Sources | None = None) -> Service:
    """Raises SettingsError if something in the settings or mailonce.toml is wrong."""
    config = load_config(settings)
    make_data_dir(settings)
    tokens = ensure_tokens(settings)
    show_new(tokens)
    store = build_store(settings)
    leases = LeaseKeeper(store, settings.lease_ms)
    sources = sources or system_sources()
    dispatcher = Dispatcher(store, leases, _places(settings, config))
    intake = Intake(
        store=store,
        leases=leases,
        router=_router(settings, config),
        dispatcher=dispatcher,
        naming=_naming(settings, config),
        guard=RealtimeGuard(settings.service_started_at),
        sources=sources,
        resolve=LinkResolver(config.media.resolve).resolve if config.media.resolve else None,
    )
    locks = PublicationLocks(store, new_server_id(), sources.new_token)
    health = HealthChecks(store, settings.memory_limit_mb)
    for warning in health.report().warnings:
        log.warning("WARNING: %s", warning)
    if isinstance(store, FailoverStore):
        store.start()
    return Service(settings, tokens, store, intake, health, locks)


def make_data_dir(settings: Settings) -> None:
    """With Redis and tokens given, the service can do without the folder, if it must."""
    try:
        settings.data_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        if not (settings.redis_url and settings.ingress_token and settings.admin_token):
            raise SettingsError(f"DATA_DIR takes a folder that can be written; {error}") from error


def build_store(settings: Settings) -> Store:
    path = settings.data_dir / "mailonce.db"
    if not settings.redis_url:
        return SqliteStore(path)
    client = connect(settings.redis_url, settings.redis_timeout_ms / 1000)
    speller = Speller(settings.redis_prefix, group_ttl=settings.subject_group_ttl_seconds > 0)
    try:
        return FailoverStore(RedisStore(client, speller), _local_store(settings, path), settings.on_store_failure)
    except StoreMisconfigured as error:
        raise SettingsError(f"REDIS_URL takes a Redis that lets us in; {error}") from error


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


def _router(settings: Settings, config: Config) -> Router:
    return Router(config.routes, Route("default", tuple(config.destinations), settings.subject_groups))


def _naming(settings: Settings, config: Config) -> Naming:
    return Naming(
        tz=settings.tz,
        patterns=config.patterns,
        group_ttl_seconds=settings.subject_group_ttl_seconds,
        media_hosts=config.media.hosts,
        identity_parameters=config.media.identity_parameters,
    )


def _places(settings: Settings, config: Config) -> Mapping[str, Place]:
    return {name: _place(name, each, settings.web_threads) for name, each in config.destinations.items()}


def _place(name: str, config: DestinationConfig, pool_size: int) -> Place:
    destination: Destination = LogDestination(_print)
    if config.url != LOG_URL:
        destination = HttpDestination(name, config.url, pool_size)
    window_s = config.content_window_s
    return Place(destination, None if window_s is None else window_s * 1000)


def _print(text: str) -> None:
    print(text, file=sys.stdout, flush=True)
