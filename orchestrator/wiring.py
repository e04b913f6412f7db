"""Builds the service from its settings: the only place that decides which parts are used."""

from __future__ import annotations

import logging
import secrets
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from deduplication.stores.base import Store
from deduplication.stores.redis import RedisStore, Speller, connect
from deduplication.stores.sqlite import SqliteStore
from orchestrator.config import LOG_URL, Config, load_config
from orchestrator.delivery.webhook import Destination, HttpDestination, LogDestination
from orchestrator.health import HealthChecks
from orchestrator.intake import Intake, Naming, Sources
from orchestrator.leases import LeaseKeeper
from orchestrator.routing import Route, Router
from orchestrator.settings import Settings, SettingsError
from orchestrator.tokens import Tokens, ensure_tokens

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Service:
    """Everything the routes need."""

    settings: Settings
    tokens: Tokens
    store: Store
    intake: Intake
    health: HealthChecks

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
    redis = _redis_store(settings) if settings.redis_url else None
    database = None if redis else SqliteStore(settings.data_dir / "mailonce.db")
    store: Store = redis or database  # type: ignore[assignment]
    leases = LeaseKeeper(store, settings.lease_ms)
    intake = Intake(
        store=store,
        leases=leases,
        router=_router(settings, config),
        destinations=_destinations(settings, config),
        naming=Naming(
            tz=settings.tz,
            patterns=config.patterns,
            group_ttl_seconds=settings.subject_group_ttl_seconds,
            ids_kept_ms=settings.ids_kept_ms,
        ),
        sources=sources or system_sources(),
    )
    health = HealthChecks(redis, database, settings.memory_limit_mb)
    for warning in health.warnings():
        log.warning("WARNING: %s", warning)
    return Service(settings, tokens, store, intake, health)


def make_data_dir(settings: Settings) -> None:
    try:
        settings.data_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingsError(f"DATA_DIR takes a folder that can be written; {error}") from error


def _redis_store(settings: Settings) -> RedisStore:
    client = connect(settings.redis_url, settings.redis_timeout_ms / 1000)
    return RedisStore(client, Speller(settings.key_prefix, group_ttl=settings.subject_group_ttl_seconds > 0))


def _router(settings: Settings, config: Config) -> Router:
    only_destination = next(iter(config.destinations))
    return Router(config.routes, Route("default", only_destination, settings.subject_groups))


def _destinations(settings: Settings, config: Config) -> Mapping[str, Destination]:
    return {
        name: LogDestination(_print)
        if destination.url == LOG_URL
        else HttpDestination(name, destination.url, pool_size=settings.web_threads)
        for name, destination in config.destinations.items()
    }


def _print(text: str) -> None:
    print(text, file=sys.stdout, flush=True)
